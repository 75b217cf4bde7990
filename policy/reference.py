"""The numpy reference forward pass in float32: what every artifact is compared with.

Fast, or ``exact``: with the same bits on every processor (:mod:`policy.exact`), for all that is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from quarl.policy import exact as exactly
from quarl.policy.errors import QuantizationError, SpecError
from quarl.policy.exact import LAYER_NORM_EPSILON, Doubles, Floats
from quarl.policy.opaque import execute
from quarl.policy.quantize import (
    INT8_MAX,
    MULTIPLIER_LIMIT,
    Affine,
    IntegerTable,
    activate,
    dequantize_affine,
    quantize_affine,
)
from quarl.policy.spec import (
    INPUT,
    PROGRAM,
    Activation,
    ContinuousHead,
    FloatOperator,
    FloatStep,
    MultiDiscreteHead,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    Squash,
    observation_shape,
    weight_shapes,
)

# --- float programs -------------------------------------------------------------------------------------------------
# The programs of :class:`policy.spec.FloatStep` in numpy, with how far float32 roundings may move their results.


# A library's exponential or tanh differs by a few units in the last place.
LIBRARY_ROUNDINGS = 8.0
ROWS_AT_ONCE = 64
UNIT_ROUNDOFF = float(np.finfo(np.float32).eps) / 2  # half the distance between 1 and the next float32

Operator = FloatOperator
_BINARY: dict[FloatOperator, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Operator.ADD: np.add,
    Operator.SUBTRACT: np.subtract,
    Operator.MULTIPLY: np.multiply,
}
_UNARY: dict[FloatOperator, Callable[[np.ndarray], np.ndarray]] = {
    Operator.TANH: np.tanh,
    Operator.SIGMOID: lambda x: 1.0 / (1.0 + np.exp(-x)),
}


def run_program(steps: tuple[FloatStep, ...], *given: Floats) -> Floats:
    """Run a program on what it is given, (batch, n) each; returns (batch, m).

    Sums and products are those of float32; what a library approximates is computed in double precision and rounded
    once, so that it has the same bits on every processor.
    """
    return np.concatenate([_values(steps, rows)[-1] for rows in _chunks(given)])


def exact_program(steps: tuple[FloatStep, ...], *given: np.ndarray) -> Doubles:
    """Run a program as :func:`run_program` does, in double precision throughout."""
    rows = [np.asarray(operand, np.float64) for operand in given]
    return np.concatenate([_values(steps, part)[-1] for part in _chunks(rows)])


def program_variance(steps: tuple[FloatStep, ...], given: Sequence[np.ndarray], variance: Sequence[Doubles]) -> Doubles:
    """Variance (batch, m) of a program's results, of float32 roundings, all independent, and of what it is given.

    Each step carries its operands' variances by its derivatives, and adds (u · |y|)², of a library's function
    (8 u · (1 + |y|))²; u is the unit roundoff.

    Args:
        steps: the program.
        given: what it is given, (batch, n) each.
        variance: of that, (batch, n) each.
    """
    parts = zip(_chunks([np.asarray(operand, np.float64) for operand in given]), _chunks(variance), strict=True)
    result_variance = np.concatenate([_variance(steps, part, own) for part, own in parts])
    return np.where(np.isfinite(result_variance), result_variance, np.finfo(np.float32).max)


def _chunks(given: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Split the rows of all values into chunks: all values of all steps are in memory at once."""
    starts = range(0, max(len(given[0]), 1), ROWS_AT_ONCE)
    return [[rows[start : start + ROWS_AT_ONCE] for rows in given] for start in starts]


def _values(steps: tuple[FloatStep, ...], given: list[np.ndarray]) -> list[np.ndarray]:
    values = list(given)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in steps:
            values.append(_apply_step(step, [values[place] for place in step.operands]))
    return values


