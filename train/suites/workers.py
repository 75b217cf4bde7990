"""A task's environments in several processes, to the same bits as in one.

An episode is a function of (seed, episode id, actions) in whichever place of a batch it is played. So a batch is cut
into parts of neighbouring places, each part is made in a process of its own by the task itself, and all parts are
stepped at once. Nothing else changes: not the suites, not the numbering of episodes, not checkpoints.

Gymnasium's AsyncVectorEnv has one process for every environment, and starts them as forks, which keep each other's
pipes open; here a process has many environments, and ends when its pipe does, however the run ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.suites.episodes import Actions, Episodes, Observations, StepResult
from quarl.train.suites.errors import EnvironmentFaultError
from quarl.train.suites.task import Task, judging

JUDGED_AT_ONCE = 32
Make = Callable[[int, int], Episodes]
"""A task's ``make``, (environments, seed) → episodes, as one that can be pickled."""
CLOSING_S = 10.0
"""What the environments may take to close; after that their process is killed."""
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2])\n"
    "from quarl.train.suites.workers import serve; serve(int(sys.argv[1]))"
)


class WorkerError(RuntimeError):
    """A process of environments failed or ended; says where, with the traceback of there."""


class Worker:
    """A process with some neighbouring environments of a batch, seen from the one that trains.

    Attributes:
        places: of its environments in the batch.
    """

    def __init__(self, places: slice, make: Make, seed: int) -> None:
        """Start the process and ask it for its environments; :meth:`answer` says when it has them."""
        self.places = places
        self._pipe, child_pipe = Pipe()
        with child_pipe:
            end = child_pipe.fileno()
            # A session of its own: Ctrl-C is for the run, which then ends its iteration, and needs its environments.
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(end), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=[end],
                start_new_session=True,
            )
        self.ask("make", make, places.stop - places.start, seed)

    def ask(self, verb: str, *arguments: Any) -> None:
        """Send a request; one that the process is no longer there to hear is told by :meth:`answer`."""
        with suppress(OSError):
            self._pipe.send((verb, arguments))

    def answer(self) -> Any:
        """Return the answer to the last request.

        Raises:
            EnvironmentFaultError: an environment failed.
            WorkerError: something else did, or the process ended.
        """
        where = f"the process of the environments {self.places.start} … {self.places.stop - 1}"
        try:
            is_good, answer = self._pipe.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSING_S)
            code = self._process.poll()
            how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise WorkerError(
                f"{where} ended unexpectedly ({how}). Type the same command without --workers to continue from the "
                "last checkpoint in one process."
            ) from None
        if isinstance(answer, EnvironmentFaultError):
            raise answer
        if not is_good:
            raise WorkerError(f"{where} failed:\n\n{answer}")
        return answer

    def hang_up(self) -> None:
        """Close the pipe, with which the process ends."""
        self._pipe.close()

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it when the time is over."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def end(workers: Sequence[Worker]) -> None:
    """End these processes, all at once."""
    deadline = time.monotonic() + CLOSING_S
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.wait(deadline - time.monotonic())


class InProcesses:
    """:class:`~train.suites.episodes.Episodes` of which each part is stepped in a process of its own.

    The processes end with :meth:`close`, with this object, or with this process.
    """

    def __init__(self, make: Make, workers: int, environments: int, seed: int) -> None:
        """Args: the task's, number of processes at most, number of environments, and the seed of all episodes.

        Raises:
            WorkerError: the environments cannot be made there.
        """
        self.environments = environments
        count = min(workers, environments)
        ends = [environments * part // count for part in range(count + 1)]
        self._workers: list[Worker] = []
        self._close = weakref.finalize(self, end, self._workers)  # before the first of them is started
        for start, stop in pairwise(ends):
            self._workers.append(Worker(slice(start, stop), make, seed))
        self._answers(self._workers)
        self._observation: Observations | None = None

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """See :class:`~train.suites.episodes.Episodes`."""
        is_first = self._observation is None
        active_workers = [candidate for candidate in self._workers if is_first or mask[candidate.places].any()]
        observations = self._ask(active_workers, "reset", lambda places: (mask[places], episode_ids[places]))
        if self._observation is None:
            self._observation = np.concatenate(observations)
        else:
            self._observation = self._observation.copy()
            for worker, part in zip(active_workers, observations, strict=True):
                self._observation[worker.places] = part
        return self._observation

    def step(self, actions: Actions) -> StepResult:
        """See :class:`~train.suites.episodes.Episodes`."""
        parts = self._ask(self._workers, "step", lambda places: (actions[places],))
        columns: dict[str, Any] = {}
        for name in vars(parts[0]):
            column = [getattr(part, name) for part in parts]
            columns[name] = None if column[0] is None else np.concatenate(column)
        result = StepResult(**columns)
        self._observation = result.observation
        return result

    def _ask(self, workers: Sequence[Worker], verb: str, of: Callable[[slice], tuple[Any, ...]]) -> list[Any]:
        for worker in workers:
            worker.ask(verb, *of(worker.places))
        return self._answers(workers)

    def _answers(self, workers: Sequence[Worker]) -> list[Any]:
        try:
            return [worker.answer() for worker in workers]
        except BaseException:
            self.close()  # what the others answer would be taken for something else; and the error keeps this alive
            raise

    def close(self) -> None:
        """End the processes."""
        self._close()


def in_processes(task: Task, make: Make, workers: int) -> Task:
    """Return the same task with its environments in this many processes; ``make`` is its own, to pickle."""

    def apart(environments: int, seed: int) -> InProcesses:
        return InProcesses(make, workers, environments, seed)

    return replace(task, make=apart, evaluate=judging(apart, JUDGED_AT_ONCE))


def leave_when_alone(descriptor: int) -> None:
    """Wait until the pipe is closed at its other end, and end this process if its environments hang then."""
    pipe = select.poll()
    pipe.register(descriptor, 0)  # nothing but the hang-up, which is always told
    pipe.poll()
    time.sleep(CLOSING_S)
    os._exit(1)


def serve(descriptor: int) -> None:
    """Be such a process: answer requests from the pipe with (True, answer) or (False, traceback), until it ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # sent to all processes of a service: the run decides
    threading.Thread(target=leave_when_alone, args=(descriptor,), daemon=True).start()
    episodes: Any = None
    with Connection(descriptor) as pipe, suppress(EOFError, OSError):
        while True:
            verb, arguments = pipe.recv()
            try:
                if verb == "make":
                    make, environments, seed = arguments
                    episodes, answer = make(environments, seed), None
                else:
                    answer = getattr(episodes, verb)(*arguments)
            except EnvironmentFaultError as error:
                pipe.send((False, error))
            except Exception:
                pipe.send((False, traceback.format_exc()))
            else:
                pipe.send((True, answer))
    close: Callable[[], None] = getattr(episodes, "close", lambda: None)
    close()
