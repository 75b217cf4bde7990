"""The range of each layer's activations on recorded observations, and what eight bits make of it.

Each tensor of the int8 policy has one map from its range to 256 levels (policy/reference.py). The table shows how
much of that range single extreme values take: where the 0.1 and 99.9 percentiles lie far inside minimum and maximum,
most values share few levels. ``quarl study weights BUNDLE --activations`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.bench.report.text import format_fixed
from quarl.bench.tables import Table, tabulate
from quarl.convert.acceptance import agreement
from quarl.convert.calibration import ActivationRange
from quarl.convert.mixed import integers, output_error
from quarl.policy.bundle import Bundle
from quarl.policy.quantize import Affine
from quarl.policy.reference import (
    before_layer_norm,
    compute_activations,
    forward_float,
    forward_integer,
    layer_names,
)
from quarl.policy.spec import Precision, Ranges, Recipe

PERCENTILES = (0.1, 99.9)
WORDS = """\
Activation ranges of {{ spec.name }}
On the bundle's {{ observations | thousands }} calibration observations; normalised input, then each layer after its \
ReLU, the head before its squashing. Step: of the int8 map, one a tensor, zero included.
Steps used: between the 0.1 and the 99.9 percentile, of 255. Clipped: beyond the outermost level by more than a step.
{% if spec.is_discrete %}
head: only the largest output decides, so the map leaves out what lies far below every winner.
{% endif %}
"""


@dataclass(frozen=True)
class Range(ActivationRange):
    """One tensor of the int8 policy, or a layer ``before norm``, as the calibration observations fill it.

    Attributes:
        inner_low, inner_high: 0.1 and 99.9 percentile.
    """

    inner_low: float
    inner_high: float

    @property
    def inner_steps(self) -> float:
        """Steps between the two percentiles, or between the outermost levels where these lie further in."""
        return (min(self.inner_high, self.top) - max(self.inner_low, self.bottom)) / self.step


def range_of(name: str, values: np.ndarray, affine: Affine) -> Range:
    """Range of these values (n, …), which are what may be clipped too, under this map."""
    inner_low, inner_high = map(float, np.percentile(values, PERCENTILES))
    range_values = vars(ActivationRange.of(name, values, values, affine))
    return Range(**range_values, inner_low=inner_low, inner_high=inner_high)


def activation_ranges(bundle: Bundle) -> list[Range]:
    """Return every activation tensor in the order in which it is computed, on the bundle's calibration observations.

    Raises:
        QuantizationError: the set is empty or the policy cannot be quantized.
    """
    spec, weights, observations = bundle.spec, bundle.weights(), bundle.calibration()
    network = integers(bundle, Precision.INT8)
    activations = compute_activations(spec, weights, observations)
    inside = before_layer_norm(spec, weights, activations)
    ranges = [range_of("input", activations[0], network.input)]
    activations[-1] = activations[-1][:, : spec.output_size]
    for name, values, layer in zip(layer_names(spec), activations[1:], network.layers, strict=True):
        if name in inside:
            ranges.append(range_of(f"{name} before norm", inside[name], layer.output))
        ranges.append(range_of(name, values, layer.result))
    return ranges


def number(value: float) -> str:
    """With three decimals below 100, else whole: ``−0.125``, ``1,024``."""
    return format_fixed(value, 3 if abs(value) < 100 else 0)


ENDS_WORDS = """\
What int8 is worth by where the ranges of its activations end
On the golden observations, beside the float policy: share of the same actions, or explained variance of the worst \
output, in percent; in brackets the output error (convert/mixed.py).
"""


def ends_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return a line for each policy: how its int8 acts with each way to end the ranges."""
    return tabulate("ranges", ENDS_WORDS, [{"policy": row["policy"], **row["worth"]} for row in rows])


def worth_by_ends(bundle: Bundle) -> dict[str, Any]:
    """Return how the int8 policy acts with each way to end its ranges, as a line of the table."""
    spec, golden, worth = bundle.spec, bundle.golden().observations, {}
    wanted = forward_float(spec, bundle.weights(), golden)
    for ends in Ranges:
        outputs = forward_integer(spec, integers(bundle, Precision.INT8, Recipe(Precision.INT8.bits, ends)), golden)
        error = output_error(spec, *(array[:, : spec.output_size] for array in (outputs, wanted)))
        worth[ends.value] = f"{100 * agreement(spec, outputs, wanted):.1f} ({error:.3g})"
    return {"policy": spec.name, "worth": worth}


def table(bundle: Bundle, ranges: list[Range]) -> Table:
    """Return the ranges as a table with what must be said beside it."""
    lines = [
        {
            "layer": tensor_range.name,
            "n": f"{tensor_range.count:,}",
            "min": number(tensor_range.low),
            "0.1 %": number(tensor_range.inner_low),
            "99.9 %": number(tensor_range.inner_high),
            "max": number(tensor_range.high),
            "step, 8 bits": f"{tensor_range.step:.3g}",
            "steps used": f"{tensor_range.inner_steps:.0f}",
            "clipped": f"{100 * tensor_range.clipped:.2g} %" if tensor_range.clipped else "0",
        }
        for tensor_range in ranges
    ]
    spec = bundle.spec
    return tabulate(f"activations-{spec.name}", WORDS, lines, spec=spec, observations=len(bundle.calibration()))
