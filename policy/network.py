"""The numpy reference forward pass in float32: what every artifact is compared with.

Fast, or ``exact``: with the same bits on every processor (:mod:`policy.exact`), for all that is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quarl.policy import exact as exactly
from quarl.policy.activations import activate
from quarl.policy.contract.quantization import INPUT
from quarl.policy.errors import SpecError
from quarl.policy.exact import LAYER_NORM_EPSILON
from quarl.policy.observing.features import run_program
from quarl.policy.spec import (
    Activation,
    ContinuousHead,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    Squash,
    observation_shape,
    weight_shapes,
)

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]
Through = Callable[[str, Floats], Floats]

IMAGES_AT_ONCE = 16  # of a convolution in numpy


def layer_names(spec: PolicySpec) -> tuple[str, ...]:
    """Names of the layers in order: ``conv_0``, …, ``dense_0``, …, ``head``."""
    return (*spec.network.hidden_names, "head")


def check_weights(spec: PolicySpec, weights: Weights) -> None:
    """Refuse weights that are not those of the spec's network.

    Raises:
        SpecError: names the missing, unexpected, misshapen or non-finite weight.
    """
    wanted = weight_shapes(spec)
    missing, unexpected = wanted.keys() - weights.keys(), weights.keys() - wanted.keys()
    if missing or unexpected:
        raise SpecError(f"weights lack {sorted(missing)} and have the unexpected {sorted(unexpected)}.")
    for name, shape in wanted.items():
        if weights[name].shape != shape or weights[name].dtype != np.float32:
            raise SpecError(
                f"weight {name!r} is {weights[name].dtype}{list(weights[name].shape)}, "
                f"the spec wants float32{list(shape)}."
            )
        if not np.isfinite(weights[name]).all():
            raise SpecError(f"weight {name!r} holds NaN or infinity.", "Look for divergence in training.")


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
            f"observations have the shape {batch.shape}; policy {spec.name!r} takes (n, {spec.observation_size})."
        )
    return batch


def grey_levels(images: Floats) -> NDArray[np.uint8] | None:
    """The same numbers as uint8, or None where one of them is no whole number from 0 to 255."""
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


def normalised(spec: PolicySpec, observations: np.ndarray) -> Floats:
    """Raw observations to what the first layer is fed before it is quantized, float32 (batch, feature_size)."""
    sensed = as_batch(spec, observations)[:, : spec.sensed_size]
    return normalise(spec.normaliser, run_program(spec.features, sensed))


def states_of(spec: PolicySpec, rows: np.ndarray, first: int) -> dict[str, np.ndarray]:
    """The recurrent layers' states in the columns from ``first`` on, (batch, state_size) each, by the name of their
    linear layer."""
    found: dict[str, np.ndarray] = {}
    for name, recurrence in spec.network.states.items():
        found[name] = rows[:, first : first + recurrence.state_size]
        first += recurrence.state_size
    return found


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
    """(batch, feature_size) to what the first layer takes and to what passes the convolutions by.

    The first is (batch, height, width, channels) for convolutions, else (batch, feature_size); the second is
    (batch, vector_size), so that it is empty without vector fields behind an image.
    """
    first = spec.feature_size - spec.vector_size
    return rows[:, :first].reshape(len(rows), *observation_shape(spec)), rows[:, first:]


def join(spec: PolicySpec, layer: str, values: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A layer's output with the vector fields behind it, where it is theirs to join: behind the last convolution.

    Args:
        spec: the policy.
        layer: name of the layer that has this output.
        values: (batch, …); flattened in C order where the vector joins it, else returned as it is.
        vector: (batch, vector_size), of the same type.
    """
    if not spec.vector_size or layer != f"conv_{len(spec.network.convolutions) - 1}":
        return values
    return np.concatenate([values.reshape(len(values), -1), vector], axis=1)


