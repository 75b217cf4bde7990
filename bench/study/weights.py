"""Distribution of a policy's weights and biases with the n-bit levels, as in QuaRL's visualisations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
import numpy as np
from rich.console import Console

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import GREY, ORANGE, SKY_BLUE, add_heading, new_figure, style
from quarl.bench.study import command
from quarl.bench.study.measures.levels import (
    KINDS,
    Levels,
    Parameter,
    all_weights,
    parameters,
    table_of,
    title_of,
)
from quarl.bench.tables import print_table
from quarl.policy.bundle import Bundle
from quarl.policy.console import heartbeat
from quarl.policy.locate import working_bundle
from quarl.policy.places import RESULTS
from quarl.policy.quantize import FLOAT_BITS, Scheme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = RESULTS / "weights"
LINES = {
    Scheme.QUARL: "QuaRL's affine quantizer, one range a tensor",
    Scheme.SYMMETRIC: "symmetric per output channel, of the widest channel",
}
ALL = "all layers"
BINS = 100
BELOW_ONE = 0.7  # where the logarithmic axis of counts begins, so that a single weight is a bar
DRAWABLE_LEVELS = 72  # across a panel of about 500 pixels; more lines than this are a grey wall
PANEL_INCHES, NARROW_INCHES = (3.6, 1.75), 2.8  # a column of several bundles is narrower


@cyclopts.Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.Drawing):
    """What to draw.

    Attributes:
        bundles: a folder, or a name such as II, cartpole-dqn
        bits: 2 … 32
        scheme: whose levels
        activations: each layer's activation range instead, no picture
        ranges: instead the quality of int8 with each --ranges of quarl convert, no picture
        output_path: folder of the files (default: results/weights/NAME)
    """

    bundles: tuple[str, ...] = field(kw_only=False)
    bits: Annotated[int, cyclopts.Parameter(name=("--bits", "-b"))] = 8
    scheme: Literal["quarl", "symmetric"] = "quarl"
    activations: bool = False
    ranges: bool = False


@heartbeat()
@cli.verb()
def weights(options: Options) -> int:
    """Distribution of a policy's weights and biases with the n-bit levels, as in QuaRL's visualisations.

        quarl study weights cartpole-dqn -b 4
        quarl study weights II -b 8 --scheme symmetric --output-path /tmp/view
        quarl study weights cartpole-dqn cartpole-ppo cartpole-a2c
        quarl study weights II --activations
        quarl study weights I II III --ranges

    Writes a PNG, an SVG and output.txt (minimum, maximum, range and step of each parameter, which are printed, too).
    Several bundles share one picture, a column each. --activations prints each layer's range on the bundle's
    calibration observations instead. Histograms have 100 bins and logarithmic counts; levels are those of
    measures/levels.py.
    """
    bundles = [working_bundle(name) for name in options.bundles]
    if options.activations:
        from quarl.bench.study.measures.activations import activation_ranges, table

        ranges = [activation_ranges(bundle) for bundle in bundles]
        tables = [table(bundle, item) for bundle, item in zip(bundles, ranges, strict=True)]
        names = [bundle.spec.name for bundle in bundles]
        values = [
            {"bundle": name} | vars(item) for name, tensors in zip(names, ranges, strict=True) for item in tensors
        ]
        return command.show(replace(options, output_path=None), tables, dict, values)
    if options.ranges:
        from quarl.bench.study.measures.activations import ends_table, worth_by_ends

        rows = [worth_by_ends(bundle) for bundle in bundles]
        return command.show(replace(options, output_path=None), [ends_table(rows)], dict, rows)
    scheme = Scheme(options.scheme)
    views = [parameters(bundle, options.bits, scheme) for bundle in bundles]
    tables = [table_of(bundle, tensors, options.bits, scheme) for bundle, tensors in zip(bundles, views, strict=True)]
    folder = options.output_path or PICTURES / "-".join(bundle.spec.name for bundle in bundles)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("w", encoding="utf-8") as file:
        for item in tables:
            print_table(item, Console(file=file, width=command_line.FILE_WIDTH))
    stem = f"{'beside' if len(bundles) > 1 else 'weights'}-{options.bits}bit-{scheme.value}"
    values = [dict(zip(item.headers, row, strict=True)) for item in tables for row in item.rows]
    output_options = replace(options, output_path=folder)
    return command.show(output_options, tables, lambda: {stem: picture(bundles, views, options.bits, scheme)}, values)


# --- the picture ------------------------------------------------------------------------------------------------------


def picture(bundles: Sequence[Bundle], views: Sequence[Sequence[Parameter]], bits: int, scheme: Scheme) -> Figure:
    """Return one bundle: a row for each layer, a column for each kind of parameter. Several: a column for each bundle,
    all its weights and then those of each layer, where a row shares both axes and the bins."""
    columns: dict[str, dict[str, Parameter]] = {}
    if len(bundles) == 1:
        title = title_of(bundles[0])
        for parameter in views[0]:
            columns.setdefault(KINDS[parameter.kind], {})[parameter.layer] = parameter
    else:
        tasks = dict.fromkeys(str(bundle.spec.provenance.get("task", "unknown task")) for bundle in bundles)
        title = f"Weights on {', '.join(tasks)}"
        for bundle, view in zip(bundles, views, strict=True):
            weights = all_weights(bundle)
            ratio = np.ptp(weights) / (weights.std(dtype=np.float64) or 1.0)
            every = Parameter(ALL, "kernel", weights, Levels(f"{ratio:.1f} standard deviations"))
            columns[title_of(bundle)] = {
                ALL: every,
                **{parameter.layer: parameter for parameter in view if parameter.kind == "kernel"},
            }
    lines = "no levels" if bits == FLOAT_BITS else f"lines: levels at {bits} bits, {LINES[scheme]}"
    return _grid(title, f"{lines}; {BINS} bins, logarithmic counts", columns, shared=len(bundles) > 1)


@style()
def _grid(title: str, subtitle: str, columns: Mapping[str, Mapping[str, Parameter]], shared: bool) -> Figure:
    rows = sorted({name for column_parameters in columns.values() for name in column_parameters}, key=_depth)
    width = NARROW_INCHES if shared else PANEL_INCHES[0]
    figure = new_figure(max(width * len(columns), 6.0), PANEL_INCHES[1] * len(rows) + 1.0)
    share: Literal["row", "none"] = "row" if shared else "none"
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex=share, sharey=share)
    for drawn, row in zip(panels, rows, strict=True):
        there = {
            name: column_parameters[row] for name, column_parameters in columns.items() if row in column_parameters
        }
        common = _ends(there.values())
        for axes, column in zip(drawn, columns, strict=True):
            if column in there:
                ends = common if shared else _ends([there[column]])
                _draw_histogram(axes, there[column], f"{column}: {row}", ends)
            else:
                axes.set_axis_off()
                axes.text(0.5, 0.5, f"no {row}" * shared, transform=axes.transAxes, ha="center", color=GREY, fontsize=8)
        if shared:
            filled = [axes for axes in drawn if axes.axison]
            filled[0].set_ylim(BELOW_ONE, max(axes.get_ylim()[1] for axes in filled))
            filled[0].tick_params(labelleft=True)
        for axes, column in zip(drawn, columns, strict=True):  # now the row's common limits are known
            if column in there:
                _draw_levels(axes, there[column])
    figure.supxlabel("value")
    figure.supylabel("count")
    add_heading(figure, title, subtitle, 1)
    return figure


def _depth(layer: str) -> tuple[int, int]:
    """Return all, convolutions, then dense layers, then the head, each by its number."""
    kind, _, number = layer.partition("_")
    return (ALL, "conv", "dense", "head").index(kind), int(number or 0)


def _ends(found: Iterable[Parameter]) -> tuple[float, float]:
    """Smallest and largest value of all tensors and zero, which every quantizer has."""
    values = [end for parameter in found for end in (float(parameter.values.min()), float(parameter.values.max()))]
    return min(0.0, *values), max(0.0, *values)


def _draw_histogram(axes: Axes, parameter: Parameter, title: str, ends: tuple[float, float]) -> None:
    counts, edges = np.histogram(parameter.values, bins=BINS, range=ends)
    axes.stairs(counts, edges, fill=True, color=ORANGE if parameter.layer == ALL else SKY_BLUE, baseline=BELOW_ONE)
    axes.set_yscale("log")
    axes.grid(visible=False)
    axes.set_ylim(BELOW_ONE, 25.0 * max(counts.max(), 1))  # room above the bars for two lines of words
    axes.set_title(f"{title}, n={parameter.values.size:,}", fontsize=8, pad=3)
    axes.tick_params(labelsize=7, color=GREY, length=2.5)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.6g}".replace("-", "−"))
    axes.locator_params(axis="x", nbins=6)


def _draw_levels(axes: Axes, parameter: Parameter) -> None:
    """Draw a line for each level, or, where these are too dense, for the outermost two; in words, how many and how
    far."""
    levels, words = parameter.levels, f"range {parameter.range:.3g}; {parameter.levels.words}"
    if levels.count:
        left, right = axes.get_xlim()
        dense = max(levels.count, (right - left) / levels.step) > DRAWABLE_LEVELS
        ends = [levels.lowest, levels.lowest + levels.step * (levels.count - 1)]
        positions, width, style = (ends, 0.9, ":") if dense else (levels.positions(), 0.5, "-")
        above = axes.get_xaxis_transform()
        axes.vlines(positions, 0, 0.76, transform=above, color="black", linewidth=width, linestyle=style)
        words += ": too dense, ends dotted" if dense else ""
    axes.text(0.5, 0.97, words, transform=axes.transAxes, ha="center", va="top", fontsize=6.5)


main = cli.of("study weights")
