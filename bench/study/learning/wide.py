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

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import command_line
from bench.report.figures import gain_scale
from bench.report.intervals import Correlation, Estimate, mcnemar_exact, order_of
from bench.report.lines import Lines, in_order
from bench.report.pivot import Pivot, alike
from bench.study.experiment import ERROR, EpisodePlan, Results, SeedResult
from bench.study.records import Condition
from bench.study.trainings import Training, flown, of_cells, origin, trained
from policy.network import layer_names
from policy.quantization import Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    import argparse

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
STYLES = {"QuaRL's quantizer": 1, "symmetric quantizer": 3, "not quantized": 0}  # as in pictures of sweeps
BITS, MOST_SHOWN = (8, 6, 4, 3, 2), 4  # of the table of errors
PLACES: dict[str, Condition] = {
    f"{label} {bits}": {"scheme": scheme, "bits": bits} for scheme, label in SCHEMES.items() for bits in BITS
}
EVERYWHERE: dict[str, Condition] = {"fp32": {}, **PLACES}
SHOWN = [head for head, place in PLACES.items() if place["bits"] <= MOST_SHOWN]
DEVICE_ACTIVATION_BITS = 8
WIDTHS = {"range": "range", "std": "std", "range / std": "ratio"}
SEEDS, EPISODES = (0, 1, 2), 100
PURPOSE = "study of wide weights"  # of the flown episodes
CHANCE = 0.05  # that a test, or an interval of 95 %, finds a difference where there is none

SUMMARY = """\
Better : worse than plain, by cells; there are {{ cells }}
Cells by the mean of their trainings; equal ones are neither. Narrower: range of the weights in standard deviations, \
mean of the layers. fp32: mean return. The others: mean return after quantization to so many bits, against plain \
policies quantized alike, what was gained or lost in fp32 included.
†: p < 0.05 by the two-sided sign test, a cell counted once: at least six, all on one side. If no means did anything, \
about {{ "%.1f" | format(rows | sum("chance")) }} of these {{ rows | length }} would be marked.
{% if unmeasured %}
Not measured: {{ unmeasured | several }}.
{% endif %}
"""
WEIGHTS = """\
Width of the weights, and the return of the float policies
Means over the trainings of the seeds {{ results.seeds }}, {{ counts | join(", ") }} episodes of each. Range and \
standard deviation of the weights of all layers together, no biases; range / std of each layer by itself, mean of the \
layers: n bits over that range leave steps of range / std / 2ⁿ deviations, whatever the scale. Gain: in % of plain's \
|return|. In brackets 95 % intervals over trainings (Student's t), without brackets: all are equal. ↑, ↓: the interval \
is above or below plain's.
{{ results.measured }}
"""
ERRORS = """\
Relative error in %, by scheme and bits of the weights
Error: (float − quantized) / |float| of the mean returns over the same episodes, of each policy against its own \
floats; negative: better than float. ↑, ↓: the return itself is above or below that of the plain policies quantized \
alike, by the whole interval. QuaRL's: its quantizer, weights only; symmetric: one scale an output channel, \
activations of 8 bits. Quantization is simulated; symmetric is what int8 containers on devices compute.
{% for header, found in medians.items() %}
Median over cells, {{ header }} bits: {% for label, value in found.items() %}{{ label }} {{ "%.0f" | format(value) }} %\
{{ ", " if not loop.last }}{% endfor %}.
{% endfor %}
"""
ORDERS = """\
Do the wider of a cell's trainings lose more? Spearman's ρ of the width with the return lost
All variants and seeds of a cell, which share task, method and the network's shape; QuaRL's quantizer, weights only. \
Lost: float minus quantized mean return. In brackets 95 % bootstrap intervals over trainings; –: all lose the same, or \
they are fewer than eight.
Of {{ sides | length }} intervals {{ sides.count(1) }} lie above 0 (wider loses more) and {{ sides.count(-1) }} below; \
about {{ "%.0f" | format(sides | length * chance) }} would leave 0 out by chance alone. Variants differ in more than \
their width, and trainings of one seed begin alike: an order, not a cause.
"""


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Each variant in floats, and quantized both ways to each width.

    Raises:
        UsageError: there is no such variant.
    """
    if unknown := [name for name in arguments.variants if name not in VARIANTS]:
        raise command_line.UsageError(f"there is no variant {unknown[0]!r}; there are {', '.join(VARIANTS)}.")
    return [{**VARIANTS[name], **place} for name in arguments.variants for place in ({}, *PLACES.values())]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Trains what is not there, and flies it."""
    words = ["--layer-norm"] if condition.get("layer_norm") else []
    for name in ("weight_decay", "weight_clip"):
        words += ["--set", f"{name}={condition[name]}"] if name in condition else []
    widths = None
    if "bits" in condition:
        activations = DEVICE_ACTIVATION_BITS if condition["scheme"] == SYMMETRIC else None
        widths = Widths(Scheme(condition["scheme"]), condition["bits"], activations)
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
    found = {subject: results.conditions(subject) for subject in results.subjects}
    every = set().union(*found.values())
    return [subject for subject, conditions in found.items() if conditions == every]


