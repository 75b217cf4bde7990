"""The tables of QuaRL's post-training quantization for the policies committed here, from what judging them kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.text import NOT_KNOWN, estimate, format_loss
from quarl.bench.study import cells, command, sweep
from quarl.bench.study.cells import METHODS, PRECISIONS, JudgedBundle, papers
from quarl.bench.study.experiment import RETURN, Results
from quarl.bench.study.joined import Joined, results_of
from quarl.bench.tables import Table, tabulate
from quarl.train.intervals import Estimate
from quarl.train.suites.cells import Cell, load_cells

EIGHT_BITS = 8

CELLS = """\
Post-training quantization, every trained cell
Error: (fp32 − it) / |fp32| of the mean returns, in percent, as the paper computes it; negative: better than fp32. In \
brackets 95 % intervals, of errors from the same episodes with both (ratio of paired means).
fp32, fp16, int8: artifacts as {{ rows | map(attribute="executed_by") | joined }} executes them, \
{{ rows | map(attribute="episodes") | map("string") | joined }} different greedy episodes each; int8 has integer \
weights and activations, as a device executes it. Quarl 8 bits: the paper's quantizer on the weights alone, simulated \
(quarl study sweep --weights-only), on other episodes.
The paper's: single figures without intervals, of its own networks and training.
Measured on {{ results.where }}.
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


@dataclass(frozen=True)
class Kept:
    """What the studies ``cells`` and ``sweep`` kept."""

    cells: Results
    swept: Results

    @property
    def where(self) -> str:
        """Machine, date and code of the artifacts' episodes."""
        return self.cells.where


def load_kept(folder: Path | None) -> Kept:
    """Return the rows of both studies, here or in another folder.

    Raises:
        BenchError: no bundle has been evaluated.
    """
    kept_rows = Kept(*(results_of(study.EXPERIMENT, folder) for study in (cells, sweep)))
    if not kept_rows.cells.found:
        raise command_line.BenchError("no bundle has been evaluated yet.", "quarl study cells --keep")
    return kept_rows


def of_cells(found: Kept) -> Iterator[dict[str, Any]]:
    """Yield every cell that has a policy: returns, relative errors, the paper's beside."""
    for row in cells.collect_bundles(found.cells):
        returns = {name: row.value(RETURN, name) for name in PRECISIONS}
        errors = {name: row.error(name) for name in PRECISIONS}
        swept = sweep.papers_error(found.swept, row.subject, EIGHT_BITS)
        comparisons = {
            "errors": errors,
            "swept": swept,
            "papers_error": single(compute_published_error(row.cell, "int8")),
        }
        yield {"cell": row.cell, "papers": papers(row.cell), "returns": returns, **row.fp32, **comparisons}


def of_methods(found: Kept) -> Iterator[dict[str, Any]]:
    """Mean relative error of int8 for each algorithm against the paper's."""
    rows = cells.collect_bundles(found.cells)
    for method in METHODS:
        mine = [row for row in rows if row.cell.method == method]
        shared = [row for row in mine if row.cell.paper is not None]
        every = papers_mean([cell for cell in load_cells() if cell.method == method])
        names, own_names = (", ".join(row.cell.name.short_name for row in of) for of in (shared, mine))
        same = papers_mean([row.cell for row in shared])
        our_error = mean_error(shared)
        paper_errors = [{"error": single(mean), "against": verdict(our_error, mean)} for mean in (same, every)]
        means: dict[str, Any] = {
            "ours": our_error,
            "same": paper_errors[0],
            "all": paper_errors[1],
            "trained": mean_error(mine),
        }
        yield {"method": method, "shared": names, "mine": own_names, **means}


def cells_table(found: Kept) -> list[Table]:
    """Return the returns and errors of every trained cell, the paper's beside."""
    rows = list(of_cells(found))
    lines = [
        {
            "task": row["cell"].name.short_name,
            "method": row["cell"].method,
            **{name: estimate(row["returns"][name]) for name in PRECISIONS},
            **{f"{name} error, %": format_loss(row["errors"][name], "+") for name in PRECISIONS[1:]},
            "quarl 8 bits error, %": format_loss(row["swept"], "+"),
            **row["papers"],
            "paper's int8 error, %": row["papers_error"],
        }
        for row in rows
    ]
    return [tabulate("study-cells", CELLS, lines, left=2, results=found, rows=rows)]


def algorithms_table(found: Kept) -> list[Table]:
    """Mean error of int8 by algorithm, against the paper's."""
    lines = [
        {
            "method": row["method"],
            "cells of the paper trained here": row["shared"],
            "int8 error, %": format_loss(row["ours"], "+"),
            "paper's, same cells, %": row["same"]["error"],
            "against it": row["same"]["against"],
            "paper's, all its cells, %": row["all"]["error"],
            "against that": row["all"]["against"],
            "all cells trained here": row["mine"],
            "int8 error of all, %": format_loss(row["trained"], "+"),
        }
        for row in of_methods(found)
    ]
    return [tabulate("study-algorithms", ALGORITHMS, lines, left=2)]


JOINED = Joined(kept=load_kept, tables=[cells_table, algorithms_table])


def compute_published_error(cell: Cell, precision: str) -> float | None:
    """Relative error of the paper's figures of a cell, percent; None where it has none."""
    if cell.paper is None or not cell.paper.get("fp32"):
        return None
    return 100.0 * (cell.paper["fp32"] - cell.paper[precision]) / abs(cell.paper["fp32"])


def papers_mean(found: Sequence[Cell], precision: str = "int8") -> float | None:
    """Mean error of the paper's figures of these cells; None where it has none."""
    errors = [error for cell in found if (error := compute_published_error(cell, precision)) is not None]
    return math.fsum(errors) / len(errors) if errors else None


def mean_error(rows: Sequence[JudgedBundle]) -> Estimate | None:
    """Mean of the cells' errors in int8; its half-width is √Σ hᵢ² / k, with hᵢ those of the k cells.

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
    """Return the paper's percentages: ``+7.65``."""
    if value is None:
        return NOT_KNOWN
    return f"{value:+.2f}".replace("-", "−") if round(value, 2) else "0"


@cli.verb()
def ptq(options: command.JoinedOptions) -> int:
    """Print QuaRL's tables of post-training quantization for the committed policies, from stored evaluations.

    Relative error as the paper computes it, E = 100 · (F − Q) / |F| percent of the mean returns F of fp32 and Q of the
    quantized policy: positive if the quantized policy earns less. (The paper's means per algorithm follow from its
    returns in that way.)

        quarl study ptq                  the tables
        quarl study ptq --update-docs    fills docs/study.md

    Nothing is measured here: the rows are those of the studies cells and sweep.
    """
    return command.join(JOINED, options)


main = cli.of("study ptq")
