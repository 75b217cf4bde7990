"""The quantizers that a policy was trained with: what quantization-aware training leaves in the contract.

A policy that learned with fake quantization is exported with the very same quantizers (Jacob et al. 2018): its artifact
of that width takes its scales from here and from the weights, not from a calibration. Weights are n-bit integers with
one scale per output channel; outputs of hidden layers are n-bit integers from 0 to the top of a monitored range. The
normalised observation keeps 8 bits, and so do the head's outputs, which are compared and not multiplied any more: their
maps come from the recorded observations, as after post-training quantization.
"""

from __future__ import annotations

import numpy as np

from quarl.policy.contract.quantization import TrainedQuantization, WeightRange
from quarl.policy.exact import product
from quarl.policy.quantization import (
    SMALLEST_SCALE,
    Affine,
    Floats,
    affine_from_range,
    check_bits,
    check_finite,
    symmetric_scales,
)


def hidden_map(trained: TrainedQuantization, layer: str) -> Affine:
    """Map of a hidden layer's output."""
    return unsigned_affine(trained.ranges[layer][1], trained.bits)


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
