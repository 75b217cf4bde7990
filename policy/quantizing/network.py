"""A policy in integers (:mod:`policy.integer`), built once from float weights and recorded observations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quarl.policy import quantization
from quarl.policy.activations import IntegerTable, activation_map, linear_map
from quarl.policy.contract.quantization import INPUT, TrainedQuantization, WeightRange
from quarl.policy.errors import QuantizationError
from quarl.policy.integer import IntegerCell, IntegerLayer, IntegerNetwork, IntegerNorm, WeightBits
from quarl.policy.network import Weights, has_linear_part, is_normalised, layer_names, linear_part
from quarl.policy.quantization import Affine, Floats, scales_of_zeros, silent_map
from quarl.policy.quantizing.trained import hidden_map
from quarl.policy.quantizing.trained import kernel_scales as scales_of_kernel
from quarl.policy.ranges import Range, calibrated_ranges
from quarl.policy.spec import Activation, NetworkSpec, PolicySpec

INT32_MAX = 2**31 - 1
# agreeing_scales: more than the relative error of a float32 multiplier and its product (three roundings, 3 · 2⁻²⁴).
ABOVE_THE_HALF = 2.0**-21
# Moves the largest weight, 127 levels, by no more than two thirds of a level.
LARGEST_NUDGE = 0.005
SMALLEST_FRACTION = 0.515


def quantize_network(
    spec: PolicySpec, weights: Weights, calibration: np.ndarray, weight_bits: WeightBits = 8
) -> IntegerNetwork:
    """Quantize a policy with the activation ranges seen on recorded observations.

    Args:
        spec: the policy.
        weights: float32, as :func:`policy.spec.weight_shapes` names them.
        calibration: raw observations (n, observation_size) recorded from real rollouts.
        weight_bits: of the kernels.

    Raises:
        QuantizationError: bits of other layers than the policy has, no calibration rows, non-finite values, or an
            accumulator that could overflow int32.
    """
    bits = bits_by_layer(spec, weight_bits)
    trained = trained_with(spec, weight_bits)
    ranges = calibrated_ranges(spec, weights, calibration, trained)
    network = spec.network
    maps = [quantization.affine_from_range(*ranges[INPUT])]
    maps += [activation_map(network, name, *ranges[name]) for name in layer_names(spec)]
    if trained is not None:
        maps[1:-1] = [hidden_map(trained, name) for name in spec.network.hidden_names]
    scales = {name: scales_of_layer(spec, name, weights[f"{name}/kernel"], bits[name]) for name in bits}
    for index in reversed(range(1, len(maps) - 1)):
        following = layer_names(spec)[index]
        if (
            maps[index].scale == 1.0
            and not any(ranges[layer_names(spec)[index - 1]])
            and following not in network.states
        ):
            output = _linear_output(network, following, ranges, maps[index + 1])
            maps[index] = silent_map(maps[index], scales[following], output)
    layers = []
    for index, name in enumerate(layer_names(spec)):
        normalised = is_normalised(network, name)
        fed = maps[index + 1 if name in network.states else index]
        output = _linear_output(network, name, ranges, maps[index + 1])
        relu = name != "head" and not normalised and network.activation_of(name) is Activation.RELU
        kernel_scales = scales[name]
        bias_floats = weights[f"{name}/bias"].astype(np.float64)
        kernel_scales = scales_of_zeros(weights[f"{name}/kernel"], bias_floats, kernel_scales, fed, output)
        if bits[name] == 8 and relu:
            kernel_scales = agreeing_scales(kernel_scales, fed.scale, output.scale)
        kernel = quantization.quantize_symmetric(weights[f"{name}/kernel"], kernel_scales, bits[name])
        # b_q = round(b / (s_in · s_c))
        bias_steps = np.float64(fed.scale) * kernel_scales.astype(np.float64)
        bias = np.rint(bias_floats / bias_steps)
        _check_accumulator(name, kernel, bias)
        stride, norm, table, cell = 1, None, None, None
        if index < len(spec.network.convolutions):
            stride = spec.network.convolutions[index].stride
        if normalised:
            norm = IntegerNorm(weights[f"{name}/gamma"], weights[f"{name}/beta"], network, maps[index + 1])
        elif name in network.states:
            cell = IntegerCell(network.states[name].program(), maps[index], maps[index + 1])
        elif has_linear_part(network, name):
            table = IntegerTable.made(network, name, output, maps[index + 1])
        bias_levels = bias.astype(np.int32)
        layers.append(IntegerLayer(name, kernel, bias_levels, kernel_scales, output, relu, stride, norm, table, cell))
    return IntegerNetwork(maps[0], tuple(layers), weight_bits)


def _linear_output(network: NetworkSpec, layer: str, ranges: Mapping[str, Range], result: Affine) -> Affine:
    """Map of the integers that a layer computes, given that of what the next one is fed."""
    if not has_linear_part(network, layer):
        return result
    if is_normalised(network, layer) or layer in network.states:
        return quantization.affine_from_range(*ranges[linear_part(layer)])
    return linear_map(network, layer, *ranges[linear_part(layer)], result)


def bits_by_layer(spec: PolicySpec, weight_bits: WeightBits) -> dict[str, int]:
    """Bits of every layer's kernel, by its name, in the order of the layers.

    Raises:
        QuantizationError: there are bits of other layers than the policy has.
    """
    names = layer_names(spec)
    if isinstance(weight_bits, int):
        return dict.fromkeys(names, weight_bits)
    if weight_bits.keys() != set(names):
        raise QuantizationError(f"there are bits of the layers {sorted(weight_bits)}; the policy has {sorted(names)}.")
    return {name: weight_bits[name] for name in names}


def trained_with(spec: PolicySpec, weight_bits: WeightBits) -> TrainedQuantization | None:
    """The quantizers that the policy was trained with, if it was, and for this width of all layers."""
    trained = spec.quantization
    return trained if trained is not None and {trained.bits} == set(bits_by_layer(spec, weight_bits).values()) else None


def scales_of_layer(spec: PolicySpec, layer: str, kernel: Floats, bits: int) -> Floats:
    """Kernel scales (out,) of a layer of so many bits: those that it was trained with, if it was for this width."""
    trained = trained_with(spec, bits)
    return scales_of_kernel(kernel, bits, WeightRange.LARGEST if trained is None else trained.weight_range)


def agreeing_scales(kernel_scales: NDArray[np.float32], input_scale: float, output_scale: float) -> NDArray[np.float32]:
    """Kernel scales (out,), moved by at most LARGEST_NUDGE, on which all integer kernels round alike after a ReLU.

    Kernels bring an accumulator back to int8 by m = s_in · s_c / s_out, rounding acc · m once (XNNPACK, onnxruntime)
    or twice, in fixed point (TFLite's built-in kernels, all that tflite-runtime 2.14 has). The second way lifts what
    lies less than about half an accumulator step under n + ½. With 1/m just under an even integer 2t there is nothing
    to lift: the accumulator (2n + 1) · t lies just above the half, where both round up, and the next one a whole m
    lower. Hidden layers have n ≥ 0 only, thanks to the ReLU.

    Between tflite-runtime and LiteRT, this takes four fifths to nine tenths of the differences away, at the same
    distance from fp32: of 1,000 actions of a random network of Policy III's size none differs instead of 21, of a
    trained Policy I's none to one instead of two to four. Channels that would have to move further keep their scale; so
    do those of fewer bits, which keep the plain n-bit grid.
    """
    m = input_scale * kernel_scales.astype(np.float64) / output_scale
    # 1 / m' = 2t / (1 + ρ),   t = round(1 / 2m)
    t = np.maximum(np.rint(0.5 / m), 1.0)
    wanted = 0.5 / t * (1.0 + ABOVE_THE_HALF)
    # As a binary fraction near ½, a fixed-point multiplier lifts what lies a whole m under the half.
    fraction, _ = np.frexp(wanted)
    moved = (np.abs(wanted / m - 1.0) <= LARGEST_NUDGE) & (fraction > SMALLEST_FRACTION)
    return np.where(moved, wanted * output_scale / input_scale, kernel_scales).astype(np.float32)


def _check_accumulator(name: str, kernel: NDArray[np.int8], bias: NDArray[np.float64]) -> None:
    # |acc| ≤ |b_q| + 255 · Σ|w_q| has to stay below 2³¹ on the device.
    worst = np.abs(bias) + 255.0 * np.abs(kernel.astype(np.int64)).reshape(-1, len(bias)).sum(axis=0)
    if worst.max() > INT32_MAX:
        channel = int(worst.argmax())
        raise QuantizationError(
            f"layer {name!r}, channel {channel}: the accumulator could reach {worst.max():.3g}, beyond {INT32_MAX}; "
            "its bias is too large for its weights' scale.",
            "Train with weight decay on the biases, or use BITS=16.",
        )
