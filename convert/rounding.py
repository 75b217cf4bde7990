"""How integer kernels round: an accumulator back to int8 in two ways, an observation to int8 in three.

* **Float multiplier** (LiteRT's XNNPACK, onnxruntime's MLAS, ``policy.reference``): q = round(float32(acc) · m), half
  to even.
* **Fixed point** (TFLite's built-in kernels, the only int8 kernels of tflite-runtime 2.14): m is a 31-bit fraction and
  a shift, and the product is rounded twice, which lifts a value that lies within 2⁻ˢʰⁱᶠᵗ⁻¹ under a half by one step.

About one activation in a thousand differs between them, by one step. The layers behind it pass that on to the logits
as a fraction of a step, seldom as more. Both are emulated to the bit, so that the parity gate can hold each runtime to
its own arithmetic and say how far the other arithmetic may take the same artifact on another device.

An observation is quantized by dividing by the scale in float32 (onnxruntime, the native engine,
``policy.reference``), by multiplying with its float32 inverse (XNNPACK), or by dividing in double precision (TFLite's
built-in kernel). About one value in 100,000 lies so near to a border of two levels that these disagree.

An activation other than ReLU is a table of levels in TFLite and in the native engine, made with the exact function;
ONNX computes it in float32 between two levels, where one on a border may get its neighbour (:func:`with_float_tables`).

Source of the fixed-point rules: ruy/apply_multiplier.cc (halves round up in both places, as on Arm's NEON) and
tensorflow/lite/kernels/internal/quantization_util.cc (QuantizeMultiplier); tests compare them with tflite-runtime.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quarl.policy.quantize import (
    INT8_MAX,
    INT8_MIN,
    Affine,
    Floats,
    dequantize_affine,
    exactly,
    quantize_affine,
)
from quarl.policy.reference import IntegerLayer, IntegerNetwork, apply_head, head_inputs
from quarl.policy.spec import PolicySpec

FRACTION_BITS = 31


def fixed_point_multipliers(layer: IntegerLayer, input_map: Affine) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """m_c as (fraction, exponent), each (out,): m_c = fraction / 2³¹ · 2^exponent with the fraction in [2³⁰, 2³¹)."""
    # In double, from the float32 scales that stand in the file
    input_scale, output_scale = float(np.float32(input_map.scale)), float(np.float32(layer.output.scale))
    mantissa, exponent = np.frexp(input_scale * layer.kernel_scales.astype(np.float64) / output_scale)
    fraction = _round_half_away(mantissa * 2.0**FRACTION_BITS)
    carried = fraction == 2**FRACTION_BITS
    return np.where(carried, fraction // 2, fraction), exponent.astype(np.int64) + carried


def fixed_point_requantize(
    accumulator: NDArray[np.int64], fraction: NDArray[np.int64], exponent: NDArray[np.int64]
) -> NDArray[np.int64]:
    """round(acc · m) in integers, (…, out): a doubling high multiplication and a shift, each rounding halves up."""
    # high = ⌊acc · 2^max(e, 0) · fraction / 2³¹ + ½⌋
    high = (accumulator * 2 ** np.maximum(exponent, 0) * fraction + 2 ** (FRACTION_BITS - 1)) >> FRACTION_BITS
    # q = ⌊high / 2^shift + ½⌋
    shift = np.maximum(-exponent, 0)
    half = np.where(shift > 0, 2 ** np.maximum(shift - 1, 0), 0)
    return (high + half) >> shift


def forward_fixed_point(spec: PolicySpec, network: IntegerNetwork, observations: np.ndarray) -> Floats:
    """``policy.reference.forward_integer`` in the arithmetic of TFLite's built-in kernels, bit by bit."""
    return apply_head(spec, fixed_point_head_inputs(spec, network, observations))


def fixed_point_head_inputs(spec: PolicySpec, network: IntegerNetwork, observations: np.ndarray) -> Floats:
    """``policy.reference.head_inputs`` in the same arithmetic."""

    def requantize(layer: IntegerLayer, input_map: Affine, accumulator: NDArray[np.float64]) -> NDArray[np.int64]:
        return fixed_point_requantize(accumulator.astype(np.int64), *fixed_point_multipliers(layer, input_map))

    return head_inputs(spec, network, observations, quantize_half_away, requantize)


def quantize_by_inverse(values: np.ndarray, affine: Affine) -> NDArray[np.int32]:
    """Floats to levels, same shape, as XNNPACK does: multiplied in float32, halves to even."""
    inverse = np.float32(1.0) / np.float32(affine.scale)
    levels = np.rint(values.astype(np.float32) * inverse) + affine.zero_point
    return np.clip(levels, affine.low, affine.high).astype(np.int32)


def quantize_half_away(values: np.ndarray, affine: Affine) -> NDArray[np.int32]:
    """Floats to levels, same shape, as TFLite's built-in QUANTIZE does: divided in double precision, halves away from
    zero.

    XNNPACK and onnxruntime round them to even. An observation may lie half-way between two levels, to the bit: where
    one of its elements has few values, such as a foot's contact or a speed that was cut.
    """
    # quantization.h: the quotient of a float and op_params.scale, a double
    steps = values.astype(np.float32).astype(np.float64) / float(np.float32(affine.scale))
    levels = _round_half_away(steps) + affine.zero_point
    return np.clip(levels, affine.low, affine.high).astype(np.int32)


def with_float_tables(network: IntegerNetwork) -> IntegerNetwork:
    """Return the network with activations between levels computed in float32, as ONNX's graph does.

    A table has the exact function's level; where that lies on the border of two levels, float32 may give the other one.
    """
    return replace(network, layers=tuple(map(_with_float_table, network.layers)))


def _with_float_table(layer: IntegerLayer) -> IntegerLayer:
    if layer.table is None:
        return layer
    table = layer.table
    x = dequantize_affine(np.arange(INT8_MIN, INT8_MAX + 1), layer.output)
    y = exactly(table.activation, x.astype(np.float64), table.negative_slope).astype(np.float32)
    return replace(layer, table=replace(table, levels=quantize_affine(y, table.output).astype(np.int8)))


def _round_half_away(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return (np.sign(values) * np.floor(np.abs(values) + 0.5)).astype(np.int64)
