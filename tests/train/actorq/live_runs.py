"""``quarl actorq`` in a process of its own, what it prints, and the processes that it starts and leaves."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarl.policy.bundle import Bundle

LIMIT_S = 300.0  # of anything that is waited for, on a machine that has other things to do
# Checkpoints come every minute; here every second, since no run takes a minute; and few episodes are recorded.
OFTEN = (
    "import sys; from quarl.train.runs import results, run; "
    "run.CHECKPOINT_EVERY_S = 1.0; results.RECORDED_EPISODES = 2; "
    "from quarl.train.actorq.__main__ import main; "
)


def stat(process: int) -> tuple[int, int, str] | None:
    """Parent, session and state of a process, or None once it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1]), int(fields[3]), fields[0]


def title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def processes() -> dict[int, tuple[int, int, str]]:
    found = {int(path.name): stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    return {process: facts for process, facts in found.items() if facts is not None and facts[2] != "Z"}


def descendants(ancestor: int) -> set[int]:
    there, family = processes(), {ancestor}
    while more := {process for process, (parent, *_) in there.items() if parent in family} - family:
        family |= more
    return family - {ancestor}


def waited(until: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LIMIT_S
    while not (answer := until()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return answer


class Command:
    """A run in a process of its own, what it prints, and the processes that it starts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.output = folder / "bundle"
        self._printed = folder / "printed"
        words = [*options, "--output-path", str(self.output)]
        with self._printed.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-c", OFTEN + "sys.exit(main(sys.argv[1:]))", *words],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.seen: set[int] = set()

    @property
    def printed(self) -> str:
        return self._printed.read_text(errors="replace")

    def until(self, text: str) -> None:
        """Wait until it is printed; a run that ended before fails the test."""
        self._until(lambda: text in self.printed, text)

    def until_step(self, step: int) -> None:
        """Wait until the policy was judged at this step or a later one."""
        judged = re.compile(r"^step ([\d,]+): greedy", re.MULTILINE)
        self._until(
            lambda: any(int(each.replace(",", "")) >= step for each in judged.findall(self.printed)), f"step {step}"
        )

    def _until(self, there: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            over = self._process.poll() is not None  # before looking: what it prints last counts
            if there():
                return True
            assert not over, f"ended without {what!r}:\n{self.printed}"
            return False

        waited(look, what)
        self.seen |= descendants(self._process.pid)

    def named(self, name: str) -> list[int]:
        """Processes of the run by their Ray title: ``ActorProcess``."""
        return sorted(each for each in descendants(self._process.pid) if title(each).startswith(f"ray::{name}"))

    def kill(self, name: str) -> None:
        """The first of that name dies at once, as by the kernel for want of memory."""
        os.kill(waited(lambda: self.named(name), name)[0], signal.SIGKILL)

    def interrupt(self) -> None:
        """Ctrl-C of a terminal: SIGINT to the whole foreground process group."""
        self.seen |= descendants(self._process.pid)
        os.killpg(self._process.pid, signal.SIGINT)

    def ended(self) -> int:
        """The exit code; nothing that the run started is left."""
        code = waited(lambda: None if self._process.poll() is None else (self._process.returncode,), self.printed)[0]
        waited(lambda: not self.left(), f"left behind: {[title(each) for each in self.left()]}")
        return int(code)

    def left(self) -> set[int]:
        there = processes()
        own = {each for each, (_, session, _) in there.items() if session == self._process.pid}
        return own | {each for each in self.seen & there.keys() if "ray" in title(each)}

    def end(self) -> None:
        """After a test that failed."""
        for each in {self._process.pid} | self.left() | descendants(self._process.pid):
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    @property
    def reported(self) -> dict[str, Any]:
        """What the bundle says of the distribution."""
        reported: dict[str, Any] = Bundle.load(self.output).spec.provenance["actorq"]
        return reported
