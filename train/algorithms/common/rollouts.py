"""What PPO and A2C share beside their networks: rollouts of the policy as it is, and generalized advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.algorithms.common.actor_critic import ActorCritic, Forward
from train.algorithms.common.distributions import Distribution, distribution_of
from train.algorithms.common.loop import Loop
from train.algorithms.common.normalisation import ImageScaling, RunningNormaliser
from train.algorithms.common.settings import RolloutSettings
from train.runs.run import Run
from train.suites.episodes import Actions, EpisodeStream, Observations

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

# --- pure functions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """What one iteration gathers, (steps, environments, …); vectors are normalised, images raw.

    ``terminated`` and ``cut`` are those of :class:`train.suites.episodes.Transition`; ``next_values`` are values of the
    observation that each step led to, before any reset.
    """

    observations: Observations
    actions: NDArray[Any]
    log_probabilities: Floats
    rewards: Floats
    terminated: Flags
    cut: Flags
    values: Floats
    next_values: Floats


def collect(
    stream: EpisodeStream,
    normaliser: RunningNormaliser | ImageScaling,
    learner: ActorCritic,
    forward: Forward,
    distribution: Distribution,
    generator: np.random.Generator,
    settings: RolloutSettings,
) -> Rollout:
    """Act for ``rollout_steps`` steps with the policy as it is.

    Values of vectors are computed all at once at the end; those of images come with the outputs.
    """
    steps, environments = settings.rollout_steps, settings.environments
    shape, kind = stream.observation.shape[1:], stream.observation.dtype
    shared = learner.is_shared
    raw = np.empty((0 if shared else steps, environments, *shape), kind)
    observations = np.empty((steps + 1, environments, *shape), kind)
    actions: NDArray[Any] = np.empty((steps, environments, *distribution.action_shape), distribution.action_type)
    log_probabilities, rewards = np.empty((2, steps, environments), np.float32)
    values = np.empty((steps + 1, environments), np.float32)
    terminated, cut = np.empty((2, steps, environments), np.bool_)
    cut_short: list[tuple[int, Flags, Observations]] = []  # episodes that ended by their time limit
    observations[0] = normaliser(stream.observation)
    for step in range(steps):
        if shared:
            outputs, values[step] = forward.both(observations[step])
        else:
            raw[step] = stream.observation
            outputs = forward.outputs(observations[step])
        actions[step], log_probabilities[step] = distribution.sample(generator, outputs, learner.policy)
        transition = stream.step(distribution.to_environment(actions[step]))
        rewards[step], terminated[step], cut[step] = transition.reward, transition.terminated, transition.cut
        observations[step + 1] = normaliser(transition.observation)
        truncated = transition.done & ~transition.terminated
        if truncated.any():
            cut_short.append((step, truncated, normaliser(transition.last_observation[truncated])))
    rewards *= np.float32(settings.reward_scale)
    if shared:
        values[steps] = forward.values(observations[steps])
    else:
        values = forward.values(observations.reshape(-1, *shape)).reshape(steps + 1, environments)
        normaliser.update(raw.reshape(-1, *shape))  # only now: one rollout is seen through one normaliser
    next_values = values[1:].copy()
    for step, truncated, last in cut_short:
        next_values[step, truncated] = forward.values(last)
    return Rollout(observations[:-1], actions, log_probabilities, rewards, terminated, cut, values[:-1], next_values)


def generalized_advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: Flags,
    cut: Flags,
    discount: float,
    gae_lambda: float,
) -> Floats:
    """Generalized advantages (Schulman et al. 2016, equation 16), all arrays (steps, environments).

    δₜ = rₜ + γ V(sₜ₊₁) (1 − terminatedₜ) − V(sₜ)
    Aₜ = δₜ + γ λ (1 − cutₜ) Aₜ₊₁

    λ = 1 gives the n-step returns of A3C: A = Σ γⁱ r + γⁿ V − V(sₜ) up to the rollout's end.

    Args:
        rewards, values: rₜ and V(sₜ).
        next_values: V of the observation that followed the step, *before* any reset: at a time limit this is the
            value the episode would have gone on with.
        terminated, cut: see :class:`train.suites.episodes.Transition`.
        discount, gae_lambda: γ and λ.
    """
    deltas = rewards + discount * next_values * ~terminated - values
    advantages = np.zeros_like(deltas)
    following = np.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        following = deltas[step] + discount * gae_lambda * ~cut[step] * following
        advantages[step] = following
    return advantages


def training_batch(rollout: Rollout, settings: RolloutSettings) -> dict[str, NDArray[Any]]:
    """The rows that the update learns from, (steps × environments, …); the return is A + V."""
    values, ends = (rollout.values, rollout.next_values), (rollout.terminated, rollout.cut)
    advantages = generalized_advantages(rollout.rewards, *values, *ends, settings.discount, settings.gae_lambda)
    columns = {
        "observation": rollout.observations,
        "action": rollout.actions,
        "log_probability": rollout.log_probabilities,
        "advantage": advantages,
        "return": advantages + rollout.values,
    }
    return {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}


# --- one run --------------------------------------------------------------------------------------------------------


class Rollouts(Loop):
    """A loop that learns from rollouts of the policy as it is; see :class:`train.algorithms.common.loop.Loop`."""

    def __init__(self, run: Run, settings: RolloutSettings, moments: tuple[str, ...] = ("first", "second")) -> None:
        """All at its beginning, or as the run's checkpoint has it; ``moments`` are those of ``ActorCritic.fresh``."""
        super().__init__(run, settings, RunningNormaliser(run.task.observation_size, settings.normaliser_steps))
        request, task = run.request, run.task
        self._settings = settings
        self.distribution = distribution_of(task, settings.log_std)
        self.actor_critic = ActorCritic.fresh(
            self.generator,
            request.network,
            task.observation_shape,
            task.outputs,
            settings.value_hidden,
            moments,
            self.distribution.extra_weights(),
            settings.compute,
        )
        self._forward = Forward(self.actor_critic, settings.compute, self.aware.acting)
        self.follow(self.actor_critic, "policy")

    def gather(self) -> dict[str, NDArray[Any]]:
        """The rows of one rollout of the policy as it is; see :func:`training_batch`."""
        actors = self.actor_critic, self._forward, self.distribution
        rollout = collect(self.stream, self.normaliser, *actors, self.generator, self._settings)
        return training_batch(rollout, self._settings)

    def decide(self, observation: Observations) -> Actions:
        """The greedy action for raw observations."""
        return self.distribution.greedy(self._forward.outputs(self.normaliser(observation)))

    def keeps_best(self) -> bool:
        """If the settings want it, once observations are normalised as they will be in the bundle."""
        return self._settings.keep_best and self.normaliser.settled

    def schedules(self) -> tuple[float, float]:
        """Learning rate and entropy bonus now."""
        return self._settings.schedules(self.share)
