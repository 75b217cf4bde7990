"""The paper's cells as tables show them: their order, its figures, other people's, and those without a policy here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.report.tables import Table
from bench.report.text import NOT_KNOWN
from train.suites.cells import Cell, load_cells

PRECISIONS = ("fp32", "fp16", "int8")
SUITES = {
    "classic": "classic control",
    "box2d": "Box2D",
    "pybullet": "PyBullet",
    "mujoco": "MuJoCo",
    "dm_control": "DeepMind Control",
    "atari": "Atari",
    "gym": "Gymnasium",
    "navigation": "navigation",
}
"""The tables' order and words."""
METHODS = ("dqn", "ppo", "a2c", "ddpg", "d4pg")


def order(cell: Cell) -> tuple[int, int, str, int, str]:
    """Place of a cell among others: by suite, by the data file's order of tasks, by method."""
    tasks = list(dict.fromkeys(known.name.canonical for known in load_cells()))
    task, method = cell.name.canonical, cell.method
    return (
        list(SUITES).index(cell.name.suite.value),
        tasks.index(task) if task in tasks else len(tasks),
        task,
        METHODS.index(method) if method in METHODS else len(METHODS),
        method,
    )


def words(cell: Cell) -> tuple[str, str, str]:
    """Suite, task as the paper's word, and method."""
    return SUITES[cell.name.suite.value], cell.name.short_name, cell.method


def papers(cell: Cell) -> tuple[str, ...]:
    """The paper's figures."""
    return tuple(number((cell.paper or {}).get(precision)) for precision in PRECISIONS)


def number(value: float | None) -> str:
    """A figure of the paper or a target as it is: ``2,553``."""
    return NOT_KNOWN if value is None else f"{value:,.10g}".replace("-", "−")


def published(cell: Cell, steps: int | None = None) -> str:
    """Other people's figures, each at the step count nearest to ours (or its last): ``2,078 at 1 M (SB3 zoo)``."""
    found = []
    for curve in cell.published:
        points = curve["points"]
        at, value = points[-1] if steps is None else min(points, key=lambda point: abs(point[0] - steps))
        shown = f"{value:,.{0 if abs(value) >= 1000 else 1}f}".replace("-", "−")
        found.append(f"{shown} at {at / 1e6:.10g} M ({curve['name']})")
    return "; ".join(found) or NOT_KNOWN


def published_notes(cells: Sequence[Cell]) -> list[str]:
    """Whose the published figures are, and where they stand."""
    sources = {
        f"{curve['name']}: {curve['what']}, {curve['source']}": None for cell in cells for curve in cell.published
    }
    return [f"Published: environment steps in millions. {'; '.join(sources)}."] if sources else []


def open_table(cells: Iterable[Cell]) -> Table:
    """Cells that have no committed policy, and what trains them."""
    ordered = sorted(cells, key=order)
    note = "Each trains with its command; the steps are those of its settings file or of its method (--help)."
    return Table(
        "cells-open",
        "Cells without a committed policy",
        ("suite", "task", "method", "command", *(f"paper's {precision}" for precision in PRECISIONS), "published"),
        tuple((*words(cell), f"`{cell.command}`", *papers(cell), published(cell)) for cell in ordered),
        (note, *published_notes(ordered)),
        left=4,
    )
