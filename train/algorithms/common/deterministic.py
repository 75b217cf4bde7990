"""What DDPG and D4PG share beyond ``continuous.py``: settings and actions with noise, and their fresh learner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms.common.continuous import Actor, ContinuousSettings, build_learner_groups, fresh_critics
from quarl.train.algorithms.common.exploration import ExplorationNoise, noise_scale
from quarl.train.algorithms.common.learner import Learner
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.settings import setting
from quarl.train.networks.weights import initial_weights

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class DeterministicSettings(ContinuousSettings):
    """What DDPG and D4PG have in common; their own settings come on top."""

    noise_first: float = setting(0.2, "σ of the exploration noise at the start, in units of half the action's range.")
    noise_last: float = setting(0.2, "σ at the last step; in between it changes linearly.")
    noise_reversion: float = setting(
        1.0, "θ of the noise: 1 is independent Gaussian noise, Lillicrap's Ornstein–Uhlenbeck process has 0.15."
    )
    noise_repeat: int = setting(1, "Steps for which one draw of the noise is held.")
    noise_only_start: bool = setting(
        False, "The first ``learning_starts`` actions are the noise alone instead of uniform draws."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("noise_repeat")
        if not 0.0 < self.noise_reversion <= 1.0:
            raise ValueError(
                f"noise_reversion must be above 0 and at most 1 (Gaussian noise), got {self.noise_reversion}."
            )

    def schedules(self, step: int, steps: int) -> tuple[float, float]:
        """σ of the noise, and the share of both learning rates, when ``step`` of all ``steps`` are made."""
        sigma = noise_scale(self.noise_first, self.noise_last, step / steps)
        return sigma, self.rate_share(step, steps)


def fresh_learner(
    generator: np.random.Generator,
    network: NetworkSpec,
    critic: NetworkSpec,
    observation: tuple[int, ...],
    actions: int,
    critics: int = 1,
    critic_outputs: int = 1,
    compute: str = "float32",
) -> Learner:
    """Orthogonal weights with small heads: actions and values start near 0; the targets are copies."""
    actor = initial_weights(generator, network, observation, actions, head_gain=0.01)
    both = fresh_critics(generator, critic, observation[0] + actions, critics, critic_outputs)
    return Learner({**build_learner_groups("actor", actor, compute), **build_learner_groups("critic", both, compute)})


class NoisyActor(Actor):
    """The actor at work: with noise for the replay, without it for the judge.

    Attributes:
        noise: remembers something of an episode.
    """

    def __init__(self, loop: Loop, settings: DeterministicSettings) -> None:
        """Args: the loop whose deployed weights these are, and the algorithm's settings.

        Raises:
            ValueError: the task has discrete actions.
        """
        super().__init__(loop)
        size = settings.environments, loop.run.task.outputs
        self.noise = ExplorationNoise(*size, settings.noise_reversion, settings.noise_repeat)
        self._settings = settings

    def noisy(self, observations: Floats, sigma: float) -> Floats:
        """clip(μ(s) + noise, −1, 1), ``sigma`` the noise's σ; before learning starts a uniform draw, or noise alone."""
        action = self.noise(self._loop.generator, sigma)
        if self._loop.step >= self._settings.learning_starts:
            action = self.unit(observations) + action
        elif not self._settings.noise_only_start:
            action = self._loop.generator.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        return action.clip(-1.0, 1.0)
