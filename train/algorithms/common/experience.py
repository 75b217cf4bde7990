"""Experience replay as DQN, DDPG, D4PG and SAC use it: steps go in, minibatches of n-step transitions come out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.algorithms.common.normalisation import ImageScaling, RunningNormaliser
from quarl.train.algorithms.common.priorities import Priorities, importance_weights
from quarl.train.algorithms.common.replay import Replay, n_step_returns
from quarl.train.algorithms.common.settings import ReplaySettings
from quarl.train.runs.checkpoint import Checkpointed
from quarl.train.suites.episodes import Actions, Observations, Transition
from quarl.train.suites.task import Task


class Experience:
    """A replay, with the priorities of what it holds where the settings' ``priority_exponent`` is above 0."""

    def __init__(self, task: Task, settings: ReplaySettings, action_size: int | None = None) -> None:
        """Args: the task, the algorithm's settings, and the elements of a continuous action (None: discrete ones)."""
        count, alpha = settings.environments, getattr(settings, "priority_exponent", 0.0)
        frames, shape = task.frames if task.is_image else 0, task.observation_shape
        self._replay = Replay(settings.replay_capacity, count, shape, frames=frames, action_size=action_size)
        self._priorities = Priorities(self._replay.slots, count, alpha, settings.n_step) if alpha > 0 else None
        self._settings, self._is_image = settings, task.is_image
        self._rows = np.zeros(0, np.int64)  # of what was drawn last

    def list_checkpoint_parts(self) -> dict[str, Checkpointed]:
        """Return what a checkpoint holds, by name. A replay of images is left out: it is filled again."""
        parts: dict[str, Checkpointed] = {"replay": self._replay}
        if self._priorities is not None:
            parts["priorities"] = self._priorities
        return {} if self._is_image else parts

    def add(self, observation: Observations, actions: Actions, transition: Transition) -> None:
        """Remember a step of every environment; ``actions`` are kept as they are, in the networks' units."""
        self._replay.add(observation, actions, transition)

    @property
    def suffices(self) -> bool:
        """Whether there are the steps after which learning starts."""
        return self._replay.steps_written * self._settings.environments >= self._settings.learning_starts

    def draw(
        self, generator: np.random.Generator, normaliser: RunningNormaliser | ImageScaling
    ) -> dict[str, NDArray[Any]]:
        """Minibatches for one round, columns (updates, minibatch, …): s, a, R, γ', s', and weights w of priorities.

        R = Σₖ γᵏ rₖ;  γ' = γᵐ after m steps, 0 where the return terminated;  w = (P(i) / minⱼ P(j))^−β
        """
        settings = self._settings
        shape = (settings.updates, settings.minibatch)
        columns: dict[str, NDArray[Any]] = {}
        if self._priorities is None:
            drawn = self._replay.sample(generator, settings.updates * settings.minibatch, settings.n_step)
        else:
            self._priorities.follow(self._replay.steps_written)
            rows, probabilities = self._priorities.draw(generator, shape)
            drawn = self._replay.take(rows.ravel(), settings.n_step)
            exponent = getattr(settings, "importance_exponent", 0.0)
            columns["weight"] = importance_weights(probabilities, exponent).ravel()
        self._rows = drawn.rows
        returns, discounts = n_step_returns(drawn.rewards, drawn.cut, drawn.terminated, settings.discount)
        columns |= {
            "observation": normaliser(drawn.observations),
            "action": drawn.actions.astype(np.int32) if drawn.actions.ndim == 1 else drawn.actions,
            "return": returns * np.float32(settings.reward_scale),
            "discount": discounts,
            "next_observation": normaliser(drawn.next_observations),
        }
        return {name: column.reshape(*shape, *column.shape[1:]) for name, column in columns.items()}

    def prioritize(self, errors: NDArray[np.float32]) -> None:
        """Errors δ (updates, minibatch) of what was drawn last become its priorities, if it has any."""
        if self._priorities is not None:
            self._priorities.update(self._rows, errors)
