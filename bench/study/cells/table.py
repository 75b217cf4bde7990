"""The tables of the benchmark policies, from kept answers and from the paper's figures; nothing is judged here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined, kilobytes, three_digits

if TYPE_CHECKING:
    from bench.study.cells.command import Answer
    from train.suites.cells import Cell

FULL, OPEN = "cells", "cells-open"
"""Names of the tables' markers in docs/benchmark.md."""


def tables(answers: Mapping[str, Answer], bundles: Sequence[str]) -> list[Table]:
    """The full table, and that of the cells without a policy.

    Args:
        answers: by bundle name.
        bundles: names of the bundles that are there; answers of others are left out.
    """
    from train.suites.cells import load_cells

    cells = {cell.bundle_name: cell for cell in load_cells()}
    known = {name: answer for name, answer in answers.items() if name in bundles}
    rows = [(cell, known[name]) for name, cell in cells.items() if name in known]
    rows += [(extra_cell(answer), answer) for name, answer in sorted(known.items()) if name not in cells]
    rows.sort(key=lambda pair: order(pair[0]))
    unjudged = [name for name in bundles if name not in known]
    return [
        full_table(rows, unjudged),
        open_table([cell for name, cell in cells.items() if name not in bundles]),
    ]


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
    from train.suites.cells import load_cells

    tasks = list(dict.fromkeys(known.name.canonical for known in load_cells()))
    task, method = cell.name.canonical, cell.method
    return (
        list(SUITES).index(cell.name.suite.value),
        tasks.index(task) if task in tasks else len(tasks),
        task,
        METHODS.index(method) if method in METHODS else len(METHODS),
        method,
    )


def extra_cell(answer: Answer) -> Cell:
    """A cell that the paper does not have."""
    from train.suites.cells import Cell

    return Cell(answer.task, answer.method)


def full_table(rows: Sequence[tuple[Cell, Answer]], unjudged: Sequence[str]) -> Table:
    """Every figure of every trained cell."""
    headers = (
        "suite", "task", "method", "paper's fp32", "paper's fp16", "paper's int8", "published", "asked for", "fp32",
        "reached", "fp16", "int8", "fp16 − fp32", "int8 − fp32", "network", "KB fp32", "KB int8", "environment steps",
        "CPU-hours",
    )  # fmt: skip
    body = []
    for cell, answer in rows:
        body.append((
            SUITES[cell.name.suite.value], word(cell), cell.method, *papers(cell, ("fp32", "fp16", "int8")),
            published(cell, answer.steps), number(cell.target), score(answer, "fp32"), reached(cell, answer),
            score(answer, "fp16"),
            score(answer, "int8"), change(answer, "fp16"), change(answer, "int8"), answer.network,
            kilobytes(answer.played["fp32"].bytes), kilobytes(answer.played["int8"].bytes), f"{answer.steps:,}",
            hours(answer.cpu_s),
        ))  # fmt: skip
    notes = [
        *measured_notes([answer for _, answer in rows], unjudged),
        *published_notes([cell for cell, _ in rows]),
        *cell_notes(rows),
    ]
    return Table(FULL, "Trained cells", headers, tuple(body), tuple(notes), left=3)


def open_table(cells: Sequence[Cell]) -> Table:
    """The paper's cells that have no committed policy, and what trains them."""
    headers = ("suite", "task", "method", "command", "paper's fp32", "paper's fp16", "paper's int8", "published")
    body = [
        (
            SUITES[cell.name.suite.value], word(cell), cell.method, f"`{cell.command}`",
            *papers(cell, ("fp32", "fp16", "int8")), published(cell),
        )
        for cell in sorted(cells, key=order)
    ]  # fmt: skip
    note = "Each trains with its command; the steps are those of its settings file or of its method (--help)."
    notes = (note, *published_notes(cells)) if body else ()
    return Table(OPEN, "Cells without a committed policy", headers, tuple(body), notes, left=4)


def word(cell: Cell) -> str:
    """The task as the paper's word; of the DeepMind suite without the suite's name."""
    return cell.name.short_name


def papers(cell: Cell, precisions: Sequence[str]) -> tuple[str, ...]:
    """The paper's figures."""
    return tuple(number((cell.paper or {}).get(precision)) for precision in precisions)


def number(value: float | None) -> str:
    """A figure of the paper or a target as it is: ``2,553``."""
    return NOT_KNOWN if value is None else f"{value:,.10g}".replace("-", "−")


def amount(value: float, digits: int, sign: str = "") -> str:
    """A return: ``−89.4``, ``2,612``, and 0 never with a sign."""
    text = f"{value:{sign},.{digits}f}"
    return text.replace("-", "−") if any(digit in text for digit in "123456789") else f"{0:.{digits}f}"