def _variance(steps: tuple[FloatStep, ...], given: list[Doubles], spread: list[Doubles]) -> Doubles:
    values, variances = _values(steps, given), list(spread)
    with np.errstate(over="ignore", invalid="ignore"):
        for step, y in zip(steps, values[len(given) :], strict=True):
            x, own = ([source[place] for place in step.operands] for source in (values, variances))
            variances.append(_propagate_variance(step, x, own, y))
    return variances[-1]


def _apply_step(step: FloatStep, x: list[np.ndarray]) -> np.ndarray:
    if step.operator in _BINARY:
        return _BINARY[step.operator](x[0], x[1])
    if step.operator is Operator.TAKE:
        selected: np.ndarray = x[0][:, list(step.places)]
        return selected
    if step.operator is Operator.JOIN:
        return np.concatenate(x, axis=1)
    return _UNARY[step.operator](x[0].astype(np.float64)).astype(x[0].dtype)


def _propagate_variance(step: FloatStep, x: list[Doubles], spread: list[Doubles], y: Doubles) -> Doubles:
    operator, rounding = step.operator, (UNIT_ROUNDOFF * y) ** 2
    if operator is Operator.TAKE:
        return spread[0][:, list(step.places)]
    if operator is Operator.JOIN:
        return np.concatenate(spread, axis=1)
    if operator is Operator.MULTIPLY:
        return x[1] ** 2 * spread[0] + x[0] ** 2 * spread[1] + rounding
    if operator in _BINARY:
        return spread[0] + spread[1] + rounding
    slope = 0.25 if operator is Operator.SIGMOID else 1.0
    return slope**2 * spread[0] + (LIBRARY_ROUNDINGS * UNIT_ROUNDOFF * (1.0 + np.abs(y))) ** 2


# --- float32 --------------------------------------------------------------------------------------------------------

Weights = Mapping[str, Floats]
Through = Callable[[str, Floats], Floats]

IMAGES_AT_ONCE = 16  # of a convolution in numpy


def layer_names(spec: PolicySpec) -> tuple[str, ...]:
    """Return the names of the layers in order: ``conv_0``, …, ``dense_0``, …, ``head``.

    Raises:
        SpecError: the policy is an opaque program, which has no layers.
    """
    if spec.network.opaque:
        raise SpecError(f"policy {spec.name!r} is an opaque program, whose layers are unknown.")
    return (*spec.network.hidden_names, "head")


def check_weights(spec: PolicySpec, weights: Weights) -> None:
    """Refuse weights that are not those of the spec's network.

    Raises:
        SpecError: names the missing, unexpected, misshapen or non-finite weight.
    """
    wanted = weight_shapes(spec)
    missing, unexpected = wanted.keys() - weights.keys(), weights.keys() - wanted.keys()
    if missing or unexpected:
        raise SpecError(
            f"weights: missing {sorted(missing)}, unexpected {sorted(unexpected)}.", code="wrong_weight_names"
        )
    kind = np.dtype(np.uint8 if spec.network.opaque else np.float32)
    for name, shape in wanted.items():
        if weights[name].shape != shape or weights[name].dtype != kind:
            raise SpecError(
                f"weight {name!r} must be {kind}{list(shape)}, got {weights[name].dtype}{list(weights[name].shape)}."
            )
        if not np.isfinite(weights[name]).all():
            raise SpecError(
                f"weight {name!r} holds NaN or infinity.", "Check whether training diverged.", code="not_finite"
            )


def as_batch(spec: PolicySpec, observations: np.ndarray) -> Floats:
    """Observations as float32 (batch, observation_size); a single vector becomes a batch of one.

    Images may also come as (batch, height, width, channels).
    """
    batch = np.asarray(observations, dtype=np.float32)
    if spec.is_image and batch.ndim == 4 and batch.shape[1:] == spec.observation[0].shape:
        batch = batch.reshape(len(batch), -1)
    if batch.ndim == 1:
        batch = batch[None]
    if batch.ndim != 2 or batch.shape[1] != spec.observation_size:
        raise SpecError(
            f"observations of policy {spec.name!r} must have the shape (n, {spec.observation_size}), got {batch.shape}."
        )
    return batch


