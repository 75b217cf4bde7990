"""A task whose policy sees its last observations: ``--history-length 4``, a memory without recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.pilot import Decide, Histories, begin
from quarl.policy.spec import Memory, ObservationField, Remembered
from quarl.train.suites.episodes import Actions, Episodes, Observations, StepResult
from quarl.train.suites.errors import TaskError
from quarl.train.suites.task import Task

HISTORY_LENGTH = "looks"
"""Name of the option in settings files and bundles."""
MAX_HISTORY_LENGTH = 64


class HistoryEpisodes:
    """Episodes whose observations are the last ones of each, the oldest first; before the first they are zero.

    Args:
        episodes: of one observation at a time.
        fields: with a memory of this many observations.
    """

    def __init__(self, episodes: Episodes, fields: tuple[ObservationField, ...]) -> None:
        self._episodes, self._histories = episodes, Histories(fields)
        self.environments = episodes.environments

    def __getattr__(self, name: str) -> Any:
        """Return what else the episodes have, as ``replayable`` or ``progression``."""
        return getattr(self._episodes, name)

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """Begin the masked episodes; see :class:`train.suites.episodes.Episodes`."""
        observation = self._episodes.reset(mask, episode_ids)
        self._histories.begin(mask)
        return self._histories.observe(observation, mask)

    def step(self, actions: Actions) -> StepResult:
        """Return one step; see :class:`train.suites.episodes.Episodes`."""
        result = self._episodes.step(actions)
        return replace(result, observation=self._histories.observe(result.observation))


class HistoryPolicy:
    """A function of the last observations as one of what each period brings.

    Args:
        fields: with their memory.
        decide: whole observations to actions; it may want to be told where episodes begin.
    """

    def __init__(self, fields: tuple[ObservationField, ...], decide: Decide) -> None:
        self._histories, self._decide = Histories(fields), decide

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Episodes begin where the mask (n,) says."""
        self._histories.begin(mask)
        begin(self._decide, mask)

    def __call__(self, values: Observations) -> Actions:
        """Return what this period brings, (n, values_size), to actions."""
        return self._decide(self._histories.observe(values))


def with_history(task: Task, length: int) -> Task:
    """Return the task with its last ``length`` observations as one.

    Raises:
        TaskError: it shows images, whose frames it stacks itself, or that is no length.
    """
    if type(length) is not int or not 1 <= length <= MAX_HISTORY_LENGTH:
        raise TaskError(
            f"--history-length must be 1 (no memory) to {MAX_HISTORY_LENGTH}, got {length}.",
            code="history_length_out_of_range",
        )
    if length == 1:
        return task
    if task.has_image or task.teacher_observation is not None:
        raise TaskError(
            f"--history-length is not available for {task.name}, which has image observations. Leave it out."
        )
    fields = tuple(
        replace(field, shape=(length, *field.shape), memory=Memory(Remembered.OBSERVATION, (0.0,) * field.size))
        for field in task.observation
    )
    bounds = task.bounds
    if bounds is not None:
        ends = np.cumsum([field.size for field in task.observation])[:-1]
        low, high = (np.concatenate([np.tile(part, length) for part in np.split(side, ends)]) for side in bounds)
        bounds = np.minimum(low, 0.0), np.maximum(high, 0.0)
    return replace(
        task,
        observation=fields,
        bounds=bounds,
        make=lambda count, seed: HistoryEpisodes(task.make(count, seed), fields),
    )


def as_single_observations(task: Task, decide: Decide) -> Decide:
    """Return a function of a task's whole observations as one of what each period brings: for evaluation."""
    remembers = any(field.memory is not None for field in task.observation)
    return HistoryPolicy(task.observation, decide) if remembers else decide
