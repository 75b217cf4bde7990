"""The range of each layer's activations on recorded observations, and what eight bits make of it.

Each tensor of the int8 policy has one map from its range to 256 levels (policy/integer.py). The table shows how much of
that range single extreme values take: where the 0.1 and 99.9 percentiles lie far inside minimum and maximum, most
values share few levels. ``python -m bench.study weights BUNDLE --activations`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.report.tables import Table
from convert.calibration import ActivationRange
from policy.bundle import Bundle
from policy.integer import quantize_network
from policy.network import before_layer_norm, hidden_activations, layer_names
from policy.quantization import Affine

PERCENTILES = (0.1, 99.9)


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
    found = vars(ActivationRange.of(name, values, values, affine))
    return Range(**found, inner_low=inner_low, inner_high=inner_high)


def activation_ranges(bundle: Bundle) -> list[Range]:
    """Every activation tensor in the order in which it is computed, on the bundle's calibration observations.

    Raises:
        QuantizationError: the set is empty or the policy cannot be quantized.
    """
    spec, weights, observations = bundle.spec, bundle.weights(), bundle.calibration()
    network = quantize_network(spec, weights, observations)
    activations = hidden_activations(spec, weights, observations)
    inside = before_layer_norm(spec, weights, activations)
    found = [range_of("input", activations[0], network.input)]
    for name, values, layer in zip(layer_names(spec), activations[1:], network.layers, strict=True):
        if name in inside:
            found.append(range_of(f"{name} before norm", inside[name], layer.output))
        found.append(range_of(name, values, layer.result))
    return found


def table(bundle: Bundle, ranges: list[Range]) -> Table:
    """The ranges as a table with what must be said beside it."""
    rows = tuple(
        (
            each.name,
            f"{each.count:,}",
            *(_number(value) for value in (each.low, each.inner_low, each.inner_high, each.high)),
            f"{each.step:.3g}",
            f"{each.inner_steps:.0f}",
            "0" if each.clipped == 0 else f"{100 * each.clipped:.2g} %",
        )
        for each in ranges
    )
    notes = [
        f"On the bundle's {len(bundle.calibration()):,} calibration observations; normalised input, then each layer "
        "after its ReLU, the head before its squashing. Step: of the int8 map, one a tensor, zero included.",
        "Steps used: between the 0.1 and the 99.9 percentile, of 255. Clipped: beyond the outermost level by more "
        "than half a step.",
    ]
    if bundle.spec.is_discrete:
        notes.append("head: only the largest output decides, so the map leaves out what lies far below every winner.")
    return Table(
        f"activations-{bundle.spec.name}",
        f"Activation ranges of {bundle.spec.name}",
        ("layer", "n", "min", "0.1 %", "99.9 %", "max", "step, 8 bits", "steps used", "clipped"),
        rows,
        tuple(notes),
    )


def _number(value: float) -> str:
    return f"{value:.3f}".replace("-", "−") if abs(value) < 100 else f"{value:,.0f}".replace("-", "−")
