"""Do layer normalisation, weight decay or weight clipping narrow the weights, and do policies then take fewer bits?

    python -m bench.study wide --keep                        six cells, six variants, three seeds: 108 trainings
    python -m bench.study wide cartpole-dqn --variants plain,clip-2 --seeds 0
    python -m bench.study wide --stored --update-docs        fills docs/wide-weights.md, draws its picture

For every cell and seed a policy is trained plainly and with each means, all else equal: settings file, seed, steps.
Each is then quantized after training, by QuaRL's quantizer (weights only) and as devices do (symmetric, one scale an
output channel, activations of 8 bits), and all fly the same episodes as its floats. Intervals are about trainings; over
cells a means is counted once a cell, by the mean of its trainings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import command_line
from bench.report.figures import Line, Panel, facets, gain_scale
from bench.report.intervals import Correlation, Estimate, correlate, mcnemar_exact
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, correlation, estimate, filled, joined, lost
from bench.study import trainings
from bench.study.experiment import ERROR, Episodes, Experiment, Played, Results
from bench.study.records import Condition, cell
from bench.study.trainings import Training, flown, origin, trained
from policy.network import layer_names
from policy.quantization import Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from policy.bundle import Bundle

# Of the cells that train in seconds, those whose committed policies lose most to QuaRL's quantizer at four bits or at
# three (python -m bench.study sweep CELL --weights-only).
CELLS = {
    "acrobot-dqn": Training("Acrobot-v1", "dqn"),
    "pendulum-ddpg": Training("Pendulum-v1", "ddpg"),
    "pendulum-ppo": Training("Pendulum-v1", "ppo"),
    "mountaincar-dqn": Training("MountainCar-v0", "dqn"),
    "cartpole-dqn": Training("CartPole-v1", "dqn"),
    "cartpole-a2c": Training("CartPole-v1", "a2c"),
}
# Strengths were chosen before anything was measured, the same for all cells: in these trainings the steps' sizes add up
# to 0.4 (A2C) … 11 (Acrobot), so that λ = 0.1 takes 4 … 66 % of a weight that nothing renews, and λ = 1 32 % … all of
# it; the orthogonal draw of a layer of 64 has a deviation of 1.4 / √64, so that κ = 4 cuts few weights and κ = 2 many.
VARIANTS: dict[str, Condition] = {
    "plain": {},
    "layer-norm": {"layer_norm": True},
    "decay-0.1": {"weight_decay": 0.1},
    "decay-1": {"weight_decay": 1},
    "clip-4": {"weight_clip": 4},
    "clip-2": {"weight_clip": 2},
}
QUARL, SYMMETRIC = Scheme.QUARL.value, Scheme.SYMMETRIC.value
SCHEMES = {QUARL: "QuaRL's", SYMMETRIC: "symmetric"}
STYLES = (1, 3, 0)  # of the schemes as in pictures of sweeps, and of floats
BITS, SHOWN = (8, 6, 4, 3, 2), (4, 3, 2)
PLACES: dict[str, Condition] = {
    f"{said} {bits}": {"scheme": scheme, "bits": bits} for scheme, said in SCHEMES.items() for bits in BITS
}
DEVICE_ACTIVATION_BITS = 8
SEEDS, EPISODES = (0, 1, 2), 100
PURPOSE = "study of wide weights"  # of the flown episodes
CHANCE = 0.05  # that a test, or an interval of 95 %, finds a difference where there is none

SUMMARY_NOTES = """\
Cells by the mean of their trainings; equal ones are neither. Narrower: range of the weights in standard deviations, \
mean of the layers. fp32: mean return. The others: mean return after quantization to so many bits, against plain \
policies quantized alike, what was gained or lost in fp32 included.
†: p < 0.05 by the two-sided sign test, a cell counted once: at least six, all on one side. If no means did anything, \
about {{ chance }} of these {{ tests }} would be marked.
{% if unmeasured %}
Not measured: {{ unmeasured | several }}.
{% endif %}
"""
WEIGHTS_NOTES = """\
Means over the trainings of the seeds {{ seeds }}, {{ episodes }} episodes of each. Range and standard deviation of \
the weights of all layers together, no biases; range / std of each layer by itself, mean of the layers: n bits over \
that range leave steps of range / std / 2ⁿ deviations, whatever the scale. Gain: in % of plain's |return|. In brackets \
95 % intervals over trainings (Student's t), without brackets: all are equal. ↑, ↓: the interval is above or below \
plain's.
{{ measured }}
"""
ERRORS_NOTES = """\
Error: (float − quantized) / |float| of the mean returns over the same episodes, of each policy against its own \
floats; negative: better than float. ↑, ↓: the return itself is above or below that of the plain policies quantized \
alike, by the whole interval. QuaRL's: its quantizer, weights only; symmetric: one scale an output channel, \
activations of 8 bits. Quantization is simulated; symmetric is what int8 containers on devices compute.
{% for header, found in medians.items() %}
Median over cells, {{ header }} bits: {% for label, value in found.items() %}{{ label }} {{ value }} %\
{{ ", " if not loop.last }}{% endfor %}.
{% endfor %}
"""
ORDERS_NOTES = """\
All variants and seeds of a cell, which share task, method and the network's shape; QuaRL's quantizer, weights only. \
Lost: float minus quantized mean return. In brackets 95 % bootstrap intervals over trainings; –: all lose the same, or \
they are fewer than eight.
Of {{ intervals }} intervals {{ above }} lie above 0 (wider loses more) and {{ below }} below; about {{ chance }} \
would leave 0 out by chance alone. Variants differ in more than their width, and trainings of one seed begin alike: an \
order, not a cause.
"""


def options(parser: argparse.ArgumentParser) -> None:
    """--variants."""
    names = ",".join(VARIANTS)
    parser.add_argument("--variants", type=command_line.words, default=list(VARIANTS), metavar=names, help="of these")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Each variant in floats, and quantized both ways to each width.

    Raises:
        UsageError: there is no such variant.
    """
    if unknown := [name for name in arguments.variants if name not in VARIANTS]:
        raise command_line.UsageError(f"there is no variant {unknown[0]!r}; there are {', '.join(VARIANTS)}.")
    return [{**VARIANTS[name], **place} for name in arguments.variants for place in ({}, *PLACES.values())]


