"""``python -m train.list``: every task and method of the paper's tables, and its state.

    python -m train.list                    the cells as a table
    python -m train.list --task pong        only those of one task, with the command that trains each
    python -m train.list --json             all of it as one JSON document

Exit codes: 0 listed; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from policy.hints import Parser, as_typed
from train.runs.presets import settings_path
from train.suites.cells import Cell, load_cells
from train.suites.installed import NEEDS, missing_packages
from train.suites.names import Suite, known_words, resolve

USAGE = 2
PROJECT_ROOT = Path(__file__).resolve().parent.parent
BENCHMARK = PROJECT_ROOT / "zoo" / "benchmark"
SPEC = "policy.json"


@dataclass(frozen=True)
class State:
    """A cell as it stands in this checkout.

    Attributes:
        cell: the cell.
        missing: packages of its suite that are not installed.
        settings: path of its settings file, or None.
        bundle: path of its committed bundle, or None.
        judged_return: mean return of that bundle's last judgement, over ``judged_episodes`` episodes, or None.
        steps, cpu_s: what its training took, or None.
    """

    cell: Cell
    missing: tuple[str, ...]
    settings: str | None
    bundle: str | None
    judged_return: float | None = None
    judged_episodes: int | None = None
    steps: int | None = None
    cpu_s: float | None = None

    @property
    def summary(self) -> str:
        """In a word or two: ``trained``, ``below target``, ``not trained``."""
        if self.bundle is None:
            return "not trained"
        target = self.cell.target
        if target is None or self.judged_return is None or self.judged_return >= target:
            return "trained"
        return "below target"

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        cell = self.cell
        return {
            "task": cell.task,
            "method": cell.method,
            "canonical_task": cell.name.canonical,
            "suite": cell.name.suite.value,
            "installed": not self.missing,
            **{part.name: getattr(self, part.name) for part in fields(self) if part.name != "cell"},
            "paper": None if cell.paper is None else dict(cell.paper),
            "target": cell.target,
            "state": self.summary,
            "command": cell.command,
        }


def state_of(cell: Cell, benchmark: Path = BENCHMARK) -> State:
    """The state of a cell; reads files only, and imports no suite."""
    settings = settings_path(cell.name, cell.method)
    missing = tuple(missing_packages(cell.name.suite))
    path = None if settings is None else str(settings.relative_to(PROJECT_ROOT))
    folder = benchmark / cell.bundle_name
    if not (folder / SPEC).is_file():
        return State(cell, missing, path, None)
    origin = json.loads((folder / SPEC).read_text(encoding="utf-8")).get("provenance", {})
    judged = (origin.get("judged") or [{}])[0]
    shown = folder.relative_to(PROJECT_ROOT) if folder.is_relative_to(PROJECT_ROOT) else folder
    return State(
        cell,
        missing,
        path,
        str(shown),
        judged.get("mean_return"),
        judged.get("episodes"),
        origin.get("steps"),
        origin.get("cpu_s"),
    )


def parser() -> argparse.ArgumentParser:
    """The options; the same names mean the same in every command of the project."""
    options = Parser(
        prog="python -m train.list", description="Every task and method of the paper's tables, and its state."
    )
    options.add_argument("--task", help="only the cells of this task")
    options.add_argument("--method", type=str.lower, help="only the cells of this method")
    options.add_argument("--json", action="store_true", help="print one JSON document")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = parser().parse_args(argv)
    cells = [
        cell
        for cell in load_cells()
        if (arguments.task is None or cell.name == resolve(arguments.task))
        and (arguments.method is None or cell.method == arguments.method)
    ]
    if not cells:
        print(
            f"error: no cell has --task {arguments.task or 'any'} and --method {arguments.method or 'any'}. "
            + as_typed("Any Gymnasium id trains all the same: python -m train --task CartPole-v1 --method ppo"),
            file=sys.stderr,
        )
        return USAGE
    states = [state_of(cell) for cell in cells]
    if arguments.json:
        print(json.dumps({"cells": [state.values() for state in states], "suites": suites()}, indent=2))
    else:
        print_table(states)
        if arguments.task is not None or arguments.method is not None:
            print(as_typed("\n".join(state.cell.command for state in states)))
    return 0


def suites() -> dict[str, Any]:
    """Every suite that needs packages of its own: its extra and what of it is missing."""
    return {suite.value: {"extra": extra, "missing": missing_packages(suite)} for suite, (extra, _) in NEEDS.items()}


def print_table(states: Sequence[State]) -> None:
    """The cells as a table, and below it what is missing and which words there are."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=as_typed("python -m train --task TASK --method METHOD"))
    for heading in ("task", "method", "suite", "state", "return", "target", "paper", "settings"):
        table.add_column(heading, justify="right" if heading in ("return", "target", "paper") else "left")
    for state in states:
        cell = state.cell
        table.add_row(
            cell.task,
            cell.method,
            cell.name.suite.value + (" (not installed)" if state.missing else ""),
            state.summary,
            shown(state.judged_return),
            shown(cell.target),
            shown(None if cell.paper is None else cell.paper.get("fp32")),
            "defaults" if state.settings is None else Path(state.settings).name,
        )
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table)
    lines = ["Return: the committed bundle's last judgement; paper: its mean return in fp32."]
    if absent := [suite.value for suite in NEEDS if missing_packages(suite)]:
        lines.append(f"Not installed: {', '.join(absent)}. Type: make suites")
    lines += [
        "Words: " + ", ".join(known_words()) + ",",
        f"{Suite.DM_CONTROL.value},DOMAIN_TASK, {Suite.ATARI.value},GAME, or any Gymnasium id (HalfCheetah-v5).",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def shown(value: float | None) -> str:
    """A figure of the table."""
    if value is None:
        return "–"
    return f"{value:,.1f}".removesuffix(".0")


if __name__ == "__main__":
    sys.exit(main())
