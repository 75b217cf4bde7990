"""The table of bench/pressure.py: what a decision takes where memory is short, and what is swapped for it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quarl.bench.case_study import SPEED_UPS
from quarl.bench.report.text import format_fixed, megabytes, nanoseconds, times
from quarl.bench.tables import Table, tabulate

MODELS = {"legacy": "III, enlarged", "small": "III"}
"""The models of the probe by the name that readers know."""
PAGE_BYTES = 4096
SD_BUS_BYTES_PER_S = 25e6
"""A Pi 3's card slot in High Speed mode: 4 bits at 50 MHz (SD Physical Layer Specification)."""
WORDS = """\
What memory pressure adds
{% for name, measured in machines.items() %}
{{ name }}: {{ (measured.MemTotal / 1e6) | fixed }} MB of memory, {{ (measured.get("SwapTotal", 0) / 1e6) | fixed }} \
MB of swap on its card.{{ " Another program holds %d MB." | format(held) if held and name == target }}
{% endfor %}
{{ runtime }}, one thread, {{ runs }} decisions after {{ warmup }} warm-up decisions, ten times as many of III as \
it is. Faults, pages and MiB are means per decision, counted by the device's kernel; pages and MiB are those of the \
whole system.
{% if emulated %}
EMULATED: the median time of a decision is a multiple of that of III in int8 on the same device.
{% endif %}
{% if read > 1e6 %}
Reading {{ (read / 1e6) | fixed }} MB per decision takes a real Pi 3b at least {{ (read / bus) | fixed(1) }} s: its \
card slot carries {{ (bus / 1e6) | int }} MB/s (modelled; an emulated card is as fast as this machine's memory).
{% endif %}
fp32's time over int8's: {{ small | times }} for III, which never swaps; {{ total | times }} for the enlarged \
III on {{ target }}{{ ", which is computing %s (on %s, with memory enough) × memory pressure %s" | \
format(computing | times, roomy, pressure | times) if roomy else "; --roomy separates computing from memory pressure" \
}}. The paper reports {{ paper }}×.
Measured on {{ machine }}; code {{ code }}.
"""


@dataclass(frozen=True)
class Case:
    """One model (``legacy`` or ``small``) on one device; ``measured`` is the probe's answer."""

    target: str
    model: str
    precision: str
    bytes: int
    emulated: bool
    measured: Mapping[str, Any]

    @property
    def median_ns(self) -> float:
        """Median time of one decision."""
        return statistics.median(run["ns"] for run in self.measured["runs"])

    def per_decision(self, counter: str) -> float:
        """Return a counter's mean for one decision."""
        return statistics.fmean(run[counter] for run in self.measured["runs"])


def speed_ups(cases: Sequence[Case], target: str, roomy: str | None) -> dict[str, float | None]:
    """fp32's median over int8's, apart.

    ``small``: of the small III, which never swaps; ``computing``: of the legacy III where memory suffices; ``total``:
    of the legacy III where it may not; ``pressure``: what memory pressure adds, total = computing × pressure.
    """

    def ratio(where: str | None, model: str) -> float | None:
        times = {case.precision: case.median_ns for case in cases if (case.target, case.model) == (where, model)}
        return times["fp32"] / times["int8"] if {"fp32", "int8"} <= set(times) else None

    computing, total = ratio(roomy, "legacy"), ratio(target, "legacy")
    apart = total / computing if total and computing else None
    return {"small": ratio(target, "small"), "computing": computing, "total": total, "pressure": apart}


def pressure_table(document: Mapping[str, Any]) -> Table:
    """Return the cases of an answer, with times as ratios to the small int8 where the device is emulated."""
    cases = [Case(**case) for case in document["cases"]]
    base = {case.target: case.median_ns for case in cases if (case.model, case.precision) == ("small", "int8")}
    lines = []
    for case in cases:
        ratio = case.median_ns / base[case.target] if case.target in base else None
        memory = case.measured["after_runs"]
        lines.append(
            {
                "device": case.target,
                "model": MODELS[case.model],
                "precision": case.precision,
                "inputs": f"{case.measured['inputs']:,}",
                "MB file": megabytes(case.bytes),
                "decision": times(ratio) if case.emulated else nanoseconds(case.median_ns),
                "major faults": format_fixed(case.per_decision("major_faults")),
                "pages swapped in": format_fixed(case.per_decision("pswpin")),
                "MiB read": format_fixed(case.per_decision("pgpgin") / 1024, 1),
                "MB resident": megabytes(memory.get("VmRSS")),
                "MB in swap": megabytes(memory.get("VmSwap")),
                "MB swapped out by loading": format_fixed(case.measured["load"]["pswpout"] * PAGE_BYTES / 1e6),
            }
        )
    return tabulate(
        "memory-pressure",
        WORDS,
        lines,
        left=3,
        machines={case.target: case.measured["machine"] for case in cases},
        emulated=any(case.emulated for case in cases),
        read=max((case.per_decision("pgpgin") * 1024 for case in cases), default=0.0),
        bus=SD_BUS_BYTES_PER_S,
        paper=SPEED_UPS["III"],
        **{**document, **speed_ups(cases, document["target"], document["roomy"])},
    )
