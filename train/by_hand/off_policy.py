"""The updates of DQN and DDPG with gradients by hand: what their ``make_update`` compiles, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from train.by_hand.layers import Adam, Perceptron, clip_by_norm

Floats = NDArray[np.float32]
State = Mapping[str, Mapping[str, NDArray[Any]]]
Update = Callable[..., tuple[dict[str, Any], Floats]]
ReplayUpdate = Callable[..., tuple[dict[str, Any], Floats, Floats]]


class DQNValues(Protocol):
    """The settings of the update; see ``train.dqn.DQNSettings``."""

    @property
    def huber_delta(self) -> float:
        """δ."""

    @property
    def gradient_norm(self) -> float:
        """Largest norm."""

    @property
    def target_period(self) -> int:
        """Updates between two copies."""


def huber(errors: Floats, delta: float) -> tuple[Floats, Floats]:
    """½ e² where |e| ≤ δ, else δ (|e| − ½ δ); and its derivative, e clipped to ±δ; element by element."""
    inside: Floats = np.minimum(np.maximum(errors, np.float32(-delta)), np.float32(delta))
    losses: Floats = inside * (errors - np.float32(0.5) * inside)
    return losses, inside


def dqn_update(settings: DQNValues) -> ReplayUpdate:
    """The round: (state, batches, updates before, rate) → (state, metrics, errors); as ``train.dqn.make_update``."""

    def update(
        state: State, batches: Mapping[str, NDArray[Any]], count: int, rate: float
    ) -> tuple[dict[str, Any], Floats, Floats]:
        online, target = Perceptron(state["online"]), Perceptron(state["target"])
        adam = Adam(state["first"], state["second"])
        updates, minibatch = batches["return"].shape
        metrics, errors = np.empty((updates, 3), np.float32), np.empty((updates, minibatch), np.float32)
        rows, slopes = np.arange(minibatch), np.zeros((minibatch, state["online"]["head/bias"].shape[0]), np.float32)
        for index in range(updates):
            batch = {name: column[index] for name, column in batches.items()}
            step = int(count) + index + 1
            best = online.forward(batch["next_observation"]).argmax(axis=1)  # van Hasselt et al. 2016, equation 4
            next_values = target.forward(batch["next_observation"])[rows, best]
            targets = batch["return"] + batch["discount"] * next_values
            chosen = online.forward(batch["observation"])[rows, batch["action"]]
            errors[index] = targets - chosen
            losses, derivatives = huber(-errors[index], settings.huber_delta)
            if "weight" in batch:
                losses, derivatives = losses * batch["weight"], derivatives * batch["weight"]
            slopes[:] = 0.0
            slopes[rows, batch["action"]] = derivatives / np.float32(minibatch)
            online.backward(slopes)
            norm = clip_by_norm(online.gradient.all, settings.gradient_norm)
            adam.step(online.weights.all, online.gradient.all, step, float(rate))
            if step % settings.target_period == 0:
                target.weights.all[:] = online.weights.all
            metrics[index] = (losses.mean(), chosen.mean(), norm)
        vectors = {"online": online.weights, "target": target.weights, "first": adam.first, "second": adam.second}
        return {name: vector.views for name, vector in vectors.items()}, metrics, errors

    return update


class DDPGValues(Protocol):
    """The settings of the update; see ``train.ddpg.DDPGSettings``."""

    @property
    def actor_learning_rate(self) -> float:
        """Of the actor."""

    @property
    def critic_learning_rate(self) -> float:
        """Of the critic."""

    @property
    def gradient_norm(self) -> float:
        """Largest norm."""

    @property
    def action_penalty(self) -> float:
        """Weight of the mean squared raw output."""

    @property
    def target_rate(self) -> float:
        """τ."""

    @property
    def target_noise(self) -> float:
        """σ of the noise on the target's action."""

    @property
    def policy_period(self) -> int:
        """Critic updates for one of the actor."""


class Learning:
    """A network, its target and its moments, taken from a learner's arrays by group and given back to them."""

    def __init__(self, state: State, group: str, prefix: str = "") -> None:
        names = (group, f"{group}_target", f"{group}_first", f"{group}_second")
        arrays = [
            {name.removeprefix(prefix): value for name, value in state[part].items() if name.startswith(prefix)}
            for part in names
        ]
        self._names, self._prefix = names, prefix
        self.network, self.target = Perceptron(arrays[0]), Perceptron(arrays[1])
        self.adam = Adam(arrays[2], arrays[3])

    def follow(self, rate: float) -> None:
        """θ' ← (1 − τ) θ' + τ θ."""
        target = self.target.weights.all
        target *= np.float32(1.0 - rate)
        target += np.float32(rate) * self.network.weights.all

    def add_to(self, state: dict[str, dict[str, Floats]]) -> None:
        """Put the arrays back where they came from."""
        vectors = (self.network.weights, self.target.weights, self.adam.first, self.adam.second)
        for name, vector in zip(self._names, vectors, strict=True):
            state.setdefault(name, {}).update({self._prefix + key: value for key, value in vector.views.items()})


