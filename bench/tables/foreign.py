"""The table of bench/foreign.py: how far imported policies are from their originals, and what both earn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quarl.bench.report.pivot import Pivot
from quarl.bench.report.text import NOT_KNOWN

REFUSED = (
    "swish_split_dynamo",
    "swish_split_script",
    "leapp_averaged",
    "leapp_recurrent_reset_first",
    "leapp_relative_recalled",
    "leapp_torchscript",
    "leapp_two_nodes",
)
"""Files that are not imported: normalised behind an activation; with a memory of another kind, or of what no one
sees; of several nodes, or of another backend."""
WORDS = """\
Imported policies
Made by the original programs for this table, most with few training steps: what they earn says nothing of the \
programs. CleanRL's are its networks, trained by other lines; Brax's has its names and random numbers.
Apart: largest difference of an output from the original's, as a share of what its outputs span; near: on observations \
like those it was calibrated on; far: 5 to 40 standard deviations from their mean, where products of the observation \
(a rotation by a quaternion) grow with the cube, and with them what float32 rounds; runtimes: of the fp32 artifact, \
the worst of three.
Returns: means of {{ results.episodes }} episodes; minus the original's: paired, with 95 % intervals (Student's t); \
[–]: no two episodes differ. The original's outputs are those that its program recorded, of ONNX onnxruntime's, of \
Keras its own; its episodes are flown by the steps as they were read.
Refused by name: {{ refused | join(", ") }}.
Measured on {{ results.machine }}; code {{ results.code }}.
"""


def difference(returns: Mapping[str, Any]) -> str:
    """A return minus the original's: ``+0.12 [−0.03, +0.27]``."""
    interval = returns["minus_original_interval"]
    ends = NOT_KNOWN if interval is None else ", ".join(f"{end:+.2f}" for end in interval)
    return f"{returns['minus_original']:+.2f} [{ends}]".replace("-", "−")


FOREIGN = Pivot(
    name="foreign",
    words=WORDS,
    lead={"file": "{{ name }}", "made with": "{{ source }}", "network": "{{ network }}"},
    columns=[
        {
            "apart near": "{{ '%.0e' | format(near) }}",
            "far": "{{ '%.0e' | format(far) }}",
            "runtimes": "{{ '%.0e' | format(runtimes) }}",
            "return": "{{ '%.1f' | format(returns.original.mean_return) if returns }}",
            "fp32 minus it": "{{ fp32 }}",
            "int8 minus it": "{{ int8 }}",
        }
    ],
    rows=lambda document: [
        {**row, **{name: difference(row["returns"][name]) if row["returns"] else "" for name in ("fp32", "int8")}}
        for row in document["policies"]
    ],
    facts=lambda document: {"refused": REFUSED},
    gathered=False,
)
