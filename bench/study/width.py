"""Do policies with wider weights lose more when they are quantized? QuaRL's claim, tested on all committed bundles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import Pictures, error_scale, facets, panel
from quarl.bench.report.intervals import FEWEST_PAIRS, Correlation, order_of
from quarl.bench.report.text import correlation, format_loss
from quarl.bench.study import cells, command, sweep
from quarl.bench.study.experiment import Results
from quarl.bench.study.joined import Joined, results_of
from quarl.bench.study.measures.levels import all_weights
from quarl.bench.tables import Table, pivot, tabulate
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.train.intervals import Estimate

DEVICE, QUARL_8, QUARL_4 = "int8 artifact", "QuaRL's 8 bits", "QuaRL's 4 bits"
SOURCES = {
    DEVICE: "int8 artifact in a device's runtime (symmetric, per channel)",
    QUARL_8: "QuaRL's quantizer, 8 bits, weights only (simulated)",
    QUARL_4: "QuaRL's quantizer, 4 bits, weights only (simulated)",
}
SWEPT = {QUARL_8: 8, QUARL_4: 4}
STYLES = {DEVICE: "symmetric", QUARL_8: "quarl, weights only", QUARL_4: "quarl, weights only"}
MEASURES = {"range": "range of the weights", "ratio": "range in standard deviations"}
PAGES = {"range": "width-and-error", "ratio": "width-and-error-deviations"}

TABLE = """\
Width of the weights and what quantization costs
Weights of all layers together, no biases. Error: (fp32 − quantized) / |fp32| of the mean return over the same \
episodes, in percent, with its 95 % interval (Student's t); negative: quantized is better; 0: less than 0.005 % in all \
three numbers.
{% for each in sources %}
{{ each.words }}: {{ each.errors | length }} policies, of which \
{{ each.errors | selectattr("is_seen") | list | length }} have an error that differs from 0.\
{{ " Too few, or all alike: nothing can be correlated." if not each.rhos }}
{% for name, rho in each.rhos.items() %}
Spearman's ρ of the error with the {{ measures[name] }}: {{ rho | correlation }} (n={{ each.errors | length }}, 95 %, \
bootstrap over policies): {{ verdict(rho) }}.
{% endfor %}
{% set agree, against, tasks = each.pairs %}
{% if tasks %}
Pairs of policies of the same task: {{ tasks | length }} ({{ tasks | unique | join(", ") }}); the wider one has the \
larger error, beyond both intervals, in {{ agree }}, the smaller one in {{ against }}, and nothing is decided in \
{{ tasks | length - agree - against }}.
{% endif %}
{% endfor %}
{% if intervals > 1 %}
Of {{ intervals }} intervals of 95 %, one or more leave 0 out by chance alone in up to \
{{ "%.0f" | format(100 * (1 - 0.95 ** intervals)) }} % of such tables. \
Leaving 0 out here: {{ clear | several }}. Where returns can be negative, an error in % of |fp32| has no bound and \
compares badly across tasks.
{% endif %}
Each point is one policy of one training; task, algorithm, network and length of training change together, and a \
correlation over so few of them is no cause. The paper concludes from three DQN policies, and from three algorithms on \
Breakout, without intervals.
"""


@dataclass(frozen=True)
class Point:
    """One policy.

    Attributes:
        name, task: of its bundle.
        weights: how many.
        low, high: smallest and largest of them.
        deviation: standard deviation over all of them.
        errors: by source, percent of |fp32|.
    """

    name: str
    task: str
    weights: int
    low: float
    high: float
    deviation: float
    errors: Mapping[str, Estimate]

    @property
    def range(self) -> float:
        """Largest minus smallest."""
        return self.high - self.low

    @property
    def ratio(self) -> float:
        """Range in standard deviations."""
        return self.range / self.deviation

    @classmethod
    def of(cls, bundle: Bundle, errors: Mapping[str, Estimate]) -> Point:
        """Make the point of a bundle."""
        weights = all_weights(bundle)
        ends = float(weights.min()), float(weights.max())
        deviation = float(weights.std(dtype="float64"))
        return cls(bundle.spec.name, str(bundle.spec.provenance["task"]), weights.size, *ends, deviation, errors)


def load_points(folder: Path | None) -> list[Point]:
    """Return the points of the committed bundles."""
    bundles = [Bundle.load(manifest.parent) for manifest in sorted(ZOO.glob("**/manifest.json"))]
    return points(bundles, *(results_of(study.EXPERIMENT, folder) for study in (cells, sweep)))


def points(bundles: Sequence[Bundle], cell_results: Results, swept: Results) -> list[Point]:
    """Width and errors of every bundle that has an error, by width; sources of too few errors are left out.

    Args:
        bundles: those that are committed.
        cell_results: rows of the study cells.
        swept: rows of the study sweep.

    Raises:
        BenchError: no bundle has been evaluated.
    """
    device = {cell.subject: cell.error("int8") for cell in cells.collect_bundles(cell_results)}
    names = [bundle.spec.name for bundle in bundles]
    errors = {DEVICE: {name: device.get(name) for name in names}}
    errors |= {source: {name: sweep.papers_error(swept, name, n) for name in names} for source, n in SWEPT.items()}
    seen = {s: {name: e for name, e in of.items() if e and e.low is not None} for s, of in errors.items()}
    usable_errors = {source: of for source, of in seen.items() if len(of) >= FEWEST_PAIRS}
    usable_points = [
        Point.of(bundle, mine)
        for bundle in bundles
        if (mine := {source: of[bundle.spec.name] for source, of in usable_errors.items() if bundle.spec.name in of})
    ]
    if not usable_points:
        raise command_line.BenchError("no committed bundle has been evaluated yet.", "quarl study cells --keep")
    return sorted(usable_points, key=lambda point: point.range)


def having(found: Iterable[Point], source: str) -> list[Point]:
    """Return the points that have an error of a source."""
    return [point for point in found if source in point.errors]


def correlations(found: Sequence[Point], source: str) -> dict[str, Correlation]:
    """Rank correlation of each measure of width with the error, but where the points are too few or all alike."""
    errors = [point.errors[source].value for point in having(found, source)]
    coefficients = {
        name: order_of([getattr(width_point, name) for width_point in having(found, source)], errors)
        for name in MEASURES
    }
    return {name: rho for name, rho in coefficients.items() if rho}


def verdict(found: Correlation) -> str:
    """Return a sentence on what a correlation supports."""
    return {
        1: "wider weights go with larger errors",
        -1: "wider weights go with smaller errors, against the paper's claim",
        0: "the data do not decide whether wider weights go with larger errors",
    }[found.side]


def compare_pairs(found: Sequence[Point], source: str) -> tuple[int, int, list[str]]:
    """Return the paper's second comparison, of pairs of policies of one task: in how many the wider one's error surely
    is the larger one, in how many the smaller one; and the task of each pair."""
    agree = against = 0
    tasks = []
    for one, other in combinations(having(found, source), 2):
        if one.task and one.task == other.task:
            tasks.append(one.task)
            narrow, wide = (point.errors[source] for point in sorted((one, other), key=lambda point: point.range))
            agree += wide.is_above(narrow.value if narrow.high is None else narrow.high)
            against += narrow.is_above(wide.value if wide.high is None else wide.high)
    return agree, against, tasks


def of_sources(found: Sequence[Point]) -> list[dict[str, Any]]:
    """Return a row for each policy and source: the point, and its error by that source, None where there is none."""
    known_sources = [source for source in SOURCES if having(found, source)]
    return [
        {"point": point, "source": error_source, "error": point.errors.get(error_source)}
        for point in found
        for error_source in known_sources
    ]


def facts(found: Sequence[Point]) -> dict[str, Any]:
    """Facts for the notes, by source."""
    sources: dict[str, dict[str, Any]] = {
        source: {
            "words": words,
            "errors": [point.errors[source] for point in having(found, source)],
            "rhos": correlations(found, source),
            "pairs": compare_pairs(found, source),
        }
        for source, words in SOURCES.items()
        if having(found, source)
    }
    sides = [(source, name, rho.side) for source, of in sources.items() for name, rho in of["rhos"].items()]
    clear = [f"that of {source} with the {MEASURES[name]}" for source, name, side in sides if side]
    counts = {"sources": list(sources.values()), "intervals": len(sides), "clear": clear}
    return {**counts, "verdict": verdict, "measures": MEASURES}


def errors_table(found: Sequence[Point]) -> list[Table]:
    """Width and errors of every policy, from narrow to wide."""
    rows = of_sources(found)
    cells = [
        {
            "policy": point.name,
            "weights": f"{point.weights:,}",
            "from … to": f"{point.low:.2f} … {point.high:.2f}".replace("-", "−"),
            "range": f"{point.range:.2f}",
            "std": f"{point.deviation:.3f}",
            "range / std": f"{point.ratio:.1f}",
            "source": row["source"],
            "error": format_loss(row["error"]),
        }
        for row in rows
        for point in [row["point"]]
    ]
    lead = ("policy", "weights", "from … to", "range", "std", "range / std")
    lines = pivot(cells, lead, "source", {"error": "error, {}, %"})
    return [tabulate(PAGES["range"], TABLE, lines, results=found, rows=rows, **facts(found))]


def pictures(found: Sequence[Point]) -> Pictures:
    """Return a picture for each measure of width: the errors of each source, policies from narrow to wide."""
    labels = {source: ("", sweep.style_of(scheme)) for source, scheme in STYLES.items()}
    figures = {}
    for measure, words in MEASURES.items():
        ordered = sorted(found, key=lambda point: float(getattr(point, measure)))
        panels = []
        for source in SOURCES:
            if mine := having(ordered, source):
                rho = correlations(found, source).get(measure)
                title = f"{source}  n={len(mine)}" + (f"   Spearman's ρ = {correlation(rho)}" if rho else "")
                rows = [{"name": point.name, "source": source, "error": point.errors[source]} for point in mine]
                panels.append(
                    panel(title, rows, x="name", y="error", line="source", labels=labels, joined=lambda source: False)
                )
        below = (
            f"policies from left to right by the {words}; relative error of the return, % of |fp32|\n"
            "(linear up to 5, then logarithmic); bars: 95 % intervals; dotted: 5 %"
        )
        title, places = TABLE.partition("\n")[0], [point.name for point in ordered]
        figures[PAGES[measure]] = facets(
            panels, places, title=title, subtitle=below, x_label="", scale=error_scale, columns=1, turned=True
        )
    return figures


JOINED = Joined(
    kept=load_points,
    tables=[errors_table],
    figures=[pictures],
    plain=lambda found: [{**asdict(each), "range": each.range, "ratio": each.ratio} for each in found],
)


@cli.verb()
def width(options: command.JoinedOptions) -> int:
    """Do policies with wider weights lose more when they are quantized? QuaRL's claim, tested on all committed bundles.

        quarl study width                  the table and its conclusion, in words
        quarl study width --update-docs    fills docs/weights.md, draws the pictures

    Nothing is measured here. Width: largest minus smallest weight of a policy (all layers, no biases), and that range
    in standard deviations. Error: the paper's, (fp32 − quantized) / |fp32| of the mean return; negative where the
    quantized policy plays better. Errors of int8 artifacts are those of the study cells; those of the paper's own
    quantizer at 8 and 4 bits, of the weights alone, those of the study sweep.
    """
    return command.join(JOINED, options)