def grey_levels(images: Floats) -> NDArray[np.uint8] | None:
    """Return the same numbers as uint8, or None where one of them is no whole number from 0 to 255."""
    with np.errstate(invalid="ignore"):  # NaN becomes something that differs from it
        levels = np.clip(images, 0, 255).astype(np.uint8)
    return levels if np.array_equal(levels, images) else None


def normalise(normaliser: Normaliser, observations: Floats) -> Floats:
    """z = clip((x − mean) · (1 / scale), low, high), float32 (batch, observation_size).

    The reciprocal is taken once, in float32, because that is the operation every exported graph performs.
    """
    mean, inverse_scale = normaliser_constants(normaliser)
    z: Floats = np.clip((observations - mean) * inverse_scale, *normaliser_bounds(normaliser))
    return z


def normalise_observations(spec: PolicySpec, observations: np.ndarray) -> Floats:
    """Raw observations to what the first layer is fed before it is quantized, float32 (batch, input_size)."""
    return normalise(spec.normaliser, as_batch(spec, observations)[:, : spec.input_size])


def states_of(spec: PolicySpec, rows: np.ndarray, first: int) -> dict[str, np.ndarray]:
    """Return the recurrent layers' states in the columns from ``first`` on, (batch, state_size) each, by the name of
    their linear layer."""
    states: dict[str, np.ndarray] = {}
    for name, recurrence in spec.network.states.items():
        states[name] = rows[:, first : first + recurrence.state_size]
        first += recurrence.state_size
    return states


def normaliser_constants(normaliser: Normaliser) -> tuple[Floats, Floats]:
    """(mean, 1 / scale) in float32, as they stand in every exported graph."""
    mean = np.asarray(normaliser.mean, np.float32)
    return mean, (np.float32(1.0) / np.asarray(normaliser.scale, np.float32)).astype(np.float32)


def normaliser_bounds(normaliser: Normaliser) -> tuple[Floats, Floats]:
    """(low, high) of z in float32: (1,) or one for each element."""
    if normaliser.low:
        return np.asarray(normaliser.low, np.float32), np.asarray(normaliser.high, np.float32)
    return np.full(1, -normaliser.clip, np.float32), np.full(1, normaliser.clip, np.float32)


