"""The updates of PPO and A2C with gradients by hand: what their ``make_update`` compiles, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.accelerator.layers import Learning, Perceptron, State, arrays_of
from quarl.train.algorithms.common.distributions import HALF_LOG_2_PI, LOG_STD
from quarl.train.quantization.fake import FakeQuantization

Floats = NDArray[np.float32]


def surrogate(ratio: Floats, advantages: Floats, clip_range: float) -> tuple[np.float32, Floats]:
    """L = E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] and ∂L/∂ log ρ = ρ A / n where the first is the smaller, else 0."""
    plain = ratio * advantages
    clipped = np.minimum(np.maximum(ratio, np.float32(1.0 - clip_range)), np.float32(1.0 + clip_range)) * advantages
    value = mean(np.minimum(plain, clipped))
    plain *= plain <= clipped
    plain /= np.float32(len(plain))
    return value, plain


def mean(values: Floats) -> np.float32:
    """Σ x / n of a row: ``values.mean()`` to the bit, without the Python in it, which takes longer than the sum."""
    return np.float32(np.add.reduce(values) / np.float32(len(values)))


def standardise_rows(values: Floats) -> Floats:
    """(x − mean) / (std + 10⁻⁸), row by row of (minibatches, rows)."""
    centred = values - values.mean(axis=1, keepdims=True)
    centred /= values.std(axis=1, keepdims=True) + np.float32(1e-8)
    return centred


class CategoricalScore:
    """π = softmax(y).  ∂ log π(a)/∂yⱼ = [j = a] − πⱼ;  ∂H/∂yⱼ = −πⱼ (log πⱼ + H)."""

    def evaluate(self, outputs: Floats, actions: NDArray[Any]) -> tuple[Floats, np.float32]:
        """log π(a|s) (rows,) of actions under a policy's outputs, and the mean entropy in nats."""
        shifted = outputs - np.maximum.reduce(outputs, axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = np.add.reduce(exponentials, axis=1, keepdims=True)
        self._probabilities = np.divide(exponentials, sums, out=exponentials)
        self._logarithms = np.subtract(shifted, np.log(sums), out=shifted)
        self._entropies = -np.add.reduce(self._probabilities * self._logarithms, axis=1, keepdims=True)
        self._where = (np.arange(len(outputs)), actions)
        return self._logarithms[self._where], np.float32(self._entropies.mean())

    def slopes(self, chosen: Floats, bonus: float) -> Floats:
        """∂L/∂outputs (rows, outputs) of L = Σᵢ chosenᵢ log π(aᵢ|sᵢ) − bonus · mean H, at the last evaluation."""
        slopes = self._probabilities * -chosen[:, None]
        slopes[self._where] += chosen
        if bonus:
            share = np.float32(bonus / len(chosen))
            slopes += share * self._probabilities * (self._logarithms + self._entropies)
        return slopes


class MultiCategoricalScore:
    """π = Πᵢ softmax(yᵢ): log π and H are sums over the components, so each has :class:`CategoricalScore`'s slopes."""

    def __init__(self, parts: Sequence[slice]) -> None:
        """Args: the places of each component's outputs."""
        self._scores = [(part, CategoricalScore()) for part in parts]

    def evaluate(self, outputs: Floats, actions: NDArray[Any]) -> tuple[Floats, np.float32]:
        """Return log π(a|s) (rows,) of actions (rows, components), and the mean entropy in nats."""
        columns = enumerate(self._scores)
        evaluations = [score.evaluate(outputs[:, part], actions[:, index]) for index, (part, score) in columns]
        return np.add.reduce([log_prob for log_prob, _ in evaluations]), np.float32(
            sum(entropy for _, entropy in evaluations)
        )

    def slopes(self, chosen: Floats, bonus: float) -> Floats:
        """Return :meth:`CategoricalScore.slopes`' gradient."""
        return np.concatenate([score.slopes(chosen, bonus) for _, score in self._scores], axis=1)


class GaussianScore:
    """π = N(y, σ²).  z = (a − y) / σ;  ∂ log π/∂y = z / σ;  ∂ log π/∂ log σ = z² − 1;  ∂H/∂ log σ = 1."""

    def __init__(self, policy: Perceptron) -> None:
        self._log_std = policy.weights.views[LOG_STD]
        self._gradient = policy.gradient.views[LOG_STD]

    def evaluate(self, outputs: Floats, actions: NDArray[Any]) -> tuple[Floats, np.float32]:
        """log π(a|s) (rows,) of actions under a policy's outputs, and the entropy in nats, which no state changes."""
        self._inverse = np.exp(-self._log_std)
        self._distance = (actions - outputs) * self._inverse
        constant = np.float32(self._log_std.sum() + len(self._log_std) * HALF_LOG_2_PI)
        entropy = np.float32(constant + 0.5 * len(self._log_std))
        return np.float32(-0.5) * np.add.reduce(self._distance * self._distance, axis=1) - constant, entropy

    def slopes(self, chosen: Floats, bonus: float) -> Floats:
        """Return :meth:`CategoricalScore.slopes`' gradient; that of log σ is set in the network's gradient."""
        weighted = self._distance * chosen[:, None]
        self._gradient[:] = np.add.reduce(weighted * self._distance, axis=0) - chosen.sum() - np.float32(bonus)
        weighted *= self._inverse
        return weighted


def score_of(
    policy: Perceptron, parts: Sequence[slice] = ()
) -> CategoricalScore | MultiCategoricalScore | GaussianScore:
    """Return the score of the distribution whose weights the policy has, or which has these components."""
    if parts:
        return MultiCategoricalScore(parts)
    return GaussianScore(policy) if LOG_STD in policy.weights.views else CategoricalScore()


def ppo_update(
    settings: Any, fake: FakeQuantization | None = None, parts: Sequence[slice] = ()
) -> Callable[..., tuple[Any, Floats]]:
    """Return the update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    As ``train.algorithms.ppo.make_update`` describes it; ``parts`` are the components of several choices at once.
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
        score = score_of(policy.network, parts)
        metrics = np.empty((len(order), 7), np.float32)
        rate, bonus, rows = float(rate), float(bonus), order.shape[1]
        batches = {name: column[order] for name, column in batch.items()}  # (minibatches, rows, …), in one call each
        batches["advantage"] = standardise_rows(batches["advantage"])
        for index in range(len(order)):
            steps = float(count) + index + 1.0
            observations = batches["observation"][index]
            log_probabilities, entropy = score.evaluate(policy.network.forward(observations), batches["action"][index])
            log_ratio = log_probabilities - batches["log_probability"][index]
            ratio = np.exp(log_ratio)
            gain, slopes = surrogate(ratio, batches["advantage"][index], settings.clip_range)
            policy.network.backward(score.slopes(-slopes, bonus))
            policy_norm = policy.step(settings.gradient_norm, steps, rate)

            errors = value.network.forward(observations)[:, 0] - batches["return"][index]
            loss = 0.5 * float(errors @ errors) / rows
            value.network.backward((errors * np.float32(settings.value_weight / rows))[:, None])
            value_norm = value.step(settings.gradient_norm, steps, rate)

            ratio -= 1.0
            divergence = mean(ratio) - mean(log_ratio)
            clipped = np.count_nonzero(np.abs(ratio) > settings.clip_range) / rows
            metrics[index] = (-gain, loss, entropy, divergence, clipped, policy_norm, value_norm)
        return arrays_of(policy, value), metrics

    return update


def a2c_update(
    settings: Any, fake: FakeQuantization | None = None, parts: Sequence[slice] = ()
) -> Callable[..., tuple[Any, Floats]]:
    """Return the update: (state, batch, count, learning rate, entropy coefficient) → (state, metrics (5,)).

    As ``train.algorithms.a2c.make_update``; ``parts`` as of :func:`ppo_update`.
    """

    rmsprop = (settings.rms_decay, settings.rms_epsilon) if settings.optimiser == "rmsprop" else None

    def update(
        state: State, batch: Mapping[str, NDArray[Any]], count: float, rate: float, bonus: float
    ) -> tuple[dict[str, Any], Floats]:
        policy = Learning(state, "policy", rmsprop=rmsprop, fake=fake, control=settings.weight_control)
        value = Learning(state, "value", rmsprop=rmsprop)
        score = score_of(policy.network, parts)
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
