"""Draw the sweet-spot plots of stored sweeps: return against bits, as PNG and SVG.

    python -m bench.study sweep-plot
    python -m bench.study sweep-plot --only II --output /tmp/pictures

One picture for each bundle, with every scheme that was swept; and one for each task and scheme, with all bundles of the
task. Points are means with 95 % intervals over all episodes; the band is fp32's. Colours are Okabe and Ito's, and marks
differ too, for print without colour. The sweeps are those of results/study/ (sweep BUNDLE --keep).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import BLUE, FIGURES, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION, headed, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bench.report.intervals import Estimate
    from bench.study.sweep.store import Outcome, Sweep

STUDY_FIGURES = FIGURES / "study"
STYLES = ((BLUE, "o"), (VERMILLION, "^"), (GREEN, "s"), (PURPLE, "v"), (ORANGE, "P"), (SKY_BLUE, "X"))
FP16 = "fp16"
LABELS: Mapping[tuple[str, str], str] = {
    ("quarl", ""): "quarl: the paper's quantizer, weights and activations",
    ("quarl", "weights"): "quarl, weights only",
    ("quarl-released", ""): "quarl-released: as the paper's script, weights only",
    ("symmetric", ""): "symmetric, as on devices: activations of 8 bits or more",
}
DODGE = 0.13  # of one width's room, between series
PANEL_INCHES = (6.4, 3.1)


@dataclass(frozen=True)
class Series:
    """One line of a panel: a sweep under its label."""

    label: str
    sweep: Sweep
    colour: str
    marker: str


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, write, say where."""
    parser = command_line.parser(__doc__, "-m bench.study sweep-plot")
    parser.add_argument("--only", metavar="BUNDLE", default=None, help="this bundle's picture alone")
    parser.add_argument("--study", type=Path, metavar="FOLDER", default=None, help="of sweeps (default: results/study)")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", default=STUDY_FIGURES, help="default: docs/figures/study"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.study.sweep import store as study_store

    sweeps = study_store.read_sweeps(arguments.study or study_store.STUDY)
    if arguments.only is not None:
        known = sorted({sweep.bundle for sweep in sweeps})
        sweeps = study_store.of_bundle(sweeps, arguments.only)
        if not sweeps:
            raise command_line.UsageError(
                f"no sweep of {arguments.only!r} is stored; there are sweeps of {', '.join(known) or 'none'}.",
                f"python -m bench.study sweep {arguments.only} --keep",
            )
    if not sweeps:
        raise command_line.BenchError("no sweep is stored.", "python -m bench.study sweep cartpole-dqn --keep")
    files = save_figures(sweeps, arguments.output)
    if arguments.json:
        print(json.dumps({"ok": True, "files": [str(file) for file in files]}))
    else:
        print("\n".join(str(file) for file in files))
    return command_line.EXIT_OK


def save_figures(sweeps: Sequence[Sweep], folder: Path) -> list[Path]:
    """Draw every bundle, and every task and scheme of several bundles; returns the files."""
    files = []
    for bundle in dict.fromkeys(sweep.bundle for sweep in sweeps):
        files += save(bundle_figure([each for each in sweeps if each.bundle == bundle]), folder / f"sweetspot-{bundle}")
    for task, scheme, variant in dict.fromkeys((each.task, each.scheme, each.variant) for each in sweeps):
        joined = [each for each in sweeps if (each.task, each.scheme, each.variant) == (task, scheme, variant)]
        if len(joined) > 1:
            words = "-".join(word for word in ("sweetspot", file_word(task), scheme.value, variant) if word)
            files += save(task_figure(joined), folder / words)
    return files


def file_word(task: str) -> str:
    """A task's name in a file's: ``CartPole-v1`` is ``task-cartpole-v1``."""
    return "task-" + re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")


def bundle_figure(sweeps: Sequence[Sweep]) -> Figure:
    """One bundle, a line for each scheme."""
    first = sweeps[0]
    # A scheme keeps its colour from picture to picture; what has no place in LABELS comes after those that have.
    places = {key: index for index, key in enumerate(LABELS)}
    for each in sweeps:
        places.setdefault((each.scheme.value, each.variant), len(places))

    def place(each: Sweep) -> int:
        return places[each.scheme.value, each.variant]

    series = [Series(label_of(each), each, *_style(place(each))) for each in sorted(sweeps, key=place)]
    return _figure(f"How few bits {bundle_words(first)} takes on {first.task}", series)


def task_figure(sweeps: Sequence[Sweep]) -> Figure:
    """All bundles of one task, quantized by one scheme, a line for each bundle."""
    first = sweeps[0]
    series = [Series(bundle_words(each), each, *_style(index)) for index, each in enumerate(sweeps)]
    return _figure(f"How few bits policies of {first.task} take", series, label_of(first))


def _style(index: int) -> tuple[str, str]:
    return STYLES[index % len(STYLES)]


def bundle_words(sweep: Sweep) -> str:
    """``cartpole-dqn``, ``II (PPO)``, ``II (PPO), trained at 4 bits``."""
    name = sweep.bundle if sweep.algorithm in sweep.bundle else f"{sweep.bundle} ({sweep.algorithm.upper()})"
    return name if sweep.trained_bits is None else f"{name}, trained at {sweep.trained_bits} bits"


