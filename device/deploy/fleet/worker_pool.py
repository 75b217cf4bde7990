"""The same work on many devices at once: a limited number at a time, stopped together, each step shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from quarl.device.deploy.errors import HostError
from quarl.device.deploy.fleet.board import Board
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.golden import Progress, Step
from quarl.policy.errors import PolicyError

Outcome = TypeVar("Outcome")
Work = Callable[[Member, Progress], Outcome]
PARALLEL = 16
"""Devices at a time: threads that wait for the network most of the time, some megabytes each."""


class StoppedError(HostError):
    """The work on the other devices was stopped before this one was changed."""


class WorkerPool:
    """Threads that work on devices.

    Attributes:
        parallel: how many at a time.
        board: shows what each of them does.
    """

    def __init__(self, parallel: int, board: Board) -> None:
        self.parallel, self.board = parallel, board
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let no work begin any more; what is under way ends at its next step, but never between two releases."""
        self._stopped.set()

    def go_on(self) -> None:
        """Let work begin again."""
        self._stopped.clear()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may begin."""
        return self._stopped.is_set()

    def rest(self, seconds: float) -> None:
        """Wait, unless the work is stopped meanwhile."""
        self._stopped.wait(seconds)

    def each(
        self, members: Sequence[Member], work: Work[Outcome], failed: Callable[[Member, Exception], Outcome]
    ) -> Iterator[tuple[Member, Outcome]]:
        """Do the work on each device; yields what came of it, in the order in which they end.

        A device's error, of whatever kind, keeps no other device. Ctrl-C, or an error of the block that reads this,
        stops the work, and is raised once nobody works any more.

        Args:
            members: the devices.
            work: what is done on each, in a thread.
            failed: what comes of a device whose work raised this error, in that thread.
        """
        waiting = iter(members)
        working: dict[Future[Outcome], Member] = {}
        pool = ThreadPoolExecutor(max(1, min(self.parallel, len(members))), thread_name_prefix="device")
        try:
            while True:
                while len(working) < self.parallel and (member := next(waiting, None)) is not None:
                    working[pool.submit(self._one, member, work, failed)] = member
                if not working:
                    return
                done, _ = wait(working, return_when=FIRST_COMPLETED)
                for future in done:
                    yield working.pop(future), future.result()
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _one(self, member: Member, work: Work[Outcome], failed: Callable[[Member, Exception], Outcome]) -> Outcome:
        def tell(step: Step) -> None:
            if self.is_stopped:
                raise StoppedError("The rollout was stopped before this device was changed.")
            self.board.step(member.target, step)

        self.board.begin(member.target)
        try:
            return work(member, tell)
        except Exception as error:
            return failed(member, error)
        finally:
            self.board.end(member.target)


def error_facts(error: Exception) -> dict[str, str]:
    """Return an error as an event has it: what happened, what to do, and its code."""
    if isinstance(error, HostError | PolicyError):
        return {"error": error.message, "next": error.next_step, "code": error.code}
    # A device may answer anything, and paramiko and the readers of its replies have errors of many kinds.
    return {"error": f"{type(error).__name__}: {error}", "next": "Try it alone: --only DEVICE.", "code": "unexpected"}
