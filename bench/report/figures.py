"""What all pictures share: where they lie, their colours, their heading, and how they are written.

Colours are Okabe and Ito's, which colour-blind eyes tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from quarl.bench.report.store import RESULTS
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pictures: TypeAlias = "Mapping[str, Figure]"
"""Pictures by the stem of their files."""
STYLE = Path(__file__).with_name("pictures.mplstyle")
FIGURES = RESULTS.parent / "docs" / "figures"
BLUE, GREEN, VERMILLION, PURPLE, GREY = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#6b6b6b"
SKY_BLUE, ORANGE, YELLOW = "#56B4E9", "#E69F00", "#F0E442"


def add_heading(figure: Figure, title: str, subtitle: str, lines: int) -> None:
    """Draw a title, and under it in grey what the picture shows.

    Args:
        figure: with a constrained layout.
        title: one line.
        subtitle: what stands below it.
        lines: of the title's height that are left free for that.
    """
    figure.suptitle(title + "\n" * lines)
    figure.text(0.5, 1.0 - 0.33 / figure.get_figheight(), subtitle, ha="center", va="top", fontsize=8, color=GREY)


@contextmanager
def style() -> Iterator[None]:
    """Set the style of all pictures while one is drawn or written; also a decorator."""
    import matplotlib.style

    with matplotlib.style.context(STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, inches; to be called in :func:`style`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


@style()
def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg, the same bytes for the same picture; returns both paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    metadata = {".png": {"Software": ""}, ".svg": {"Date": None}}
    files = {stem.with_name(stem.name + suffix): values for suffix, values in metadata.items()}
    for file, values in files.items():
        figure.savefig(file, metadata=values)
    return list(files)


# --- lines with intervals, a panel for each subject -------------------------------------------------------------------

STYLES = ((BLUE, "o"), (VERMILLION, "^"), (GREEN, "s"), (PURPLE, "v"), (ORANGE, "P"), (SKY_BLUE, "X"))
"""Colour and mark of each line; marks differ too, for print without colour."""
DODGE = 0.13  # of one place on the horizontal axis, between lines
COLUMNS, PANEL_INCHES = 4, (2.6, 1.95)
NAMES_INCHES = 1.5  # of long names that stand upright
LINEAR_PERCENT = 5.0


@dataclass(frozen=True)
class Line:
    """Estimates over the places of the horizontal axis.

    Attributes:
        label: in the legend.
        points: by place.
        style: index into :data:`STYLES`, the same for the same thing in every panel.
        joined: whether the points are.
        singles: by place, the values that a point is of, as small dots.
    """

    label: str
    points: Mapping[Any, Estimate]
    style: int
    joined: bool = True
    singles: Mapping[Any, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One subject.

    Attributes:
        title: above it.
        lines: in it.
        reference: drawn across it: its value, and its interval as a band.
        reference_label: the reference's label in the legend.
    """

    title: str
    lines: Sequence[Line]
    reference: Estimate | None = None
    reference_label: str = "fp32"


def panel(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    line: str,
    labels: Mapping[Any, tuple[str, int]],
    reference: str = "",
    reference_label: str = "fp32",
    singles: str = "",
    joined: Callable[[Any], bool] = lambda value: True,
) -> Panel:
    """Return a panel of rows.

    Args:
        title: above it.
        rows: with a place and an estimate each; those without an estimate are not drawn.
        x, y, line: names of the place, of the estimate, and of what lines differ in.
        labels: label and style of each line, by the value that it stands for.
        reference, reference_label: name of an estimate that is drawn across the panel, and its label.
        singles: name of the values that an estimate is of, drawn as small dots.
        joined: whether the points of a line are, by the value that it stands for.
    """
    lines = []
    for value, (label, style) in labels.items():
        mine = [row for row in rows if row[line] == value and row[y] is not None]
        dots = {row[x]: row[singles] for row in mine} if singles else {}
        lines += [Line(label, {row[x]: row[y] for row in mine}, style, joined(value), dots)] if mine else []
    return Panel(title, lines, rows[0][reference] if reference else None, reference_label)


def in_order(rows: Sequence[Mapping[str, Any]], x: str) -> list[Any]:
    """Return the places of the horizontal axis from the smallest number to the largest, then words."""
    places = {row[x] for row in rows if row[x] is not None}
    return sorted(places, key=lambda place: (isinstance(place, str), place))


