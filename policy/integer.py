"""The int8 policy in exact integers: built once from float weights, executed in numpy, exported by convert/.

The normaliser runs in float, then one affine map quantizes the normalised observation, every layer multiplies int8 by
int8 into int32, and the last integers are dequantized. n-bit weights (n < 8) use the same int8 container with fewer
levels, so that the numbers are those of the n-bit grid.

A convolution is the same arithmetic on the windows of its image. A ReLU cuts levels; any other activation is a table
from levels to levels. A layer normalisation stays in float: its layer's levels are dequantized, normalised, activated
and quantized again, for a mean and a root have no int8 kernels. So do the gates of a recurrent layer: both its linear
layers are integers, whose levels a float program takes. The hidden state has a map of its own where it is multiplied;
what is remembered is float, so that a slow change is not lost between two levels.

Vector fields behind an image are quantized by the map of the last convolution's output, whose range covers both: so
they join it without being rounded again, and zero need not be the lowest level behind that convolution's ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from policy import exact, quantization
from policy.activations import IntegerTable, activate, activation_map, linear_map
from policy.contract.features import FloatStep
from policy.contract.quantization import INPUT, TrainedQuantization, WeightRange
from policy.errors import QuantizationError
from policy.network import (
    Weights,
    apply_head,
    as_batch,
    has_linear_part,
    is_normalised,
    join,
    layer_names,
    linear_part,
    normalised,
    split,
    states_of,
    windows,
)
from policy.observing.features import run_program
from policy.quantization import INT8_MAX, MULTIPLIER_LIMIT, Affine, Floats, scales_of_zeros, silent_map
from policy.quantization_aware import hidden_map
from policy.quantization_aware import kernel_scales as scales_of_kernel
from policy.ranges import Range, calibrated_ranges
from policy.spec import Activation, NetworkSpec, PolicySpec

INT32_MAX = 2**31 - 1
# agreeing_scales: more than the relative error of a float32 multiplier and its product (three roundings, 3 · 2⁻²⁴).
ABOVE_THE_HALF = 2.0**-21
# Moves the largest weight, 127 levels, by no more than two thirds of a level.
LARGEST_NUDGE = 0.005
SMALLEST_FRACTION = 0.515


@dataclass(frozen=True)
class IntegerNorm:
    """The layer normalisation behind a layer, in float: f(γ (x − mean x) / √(var x + ε) + β), then quantized.

    Attributes:
        gamma, beta: float32 (out,).
        network: has the activation f of that layer.
        output: map of the result.
    """

    gamma: Floats
    beta: Floats
    network: NetworkSpec
    output: Affine


@dataclass(frozen=True)
class IntegerCell:
    """The gates behind the linear layer of a hidden state, in float, and the next hidden state quantized.

    Attributes:
        steps: the recurrent layer's program, given both linear layers' sums and the state.
        fed: map of the sums of what is fed to the recurrent layer.
        output: map of the hidden state, before and behind.
    """

    steps: tuple[FloatStep, ...]
    fed: Affine
    output: Affine


@dataclass(frozen=True)
class IntegerLayer:
    """One convolution or dense layer in integers.

    Attributes:
        name: ``conv_0``, …, ``dense_0``, …, ``head``.
        kernel: int8 (in, out) of a dense layer, (height, width, in, out) of a convolution; zero point 0.
        bias: int32 (out,), in steps of input scale × kernel scale of the channel.
        kernel_scales: float32 (out,).
        output: map of the integers that the layer computes (after the ReLU, where there is one).
        relu: whether negative results are cut to zero (a ReLU without normalisation).
        stride: of a convolution.
        norm: the layer normalisation that follows, with its activation, if one does.
        table: the activation that follows, where it is one and there is no normalisation; a ReLU needs none.
    """

    name: str
    kernel: NDArray[np.int8]
    bias: NDArray[np.int32]
    kernel_scales: NDArray[np.float32]
    output: Affine
    relu: bool
    stride: int = 1
    norm: IntegerNorm | None = None
    table: IntegerTable | None = None
    cell: IntegerCell | None = None

    @property
    def result(self) -> Affine:
        """Map of what the next layer is fed."""
        following = self.norm or self.table or self.cell
        return self.output if following is None else following.output


@dataclass(frozen=True)
class IntegerNetwork:
    """A whole policy in integers: the map of its normalised input, then the layers.

    Attributes:
        input: map of the normalised observation; of its image only, where vector fields follow one: the map of these
            is the last convolution's result.
        layers: in order; the last is the head.
        weight_bits: of their kernels.
    """

    input: Affine
    layers: tuple[IntegerLayer, ...]
    weight_bits: WeightBits

    @property
    def fed(self) -> list[tuple[IntegerLayer, Affine]]:
        """Every layer with the map of what it is fed: the layer's before it, or its own hidden state's."""
        maps = [self.input, *(layer.result for layer in self.layers[:-1])]
        return [
            (layer, layer.result if layer.cell else before) for layer, before in zip(self.layers, maps, strict=True)
        ]

    @property
    def output_step(self) -> float:
        """One step of the head's raw output (logits for a discrete head)."""
        return self.layers[-1].output.scale


