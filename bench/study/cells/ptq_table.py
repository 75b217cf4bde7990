"""The tables of QuaRL's post-training quantization for the policies committed here, from what judging them kept.

Relative error as the paper computes it, E = 100 · (F − Q) / |F| percent of the mean returns F of fp32 and Q of what
was quantized: positive where the quantized policy earns less. (The paper's means per algorithm follow from its returns
in that way.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined
from bench.report.text import estimate as bracketed
from bench.study.cells.table import METHODS, codes, dates, extra_cell, number, order, score, word
from bench.study.sweep_tables import papers_error
from train.suites.cells import load_cells

if TYPE_CHECKING:
    from bench.study.cells.command import Answer
    from bench.study.experiment import Results
    from train.suites.cells import Cell

CELLS, ALGORITHMS = "study-cells", "study-algorithms"
"""Names of the tables, and of their markers in docs/study.md."""

EIGHT_BITS = 8


@dataclass(frozen=True)
class Judged:
    """A cell with its answer and, where that was measured, its relative error at 8 bits by the paper's quantizer."""

    cell: Cell
    answer: Answer
    papers_scheme_error: Estimate | None = None

    def error(self, precision: str) -> Estimate | None:
        """Relative error of an artifact's mean return, percent; None where fp32's is 0."""
        played = self.answer.played
        return Estimate.of_relative_error(played[precision].returns, played["fp32"].returns)

    def papers_error(self, precision: str) -> float | None:
        """That of the paper's figures, percent; None where it has none."""
        return published_error(self.cell, precision)


def published_error(cell: Cell, precision: str) -> float | None:
    """Relative error of the paper's figures of a cell, percent; None where it has none."""
    if cell.paper is None or not cell.paper.get("fp32"):
        return None
    return 100.0 * (cell.paper["fp32"] - cell.paper[precision]) / abs(cell.paper["fp32"])


def judged(answers: Mapping[str, Answer], sweeps: Results, weights: Mapping[str, str]) -> list[Judged]:
    """What there is to tabulate, in the tables' order.

    Args:
        answers: by bundle name.
        sweeps: those that are stored about these weights.
        weights: SHA-256 of the weights of every bundle that is there, by name; what is of others is left out.
    """
    cells = {cell.bundle_name: cell for cell in load_cells()}
    found = []
    for name, sha256 in weights.items():
        answer = answers.get(name)
        if answer is None or answer.weights_sha256 != sha256:
            continue
        found.append(Judged(cells.get(name) or extra_cell(answer), answer, papers_error(sweeps, name, EIGHT_BITS)))
    return sorted(found, key=lambda each: order(each.cell))


def tables(rows: Sequence[Judged]) -> list[Table]:
    """The table of cells and that of algorithms."""
    return [cells_table(rows), algorithms_table(rows)]


def cells_table(rows: Sequence[Judged]) -> Table:
    """Every cell that has a policy: returns, relative errors, the paper's beside."""
    headers = (
        "task", "method", "fp32", "fp16", "int8", "fp16 error, %", "int8 error, %", "quarl 8 bits error, %",
        "paper's fp32", "paper's fp16", "paper's int8", "paper's int8 error, %",
    )  # fmt: skip
    body = []
    for row in rows:
        papers = row.cell.paper or {}
        body.append((
            word(row.cell), row.cell.method, *(score(row.answer, name) for name in ("fp32", "fp16", "int8")),
            percent(row.error("fp16")), percent(row.error("int8")), percent(row.papers_scheme_error),
            *(number(papers.get(name)) for name in ("fp32", "fp16", "int8")), single(row.papers_error("int8")),
        ))  # fmt: skip
    notes = (
        "Error: (fp32 − it) / |fp32| of the mean returns, in percent, as the paper computes it; negative: better than "
        "fp32. In brackets 95 % intervals, of errors from the same episodes with both (ratio of paired means).",
        f"fp32, fp16, int8: TFLite artifacts, {joined(f'{row.answer.episodes:,}' for row in rows)} greedy episodes "
        "each; int8 has integer weights and activations, as a device executes it. Quarl 8 bits: the paper's quantizer "
        "on the weights alone, simulated (python -m bench.study sweep), on other episodes.",
        "The paper's: single figures without intervals, of its own networks and training.",
        *where(rows),
    )
    return Table(CELLS, "Post-training quantization, every trained cell", headers, tuple(body), notes, left=2)


