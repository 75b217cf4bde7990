"""Histograms of a policy's parameters with the n-bit levels as lines, and of several policies side by side.

100 bins and logarithmic counts, as QuaRL's visualisations have them. Colours are Okabe and Ito's; levels are black on
light blue, which print without colour keeps apart. Levels too dense for lines are counted in words and their outermost
two drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.report.figures import GREY, ORANGE, SKY_BLUE
from bench.study.weights.view import Parameter, all_weights, parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from policy.bundle import Bundle
    from policy.quantization import Scheme

LONGEST_INITIALS = 4  # DDPG, D4PG; distill is a word
BINS = 100
BELOW_ONE = 0.7  # where the logarithmic axis of counts begins, so that a single weight is a bar
DRAWABLE_LEVELS = 72  # across a panel of about 500 pixels; more lines than this are a grey wall
PANEL_INCHES, MARGIN_INCHES = (3.6, 1.75), 0.9
NARROW_INCHES = 2.8  # a column of several bundles


@dataclass(frozen=True)
class View:
    """One bundle to be drawn beside others.

    Attributes:
        title: e.g. ``cartpole-dqn (DQN)``.
        weights: of all layers, (n,).
        parameters: of its layers.
    """

    title: str
    weights: np.ndarray
    parameters: Sequence[Parameter]

    @classmethod
    def of(cls, bundle: Bundle, bits: int, scheme: Scheme) -> View:
        """The view of a bundle."""
        return cls(bundle_title(bundle), all_weights(bundle), parameters(bundle, bits, scheme))


def bundle_title(bundle: Bundle) -> str:
    """``cartpole-dqn``, or with the algorithm where the name does not say it: ``I (PPO)``."""
    method = str(bundle.spec.provenance.get("algorithm", ""))
    if not method or method in bundle.spec.name.lower():
        return bundle.spec.name
    return f"{bundle.spec.name} ({method.upper() if len(method) <= LONGEST_INITIALS else method})"


def parameters_figure(title: str, found: Sequence[Parameter], subtitle: str) -> Figure:
    """A row for each layer, a column for weights, for biases and, where there are, for the normalisation's γ and β."""
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(parameter.layer for parameter in found))
    kinds = list(dict.fromkeys(parameter.kind for parameter in found))
    width, height = PANEL_INCHES[0] * len(kinds), PANEL_INCHES[1] * len(layers)
    figure = Figure(figsize=(max(width, 6.0), height + MARGIN_INCHES), layout="constrained")
    panels = figure.subplots(len(layers), len(kinds), squeeze=False)
    by_place = {(parameter.layer, parameter.kind): parameter for parameter in found}
    for row, layer in zip(panels, layers, strict=True):
        for axes, kind in zip(row, kinds, strict=True):
            parameter = by_place.get((layer, kind))
            if parameter is None:
                axes.set_axis_off()
                continue
            draw_histogram(axes, parameter.values, f"{layer} {kind}", ends_of(parameter.values))
            draw_levels(axes, parameter)
    _frame(figure, title, subtitle)
    return figure


def beside_figure(title: str, views: Sequence[View], subtitle: str) -> Figure:
    """A column for each bundle: all its weights, then those of each layer. A row shares both axes and the bins."""
    from matplotlib.figure import Figure

    weights = [{p.layer: p for p in view.parameters if p.kind == "weights"} for view in views]
    layers = sorted({layer for found in weights for layer in found}, key=_depth)
    size = (max(NARROW_INCHES * len(views), 6.0), PANEL_INCHES[1] * (len(layers) + 1) + MARGIN_INCHES + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(layers) + 1, len(views), squeeze=False, sharex="row", sharey="row")
    common = ends_of(*(view.weights for view in views))
    for axes, view in zip(panels[0], views, strict=True):
        draw_histogram(axes, view.weights, f"{view.title}\nall weights", common, ORANGE)
        spread = float(view.weights.std(dtype=np.float64))
        width = float(np.ptp(view.weights))
        note(axes, f"range {width:.3g}, std {spread:.3g}" + (f", ratio {width / spread:.1f}" if spread else ""))
    for row, layer in zip(panels[1:], layers, strict=True):
        common = ends_of(*(found[layer].values for found in weights if layer in found))
        for axes, found in zip(row, weights, strict=True):
            if layer in found:
                draw_histogram(axes, found[layer].values, f"{layer} weights", common)
            else:
                axes.set_axis_off()
                axes.text(0.5, 0.5, f"no {layer}", transform=axes.transAxes, ha="center", fontsize=8, color=GREY)
        for axes, found in zip(row, weights, strict=True):  # now the row's common limits are known
            if layer in found:
                draw_levels(axes, found[layer])
    for row in panels:
        _share(row)
    _frame(figure, title, subtitle)
    return figure