def split(spec: PolicySpec, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(batch, input_size) to what the first layer takes and to what passes the convolutions by.

    The first is (batch, height, width, channels) for convolutions, else (batch, input_size); the second is
    (batch, vector_size), so that it is empty without vector fields behind an image.
    """
    first = spec.input_size - spec.vector_size
    return rows[:, :first].reshape(len(rows), *observation_shape(spec)), rows[:, first:]


def join(spec: PolicySpec, layer: str, values: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return a layer's output with the vector fields behind it, where it is theirs to join: behind the last
    convolution.

    Args:
        spec: the policy.
        layer: name of the layer that has this output.
        values: (batch, …); flattened in C order where the vector joins it, else returned as it is.
        vector: (batch, vector_size), of the same type.
    """
    if not spec.vector_size or layer != f"conv_{len(spec.network.convolutions) - 1}":
        return values
    return np.concatenate([values.reshape(len(values), -1), vector], axis=1)


def compute_activations(
    spec: PolicySpec,
    weights: Weights,
    observations: np.ndarray,
    through: Through = lambda tensor, values: values,
    exact: int | None = None,
    sums: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType({}),
) -> list[Floats]:
    """[normalised observation, output of the first layer, …, raw output of the head with the next states behind it].

    Each is (batch, width), and (batch, height, width, channels) before and after convolutions. Where vector fields
    follow an image, the normalised observation is the image only, and the last convolution's output is (batch, width):
    flattened, with the normalised vector behind it.

    Args:
        spec, weights: the policy.
        observations: raw, (batch, observation_size).
        through: what becomes of each activation tensor before it is used, given its name (``input``, every layer's, and
            :func:`linear_part` of those that :func:`has_linear_part` names): fake quantization.
        exact: COARSE or FINE of :mod:`policy.exact`, with the same bits on every processor; None for float32 sums.
        sums: x W + b of these dense layers, instead.
    """
    first, vector = split(spec, normalise_observations(spec, observations))
    activations = [through(INPUT, first)]
    states, following = states_of(spec, as_batch(spec, observations), spec.input_size), []
    for index, name in enumerate(layer_names(spec)):
        x, kernel, bias = activations[-1], weights[f"{name}/kernel"], weights[f"{name}/bias"]
        if name in states:
            x = through(name, states[name][:, : len(kernel)])
        # y = x W + b;   hidden layers: y = f(y), or y = f(γ (y − mean) / √(var + ε) + β)
        if name in sums:
            y = sums[name](x.reshape(len(x), -1))
        elif kernel.ndim == 4:
            y = _linear(x, kernel, bias, partial(convolve, stride=spec.network.convolutions[index].stride), exact)
        else:
            y = _linear(x.reshape(len(x), -1), kernel, bias, np.matmul, exact)
        if has_linear_part(spec.network, name):
            y = through(linear_part(name), y)
        if is_normalised(spec.network, name):
            gamma, beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]
            y = layer_norm(y, gamma, beta) if exact is None else exactly.layer_norm(y, gamma, beta)
        y = activate(spec.network, name, y, exact is not None)
        if name in states:
            # h' of a = x W + b, c = h U + d and the state: policy/spec.py
            program = spec.network.states[name].program()
            following.append(run_program(program, activations[-1], y, states[name].astype(np.float32)))
            y = following[-1][:, : len(kernel)]
        activations.append(through(name, join(spec, name, y, vector)))
    activations[-1] = np.concatenate([activations[-1], *following], axis=1)
    return activations


def _linear(x: Floats, kernel: Floats, bias: Floats, multiply: exactly.Multiply, exact: int | None) -> Floats:
    """y = x W + b, float32, the products by ``multiply``."""
    if exact is not None:
        return exactly.linear(x, kernel, bias, multiply, exact)
    y: Floats = multiply(x, kernel) + bias
    return y


def linear_part(layer: str) -> str:
    """Name of what the layer's normalisation or activation is fed."""
    return f"{layer}/linear"


def is_normalised(network: NetworkSpec, layer: str) -> bool:
    """Return whether a layer normalisation follows this layer."""
    return network.layer_norm and layer.startswith("dense_")


def has_linear_part(network: NetworkSpec, layer: str) -> bool:
    """Return whether a layer has levels of its own before its activation in integers: a ReLU cuts those that it has."""
    if layer == "head":
        return False
    fused = network.activation_of(layer) in (Activation.RELU, Activation.NONE) and layer not in network.states
    return is_normalised(network, layer) or not fused


def before_layer_norm(spec: PolicySpec, weights: Weights, activations: list[Floats]) -> dict[str, Floats]:
    """x W + b (batch, out) of every layer that is normalised, by its name, given :func:`compute_activations`."""
    if not spec.network.layer_norm:
        return {}
    names = layer_names(spec)
    return {
        name: activations[index].reshape(len(activations[index]), -1) @ weights[f"{name}/kernel"]
        + weights[f"{name}/bias"]
        for index, name in enumerate(names[:-1])
        if name.startswith("dense_")
    }


