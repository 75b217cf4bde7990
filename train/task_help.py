"""The defaults of one task and method as text, for ``quarl train --task … --method … --defaults``.

Sentences of the settings are those of ``train.algorithms.common.settings.setting``; no TensorFlow is loaded for them.
"""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

from quarl.train.algorithms.common.settings import about
from quarl.train.methods import METHODS, kind_of, settings_class
from quarl.train.networks.policies import POLICIES
from quarl.train.runs.presets import DEFAULT_EVALUATIONS, load_settings, settings_path
from quarl.train.suites.names import Suite, TaskName, resolve

WIDTH = 118


def task_help(task: str, method: str, policy: str | None, model: str | None) -> str:
    """Return the text for any name of a task, a method, and what was typed as ``--policy`` and ``--model``, if
    anything.

    Raises:
        TaskError: there is no such task.
        SettingsError: the settings file is not valid.
    """
    name = resolve(task)
    task_settings = load_settings(task, method, policy or "I")
    path = settings_path(name, method)
    source = (
        f"train/settings/{path.parent.name}/{path.name}"
        if path is not None
        else f"the defaults of train/algorithms/{method}.py"
    )
    every = task_settings.evaluate_every or max(task_settings.steps // DEFAULT_EVALUATIONS, 1)
    lines = [
        f"quarl train --task {name.word or name.canonical} --method {method}",
        "",
        *describe_task(name, task_settings.task, method),
        f"network     {network_words(name, policy, model, task_settings.network)}",
        f"steps       {task_settings.steps:,} (--steps)",
        f"judged      every {every:,} steps on {task_settings.evaluate_episodes} episodes, at the end on "
        f"{task_settings.final_episodes}",
        *wrap_lines(f"numbers     from {source}: {task_settings.source}", 12),
        "",
        "settings    --set NAME=VALUE; * differs from the algorithm's own default, which follows in brackets",
    ]
    kind = settings_class(method)
    known = dataclasses.fields(kind)
    widest = max(len(setting.name) for setting in known)
    for setting in known:
        value, default = plain(task_settings.settings.get(setting.name, setting.default)), plain(setting.default)
        star, own = ("  ", "") if value == default else ("* ", f" [{default}]")
        lines += wrap_lines(
            f"{star}{setting.name:{widest}} = {value}{own}  {about(kind, setting.name)['sentence']}", widest + 5
        )
    return "\n".join(lines)


def describe_task(name: TaskName, options: Any, method: str) -> list[str]:
    """Return what the task shows and takes; whether the method fits; what is missing where the suite is not
    installed."""
    from quarl.policy.spec import DiscreteHead
    from quarl.train.suites.errors import TaskError
    from quarl.train.suites.make import make_task

    kind = "" if name.suite in (Suite.NAVIGATION, Suite.GYMNASIUM) else f" ({name.suite.value})"
    try:
        task = make_task(name.canonical, None, options)
    except TaskError as error:
        if "make suites" not in str(error):
            raise
        return wrap_lines(f"task        {name.canonical}{kind}: {error}", 12)
    shape = " × ".join(map(str, task.network_shape))
    seen = f"image {shape}" if task.has_image else f"{shape} floats"
    seen += f" and {task.vector_size} floats" if task.vector_size else ""
    if isinstance(task.head, DiscreteHead):
        actions = f"{task.outputs} actions ({', '.join(task.head.action_names)})"
    else:
        actions = task.head.describe() if task.is_discrete else f"{task.outputs} continuous actions"
    period = f"{1000 * task.control_period_s:.4g} ms between decisions"
    lines = wrap_lines(f"task        {name.canonical}{kind}: {seen}, {actions}, {period}", 12)
    if kind_of(task) not in METHODS[method].actions:
        lines += [f"            {method} cannot learn it: it takes {' or '.join(METHODS[method].actions)} actions."]
    return lines


def network_words(name: TaskName, policy: str | None, model: str | None, found: Any) -> str:
    """Return the network that would be trained."""
    text = model or (found.get("model") if policy is None else None)
    if text is None and policy is None and name.suite is Suite.ATARI:
        text = "nature"
    norm = ", layer normalisation" if found.get("layer_norm") and model is None and policy is None else ""
    if text is not None:
        return f"{text}{norm} (--model, --layer-norm)"
    chosen = policy or "I"
    return f"{','.join(map(str, POLICIES[chosen]))} (--policy {chosen}; or --model){norm}"


def plain(value: Any) -> str:
    """Return a value as it is typed after ``--set``."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(plain, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def wrap_lines(text: str, indent: int) -> list[str]:
    """Lines of at most :data:`WIDTH` signs; those after the first are indented."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_long_words=False) or [text]