def hidden_activations(
    spec: PolicySpec,
    weights: Weights,
    observations: np.ndarray,
    through: Through = lambda tensor, values: values,
    exact: int | None = None,
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
    """
    first, vector = split(spec, normalised(spec, observations))
    activations = [through(INPUT, first)]
    states, following = states_of(spec, as_batch(spec, observations), spec.sensed_size), []
    for index, name in enumerate(layer_names(spec)):
        x, kernel, bias = activations[-1], weights[f"{name}/kernel"], weights[f"{name}/bias"]
        if name in states:
            x = through(name, states[name][:, : len(kernel)])
        # y = x W + b;   hidden layers: y = f(y), or y = f(γ (y − mean) / √(var + ε) + β)
        if kernel.ndim == 4:
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
            # h' of a = x W + b, c = h U + d and the state: policy/contract/cells.py
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
    """Whether a layer normalisation follows this layer."""
    return network.layer_norm and layer.startswith("dense_")


def has_linear_part(network: NetworkSpec, layer: str) -> bool:
    """Whether a layer has levels of its own before its activation in integers: a ReLU cuts those that it has."""
    if layer == "head":
        return False
    fused = network.activation_of(layer) in (Activation.RELU, Activation.NONE) and layer not in network.states
    return is_normalised(network, layer) or not fused


def before_layer_norm(spec: PolicySpec, weights: Weights, activations: list[Floats]) -> dict[str, Floats]:
    """x W + b (batch, out) of every layer that is normalised, by its name, given :func:`hidden_activations`."""
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
    """What each output of a convolution sees: (batch, H, W, in) to (batch, H', W', height · width · in)."""
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
    behind them stand the next states; with ``exact`` they are the same bits on every processor.
    """
    activations = hidden_activations(spec, weights, observations, exact=exactly.FINE if exact else None)
    return apply_head(spec, activations[-1], observations, exact)


def apply_head(spec: PolicySpec, raw: Floats, observations: np.ndarray, exact: bool = False) -> Floats:
    """Squash and scale a continuous head's raw outputs (batch, result_size); logits and next states pass unchanged.

    Args:
        spec: the policy.
        raw: of the last layer, the next states behind it.
        observations: raw, (batch, observation_size), for the spec's ``targets``.
        exact: with the same bits on every processor.
    """
    if not isinstance(spec.head, ContinuousHead):
        return raw
    raw, following = raw[:, : spec.output_size], raw[:, spec.output_size :]
    outputs = head_outputs(spec, raw, exact)
    if spec.targets:
        outputs = run_program(spec.targets, with_observations(spec, outputs, observations))
    return np.concatenate([outputs, following], axis=1) if spec.state_size else outputs


def head_outputs(spec: PolicySpec, raw: Floats, exact: bool = False) -> Floats:
    """Squash and scale raw outputs as :func:`apply_head` does, without the spec's ``targets``; (batch, n)."""
    if not isinstance(spec.head, ContinuousHead):
        return raw
    squashed = np.clip(raw, *head_limits(spec.head))
    if spec.head.squash is Squash.TANH:
        squashed = exactly.tanh(squashed) if exact else np.tanh(squashed)
    gain, offset = head_constants(spec.head)
    return squashed * gain + offset


def with_observations(spec: PolicySpec, outputs: np.ndarray, observations: np.ndarray) -> np.ndarray:
    """What a spec's ``targets`` are given: outputs (batch, n), and behind them the raw observations."""
    sensed = as_batch(spec, observations)[:, : spec.sensed_size]
    return np.concatenate([outputs, sensed.astype(outputs.dtype)], axis=1)


def head_limits(head: ContinuousHead) -> tuple[float, float]:
    """(low, high) that the raw outputs are clipped to, maybe infinite, before a tanh."""
    limit = min(head.limit, 1.0) if head.squash is Squash.CLIP else head.limit
    return -limit, limit


def head_constants(head: ContinuousHead) -> tuple[Floats, Floats]:
    """(gain, offset) of a = squash(y) · gain + offset: gain = (high − low) / 2, offset = (high + low) / 2."""
    low, high = np.asarray(head.low, np.float64), np.asarray(head.high, np.float64)
    return ((high - low) / 2).astype(np.float32), ((high + low) / 2).astype(np.float32)


def choose_actions(spec: PolicySpec, outputs: np.ndarray) -> np.ndarray:
    """Results (batch, result_size) to actions: of a discrete head the first largest, int64 (batch,); else outputs."""
    outputs = outputs[:, : spec.output_size] if spec.state_size else outputs
    return outputs.argmax(axis=1) if spec.is_discrete else outputs