def algorithms_table(rows: Sequence[Judged]) -> Table:
    """Mean relative error of int8 for each algorithm against the paper's."""
    headers = (
        "method", "cells of the paper trained here", "int8 error, %", "paper's, same cells, %", "against it",
        "paper's, all its cells, %", "against that", "all cells trained here", "int8 error, %",
    )  # fmt: skip
    body = []
    for method in METHODS:
        mine = [row for row in rows if row.cell.method == method]
        shared = [row for row in mine if row.cell.paper is not None]
        everywhere = [error for cell in load_cells() if cell.method == method for error in errors_of(cell)]
        ours, papers = mean_error(shared), mean(everywhere)
        same = mean([error for row in shared for error in errors_of(row.cell)])
        body.append((
            method, cell_words(shared), percent(ours), single(same), verdict(ours, same), single(papers),
            verdict(ours, papers), cell_words(mine), percent(mean_error(mine)),
        ))  # fmt: skip
    notes = (
        "Mean over cells of the relative error of the int8 artifact's return; positive: the return lost. The interval "
        "joins those of the cells (independent episodes); it does not know how other trainings of a cell would fare, "
        "for each cell has one committed policy.",
        "The paper's means are computed from the returns that it prints, over all its cells of the algorithm and over "
        "those that are trained here; it gives no intervals. Inside the noise: our interval holds the paper's mean. "
        "All its cells include Atari games that are not trained here: the same cells are the fair comparison.",
    )
    return Table(ALGORITHMS, "Mean relative error of int8 by algorithm", headers, tuple(body), notes, left=2)


def errors_of(cell: Cell) -> list[float]:
    """The paper's int8 error of a cell, if it has one."""
    found = published_error(cell, "int8")
    return [] if found is None else [found]


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return math.fsum(values) / len(values) if values else None


def mean_error(rows: Sequence[Judged]) -> Estimate | None:
    """Mean of the cells' int8 errors; its half-width is √Σ hᵢ² / k, with hᵢ those of the k cells.

    None where there is no cell, or one has no error.
    """
    errors = [error for row in rows if (error := row.error("int8")) is not None]
    if not errors or len(errors) < len(rows):
        return None
    middle = math.fsum(error.value for error in errors) / len(errors)
    if any(error.low is None or error.high is None for error in errors):
        return Estimate(middle, None, None)
    half = math.sqrt(math.fsum(((e.high or 0.0) - (e.low or 0.0)) ** 2 / 4.0 for e in errors)) / len(errors)
    return Estimate(middle, middle - half, middle + half)


def verdict(ours: Estimate | None, papers: float | None) -> str:
    """``equal``, ``below``, ``above``, the last two ``inside the noise`` where the interval holds the paper's."""
    if ours is None or papers is None:
        return NOT_KNOWN
    if ours.value == ours.low == ours.high == papers:
        return "equal"
    if ours.low is None or ours.high is None:
        return "below, no interval" if ours.value < papers else "above, no interval"
    if ours.high < papers:
        return "below"
    return "above" if ours.low > papers else f"{'below' if ours.value < papers else 'above'}, inside the noise"


def cell_words(rows: Sequence[Judged]) -> str:
    """``cartpole, pong``."""
    return ", ".join(word(row.cell) for row in rows) or NOT_KNOWN


def percent(error: Estimate | None) -> str:
    """``+0.92 [+0.66, +1.18]``; ``0`` where every episode is the same."""
    if error is None:
        return NOT_KNOWN
    return "0" if (error.value, error.low, error.high) == (0.0, 0.0, 0.0) else bracketed(error, 1.0, "+")


def single(value: float | None) -> str:
    """The paper's percentages: ``+7.65``."""
    if value is None:
        return NOT_KNOWN
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0"


def where(rows: Sequence[Judged]) -> tuple[str, ...]:
    """What executed it, on which machine, when."""
    answers = [row.answer for row in rows]
    if not answers:
        return ("Nothing was judged yet: make study",)
    runtimes, machines = (joined(words) for words in ([a.runtime for a in answers], [a.machine for a in answers]))
    return (f"Executed by {runtimes} on {machines}; {dates(answers)}; code {codes(answers)}.",)