def identity(subject: str) -> str:
    """Of a cell: what its trainings share; what they differ in are conditions."""
    trainings.about(subject, CELLS)
    return trainings.identity(CELLS[subject])


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """Trains what is not there, and flies it."""
    words = ["--layer-norm"] if asked.get("layer_norm") else []
    for name in ("weight_decay", "weight_clip"):
        words += ["--set", f"{name}={asked[name]}"] if name in asked else []
    widths = None
    if "bits" in asked:
        activations = DEVICE_ACTIVATION_BITS if asked["scheme"] == SYMMETRIC else None
        widths = Widths(Scheme(asked["scheme"]), asked["bits"], activations)
    for seed in episodes.seeds:
        bundle = trained(CELLS[subject], seed, *words)
        measures = {} if widths else {**origin(bundle), **width_of(bundle)}
        yield from flown(bundle, widths, episodes.count, PURPOSE, measures)


def width_of(bundle: Bundle) -> dict[str, Any]:
    """How wide the weights are, biases left out.

    Measures: ``range`` and ``std`` of all layers together; ``layers``, each layer's range in its own standard
    deviations, and ``ratio``, their mean: 2ⁿ levels over the range leave a step of ratio / 2ⁿ deviations.
    """
    weights = bundle.weights()
    kernels = {layer: weights[f"{layer}/kernel"].ravel().astype(np.float64) for layer in layer_names(bundle.spec)}
    every = np.concatenate(list(kernels.values()))
    layers = {layer: float(np.ptp(kernel) / kernel.std()) for layer, kernel in kernels.items()}
    return {
        "range": float(np.ptp(every)),
        "std": float(every.std()),
        "ratio": fmean(layers.values()),
        "layers": layers,
    }


def subjects_of(results: Results) -> list[str]:
    """Cells that were measured wholly: whatever any cell was measured with."""
    found: dict[str, set[str]] = {}
    for record in results.found:
        found.setdefault(record["subject"], set()).add(cell(record)[1])
    every = set().union(*found.values())
    return [subject for subject, conditions in found.items() if conditions == every]


def variants_of(results: Results) -> list[str]:
    """Those that were measured."""
    return [
        name
        for name, asked in VARIANTS.items()
        if any(results.records_of(subject, asked) for subject in subjects_of(results))
    ]


def means_of(results: Results) -> list[str]:
    """Those that are compared with plain."""
    return [name for name in variants_of(results) if name != "plain"]


def widths_of(results: Results, subject: str, name: str, measure: str) -> list[float]:
    """``range``, ``std`` or ``ratio`` of the trainings of a variant."""
    return [record["measures"][measure] for record in results.records_of(subject, VARIANTS[name])]


