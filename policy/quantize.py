"""The mathematics of quantization, once, in numpy: training, conversion and the agent are tested against it.

The quantizers:

* ``symmetric``: weights on the device. n bits, per output channel, zero point 0, levels −(2ⁿ⁻¹−1) … 2ⁿ⁻¹−1. Devices
  take 2 … 8 bits in int8; simulation (:func:`fake_symmetric`) goes on to 31.
* ``affine``: activations on the device. 8 bits or fewer, per tensor, zero inside the range so that it is exact;
  simulation goes on to 31.
* ``quarl``: the paper's uniform affine quantizer, per tensor, n from 2 to 32 (slides, "Uniform Affine Quantization").
* ``quarl-released``: what the paper's released script computes instead (:func:`quarl_released`).
* ``fp16``: IEEE half precision.

Everywhere: divide, round, *then* clip. Rounding to the nearest level goes half to even, as XNNPACK, onnxruntime and
IEEE arithmetic do; only the paper's scheme floors. Non-finite input is refused: a NaN has no level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy import exact
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.errors import QuantizationError
from quarl.policy.exact import Doubles, Floats, product
from quarl.policy.spec import (
    LARGEST_WEIGHT_BITS,
    SMALLEST_WEIGHT_BITS,
    Activation,
    NetworkSpec,
    TrainedQuantization,
    WeightRange,
)

Integers = NDArray[np.int32]

INT8_MIN, INT8_MAX = -128, 127
LARGEST_SIMULATED_BITS = 31  # levels are int32
FLOAT_BITS = 32  # of a float32, which no quantizer touches
# XNNPACK refuses to prepare a layer with such a multiplier (xnn_create_fully_connected_nc_qs8_qc8w and its kin).
MULTIPLIER_LIMIT = 256.0
# Of a channel of nothing but zeros, in steps of its accumulator.
LARGEST_ZERO_CHANNEL_BIAS = 2.0**24
# The smallest scale that a device's float32 requantization can still divide by: smaller ones are subnormal there.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)


class Scheme(Enum):
    """How weights are quantized in a study."""

    QUARL = "quarl"
    """The slides' affine quantizer, per tensor."""
    QUARL_RELEASED = "quarl-released"
    """The released script's: neither zero point nor clipping; convolutions per output channel."""
    SYMMETRIC = "symmetric"
    """Per output channel, zero point 0: what devices run."""
    FP16 = "fp16"
    """IEEE half precision."""


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
        """Return the floats that the integers stand for, same shape."""
        return dequantize_affine(self.values, self.affine)


def check_finite(tensor: np.ndarray, name: str = "tensor") -> None:
    """Refuse NaN and infinity.

    Raises:
        QuantizationError: says how many values are not finite.
    """
    bad = int(tensor.size - np.count_nonzero(np.isfinite(tensor)))
    if bad:
        raise QuantizationError(
            f"{name} of shape {tensor.shape} must be finite, got {bad} values that are NaN or infinite.",
            "Check whether training diverged.",
            code="not_finite",
        )


def check_bits(bits: int, lowest: int = SMALLEST_WEIGHT_BITS, highest: int = LARGEST_WEIGHT_BITS) -> None:
    """Refuse a bit width outside lowest … highest."""
    if not lowest <= bits <= highest:
        raise QuantizationError(f"the bit width must be {lowest} … {highest}, got {bits}.", code="bits_out_of_range")


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
    """Dequantize: W ≈ q · s_c."""
    return levels.astype(np.float32) * scales


def dynamic_scales(x: Floats) -> tuple[Floats, Floats]:
    """Return the scale and the level of 0, each (batch, 1), for levels 0 … 255 of each row of x (batch, in)."""
    low, high = np.minimum(x.min(axis=1), 0), np.maximum(x.max(axis=1), 0)
    scale = (high - low) / np.float32(255.0)
    scale = np.where(scale >= SMALLEST_SCALE, scale, np.float32(1.0)).astype(np.float32)[:, None]
    return scale, np.rint(-low[:, None] / scale)


