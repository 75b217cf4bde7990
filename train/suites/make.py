"""From a task's name to the task; the module of its suite is imported only then.

``navigation`` is the task of ``airlearning_envs`` flown through its numpy core, ``navigation-depth`` the same with a
depth picture in place of the ranges. Any other name is a word of the
benchmark suites or a Gymnasium id such as ``CartPole-v1`` (``train/suites/names.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from quarl.train.suites.episodes import Episodes
from quarl.train.suites.errors import TaskError
from quarl.train.suites.history import HISTORY_LENGTH, with_history
from quarl.train.suites.names import (
    MAX_EPISODE_STEPS,
    NAVIGATION_DEPTH_NAME,
    Suite,
    TaskName,
    require_installed,
    resolve,
)
from quarl.train.suites.task import Task

BATCHED = (Suite.NAVIGATION, Suite.ATARI)
"""Suites that step all environments as one batch already."""


def make_task(name: str, preset: str | None = None, options: Mapping[str, Any] | None = None, workers: int = 1) -> Task:
    """Return the task of that name; see :func:`train.suites.names.resolve`.

    Args:
        preset: to train on, for a task that has presets; None is the task's own default.
        options: further settings of the task, as found in the settings file; any task has ``looks``, the length of its
            history (``train/suites/history.py``).
        workers: processes that step its environments (``train/suites/workers.py``); 1 is this one.

    Raises:
        TaskError: the name, the preset or an option is not known, or the suite is not installed; says what is.
    """
    chosen = resolve(name)
    if workers < 1:
        raise TaskError(f"--workers must be 1 (this process) or more, got {workers}.")
    if workers > 1:
        task = make_task(name, preset, options)
        if chosen.suite in BATCHED or not task.paired:
            raise TaskError(
                f"--workers {workers} is not available for the task {name}: its environments are already stepped as "
                "one batch. Leave it out."
            )
        from quarl.train.suites.workers import in_processes

        return in_processes(task, partial(make_episodes, name, preset, options), workers)
    require_installed(chosen)
    own = {name: value for name, value in (options or {}).items() if name != HISTORY_LENGTH}
    return with_history(_of_suite(chosen, name, preset, own), (options or {}).get(HISTORY_LENGTH, 1))


def _of_suite(chosen: TaskName, name: str, preset: str | None, options: Mapping[str, Any]) -> Task:
    if MAX_EPISODE_STEPS in options and chosen.suite in (*BATCHED, Suite.DM_CONTROL):
        raise TaskError(
            f"--max-episode-steps is not available for the task {name}, which has its own time limit. Leave it out."
        )
    if chosen.suite is Suite.NAVIGATION:
        from quarl.train.suites.navigation import navigation_task

        return navigation_task(preset, options, depth=chosen == NAVIGATION_DEPTH_NAME)
    if preset is not None:
        raise TaskError(f"--preset {preset} is not available for the task {name}. Leave it out.")
    if chosen.suite is Suite.ATARI:
        from quarl.train.suites.atari import atari_task

        return replace(atari_task(chosen.target, options), name=chosen.canonical)
    if chosen.suite is Suite.DM_CONTROL:
        from quarl.train.suites.deepmind import deepmind_task

        return deepmind_task(chosen, options)
    if chosen.suite in (Suite.GYMNASIUM, Suite.VECTOR):
        from quarl.train.suites.vector_task import find_maker, vector_task

        if (maker := find_maker(chosen, options)) is not None:
            return vector_task(chosen, options, maker)
    from quarl.train.suites.gymnasium_task import gymnasium_task

    return gymnasium_task(chosen, options)


def make_episodes(
    name: str, preset: str | None, options: Mapping[str, Any] | None, environments: int, seed: int
) -> Episodes:
    """Return the training episodes of a task that is made again, for another process; see :func:`make_task`."""
    return make_task(name, preset, options).make(environments, seed)
