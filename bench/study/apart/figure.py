"""The picture of bench/study/apart/command.py: a panel for each bundle, error against bits, a line for each part.

All panels share their axes, so that policies compare. The error's axis is linear around zero and logarithmic beyond.
Colours are Okabe and Ito's, and marks differ too, for print without colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.figures import headed, save
from bench.study.apart.store import LIMITS, PARTS, Apart
from bench.study.sweep.plot import DODGE, STYLES, marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEM = "precision-apart"
LABELS = {"weights": "weights (kernels)", "hidden": "hidden activations", "input": "observation"}
COLUMNS, PANEL_INCHES = 4, (2.6, 1.95)
LINEAR = 5.0  # percent
TICKS, ENDS = (-5, 0, 5, 20, 100, 500), (-9.0, 1500.0)


def apart_figure(answers: Sequence[Apart]) -> Figure:
    """All bundles."""
    figure, panels = multiples(len(answers), "bits of the part")
    for axes, each in zip(panels, answers, strict=True):
        for index, (part, (colour, marker)) in enumerate(zip(PARTS, STYLES, strict=False)):
            points = [(p.bits + DODGE * (index - 1), part, p.relative_error) for p in each.of_part(part)]
            marks(axes, points, colour, marker, LABELS[part], "-")
        error_axis(axes.yaxis, axes)
        axes.set_title(f"{each.bundle}  n={each.all_episodes:,}", fontsize=8.5)
    bit_axis(panels[0], (bits for each in answers for bits in each.widths))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    title(figure, "One part with few bits, the other two with 8")
    return figure


def multiples(count: int, label: str) -> tuple[Figure, list[Axes]]:
    """A figure of small panels that share their axes, the lowest of each column labelled, and the panels in use."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    size = (max(6.4, PANEL_INCHES[0] * columns + 0.4), PANEL_INCHES[1] * rows + 1.25)
    figure = Figure(figsize=size, layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for index, axes in enumerate(panels):
        if index >= count:
            axes.set_axis_off()
        elif index + columns >= count:
            axes.set_xlabel(label, fontsize=8)
            axes.tick_params(labelbottom=True)
    return figure, panels[:count]


def bit_axis(axes: Axes, measured: Iterable[int]) -> None:
    """A tick for every width that some policy was measured at, on the axis that all panels share."""
    widths = sorted(set(measured))
    axes.set_xticks(widths, [str(bits) for bits in widths])


def error_axis(axis: Any, axes: Axes) -> None:
    """The relative error on one axis of a panel, the other as it is."""
    is_y = axis is axes.yaxis
    (axes.set_yscale if is_y else axes.set_xscale)("symlog", linthresh=LINEAR)
    axis.set_ticks(TICKS, [f"{tick}".replace("-", "−") for tick in TICKS])
    axis.set_ticks([], minor=True)
    (axes.set_ylim if is_y else axes.set_xlim)(*ENDS)
    line = axes.axhline if is_y else axes.axvline
    line(0.0, color="0.6", linewidth=0.8, zorder=0)
    line(LIMITS[0], color="0.4", linewidth=0.8, linestyle=":", zorder=0)
    axes.grid(axis="y" if is_y else "x", color="0.93", linewidth=0.6)
    axes.tick_params(labelsize=7.5, length=2.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def title(figure: Figure, text: str) -> None:
    """What the picture shows, and how to read it."""
    said = (
        "relative error of the return, % of |fp32| (linear up to 5, then logarithmic); bars: 95 % intervals\n"
        "n: episodes a point, the same at every point of a policy; dotted: 5 %"
    )
    headed(figure, text, said, 2)


def save_figure(answers: Sequence[Apart], folder: Path) -> list[Path]:
    """Draw it as PNG and SVG into a folder; returns the files."""
    return save(apart_figure(answers), folder / STEM)