@style()
def facets(
    panels: Sequence[Panel],
    places: Sequence[Any] | None,
    *,
    title: str,
    subtitle: str,
    x_label: str,
    y_label: str = "",
    scale: Callable[[Axes], None] | None = None,
    columns: int = COLUMNS,
    turned: bool = False,
) -> Figure:
    """Small panels with one horizontal axis, and one vertical axis where ``scale`` sets it.

    Args:
        panels: in reading order.
        places: of the horizontal axis, at equal distances from left to right; None: they are numbers, each panel has an
            axis of its own, and intervals are bands along the lines.
        title, subtitle: above all of them, and in grey below that; ``subtitle`` may have several lines.
        x_label, y_label: of the axes.
        scale: sets the vertical axis of all panels; None: each has its own, linear.
        columns: at most this many beside each other.
        turned: the places' names stand upright, as long ones have to.
    """
    columns = min(columns, len(panels))
    count = math.ceil(len(panels) / columns)
    lines = subtitle.count("\n") + 1
    height = PANEL_INCHES[1] * count + 0.75 + 0.25 * lines + NAMES_INCHES * turned
    figure = new_figure(max(6.4, PANEL_INCHES[0] * columns + 0.4), height)
    grid = figure.subplots(count, columns, squeeze=False, sharex=places is not None, sharey=scale is not None)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.set_axis_off()
            continue
        _draw(axes, panels[index], places)
        if scale is not None:
            scale(axes)
        if index + columns >= len(panels):
            axes.set_xlabel(x_label)
            axes.tick_params(axis="x", labelbottom=True, labelrotation=90 * turned)
    figure.supylabel(y_label)
    legend = {
        text: handle for axes in grid.flat for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4)
    add_heading(figure, title, subtitle, lines)
    return figure


def _draw(axes: Axes, panel: Panel, places: Sequence[Any] | None) -> None:
    if panel.reference is not None:
        band(axes, panel.reference, GREY, panel.reference_label)
    for line in panel.lines:
        if places is None:
            ribbon(axes, sorted(line.points.items()), line.style, line.label)
            continue
        at = [(_beside(panel, line, place, places), point) for place, point in line.points.items() if place in places]
        marks(axes, sorted(at, key=lambda point: point[0]), line.style, line.label, line.joined)
        dots = [
            (_beside(panel, line, place, places), value) for place, values in line.singles.items() for value in values
        ]
        colour, _ = STYLES[line.style]
        axes.plot(*zip(*dots, strict=True), ".", color=colour, markersize=4, alpha=0.5) if dots else None
    if places is not None:
        axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.set_title(panel.title)


def _beside(panel: Panel, line: Line, place: Any, places: Sequence[Any]) -> float:
    """Return where a line's point stands, beside those of the lines that have one there, too."""
    others = [other for other in panel.lines if place in other.points]
    return places.index(place) + DODGE * (others.index(line) - (len(others) - 1) / 2)


def error_scale(axes: Axes) -> None:
    """Relative errors in percent: linear around zero, logarithmic beyond; 5 % dotted."""
    axes.set_yscale("symlog", linthresh=LINEAR_PERCENT)
    ticks = (-5, 0, 5, 20, 100, 500)
    axes.set_yticks(ticks, [str(tick).replace("-", "−") for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(-9.0, 1500.0)
    axes.axhline(0.0, color="0.6", linewidth=0.8, zorder=0)
    axes.axhline(LINEAR_PERCENT, color="0.4", linewidth=0.8, linestyle=":", zorder=0)


def band(axes: Axes, estimate: Estimate, colour: str, label: str | None) -> None:
    """Draw a value as a dashed line, its interval as a band across the panel."""
    axes.axhline(estimate.value, color=colour, linewidth=0.9, linestyle="--", zorder=1, label=label)
    if estimate.low is not None and estimate.high is not None:
        axes.axhspan(estimate.low, estimate.high, color=colour, alpha=0.16, linewidth=0, zorder=0)


def marks(
    axes: Axes, points: Sequence[tuple[float, Estimate]], style: int, label: str | None, joined: bool = True
) -> None:
    """Points of (x, estimate) with their intervals; where there is none, or one without width, there is no bar."""
    if not points:
        return
    colour, marker = STYLES[style]
    axes.errorbar(
        [x for x, _ in points],
        [estimate.value for _, estimate in points],
        yerr=list(zip(*(_reach(estimate) for _, estimate in points), strict=True)),
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.1,
        elinewidth=1.0,
        capsize=2.5,
        linestyle="-" if joined else "none",
        label=label,
        zorder=3,
    )


def _reach(estimate: Estimate) -> tuple[float, float]:
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return math.nan, math.nan
    return estimate.value - estimate.low, estimate.high - estimate.value


def ribbon(axes: Axes, points: Sequence[tuple[float, Estimate]], style: int, label: str | None) -> None:
    """Points of (x, estimate), joined, with their intervals as a band along them."""
    if not points:
        return
    colour, marker = STYLES[style]
    x, estimates = zip(*points, strict=True)
    axes.plot(
        x,
        [estimate.value for estimate in estimates],
        f"{marker}-",
        color=colour,
        markersize=3.5,
        linewidth=1.1,
        label=label,
    )
    low = [estimate.value if estimate.low is None else estimate.low for estimate in estimates]
    high = [estimate.value if estimate.high is None else estimate.high for estimate in estimates]
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
