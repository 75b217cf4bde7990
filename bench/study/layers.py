"""Which layer needs its bits? One layer's kernel at a time has few, all else has 8.

    python -m bench.study layers cartpole-dqn
    python -m bench.study layers --keep                      measures what is not kept yet of all committed perceptrons
    python -m bench.study layers --stored --update-docs      fills docs/layers.md, draws the picture

Beside the return stand three cheap measures that look at calibration observations alone (measures/damage.py).
Symmetric scheme, simulated in float.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.intervals import Correlation, order_of
from bench.report.lines import error_lines
from bench.report.pivot import Pivot
from bench.study.bundles import PERCEPTRONS, ROBOTS, fly, of_bundles, open_perceptron, perceptron
from bench.study.experiment import ERROR, EpisodePlan, Results, SeedResult
from bench.study.measures.damage import Estimator
from bench.study.records import Condition
from convert.mixed import kernel_sizes
from policy.contract.quantization import LARGEST_WEIGHT_BITS
from train.deciding import decide_with, float_decide

if TYPE_CHECKING:
    import argparse

BITS, BITS_OF_ROBOTS = (5, 4, 3, 2), (4, 3, 2)
MEASURES = {"output_error": "output error", "actions_differ": "other action", "regret": "regret"}
PLACES = ("first layer", "middle layer", "head")
LINES = {
    "dense_0": ("first layer", 0), "dense_1": ("second", 1), "dense_2": ("third", 2), "dense_3": ("fourth", 4),
    "dense_4": ("fifth", 5), "head": ("head", 3),
}  # fmt: skip
"""Label and style of each layer's line."""

SENSITIVITY_WORDS = """\
One layer's kernel with few bits, all else with 8: what it costs
{% for bits, firsts, count in most_sensitive %}
Most sensitive at {{ bits }} bits, its interval above all others': \
{{ firsts or "no layer" }}{% if firsts %} of {{ count }}{% endif %}.
{% endfor %}
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); 0: \
less than 0.005 % in all three numbers; without brackets: all episodes are equal.
{{ results.measured }}
"""
CORRELATION_WORDS = """\
Do cheap measures foretell the return? Spearman's ρ with the relative error over layers and widths
{% for words, found in by_measure.items() %}
{{ words | capitalize }}: median ρ {{ found.median }} over {{ found.sides | length }} policies, the interval above 0 \
in {{ found.sides.count(1) }}, below 0 in {{ found.sides.count(-1) }}.
{% endfor %}
With 95 % bootstrap intervals over the pairs, which are not independent: widths of one layer are one policy's. – where \
no width changed any return, or the head is continuous (regret). Measures: bench/study/measures/damage.py.
"""


def sizes(subject: str) -> dict[str, int]:
    """Weights of every layer's kernel, by its name."""
    return kernel_sizes(perceptron(subject).spec)


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """The conditions: fp32, and each layer at each width."""
    below = arguments.bits or (BITS_OF_ROBOTS if subject in ROBOTS else BITS)
    return [{}, *({"layer": layer, "bits": bits} for layer in sizes(subject) for bits in below)]


@functools.lru_cache(maxsize=1)
def estimator(subject: str) -> Estimator:
    """Quantizes every layer to every width once."""
    bundle = perceptron(subject)
    return Estimator(bundle.spec, bundle.weights(), bundle.calibration())


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """The layer at its width, all others at 8 bits, and what the cheap measures say of that."""
    bundle, task = open_perceptron(subject)
    if not condition:
        yield from fly(task, float_decide(bundle), episodes, {})
        return
    assignment = {**dict.fromkeys(sizes(subject), LARGEST_WEIGHT_BITS), condition["layer"]: condition["bits"]}
    decide = decide_with(bundle.spec, estimator(subject).assembled(assignment))
    yield from fly(task, decide, episodes, asdict(estimator(subject).damage(assignment)))


def foretold(rows: list[dict[str, Any]], name: str) -> Correlation | None:
    """Spearman's ρ of a cheap measure with the relative error, over layers and widths; None where it is undefined."""
    pairs = [(row[name], row[ERROR].value) for row in rows if row[name] is not None and row[ERROR] is not None]
    return order_of(*zip(*pairs, strict=True)) if pairs else None


