"""The picture of the study of wide weights: return against bits, a panel for each cell, a mark for each means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report.figures import headed, save
from bench.report.intervals import Estimate
from bench.study.older import GREY, STYLES, band, marks
from bench.study.wide.statistics import Row, rows_of
from bench.study.wide.table import LABELS, counts
from bench.study.wide.training import PLAIN
from policy.quantization import Scheme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bench.study.wide.store import Answer

NAME = "wide-weights"
DRAWN = Scheme.QUARL
PLAIN_STYLE = ("#000000", "D")
COLUMNS = 3
PANEL_INCHES = (4.6, 2.9)
DODGE = 0.13  # of one width's room, between variants
ROOM = 1 / 12  # of the span, above and below


def save_figure(answers: Sequence[Answer], folder: Path) -> list[Path]:
    """Draw and write PNG and SVG; returns both."""
    return save(figure_of(rows_of(answers)), folder / NAME)


def figure_of(rows: Sequence[Row]) -> Figure:
    """A panel for each cell."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys(row.cell for row in rows))
    variants = list(dict.fromkeys(row.variant for row in rows))
    columns = min(COLUMNS, len(cells))
    lines = -(-len(cells) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(max(columns * width, 7.6), lines * height + 1.4), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, cell in zip(panels, cells, strict=False):
        _panel(axes, [row for row in rows if row.cell == cell], variants)
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 * columns, frameon=False, fontsize=8)
    said = (
        f"QuaRL's quantizer after training, weights only; means over {counts(rows)}\n"
        "bars: 95 % intervals over trainings (cut at the panel's edge); dots: single trainings; "
        "line and band: plain, in floats"
    )
    headed(figure, "Do narrower weights take fewer bits?", said, 3)
    return figure


def style_of(variant: str, variants: Sequence[str]) -> tuple[str, str]:
    """Colour and mark: black for plain, the others by their order."""
    others = [name for name in variants if name != PLAIN.name]
    return PLAIN_STYLE if variant == PLAIN.name else STYLES[others.index(variant) % len(STYLES)]


def _panel(axes: Axes, rows: Sequence[Row], variants: Sequence[str]) -> None:
    """One cell, from few bits to many; widths stand at equal distances, and fp32 after them."""
    widths = sorted({bits for row in rows for scheme, bits in row.quantized if scheme is DRAWN})
    names = [*map(str, widths), "fp32"]
    for row in rows:
        if row.variant == PLAIN.name:
            band(axes, row.mean_return, GREY, named=False)
        colour, marker = style_of(row.variant, variants)
        offset = DODGE * (variants.index(row.variant) - (len(variants) - 1) / 2)
        places = [(x + offset, bits) for x, bits in enumerate(widths)]
        for x, bits in places:
            values = row.singles[DRAWN, bits]
            axes.plot([x] * len(values), values, ".", color=colour, markersize=4, alpha=0.6)
        points = [(x, str(bits), row.quantized[DRAWN, bits]) for x, bits in places]
        points.append((len(widths) + offset, "fp32", row.mean_return))
        for x, _, each in points:  # three trainings make long bars, which would hide the marks
            axes.vlines(x, *ends(each), color=colour, alpha=0.35, linewidth=1.4, zorder=2)
        bare = [(x, name, Estimate(each.value, None, None)) for x, name, each in points]
        marks(axes, bare, colour, marker, LABELS.get(row.variant, row.variant), "none")
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(*_room(rows))
    for x in range(len(names) - 1):
        axes.axvline(x + 0.5, color="0.9", linewidth=0.8, zorder=0)
    axes.set_xlabel("bits of the weights")
    axes.set_ylabel("return")
    axes.set_title(rows[0].cell, fontsize=9)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def ends(estimate: Estimate) -> tuple[float, float]:
    """Of the interval; the value itself where there is none."""
    if estimate.low is None or estimate.high is None:
        return estimate.value, estimate.value
    return estimate.low, estimate.high


def _room(rows: Sequence[Row]) -> tuple[float, float]:
    """Ends of the axis: all trainings and some more. Bars may reach beyond, for those of three trainings are wide."""
    values = [value for row in rows for (scheme, _), each in row.singles.items() if scheme is DRAWN for value in each]
    values += [row.mean_return.value for row in rows]
    span = (max(values) - min(values)) or 1.0
    return min(values) - ROOM * span, max(values) + ROOM * span
