"""The mathematics of quantization, once, in numpy: training, conversion and the agent are tested against it.

Four schemes:

* ``symmetric``: weights on the device. n bits, per output channel, zero point 0, levels −(2ⁿ⁻¹−1) … 2ⁿ⁻¹−1.
* ``affine``: activations on the device. 8 bits, per tensor, zero inside the range so that it is exact.
* ``quarl``: the paper's uniform affine quantizer, per tensor, n from 2 to 32 (slides, "Uniform Affine Quantization").
* ``fp16``: IEEE half precision.

Everywhere: divide, round, *then* clip. Rounding to the nearest level goes half to even, as XNNPACK, onnxruntime and
IEEE arithmetic do; only the paper's scheme floors. Non-finite input is refused: a NaN has no level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy.errors import QuantizationError

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]

INT8_MIN, INT8_MAX = -128, 127
SMALLEST_WEIGHT_BITS, LARGEST_WEIGHT_BITS = 2, 8
# The smallest scale that a device's float32 requantization can still divide by: smaller ones are subnormal there.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Affine:
    """x ≈ scale · (q − zero_point) for one whole tensor, q from ``low`` to ``high``.

    Attributes:
        scale: size of one step, in the unit of x; positive.
        zero_point: the integer that stands for 0.
        low, high: the smallest and the largest integer.
    """

    scale: float
    zero_point: int
    low: int = INT8_MIN
    high: int = INT8_MAX


@dataclass(frozen=True)
class QuantizedTensor:
    """Integers and the affine map that gives them their meaning."""

    values: Integers
    affine: Affine

    def dequantize(self) -> Floats:
        """The floats that the integers stand for, same shape."""
        return dequantize_affine(self.values, self.affine)


def check_finite(tensor: np.ndarray, name: str = "tensor") -> None:
    """Refuse NaN and infinity.

    Raises:
        QuantizationError: says how many values are not finite.
    """
    bad = int(tensor.size - np.count_nonzero(np.isfinite(tensor)))
    if bad:
        raise QuantizationError(
            f"{name} of shape {tensor.shape} has {bad} values that are NaN or infinite; only finite ones are allowed.",
            "Look for divergence in training.",
        )


def check_bits(bits: int, lowest: int = SMALLEST_WEIGHT_BITS, highest: int = LARGEST_WEIGHT_BITS) -> None:
    """Refuse a bit width outside lowest … highest."""
    if not lowest <= bits <= highest:
        raise QuantizationError(f"{bits} bits were asked for; allowed are {lowest} … {highest}.")


# --- symmetric, per output channel: the weights ---------------------------------------------------------------------


def symmetric_scales(weights: np.ndarray, bits: int = 8) -> Floats:
    """Scale of each output channel, the last axis: shape (out,), positive.

    A channel of nothing but zeros (or too small to divide by) gets the scale 1: any scale represents it exactly enough.
    """
    check_bits(bits)
    check_finite(weights, "weights")
    # s_c = max |W_c| / (2ⁿ⁻¹ − 1)
    largest = np.abs(weights).reshape(-1, weights.shape[-1]).max(axis=0, initial=0.0)
    scales = largest.astype(np.float32) / np.float32(2 ** (bits - 1) - 1)
    return np.where(scales >= SMALLEST_SCALE, scales, np.float32(1.0)).astype(np.float32)


def quantize_symmetric(weights: np.ndarray, scales: Floats, bits: int = 8) -> NDArray[np.int8]:
    """Weights (…, out) as n-bit integers in int8, given one scale per output channel."""
    check_bits(bits)
    check_finite(weights, "weights")
    # q = clip(round(W / s_c), −(2ⁿ⁻¹ − 1), 2ⁿ⁻¹ − 1)
    limit = 2 ** (bits - 1) - 1
    levels = np.rint(weights.astype(np.float32) / scales)
    return np.clip(levels, -limit, limit).astype(np.int8)


def dequantize_symmetric(levels: NDArray[np.int8], scales: Floats) -> Floats:
    """W ≈ q · s_c."""
    return levels.astype(np.float32) * scales


# --- affine, per tensor: the activations ----------------------------------------------------------------------------


def affine_from_range(low: float, high: float) -> Affine:
    """The 8-bit map that covers low … high and 0.

    Zero is put inside the range because a ReLU, a zero padding and a zero bias must be exact (Jacob et al. 2018, §2.1).
    """
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise QuantizationError(f"the range {low} … {high} cannot be quantized; it must be finite and ordered.")
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    # z = clip(round(−128 − low · 255 / (high − low)), −128, 127)
    step = (high - low) / (INT8_MAX - INT8_MIN)
    if np.float32(step) < SMALLEST_SCALE:
        return Affine(scale=1.0, zero_point=0)
    zero_point = int(np.clip(np.rint(INT8_MIN - low / step), INT8_MIN, INT8_MAX))
    # s = max(high / (127 − z), low / (−128 − z)), so that both ends are represented. With s = (high − low) / 255 the
    # ends of a symmetric range (a saturated normaliser's −clip … clip) would lie half-way between two levels, and
    # whether a runtime divides by s or multiplies by 1/s would decide which one they get.
    above = high / (INT8_MAX - zero_point) if zero_point < INT8_MAX else 0.0
    below = low / (INT8_MIN - zero_point) if zero_point > INT8_MIN else 0.0
    return Affine(float(np.float32(max(above, below))), zero_point)


def quantize_affine(values: np.ndarray, affine: Affine) -> Integers:
    """q = clip(round(x / s) + z, low, high), same shape as x, int32."""
    check_finite(values, "values")
    levels = np.rint(values.astype(np.float32) / np.float32(affine.scale)) + affine.zero_point
    return np.clip(levels, affine.low, affine.high).astype(np.int32)


def dequantize_affine(levels: np.ndarray, affine: Affine) -> Floats:
    """x ≈ s · (q − z)."""
    return np.float32(affine.scale) * (levels.astype(np.int64) - affine.zero_point).astype(np.float32)


# --- the paper's quantizer ------------------------------------------------------------------------------------------


def quantize_quarl(weights: np.ndarray, bits: int) -> QuantizedTensor:
    """The uniform affine quantizer of the QuaRL slides, per tensor, for n from 2 to 31 bits.

    The slides' formula reaches 2ⁿ at the largest weight, one more than n bits hold; the result is clipped to 2ⁿ − 1.
    All-zero and empty tensors have no range: they get δ = 1 and Q = z = 0. 32 bits are identity: see :func:`quarl`.
    """
    check_bits(bits, 2, 31)
    check_finite(weights, "weights")
    wide = weights.astype(np.float64)
    low = min(float(wide.min(initial=0.0)), 0.0)
    high = max(float(wide.max(initial=0.0)), 0.0)
    # δ = (|min(W, 0)| + |max(W, 0)|) / 2ⁿ
    step = (abs(low) + abs(high)) / 2**bits
    if step == 0.0:
        return QuantizedTensor(np.zeros(weights.shape, np.int32), Affine(1.0, 0, 0, 2**bits - 1))
    # z = ⌊−min(W, 0) / δ⌋,   Q = ⌊W / δ⌋ + z
    zero_point = int(np.floor(-low / step))
    levels = np.floor(wide / step) + zero_point
    levels = np.clip(levels, 0, 2**bits - 1).astype(np.int32)
    return QuantizedTensor(levels, Affine(step, zero_point, 0, 2**bits - 1))


def quarl(weights: np.ndarray, bits: int) -> Floats:
    """Weights as they read after the paper's n-bit quantizer: Ŵ = δ · (Q − z); identity for 32 bits."""
    if bits == 32:
        check_finite(weights, "weights")
        return weights.astype(np.float32)
    quantized = quantize_quarl(weights, bits)
    # In double precision: a 31-bit level does not fit the 24 bits of a float32's significand.
    levels = quantized.values.astype(np.float64) - quantized.affine.zero_point
    return (quantized.affine.scale * levels).astype(np.float32)


# --- half precision -------------------------------------------------------------------------------------------------


def to_fp16(weights: np.ndarray) -> NDArray[np.float16]:
    """IEEE half precision, round half to even.

    Raises:
        QuantizationError: a weight is not finite, or beyond ±65504 and would become infinite.
    """
    check_finite(weights, "weights")
    with np.errstate(over="ignore"):
        halves = weights.astype(np.float16)
    if not np.isfinite(halves).all():
        largest = float(np.abs(weights).max())
        raise QuantizationError(f"a weight of magnitude {largest:g} does not fit fp16, whose largest value is 65504.")
    return halves
