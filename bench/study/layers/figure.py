"""The pictures of bench/study/layers/command.py: sensitivity of each layer, and mixed widths against uniform ones.

Panels share their axes, so that policies compare. The error's axis is linear around zero and logarithmic beyond.
Colours are Okabe and Ito's, and marks differ too, for print without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.figures import save
from bench.study.apart.figure import bit_axis, error_axis, multiples, title
from bench.study.layers.store import Layers
from bench.study.layers.tables import CHOSEN
from bench.study.sweep.plot import DODGE, STYLES, marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SENSITIVITY, WIDTHS = "layer-sensitivity", "layer-widths"
PLACES = ("first layer", "second layer", "third layer", "fourth layer", "fifth layer")
HEAD = "head"
PLACE_STYLES = (0, 1, 2, 4, 5, 3)  # of the places, then of the head
ROW_INCHES = 0.36
LABELS = {"uniform": "one width everywhere", **{name: f"mixed, chosen {words}" for name, words in CHOSEN.items()}}


def sensitivity_figure(answers: Sequence[Layers]) -> Figure:
    """A panel for each bundle: error against bits, a line for each layer."""
    figure, panels = multiples(len(answers), "bits of the layer's kernel")
    named: dict[str, Any] = {}
    for axes, each in zip(panels, answers, strict=True):
        names = list(each.sizes)
        for index, layer in enumerate(names):
            label = HEAD if layer == names[-1] else PLACES[index]
            colour, marker = STYLES[PLACE_STYLES[-1 if label == HEAD else index]]
            found = [one for one in each.sensitivities if one.layer == layer]
            points = [(one.bits + DODGE * (index - (len(names) - 1) / 2), layer, one.relative_error) for one in found]
            marks(axes, sorted(points), colour, marker, label, "-")
        error_axis(axes.yaxis, axes)
        axes.set_title(f"{each.bundle}  n={each.episodes * len(each.seeds):,}", fontsize=8.5)
        named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    bit_axis(panels[0], (one.bits for each in answers for one in each.sensitivities))
    order = [label for label in (*PLACES, HEAD) if label in named]
    handles = [named[label] for label in order]
    figure.legend(handles, order, loc="outside lower center", ncols=len(order), frameon=False, fontsize=8)
    title(figure, "One layer's kernel with few bits, all else with 8")
    return figure


def widths_figure(answers: Sequence[Layers]) -> Figure:
    """A panel for each budget, a row for each bundle: the error of the uniform and of the mixed assignments."""
    from matplotlib.figure import Figure

    budgets = sorted({budget.bits for each in answers for budget in each.budgets})
    figure = Figure(figsize=(1.8 + 3.6 * len(budgets), 1.5 + ROW_INCHES * len(answers)), layout="constrained")
    panels = figure.subplots(1, len(budgets), squeeze=False, sharey=True, sharex=True)[0]
    for axes, bits in zip(panels, budgets, strict=True):
        _budget_panel(axes, answers, bits)
    names = [f"{each.bundle}\nn={each.episodes * len(each.fresh_seeds):,}" for each in answers]
    panels[0].set_yticks(range(len(answers)), names, fontsize=7.5)
    panels[0].set_ylim(len(answers) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    title(figure, "Mixed widths against one width everywhere, at the same size")
    return figure


def _budget_panel(axes: Axes, answers: Sequence[Layers], bits: int) -> None:
    for index, (name, label) in enumerate(LABELS.items()):
        colour, marker = STYLES[index]
        places, values, spread = [], [], []
        for row, each in enumerate(answers):
            budget = each.budget(bits)
            if budget is None:
                continue
            error = getattr(budget, name).relative_error
            places.append(row + 0.22 * (index - 1))
            values.append(error.value)
            spread.append((error.value - (error.low or error.value), (error.high or error.value) - error.value))
        axes.errorbar(
            values, places, xerr=[list(side) for side in zip(*spread, strict=True)], linestyle="none", color=colour,
            marker=marker, markersize=4.5, capsize=2, elinewidth=1.0, label=label,
        )  # fmt: skip
    for row in range(len(answers) - 1):
        axes.axhline(row + 0.5, color="0.93", linewidth=0.6, zorder=0)
    error_axis(axes.xaxis, axes)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("relative error, %", fontsize=8)
    axes.set_title(f"size of {bits} bits everywhere", fontsize=9)


def save_figures(answers: Sequence[Layers], folder: Path) -> list[Path]:
    """Draw both as PNG and SVG into a folder; returns the files."""
    made = {SENSITIVITY: sensitivity_figure(answers)}
    if any(each.budgets for each in answers):
        made[WIDTHS] = widths_figure(answers)
    return [file for stem, figure in made.items() for file in save(figure, folder / stem)]
