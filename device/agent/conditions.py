"""What changes on a device while it works: real clock, governor, temperature, throttling. None where it is unknown."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
CPU = "sys/devices/system/cpu"
VCGENCMD_TIMEOUT_S = 2.0

THROTTLE_FLAGS = ("under-voltage", "frequency-capped", "throttled", "soft-temperature-limit")
"""Bits 0 to 3 of the firmware's get_throttled: now; bits 16 to 19: has occurred since boot (Raspberry Pi manual)."""


@dataclass(frozen=True)
class Throttled:
    """The Raspberry Pi firmware's throttle word; the THROTTLED of the protocol.

    Attributes:
        raw: the word.
        now: flags that hold at this moment.
        occurred: flags that have held since boot.
    """

    raw: int
    now: tuple[str, ...]
    occurred: tuple[str, ...]

    @classmethod
    def of(cls, raw: int) -> Throttled:
        """Decode the word."""
        now = tuple(name for bit, name in enumerate(THROTTLE_FLAGS) if raw >> bit & 1)
        occurred = tuple(name for bit, name in enumerate(THROTTLE_FLAGS) if raw >> (16 + bit) & 1)
        return cls(raw, now, occurred)

    @classmethod
    def parse(cls, text: str) -> Throttled | None:
        """Read ``throttled=0x50005`` (vcgencmd) or ``50005`` (sysfs, hexadecimal too); None for anything else."""
        digits = text.strip().removeprefix("throttled=").removeprefix("0x")
        try:
            return cls.of(int(digits, 16))
        except ValueError:
            return None


@dataclass(frozen=True)
class Conditions:
    """One look at the device; the CONDITIONS of the protocol.

    Attributes:
        mhz_now: clock of the first core as the kernel says it.
        mhz_firmware: clock of the Arm cores as a Raspberry Pi's firmware measures it; under thermal limits this one
            is true and the kernel's is not.
        governor: cpufreq governor of the first core.
        temperature_c: hottest thermal zone.
        throttled: the firmware's flags.
        load_1min: the kernel's load average: processes that compete for the cores.
    """

    mhz_now: float | None
    mhz_firmware: float | None
    governor: str | None
    temperature_c: float | None
    throttled: Throttled | None
    load_1min: float | None


def read_text(path: Path) -> str | None:
    """Return the file's text without trailing white space and NULs (device tree), or None."""
    try:
        return path.read_bytes().decode("utf-8", "replace").rstrip("\0 \n") or None
    except OSError:
        return None


def number(text: str | None) -> float | None:
    """Return the text's number, or None."""
    try:
        return float(text or "")
    except ValueError:
        return None


def read_number(path: Path) -> float | None:
    """Return the file's number, or None."""
    return number(read_text(path))


def read_cpuinfo(root: Path) -> dict[str, str]:
    """First value of every key of /proc/cpuinfo."""
    values: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, separator, value = line.partition(":")
        if separator:
            values.setdefault(key.strip(), value.strip())
    return values


def look(root: Path = ROOT) -> Conditions:
    """Return the conditions now. ``root`` is where proc and sys are; only the real one asks vcgencmd."""
    return Conditions(
        mhz_now=mhz_now(root),
        mhz_firmware=_firmware_mhz(root),
        governor=read_text(root / CPU / "cpu0/cpufreq/scaling_governor"),
        temperature_c=hottest(map(read_text, (root / "sys/class/thermal").glob("thermal_zone*/temp"))),
        throttled=read_throttled(root),
        load_1min=_load(root),
    )


def mhz_now(root: Path = ROOT) -> float | None:
    """Clock of the first core in MHz: from cpufreq (kHz), else from /proc/cpuinfo."""
    khz = read_number(root / CPU / "cpu0/cpufreq/scaling_cur_freq")
    if khz is not None:
        return khz / 1000.0
    return number(read_cpuinfo(root).get("cpu MHz"))


def read_throttled(root: Path = ROOT) -> Throttled | None:
    """Return the firmware's throttle word: from the Raspberry Pi kernel's sysfs, else from vcgencmd."""
    text = read_text(root / "sys/devices/platform/soc/soc:firmware/get_throttled")
    if text is None and root == ROOT:
        text = _vcgencmd("get_throttled")
    return None if text is None else Throttled.parse(text)


def _firmware_mhz(root: Path) -> float | None:
    # "frequency(48)=1200126000"
    text = _vcgencmd("measure_clock", "arm") if root == ROOT else None
    hertz = (text or "").rpartition("=")[2].strip()
    return int(hertz) / 1e6 if hertz.isdigit() and int(hertz) > 0 else None


def _vcgencmd(*arguments: str) -> str | None:
    program = next((path for folder in os.get_exec_path() if os.access(path := f"{folder}/vcgencmd", os.X_OK)), None)
    if program is None:
        return None
    import subprocess  # only here: it takes half a megabyte

    try:
        result = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=VCGENCMD_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode("ascii", "replace")


def hottest(zones: Iterable[str | None]) -> float | None:
    """Return the largest temperature in °C of what thermal zones read, or None."""
    # Millidegrees; a sensor that is off reads zero or nonsense.
    degrees = [value / 1000.0 for value in map(number, zones) if value is not None]
    return max((value for value in degrees if 0.0 < value < 150.0), default=None)


def _load(root: Path) -> float | None:
    if root == ROOT:
        try:
            return round(os.getloadavg()[0], 2)
        except OSError:
            return None
    words = (read_text(root / "proc/loadavg") or "").split()
    return float(words[0]) if words else None


def invalid_reasons(looks: list[Conditions]) -> list[str]:
    """Why a measurement made between the first and the last look, with others in between, is not valid.

    A flag that holds at any look, or whose "has occurred" bit came up meanwhile, makes it invalid. A bit that was up
    before says nothing about this measurement.
    """
    words = [look.throttled for look in looks if look.throttled is not None]
    during = {flag for word in words for flag in word.now}
    if words:
        during |= set(words[-1].occurred) - set(words[0].occurred)
    return [f"{flag} during the measurement" for flag in THROTTLE_FLAGS if flag in during]
