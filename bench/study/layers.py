"""Which layer needs its bits? One layer's kernel at a time has few, all else has 8.

    python -m bench.study layers cartpole-dqn
    python -m bench.study layers --keep                      measures what is not kept yet of all committed perceptrons
    python -m bench.study layers --stored --update-docs      fills docs/layers.md, draws the picture

Beside the return stand three cheap measures that look at calibration observations alone (measures/damage.py).
Symmetric scheme, simulated in float.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import Line, Panel, error_scale, facets
from bench.report.intervals import Correlation, correlate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, correlation, filled, lost
from bench.study.experiment import ERROR, Episodes, Played, Results
from bench.study.flying import (
    PERCEPTRONS,
    ROBOTS,
    decide_with,
    float_decide,
    fly,
    of_bundles,
    open_perceptron,
)
from bench.study.measures.assignments import kernel_sizes, uniform
from bench.study.measures.damage import Estimator
from bench.study.records import Condition
from policy.quantization import LARGEST_WEIGHT_BITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

BITS, BITS_OF_ROBOTS = (5, 4, 3, 2), (4, 3, 2)
MEASURES = {"output_error": "output error", "actions_differ": "other action", "regret": "regret"}
PLACES = ("first layer", "middle layer", "head")
LINES = {"first layer": 0, "second": 1, "third": 2, "fourth": 4, "fifth": 5, "head": 3}  # label and style

NOTES = """\
{% for bits, firsts, asked in most_sensitive %}
Most sensitive at {{ bits }} bits, its interval above all others': \
{{ firsts or "no layer" }}{% if firsts %} of {{ asked }}{% endif %}.
{% endfor %}
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); 0: \
less than 0.005 % in all three numbers; without brackets: all episodes are equal.
{{ measured }}
"""
CORRELATION_NOTES = """\
{% for words, found in by_measure.items() %}
{{ words | capitalize }}: median ρ {{ found.median }} over {{ found.policies }} policies, the interval above 0 in \
{{ found.above }}, below 0 in {{ found.below }}.
{% endfor %}
With 95 % bootstrap intervals over the pairs, which are not independent: widths of one layer are one policy's. – where \
no width changed any return, or the head is continuous (regret). Measures: bench/study/measures/damage.py.
"""


def options(parser: argparse.ArgumentParser) -> None:
    """--bits."""
    parser.add_argument(
        "--bits", type=command_line.bits(2, 7), metavar="4,3,2", help="of one layer; default: 5 … 2, of robots 4,3,2"
    )


def sizes(subject: str) -> dict[str, int]:
    """Weights of every layer's kernel, by its name."""
    return kernel_sizes(open_perceptron(subject)[0].spec)


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, and each layer at each width."""
    below = arguments.bits or (BITS_OF_ROBOTS if subject in ROBOTS else BITS)
    return [{}, *({"layer": layer, "bits": bits} for layer in sizes(subject) for bits in below)]


@functools.lru_cache(maxsize=1)
def estimator(subject: str) -> Estimator:
    """Quantizes every layer to every width once."""
    bundle, _ = open_perceptron(subject)
    return Estimator(bundle.spec, bundle.weights(), bundle.calibration())


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """The layer at its width, all others at 8 bits, and what the cheap measures say of that."""
    bundle, task = open_perceptron(subject)
    if not asked:
        yield from fly(task, float_decide(bundle), episodes, {})
        return
    assignment = {**uniform(sizes(subject), LARGEST_WEIGHT_BITS), asked["layer"]: asked["bits"]}
    decide = decide_with(bundle.spec, estimator(subject).assembled(assignment))
    yield from fly(task, decide, episodes, asdict(estimator(subject).damage(assignment)))


def layers_of(summary: DataFrame, subject: str) -> DataFrame:
    """A policy's layers and widths on the preset that it was trained on, in the order of the layers."""
    mine = summary[(summary.subject == subject) & summary.layer.notna()]
    mine = mine[mine.preset == mine.preset.iloc[0]]
    return mine.sort_values(["layer", "bits"], key=lambda column: column.map(order_of))


def order_of(value: str | int) -> tuple[int, str]:
    """dense_0, dense_1, …, head; widths from many bits to few."""
    return (1 if value == "head" else 0, value) if isinstance(value, str) else (-value, "")


def place(layer: str) -> str:
    """First layer, middle layer or head."""
    return PLACES[2] if layer == "head" else PLACES[0] if layer.endswith("_0") else PLACES[1]


