"""The tables of QuaRL's post-training quantization for the policies committed here, from what judging them kept.

Relative error as the paper computes it, E = 100 · (F − Q) / |F| percent of the mean returns F of fp32 and Q of what
was quantized: positive where the quantized policy earns less. (The paper's means per algorithm follow from its returns
in that way.)

    python -m bench.study ptq                  the tables
    python -m bench.study ptq --update-docs    fills docs/study.md

Nothing is measured here: the rows are those of the studies cells and sweep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, joined, lost
from bench.study import cells, command, sweep
from bench.study.experiment import ERROR, RETURN, Results, stored
from bench.study.tables.paper_cells import METHODS, PRECISIONS, papers, words
from bench.study.tables.sweep_tables import papers_error
from train.suites.cells import load_cells

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from matplotlib.figure import Figure

    from train.suites.cells import Cell

CELLS, ALGORITHMS = "study-cells", "study-algorithms"
"""Names of the tables, and of their markers in docs/study.md."""

EIGHT_BITS = 8


@dataclass(frozen=True)
class Judged:
    """A judged bundle and, where that was measured, its relative error at 8 bits by the paper's quantizer."""

    judged: cells.Judged
    papers_scheme_error: Estimate | None = None

    @property
    def cell(self) -> Cell:
        """Which."""
        return self.judged.cell

    def error(self, precision: str) -> Estimate | None:
        """Relative error of an artifact's mean return, percent; None where fp32's is 0."""
        found: Estimate | None = self.judged.value(ERROR, precision)
        return found

    def papers_error(self, precision: str) -> float | None:
        """That of the paper's figures, percent; None where it has none."""
        return published_error(self.cell, precision)


def published_error(cell: Cell, precision: str) -> float | None:
    """Relative error of the paper's figures of a cell, percent; None where it has none."""
    if cell.paper is None or not cell.paper.get("fp32"):
        return None
    return 100.0 * (cell.paper["fp32"] - cell.paper[precision]) / abs(cell.paper["fp32"])


def judged(results: Results, sweeps: Results) -> list[Judged]:
    """What there is to tabulate, in the tables' order.

    Args:
        results: of the study ``cells``.
        sweeps: of the study ``sweep``.
    """
    return [Judged(each, papers_error(sweeps, each.subject, EIGHT_BITS)) for each in cells.judged(results)]


def main(argv: Sequence[str] | None = None) -> int:
    """Join what is kept, print."""
    parser = command_line.parser(__doc__, "-m bench.study ptq")
    command.add_output(parser)

    def run(arguments: argparse.Namespace) -> int:
        made, drawn = joined_tables()
        rows = [{"table": table.name, "headers": table.headers, "rows": table.rows} for table in made]
        return command.show(arguments, made, lambda: drawn, rows)

    return command_line.guarded(run, parser.parse_args(argv))


def joined_tables(folder: Path | None = None) -> tuple[list[Table], dict[str, Figure]]:
    """The tables of what the studies cells and sweep kept, here or in another folder; there are no pictures.

    Raises:
        BenchError: no bundle has been judged.
    """
    found, swept = (stored(each.EXPERIMENT, folder and folder / each.EXPERIMENT.path.name) for each in (cells, sweep))
    if not found.found:
        raise command_line.BenchError("no bundle was judged yet.", "python -m bench.study cells --keep")
    return tables(found, swept), {}


def tables(results: Results, sweeps: Results) -> list[Table]:
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
        "simulated (python -m bench.study sweep --weights-only), on other episodes.",
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
    return ", ".join(words(row.cell)[1] for row in rows) or NOT_KNOWN


def percent(error: Estimate | None) -> str:
    """``+0.92 [+0.66, +1.18]``; ``0`` where nothing changed."""
    return lost(error, "+")


def single(value: float | None) -> str:
    """The paper's percentages: ``+7.65``."""
    if value is None:
        return NOT_KNOWN
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0"
