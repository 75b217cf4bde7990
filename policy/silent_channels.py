"""Scales of what is zero throughout: any would stand for it, but devices multiply and divide by them all the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from policy.quantization import SMALLEST_SCALE, Affine, Floats

# XNNPACK refuses to prepare a layer with such a multiplier (xnn_create_fully_connected_nc_qs8_qc8w and its kin).
MULTIPLIER_LIMIT = 256.0
# Of a channel of nothing but zeros, in steps of its accumulator.
LARGEST_ZERO_CHANNEL_BIAS = 2.0**24


def silent_map(map_: Affine, next_scales: NDArray[np.float32], next_output: Affine) -> Affine:
    """Map of a hidden layer that was zero on all of the calibration set: its scale is not known, so it is free.

    It stays 1 where the next layer can be prepared with that, else it is s_out / max s_c: a multiplier of 1.
    """
    largest = float(next_scales.max())
    if map_.scale * largest < MULTIPLIER_LIMIT * next_output.scale:
        return map_
    return replace(map_, scale=max(float(np.float32(next_output.scale / largest)), SMALLEST_SCALE))


def scales_of_zeros(
    kernel: Floats, bias: NDArray[np.float64], kernel_scales: NDArray[np.float32], input_map: Affine, output: Affine
) -> NDArray[np.float32]:
    """Kernel scales (out,) with those of channels of nothing but zeros taken from their bias; the others as they are.

    Any scale stands for zeros, but the bias is counted in steps of s_in · s_c: with s_c = 1 it is rounded to whole
    multiples of s_in, and where s_in / s_out reaches XNNPACK's limit, LiteRT cannot prepare the layer. So it is counted
    in steps of the output, which no kernel has to round again:

        s_c = max(s_out, |b| / 2²⁴) / s_in
    """
    zeros = ~kernel.reshape(-1, len(bias)).any(axis=0)
    steps = np.maximum(output.scale, np.abs(bias) / LARGEST_ZERO_CHANNEL_BIAS)
    scales = np.clip(steps / input_map.scale, SMALLEST_SCALE, np.finfo(np.float32).max)
    return np.where(zeros, scales, kernel_scales).astype(np.float32)