def fake_symmetric(weights: np.ndarray, bits: int, scales: Floats | None = None) -> Floats:
    """Weights (…, out) as they read after n-bit symmetric quantization per output channel, for n from 2 to 31.

    Up to 8 bits these are the numbers of an int8 artifact, exactly. More bits have no container on a device; they are
    computed in double precision, because a 31-bit level does not fit the 24 bits of a float32's significand.

    Args:
        weights: to be quantized.
        bits: n.
        scales: (out,) instead of :func:`symmetric_scales`; up to 8 bits only.

    Raises:
        QuantizationError: non-finite weights, or a width that is not allowed.
    """
    check_bits(bits, SMALLEST_WEIGHT_BITS, LARGEST_SIMULATED_BITS if scales is None else LARGEST_WEIGHT_BITS)
    if bits <= LARGEST_WEIGHT_BITS:
        scales = symmetric_scales(weights, bits) if scales is None else scales
        return dequantize_symmetric(quantize_symmetric(weights, scales, bits), scales)
    check_finite(weights, "weights")
    # s_c = max |W_c| / (2ⁿ⁻¹ − 1),   Ŵ = s_c · round(W / s_c);   nothing lies beyond the last level
    wide = weights.astype(np.float64)
    steps = np.abs(wide).reshape(-1, weights.shape[-1]).max(axis=0, initial=0.0) / (2 ** (bits - 1) - 1)
    steps = np.where(steps > 0.0, steps, 1.0)
    return (np.rint(wide / steps) * steps).astype(np.float32)


# --- affine, per tensor: the activations ----------------------------------------------------------------------------


def level_ends(bits: int) -> tuple[int, int]:
    """Return the smallest and the largest integer of an n-bit activation, n from 2 to 31.

    Up to 8 bits, the uppermost 2ⁿ of the int8 numbers: an int8 kernel clips at 127 by itself, and after a ReLU, whose
    zero is then the lowest level, at the lower end too. Beyond, −2ⁿ⁻¹ … 2ⁿ⁻¹ − 1.
    """
    check_bits(bits, SMALLEST_WEIGHT_BITS, LARGEST_SIMULATED_BITS)
    if bits <= LARGEST_WEIGHT_BITS:
        return INT8_MAX - (2**bits - 1), INT8_MAX
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def affine_from_range(low: float, high: float, bits: int = 8) -> Affine:
    """Return the n-bit map that covers low … high and 0, n from 2 to 31; fewer bits than 8 are fewer of the int8
    numbers.

    Zero is put inside the range because a ReLU, a zero padding and a zero bias must be exact (Jacob et al. 2018, §2.1).
    """
    lowest, highest = level_ends(bits)
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise QuantizationError(f"a range must be finite and ordered to be quantized, got {low} … {high}.")
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    # z = clip(round(−128 − low · 255 / (high − low)), −128, 127) with 8 bits
    step = (high - low) / (highest - lowest)
    if np.float32(step) < SMALLEST_SCALE:
        return Affine(1.0, max(lowest, 0), lowest, highest)
    zero_point = int(np.clip(np.rint(lowest - low / step), lowest, highest))
    # s = max(high / (127 − z), low / (−128 − z)), so that both ends are represented. With s = (high − low) / 255 the
    # ends of a symmetric range (a saturated normaliser's −clip … clip) would lie half-way between two levels, and
    # whether a runtime divides by s or multiplies by 1/s would decide which one they get.
    above = high / (highest - zero_point) if zero_point < highest else 0.0
    below = low / (lowest - zero_point) if zero_point > lowest else 0.0
    return Affine(float(np.float32(max(above, below))), zero_point, lowest, highest)


def quantize_affine(values: np.ndarray, affine: Affine) -> Integers:
    """q = clip(round(x / s) + z, low, high), same shape as x, int32."""
    check_finite(values, "values")
    # Devices divide in float32; more than 8 bits, which none has, need double precision for their levels.
    if affine.high <= INT8_MAX:
        levels = np.rint(values.astype(np.float32) / np.float32(affine.scale)) + affine.zero_point
    else:
        levels = np.rint(values.astype(np.float64) / affine.scale) + affine.zero_point
    return np.clip(levels, affine.low, affine.high).astype(np.int32)


def dequantize_affine(levels: np.ndarray, affine: Affine) -> Floats:
    """Dequantize: x ≈ s · (q − z)."""
    return np.float32(affine.scale) * (levels.astype(np.int64) - affine.zero_point).astype(np.float32)


# --- what is zero throughout: any scale stands for it, but devices multiply and divide by that all the same -----------


def quantizer_of_zero_activation(map_: Affine, next_scales: NDArray[np.float32], next_output: Affine) -> Affine:
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


# --- the paper's quantizer ------------------------------------------------------------------------------------------


def quarl_from_range(low: float, high: float, bits: int) -> Affine:
    """δ and z of the QuaRL slides for numbers from low to high, n from 2 to 31 bits; levels 0 … 2ⁿ − 1.

    A range of nothing but zero has no step: it gets δ = 1 and z = 0.
    """
    check_bits(bits, SMALLEST_WEIGHT_BITS, LARGEST_SIMULATED_BITS)
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise QuantizationError(f"a range must be finite and ordered to be quantized, got {low} … {high}.")
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    # δ = (|min(W, 0)| + |max(W, 0)|) / 2ⁿ,   z = ⌊−min(W, 0) / δ⌋
    step = (abs(low) + abs(high)) / 2**bits
    if step == 0.0:
        return Affine(1.0, 0, 0, 2**bits - 1)
    return Affine(step, int(np.floor(-low / step)), 0, 2**bits - 1)


