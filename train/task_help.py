"""The defaults of one task and method as text, for ``python -m train --task … --method … --help``.

The settings' names, values and sentences are read from the source of the algorithm, so that nothing heavy is loaded.
"""

from __future__ import annotations

import ast
import dataclasses
import textwrap
from pathlib import Path
from typing import Any

from train.methods import METHODS
from train.runs.presets import DEFAULT_EVALUATIONS, load_settings, settings_path
from train.suites.names import Suite, TaskName, resolve

FOLDER = Path(__file__).resolve().parent
WIDTH = 118


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a settings dataclass: its name, its default and the sentence written under it."""

    name: str
    default: Any
    sentence: str


def settings_of(method: str) -> tuple[Setting, ...]:
    """The settings of an algorithm, in their order."""
    return tuple(fields_of(f"algorithms.{method}", METHODS[method].settings).values())


def fields_of(module: str, name: str) -> dict[str, Setting]:
    """The fields of a dataclass in ``train.MODULE`` by name: those of its bases first, as a dataclass orders them."""
    tree = ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (str(node.module).removeprefix("train."), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("train.")
        for alias in node.names
    }
    if name not in classes:
        return fields_of(*imported[name])
    found: dict[str, Setting] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and (base.id in classes or base.id in imported):
            found |= fields_of(module, base.id)
    body = classes[name].body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or node.value is None:
            continue
        field = ast.unparse(node.target)
        written = following.value if isinstance(following, ast.Expr) else None
        inherited = found[field].sentence if field in found else ""
        sentence = str(written.value) if isinstance(written, ast.Constant) else inherited
        found[field] = Setting(field, value_of(node.value), " ".join(sentence.split()))
    return found


def value_of(node: ast.expr) -> Any:
    """The value that a default is written as; its source where it is no literal."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def task_help(task: str, method: str, policy: str | None, model: str | None) -> str:
    """The text.

    Args:
        task: any name of the task.
        method: the algorithm.
        policy: ``--policy``, or None.
        model: ``--model``, or None.

    Raises:
        TaskError: there is no such task.
        SettingsError: the settings file is not valid.
    """
    name = resolve(task)
    found = load_settings(task, method, policy or "I")
    path = settings_path(name, method)
    source = f"train/settings/{path.name}" if path is not None else f"the defaults of train/algorithms/{method}.py"
    every = found.evaluate_every or max(found.steps // DEFAULT_EVALUATIONS, 1)
    lines = [
        f"python -m train --task {name.word or name.canonical} --method {method}",
        "",
        *described(name, found.task, method),
        f"network     {network_words(name, policy, model, found.network)}",
        f"steps       {found.steps:,} (--steps)",
        f"judged      every {every:,} steps on {found.evaluate_episodes} episodes, at the end on "
        f"{found.final_episodes}",
        *wrapped(f"numbers     from {source}: {found.source}", 12),
        "",
        "settings    --set NAME=VALUE; * differs from the algorithm's own default, which follows in brackets",
    ]
    known = settings_of(method)
    widest = max(len(setting.name) for setting in known)
    for setting in known:
        default = setting.default
        value = found.settings.get(setting.name, default)
        same = setting.name not in found.settings or value == default or tuple_of(value) == default
        shown = f"{'  ' if same else '* '}{setting.name:{widest}} = {plain(value)}"
        lines += wrapped(f"{shown}{'' if same else f' [{plain(default)}]'}  {setting.sentence}", widest + 5)
    return "\n".join(lines)


def described(name: TaskName, options: Any, method: str) -> list[str]:
    """What the task shows and takes; whether the method fits; what is missing where the suite is not installed."""
    from train.suites.errors import TaskError
    from train.suites.make import make_task

    kind = "" if name.suite in (Suite.NAVIGATION, Suite.GYMNASIUM) else f" ({name.suite.value})"
    try:
        task = make_task(name.canonical, None, options)
    except TaskError as error:
        if "make suites" not in str(error):
            raise
        return wrapped(f"task        {name.canonical}{kind}: {error}", 12)
    from policy.spec import DiscreteHead

    seen = (
        "image " + " × ".join(map(str, task.observation_shape)) if task.is_image else f"{task.observation_size} floats"
    )
    if isinstance(task.head, DiscreteHead):
        actions, taken = f"{task.outputs} actions ({', '.join(task.head.action_names)})", "discrete"
    else:
        actions, taken = f"{task.outputs} continuous actions", "continuous"
    period = f"{1000 * task.control_period_s:.4g} ms between decisions"
    lines = wrapped(f"task        {name.canonical}{kind}: {seen}, {actions}, {period}", 12)
    if taken not in METHODS[method].actions:
        lines += [f"            {method} cannot learn it: it takes {' or '.join(METHODS[method].actions)} actions."]
    return lines


def network_words(name: TaskName, policy: str | None, model: str | None, found: Any) -> str:
    """The network that would be trained."""
    from train.networks.policies import POLICIES

    text = model or (found.get("model") if policy is None else None)
    if text is None and policy is None and name.suite is Suite.ATARI:
        text = "nature"
    norm = ", layer normalisation" if found.get("layer_norm") and model is None and policy is None else ""
    if text is not None:
        return f"{text}{norm} (--model, --layer-norm)"
    chosen = policy or "I"
    return f"{','.join(map(str, POLICIES[chosen]))} (--policy {chosen}; or --model){norm}"


def tuple_of(value: Any) -> Any:
    """A JSON list as the tuple that the dataclass holds."""
    return tuple(value) if isinstance(value, list) else value


def plain(value: Any) -> str:
    """A value as it is typed after ``--set``."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(plain, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def wrapped(text: str, indent: int) -> list[str]:
    """Lines of at most :data:`WIDTH` signs; those after the first are indented."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_long_words=False) or [text]
