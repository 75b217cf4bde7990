"""How punctual the loop is: histograms of its times and counts of what went wrong, of a fixed size."""

from __future__ import annotations

import resource
import time
from typing import Any

from quarl.device.agent.loop.frames import Flag
from quarl.device.agent.loop.histogram import Histogram

MILLION = 1_000_000
MISSED = int(Flag.MISSED)
COUNTED = {str(flag.name).lower(): int(flag) for flag in Flag if flag not in (Flag.MISSED, Flag.START)}
"""Flags whose actions are counted, by name."""
TIMES = ("woke_late", "decided", "runtime", "answered", "sent_late", "age", "jitter")


class Punctuality:
    """Times in ns and counts since the loop began, or since they were read with ``reset``.

    Attributes:
        woke_late: from a tick's due time to the loop's being awake.
        decided: from the observation's being read to the action's being ready.
        runtime: the runtime's own call within that.
        answered: from the observation's being read to the action's being written.
        sent_late: from a tick's due time to its action's being written.
        age: of the observation when its action leaves.
        jitter: between an action's distance from the one before and the period.
        ticks, skipped: due times that were served; that passed while an earlier one was served.
        late: actions that were ready after their deadline.
        hold_expired: late actions in whose place the fallback was sent, because the one before had been held too long.
    """

    def __init__(self) -> None:
        self.woke_late, self.decided, self.runtime = Histogram(), Histogram(), Histogram()
        self.answered, self.sent_late = Histogram(), Histogram()
        self.age, self.jitter = Histogram(), Histogram()
        self.missed_ever = 0
        self._flags = [0] * 256
        self.reset()

    def reset(self) -> None:
        """Begin anew; what was missed since the loop began stays counted."""
        for name in TIMES:
            getattr(self, name).clear()
        self.ticks = self.skipped = self.late = self.hold_expired = 0
        self._flags[:] = [0] * 256
        self._since_ns = time.monotonic_ns()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)

    def flagged(self, flags: int) -> None:
        """Count an action's flags."""
        self._flags[flags] += 1

    def missed(self, late: int, skipped: int) -> None:
        """Count an action that was late, and ticks that passed meanwhile."""
        self.late += late
        self.skipped += skipped
        self.missed_ever += late + skipped

    def to_dict(self) -> dict[str, Any]:
        """The counts and the histograms, for a reply."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        due, lost = self.ticks + self.skipped, self.late + self.skipped
        return {
            "seconds": (time.monotonic_ns() - self._since_ns) / 1e9,
            "ticks": self.ticks,
            "skipped": self.skipped,
            "late": self.late,
            "missed_per_million": lost * MILLION / due if due else None,
            **{name: self._with(bit) for name, bit in COUNTED.items()},
            "hold_expired": self.hold_expired,
            **{f"{name}_ns": getattr(self, name).to_dict() for name in TIMES},
            "page_faults": {
                "minor": used.ru_minflt - self._usage.ru_minflt,
                "major": used.ru_majflt - self._usage.ru_majflt,
            },
            "context_switches": {
                "voluntary": used.ru_nvcsw - self._usage.ru_nvcsw,
                "involuntary": used.ru_nivcsw - self._usage.ru_nivcsw,
            },
            "cpu_s": used.ru_utime + used.ru_stime - self._usage.ru_utime - self._usage.ru_stime,
        }

    def _with(self, bit: int) -> int:
        return sum(count for flags, count in enumerate(self._flags) if flags & bit)