@dataclass(frozen=True)
class Trace:
    """What was computed on the way.

    Attributes:
        levels: what each layer was fed, (batch, …), by its name.
        gates: what each recurrent layer's program was given, by the name of its hidden state's layer.
    """

    levels: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    gates: dict[str, list[Floats]] = field(default_factory=dict)


WeightBits = int | Mapping[str, int]
"""8 … 2 bits of every layer's weights, or of each by its name."""
Quantize = Callable[[np.ndarray, Affine], NDArray[np.int32]]
"""A function from floats to levels of a map."""
Requantize = Callable[[IntegerLayer, Affine, NDArray[np.float64]], np.ndarray]
"""Accumulators of a layer, given the map of its input, to whole multiples of its output's step."""


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


def requantization_multipliers(layer: IntegerLayer, input_map: Affine) -> NDArray[np.float32]:
    """m_c = s_in · s_c / s_out in float32, (out,): what one accumulator step is worth in output steps."""
    scale = np.float32(input_map.scale) * layer.kernel_scales / np.float32(layer.output.scale)
    return scale.astype(np.float32)


def check_multipliers(network: IntegerNetwork) -> None:
    """Refuse a network that LiteRT cannot prepare: an accumulator's step is too many steps of its output.

    Raises:
        QuantizationError: names the layer and the channel.
    """
    for layer, input_map in network.fed:
        multipliers = requantization_multipliers(layer, input_map)
        if multipliers.max() >= MULTIPLIER_LIMIT:
            channel = int(multipliers.argmax())
            raise QuantizationError(
                f"layer {layer.name!r}, channel {channel}: a step of its accumulator is {multipliers.max():.3g} steps "
                f"of its output; LiteRT takes less than {MULTIPLIER_LIMIT:g}. On the calibration set its input or its "
                "output hardly varies.",
                "Record a calibration set that moves the outputs, or use BITS=16.",
            )


def accumulate(layer: IntegerLayer, input_map: Affine, levels: NDArray[np.int32]) -> NDArray[np.float64]:
    """acc = Σ (q_in − z_in) · w_q + b_q, exact whole numbers.

    Args:
        layer: a dense layer, (batch, …) to (batch, out), or a convolution, (batch, H, W, in) to (batch, H', W', out).
        input_map: of ``levels``.
        levels: the layer's input.
    """
    # float64 holds these integers exactly (< 2⁵³) and multiplies them fast.
    centred = (levels - input_map.zero_point).astype(np.float64)
    matrix = layer.kernel.astype(np.float64).reshape(-1, len(layer.bias))
    if layer.kernel.ndim == 2:
        return np.matmul(centred.reshape(len(centred), -1), matrix) + layer.bias
    height, width = layer.kernel.shape[:2]
    # One image at a time: the windows of all would fill the memory.
    return (
        np.concatenate([windows(image[None], height, width, layer.stride) @ matrix for image in centred]) + layer.bias
    )


def float_multiplier(layer: IntegerLayer, input_map: Affine, accumulator: NDArray[np.float64]) -> np.ndarray:
    """round(acc · m_c), in float32 and half to even, as XNNPACK and onnxruntime do."""
    return np.rint(accumulator.astype(np.float32) * requantization_multipliers(layer, input_map))


