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

from quarl.policy import exact, quantization
from quarl.policy.activations import IntegerTable, activate
from quarl.policy.contract.features import FloatStep
from quarl.policy.errors import QuantizationError
from quarl.policy.network import (
    apply_head,
    as_batch,
    join,
    normalised,
    split,
    states_of,
    windows,
)
from quarl.policy.observing.features import run_program
from quarl.policy.quantization import INT8_MAX, MULTIPLIER_LIMIT, Affine, Floats
from quarl.policy.spec import NetworkSpec, PolicySpec


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