def ddpg_update(settings: DDPGValues) -> Update:
    """The round: (state, batches, updates before, share of the rates) → (state, metrics); as ``train.ddpg``'s."""

    def learn_critics(
        actor: Learning, critics: list[Learning], batch: Mapping[str, NDArray[Any]], step: int, rate: float
    ) -> tuple[float, float, float]:
        """L = Σ over critics of mean (y − Q(s, a))²; the loss, the mean of the first critic, the gradient's norm."""
        next_action = np.tanh(actor.target.forward(batch["next_observation"]))
        if settings.target_noise > 0:
            next_action = np.clip(next_action + batch["target_noise"], -1.0, 1.0)
        following = np.concatenate([batch["next_observation"], next_action], axis=1)
        next_values = np.minimum.reduce([critic.target.forward(following)[:, 0] for critic in critics])
        targets = batch["return"] + batch["discount"] * next_values
        inputs = np.concatenate([batch["observation"], batch["action"]], axis=1)
        loss, means, rows = 0.0, [], len(targets)
        for critic in critics:
            values = critic.network.forward(inputs)[:, 0]
            means.append(float(values.mean()))
            errors = values - targets
            loss += float(errors @ errors) / rows
            critic.network.backward((errors * np.float32(2.0 / rows))[:, None])
        gradients = [critic.network.gradient.all for critic in critics]
        norm = clip_by_norm(gradients[0], settings.gradient_norm) if len(critics) == 1 else clip_both(gradients)
        for critic, gradient in zip(critics, gradients, strict=True):
            critic.adam.step(critic.network.weights.all, gradient, step, rate)
        return loss, means[0], float(norm)

    def clip_both(gradients: list[Floats]) -> np.float32:
        norm = np.sqrt(sum(np.float32(gradient @ gradient) for gradient in gradients))
        for gradient in gradients:
            gradient *= min(1.0, settings.gradient_norm / (norm + np.float32(1e-8)))
        return np.float32(norm)

    def learn_actor(actor: Learning, critic: Learning, observations: Floats, step: int, rate: float) -> np.float32:
        """L = −mean Q(s, tanh(y)) + penalty · mean y², through the critic, whose weights stand still."""
        raw = actor.network.forward(observations)
        action = np.tanh(raw)
        critic.network.forward(np.concatenate([observations, action], axis=1))
        down = np.full((len(raw), 1), -1.0 / len(raw), np.float32)
        inputs = critic.network.backward(down, inputs_too=True, weights_too=False)
        assert inputs is not None
        slopes = inputs[:, observations.shape[1] :] * (np.float32(1.0) - action * action)
        if settings.action_penalty:
            slopes += np.float32(2.0 * settings.action_penalty / raw.size) * raw
        actor.network.backward(slopes)
        gradient = actor.network.gradient.all
        norm = clip_by_norm(gradient, settings.gradient_norm)
        actor.adam.step(actor.network.weights.all, gradient, step, rate)
        return norm

    def update(
        state: State, batches: Mapping[str, NDArray[Any]], count: int, share: float
    ) -> tuple[dict[str, Any], Floats]:
        actor = Learning(state, "actor")
        prefixes = sorted({name.split("/")[0] for name in state["critic"]})
        critics = [Learning(state, "critic", f"{prefix}/") for prefix in prefixes]
        updates, period, share = len(batches["return"]), settings.policy_period, float(share)
        metrics = np.zeros((updates, 4), np.float32)
        for index in range(updates):
            batch = {name: column[index] for name, column in batches.items()}
            step = int(count) + index + 1
            metrics[index, :3] = learn_critics(actor, critics, batch, step, share * settings.critic_learning_rate)
            if step % period == 0:
                rate = share * settings.actor_learning_rate
                metrics[index, 3] = learn_actor(actor, critics[0], batch["observation"], step // period, rate)
                for part in (actor, *critics):
                    part.follow(settings.target_rate)
        new: dict[str, dict[str, Floats]] = {}
        for part in (actor, *critics):
            part.add_to(new)
        return new, metrics

    return update