def convolve(images: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """Convolution without padding: (batch, H, W, in) with (h, w, in, out) to (batch, H', W', out), of their type.

    y[b, i, j, o] = Σ x[b, i·stride + u, j·stride + v, c] · kernel[u, v, c, o]
    """
    height, width, _, outputs = kernel.shape
    # The windows of a whole calibration set would fill the memory.
    parts = [images[start : start + IMAGES_AT_ONCE] for start in range(0, len(images), IMAGES_AT_ONCE)] or [images]
    matrix = kernel.reshape(-1, outputs)
    result: np.ndarray = np.concatenate([windows(part, height, width, stride) @ matrix for part in parts])
    return result


def windows(images: np.ndarray, height: int, width: int, stride: int) -> np.ndarray:
    """Return what each output of a convolution sees: (batch, H, W, in) to (batch, H', W', height · width · in)."""
    seen: np.ndarray = np.lib.stride_tricks.sliding_window_view(images, (height, width), axis=(1, 2))  # type: ignore[call-overload]
    seen = seen[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)  # (batch, H', W', height, width, in)
    return seen.reshape(*seen.shape[:3], -1)


def layer_norm(values: Floats, gamma: Floats, beta: Floats) -> Floats:
    """γ (x − mean x) / √(var x + ε) + β over the last axis, float32 (Ba et al. 2016, equation 4)."""
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON)) * gamma + beta


def forward_float(spec: PolicySpec, weights: Weights, observations: np.ndarray, exact: bool = False) -> Floats:
    """Raw observations (batch, observation_size) to results (batch, result_size), float32.

    Outputs are logits or action values of a discrete head, and actions in physical units of a continuous one, and
    behind them stand the next states; with ``exact`` they are the same bits on every processor, but for an opaque
    program.
    """
    if spec.network.opaque:
        return execute(spec, weights[PROGRAM], as_batch(spec, observations))
    activations = compute_activations(spec, weights, observations, exact=exactly.FINE if exact else None)
    return apply_head(spec, activations[-1], exact)


def apply_head(spec: PolicySpec, raw: Floats, exact: bool = False) -> Floats:
    """Squash and scale a continuous head's raw outputs (batch, result_size); logits and next states pass unchanged.

    Args:
        spec: the policy.
        raw: of the last layer, the next states behind it.
        exact: with the same bits on every processor.
    """
    if not isinstance(spec.head, ContinuousHead):
        return raw
    raw, following = raw[:, : spec.output_size], raw[:, spec.output_size :]
    squashed = np.clip(raw, *head_limits(spec.head))
    if spec.head.squash is Squash.TANH:
        squashed = exactly.tanh(squashed) if exact else np.tanh(squashed)
    gain, offset = head_constants(spec.head)
    outputs = squashed * gain + offset
    return np.concatenate([outputs, following], axis=1) if spec.state_size else outputs


def head_limits(head: ContinuousHead) -> tuple[float, float]:
    """(low, high) that the raw outputs are clipped to, maybe infinite, before a tanh."""
    limit = min(head.limit, 1.0) if head.squash is Squash.CLIP else head.limit
    return -limit, limit


def head_constants(head: ContinuousHead) -> tuple[Floats, Floats]:
    """(gain, offset) of a = squash(y) · gain + offset: gain = (high − low) / 2, offset = (high + low) / 2."""
    low, high = np.asarray(head.low, np.float64), np.asarray(head.high, np.float64)
    return ((high - low) / 2).astype(np.float32), ((high + low) / 2).astype(np.float32)


def choose_actions(spec: PolicySpec, outputs: np.ndarray) -> np.ndarray:
    """Return what a policy chooses, given results (batch, result_size).

    Returns:
        The index of the first largest output, int64 (batch,); of several components each one's, int64 (batch,
        components); of a continuous head its outputs, float32 (batch, output_size).
    """
    outputs = outputs[:, : spec.output_size] if spec.state_size else outputs
    if isinstance(spec.head, MultiDiscreteHead):
        return np.stack([outputs[:, part].argmax(axis=1) for part in spec.head.parts], axis=1)
    return outputs.argmax(axis=1) if spec.is_discrete else outputs


