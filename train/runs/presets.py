"""Settings from data files, read, checked and overridden.

The file of a task and a method is the first that exists in ``train/settings/<suite>`` of ``<task>-<method>.json`` with
the task's canonical name (``CartPole-v1``), the same with its word (``cartpole``), and ``<suite>-<method>.json`` for
all tasks of a suite (``atari-ppo.json``); without one the algorithm's own defaults hold. A file has, all optional:
``source`` (where the numbers come from), ``steps``, ``evaluate_every``, ``evaluate_episodes`` of each,
``final_episodes`` of the last one, ``settings`` (fields of the algorithm's dataclass), ``task`` (options of the task),
``network`` (``model`` and ``layer_norm``), and ``policies``: the same keys for one policy, which win over the common
ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from quarl.policy.errors import QuarlError
from quarl.train.suites.names import TaskName, resolve

FOLDER = Path(__file__).resolve().parent.parent / "settings"
DEFAULT_STEPS = 200_000
DEFAULT_EVALUATIONS = 20  # greedy evaluations in a run, unless the file says how often

T = TypeVar("T")


class SettingsError(QuarlError, ValueError):
    """A setting is not known or of the wrong type."""

    exit_code = 2


@dataclass(frozen=True)
class TaskSettings:
    """What the data file says about one task, method and policy; see the module's docstring."""

    source: str = "defaults of the algorithm's dataclass"
    steps: int = DEFAULT_STEPS
    evaluate_every: int = 0
    evaluate_episodes: int = 20
    final_episodes: int = 100
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)


def settings_path(name: TaskName, method: str, folder: Path = FOLDER) -> Path | None:
    """Return the data file of a task and a method, or None; see the module's docstring."""
    stems = dict.fromkeys((name.file_name, name.short_name, name.suite.value))
    paths = (folder / name.suite.value / f"{stem}-{method}.json" for stem in stems)
    return next((path for path in paths if path.is_file()), None)


def load_settings(task: str, method: str, policy: str, folder: Path = FOLDER) -> TaskSettings:
    """Return the settings of a task (any name of it), a method and a policy of the case study; defaults without a file.

    Raises:
        SettingsError: the file is no JSON or has a key that means nothing.
    """
    path = settings_path(resolve(task), method, folder)
    if path is None:
        return TaskSettings()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}.") from error
    own = data.pop("policies", {}).get(policy, {})
    merged = {**data, **own}
    for group in ("settings", "task"):
        merged[group] = {**data.get(group, {}), **own.get(group, {})}
    known = {part.name for part in dataclasses.fields(TaskSettings)}
    if unknown := sorted(merged.keys() - known):
        raise SettingsError(f"{path} has the unknown keys {unknown}; known are {sorted(known | {'policies'})}.")
    return TaskSettings(**merged)


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """``["learning_rate=1e-3", "value_hidden=[64,64]", "engine=numpy"]`` as a dict; values are JSON or a word.

    Raises:
        SettingsError: a pair is not NAME=VALUE.
    """
    overrides: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise SettingsError(f"--set must be NAME=VALUE, got {pair}. Type --set epochs=4, for example.")
        try:
            overrides[name] = json.loads(text)
        except ValueError:  # where a number is wanted, build refuses a word
            overrides[name] = text
    return overrides


def build(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an instance of a settings dataclass from JSON values.

    Raises:
        SettingsError: names a value that is unknown, of the wrong type, or refused by the dataclass.
    """
    types = get_type_hints(kind)
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in types:
            raise SettingsError(f"{kind.__name__} has no setting {name!r}; it has {', '.join(types)}.")
        wanted = types[name] if isinstance(types[name], type) else tuple
        if isinstance(value, list):
            value = tuple(value)
        elif wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise SettingsError(f"setting {name} must be a {wanted.__name__}, got {value!r}.")
        checked[name] = value
    try:
        return kind(**checked)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def check_run(settings: Any, steps: int, is_image: bool) -> None:
    """Refuse settings of an algorithm that a run of this many steps, on images or not, would silently ignore.

    Raises:
        SettingsError: says what to type.
    """
    try:
        if hasattr(settings, "check_run"):
            settings.check_run(steps, is_image)
    except ValueError as error:
        raise SettingsError(str(error)) from error