def forward_layer(
    layer: IntegerLayer,
    input_map: Affine,
    levels: NDArray[np.int32],
    requantize: Requantize = float_multiplier,
) -> NDArray[np.int32]:
    """Input levels to output levels, as :func:`accumulate`, exactly as an integer kernel computes them."""
    # q_out = clip(round(acc · m_c) + z_out)
    return forward_activation(layer, cut(layer, requantize(layer, input_map, accumulate(layer, input_map, levels))))


def cut(layer: IntegerLayer, scaled: np.ndarray) -> NDArray[np.int32]:
    """q = clip(scaled + z, …): whole multiples of the output's step to levels; a ReLU cuts at the level of zero."""
    low = layer.output.zero_point if layer.relu else layer.output.low
    return np.clip(scaled + layer.output.zero_point, low, INT8_MAX).astype(np.int32)


def forward_activation(layer: IntegerLayer, levels: NDArray[np.int32]) -> NDArray[np.int32]:
    """Levels (batch, out) through the layer's normalisation and activation; unchanged where it has none."""
    if layer.table is not None:
        return layer.table(levels)
    if layer.norm is None:
        return levels
    x = quantization.dequantize_affine(levels, layer.output)
    y = exact.layer_norm(x, layer.norm.gamma, layer.norm.beta)
    return quantization.quantize_affine(activate(layer.norm.network, layer.name, y, True), layer.norm.output)


def input_levels(
    spec: PolicySpec,
    network: IntegerNetwork,
    observations: np.ndarray,
    quantize: Quantize = quantization.quantize_affine,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Raw observations (batch, observation_size) to what the first layer is fed, and to what joins it later on.

    The first is (batch, size) or (batch, H, W, C); the second (batch, vector_size) is the vector behind an image.
    """
    first, vector = split(spec, normalised(spec, observations))
    joined = vector_map(spec, network)
    levels = np.zeros(vector.shape, np.int32) if joined is None else quantize(vector, joined)
    return quantize(first, network.input), levels


def vector_map(spec: PolicySpec, network: IntegerNetwork) -> Affine | None:
    """Map of the vector fields behind an image: that of the last convolution's output; None where there are none."""
    return network.layers[len(spec.network.convolutions) - 1].result if spec.vector_size else None


def forward_integer(
    spec: PolicySpec,
    network: IntegerNetwork,
    observations: np.ndarray,
    quantize: Quantize = quantization.quantize_affine,
    requantize: Requantize = float_multiplier,
) -> Floats:
    """Raw observations (batch, observation_size) to results (batch, result_size), float32; as :func:`head_inputs`."""
    return apply_head(spec, head_inputs(spec, network, observations, quantize, requantize), observations)


def head_inputs(
    spec: PolicySpec,
    network: IntegerNetwork,
    observations: np.ndarray,
    quantize: Quantize = quantization.quantize_affine,
    requantize: Requantize = float_multiplier,
    trace: Trace | None = None,
) -> Floats:
    """Raw observations (batch, observation_size) to what the head squashes, levels times the step, with the next states
    behind it (batch, result_size).

    Args:
        spec, network: the policy.
        observations: raw.
        quantize: how a kernel rounds the normalised observation to levels.
        requantize: how it brings an accumulator to whole steps of the output.
        trace: gets what every layer was fed, where it is given.
    """
    levels, vector = input_levels(spec, network, observations, quantize)
    states, following = states_of(spec, as_batch(spec, observations), spec.sensed_size), []
    trace = trace or Trace()
    for layer, input_map in network.fed:
        state, units = states.get(layer.name), len(layer.kernel)
        fed = trace.levels[layer.name] = levels if state is None else quantize(state[:, :units], input_map)
        sums = forward_layer(layer, input_map, fed, requantize)
        if layer.cell is None or state is None:
            levels = join(spec, layer.name, sums, vector)
            continue
        both = (levels, layer.cell.fed), (sums, layer.output)
        given = trace.gates[layer.name] = [*(quantization.dequantize_affine(*each) for each in both), state]
        following.append(run_program(layer.cell.steps, *given))
        levels = quantize(following[-1][:, :units], layer.result)
    raw = quantization.dequantize_affine(levels, network.layers[-1].result)
    return np.concatenate([raw, *following], axis=1) if following else raw
