"""A picture declared: stacked bars, a panel for each subject, a bar for each condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quarl.bench.report.figures import GREY, ORANGE, PURPLE, SKY_BLUE, YELLOW, headed
from quarl.bench.report.pivot import Row, alike, summary
from quarl.bench.report.text import environment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = (
    (SKY_BLUE, ""), (ORANGE, "//"), (PURPLE, ".."), (YELLOW, "xx"), ("#333333", ""), (GREY, "++"), ("#C8C8C8", ""),
)  # fmt: skip
"""Colour and hatch of a bar's parts: none of them a colour of :data:`STYLES`' first three, which are precisions'."""


@dataclass(frozen=True)
class Bars:
    """Panels beside each other, each with a vertical axis of its own; above each bar stands its sum.

    ``below``, ``panel``, ``bar`` and ``group`` are templates over a row's names.

    Attributes:
        stem: of the picture's files.
        title: one line.
        below: in grey under the title.
        parts: from the bottom, name in the legend by name in a row's ``values``.
        values: name of a row's mapping of numbers.
        panel: title of a panel, which the rows for which it is alike make.
        bar, group: label of a row's bar, and below all bars of one group, which stand together.
        y_label: of the vertical axes.
        rows: a bar each; of none there is no picture.
    """

    stem: str
    title: str
    below: str
    parts: Mapping[str, str]
    values: str
    panel: str
    bar: str
    group: str
    y_label: str
    rows: Callable[[Any], Iterable[Row]] = summary

    def __call__(self, results: Any) -> dict[str, Figure]:
        """The picture of these results, by the stem of its files."""
        from matplotlib.figure import Figure

        panels = alike(self.rows(results), self.panel)
        if not panels:
            return {}
        below = environment().from_string(self.below).render(next(iter(panels.values()))[0])
        lines = below.count("\n") + 1
        figure = Figure(figsize=(4.2 * len(panels), 3.9 + 0.25 * lines), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False).ravel()
        for axes, (name, rows) in zip(grid, panels.items(), strict=True):
            self._pile(axes, rows)
            axes.set_title(name, fontsize=8.5)
        grid[0].set_ylabel(self.y_label, fontsize=8)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=8)
        headed(figure, self.title, below, lines)
        return {self.stem: figure}

    def _pile(self, axes: Axes, rows: Sequence[Row]) -> None:
        bar, group = (environment().from_string(each) for each in (self.bar, self.group))
        at: dict[str, list[float]] = {}
        for index, row in enumerate(rows):
            places = at.setdefault(group.render(row), [])
            x, bottom = index + 0.6 * len(at), 0.0
            places.append(x)
            for (part, label), (colour, hatch) in zip(self.parts.items(), PARTS, strict=False):
                height = row[self.values][part]
                axes.bar(
                    x, height, 0.8, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                    label="_" * bool(index) + label,
                )  # fmt: skip
                bottom += height
            axes.annotate(f"{bottom:,.0f}", (x, bottom), ha="center", va="bottom", fontsize=7, color=GREY)
        axes.set_xticks([x for places in at.values() for x in places], [bar.render(row) for row in rows], fontsize=8)
        for name, places in at.items():
            middle = sum(places) / len(places)
            axes.annotate(name, (middle, -0.14), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
        axes.tick_params(axis="y", labelsize=7.5)
        axes.margins(y=0.1)
        axes.spines[["top", "right"]].set_visible(False)
