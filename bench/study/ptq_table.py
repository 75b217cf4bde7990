"""The tables of QuaRL's post-training quantization for the policies committed here, from what judging them kept.

Relative error as the paper computes it, E = 100 · (F − Q) / |F| percent of the mean returns F of fp32 and Q of what
was quantized: positive where the quantized policy earns less. (The paper's means per algorithm follow from its returns
in that way.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, joined, lost
from bench.study import cells
from bench.study.experiment import ERROR, RETURN, Results
from bench.study.paper_cells import METHODS, PRECISIONS, papers, words
from train.suites.cells import load_cells

if TYPE_CHECKING:
    from bench.study.sweep.store import Sweep
    from train.suites.cells import Cell

CELLS, ALGORITHMS = "study-cells", "study-algorithms"
"""Names of the tables, and of their markers in docs/study.md."""

EIGHT_BITS, PAPERS_SCHEME = "8", ("quarl", "weights")


@dataclass(frozen=True)
class Judged:
    """A judged bundle and, where one is stored, its sweep by the paper's quantizer of weights alone."""

    judged: cells.Judged
    sweep: Sweep | None = None

    @property
    def cell(self) -> Cell:
        """Which."""
        return self.judged.cell

    def error(self, precision: str) -> Estimate | None:
        """Relative error of an artifact's mean return, percent; None where fp32's is 0."""
        found: Estimate | None = self.judged.value(ERROR, precision)
        return found

    @property
    def papers_scheme_error(self) -> Estimate | None:
        """Relative error at 8 bits by the paper's quantizer; None without a sweep."""
        for width in self.sweep.widths if self.sweep is not None else ():
            if width.name == EIGHT_BITS:
                return width.changes[0].relative_error
        return None

    def papers_error(self, precision: str) -> float | None:
        """That of the paper's figures, percent; None where it has none."""
        return papers_error(self.cell, precision)


def papers_error(cell: Cell, precision: str) -> float | None:
    """Relative error of the paper's figures of a cell, percent; None where it has none."""
    if cell.paper is None or not cell.paper.get("fp32"):
        return None
    return 100.0 * (cell.paper["fp32"] - cell.paper[precision]) / abs(cell.paper["fp32"])


def judged(results: Results, sweeps: Sequence[Sweep]) -> list[Judged]:
    """What there is to tabulate, in the tables' order.

    Args:
        results: of the study ``cells``.
        sweeps: those that are stored; of other weights they are left out.
    """
    found = []
    for each in cells.judged(results):
        identity = next(record["identity"] for record in results.found if record["subject"] == each.subject)
        mine = [
            sweep
            for sweep in sweeps
            if (sweep.bundle, sweep.weights_sha256) == (each.subject, identity)
            and (sweep.scheme.value, sweep.variant) == PAPERS_SCHEME
        ]
        found.append(Judged(each, mine[0] if mine else None))
    return found


def tables(results: Results, sweeps: Sequence[Sweep]) -> list[Table]:
    """The table of cells and that of algorithms; see :func:`judged`."""
    rows = judged(results, sweeps)
    return [cells_table(rows, results.where), algorithms_table(rows)]


def cells_table(rows: Sequence[Judged], where: str) -> Table:
    """Every cell that has a policy: returns, relative errors, the paper's beside."""
    headers = (
        "task", "method", "fp32", "fp16", "int8", "fp16 error, %", "int8 error, %", "quarl 8 bits error, %",
        "paper's fp32", "paper's fp16", "paper's int8", "paper's int8 error, %",
    )  # fmt: skip
    body = []
    for row in rows:
        body.append((
            *words(row.cell)[1:], *(estimate(row.judged.value(RETURN, name)) for name in PRECISIONS),
            percent(row.error("fp16")), percent(row.error("int8")), percent(row.papers_scheme_error),
            *papers(row.cell), single(row.papers_error("int8")),
        ))  # fmt: skip
    notes = (
        "Error: (fp32 − it) / |fp32| of the mean returns, in percent, as the paper computes it; negative: better than "
        "fp32. In brackets 95 % intervals, of errors from the same episodes with both (ratio of paired means).",
        f"fp32, fp16, int8: artifacts as {joined(row.judged.fp32['executed_by'] for row in rows)} executes them, "
        f"{joined(str(row.judged.fp32['episodes']) for row in rows)} different greedy episodes each; int8 has integer "
        "weights and activations, as a device executes it. Quarl 8 bits: the paper's quantizer on the weights alone, "
        "simulated (python -m bench.study sweep BUNDLE --weights-only), on other episodes.",
        "The paper's: single figures without intervals, of its own networks and training.",
        f"Measured on {where}.",
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
        ours, theirs = mean_error(shared), mean(everywhere)
        same = mean([error for row in shared for error in errors_of(row.cell)])
        body.append((
            method, cell_words(shared), percent(ours), single(same), verdict(ours, same), single(theirs),
            verdict(ours, theirs), cell_words(mine), percent(mean_error(mine)),
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
    found = papers_error(cell, "int8")
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
    return ", ".join(words(row.cell)[1] for row in rows) or NOT_KNOWN


def percent(error: Estimate | None) -> str:
    """``+0.92 [+0.66, +1.18]``; ``0`` where nothing changed."""
    return lost(error, "+")


def single(value: float | None) -> str:
    """The paper's percentages: ``+7.65``."""
    if value is None:
        return NOT_KNOWN
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0"
