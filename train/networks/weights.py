"""A network's weights: a dict of float32 arrays under the names of the bundle, and how they begin.

``dense_0/kernel`` of shape (in, out), ``dense_0/bias`` (out,), …, ``head/kernel``, ``head/bias``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import STATE, NetworkSpec, network_shapes

Weights = dict[str, NDArray[np.float32]]


def orthogonal(generator: np.random.Generator, shape: tuple[int, int], gain: float) -> NDArray[np.float32]:
    """Return a random (in, out) matrix with orthogonal rows or columns times ``gain`` (Saxe et al. 2014)."""
    rows, columns = shape
    gaussian = generator.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(gaussian)
    q *= np.sign(np.diag(r))  # makes the draw uniform over the orthogonal matrices
    return np.ascontiguousarray(gain * (q if rows >= columns else q.T), dtype=np.float32)


def initial_weights(
    generator: np.random.Generator,
    network: NetworkSpec,
    observation: tuple[int, ...],
    outputs: int,
    head_gain: float,
    vector: int = 0,
) -> Weights:
    """Fresh weights: orthogonal with gain √2 before a ReLU, 1 before gates, ``head_gain`` in the head; biases 0, γ 1.

    A small head gain (0.01) starts a policy near the uniform distribution, so that the first updates are not spent
    on unlearning the draw (Andrychowicz et al. 2021, "What matters in on-policy RL?"). One ``observation`` is (size,),
    or (height, width, channels) where the network has convolutions; ``outputs`` are those of the head, and ``vector``
    are the floats that follow an image.
    """
    weights: Weights = {}
    for name, shape in network_shapes(network, observation, outputs, vector).items():
        layer, part = name.split("/")
        if part == "kernel":
            gain = head_gain if layer == "head" else 1.0 if is_gates(layer) else float(np.sqrt(2.0))
            weights[name] = orthogonal(generator, (math.prod(shape[:-1]), shape[-1]), gain).reshape(shape)
        else:
            weights[name] = (np.ones if part == "gamma" else np.zeros)(shape, np.float32)
    return weights


def is_gates(layer: str) -> bool:
    """Return whether a layer's outputs are the gates of a recurrent layer, which no ReLU halves."""
    return layer.startswith(("recurrent_", STATE))


def count_hidden_layers(weights: Mapping[str, Any]) -> int:
    """Return the number of hidden fully connected layers of these weights."""
    return sum(name.startswith("dense_") and name.endswith("/kernel") for name in weights)


def zeros_like(weights: Weights) -> Weights:
    """Zeros of the same names and shapes: Adam's moments before the first step."""
    return {name: np.zeros_like(value) for name, value in weights.items()}
