"""The numpy reference forward pass in float32: what every artifact is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from policy.errors import SpecError
from policy.spec import ContinuousHead, Normaliser, PolicySpec, Squash

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]


def layer_names(spec: PolicySpec) -> tuple[str, ...]:
    """Names of the dense layers in order: ``dense_0``, …, ``head``."""
    return (*(f"dense_{index}" for index in range(len(spec.network.hidden))), "head")


def weight_shapes(spec: PolicySpec) -> dict[str, tuple[int, ...]]:
    """Shape of every weight: ``<layer>/kernel`` is (in, out), ``<layer>/bias`` is (out,)."""
    widths = (spec.observation_size, *spec.network.hidden, spec.output_size)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, fan_in, fan_out in zip(layer_names(spec), widths[:-1], widths[1:], strict=True):
        shapes[f"{name}/kernel"] = (fan_in, fan_out)
        shapes[f"{name}/bias"] = (fan_out,)
    return shapes


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
    """Observations as float32 (batch, observation_size); a single vector becomes a batch of one."""
    batch = np.asarray(observations, dtype=np.float32)
    if batch.ndim == 1:
        batch = batch[None]
    if batch.ndim != 2 or batch.shape[1] != spec.observation_size:
        raise SpecError(
            f"observations have the shape {batch.shape}; policy {spec.name!r} takes (n, {spec.observation_size})."
        )
    return batch


def normalise(normaliser: Normaliser, observations: Floats) -> Floats:
    """z = clip((x − mean) · (1 / scale), −clip, clip), float32 (batch, observation_size).

    The reciprocal is taken once, in float32, because that is the operation every exported graph performs.
    """
    mean, inverse_scale = normaliser_constants(normaliser)
    z = (observations - mean) * inverse_scale
    return np.clip(z, np.float32(-normaliser.clip), np.float32(normaliser.clip))


def normaliser_constants(normaliser: Normaliser) -> tuple[Floats, Floats]:
    """(mean, 1 / scale) in float32, as they stand in every exported graph."""
    mean = np.asarray(normaliser.mean, np.float32)
    return mean, (np.float32(1.0) / np.asarray(normaliser.scale, np.float32)).astype(np.float32)


def hidden_activations(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> list[Floats]:
    """[normalised observation, output of dense_0, …, raw output of the head], each (batch, width)."""
    activations = [normalise(spec.normaliser, as_batch(spec, observations))]
    for name in layer_names(spec):
        # y = x W + b;   hidden layers: y = max(y, 0)
        y = activations[-1] @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]
        activations.append(y if name == "head" else np.maximum(y, np.float32(0.0)))
    return activations


def forward_float(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> Floats:
    """Raw observations (batch, observation_size) to outputs (batch, output_size), float32.

    Outputs are logits or action values of a discrete head, and actions in physical units of a continuous one.
    """
    return apply_head(spec, hidden_activations(spec, weights, observations)[-1])


def apply_head(spec: PolicySpec, raw: Floats) -> Floats:
    """Squash and scale a continuous head's raw outputs (batch, n); logits of a discrete head pass unchanged."""
    if not isinstance(spec.head, ContinuousHead):
        return raw
    squashed = np.tanh(raw) if spec.head.squash is Squash.TANH else np.clip(raw, np.float32(-1.0), np.float32(1.0))
    gain, offset = head_constants(spec.head)
    return squashed * gain + offset


def head_constants(head: ContinuousHead) -> tuple[Floats, Floats]:
    """(gain, offset) of a = squash(y) · gain + offset: gain = (high − low) / 2, offset = (high + low) / 2."""
    low, high = np.asarray(head.low, np.float64), np.asarray(head.high, np.float64)
    return ((high - low) / 2).astype(np.float32), ((high + low) / 2).astype(np.float32)


def choose_actions(spec: PolicySpec, outputs: np.ndarray) -> np.ndarray:
    """Outputs (batch, n) to actions: the first largest of a discrete head, int64 (batch,); else the outputs."""
    return outputs.argmax(axis=1) if spec.is_discrete else outputs