def gain(results: Results, subject: str, name: str, place: Condition) -> Estimate | None:
    """What a means earns more than plain, both quantized alike, in % of plain's |fp32|, seed by seed."""
    return None if name == "plain" else results.contrast(subject, place, {**VARIANTS[name], **place})


def widening(results: Results, subject: str, name: str) -> Estimate | None:
    """Range in standard deviations, minus plain's, seed by seed."""
    one, other = (widths_of(results, subject, each, "ratio") for each in (name, "plain"))
    if name == "plain" or len(one) != len(other):
        return None
    return Estimate.of_mean([a - b for a, b in zip(one, other, strict=True)])


def arrow(found: Estimate | None) -> str:
    """Whether the whole interval lies above or below 0."""
    if found is None or found.low is None or found.high is None or found.low <= 0.0 <= found.high:
        return ""
    return " ↑" if found.low > 0.0 else " ↓"


def sign_test(gains: Sequence[Estimate | None]) -> tuple[int, int, bool, float]:
    """Cells that gain and lose by the mean of their trainings, and whether the sign test tells them apart.

    A cell counts once: its trainings share task, method and network, and are no independent pairs. Equal ones are on
    neither side.

    Returns:
        Cells above 0 and below; whether p < 0.05 of a split at least as uneven where either side is equally likely; and
        the probability of that where either side is.
    """
    from scipy.stats import binom

    above, below = (sum(each is not None and side * each.value > 0.0 for each in gains) for side in (1, -1))
    n = above + below
    chance = sum(float(binom.pmf(k, n, 0.5)) for k in range(n + 1) if mcnemar_exact(k, n - k) < CHANCE)
    return above, below, mcnemar_exact(above, below) < CHANCE, chance


def tables(results: Results) -> list[Table]:
    """The summary, the weights and what floats reach, the errors, and the order of width and loss."""
    return [summary_table(results), weights_table(results), errors_table(results), orders_table(results)]


def summary_table(results: Results) -> Table:
    """In how many cells a means is better than plain: a row for each means."""
    subjects = subjects_of(results)
    rows, chances = [], []
    for name in means_of(results):
        wider = [widening(results, subject, name) for subject in subjects]
        columns = [[None if each is None else Estimate(-each.value) for each in wider]]
        columns += [[gain(results, subject, name, place) for subject in subjects] for place in ({}, *PLACES.values())]
        found = [sign_test(column) for column in columns]
        chances += [chance for *_, chance in found]
        rows.append((name, *(f"{above} : {below}{'†' * is_told}" for above, below, is_told, _ in found)))
    return Table(
        "wide-weights-summary",
        f"Better : worse than plain, by cells; there are {len(subjects)}",
        ("", "narrower", "fp32", *PLACES),
        tuple(rows),
        filled(
            SUMMARY_NOTES,
            tests=len(chances),
            chance=f"{sum(chances):.1f}",
            unmeasured=[name for name in CELLS if name not in subjects],
        ),
    )


def variant_rows(results: Results, cells: Callable[[str, str], list[str]]) -> tuple[tuple[str, ...], ...]:
    """A row for each variant of a cell, with a rule between cells."""
    rows: list[tuple[str, ...]] = []
    for subject in subjects_of(results):
        for index, name in enumerate(variants_of(results)):
            rows.append(("" if index else subject, name, *cells(subject, name)))
        rows.append(())
    return tuple(rows)


def weights_table(results: Results) -> Table:
    """How wide the weights are, and what the float policies reach."""

    def cells(subject: str, name: str) -> list[str]:
        wide = (Estimate.of_mean(widths_of(results, subject, name, each)) for each in ("range", "std", "ratio"))
        wider, better = widening(results, subject, name), gain(results, subject, name, {})
        earned = Estimate.of_mean(results.played("returns", subject, VARIANTS[name]))
        more = [estimate(each, sign="+") + arrow(each) for each in (wider, better)]
        return [*map(estimate, wide), more[0], estimate(earned), more[1]]

    return Table(
        "wide-weights",
        "Width of the weights, and the return of the float policies",
        ("cell", "variant", "range", "std", "range / std", "minus plain", "fp32 return", "gain, %"),
        variant_rows(results, cells),
        filled(
            WEIGHTS_NOTES,
            seeds=", ".join(str(seed) for seed in sorted({record["seed"] for record in results.found})),
            episodes=joined(str(len(record["returns"])) for record in results.found),
            measured=results.measured,
        ),
        2,
    )