def quarl_levels(values: np.ndarray, affine: Affine) -> Integers:
    """Q = ⌊W / δ⌋ + z, same shape as W, int32.

    The slides' formula reaches 2ⁿ at the largest number, one more than n bits hold; the result is clipped to 2ⁿ − 1.
    """
    check_finite(values, "values")
    levels = np.floor(values.astype(np.float64) / affine.scale) + affine.zero_point
    return np.clip(levels, affine.low, affine.high).astype(np.int32)


def quarl_values(levels: Integers, affine: Affine) -> Floats:
    """Ŵ = δ · (Q − z), in double precision before it is rounded to float32, see :func:`fake_symmetric`."""
    return (affine.scale * (levels.astype(np.float64) - affine.zero_point)).astype(np.float32)


def quantize_quarl(weights: np.ndarray, bits: int) -> QuantizedTensor:
    """Return the uniform affine quantizer of the QuaRL slides, per tensor, for n from 2 to 31 bits; 32 are identity:
    `quarl`.

    Empty tensors have no range either, see :func:`quarl_from_range`.
    """
    check_bits(bits, SMALLEST_WEIGHT_BITS, LARGEST_SIMULATED_BITS)
    check_finite(weights, "weights")
    affine = quarl_from_range(float(weights.min(initial=0.0)), float(weights.max(initial=0.0)), bits)
    return QuantizedTensor(quarl_levels(weights, affine), affine)


def quarl(weights: np.ndarray, bits: int) -> Floats:
    """Weights as they read after the paper's n-bit quantizer: Ŵ = δ · (Q − z); identity for 32 bits."""
    if bits == FLOAT_BITS:
        check_finite(weights, "weights")
        return weights.astype(np.float32)
    quantized = quantize_quarl(weights, bits)
    return quarl_values(quantized.values, quantized.affine)


def quarl_released(weights: np.ndarray, bits: int) -> Floats:
    """Weights as they read after QuaRL's released script, n ≥ 2; identity from 32 bits on.

    It rounds to the nearest instead of flooring, has no zero point and clips nothing. So 2 bits give five levels where
    the ends are alike (−2δ … 2δ), and weights of one sign waste half of the range on the other one's. Convolutions
    (height, width, in, out) are quantized per output channel, everything else per tensor. A tensor (or channel) of
    nothing but zeros has no step and stays as it is.
    """
    check_bits(bits, SMALLEST_WEIGHT_BITS, max(bits, FLOAT_BITS))
    check_finite(weights, "weights")
    if bits >= FLOAT_BITS or weights.size == 0:
        return weights.astype(np.float32)
    wide = weights.astype(np.float64)
    axes = (0, 1, 2) if weights.ndim == 4 else None
    # δ = (|min W| + |max W|) / 2ⁿ,   W' = δ · round(W / δ)
    steps = (np.abs(wide.min(axis=axes)) + np.abs(wide.max(axis=axes))) / 2**bits
    steps = np.where(steps > 0.0, steps, 1.0)
    return (np.rint(wide / steps) * steps).astype(np.float32)


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


# --- activations ----------------------------------------------------------------------------------------------------
# Activations after hidden layers: fast in float32, or with the same bits on every processor. For integers an activation
# is a table of 256 levels, made with the exact version.


def activate(network: NetworkSpec, layer: str, x: Floats, same_bits: bool = False) -> Floats:
    """Return a layer's activation of float32 values of any shape; the head has none.

    Args:
        network, layer: which.
        x: what the layer's linear part, or its normalisation, gives.
        same_bits: with the same bits on every processor.
    """
    kind = Activation.NONE if layer == "head" else network.activation_of(layer)
    if same_bits:
        return exactly(kind, x.astype(np.float64), network.negative_slope).astype(np.float32)
    with np.errstate(over="ignore"):  # e¹⁰⁰ is infinite, and 1 / (1 + ∞) is 0
        return _evaluate_expression(NONLINEARITIES[kind].fast, x, np.float32(network.negative_slope), np.tanh)


def exactly(kind: Activation, x: Doubles, negative_slope: float) -> Doubles:
    """Return an activation in double precision, with the same bits on every processor, same shape."""
    return _evaluate_expression(NONLINEARITIES[kind].exact, x, float(np.float32(negative_slope)), exact.tanh64)


def _evaluate_expression(expression: str, x: np.ndarray, slope: float | np.float32, tanh: Callable[..., Any]) -> Any:
    """Return an expression of :mod:`policy.activations`."""
    return eval(_compile_expression(expression), _FUNCTIONS, {"x": x, "slope": slope, "tanh": tanh})


