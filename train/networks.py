"""Multilayer perceptrons and Adam as functions of plain arrays.

Weights are a dict of float32 arrays under the names of the bundle (``dense_0/kernel`` of shape (in, out),
``dense_0/bias`` (out,), …, ``head/kernel``, ``head/bias``). The functions below use only operators that numpy
arrays and TensorFlow tensors share: the actor calls them with numpy, the compiled update with tensors, and there
is one definition of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

ADAM_BETA_1 = 0.9  # Kingma & Ba 2015, table in section 2
ADAM_BETA_2 = 0.999  # likewise
ADAM_EPSILON = 1e-5  # 1e-8 in the paper; 1e-5 is what PPO and DQN implementations use (cleanrl, baselines)


def orthogonal(generator: np.random.Generator, shape: tuple[int, int], gain: float) -> NDArray[np.float32]:
    """A random (in, out) matrix with orthogonal rows or columns times ``gain`` (Saxe et al. 2014)."""
    rows, columns = shape
    gaussian = generator.standard_normal((max(shape), min(shape)))
    q, r = np.linalg.qr(gaussian)
    q *= np.sign(np.diag(r))  # makes the draw uniform over the orthogonal matrices
    return np.ascontiguousarray(gain * (q if rows >= columns else q.T), dtype=np.float32)


def initial_weights(
    generator: np.random.Generator, inputs: int, hidden: Sequence[int], outputs: int, head_gain: float
) -> Weights:
    """Fresh weights: orthogonal with gain √2 before a ReLU and ``head_gain`` in the head, biases zero.

    A small head gain (0.01) starts a policy near the uniform distribution, so that the first updates are not spent
    on unlearning the draw (Andrychowicz et al. 2021, "What matters in on-policy RL?").
    """
    weights: Weights = {}
    width = inputs
    for index, nodes in enumerate(hidden):
        weights[f"dense_{index}/kernel"] = orthogonal(generator, (width, nodes), float(np.sqrt(2.0)))
        weights[f"dense_{index}/bias"] = np.zeros(nodes, np.float32)
        width = nodes
    weights["head/kernel"] = orthogonal(generator, (width, outputs), head_gain)
    weights["head/bias"] = np.zeros(outputs, np.float32)
    return weights


def hidden_layers(weights: dict[str, Any]) -> int:
    """Number of hidden layers of these weights."""
    return sum(name.startswith("dense_") and name.endswith("/kernel") for name in weights)


def relu(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """max(0, x), in place: the caller's array is a fresh matrix product anyway."""
    return np.maximum(values, 0.0, out=values)


def mlp(weights: dict[str, Any], inputs: Any, activation: Callable[[Any], Any] = relu) -> Any:
    """Outputs (batch, outputs) of the network for normalised inputs (batch, inputs).

    h₀ = x;  hₗ₊₁ = relu(hₗ Wₗ + bₗ);  y = h W_head + b_head

    Pass ``activation=tf.nn.relu`` for tensors.
    """
    values = inputs
    for index in range(hidden_layers(weights)):
        values = activation(values @ weights[f"dense_{index}/kernel"] + weights[f"dense_{index}/bias"])
    return values @ weights["head/kernel"] + weights["head/bias"]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """log p = y − max y − log Σ exp(y − max y), row by row, (batch, actions)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def sample_actions(
    generator: np.random.Generator, logits: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw one action a row from softmax(logits): actions (batch,) and their log-probabilities (batch,).

    The inverse of the cumulated distribution at one uniform draw a row; always the same number of draws.
    """
    log_probabilities = log_softmax(logits)
    cumulated = np.exp(log_probabilities).cumsum(axis=1)
    draws = generator.random((len(logits), 1), dtype=np.float32) * cumulated[:, -1:]
    actions = np.minimum((cumulated <= draws).sum(axis=1), logits.shape[1] - 1)
    return actions, log_probabilities[np.arange(len(logits)), actions]


def zeros_like(weights: Weights) -> Weights:
    """Zeros of the same names and shapes: Adam's moments before the first step."""
    return {name: np.zeros_like(value) for name, value in weights.items()}


def adam_step(
    weights: dict[str, Any],
    gradients: dict[str, Any],
    first_moment: dict[str, Any],
    second_moment: dict[str, Any],
    count: Any,
    learning_rate: Any,
    epsilon: float = ADAM_EPSILON,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """One step of Adam (Kingma & Ba 2015, algorithm 1): new weights and moments.

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
    θ ← θ − α · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)

    Args:
        weights: θ by name; likewise gradients g and both moments.
        count: t, the number of this step as float32, 1 for the first.
        learning_rate: α.
        epsilon: ε.
    """
    correction_1 = 1.0 - ADAM_BETA_1**count
    correction_2 = 1.0 - ADAM_BETA_2**count
    new_weights, new_first, new_second = {}, {}, {}
    for name, gradient in gradients.items():
        m = ADAM_BETA_1 * first_moment[name] + (1.0 - ADAM_BETA_1) * gradient
        v = ADAM_BETA_2 * second_moment[name] + (1.0 - ADAM_BETA_2) * gradient * gradient
        new_weights[name] = weights[name] - learning_rate * (m / correction_1) / ((v / correction_2) ** 0.5 + epsilon)
        new_first[name], new_second[name] = m, v
    return new_weights, new_first, new_second
