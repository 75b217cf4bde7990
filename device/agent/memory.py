"""Resident memory of this process, in bytes, as the kernel counts it."""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Resident:
    """Sizes in bytes; None where this kernel does not say.

    Attributes:
        now: resident set.
        peak: largest resident set since the process began, or since :func:`reset_peak`.
        anonymous: resident pages that no file backs: heap, stacks, packed weights.
        file_backed: resident pages of files: libraries, mapped artifacts. The kernel can drop them.
        swap: swapped out.
    """

    now: int | None
    peak: int | None
    anonymous: int | None
    file_backed: int | None
    swap: int | None


def parse_status(text: str) -> Resident:
    """Read /proc/self/status, whose sizes are in kB (of 1024 bytes)."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            sizes[key] = int(words[0]) * 1024
    return Resident(
        sizes.get("VmRSS"), sizes.get("VmHWM"), sizes.get("RssAnon"), sizes.get("RssFile"), sizes.get("VmSwap")
    )


def read() -> Resident:
    """Return the memory of this process now."""
    try:
        resident = parse_status(STATUS.read_text())
    except OSError:
        resident = Resident(None, None, None, None, None)
    if resident.peak is None:  # qemu-user's status has no VmHWM
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Resident(resident.now, peak or None, resident.anonymous, resident.file_backed, resident.swap)
    return resident


def reset_peak() -> bool:
    """Let the peak start again from the present size; False where the kernel does not allow it."""
    before = read()
    try:
        CLEAR_REFS.write_text("5")  # proc(5): "Reset the peak resident set size"
    except OSError:
        return False
    after = read()
    return before.peak is not None and after.peak is not None and after.peak <= before.peak


def give_back_free_heap() -> None:
    """Hand the C library's free heap back to the kernel, so that what loading used and freed is not counted."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # a C library other than glibc
        return


@dataclass
class MemoryLog:
    """What was read at the stations of this process's life, in bytes.

    Attributes:
        baseline: the agent alone, before any runtime.
        before_load: runtime imported, nothing loaded.
        after_load: artifact loaded and verified.
        running_peak: peak while the last memory request ran its inferences.
        lifetime_peak: peak before the peak was last reset, or since.
        peak_reset: whether running_peak excludes loading.
        loads: loads begun in this process so far.
    """

    baseline: int | None = None
    before_load: int | None = None
    after_load: int | None = None
    running_peak: int | None = None
    lifetime_peak: int | None = None
    peak_reset: bool = False
    loads: int = 0

    def start_running(self) -> None:
        """Remember the peak so far and let it start again."""
        self._remember(read())
        self.peak_reset = reset_peak()

    def end_running(self) -> None:
        """Keep the peak since :meth:`start_running`."""
        resident = read()
        self.running_peak = resident.peak
        self._remember(resident)

    def _remember(self, resident: Resident) -> None:
        self.lifetime_peak = max(filter(None, (self.lifetime_peak, resident.peak)), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the MEMORY of the protocol."""
        resident = read()
        self._remember(resident)
        return {
            "baseline": self.baseline,
            "before_load": self.before_load,
            "after_load": self.after_load,
            "now": resident.now,
            "running_peak": self.running_peak,
            "lifetime_peak": self.lifetime_peak,
            "anonymous": resident.anonymous,
            "file_backed": resident.file_backed,
            "swap": resident.swap,
            "peak_reset": self.peak_reset,
            "clean": self.loads <= 1,
        }