def errors_table(results: Results) -> Table:
    """What quantization costs at few bits: a row for each variant of a cell."""
    shown = {header: place for header, place in PLACES.items() if place["bits"] in SHOWN}
    middle: dict[str, dict[str, list[float]]] = {header: {} for header in shown if header.endswith(f" {SHOWN[0]}")}

    def cells(subject: str, name: str) -> list[str]:
        found = []
        for header, place in shown.items():
            error = results.row(subject, {**VARIANTS[name], **place})[ERROR]
            if error is not None and header in middle:
                middle[header].setdefault(name, []).append(error.value)
            found.append(lost(error) + arrow(gain(results, subject, name, place)))
        return found

    rows = variant_rows(results, cells)
    medians = {header: {name: f"{median(errors):.0f}" for name, errors in of.items()} for header, of in middle.items()}
    title = "Relative error in %, by scheme and bits of the weights"
    return Table(
        "wide-weights-errors", title, ("cell", "variant", *shown), rows, filled(ERRORS_NOTES, medians=medians), 2
    )


def orders_table(results: Results) -> Table:
    """Whether, within a cell, the trainings with wider weights lose more: a row for each cell."""
    titles = {"range": "range", "ratio": "range / std"}
    columns = [(bits, measure) for bits in BITS[1:] for measure in titles]
    found = {subject: [order(results, subject, *column) for column in columns] for subject in subjects_of(results)}
    every = [each for of in found.values() for each in of if each is not None]
    return Table(
        "wide-weights-orders",
        "Do the wider of a cell's trainings lose more? Spearman's ρ of the width with the return lost",
        ("cell", *(f"{bits} bits: {titles[measure]}" for bits, measure in columns)),
        tuple(
            (subject, *(NOT_KNOWN if each is None else correlation(each.rho, each.low, each.high) for each in of))
            for subject, of in found.items()
        ),
        filled(
            ORDERS_NOTES,
            intervals=len(every),
            above=sum(each.low > 0 for each in every),
            below=sum(each.high < 0 for each in every),
            chance=f"{CHANCE * len(every):.0f}",
        ),
    )


def order(results: Results, subject: str, bits: int, measure: str) -> Correlation | None:
    """ρ over a cell's trainings of a width with the return lost to QuaRL's quantizer; None where there is no order."""
    widths, losses = [], []
    for name in variants_of(results):
        few = {**VARIANTS[name], **PLACES[f"{SCHEMES[QUARL]} {bits}"]}
        pairs = zip(*(results.played("returns", subject, each) for each in (VARIANTS[name], few)), strict=True)
        losses += [in_floats - quantized for in_floats, quantized in pairs]
        widths += widths_of(results, subject, name, measure)
    try:
        return correlate(widths, losses)
    except ValueError:  # too few trainings, or all lose the same
        return None


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each means: what it gains over plain against the bits, a dot for each cell."""
    lines_of: dict[str, dict[Any, Condition]] = {
        f"{said} quantizer": {bits: PLACES[f"{said} {bits}"] for bits in BITS} for said in SCHEMES.values()
    }
    lines_of["not quantized"] = {"fp32": {}}
    panels = []
    for name in means_of(results):
        lines = []
        for (label, places), style in zip(lines_of.items(), STYLES, strict=True):
            gains = {at: [gain(results, each, name, of) for each in subjects_of(results)] for at, of in places.items()}
            dots = {at: [each.value for each in found if each is not None] for at, found in gains.items()}
            medians = {at: Estimate(median(values)) for at, values in dots.items() if values}
            lines += [Line(label, medians, style, singles=dots)] if medians else []
        panels += [Panel(name, lines)] if lines else []
    if not panels:
        return {}
    drawn = facets(
        panels,
        [*sorted(BITS), "fp32"],
        title="What means against wide weights gain over plain training",
        said="% of plain's |fp32| return, both quantized alike (linear within 5, then logarithmic)\n"
        "dots: cells, means of their trainings; marks: median over cells",
        x_label="bits of the weights",
        scale=gain_scale,
        columns=3,
    )
    return {"wide-weights": drawn}


EXPERIMENT = Experiment(
    name="wide",
    question="do narrower weights quantize better?",
    factors=("layer_norm", "weight_decay", "weight_clip", "scheme", "bits"),
    subjects=tuple(CELLS),
    grid=grid,
    measure=measure,
    identity=identity,
    episodes=lambda arguments, subject: Episodes(arguments.seeds or SEEDS, arguments.episodes or EPISODES),
    tables=tables,
    figures=figures,
    about=lambda subject: trainings.about(subject, CELLS),
    options=options,
    within=("layer_norm", "weight_decay", "weight_clip"),
    of_trainings=True,
)
