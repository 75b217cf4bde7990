"""All learning curves of the benchmark policies in one picture: docs/figures/learning-curves.png.

A panel for each bundle: return against environment steps, of the episodes of training and judged greedily, the paper's
fp32 figure as a labelled line, and what the committed policy reached over its last 100 episodes. Colours are Okabe and
Ito's; line, dots and dashes tell the same without colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.figures import BLUE, FIGURES, GREY, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bench.study.cells.command import Answer
    from train.suites.cells import Cell

FILE = "learning-curves.png"
COLUMNS = 4
POINTS = 120  # training episodes are averaged to so many points
PANEL_INCHES = (2.35, 1.75)

Series = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Curve:
    """One bundle's curve.

    Attributes:
        cell: which.
        training: (steps, returns) of training's own episodes.
        greedy: (steps, returns) of the greedy evaluations during training.
        answer: what the committed policy reached, or None.
    """

    cell: Cell
    training: Series
    greedy: Series
    answer: Answer | None


def save_curves(zoo: Path, answers: Mapping[str, Answer], folder: Path = FIGURES) -> Path:
    """Draw the curves of all bundles; returns the picture's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    curves_figure(read_curves(zoo, answers)).savefig(path, dpi=160, facecolor="white", metadata={"Software": ""})
    return path


def read_curves(zoo: Path, answers: Mapping[str, Answer]) -> list[Curve]:
    """The curves of the bundles in a folder, in the tables' order."""
    from bench.study.cells.table import order
    from policy.bundle import DEVICE_FILES, Bundle
    from train.runs.logs import CURVE_FILE, column, read_rows
    from train.suites.cells import Cell, load_cells

    cells = {cell.bundle_name: cell for cell in load_cells()}
    found = []
    for manifest in sorted(zoo.glob("[!.]*/manifest.json")):
        folder = manifest.parent
        if not (folder / CURVE_FILE).exists():
            continue
        origin = Bundle.load(folder, DEVICE_FILES).spec.provenance
        rows = read_rows((folder / CURVE_FILE).read_text(encoding="utf-8"))
        greedy = next((name for name in (rows[0] if rows else {}) if name.startswith("greedy_return")), "")
        found.append(
            Curve(
                cells.get(folder.name) or Cell(str(origin["task"]), str(origin["algorithm"])),
                column(rows, "return"),
                column(rows, greedy) if greedy else ([], []),
                answers.get(folder.name),
            )
        )
    return sorted(found, key=lambda curve: order(curve.cell))


def curves_figure(curves: Sequence[Curve]) -> Figure:
    """Small multiples, a panel for each curve."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = max(1, math.ceil(len(curves) / COLUMNS))
    figure = Figure(figsize=(PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=False):
        draw_panel(axes, curve)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    handles: dict[str, Any] = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        figure.legend(
            list(handles.values()), list(handles), loc="outside upper center", ncols=4, frameon=False, fontsize=7.5
        )
    figure.supylabel("return of an episode", fontsize=8)
    figure.supxlabel("environment steps (Atari: of four frames)", fontsize=8)
    return figure


def draw_panel(axes: Axes, curve: Curve) -> None:
    """One curve with the paper's figure and the final judgement."""
    steps, returns = averaged(curve.training, POINTS)
    axes.plot(steps, returns, color="#b5b5b5", linewidth=0.8, label="training episodes", zorder=1)
    axes.plot(*curve.greedy, color=BLUE, linewidth=1.3, marker=".", markersize=3.5, label="greedy, while training")
    played = None if curve.answer is None else curve.answer.played["fp32"]
    if played is not None and curve.answer is not None:
        low, high = played.return_interval
        spread = [[played.mean_return - low], [high - played.mean_return]]
        axes.errorbar(
            [curve.answer.steps], [played.mean_return], yerr=spread, color=VERMILLION, marker="D", markersize=4,
            capsize=2.5, linestyle="none", zorder=4, label=f"committed policy, {curve.answer.episodes} episodes, 95 %",
        )  # fmt: skip
    theirs = (curve.cell.paper or {}).get("fp32")
    low_end, high_end = limits(curve, theirs)
    if theirs is not None:
        axes.axhline(theirs, color="black", linewidth=0.9, linestyle=(0, (4, 2)), label="the paper's (fp32)", zorder=2)
        above = theirs < low_end + 0.8 * (high_end - low_end)
        axes.annotate(
            f"{theirs:,.10g}", (0.02, theirs), (0, 2 if above else -2), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="bottom" if above else "top", fontsize=6.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )  # fmt: skip
    axes.set_ylim(low_end, high_end)
    axes.set_xlim(left=0)
    axes.set_title(f"{curve.cell.name.short_name} · {curve.cell.method.upper()}", fontsize=7.5, pad=3)
    axes.tick_params(labelsize=6.5, color=GREY, length=2.5)
    axes.locator_params(axis="x", nbins=4)
    axes.locator_params(axis="y", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace("-", "−"))
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def averaged(series: Series, points: int) -> Series:
    """A series of at most ``points`` means of neighbours, so that no line is a black band."""
    steps, values = series
    if len(steps) <= points:
        return series
    size = math.ceil(len(steps) / points)
    starts = range(0, len(steps), size)
    return (
        [sum(steps[at : at + size]) / len(steps[at : at + size]) for at in starts],
        [sum(values[at : at + size]) / len(values[at : at + size]) for at in starts],
    )


def limits(curve: Curve, theirs: float | None) -> tuple[float, float]:
    """Lower and upper end of the returns' axis: everything drawn, but not single terrible training episodes.

    The lowest 2 % of the training points may leave the panel; greedy points, the paper's figure and the judgement
    never.
    """
    values = sorted(averaged(curve.training, POINTS)[1])
    shown = [*values[len(values) // 50 :], *curve.greedy[1]]
    if theirs is not None:
        shown.append(theirs)
    if curve.answer is not None:
        shown += [*curve.answer.played["fp32"].return_interval]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    room = 0.07 * (high - low or 1.0)
    return low - room, high + room


def short(value: float) -> str:
    """``0``, ``50k``, ``1.5M``."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if value >= 1e3 else f"{value:.3g}"