def widths(results: Results) -> list[int]:
    """All that were measured, from many bits to few."""
    return sorted({row["bits"] for row in results.summary if row["bits"]}, reverse=True)


def most_sensitive(results: Results, bits: int) -> tuple[int, str, int]:
    """The width; for each layer in how many policies its interval lies above all others'; of how many policies."""
    firsts: list[str] = []
    count = 0
    for subject in results.subjects:
        rows = [row for row in results.summary if (row["subject"], row["bits"]) == (subject, bits) and row[ERROR]]
        count += bool(rows)
        top = max(rows, key=lambda row: row[ERROR].value, default={})
        others = [row[ERROR] for row in rows if row["layer"] != top["layer"]]
        if others and all(top[ERROR].is_above(each.value if each.high is None else each.high) for each in others):
            firsts.append(PLACES[2 if top["layer"] == "head" else 0 if top["layer"].endswith("_0") else 1])
    return bits, ", ".join(f"the {name} in {firsts.count(name)}" for name in PLACES if name in firsts), count


def layers_of(results: Results) -> list[dict[str, Any]]:
    """Each policy's layers and widths, in the order of the layers, from many bits to few; with ``share`` of the weights
    that the layer has."""
    found = []
    for subject in results.subjects:
        weights = sizes(subject)
        rows = [
            row | {"share": weights[row["layer"]] / sum(weights.values())}
            for row in results.of(subject)
            if row["layer"]
        ]
        found += sorted(rows, key=lambda row: (row["layer"] == "head", row["layer"], -row["bits"]))
    return found


def correlations(results: Results) -> list[dict[str, Any]]:
    """A row for each policy: how many layers and widths, and ρ of each cheap measure with the relative error."""
    rows = {subject: [row for row in layers_of(results) if row["subject"] == subject] for subject in results.subjects}
    return [
        {"subject": subject, "count": len(mine), **{name: foretold(mine, name) for name in MEASURES}}
        for subject, mine in rows.items()
    ]


def by_measure(results: Results) -> dict[str, dict[str, Any]]:
    """For each cheap measure the median ρ over the policies, and the sides of 0 on which the intervals lie."""
    found = {words: [row[name] for row in correlations(results) if row[name]] for name, words in MEASURES.items()}
    return {
        words: {"median": f"{median(rho.rho for rho in of):.2f}".replace("-", "−"), "sides": [rho.side for rho in of]}
        for words, of in found.items()
        if of
    }


SENSITIVITY = Pivot(
    name="layer-sensitivity",
    words=SENSITIVITY_WORDS,
    lead={"policy, episodes": "{{ subject }}, n={{ episodes | thousands }}", "layer": "{{ layer }}"},
    columns=[
        {"% of the weights": "{{ '%.0f' % (100 * share) }}"},
        {"error at {{ bits }} bits, %": "{{ error | lost }}"},
    ],
    rows=layers_of,
    facts=lambda results: {"most_sensitive": [most_sensitive(results, bits) for bits in widths(results)]},
    grouped=True,
)
CORRELATION = Pivot(
    name="layer-correlation",
    words=CORRELATION_WORDS,
    lead={"policy": "{{ subject }}"},
    columns=[
        {"layers × widths": "{{ count }}"},
        {words: f"{{{{ {name} | correlation }}}}" for name, words in MEASURES.items()},
    ],
    rows=correlations,
    facts=lambda results: {"by_measure": by_measure(results)},
)
OVER_BITS = error_lines(
    stem="layer-sensitivity",
    title="One layer's kernel with few bits, all else with 8",
    x="bits",
    x_label="bits of the layer's kernel",
    line="layer",
    labels=LINES,
    rows=layers_of,
)


EXPERIMENT = of_bundles(
    name="layers",
    question="which layer has to keep its bits?",
    factors=("layer", "bits"),
    subjects=PERCEPTRONS[:11],  # up to Walker2D: the other robots and III take longest
    options=lambda parser: parser.add_argument(
        "--bits", type=command_line.bits(2, 7), metavar="4,3,2", help="of one layer; default: 5 … 2, of robots 4,3,2"
    ),
    grid=grid,
    measure=measure,
    tables=[SENSITIVITY, CORRELATION],
    figures=[OVER_BITS],
)
