"""The distributions that on-policy algorithms draw actions from: categorical, several of them, a diagonal Gaussian.

Drawing is numpy (the environments are), probabilities and entropies of a batch are tensors (the update is). A batch of
actions is kept as it was drawn: ``to_environment`` makes of it what the task takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import ContinuousHead, MultiDiscreteHead
from quarl.train.lazily import tf
from quarl.train.networks.weights import Weights
from quarl.train.suites.episodes import Actions
from quarl.train.suites.task import Task

Floats = NDArray[np.float32]
LOG_STD = "log_std"
"""Name of the Gaussian's logarithmic standard deviations, or layer of what gives them, among the policy's weights.

A bundle does not have them.
"""
HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


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


class Categorical:
    """π(a|s) = softmax(y)ₐ; ``outputs`` y (batch, outputs) are the network's, ``weights`` the policy's.

    Attributes:
        action_type, action_shape: of the numbers of one action as drawn, and of the action.
    """

    action_type: type = np.int32
    action_shape: tuple[int, ...] = ()

    def extra_weights(self) -> Weights:
        """Learned weights that belong to the distribution and not to the network."""
        return {}

    def sample(self, generator: np.random.Generator, outputs: Floats, weights: Mapping[str, Any]) -> tuple[Any, Floats]:
        """Return one action a row as drawn, and the logarithm of its probability (density), (batch,)."""
        return sample_actions(generator, outputs)

    def to_environment(self, actions: NDArray[Any]) -> Actions:
        """Drawn actions as the task takes them."""
        return actions.astype(np.int64)

    def greedy(self, outputs: Floats) -> Actions:
        """Return the most probable action a row, as the task takes it: the first largest output's number."""
        return outputs.argmax(axis=1)

    def log_probability(self, outputs: tf.Tensor, actions: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        """Log-probability of drawn actions, (batch,): log softmax(y) at the actions."""
        return tf.gather(tf.nn.log_softmax(outputs), actions, batch_dims=1)

    def entropy(self, outputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        """Entropy in nats, (batch,): −Σ π log π."""
        log_probabilities = tf.nn.log_softmax(outputs)
        return -tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=1)


class MultiCategorical(Categorical):
    """π(a|s) = Πᵢ softmax(yᵢ)_aᵢ: components drawn independently, each from its own outputs yᵢ.

    log π(a|s) = Σᵢ log π(aᵢ|s), and H = Σᵢ Hᵢ.
    """

    def __init__(self, parts: Sequence[slice]) -> None:
        """Args: the places of each component's outputs."""
        self._parts, self.action_shape = tuple(parts), (len(parts),)

    def sample(self, generator: np.random.Generator, outputs: Floats, weights: Mapping[str, Any]) -> tuple[Any, Floats]:
        """Actions (batch, components) as drawn, and the logarithm of their probability, (batch,)."""
        drawn = [sample_actions(generator, outputs[:, part]) for part in self._parts]
        return np.stack([actions for actions, _ in drawn], axis=1), np.sum([log_prob for _, log_prob in drawn], axis=0)

    def greedy(self, outputs: Floats) -> Actions:
        """Return the first largest output of each component, (batch, components)."""
        return np.stack([outputs[:, part].argmax(axis=1) for part in self._parts], axis=1)

    def log_probability(self, outputs: tf.Tensor, actions: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        """Log-probability of drawn actions (batch, components), (batch,)."""
        one = super().log_probability
        return tf.add_n([one(outputs[:, part], actions[:, index], weights) for index, part in enumerate(self._parts)])

    def entropy(self, outputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        """Entropy in nats, (batch,)."""
        one = super().entropy
        return tf.add_n([one(outputs[:, part], weights) for part in self._parts])


class Gaussian:
    """π(a|s) = N(a; y, σ²) with one σ an element, the same in every state; a is in units where −1 … 1 is low … high.

    What is drawn outside −1 … 1 is clipped on its way to the environment only; its probability is that of the draw, as
    usual with this distribution (e.g. Andrychowicz et al. 2021). So the exported policy clips its outputs.
    """

    action_type: type = np.float32

    def __init__(self, head: ContinuousHead, log_std: float) -> None:
        """Args: the bounds in physical units; log σ at the start."""
        self._low, self._high = np.array(head.low, np.float32), np.array(head.high, np.float32)
        self._log_std = log_std
        self.action_shape: tuple[int, ...] = (head.size,)

    def extra_weights(self) -> Weights:
        """log σ, (elements,)."""
        return {LOG_STD: np.full(self.action_shape, self._log_std, np.float32)}

    def sample(self, generator: np.random.Generator, outputs: Floats, weights: Mapping[str, Any]) -> tuple[Any, Floats]:
        """Return a = y + σ ε;  log π = −Σ (½ ε² + log σ + ½ log 2π)."""
        log_std = weights[LOG_STD]
        noise = generator.standard_normal(outputs.shape, np.float32)
        log_probabilities = -(0.5 * noise**2 + log_std + np.float32(HALF_LOG_2_PI)).sum(axis=1)
        return outputs + np.exp(log_std) * noise, log_probabilities

    def to_environment(self, actions: NDArray[Any]) -> Actions:
        """low + (clip(a, −1, 1) + 1) / 2 · (high − low)."""
        share = (np.clip(actions, -1.0, 1.0) + np.float32(1.0)) * np.float32(0.5)
        return self._low + share * (self._high - self._low)

    def greedy(self, outputs: Floats) -> Actions:
        """Return the greedy action: the mean."""
        return self.to_environment(outputs)

    def log_probability(self, outputs: tf.Tensor, actions: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        """−Σ (½ ((a − y) / σ)² + log σ + ½ log 2π)."""
        log_std = weights[LOG_STD]
        distance = (actions - outputs) * tf.exp(-log_std)
        return -tf.reduce_sum(0.5 * distance * distance + log_std + HALF_LOG_2_PI, axis=1)

    def entropy(self, outputs: tf.Tensor, weights: Mapping[str, Any]) -> tf.Tensor:
        """Σ (log σ + ½ log 2πe), the same in every state."""
        return tf.reduce_sum(weights[LOG_STD] + (HALF_LOG_2_PI + 0.5)) * tf.ones_like(outputs[:, 0])


Distribution = Categorical | Gaussian


def distribution_of(task: Task, log_std: float) -> Distribution:
    """Categorical for a task of named actions, one for each of several choices, or a Gaussian with that first log σ."""
    if isinstance(task.head, MultiDiscreteHead):
        return MultiCategorical(task.head.parts)
    return Gaussian(task.head, log_std) if isinstance(task.head, ContinuousHead) else Categorical()


def export_weights(weights: Mapping[str, Any]) -> Weights:
    """Return the network's weights alone, as arrays: what a bundle holds."""
    return {name: np.asarray(value) for name, value in weights.items() if name.partition("/")[0] != LOG_STD}
