"""Catch: the smallest task of pictures with a paddle and a ball; a learning curve on it takes seconds.

A ball falls straight down from a random column; the paddle at the bottom goes left, stays or goes right. The reward at
the end is 1 if the paddle is under the ball, else −1 (Mnih et al. 2014, "Recurrent models of visual attention",
section 4.2; bsuite's catch). Pictures are 16 × 16: every cell of the 8 × 8 field is a square of 2 × 2 pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import DiscreteHead, EnvironmentSpec, ObservationField
from quarl.train.suites.episodes import Actions, Decide, Observations, StepResult, evaluate_episodes
from quarl.train.suites.task import Evaluation, Task

CELLS = 8
PIXELS = 2  # a cell's side
JUDGING_ENVIRONMENTS = 16


class Catch:
    """A batch of fields; an episode is a pure function of seed, episode id and actions."""

    def __init__(self, environments: int, seed: int) -> None:
        self.environments = environments
        self._seed = seed
        self._ball = np.zeros(environments, np.int64)
        self._row = np.zeros(environments, np.int64)
        self._paddle = np.zeros(environments, np.int64)

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """Begin the masked episodes; see ``train.suites.episodes.Episodes``."""
        for place in np.flatnonzero(mask):
            draws = np.random.default_rng([self._seed, int(episode_ids[place])]).integers(CELLS, size=2)
            self._ball[place], self._paddle[place] = draws
        self._row[mask] = 0
        return self._pictures()

    def step(self, actions: Actions) -> StepResult:
        """Return one row down; see ``train.suites.episodes.Episodes``."""
        self._paddle = (self._paddle + actions - 1).clip(0, CELLS - 1)
        self._row += 1
        landed = self._row == CELLS - 1
        reward = np.where(landed, np.where(self._paddle == self._ball, 1.0, -1.0), 0.0).astype(np.float32)
        return StepResult(self._pictures(), reward, landed, np.zeros_like(landed), None)

    def _pictures(self) -> Observations:
        cells = np.zeros((self.environments, CELLS, CELLS, 1), np.uint8)
        places = np.arange(self.environments)
        cells[places, self._row, self._ball] = 255
        cells[places, CELLS - 1, self._paddle] = 255
        return cells.repeat(PIXELS, axis=1).repeat(PIXELS, axis=2)


def catch_task() -> Task:
    """Return the task; a perfect player returns 1, one that does not look about −0.7."""

    def evaluate(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
        return Evaluation.of(
            evaluate_episodes(Catch(min(JUDGING_ENVIRONMENTS, episodes), seed), decide, episodes), preset
        )

    settings: dict[str, Any] = {"cells": CELLS, "pixels": PIXELS}
    return Task(
        name="catch",
        environment=EnvironmentSpec("catch", settings),
        observation=(ObservationField("picture", (CELLS * PIXELS, CELLS * PIXELS, 1), "grey level"),),
        head=DiscreteHead(("left", "stay", "right")),
        control_period_s=1.0,
        presets=("",),
        make=Catch,
        evaluate=evaluate,
    )