def digits_for(*values: float) -> int:
    """Decimals with which these returns are told apart: none from 1,000 on, one below."""
    return 0 if max(abs(value) for value in values) >= 1000 else 1


def score(answer: Answer, precision: str) -> str:
    """Mean return with its interval: ``20.4 [20.2, 20.6]``."""
    played = answer.played[precision]
    low, high = played.return_interval
    digits = digits_for(played.mean_return)
    return f"{amount(played.mean_return, digits)} [{amount(low, digits)}, {amount(high, digits)}]"


def change(answer: Answer, precision: str) -> str:
    """Mean difference to fp32 on the same episodes with its interval: ``−0.1 [−0.3, +0.1]``."""
    mean, low, high = answer.differences[precision]
    if (mean, low, high) == (0.0, 0.0, 0.0):
        return "0"
    digits = digits_for(answer.played["fp32"].mean_return)
    if max(abs(mean), abs(low), abs(high)) < 0.1:
        digits = 3
    return f"{amount(mean, digits, '+')} [{amount(low, digits, '+')}, {amount(high, digits, '+')}]"


def reached(cell: Cell, answer: Answer) -> str:
    """Whether the fp32 mean reaches what is asked for, or by how much it misses it."""
    if cell.target is None:
        return NOT_KNOWN
    missing = cell.target - answer.played["fp32"].mean_return
    if missing <= 0:
        return "yes"
    return f"no, {three_digits(missing)} short"


def hours(seconds: float) -> str:
    """CPU-hours with two significant digits: ``0.0042``, ``1.3``, ``24``."""
    value = seconds / 3600
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def measured_notes(answers: Sequence[Answer], unjudged: Sequence[str]) -> list[str]:
    """What every table of returns must say beside its numbers."""
    from train.suites.names import Suite, resolve

    if not answers:
        return ["Nothing was judged yet: python -m bench.study cells"]
    counts = joined(f"{answer.episodes:,}" for answer in answers)
    seeds = joined(str(answer.seed) for answer in answers)
    notes = [
        "The paper's: single figures without intervals, of its own networks and training; asked for: the mean return "
        "that this project set itself.",
        f"Ours: mean return of {counts} greedy episodes (seed {seeds}) with its 95 % interval (normal), each "
        "precision's TFLite artifact on the same episodes; differences are paired, 95 %; 0: every episode is the same.",
        f"Executed by {joined(answer.runtime for answer in answers)} on "
        f"{joined(answer.machine for answer in answers)}; {dates(answers)}; code {codes(answers)}. Steps and "
        "CPU-hours are those of the run that made the policy, not of those before it, from each bundle's policy.json.",
    ]
    if any(resolve(answer.task).suite is Suite.ATARI for answer in answers):
        notes.append(
            "Atari games differ in nothing but how many frames pass before the first action (0 … 30), so that some of "
            "the 100 are the same game; their intervals take them for different ones."
        )
    if unjudged:
        notes.append(f"Not judged yet: {', '.join(unjudged)} (python -m bench.study cells).")
    return notes


def dates(answers: Sequence[Answer]) -> str:
    """``2026-11-20`` or the first and the last."""
    days = sorted({answer.date for answer in answers})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def codes(answers: Sequence[Answer]) -> str:
    """The versions of the code that judged; of many the first and the last, in the order of the rows."""
    versions = list(dict.fromkeys(answer.code for answer in answers))
    return joined(versions) if len(versions) <= 2 else f"{versions[0]} … {versions[-1]} ({len(versions)} versions)"


def published(cell: Cell, steps: int | None = None) -> str:
    """Other people's figures, each at the step count nearest to ours (or its last): ``2,078 at 1 M (SB3 zoo)``."""
    found = []
    for curve in cell.published:
        points = curve["points"]
        at, value = points[-1] if steps is None else min(points, key=lambda point: abs(point[0] - steps))
        found.append(f"{amount(value, digits_for(value))} at {millions(at)} ({curve['name']})")
    return "; ".join(found) or NOT_KNOWN


def millions(steps: int) -> str:
    """``0.12 M``, ``10 M``."""
    return f"{steps / 1e6:.10g} M"


def published_notes(cells: Sequence[Cell]) -> list[str]:
    """Whose the published figures are, and where they stand."""
    sources = {
        f"{curve['name']}: {curve['what']}, {curve['source']}": None for cell in cells for curve in cell.published
    }
    return [f"Published: environment steps in millions. {'; '.join(sources)}."] if sources else []


def cell_notes(rows: Sequence[tuple[Cell, Answer]]) -> list[str]:
    """What was tried for a cell that misses what is asked for."""
    return [f"{word(cell)} × {cell.method}: {cell.tried}" for cell, _ in rows if cell.tried]
