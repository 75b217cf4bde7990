"""What the command line asks of a task beside its settings file: looks; of navigation late commands, a curriculum."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from quarl.train.suites.errors import TaskError
from quarl.train.suites.looks import LOOKS
from quarl.train.suites.names import Suite, resolve


def with_asked(options: Mapping[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The task's options with those that ``--looks``, ``--command-latency`` and ``--curriculum`` stand for.

    Raises:
        TaskError: the task is not navigation, or the value is no latency.
    """
    chosen = dict(options)
    if arguments.looks is not None:
        chosen[LOOKS] = arguments.looks
    if arguments.command_latency is not None:
        refuse_elsewhere("--command-latency", arguments.task)
        from quarl.train.suites.command_latency import read_command_latency

        latency = read_command_latency(arguments.command_latency).to_settings()
        chosen["settings"] = {**options.get("settings", {}), "latency": latency}
    if arguments.curriculum:
        refuse_elsewhere("--curriculum", arguments.task)
        from quarl.train.suites.zones import DEFAULTS

        chosen["curriculum"] = options.get("curriculum") or dict(DEFAULTS)
    return chosen


def refuse_elsewhere(option: str, task: str) -> None:
    """Refuse an option of the navigation task where another was named.

    Raises:
        TaskError: says what to leave out.
    """
    if resolve(task).suite is not Suite.NAVIGATION:
        raise TaskError(f"{option} means nothing to the task {task}. Leave it out.")
