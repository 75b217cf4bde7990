"""The table of bench/agents.py: three agents on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report.pivot import Pivot

WORDS = """\
Three agents beside each other, Policy {{ results.policy }} in {{ results.precision }}
Medians of {{ results.agents[0].starts }} starts of each, in turn. First action: from the process's start until an \
action is there and every golden vector was checked; of the program without Python, from its first instruction. MB \
resident: after loading (10⁶ bytes; the artifact has {{ results.artifact_bytes | thousands }} bytes). Line to reply: \
the agent's whole work on one JSON line, median of {{ results.runs | thousands }} in each start; instructions: \
counted on an emulated Cortex-A53.
Measured on {{ results.device.model or results.device.cpu_model }}, {{ results.device.os }}{{ ", emulated" if \
results.device.emulated }} ({{ results.target }}), from {{ results.machine }}; code {{ results.code }}.
"""
LABELS = {
    "python, litert": "Python, LiteRT",
    "python, native": "Python without numpy, native engine",
    "without python": "`policy-agent`, no Python",
}


def rows_of(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each agent, with its part of the first one's."""
    usual = document["agents"][0]
    for each in document["agents"]:
        parts = {f"{name}_part": each[name] / usual[name] for name in ("first_ns", "line_ns", "instructions")}
        yield {**each, "label": LABELS[each["agent"]], **parts}


AGENTS = Pivot(
    name="agents{{ '' if results.target == 'local' else '-emulated' }}",
    words=WORDS,
    lead={"agent": "{{ label }}"},
    columns=[
        {
            "MB resident": "{{ '%.2f' | format(resident / 1e6) }}",
            "ms to first action": "{{ '%.1f' | format(first_ns / 1e6) }}",
            "LiteRT's over it": "{{ '%.1f' | format(1 / first_ns_part) }}",
        },
        {
            "µs line to reply": "{{ '%.1f' | format(line_ns / 1e3) }}",
            "instructions": "{{ instructions | thousands }}",
            "of LiteRT's": "{{ '%.3f' | format(instructions_part) }}",
        },
    ],
    rows=rows_of,
)
