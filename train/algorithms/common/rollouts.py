"""What PPO and A2C share beside their networks: rollouts, the rewards as they learn from them, and advantages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.algorithms.common.actor_critic import Forward
from quarl.train.algorithms.common.distributions import Distribution
from quarl.train.algorithms.common.normalisation import ImageScaling, RunningMoments, RunningNormaliser
from quarl.train.algorithms.common.settings import RolloutSettings
from quarl.train.suites.episodes import Observations, Transition

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
SMALLEST_VARIANCE = 1e-8
"""ε under the root of the returns' variance, as in VecNormalize and NormalizeReward."""


class Rollout:
    """Steps of the policy as it is, all arrays (steps, environments, …); :meth:`add` fills them.

    Attributes:
        observations: (steps + 1, …), raw, the last one that to which the last step led; normalised by :meth:`evaluate`.
        actions, log_probabilities: as the distribution drew them.
        rewards: as the task gave them.
        terminated, cut: see :class:`train.suites.episodes.Transition`.
    """

    def __init__(self, steps: int, distribution: Distribution, observation: Observations) -> None:
        """Args: how many, which will be drawn from, and what the first step acts on."""
        size = steps, len(observation)
        self.observations = np.empty((steps + 1, *observation.shape), observation.dtype)
        self.observations[0] = observation
        self.actions: NDArray[Any] = np.empty((*size, *distribution.action_shape), distribution.action_type)
        self.log_probabilities, self.rewards = np.empty((2, *size), np.float32)
        self.terminated, self.cut = np.empty((2, *size), np.bool_)
        self._values: list[Floats] = []
        self._cut_short: list[tuple[int, Flags, Observations]] = []  # episodes that ended by their time limit

    def add(
        self, step: int, actions: NDArray[Any], log_probabilities: Floats, values: Floats | None, transition: Transition
    ) -> None:
        """Remember a step of every environment; ``values`` are those that came with the outputs, if any did."""
        self.actions[step], self.log_probabilities[step] = actions, log_probabilities
        self.rewards[step], self.terminated[step] = transition.reward, transition.terminated
        self.cut[step], self.observations[step + 1] = transition.cut, transition.observation
        if values is not None:
            self._values.append(values)
        truncated = transition.done & ~transition.terminated
        if truncated.any():
            self._cut_short.append((step, truncated, transition.last_observation[truncated]))

    def evaluate(self, forward: Forward, normaliser: RunningNormaliser | ImageScaling) -> tuple[Floats, Floats]:
        """V(sₜ), and V of what step t led to *before* any reset, both (steps, environments).

        The normaliser learns of the observations only now: one rollout is seen through one normaliser.
        """
        raw, shape = self.observations, self.observations.shape[2:]
        self.observations = normaliser(raw)
        if self._values:
            values = np.stack([*self._values, forward.values(self.observations[-1])])
        else:
            values = forward.values(self.observations.reshape(-1, *shape)).reshape(raw.shape[:2])
        next_values = values[1:].copy()
        for step, truncated, last in self._cut_short:
            next_values[step, truncated] = forward.values(normaliser(last))
        normaliser.update(raw[:-1].reshape(-1, *shape))
        return values[:-1], next_values

    def batch(self, advantages: Floats, returns: Floats) -> dict[str, NDArray[Any]]:
        """Return the rows that an update learns from, (steps × environments, …)."""
        columns = self.columns(advantages, returns)
        return {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}

    def columns(self, advantages: Floats, returns: Floats) -> dict[str, NDArray[Any]]:
        """Return the same, (steps, environments, …)."""
        return {
            "observation": self.observations[:-1],
            "action": self.actions,
            "log_probability": self.log_probabilities,
            "advantage": advantages,
            "return": returns,
        }


class RewardScaling:
    """The rewards that are learned from: c · r, or with ``normalise_rewards`` c · clip(r / √(Var[G] + ε), ±clip).

    G is the discounted return so far, of every environment, and Var[G] its variance over all steps of the run:

        Gₜ = rₜ + γ (1 − cutₜ₋₁) Gₜ₋₁

    This is Stable-Baselines3's VecNormalize (Raffin et al. 2021; ``NormalizeReward`` of Gymnasium does not clip), with
    two differences: a rollout is counted as a whole before its rewards are divided, all of them by one number; and the
    statistics begin with the first return, not with a variance of 1. c is ``reward_scale``. Nothing is centred: that
    would change which policy is best where episodes end. Returns in the log and of evaluations are the task's own.
    """

    def __init__(self, settings: RolloutSettings) -> None:
        """Args: of the method."""
        self._settings, self._moments = settings, RunningMoments(1)
        self._return = np.zeros(settings.environments)  # γ (1 − cut) G of the last step

    def __call__(self, rewards: Floats, cut: Flags) -> Floats:
        """Return the next rollout's rewards as they are learned from, from the task's, and ``cut``; (steps,
        environments)."""
        settings, scale = self._settings, np.float32(self._settings.reward_scale)
        if not settings.normalise_rewards:
            return rewards * scale
        returns = np.empty(rewards.shape)
        for step, reward in enumerate(rewards):
            returns[step] = reward + self._return
            self._return = settings.discount * ~cut[step] * returns[step]
        self._moments.merge(returns.reshape(-1, 1))
        deviation = np.float32(np.sqrt(self._moments.variance[0] + SMALLEST_VARIANCE))
        return np.clip(rewards / deviation, -settings.reward_clip, settings.reward_clip).astype(np.float32) * scale

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs: nothing where nothing is estimated."""
        return {**self._moments.state(), "return": self._return} if self._settings.normalise_rewards else {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        if self._settings.normalise_rewards:
            self._moments.restore(state)
            self._return = state["return"].copy()


def compute_advantages(
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
