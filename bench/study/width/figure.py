"""The picture of bench/study/width/command.py: error against width, a row a source, a column a measure of width.

Colours are Okabe and Ito's, a shape for each algorithm; numbers are those of the table and of the key beside it. The
axis of the error is linear around zero and logarithmic beyond, since most errors are tiny and some are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION, save
from bench.study.width.points import MEASURES, SOURCES, Point, correlations, sources

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bench.report.intervals import Correlation

STEM = "width-and-error"
STYLES = {
    "dqn": (BLUE, "o"),
    "ppo": (VERMILLION, "s"),
    "a2c": (GREEN, "^"),
    "ddpg": (PURPLE, "D"),
    "d4pg": (ORANGE, "v"),
}
OTHERS = (GREY, "P")
TICKS = (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50)
NEAR = (0.032, 0.05)  # of a panel's width and height: closer points share a label
LINEAR_PERCENT = 1.0  # errors up to this are drawn on a linear scale
PANEL_INCHES, KEY_INCHES = (3.4, 3.1), 1.9


def width_figure(points: Sequence[Point]) -> Figure:
    """A row for each source of errors, a column for each measure of width, and the key."""
    from matplotlib.figure import Figure

    rows = sources(points)
    size = (PANEL_INCHES[0] * len(MEASURES) + KEY_INCHES, PANEL_INCHES[1] * len(rows) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(rows), len(MEASURES), squeeze=False, sharex="col", sharey="row")
    for row, source in zip(panels, rows, strict=True):
        found = correlations(points, source)
        for axes, measure in zip(row, MEASURES, strict=True):
            draw_panel(axes, points, source, measure, found.get(measure))
        if source == rows[-1]:
            for axes, measure in zip(row, MEASURES, strict=True):
                axes.set_xlabel(f"{MEASURES[measure]} (logarithmic)", fontsize=8)
        row[0].set_ylabel("error, % of |fp32 return|, 95 %\n(linear up to 1, then logarithmic)", fontsize=8)
    key = "\n".join(f"{number}  {point.width.name}" for number, point in enumerate(points, start=1))
    handles: dict[str, Any] = {}
    for axes in panels.ravel():
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    legend: dict[str, Any] = {"title": key + "\n", "title_fontsize": 7, "alignment": "left"}
    figure.legend(
        list(handles.values()), list(handles), loc="outside right upper", frameon=False, fontsize=7.5,
        **legend,
    )  # fmt: skip
    figure.suptitle("Width of the weights and what quantization costs", fontsize=11, fontweight="bold")
    return figure


def draw_panel(axes: Axes, points: Sequence[Point], source: str, measure: str, correlation: Correlation | None) -> None:
    """Error against one measure of width, each point numbered."""
    methods = sorted({point.width.method for point in points}, key=lambda m: (m not in STYLES, m))
    having = [(number, point) for number, point in enumerate(points, start=1) if source in point.errors]
    for method in methods:
        colour, marker = STYLES.get(method, OTHERS)
        of_method = [(number, point) for number, point in having if point.width.method == method]
        if not of_method:
            continue
        x = [getattr(point.width, measure) for _, point in of_method]
        errors = [point.errors[source] for _, point in of_method]
        y = [error.percent for error in errors]
        spread = [[e.percent - e.low for e in errors], [e.high - e.percent for e in errors]]
        axes.errorbar(
            x, y, yerr=spread, linestyle="none", marker=marker, color=colour, markersize=5, capsize=2, linewidth=1,
            label=method.upper(),
        )  # fmt: skip
    axes.margins(x=0.08)
    axes.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR_PERCENT)
    low, high = axes.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    axes.tick_params(which="both", labelsize=7, color=GREY, length=2.5)
    axes.grid(color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    label_points(axes, {number: (getattr(p.width, measure), p.errors[source].percent) for number, p in having})
    axes.set_title(SOURCES[source], fontsize=7, color=GREY, pad=16)
    words = f"n={len(having)}"
    if correlation is not None:
        numbers = (correlation.rho, correlation.low, correlation.high)
        rho, lowest, highest = (f"{value:.2f}".replace("-", "−") for value in numbers)
        words = f"Spearman's ρ = {rho} [{lowest}, {highest}], n={correlation.pairs}"
    axes.text(0.5, 1.01, words, transform=axes.transAxes, ha="center", va="bottom", fontsize=7.5)


def label_points(axes: Axes, places: Mapping[int, tuple[float, float]]) -> None:
    """Numbers beside the points; points on top of each other get one label, as ``2, 3, 6``."""
    if not places:
        return
    numbers, at = list(places), np.array(list(places.values()))
    on_panel = (axes.transScale + axes.transLimits).transform(at)  # 0 … 1 across the panel
    groups: list[list[int]] = []
    for index in range(len(numbers)):
        for group in groups:
            if (np.abs(on_panel[index] - on_panel[group]) < NEAR).all(axis=1).any():
                group.append(index)
                break
        else:
            groups.append([index])
    for group in groups:
        words = ", ".join(str(numbers[index]) for index in sorted(group))
        middle, top = float(np.exp(np.log(at[group, 0]).mean())), float(at[group, 1].max())
        offset, side = ((4, -9), "left") if len(group) == 1 else ((0, 6), "center")
        axes.annotate(words, (middle, top), offset, textcoords="offset points", fontsize=6.5, ha=side)


def save_figure(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draw it as PNG and SVG into a folder; returns the files."""
    return save(width_figure(points), folder / STEM)
