"""The quantizers that a policy was trained with: what quantization-aware training leaves in the contract.

A policy that learned with fake quantization is exported with the very same quantizers (Jacob et al. 2018): its artifact
of that width takes its scales from here and from the weights, not from a calibration. Weights are n-bit integers with
one scale per output channel; outputs of hidden layers are n-bit integers from 0 to the top of a monitored range. The
normalised observation keeps 8 bits, and so do the head's outputs, which are compared and not multiplied any more: their
maps come from the recorded observations, as after post-training quantization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from policy.contract.checks import LARGEST_FLOAT32, require, require_member
from policy.exact import product
from policy.quantization import (
    LARGEST_WEIGHT_BITS,
    SMALLEST_SCALE,
    SMALLEST_WEIGHT_BITS,
    Affine,
    Floats,
    affine_from_range,
    check_bits,
    check_finite,
    symmetric_scales,
)

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

    def hidden_map(self, layer: str) -> Affine:
        """Map of a hidden layer's output."""
        return unsigned_affine(self.ranges[layer][1], self.bits)

    def kernel_scales(self, kernel: np.ndarray) -> Floats:
        """Scale of each output channel, (out,)."""
        return kernel_scales(kernel, self.bits, self.weight_range)


def kernel_scales(kernel: np.ndarray, bits: int, weight_range: WeightRange) -> Floats:
    """Scale of each output channel (the last axis) of a kernel, (out,), positive."""
    if weight_range is WeightRange.LARGEST:
        return symmetric_scales(kernel, bits)
    check_bits(bits)
    check_finite(kernel, "weights")
    # s_c = 2 · mean |W_c| / √(2ⁿ⁻¹ − 1)
    magnitudes = np.abs(kernel, dtype=np.float32).reshape(-1, kernel.shape[-1])
    mean = (product(np.ones((1, len(magnitudes))), magnitudes)[0] / len(magnitudes)).astype(np.float32)
    scales = np.float32(2.0 / np.sqrt(2 ** (bits - 1) - 1)) * mean
    return np.where(scales >= SMALLEST_SCALE, scales, np.float32(1.0)).astype(np.float32)


def unsigned_affine(high: float, bits: int) -> Affine:
    """The n-bit map of 0 … high: the uppermost 2ⁿ of the int8 levels, zero being the lowest of them.

    There, an int8 kernel clips at both ends by itself: at the top because 127 is the largest int8, at the bottom
    because a ReLU cuts at the level of zero.
    """
    check_bits(bits)
    return affine_from_range(0.0, high, bits)
