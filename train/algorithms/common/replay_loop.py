"""What DQN, DDPG and D4PG share beside their updates: steps into a replay, minibatches out of it, rounds of updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from train.algorithms.common.loop import Loop
from train.algorithms.common.normalisation import normaliser_of_replay
from train.algorithms.common.priorities import Priorities, importance_weights
from train.algorithms.common.replay import Replay, n_step_returns
from train.algorithms.common.settings import ReplaySettings
from train.runs.checkpoint import Keeper
from train.runs.run import Run
from train.suites.episodes import Actions, Observations


class Exploration(Keeper, Protocol):
    """What makes greedy actions others, and remembers something of an episode."""

    def begin(self, done: NDArray[np.bool_]) -> None:
        """New episodes begin."""


class ReplayLoop(Loop):
    """A loop whose steps go into a replay; see :class:`train.algorithms.common.loop.Loop`."""

    def __init__(
        self,
        run: Run,
        settings: ReplaySettings,
        explore: Mapping[str, Exploration],
        action_size: int | None = None,
        normalise: bool = True,
    ) -> None:
        """Args:
        run: whose task and seed these are for.
        settings: of the algorithm; with ``priority_exponent`` above 0 what is drawn has priorities.
        explore: by the name that a checkpoint has for it.
        action_size: elements of a continuous action; None for discrete ones.
        normalise: False leaves observations as they are, but for what lies beyond ±5.
        """
        task, starts, steps = run.task, settings.learning_starts, run.request.steps
        moves, size = action_size is None, task.observation_size  # DQN's statistics go on for a while
        normaliser = normaliser_of_replay(size, task.bounds, starts, steps, moves=moves, normalise=normalise)
        super().__init__(run, settings, normaliser)
        count, alpha = settings.environments, getattr(settings, "priority_exponent", 0.0)
        frames, shape = task.frames if task.is_image else 0, task.observation_shape
        self._replay = Replay(settings.replay_capacity, count, shape, frames=frames, action_size=action_size)
        self._priorities = Priorities(self._replay.slots, count, alpha, settings.n_step) if alpha > 0 else None
        self._settings, self._explore = settings, explore

    def keepers(self) -> dict[str, Keeper]:
        """See :class:`Loop`. A replay of images is left out of a checkpoint: it is filled anew."""
        kept = {**super().keepers(), **self._explore}
        if not self.run.task.is_image:
            kept["replay"] = self._replay
            if self._priorities is not None:
                kept["priorities"] = self._priorities
        return kept

    def gather(
        self, act: Callable[[Observations], Actions], physical: Callable[[Actions], Actions] | None = None
    ) -> None:
        """Make ``rollout_steps`` steps in every environment and remember them.

        ``act`` makes of raw observations actions as the replay keeps them, ``physical`` of these the task's own.
        """
        for _ in range(self._settings.rollout_steps):
            observation = self.stream.observation
            self.normaliser.update(observation)
            actions = act(observation)
            transition = self.stream.step(actions if physical is None else physical(actions))
            self._replay.add(observation, actions, transition)
            for each in self._explore.values():
                each.begin(transition.done)
        self.step += self.iteration_steps

    def keeps_best(self) -> bool:
        """As soon as there is something to be learned."""
        return self.step >= self._settings.learning_starts

    def draw(self) -> dict[str, NDArray[Any]]:
        """Minibatches for one round: columns (updates, minibatch, …), and the ``rows`` of the replay they are from."""
        settings = self._settings
        shape = (settings.updates, settings.minibatch)
        columns: dict[str, NDArray[Any]] = {}
        if self._priorities is None:
            drawn = self._replay.sample(self.generator, settings.updates * settings.minibatch, settings.n_step)
        else:
            self._priorities.follow(self._replay.written)
            rows, probabilities = self._priorities.draw(self.generator, shape)
            drawn = self._replay.take(rows.ravel(), settings.n_step)
            exponent = getattr(settings, "importance_exponent", 0.0)
            columns["weight"] = importance_weights(probabilities, exponent).ravel()
        returns, discounts = n_step_returns(drawn.rewards, drawn.cut, drawn.terminated, settings.discount)
        columns |= {
            "observation": self.normaliser(drawn.observations),
            "action": drawn.actions.astype(np.int32) if drawn.actions.ndim == 1 else drawn.actions,
            "return": returns * np.float32(settings.reward_scale),
            "discount": discounts,
            "next_observation": self.normaliser(drawn.next_observations),
            "rows": drawn.rows,
        }
        return {name: column.reshape(*shape, *column.shape[1:]) for name, column in columns.items()}

    def learn(
        self, learn_round: Callable[[dict[str, NDArray[Any]]], list[NDArray[Any]]], names: tuple[str, ...]
    ) -> dict[str, float]:
        """A round of updates, as soon as ``learning_starts`` steps are there; the means of its metrics, NaN before.

        ``learn_round``: minibatches → metrics (updates, names) and, for priorities, errors (updates, minibatch).
        """
        if self._replay.written * self._settings.environments < self._settings.learning_starts:
            return dict.fromkeys(names, float("nan"))
        batches = self.draw()
        rows = batches.pop("rows")
        metrics, *errors = learn_round(batches)
        self.aware.count(len(metrics))
        means = self.means(metrics, names)
        if self._priorities is not None:
            self._priorities.update(rows, errors[0])
        return means