@cache
def _compile_expression(expression: str) -> CodeType:
    return compile(expression, "policy/activations.py", "eval")


_FUNCTIONS = {
    "where": np.where,
    "exp": np.exp,
    "expm1": np.expm1,
    "positive": lambda x: np.maximum(x, x.dtype.type(0.0)),
    "negative": lambda x: np.minimum(x, x.dtype.type(0.0)),
}


# --- in integers --------------------------------------------------------------------------------------------------

FIXED_MAPS = {kind: Affine(*each.int8_map) for kind, each in NONLINEARITIES.items() if each.int8_map}
"""The output maps of TFLite's own int8 kernels; a table of ours can give any other."""
FIXED_FROM = 0.5  # of the largest |f|: below it, a map of its own has more than twice the levels
GRID = 1024


@dataclass(frozen=True)
class IntegerTable:
    """An activation as a table: the level of ``output`` for each int8 level of the layer's linear part.

    Attributes:
        activation: which.
        negative_slope: of a LeakyReLU.
        levels: int8 (256,), of the levels −128 … 127.
        output: map of the result.
    """

    activation: Activation
    negative_slope: float
    levels: NDArray[np.int8]
    output: Affine

    @classmethod
    def build_lookup(cls, network: NetworkSpec, layer: str, fed: Affine, output: Affine) -> IntegerTable:
        """round(f(s (q − z)) / s') + z' for all q of the map ``fed``, with s' and z' of ``output``."""
        kind, slope = network.activation_of(layer), network.negative_slope
        x = float(np.float32(fed.scale)) * (np.arange(INT8_MIN, INT8_MAX + 1) - fed.zero_point).astype(np.float64)
        levels = np.rint(exactly(kind, x, slope) / float(np.float32(output.scale))) + output.zero_point
        return cls(kind, slope, np.clip(levels, output.low, output.high).astype(np.int8), output)

    def __call__(self, levels: NDArray[np.int32]) -> NDArray[np.int32]:
        """Levels of the linear part to levels of the result, same shape."""
        return self.levels[levels - INT8_MIN].astype(np.int32)

    @property
    def has_kernel(self) -> bool:
        """Whether TFLite's int8 kernel of this activation gives just these levels; else they are looked up."""
        kernel = NONLINEARITIES[self.activation]
        return kernel.int8_version is not None and self.output == FIXED_MAPS.get(self.activation, self.output)


def activation_map(network: NetworkSpec, layer: str, low: float, high: float) -> Affine:
    """Return the 8-bit map of a layer's output, given the range that was seen."""
    kind = Activation.NONE if layer == "head" else network.activation_of(layer)
    fixed = FIXED_MAPS.get(Activation.TANH if layer in network.states else kind)  # a hidden state lies in −1 … 1
    if fixed is not None and FIXED_FROM < max(-low, high) <= 1.0:  # a vector that joins a convolution may reach farther
        return fixed
    return affine_from_range(low, high)


def linear_map(network: NetworkSpec, layer: str, low: float, high: float, output: Affine) -> Affine:
    """Return the 8-bit map of a layer's linear part, given the range that was seen and the map of its activation.

    Where a tanh is flat, levels would be spent on what comes out as one: the range is cut, at either end, to where the
    activation has moved by half a step of its output.
    """
    x = low + (high - low) / GRID * np.arange(GRID + 1)
    y = exactly(network.activation_of(layer), x, network.negative_slope)
    below = np.maximum.accumulate(y) - np.minimum.accumulate(y) <= output.scale / 2
    above = np.maximum.accumulate(y[::-1]) - np.minimum.accumulate(y[::-1]) <= output.scale / 2
    first, last = int(below.sum()) - 1, GRID + 1 - int(above.sum())
    if first < last:
        low, high = float(x[first]), float(x[last])
    return affine_from_range(low, high)


# --- quantizers of training -----------------------------------------------------------------------------------------
# A policy trained with fake quantization is exported with the same quantizers (Jacob et al. 2018): at that width its
# artifact takes its scales from the spec and the weights, not from calibration. Weights are n-bit integers with one
# scale per output channel; outputs of hidden layers are n-bit integers from 0 to the top of a monitored range. The
# normalised observation and the head's outputs keep 8 bits, with maps from the recorded observations, as after post-
# training quantization.


def build_hidden_map(trained: TrainedQuantization, layer: str) -> Affine:
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
    """Return the n-bit map of 0 … high: the uppermost 2ⁿ of the int8 levels, zero being the lowest of them.

    There, an int8 kernel clips at both ends by itself: at the top because 127 is the largest int8, at the bottom
    because a ReLU cuts at the level of zero.
    """
    check_bits(bits)
    return affine_from_range(0.0, high, bits)
