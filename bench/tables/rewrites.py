"""The table of bench/rewrites.py: int8 as it is and rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.pivot import Pivot
from policy.rewrites import MOST

WORDS = """\
int8 as it is and rewritten
int8: of a discrete policy, the observations for which it chooses fp32's action; of a continuous one, the share of \
the outputs' variance that it does not miss, the mean over the outputs. Largest and RMS error: of all outputs, as a \
share of what each spans.
Observations: those of the calibration set, each with ranges and normaliser of the half that it is not in. Golden: so \
many of other rollouts, with all of the calibration set.
Gain: in percentage points, with 95 % intervals of the difference on the same observations: Newcombe's paired one of \
same actions, Student's t of explained variance; [–]: no observation tells them apart. Observations of one episode are \
taken as independent.
In common: share of the outputs' variance over the observations that is that of their mean over the actions. Rewritten \
is by the rule: centred above {{ most }}, normalised without a normaliser.
fp32 apart: observations for which fp32 rewritten chooses another action, or its largest error as a share of the span. \
–: nothing to rewrite.
{% if since %}
Rewritten in zoo/ since then: {{ since | join(", ") }}; the row says what it was and what it became.
{% endif %}
Measured on {{ results.machine }}; code {{ results.code }}.
"""


def gain(ends: Sequence[float | None]) -> str:
    """In percentage points: ``+1.20 [+0.80, +1.60]``."""
    value, low, high = ends
    between = "–" if low is None or high is None else f"{100 * low:+.2f}, {100 * high:+.2f}"
    return f"{100 * (value or 0.0):+.2f} [{between}]".replace("-", "−")


def change(found: Mapping[str, Any], name: str, is_rewritten: bool) -> str:
    """A share before and after, ``98.20 → 99.10 %``; "" where there is none."""
    if name not in found["before"]:
        return ""
    shown = f"{100 * found['before'][name]:.2f}"
    return f"{shown} → {100 * found['after'][name]:.2f} %" if is_rewritten else f"{shown} %"


def rows_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each policy, its changes on held-out and on golden observations in words."""
    rows = []
    for each in document["bundles"]:
        is_rewritten = bool(each["rewrites"])
        words = {
            f"{name}_{where}": change(each[where], name, is_rewritten)
            for where in ("held_out", "golden")
            for name in ("acts_as_fp32", "largest", "rms")
        }
        gains = {f"gain_{where}": gain(each[where]["gain"]) for where in ("held_out", "golden") if is_rewritten}
        rows.append({**each, **words, "gain_held_out": "", "gain_golden": "", **gains})
    return rows


REWRITTEN = Pivot(
    name="rewrites",
    words=WORDS,
    lead={
        "policy": "{{ policy }}",
        "rewrite": "{{ rewrites | join(', ') or '–' }}",
        "by the rule": "{{ '–' if not rewrites else 'yes' if fits else 'no' }}",
    },
    columns=[
        {"in common": "{{ '%.1f %%' | format(100 * in_common) if in_common is not none }}"},
        {"observations": "{{ held_out.rows | thousands }}", "int8": "{{ acts_as_fp32_held_out }}"},
        {"gain": "{{ gain_held_out }}", "largest error": "{{ largest_held_out }}", "RMS error": "{{ rms_held_out }}"},
        {
            "golden": "{{ golden.rows }}",
            "int8, golden": "{{ acts_as_fp32_golden }}",
            "gain, golden": "{{ gain_golden }}",
        },
        {"largest error, golden": "{{ largest_golden }}"},
        {"fp32 apart": "{{ ('%.0f' if discrete else '%.0e') | format(held_out.fp32_apart) if rewrites }}"},
    ],
    rows=rows_of,
    facts=lambda document: {
        "since": [each["policy"] for each in document["bundles"] if each.get("since")],
        "most": f"{MOST:.0%}",
    },
    gathered=False,
)
