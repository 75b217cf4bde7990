"""The quantizers that a policy was trained with, as its spec holds them. See :mod:`policy.quantizing.trained`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from quarl.policy.contract.checks import LARGEST_FLOAT32, require, require_member

SMALLEST_WEIGHT_BITS, LARGEST_WEIGHT_BITS = 2, 8
"""Widths of the integers that weights are stored as."""
INPUT = "input"
"""Name of the normalised observation among the ranges."""


class WeightRange(Enum):
    """What a channel's scale is taken from."""

    LARGEST = "largest"
    """s = max |W| / (2ⁿ⁻¹ − 1): nothing is clipped. That of post-training quantization."""
    MEAN = "mean"
    """s = 2 · mean |W| / √(2ⁿ⁻¹ − 1), where learned step sizes begin (Esser et al. 2020, section 2.1): with few bits
    the largest weight leaves the others no levels."""


@dataclass(frozen=True)
class TrainedQuantization:
    """How a policy was quantized while it learned.

    Attributes:
        bits: of weights and of hidden layers' outputs, 2 … 8.
        ranges: (low, high) of the normalised observation (``input``), and of the output of every hidden layer by name
            (low is 0, after a ReLU), as monitored in training.
        weight_range: what the weights' scales are taken from.
    """

    bits: int
    ranges: Mapping[str, tuple[float, float]]
    weight_range: WeightRange = WeightRange.LARGEST

    def __post_init__(self) -> None:
        require_member(WeightRange, self.weight_range, "quantization.weight_range")
        require(
            SMALLEST_WEIGHT_BITS <= self.bits <= LARGEST_WEIGHT_BITS,
            f"quantization.bits is {self.bits}; allowed are {SMALLEST_WEIGHT_BITS} … {LARGEST_WEIGHT_BITS}.",
        )
        for name, (low, high) in self.ranges.items():
            require(
                -LARGEST_FLOAT32 <= low <= high <= LARGEST_FLOAT32,
                f"quantization.ranges.{name} is {low} … {high}; it must be finite and ordered.",
            )
            require(name == INPUT or low == 0.0, f"quantization.ranges.{name} begins at {low}, not at a ReLU's 0.")
