"""The picture of the trainings: greedy return against time, with actors in int8 and in fp32, a line for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report.figures import BLUE, GREY, VERMILLION, headed, save
from bench.study.actorq.table import NAMES, learned_cells, machines
from bench.study.actorq.training import BITS, Cell, Training

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "actorq-curves"
STYLES = {8: (VERMILLION, "-", "^"), 32: (BLUE, "--", "o")}
PANEL_INCHES = (3.6, 2.7)
COLUMNS = 3


def save_figure(trainings: Sequence[Training], folder: Path) -> list[Path]:
    """Draw and write PNG and SVG; returns both."""
    return save(figure_of(trainings), folder / NAME)


def figure_of(trainings: Sequence[Training]) -> Figure:
    """A panel for each task that something is kept of."""
    from matplotlib.figure import Figure

    cells = learned_cells(trainings)
    rows = -(-len(cells) // COLUMNS)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * min(COLUMNS, len(cells)), height * rows + 1.2), layout="constrained")
    panels = figure.subplots(rows, min(COLUMNS, len(cells)), squeeze=False).ravel()
    for axes, cell in zip(panels, cells, strict=False):
        _panel(axes, cell, [each for each in trainings if each.cell == cell.name])
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    said = f"a line for each seed; grey: the goal. {' '.join(machines(trainings))}"
    headed(figure, "The learner's greedy return, by the actors' precision", said, 2)
    return figure


def _panel(axes: Axes, cell: Cell, trainings: Sequence[Training]) -> None:
    if cell.goal is not None:
        axes.axhline(cell.goal, color=GREY, linewidth=0.8)
    for bits in BITS:
        colour, line, marker = STYLES[bits]
        label: str | None = f"{NAMES[bits]} actors"
        for each in (each for each in trainings if each.bits == bits):
            seconds, returns = [point[1] for point in each.curve], [point[2] for point in each.curve]
            axes.plot(
                seconds, returns, line, color=colour, marker=marker, markersize=3, linewidth=1.0, alpha=0.8, label=label
            )
            label = None
    axes.set_title(f"{cell.name}, {cell.method}, {cell.steps:,} steps", fontsize=9)
    axes.set_xlabel("seconds", fontsize=8)
    axes.set_ylabel("greedy return", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
