"""``quarl tasks``: every task and method of the benchmark, the paper's and more, and its state."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.policy.places import PROJECT_ROOT, ZOO
from quarl.train.runs.presets import settings_path
from quarl.train.suites.cells import Cell, load_cells
from quarl.train.suites.errors import TaskError
from quarl.train.suites.names import NEEDS, Suite, list_task_words, missing_packages, resolve

BENCHMARK = ZOO / "benchmark"
SPEC = "policy.json"


def state_of(cell: Cell, benchmark: Path = BENCHMARK) -> dict[str, Any]:
    """Return a cell as it stands in this checkout, as JSON values; reads files only, and imports no suite.

    Beside the cell's own: ``missing`` packages of its suite, paths of its ``settings`` and its committed ``bundle``,
    that bundle's last judgement (``judged_return`` over ``judged_episodes``), the ``steps`` and ``cpu_s`` of its
    training, and the ``state`` in a word or two: ``trained``, ``below target``, ``not trained``.
    """
    settings, missing = settings_path(cell.name, cell.method), missing_packages(cell.name.suite)
    folder = benchmark / cell.bundle_name
    is_trained, origin, evaluation = (folder / SPEC).is_file(), {}, {}
    if is_trained:
        origin = json.loads((folder / SPEC).read_text(encoding="utf-8")).get("provenance", {})
        evaluation = (origin.get("judged") or [{}])[0]
    reached, target = evaluation.get("mean_return"), cell.target
    missed = target is not None and reached is not None and reached < target
    return {
        "task": cell.task,
        "method": cell.method,
        "canonical_task": cell.name.canonical,
        "suite": cell.name.suite.value,
        "installed": not missing,
        "missing": missing,
        "settings": None if settings is None else here(settings),
        "bundle": here(folder) if is_trained else None,
        "judged_return": reached,
        "judged_episodes": evaluation.get("episodes"),
        "steps": origin.get("steps"),
        "cpu_s": origin.get("cpu_s"),
        "paper": None if cell.paper is None else dict(cell.paper),
        "target": target,
        "state": "not trained" if not is_trained else "below target" if missed else "trained",
        "command": cell.command,
    }


def here(path: Path) -> str:
    """Return a path of this checkout as it is seen from its root."""
    return str(path.relative_to(PROJECT_ROOT) if path.is_relative_to(PROJECT_ROOT) else path)


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """List tasks and methods.

    Attributes:
        task: only the cells of this task, with the command that trains each
        method: only the cells of this method
        json: print one JSON document
    """

    task: str | None = None
    method: Annotated[str | None, cli.reads(str.lower)] = None
    json: bool = False


@cli.verb()
def run(options: Options) -> Any:
    """List every task and method of the benchmark, and its state.

    quarl tasks
    quarl tasks --task pong
    """
    task, method = options.task, options.method
    name = None if task is None else resolve(task)
    cells = [cell for cell in load_cells() if name in (None, cell.name) and method in (None, cell.method)]
    if not cells:
        raise TaskError(
            f"the list has no entry with --task {task or 'any'} and --method {method or 'any'}.",
            "Any Gymnasium task can be trained, listed or not: quarl train --task CartPole-v1 --method ppo",
        )
    states = [state_of(cell) for cell in cells]
    suites = {suite.value: {"extra": extra, "missing": missing_packages(suite)} for suite, (extra, _) in NEEDS.items()}
    if not options.json:
        print_table(states)
    typed = [state["command"] for state in states] if task is not None or method is not None else []
    return {"cells": states, "suites": suites}, "\n".join(typed)


def print_table(states: Sequence[Mapping[str, Any]]) -> None:
    """Print the cells as a table, and below it what is missing and which words there are."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="quarl train --task TASK --method METHOD")
    for heading in ("task", "method", "suite", "state", "return", "target", "paper", "settings"):
        table.add_column(heading, justify="right" if heading in ("return", "target", "paper") else "left")
    for state in states:
        table.add_row(
            state["task"],
            state["method"],
            state["suite"] + ("" if state["installed"] else " (not installed)"),
            state["state"],
            *(
                format_figure(value)
                for value in (state["judged_return"], state["target"], (state["paper"] or {}).get("fp32"))
            ),
            "defaults" if state["settings"] is None else Path(state["settings"]).name,
        )
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table)
    lines = ["Return: the committed bundle's last judgement; paper: its mean return in fp32."]
    if absent := [suite.value for suite in NEEDS if missing_packages(suite)]:
        lines.append(f"Not installed: {', '.join(absent)}. Type: make suites")
    lines += [
        "Words: " + ", ".join(list_task_words()) + ",",
        f"{Suite.DM_CONTROL.value},DOMAIN_TASK, {Suite.ATARI.value},GAME, or any Gymnasium id (HalfCheetah-v5).",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def format_figure(value: float | None) -> str:
    """Return a figure of the table."""
    return "–" if value is None else f"{value:,.1f}".removesuffix(".0")


main = cli.of("tasks")

if __name__ == "__main__":
    raise SystemExit(main())