def variants_of(results: Results) -> list[str]:
    """The names of the variants that were measured."""
    subjects = subjects_of(results)
    return [
        name for name, condition in VARIANTS.items() if any(results.records_of(each, condition) for each in subjects)
    ]


def widths_of(results: Results, subject: str, name: str, measure: str) -> list[float]:
    """``range``, ``std`` or ``ratio`` of the trainings of a variant."""
    return [record["measures"][measure] for record in results.records_of(subject, VARIANTS[name])]


def gain(results: Results, subject: str, name: str, place: Condition) -> Estimate | None:
    """Gain of a means over plain, both quantized alike, in % of plain's |fp32|, seed by seed."""
    return None if name == "plain" else results.contrast(subject, place, {**VARIANTS[name], **place})


def widening(results: Results, subject: str, name: str) -> Estimate | None:
    """Range in standard deviations, minus plain's, seed by seed."""
    one, other = (widths_of(results, subject, each, "ratio") for each in (name, "plain"))
    if name == "plain" or len(one) != len(other):
        return None
    return Estimate.of_mean([a - b for a, b in zip(one, other, strict=True)])


def order(results: Results, subject: str, bits: int, measure: str) -> Correlation | None:
    """ρ over a cell's trainings of a width with the return lost to QuaRL's quantizer; None where there is no order."""
    widths, losses = [], []
    for name in variants_of(results):
        few = {**VARIANTS[name], **PLACES[f"{SCHEMES[QUARL]} {bits}"]}
        pairs = zip(*(results.played("returns", subject, each) for each in (VARIANTS[name], few)), strict=True)
        losses += [in_floats - quantized for in_floats, quantized in pairs]
        widths += widths_of(results, subject, name, measure)
    return order_of(widths, losses)


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


@functools.cache
def policies(results: Results) -> list[dict[str, Any]]:
    """A row for each cell, variant and place of :data:`EVERYWHERE`; the width of the weights stands in that of fp32."""
    rows = []
    for cell, name, (head, place) in itertools.product(subjects_of(results), variants_of(results), EVERYWHERE.items()):
        found = results.row(cell, {**VARIANTS[name], **place})
        line = f"{SCHEMES[place['scheme']]} quantizer" if place else "not quantized"
        row = {"cell": cell, "variant": name, "head": head, "at": place.get("bits", head), "line": line, **found}
        row |= {"gain": gain(results, cell, name, place), "wider": widening(results, cell, name)}
        if not place:
            row |= {m: Estimate.of_mean(widths_of(results, cell, name, m)) for m in WIDTHS.values()}
        rows.append(row)
    return rows


def at(*heads: str) -> Callable[[Results], list[dict[str, Any]]]:
    """The rows of these places."""
    return lambda results: [row for row in policies(results) if row["head"] in heads]