def tables(results: Results) -> list[Table]:
    """Sensitivities, and how well the cheap measures foretell them."""
    summary = results.summary
    subjects = list(dict.fromkeys(summary.subject))
    widths = sorted(summary.bits.dropna().unique(), reverse=True)
    rows: list[tuple[str, ...]] = []
    for subject in subjects:
        mine, weights = layers_of(summary, subject), sizes(subject)
        for index, (layer, found) in enumerate(mine.groupby("layer", sort=False)):
            errors = found.set_index("bits")[ERROR]
            share = 100 * weights[str(layer)] / sum(weights.values())
            name = "" if index else f"{subject}, n={found.episodes.iloc[0]:,}"
            rows.append((name, str(layer), f"{share:.0f}", *(lost(errors.get(bits)) for bits in widths)))
        rows.append(())
    return [
        Table(
            "layer-sensitivity",
            "One layer's kernel with few bits, all else with 8: what it costs",
            ("policy, episodes", "layer", "% of the weights", *(f"error at {bits} bits, %" for bits in widths)),
            tuple(rows),
            filled(NOTES, measured=results.measured, most_sensitive=[most_sensitive(summary, n) for n in widths]),
            left=2,
        ),
        correlation_table(summary),
    ]


def most_sensitive(summary: DataFrame, bits: int) -> tuple[int, str, int]:
    """At a width: in how many policies which layer's interval lies above those of all others; of how many policies."""
    firsts: list[str] = []
    asked = 0
    for _, found in summary[(summary.bits == bits) & summary[ERROR].notna()].groupby("subject", sort=False):
        asked += 1
        top = max(found.to_dict("records"), key=lambda row: row[ERROR].value)
        others = [row[ERROR] for row in found.to_dict("records") if row is not top and row["layer"] != top["layer"]]
        if others and all(top[ERROR].is_above(each.value if each.high is None else each.high) for each in others):
            firsts.append(place(top["layer"]))
    return bits, ", ".join(f"the {name} in {firsts.count(name)}" for name in PLACES if name in firsts), asked


def correlations(mine: DataFrame) -> dict[str, Correlation]:
    """Spearman's ρ of each cheap measure with the relative error, over layers and widths; without those undefined."""
    found = {}
    for name in MEASURES:
        pairs = mine[mine[name].notna() & mine[ERROR].notna()]
        try:
            found[name] = correlate(list(pairs[name]), [error.value for error in pairs[ERROR]])
        except ValueError:  # too few, or all alike
            continue
    return found


def correlation_table(summary: DataFrame) -> Table:
    """A row for each policy."""
    subjects = {subject: layers_of(summary, subject) for subject in dict.fromkeys(summary.subject)}
    found = {subject: correlations(mine) for subject, mine in subjects.items()}
    by_measure = {
        words: {
            "median": correlation(median(each.rho for each in mine)),
            "policies": len(mine),
            "above": sum(each.low > 0 for each in mine),
            "below": sum(each.high < 0 for each in mine),
        }
        for name, words in MEASURES.items()
        if (mine := [of[name] for of in found.values() if name in of])
    }
    return Table(
        "layer-correlation",
        "Do cheap measures foretell the return? Spearman's ρ with the relative error over layers and widths",
        ("policy", "layers × widths", *MEASURES.values()),
        tuple(
            (
                subject,
                str(len(mine)),
                *(
                    correlation(each.rho, each.low, each.high) if (each := found[subject].get(name)) else NOT_KNOWN
                    for name in MEASURES
                ),
            )
            for subject, mine in subjects.items()
        ),
        filled(CORRELATION_NOTES, by_measure=by_measure),
    )


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each policy: error against bits, a line for each layer."""
    panels = []
    for subject in dict.fromkeys(results.summary.subject):
        mine = layers_of(results.summary, subject)
        names = list(dict.fromkeys(mine.layer))
        lines = []
        for index, layer in enumerate(names):
            label = "head" if layer == names[-1] else list(LINES)[index]
            points = mine[mine.layer == layer].set_index("bits")[ERROR].dropna().to_dict()
            lines.append(Line(label, points, LINES[label]))
        panels.append(Panel(f"{subject}  n={mine.episodes.iloc[0]:,}", lines))
    drawn = facets(
        panels,
        sorted(results.summary.bits.dropna().unique()),
        title="One layer's kernel with few bits, all else with 8",
        said="relative error of the return, % of |fp32| (linear up to 5, then logarithmic); bars: 95 % intervals\n"
        "n: episodes a point, the same at every point of a policy; dotted: 5 %",
        x_label="bits of the layer's kernel",
        scale=error_scale,
    )
    return {"layer-sensitivity": drawn}


EXPERIMENT = of_bundles(
    name="layers",
    question="which layer has to keep its bits?",
    factors=("layer", "bits"),
    subjects=PERCEPTRONS[:11],  # up to Walker2D: the other robots and III take longest
    grid=grid,
    measure=measure,
    tables=tables,
    figures=figures,
    options=options,
)
