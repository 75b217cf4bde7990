"""What is typed of a task beside its settings file: a history, a limit; of navigation late commands, a curriculum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quarl.train.suites.errors import TaskError
from quarl.train.suites.history import HISTORY_LENGTH
from quarl.train.suites.names import MAX_EPISODE_STEPS, Suite, resolve

if TYPE_CHECKING:
    from quarl.train.options import RunOptions


def with_asked(options: Mapping[str, Any], asked: RunOptions) -> dict[str, Any]:
    """Return the task's options with those of ``--history-length``, ``--max-episode-steps``, ``--command-latency`` and
    ``--curriculum``.

    Raises:
        TaskError: the task is not navigation, or the value is no latency.
    """
    chosen = dict(options)
    if asked.history_length is not None:
        chosen[HISTORY_LENGTH] = asked.history_length
    if asked.max_episode_steps is not None:
        chosen[MAX_EPISODE_STEPS] = asked.max_episode_steps
    if asked.command_latency is not None:
        refuse_elsewhere("--command-latency", asked.task)
        from quarl.train.suites.command_latency import read_command_latency

        latency = read_command_latency(asked.command_latency).to_settings()
        chosen["settings"] = {**options.get("settings", {}), "latency": latency}
    if asked.curriculum:
        refuse_elsewhere("--curriculum", asked.task)
        from quarl.train.suites.zones import DEFAULTS

        chosen["curriculum"] = options.get("curriculum") or dict(DEFAULTS)
    return chosen


def refuse_elsewhere(option: str, task: str | None) -> None:
    """Refuse an option of the navigation task where another was named.

    Raises:
        TaskError: says what to leave out.
    """
    if resolve(task or "").suite is not Suite.NAVIGATION:
        raise TaskError(f"{option} is not available for the task {task}. Leave it out.")
