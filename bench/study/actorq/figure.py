"""The picture of an actor's time: stacked bars for fp32, fp16 and int8 at both periods, as the original draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report.figures import BLUE, GREEN, GREY, PURPLE, SKY_BLUE, VERMILLION, YELLOW, headed, save
from bench.study.actorq.measuring import PARTS, Breakdown
from bench.study.actorq.store import Measured
from bench.study.actorq.table import NAMES, median_of, settings_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "actorq-breakdown"
STYLES = {
    "step": (SKY_BLUE, ""),
    "inference": (VERMILLION, "//"),
    "pull": (GREEN, ".."),
    "deserialize": (YELLOW, "xx"),
    "load": (BLUE, "\\\\"),
    "insert": (PURPLE, "++"),
    "other": ("#BBBBBB", ""),
}
"""Colours, and a hatch for print without colour."""
LABELS = {
    "step": "environment step",
    "inference": "inference",
    "pull": "pull",
    "deserialize": "deserialize",
    "load": "load",
    "insert": "insert",
    "other": "Python",
}
PANEL_INCHES = (4.4, 3.4)


def save_figure(measured: Measured, folder: Path) -> list[Path]:
    """Draw and write PNG and SVG; returns both."""
    return save(figure_of(measured), folder / NAME)


def figure_of(measured: Measured) -> Figure:
    """A panel for each model, two groups of bars in it: a period each."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(setting.model for setting in settings_in(measured.rows)))
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(models), height + 1.5), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False).ravel()
    for axes, model in zip(panels, models, strict=True):
        _panel(axes, [row for row in measured.rows if row.setting.model == model])
        axes.set_title(f"\npolicy {model}", fontsize=10)
    panels[0].set_ylabel("µs a step of the environment")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(PARTS), frameon=False, fontsize=8)
    row = measured.rows[0]
    rounds = 1 + max(each.repetition for each in measured.rows)
    said = (
        f"{row.setting.task}, {row.steps:,} steps, medians of {rounds} rounds; one actor, four versions a second\n"
        f"{measured.machine}"
    )
    headed(figure, "Where an actor's time goes", said, 2)
    return figure


def _panel(axes: Axes, rows: Sequence[Breakdown]) -> None:
    places, names, x = [], [], 0.0
    periods = list(dict.fromkeys(setting.period for setting in settings_in(rows)))
    for period in periods:
        first = x
        for setting in (setting for setting in settings_in(rows) if setting.period == period):
            parts, bottom = median_of(rows, setting), 0.0
            for part in PARTS:
                colour, hatch = STYLES[part]
                axes.bar(
                    x, parts[part], 0.8, bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                    label=LABELS[part] if x == 0.0 else None,
                )  # fmt: skip
                bottom += parts[part]
            axes.annotate(f"{bottom:,.0f}", (x, bottom), ha="center", va="bottom", fontsize=7, color=GREY)
            places.append(x)
            names.append(NAMES[setting.bits])
            x += 1.0
        axes.annotate(
            f"pull every {period}", ((first + x - 1.0) / 2, -0.14), xycoords=("data", "axes fraction"), ha="center",
            fontsize=8,
        )  # fmt: skip
        x += 0.6
    axes.set_xticks(places, names, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(y=0.1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
