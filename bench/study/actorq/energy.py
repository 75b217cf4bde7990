"""Energy of a piece of work: from the processor's own counter where it may be read, else from its CPU time.

Running Average Power Limit (RAPL) counts what whole processor packages take, whoever uses them; most virtual machines
and containers hide it. CPU seconds count the work's own processes and nothing else, and become joules by a stated
power of a busy core. Grams of CO₂ follow by a stated factor. Both factors are assumptions, and ratios between two works
on one machine do not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RAPL = Path("/sys/class/powercap")
CORE_WATTS = 7.0
"""Of a busy core with its share of the package: thermal design power over cores is 3.5 W for an AMD EPYC 7742 (225 W,
64 cores) and 9.7 W for a 7302 (155 W, 16 cores); about the middle."""
GRAMS_PER_KWH = 475.0
"""CO₂ of a kilowatt hour of electricity, mean of the world in 2018 (IEA, Global Energy & CO₂ Status Report 2019)."""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Energy:
    """What a piece of work took.

    Attributes:
        joules: see ``source``.
        source: ``rapl`` (all packages, whoever used them) or ``cpu-seconds`` (its own, at :data:`CORE_WATTS`).
        grams_co2: at :data:`GRAMS_PER_KWH`.
    """

    joules: float
    source: str
    grams_co2: float


class EnergyMeter:
    """Begins to count when it is made."""

    def __init__(self, folder: Path = RAPL) -> None:
        self._packages = [
            package for package in sorted(folder.glob("intel-rapl:?")) if self._joules(package) is not None
        ]
        self._began = [self._joules(package) or 0.0 for package in self._packages]

    @staticmethod
    def _joules(package: Path) -> float | None:
        try:
            return int((package / "energy_uj").read_text()) * 1e-6
        except (OSError, ValueError):
            return None

    def read(self, cpu_s: float) -> Energy:
        """Energy since the meter was made.

        Args:
            cpu_s: CPU seconds of the work, which count where no package can be read.
        """
        if not self._packages:
            return of_joules(cpu_s * CORE_WATTS, "cpu-seconds")
        joules = 0.0
        for package, began in zip(self._packages, self._began, strict=True):
            used = (self._joules(package) or began) - began
            if used < 0:  # the counter begins anew at its largest value
                used += int((package / "max_energy_range_uj").read_text()) * 1e-6
            joules += used
        return of_joules(joules, "rapl")


def of_joules(joules: float, source: str) -> Energy:
    """With its CO₂."""
    return Energy(joules, source, joules / JOULES_PER_KWH * GRAMS_PER_KWH)
