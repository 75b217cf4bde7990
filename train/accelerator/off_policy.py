"""The updates of DQN and DDPG with gradients by hand: what their ``make_update`` compiles, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.accelerator.layers import Learning, State, Vector, arrays_of, clip_by_norm
from quarl.train.quantization.fake import FakeQuantization

Floats = NDArray[np.float32]
Update = Callable[..., tuple[Any, ...]]


def huber(errors: Floats, delta: float) -> tuple[Floats, Floats]:
    """½ e² where |e| ≤ δ, else δ (|e| − ½ δ); and its derivative, e clipped to ±δ; element by element."""
    inside: Floats = np.minimum(np.maximum(errors, np.float32(-delta)), np.float32(delta))
    losses: Floats = inside * (errors - np.float32(0.5) * inside)
    return losses, inside


class Followed(Learning):
    """A network that a target network follows."""

    def __init__(self, state: State, group: str, prefix: str = "", **more: Any) -> None:
        super().__init__(state, group, prefix, **more)
        self.target = self.perceptron(state, f"{group}_target")

    def follow(self, rate: float) -> None:
        """θ' ← (1 − τ) θ' + τ θ."""
        target = self.target.weights.all
        target *= np.float32(1.0 - rate)
        target += np.float32(rate) * self.network.weights.all

    def vectors(self) -> dict[str, Vector]:
        """See :meth:`Learning.vectors`."""
        return {**super().vectors(), f"{self._group}_target": self.target.weights}


def dqn_update(settings: Any, fake: FakeQuantization | None = None) -> Update:
    """Return the round: (state, batches, updates before, rate) → (state, metrics, errors); as in ``dqn.py``."""
    groups = {"online": "online", "target": "online_target", "first": "online_first", "second": "online_second"}

    def update(
        state: State, batches: Mapping[str, NDArray[Any]], count: int, rate: float
    ) -> tuple[dict[str, Any], Floats, Floats]:
        named = {groups.get(group, group): arrays for group, arrays in state.items()}
        learned = Followed(named, "online", fake=fake, control=settings.weight_control)
        online, target = learned.network, learned.target
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
            norm = learned.step(settings.gradient_norm, step, float(rate))
            if step % settings.target_period == 0:
                target.weights.all[:] = online.weights.all
            metrics[index] = (losses.mean(), chosen.mean(), norm)
        arrays = arrays_of(learned)
        return {group: arrays[name] for group, name in groups.items()}, metrics, errors

    return update


def ddpg_update(settings: Any, fake: FakeQuantization | None = None) -> Update:
    """Return the round: (state, batches, updates before, share of the rates) → (state, metrics); as in ``ddpg.py``."""

    def learn_critics(
        actor: Followed, critics: list[Followed], batch: Mapping[str, NDArray[Any]], step: int, rate: float
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
        norm = clip_by_norm([critic.network.gradient.all for critic in critics], settings.gradient_norm)
        for critic in critics:
            critic.descend(step, rate)
        return loss, means[0], float(norm)

    def learn_actor(actor: Followed, critic: Followed, observations: Floats, step: int, rate: float) -> np.float32:
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
        return actor.step(settings.gradient_norm, step, rate)

    def update(
        state: State, batches: Mapping[str, NDArray[Any]], count: int, share: float
    ) -> tuple[dict[str, Any], Floats]:
        actor = Followed(state, "actor", fake=fake, control=settings.weight_control)
        prefixes = sorted({name.split("/")[0] for name in state["critic"]})
        critics = [Followed(state, "critic", f"{prefix}/") for prefix in prefixes]
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
        return arrays_of(actor, *critics), metrics

    return update
