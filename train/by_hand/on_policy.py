"""The updates of PPO and A2C with gradients by hand: what their ``make_update`` compiles, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from train.by_hand.distributions import score_of
from train.by_hand.layers import Adam, Perceptron, RMSProp, clip_by_norm
from train.distributions import Distribution

Floats = NDArray[np.float32]
State = Mapping[str, Mapping[str, NDArray[Any]]]


class PPOValues(Protocol):
    """The settings of the update."""

    @property
    def clip_range(self) -> float:
        """ε."""

    @property
    def gradient_norm(self) -> float:
        """Largest norm."""

    @property
    def value_weight(self) -> float:
        """Weight of the value's loss."""


class Learning:
    """One network with its moments, taken from a learner's arrays by group and given back to them."""

    def __init__(self, state: State, group: str) -> None:
        self.group = group
        self.network = Perceptron(state[group])
        self._adam = Adam(state[f"{group}_first"], state[f"{group}_second"])

    def step(self, largest_norm: float, count: float, rate: float) -> np.float32:
        """Clip the gradient and go one step; the gradient's norm before."""
        gradient = self.network.gradient.all
        norm = clip_by_norm(gradient, largest_norm)
        self._adam.step(self.network.weights.all, gradient, count, rate)
        return norm

    def arrays(self) -> dict[str, dict[str, Floats]]:
        """The three groups."""
        vectors = (self.network.weights, self._adam.first, self._adam.second)
        names = (self.group, f"{self.group}_first", f"{self.group}_second")
        return {name: vector.views for name, vector in zip(names, vectors, strict=True)}


def surrogate(ratio: Floats, advantages: Floats, clip_range: float) -> tuple[np.float32, Floats]:
    """L = E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] and ∂L/∂ log ρ = ρ A / n where the first is the smaller, else 0."""
    plain = ratio * advantages
    clipped = np.minimum(np.maximum(ratio, np.float32(1.0 - clip_range)), np.float32(1.0 + clip_range)) * advantages
    value = np.minimum(plain, clipped).mean()
    plain *= plain <= clipped
    plain /= np.float32(len(plain))
    return np.float32(value), plain


def ppo_update(settings: PPOValues, distribution: Distribution) -> Callable[..., tuple[Any, Floats]]:
    """The update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    As ``train.ppo.make_update`` describes it.
    """

    def update(
        state: State,
        batch: Mapping[str, NDArray[Any]],
        order: NDArray[np.int32],
        count: float,
        rate: float,
        bonus: float,
    ) -> tuple[dict[str, Any], Floats]:
        policy, value = Learning(state, "policy"), Learning(state, "value")
        score = score_of(distribution, policy.network)
        metrics = np.empty((len(order), 7), np.float32)
        rate, bonus, rows = float(rate), float(bonus), order.shape[1]
        for index, chosen in enumerate(order):
            steps = float(count) + index + 1.0
            observations = batch["observation"][chosen]
            log_probabilities, entropy = score.evaluate(policy.network.forward(observations), batch["action"][chosen])
            log_ratio = log_probabilities - batch["log_probability"][chosen]
            ratio = np.exp(log_ratio)
            advantages = batch["advantage"][chosen]
            advantages = (advantages - advantages.mean()) / (advantages.std() + np.float32(1e-8))
            gain, slopes = surrogate(ratio, advantages, settings.clip_range)
            policy.network.backward(score.slopes(-slopes, bonus))
            policy_norm = policy.step(settings.gradient_norm, steps, rate)

            errors = value.network.forward(observations)[:, 0] - batch["return"][chosen]
            loss = 0.5 * float(errors @ errors) / rows
            value.network.backward((errors * np.float32(settings.value_weight / rows))[:, None])
            value_norm = value.step(settings.gradient_norm, steps, rate)

            ratio -= 1.0
            divergence = ratio.mean() - log_ratio.mean()
            clipped = np.count_nonzero(np.abs(ratio) > settings.clip_range) / rows
            metrics[index] = (-gain, loss, entropy, divergence, clipped, policy_norm, value_norm)
        return {**policy.arrays(), **value.arrays()}, metrics

    return update


class A2CValues(Protocol):
    """The settings of the update; see ``train.a2c.A2CSettings``."""

    @property
    def optimiser(self) -> str:
        """``rmsprop`` or ``adam``."""

    @property
    def rms_decay(self) -> float:
        """α of RMSProp."""

    @property
    def rms_epsilon(self) -> float:
        """ε of RMSProp."""

    @property
    def gradient_norm(self) -> float:
        """Largest norm."""

    @property
    def value_weight(self) -> float:
        """Weight of the value's loss."""

    @property
    def normalise_advantages(self) -> bool:
        """Whether they are brought to mean 0 and deviation 1."""


def a2c_update(settings: A2CValues, distribution: Distribution) -> Callable[..., tuple[Any, Floats]]:
    """The update: (state, batch, count, learning rate, entropy coefficient) → (state, metrics (5,)).

    As ``train.a2c.make_update``.
    """

    def descend(network: Perceptron, state: State, group: str, count: float, rate: float) -> tuple[Any, np.float32]:
        gradient = network.gradient.all
        norm = clip_by_norm(gradient, settings.gradient_norm)
        if settings.optimiser == "adam":
            adam = Adam(state[f"{group}_first"], state[f"{group}_second"])
            adam.step(network.weights.all, gradient, count, rate)
            moments = {f"{group}_first": adam.first.views, f"{group}_second": adam.second.views}
        else:
            rmsprop = RMSProp(state[f"{group}_second"], settings.rms_decay, settings.rms_epsilon)
            rmsprop.step(network.weights.all, gradient, rate)
            moments = {f"{group}_second": rmsprop.second.views}
        return {group: network.weights.views, **moments}, norm

    def update(
        state: State, batch: Mapping[str, NDArray[Any]], count: float, rate: float, bonus: float
    ) -> tuple[dict[str, Any], Floats]:
        policy, value = Perceptron(state["policy"]), Perceptron(state["value"])
        score = score_of(distribution, policy)
        advantages, rows = batch["advantage"], len(batch["advantage"])
        if settings.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + np.float32(1e-8))
        log_probabilities, entropy = score.evaluate(policy.forward(batch["observation"]), batch["action"])
        policy.backward(score.slopes(advantages * np.float32(-1.0 / rows), float(bonus)))
        errors = value.forward(batch["observation"])[:, 0] - batch["return"]
        value.backward((errors * np.float32(settings.value_weight / rows))[:, None])
        policy_loss = -(log_probabilities @ advantages) / rows
        value_loss = 0.5 * (errors @ errors) / rows
        of_policy, policy_norm = descend(policy, state, "policy", float(count), float(rate))
        of_value, value_norm = descend(value, state, "value", float(count), float(rate))
        metrics = np.array([policy_loss, value_loss, entropy, policy_norm, value_norm], np.float32)
        return {**of_policy, **of_value}, metrics

    return update
