"""A rollout as a person types it: a process of its own, measured, and killed in its middle where that is wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policy.locate import PROJECT_ROOT

COMMAND = ("-m", "device.host", "fleet", "deploy", "--json")
NOT_BEGUN = "not begun"


@dataclass(frozen=True)
class Typed:
    """A command that has ended.

    Attributes:
        status: its exit status; negative: the signal that ended it.
        seconds: from its start to its end.
        cpu_s: that it computed, in all its threads.
        peak_bytes: the most that was resident.
        events: what it told, in order.
        error: the end of what it wrote to standard error.
    """

    status: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    events: tuple[dict[str, Any], ...]
    error: str

    @property
    def states(self) -> dict[str, str]:
        """What it told last of each device; of a command that was killed, what it had told."""
        found: dict[str, str] = {}
        for event in self.events:
            if event.get("event") == "begin":
                found = dict.fromkeys(event["devices"], NOT_BEGUN)
            elif event.get("event") == "end":
                found = dict(event["states"])
            elif "device" in event:
                found[event["device"]] = event["state"]
        return found

    @property
    def sent_bytes(self) -> int:
        """Sent to the devices that switched."""
        return sum(event.get("sent_bytes", 0) for event in self.events)

    @property
    def rollout_s(self) -> float:
        """Seconds of the rollout itself, without the start of Python; 0 where it did not end."""
        return next((float(event["seconds"]) for event in self.events if event.get("event") == "end"), 0.0)


def typed(words: Sequence[str], environment: Mapping[str, str], kill_at: int | None = None) -> Typed:
    """Type ``python -m device.host fleet deploy`` with these words.

    The peak is the kernel's of the whole process, in which that of this one counts as far as it was at the start; this
    one is kept small.

    Args:
        words: more of the command.
        environment: of the process.
        kill_at: kill it when it has told of so many devices that they switched.
    """
    begun, switched, events = time.monotonic(), 0, []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, *COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=dict(environment),
            cwd=PROJECT_ROOT,
        )
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    if not line.endswith("\n"):
                        break  # torn by the signal
                    events.append(json.loads(line))
                    switched += events[-1].get("state") == "switched"
                    if kill_at is not None and switched >= kill_at:
                        process.kill()
                        kill_at = None
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        seconds = time.monotonic() - begun
        errors.seek(0)
        error = errors.read()[-2000:]
    cpu_s, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    return Typed(process.returncode, seconds, cpu_s, peak, tuple(events), error)
