"""Executes artifacts in the runtimes that a device has, each runtime in a process of its own.

A process of its own because tflite_runtime must not meet tensorflow in one process (``vector::reserve``), because a
runtime that crashes on a bad graph must not take its caller with it, and because that is how the agent runs them. The
agent's own adapters run them here too: what is checked is what a device executes. One process serves a whole conversion
or a whole flight: JSON lines on standard input, one reply per line.

    python -m convert.executor litert
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from quarl.device.agent.executing import Executor, results
from quarl.device.agent.runtimes import find_installed_runtimes, open_artifact
from quarl.policy.errors import PolicyError
from quarl.policy.places import IMPORTED_FROM
from quarl.policy.quantize import Floats
from quarl.policy.spec import PolicySpec, RuntimeName, parse_enum

# For one artifact on all observations, importing the runtime included. Policy III on 512 takes seconds; who waits ten
# minutes waits for a runtime that hangs.
TIMEOUT_S = 600.0
TFLITE_PYTHON = "QUARL_TFLITE_PYTHON"
"""Names the Python of another environment that executes tflite-runtime, which ends with Python 3.11 and numpy 1."""
# The code goes to the end of the path, so that numpy and the runtime are that Python's own.
_IN_ANOTHER_PYTHON = (
    "import runpy, sys; sys.path += [sys.argv.pop(1)]; "
    "runpy.run_module('quarl.convert.executor', run_name='__main__', alter_sys=True)"
)
END_TIMEOUT_S = 10.0  # of a process that has nothing more to do


class ExecutionError(PolicyError):
    """A runtime refused an artifact, crashed or hung on it, or is not installed."""


@dataclass(frozen=True)
class ExecutionResult:
    """The results of a runtime for a batch of observations, one at a time.

    Attributes:
        version: of the runtime.
        outputs: float32 (n, result_size): next states stand behind the outputs.
        actions: as :func:`policy.reference.choose_actions` makes them of the outputs.
    """

    version: str
    outputs: Floats
    actions: np.ndarray


_idle: dict[RuntimeName, RuntimeProcess] = {}


class RuntimeProcess:
    """One runtime in a process of its own, started again after a crash or when it hung; a context manager.

    What the two tell each other lies in files without a name: the kernel removes them however the processes end.
    """

    def __init__(self, runtime: RuntimeName) -> None:
        self.runtime = runtime
        self._open = ExitStack()
        self._artifact, self._policy, self._fed, self._made, self._stderr = (
            self._open_temporary_file() for _ in range(5)
        )
        self._process = self._start()

    def _open_temporary_file(self) -> IO[bytes]:
        return self._open.enter_context(tempfile.TemporaryFile())

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "quarl.convert.executor", self.runtime.value]
        if (other := _other_python(self.runtime)) is not None:
            command = [other, "-c", _IN_ANOTHER_PYTHON, str(IMPORTED_FROM), self.runtime.value]
        descriptors = [file.fileno() for file in (self._artifact, self._policy, self._fed, self._made)]
        _fill_file(self._stderr, b"")
        # A file, not a pipe: a runtime may say much, and nobody reads while it works.
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                pass_fds=descriptors,
            )
        except OSError as error:
            raise ExecutionError(
                f"{command[0]}, for {self.runtime.value}, cannot be started: {error.strerror}."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let the process end by the end of its input, or by force if it does not."""
        try:
            with suppress(BrokenPipeError):
                self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._open.close()

    def execute(
        self, spec: PolicySpec, data: bytes, observations: np.ndarray, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Run an artifact of a policy on raw observations (n, …), one at a time, on one thread.

        Raises:
            ExecutionError: the runtime refused the artifact, crashed or hung (after ``timeout_s``, or TIMEOUT_S); says
                what it said.
        """
        self._spec = spec
        job = {"artifact": _fill_file(self._artifact, data), "spec": _fill_file(self._policy, spec.to_json().encode())}
        return self._execute(job, observations, timeout_s or TIMEOUT_S)

    def execute_again(self, observations: np.ndarray, timeout_s: float) -> ExecutionResult:
        """Run the last artifact on other observations (n, …); raises as :meth:`execute` does."""
        return self._execute({}, observations, timeout_s)

    def _execute(self, job: dict[str, Any], observations: np.ndarray, timeout_s: float) -> ExecutionResult:
        spec, rows = self._spec, len(observations)
        kind = np.dtype(np.uint8 if observations.dtype == np.uint8 else np.float32)
        fed = _fill_file(self._fed, observations.astype(kind, copy=False).tobytes())
        job |= {"observations": fed, "type": kind.char, "rows": rows, "made": _path(self._made)}
        reply = self._request(job, timeout_s)
        if "error" in reply:
            raise ExecutionError(reply["error"])
        shape, action = (rows, *spec.head.action_shape), np.int64 if spec.is_discrete else np.float32
        actions = np.fromfile(_path(self._made), action, int(np.prod(shape))).reshape(shape)
        outputs = np.fromfile(_path(self._made), np.float32, rows * spec.result_size, offset=actions.nbytes)
        return ExecutionResult(reply["version"], outputs.reshape(rows, spec.result_size), actions)

    def _request(self, job: dict[str, Any], timeout_s: float) -> dict[str, str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        line, late_s = "", None
        # A process that has died neither reads nor answers: the missing answer says it.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            # One reply per request: nothing of it can be in the buffer yet, so the descriptor tells.
            if select.select([self._process.stdout], [], [], timeout_s)[0]:
                line = self._process.stdout.readline()
            else:
                self._process.kill()
                late_s = timeout_s
        if line:
            reply: dict[str, str] = json.loads(line)
            return reply
        code = self._process.wait()
        raise self._failure(late_s, code, self._restart())

    def _failure(self, late_s: float | None, code: int, printed: str) -> ExecutionError:
        """Return the error of a process that ended with this code, or was killed after this many seconds: its last
        words."""
        if late_s is not None:
            return ExecutionError(
                f"{self.runtime.value} did not finish the artifact within {late_s:g} s and was killed: {printed}",
                "If the machine is very busy, convert again; otherwise the graph makes this runtime hang.",
            )
        if code < 0:
            return ExecutionError(
                f"{self.runtime.value} crashed on the artifact ({signal.Signals(-code).name}): {printed}",
                code="runtime_crashed",
            )
        return ExecutionError(
            f"{self.runtime.value} ended with exit code {code} on the artifact: {printed}",
            "Check that it is installed; the pinned version is in requirements.txt.",
        )

    def _restart(self) -> str:
        """Start another process in the place of one that ended or was killed; returns what that one printed last."""
        with suppress(BrokenPipeError):
            self._process.communicate()
        printed = Path(_path(self._stderr)).read_text(errors="replace").strip()[-800:] or "it printed nothing"
        self._process = self._start()
        return printed


def _fill_file(file: IO[bytes], content: bytes) -> str:
    """Return what opens a file that now holds this; it is cut behind it, which is cheaper than to empty it before."""
    file.seek(0)
    file.write(content)
    file.truncate()
    file.flush()
    return _path(file)


def _path(file: IO[bytes]) -> str:
    """Return a path that opens a file without a name, here and in a process that inherited it under the same number."""
    return f"/dev/fd/{file.fileno()}"


def _other_python(runtime: RuntimeName) -> str | None:
    return (os.environ.get(TFLITE_PYTHON) or None) if runtime is RuntimeName.TFLITE_RUNTIME else None


def available() -> tuple[RuntimeName, ...]:
    """Return the runtimes that can execute artifacts on this host: those installed here, or in the environment
    named."""
    installed = find_installed_runtimes()
    return tuple(name for name in RuntimeName if name in installed or _other_python(name) is not None)


@contextmanager
def runtime_processes(runtimes: tuple[RuntimeName, ...] | None = None) -> Iterator[dict[RuntimeName, RuntimeProcess]]:
    """Start these runtimes (default: all that are available), side by side.

    To start one costs more than most conversions: they are kept for the next block, and end with this process. After
    an error they end at once.
    """
    with ExitStack() as stack:
        processes = {
            runtime: stack.enter_context(_take(runtime)) for runtime in (available() if runtimes is None else runtimes)
        }
        yield processes
        stack.pop_all()
    for runtime, process in processes.items():
        if _idle.setdefault(runtime, process) is not process:  # a block within a block had one of its own
            process.close()


@atexit.register
def _close_idle() -> None:
    while _idle:
        _idle.popitem()[1].close()


def _take(runtime: RuntimeName) -> RuntimeProcess:
    if (idle := _idle.pop(runtime, None)) is None:
        return RuntimeProcess(runtime)
    if idle.is_alive:
        return idle
    idle.close()
    return RuntimeProcess(runtime)


def decide_all(
    executor: Executor, observations: Iterable[NDArray[np.float32]]
) -> tuple[NDArray[np.float32], np.ndarray]:
    """Decide on raw observations, each float32 (1, N), one at a time.

    Returns:
        Results, float32 (n, A + S), and actions: int64 (n,) of a discrete head, of several components int64 (n,
        components), float32 (n, A) of a continuous one.
    """
    outputs, actions = [], []
    for observation in observations:
        actions.append(executor.decide(observation))
        outputs.append(results(executor))
    return np.array(outputs, np.float32), np.array(actions)


def _serve(runtime: RuntimeName, job: dict[str, Any], loaded: list[Any]) -> dict[str, str]:
    """Execute a job with the artifact that it has, or with what is ``loaded``: the executor, the runtime's version."""
    try:
        if "artifact" in job:
            loaded.clear()
            spec = PolicySpec.from_json(Path(job["spec"]).read_bytes())
            executor = open_artifact(runtime, Path(job["artifact"]).read_bytes(), spec)
            loaded += executor, find_installed_runtimes()[runtime]
        executor, version = loaded
        if job["rows"]:
            rows = np.fromfile(job["observations"], job["type"]).reshape(job["rows"], 1, -1)
            outputs, actions = decide_all(executor, (row.astype(np.float32, copy=False) for row in rows))
            with Path(job["made"]).open("r+b") as file:
                file.write(actions.tobytes() + outputs.tobytes())
    except Exception as error:  # whatever a runtime raises is its answer to this artifact, and belongs to the caller
        return {"error": str(error) or type(error).__name__}
    return {"version": version}


def main(argv: list[str] | None = None) -> int:
    """Serve jobs for one runtime until standard input ends."""
    arguments = sys.argv[1:] if argv is None else argv
    runtime = parse_enum(RuntimeName, arguments[0] if arguments else "", "runtime")
    loaded: list[Any] = []
    # Runtimes print what they like from C++: from here on descriptor 1 is the log, and replies go to a copy of it.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            print(json.dumps(_serve(runtime, json.loads(line), loaded)), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