def sign_tests(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each means against wide weights and each column of the summary."""
    for name in [name for name in variants_of(results) if name != "plain"]:
        mine = [row for row in policies(results) if row["variant"] == name]
        columns = {"narrower": [row["wider"] and row["wider"].times(-1.0) for row in mine if row["head"] == "fp32"]}
        columns |= {head: [row["gain"] for row in mine if row["head"] == head] for head in EVERYWHERE}
        for head, column in columns.items():
            above, below, is_clear, chance = sign_test(column)
            yield {"variant": name, "head": head, "above": above, "below": below, "clear": is_clear, "chance": chance}


def orders(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each cell, number of bits and measure of width: Spearman's ρ with the return lost."""
    for cell, bits, head in itertools.product(subjects_of(results), BITS[1:], ("range", "range / std")):
        yield {"cell": cell, "bits": bits, "width": head, "rho": order(results, cell, bits, WIDTHS[head])}


def gains(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each variant, quantizer and width: the cells' gains over plain, and their median."""
    for rows in alike(policies(results), "{{ variant }} {{ head }}").values():
        values = [row["gain"].value for row in rows if row["gain"] is not None]
        if values:
            yield {**rows[0], "gain": Estimate(median(values)), "gains": values}


def medians(results: Results) -> dict[str, dict[str, float]]:
    """Median error over cells at the most bits of the table, by scheme and variant."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in policies(results):
        if row["at"] == MOST_SHOWN and row[ERROR]:
            found.setdefault(row["head"], {}).setdefault(row["variant"], []).append(row[ERROR].value)
    return {head: {name: median(values) for name, values in of.items()} for head, of in found.items()}


LEAD = {"cell": "{{ cell }}", "variant": "{{ variant }}"}
TABLES = [
    Pivot(
        name="wide-weights-summary",
        words=SUMMARY,
        lead={"": "{{ variant }}"},
        columns=[{"{{ head }}": "{{ above }} : {{ below }}{{ '†' if clear }}"}],
        rows=sign_tests,
        facts=lambda results: {
            "cells": len(subjects_of(results)),
            "unmeasured": [name for name in CELLS if name not in subjects_of(results)],
        },
    ),
    Pivot(
        name="wide-weights",
        words=WEIGHTS,
        lead=LEAD,
        columns=[
            {head: f"{{{{ {measure} | estimate }}}}" for head, measure in WIDTHS.items()},
            {"minus plain": "{{ wider | estimate(sign='+') }}{{ wider | arrow }}"},
            {"fp32 return": "{{ return | estimate }}"},
            {"gain, %": "{{ gain | estimate(sign='+') }}{{ gain | arrow }}"},
        ],
        rows=at("fp32"),
        facts=lambda results: {"counts": dict.fromkeys(str(len(record["returns"])) for record in results.found)},
        grouped=True,
    ),
    Pivot(
        name="wide-weights-errors",
        words=ERRORS,
        lead=LEAD,
        columns=[{"{{ head }}": "{{ error | lost }}{{ gain | arrow }}"}],
        rows=at(*SHOWN),
        facts=lambda results: {"medians": medians(results)},
        grouped=True,
    ),
    Pivot(
        name="wide-weights-orders",
        words=ORDERS,
        lead={"cell": "{{ cell }}"},
        columns=[{"{{ bits }} bits: {{ width }}": "{{ rho | correlation }}"}],
        rows=orders,
        facts=lambda results: {"sides": [row["rho"].side for row in orders(results) if row["rho"]], "chance": CHANCE},
    ),
]
GAINS = Lines(
    stem="wide-weights",
    title="What means against wide weights gain over plain training",
    below="% of plain's |fp32| return, both quantized alike (linear within 5, then logarithmic)\n"
    "dots: cells, means of their trainings; marks: median over cells",
    x="at",
    x_label="bits of the weights",
    line="line",
    labels={line: (line, style) for line, style in STYLES.items()},
    y="gain",
    rows=gains,
    panel="{{ variant }}",
    singles="gains",
    scale=gain_scale,
    places=in_order,
    columns=3,
)


EXPERIMENT = of_cells(
    CELLS,
    SEEDS,
    lambda subject: EPISODES,
    name="wide",
    question="do narrower weights quantize better?",
    factors=("layer_norm", "weight_decay", "weight_clip", "scheme", "bits"),
    within=("layer_norm", "weight_decay", "weight_clip"),
    options=lambda parser: parser.add_argument(
        "--variants", type=command_line.words, default=list(VARIANTS), metavar=",".join(VARIANTS), help="of these"
    ),
    grid=grid,
    measure=measure,
    tables=TABLES,
    figures=[GAINS],
)
