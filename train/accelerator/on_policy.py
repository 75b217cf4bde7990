"""The updates of PPO and A2C with gradients by hand: what their ``make_update`` compiles, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.accelerator.layers import Learning, State, arrays_of
from train.accelerator.scores import score_of
from train.quantization.fake import FakeQuantization

Floats = NDArray[np.float32]


def surrogate(ratio: Floats, advantages: Floats, clip_range: float) -> tuple[np.float32, Floats]:
    """L = E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] and ∂L/∂ log ρ = ρ A / n where the first is the smaller, else 0."""
    plain = ratio * advantages
    clipped = np.minimum(np.maximum(ratio, np.float32(1.0 - clip_range)), np.float32(1.0 + clip_range)) * advantages
    value = np.minimum(plain, clipped).mean()
    plain *= plain <= clipped
    plain /= np.float32(len(plain))
    return np.float32(value), plain


def ppo_update(settings: Any, fake: FakeQuantization | None = None) -> Callable[..., tuple[Any, Floats]]:
    """The update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    As ``train.algorithms.ppo.make_update`` describes it.
    """

    def update(
        state: State,
        batch: Mapping[str, NDArray[Any]],
        order: NDArray[np.int32],
        count: float,
        rate: float,
        bonus: float,
    ) -> tuple[dict[str, Any], Floats]:
        policy = Learning(state, "policy", fake=fake, control=settings.weight_control)
        value = Learning(state, "value")
        score = score_of(policy.network)
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
        return arrays_of(policy, value), metrics

    return update


def a2c_update(settings: Any, fake: FakeQuantization | None = None) -> Callable[..., tuple[Any, Floats]]:
    """The update: (state, batch, count, learning rate, entropy coefficient) → (state, metrics (5,)).

    As ``train.algorithms.a2c.make_update``.
    """

    rmsprop = (settings.rms_decay, settings.rms_epsilon) if settings.optimiser == "rmsprop" else None

    def update(
        state: State, batch: Mapping[str, NDArray[Any]], count: float, rate: float, bonus: float
    ) -> tuple[dict[str, Any], Floats]:
        policy = Learning(state, "policy", rmsprop=rmsprop, fake=fake, control=settings.weight_control)
        value = Learning(state, "value", rmsprop=rmsprop)
        score = score_of(policy.network)
        advantages, rows = batch["advantage"], len(batch["advantage"])
        if settings.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + np.float32(1e-8))
        log_probabilities, entropy = score.evaluate(policy.network.forward(batch["observation"]), batch["action"])
        policy.network.backward(score.slopes(advantages * np.float32(-1.0 / rows), float(bonus)))
        errors = value.network.forward(batch["observation"])[:, 0] - batch["return"]
        value.network.backward((errors * np.float32(settings.value_weight / rows))[:, None])
        policy_loss = -(log_probabilities @ advantages) / rows
        value_loss = 0.5 * (errors @ errors) / rows
        policy_norm = policy.step(settings.gradient_norm, float(count), float(rate))
        value_norm = value.step(settings.gradient_norm, float(count), float(rate))
        metrics = np.array([policy_loss, value_loss, entropy, policy_norm, value_norm], np.float32)
        return arrays_of(policy, value), metrics

    return update