def share_of_same_actions(actions: np.ndarray, others: np.ndarray) -> float:
    """Return the share of rows in which two of :func:`choose_actions`'s results are equal in all components."""
    return float(np.mean((actions == others).reshape(len(actions), -1).all(axis=1)))


def winning_outputs(spec: PolicySpec, outputs: np.ndarray) -> np.ndarray:
    """Return the largest of those outputs (batch, output_size) of a discrete policy that are compared with each other,
    (batch, components)."""
    assert not isinstance(spec.head, ContinuousHead)
    return np.stack([outputs[:, part].max(axis=1) for part in spec.head.parts], axis=1)


# --- integers -------------------------------------------------------------------------------------------------------
# The int8 policy in exact integers: built once from float weights, executed in numpy, exported by convert/.
#
# The normaliser runs in float; one affine map quantizes the normalised observation; every layer multiplies int8 by int8
# into int32; the last integers are dequantized. n-bit weights (n < 8) use the same int8 container with fewer levels.
#
# A convolution is the same arithmetic on windows of its image. A ReLU clips levels; any other activation is a table
# from levels to levels. Layer normalisation stays in float, because a mean and a root have no int8 kernels: the levels
# are dequantized, normalised, activated and quantized again. So do the gates of a recurrent layer: its two linear
# layers are integers, a float program takes their levels. The hidden state has its own map where it is multiplied, but
# what is remembered is float, so that a slow change is not lost between two levels.
#
# Vector fields behind an image use the map of the last convolution's output, whose range covers both: they join it
# without being rounded again, and zero need not be the lowest level after that convolution's ReLU.


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
                f"layer {layer.name!r}, channel {channel}: an accumulator step must be less than {MULTIPLIER_LIMIT:g} "
                f"output steps for LiteRT, got {multipliers.max():.3g}. Its input or output hardly varies on the "
                "calibration set.",
                "Record a calibration set on which the outputs vary, or type --bits 16 (make: BITS=16).",
                code="multiplier_too_large",
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
    x = dequantize_affine(levels, layer.output)
    y = exactly.layer_norm(x, layer.norm.gamma, layer.norm.beta)
    return quantize_affine(activate(layer.norm.network, layer.name, y, True), layer.norm.output)


def input_levels(
    spec: PolicySpec,
    network: IntegerNetwork,
    observations: np.ndarray,
    quantize: Quantize = quantize_affine,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Raw observations (batch, observation_size) to what the first layer is fed, and to what joins it later on.

    The first is (batch, size) or (batch, H, W, C); the second (batch, vector_size) is the vector behind an image.
    """
    first, vector = split(spec, normalise_observations(spec, observations))
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
    quantize: Quantize = quantize_affine,
    requantize: Requantize = float_multiplier,
) -> Floats:
    """Raw observations (batch, observation_size) to results (batch, result_size), float32; as :func:`head_inputs`."""
    return apply_head(spec, head_inputs(spec, network, observations, quantize, requantize))


def head_inputs(
    spec: PolicySpec,
    network: IntegerNetwork,
    observations: np.ndarray,
    quantize: Quantize = quantize_affine,
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
    states, following = states_of(spec, as_batch(spec, observations), spec.input_size), []
    trace = trace or Trace()
    for layer, input_map in network.fed:
        state, units = states.get(layer.name), len(layer.kernel)
        fed = trace.levels[layer.name] = levels if state is None else quantize(state[:, :units], input_map)
        sums = forward_layer(layer, input_map, fed, requantize)
        if layer.cell is None or state is None:
            levels = join(spec, layer.name, sums, vector)
            continue
        both = (levels, layer.cell.fed), (sums, layer.output)
        operands = trace.gates[layer.name] = [*(dequantize_affine(*pair) for pair in both), state]
        following.append(run_program(layer.cell.steps, *operands))
        levels = quantize(following[-1][:, :units], layer.result)
    raw = dequantize_affine(levels, network.layers[-1].result)
    return np.concatenate([raw, *following], axis=1) if following else raw