def _share(row: Sequence[Axes]) -> None:
    """Room above the highest bar of the whole row; labels of the common count axis at its first panel."""
    drawn = [axes for axes in row if axes.axison]
    drawn[0].set_ylim(BELOW_ONE, max(axes.get_ylim()[1] for axes in drawn))
    drawn[0].tick_params(labelleft=True)
    for axes in drawn[1:]:
        axes.set_ylabel("")


def _depth(layer: str) -> tuple[int, int]:
    """Convolutions, then dense layers, then the head, each by its number."""
    kind, _, number = layer.partition("_")
    return ("conv", "dense", "head").index(kind), int(number or 0)


def ends_of(*tensors: np.ndarray) -> tuple[float, float]:
    """Smallest and largest value of all tensors and zero, which every quantizer has."""
    return min(0.0, *(float(values.min()) for values in tensors)), max(
        0.0, *(float(values.max()) for values in tensors)
    )


def draw_histogram(
    axes: Axes, values: np.ndarray, title: str, ends: tuple[float, float], colour: str = SKY_BLUE
) -> None:
    """Counts of the values in 100 bins between two ends, logarithmic, labelled with n."""
    counts, edges = np.histogram(values, bins=BINS, range=ends)
    axes.stairs(counts, edges, fill=True, color=colour, baseline=BELOW_ONE)
    axes.set_yscale("log")
    axes.set_ylim(BELOW_ONE, 25.0 * max(counts.max(), 1))  # room above the bars for two lines of words
    axes.set_title(f"{title}, n={values.size:,}", fontsize=8, pad=3)
    axes.set_ylabel("count", fontsize=7.5)
    axes.tick_params(labelsize=7, color=GREY, length=2.5)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g}".replace("-", "−"))
    axes.locator_params(axis="x", nbins=6)
    axes.spines[["top", "right"]].set_visible(False)


def draw_levels(axes: Axes, parameter: Parameter) -> None:
    """A line for each level, or, where these are too dense, for the outermost two; in words, how many and how far."""
    levels, words = parameter.levels, f"range {parameter.range:.3g}; {parameter.levels.words}"
    if not levels.count:
        note(axes, words)
        return
    words += f"\n{levels.step_words}"
    left, right = axes.get_xlim()
    transform = axes.get_xaxis_transform()
    if levels.count <= DRAWABLE_LEVELS and (right - left) / levels.step <= DRAWABLE_LEVELS:
        axes.vlines(levels.positions(), 0, 0.76, transform=transform, color="black", linewidth=0.5)
        note(axes, words)
    else:
        ends = [levels.lowest, levels.highest]
        axes.vlines(ends, 0, 0.76, transform=transform, color="black", linewidth=0.9, linestyle=":")
        note(axes, f"{words}: too dense, ends dotted")


def note(axes: Axes, words: str) -> None:
    """A line of words at the top of a panel."""
    axes.text(0.5, 0.97, words, transform=axes.transAxes, ha="center", va="top", fontsize=6.5, color="black")


def _frame(figure: Figure, title: str, subtitle: str) -> None:
    figure.suptitle(f"{title}\n\n", fontsize=11, fontweight="bold", linespacing=0.95)
    figure.text(0.5, 1 - 0.28 / figure.get_figheight(), subtitle, ha="center", va="top", fontsize=7.5, color=GREY)
    figure.supxlabel("value", fontsize=8)