def label_of(sweep: Sweep) -> str:
    """The scheme in words that say what of the policy it quantizes."""
    from bench.study.sweep.command import scheme_words

    return LABELS.get((sweep.scheme.value, sweep.variant), scheme_words(sweep))


def _figure(title: str, series: Sequence[Series], subtitle: str = "") -> Figure:
    from matplotlib.figure import Figure

    presets = list(dict.fromkeys(preset for each in series for preset in each.sweep.presets))
    has_success = any(outcome.success is not None for each in series for outcome in each.sweep.reference)
    measures = ("success", "mean_return") if has_success else ("mean_return",)
    width, height = PANEL_INCHES
    shape = len(measures), len(presets)
    room = 1.2 + 0.19 * (len(series) + 2) / len(presets)  # of the title and the legend
    figure = Figure(figsize=(max(1, 0.82 * len(presets)) * width, height * len(measures) + room), layout="constrained")
    panels = figure.subplots(*shape, squeeze=False, sharex=True)
    for row, measure in zip(panels, measures, strict=True):
        for axes, preset in zip(row, presets, strict=True):
            _panel(axes, series, preset, measure)
            if preset and measure == measures[0]:
                axes.set_title(f"\npreset {preset}", fontsize=10)  # below the line that says what n is
    for axes in panels[-1]:
        axes.set_xlabel("bits of the weights")
    handles, labels = panels[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside lower center", ncols=len(presets), frameon=False, fontsize=8
    )
    said = "\n".join(line for line in (subtitle, counts(series)) if line)
    lines = said.count("\n") + 1
    headed(figure, title, said, lines)
    return figure


def counts(series: Sequence[Series]) -> str:
    """How many episodes a point stands for, and what the marks are."""
    said = dict.fromkeys(
        f"{len(each.sweep.seeds) * each.sweep.episodes:,} episodes a point ({each.sweep.episodes} of each seed "
        f"{', '.join(map(str, each.sweep.seeds))})"
        for each in series
    )
    several = "; diamonds: fp16" if len({each.sweep.bundle for each in series}) > 1 else ""
    return f"{'; '.join(said)}, the same at every width\nbars: 95 % intervals; bands: fp32{several}"


def width_names(series: Sequence[Series]) -> list[str]:
    """Names of all widths, from few bits to many; fp16 after 16."""
    names = {width.name for each in series for width in each.sweep.widths}
    return sorted(names, key=lambda name: (16, 1) if name == FP16 else (int(name), 0))


def _panel(axes: Axes, series: Sequence[Series], preset: str, measure: str) -> None:
    """One measure on one preset; widths stand at equal distances, for most happens at the few."""
    from matplotlib.ticker import FuncFormatter

    names = width_names(series)
    one_reference = len({each.sweep.bundle for each in series}) == 1
    for index, each in enumerate(series):
        reference = _of_preset(each.sweep.reference, preset)
        if reference is None:
            continue
        if index == 0 or not one_reference:
            band(axes, getattr(reference, measure), GREY if one_reference else each.colour, one_reference)
        offset = DODGE * (index - (len(series) - 1) / 2)
        points = [
            (names.index(width.name) + offset, width.name, estimate)
            for width in each.sweep.widths
            if (outcome := _of_preset(width.outcomes, preset)) is not None
            and (estimate := getattr(outcome, measure)) is not None
        ]
        points.sort(key=lambda point: point[0])
        line = [point for point in points if point[1] != FP16]
        marks(axes, line, each.colour, each.marker, each.label, "-")
        if index == 0 or not one_reference:  # fp16 is no scheme's: once a bundle
            half = [point for point in points if point[1] == FP16]
            label = "fp16" if one_reference else None
            marks(axes, half, "black" if one_reference else each.colour, "D", label, "none")
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_ylabel("success" if measure == "success" else "return")
    if measure == "success":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(100 * share, 6):g} %"))
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _of_preset(outcomes: Sequence[Outcome], preset: str) -> Outcome | None:
    return next((outcome for outcome in outcomes if outcome.preset == preset), None)


def band(axes: Axes, estimate: Estimate | None, colour: str, named: bool) -> None:
    """A policy's mean as a line, its interval as a band across the panel."""
    if estimate is None:
        return
    axes.axhline(estimate.value, color=colour, linewidth=0.9, linestyle="--", zorder=1, label="fp32" if named else None)
    if estimate.low is not None and estimate.high is not None:
        axes.axhspan(estimate.low, estimate.high, color=colour, alpha=0.16, linewidth=0, zorder=0)


def marks(
    axes: Axes,
    points: Sequence[tuple[float, str, Estimate]],
    colour: str,
    marker: str,
    label: str | None,
    linestyle: str,
) -> None:
    """Points of (x, word, estimate) with their intervals, joined by a line."""
    if not points:
        return
    values = [estimate.value for _, _, estimate in points]
    low = [estimate.value - (estimate.value if estimate.low is None else estimate.low) for _, _, estimate in points]
    high = [(estimate.value if estimate.high is None else estimate.high) - estimate.value for _, _, estimate in points]
    axes.errorbar(
        [x for x, _, _ in points],
        values,
        yerr=[low, high],
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.1,
        elinewidth=1.0,
        capsize=2.5,
        linestyle=linestyle,
        label=label,
        zorder=3,
    )


if __name__ == "__main__":
    raise SystemExit(main())
