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
from pathlib import Path

from bench import command_line
from bench.report.figures import Pictures
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, filled, joined, lost
from bench.study import cells, sweep
from bench.study.cells import METHODS, PRECISIONS, Judged, papers
from bench.study.experiment import RETURN, Results, stored
from train.suites.cells import Cell, load_cells

EIGHT_BITS = 8

CELLS = """\
Post-training quantization, every trained cell
Error: (fp32 − it) / |fp32| of the mean returns, in percent, as the paper computes it; negative: better than fp32. In \
brackets 95 % intervals, of errors from the same episodes with both (ratio of paired means).
fp32, fp16, int8: artifacts as {{ executed }} executes them, {{ episodes }} different greedy episodes each; int8 has \
integer weights and activations, as a device executes it. Quarl 8 bits: the paper's quantizer on the weights alone, \
simulated (python -m bench.study sweep --weights-only), on other episodes.
The paper's: single figures without intervals, of its own networks and training.
Measured on {{ where }}.
"""
ALGORITHMS = """\
Mean relative error of int8 by algorithm
Mean over cells of the relative error of the int8 artifact's return; positive: the return lost. The interval joins \
those of the cells (independent episodes); it does not know how other trainings of a cell would fare, for each cell \
has one committed policy.
The paper's means are computed from the returns that it prints, over all its cells of the algorithm and over those \
that are trained here; it gives no intervals. Inside the noise: our interval holds the paper's mean. All its cells \
include Atari games that are not trained here: the same cells are the fair comparison.
"""


def joined_tables(folder: Path | None = None) -> tuple[list[Table], Pictures]:
    """The tables of what the studies cells and sweep kept, here or in another folder; there are no pictures.

    Raises:
        BenchError: no bundle has been judged.
    """
    found, swept = (stored(each.EXPERIMENT, folder and folder / each.EXPERIMENT.path.name) for each in (cells, sweep))
    if not found.found:
        raise command_line.BenchError("no bundle was judged yet.", "python -m bench.study cells --keep")
    return tables(found, swept), {}


def tables(results: Results, sweeps: Results) -> list[Table]:
    """Of the studies ``cells`` and ``sweep``: every cell that has a policy, and the mean of each algorithm."""
    rows = cells.judged(results)
    return [cells_table(rows, sweeps, results.where), algorithms_table(rows)]


def cells_table(rows: Sequence[Judged], sweeps: Results, where: str) -> Table:
    """Every cell that has a policy: returns, relative errors, the paper's beside."""
    made = [
        {
            "task": row.cell.name.short_name,
            "method": row.cell.method,
            **{name: estimate(row.value(RETURN, name)) for name in PRECISIONS},
            **{f"{name} error, %": lost(row.error(name), "+") for name in PRECISIONS[1:]},
            "quarl 8 bits error, %": lost(sweep.papers_error(sweeps, row.subject, EIGHT_BITS), "+"),
            **papers(row.cell),
            "paper's int8 error, %": single(published_error(row.cell, "int8")),
        }
        for row in rows
    ]
    executed, episodes = (joined(str(row.fp32[name]) for row in rows) for name in ("executed_by", "episodes"))
    title, *notes = filled(CELLS, executed=executed, episodes=episodes, where=where)
    return Table.of("study-cells", title, made, tuple(notes), left=2)


def algorithms_table(rows: Sequence[Judged]) -> Table:
    """Mean relative error of int8 for each algorithm against the paper's."""
    headers = (
        "method", "cells of the paper trained here", "int8 error, %", "paper's, same cells, %", "against it",
        "paper's, all its cells, %", "against that", "all cells trained here", "int8 error, %",
    )  # fmt: skip
    made = []
    for method in METHODS:
        mine = [row for row in rows if row.cell.method == method]
        shared = [row for row in mine if row.cell.paper is not None]
        ours, same = mean_error(shared), papers_mean([row.cell for row in shared])
        theirs = papers_mean([cell for cell in load_cells() if cell.method == method])
        names, more = (", ".join(row.cell.name.short_name for row in of) or NOT_KNOWN for of in (shared, mine))
        made.append((
            method, names, lost(ours, "+"), single(same), verdict(ours, same), single(theirs), verdict(ours, theirs),
            more, lost(mean_error(mine), "+"),
        ))  # fmt: skip
    title, *notes = filled(ALGORITHMS)
    return Table("study-algorithms", title, headers, tuple(made), tuple(notes), left=2)


def published_error(cell: Cell, precision: str) -> float | None:
    """Relative error of the paper's figures of a cell, percent; None where it has none."""
    if cell.paper is None or not cell.paper.get("fp32"):
        return None
    return 100.0 * (cell.paper["fp32"] - cell.paper[precision]) / abs(cell.paper["fp32"])


def papers_mean(found: Sequence[Cell]) -> float | None:
    """Mean int8 error of the paper's figures of these cells; None where it has none."""
    errors = [error for cell in found if (error := published_error(cell, "int8")) is not None]
    return math.fsum(errors) / len(errors) if errors else None


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


def single(value: float | None) -> str:
    """The paper's percentages: ``+7.65``."""
    if value is None:
        return NOT_KNOWN
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0"
