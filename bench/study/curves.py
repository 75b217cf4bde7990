"""All learning curves of the benchmark policies in one picture.

A panel for each bundle: return against environment steps, of training episodes and of greedy ones, the paper's
fp32 figure as a labelled line, and what the committed policy reached. Line, dots and dashes tell the same without
colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quarl.bench.report.figures import BLUE, GREY, VERMILLION, add_heading, new_figure, style
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quarl.train.suites.cells import Cell

COLUMNS = 4
POINTS = 120  # training episodes are averaged to this many points
PANEL_INCHES = (2.35, 1.75)

Series = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Curve:
    """One bundle's curve.

    Attributes:
        cell: which.
        training: (steps, returns) of training's own episodes.
        greedy: (steps, returns) of the greedy evaluations during training.
        steps: after which the policy was evaluated.
        reached: its mean return, or None.
    """

    cell: Cell
    training: Series
    greedy: Series
    steps: int = 0
    reached: Estimate | None = None


def curve_of(folder: Path, cell: Cell, steps: int = 0, reached: Estimate | None = None) -> Curve | None:
    """Return a bundle's curve; None where it has none."""
    from quarl.train.runs.logs import CURVE_FILE, column, read_rows

    if not (folder / CURVE_FILE).exists():
        return None
    rows = read_rows((folder / CURVE_FILE).read_text(encoding="utf-8"))
    greedy = next((name for name in (rows[0] if rows else {}) if name.startswith("greedy_return")), "")
    return Curve(cell, column(rows, "return"), column(rows, greedy) if greedy else ([], []), steps, reached)


@style()
def curves_figure(curves: Sequence[Curve]) -> Figure:
    """Small multiples, a panel for each curve."""
    columns = min(COLUMNS, max(1, len(curves)))
    rows = max(1, math.ceil(len(curves) / columns))
    figure = new_figure(max(6.4, PANEL_INCHES[0] * columns), PANEL_INCHES[1] * rows + 1.2)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, curve in zip(panels, curves, strict=False):
        draw_panel(axes, curve)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    legend = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4)
    subtitle = (
        "return of an episode against environment steps (Atari: of four frames); the number: the paper's for fp32"
    )
    add_heading(figure, "How the policies learned", subtitle, 1)
    return figure


def draw_panel(axes: Axes, curve: Curve) -> None:
    """One curve with the paper's figure and the final judgement."""
    steps, returns = average(curve.training, POINTS)
    axes.plot(steps, returns, color="#b5b5b5", linewidth=0.8, label="training episodes", zorder=1)
    axes.plot(*curve.greedy, color=BLUE, linewidth=1.3, marker=".", markersize=3.5, label="greedy, while training")
    if (final_return := curve.reached) is not None:
        low, high = ends(final_return)
        axes.errorbar(
            [curve.steps], [final_return.value], yerr=[[final_return.value - low], [high - final_return.value]],
            color=VERMILLION, marker="D", markersize=4, capsize=2.5, linestyle="none", zorder=4,
            label="the policy, judged, 95 %",
        )  # fmt: skip
    paper_return = (curve.cell.paper or {}).get("fp32")
    low_end, high_end = limits(curve, paper_return)
    if paper_return is not None:
        axes.axhline(
            paper_return, color="black", linewidth=0.9, linestyle=(0, (4, 2)), label="the paper's (fp32)", zorder=2
        )
        above = paper_return < low_end + 0.8 * (high_end - low_end)
        axes.annotate(
            f"{paper_return:,.10g}", (0.02, paper_return), (0, 2 if above else -2), xycoords=("axes fraction", "data"),
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


def average(series: Series, points: int) -> Series:
    """Return a series of at most ``points`` means of neighbours, so that no line is a black band."""
    steps = series[0]
    if len(steps) <= points:
        return series
    size = math.ceil(len(steps) / points)
    starts = range(0, len(steps), size)
    means = ([sum(side[at : at + size]) / len(side[at : at + size]) for at in starts] for side in series)
    return next(means), next(means)


def limits(curve: Curve, theirs: float | None) -> tuple[float, float]:
    """Lower and upper end of the returns' axis: everything drawn, but not single terrible training episodes.

    The lowest 2 % of the training points may leave the panel; greedy points, the paper's figure and the judgement
    never.
    """
    values = sorted(average(curve.training, POINTS)[1])
    drawn_values = [*values[len(values) // 50 :], *curve.greedy[1], *([] if theirs is None else [theirs])]
    drawn_values += ends(curve.reached) if curve.reached else ()
    low, high = (min(drawn_values), max(drawn_values)) if drawn_values else (0.0, 1.0)
    room = 0.07 * (high - low or 1.0)
    return low - room, high + room


def ends(found: Estimate) -> tuple[float, float]:
    """Low and high end of an interval; of a single value the value twice."""
    return (found.value if found.low is None else found.low), (found.value if found.high is None else found.high)


def short(value: float) -> str:
    """``0``, ``50k``, ``1.5M``."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if value >= 1e3 else f"{value:.3g}"
