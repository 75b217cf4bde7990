"""The tables of bench/agreement.py: how far apart two executions of an artifact are, and where their actions differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bench.report.pivot import Pivot
from bench.report.text import NOT_KNOWN

RUNTIMES, DEVICE = "agreement", "device-agreement"
INTEGER_STEPS = 1
"""Steps that an integer artifact's outputs may be apart, where the kernels of two processors round differently."""
DIFFERENCES = """\
{% for row in rows %}{% for each in row.differences %}
{{ row.policy }} {{ row.precision }}, observation {{ each.observation }}: {{ row.here }} chooses {{ each.here }}, \
{{ row.there }} {{ each.there }}; the outputs of the two are {{ each.apart }} apart.
{% endfor %}{% endfor %}
"""
IN_RUNTIMES = """\
The same action in every runtime
Observations that each policy sees in {{ results.episodes }} flights of preset hard. Largest difference: of the \
outputs before the argmax; for integers in steps of the outputs' scale. Executed on {{ results.machine }}\
{{ "; code " ~ results.code if results.code }}.
"""
ON_DEVICE = """\
The same artifact on device and host
Device: {{ results.target }}, {{ results.device | machine }}. This machine: {{ results.machine }}\
{{ "; code " ~ results.code if results.code }}.
Largest difference: of the outputs before the argmax, over all golden vectors; for integers in steps of the outputs' \
scale, where {{ steps }} is allowed.
"""


def distance(value: float | None, step: float | None) -> str:
    """A distance of outputs: of integers in steps of their scale."""
    return NOT_KNOWN if value is None else f"{value / step:.2f} steps" if step else f"{value:.1e}"


def comparisons(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each comparison of a stored answer, its distances in words."""
    for row in document["comparisons"]:
        step, differences = row["step"], row["differences"]
        yield {
            **row,
            "same": row["observations"] - len(differences),
            "apart": distance(row["largest"], step),
            "limit": distance(row["allowed"], step),
            "holds": row["allowed"] is None or row["largest"] <= row["allowed"],
            "differences": [{**each, "apart": distance(each["gap"], step)} for each in differences],
        }


LEAD = {"policy": "{{ policy }}", "precision": "{{ precision }}"}
COLUMNS = {
    "same action": "{{ same | thousands }} of {{ observations | thousands }}",
    "largest difference": "{{ apart }}",
}
AGREEMENT = Pivot(
    name=RUNTIMES,
    words=IN_RUNTIMES + DIFFERENCES,
    lead={**LEAD, "runtime": "{{ here }}, {{ there }}"},
    columns=[COLUMNS],
    rows=comparisons,
    facts=lambda document: {"steps": INTEGER_STEPS},
    gathered=False,
)
DEVICE_AGREEMENT = replace(
    AGREEMENT,
    name=DEVICE,
    words=ON_DEVICE + DIFFERENCES,
    lead={**LEAD, "runtime": "{{ here }}"},
    columns=[COLUMNS, {"allowed": "{{ limit }}", "holds": "{{ 'yes' if holds else 'NO' }}"}],
)
