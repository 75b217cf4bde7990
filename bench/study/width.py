"""Do policies with wider weights lose more when they are quantized? QuaRL says so; this asks all committed bundles.

    python -m bench.study width                  the table and what it supports, in words
    python -m bench.study width --update-docs    fills docs/weights.md, draws the pictures

Nothing is measured here. Width: largest minus smallest weight of a policy (all layers, no biases), and that range in
standard deviations. Error: the paper's, (fp32 − quantized) / |fp32| of the mean return; negative where the quantized
policy plays better. Errors of int8 artifacts are those of the study cells; those of the paper's own quantizer at 8 and
4 bits, of the weights alone, those of the study sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import Line, Panel, error_scale, facets
from bench.report.intervals import FEWEST_PAIRS, Correlation, Estimate, correlate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, correlation, filled, lost
from bench.study import cells, command, sweep
from bench.study.experiment import ERROR, Results, stored
from bench.study.measures.levels import all_weights
from bench.study.tables import sweep_tables
from policy.bundle import Bundle
from policy.locate import ZOO

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from matplotlib.figure import Figure

DEVICE, QUARL_8, QUARL_4 = "int8 artifact", "QuaRL's 8 bits", "QuaRL's 4 bits"
SOURCES = {
    DEVICE: "int8 artifact in a device's runtime (symmetric, per channel)",
    QUARL_8: "QuaRL's quantizer, 8 bits, weights only (simulated)",
    QUARL_4: "QuaRL's quantizer, 4 bits, weights only (simulated)",
}
SWEPT = {QUARL_8: 8, QUARL_4: 4}
STYLES = {DEVICE: "symmetric", QUARL_8: "quarl, weights only", QUARL_4: "quarl, weights only"}
MEASURES = {"range": "range of the weights", "ratio": "range in standard deviations"}
TITLE = "Width of the weights and what quantization costs"
PAGE, BESIDE = "width-and-error", "width-and-error-deviations"

NOTES = """\
Weights of all layers together, no biases. Error: (fp32 − quantized) / |fp32| of the mean return over the same \
episodes, in percent, with its 95 % interval (Student's t); negative: quantized is better; 0: less than 0.005 % in all \
three numbers.
{% for each in sources %}
{{ each.words }}: {{ each.policies }} policies, of which {{ each.seen }} have an error that differs from 0.\
{{ " Too few, or all alike: nothing can be correlated." if not each.correlations }}
{% for measure, rho, verdict in each.correlations %}
Spearman's ρ of the error with the {{ measure }}: {{ rho }} (n={{ each.policies }}, 95 %, bootstrap over policies): \
{{ verdict }}.
{% endfor %}
{% if each.pairs %}
Pairs of policies of the same task: {{ each.pairs }} ({{ each.tasks | join(", ") }}); the wider one has the larger \
error, beyond both intervals, in {{ each.agree }}, the smaller one in {{ each.against }}, and nothing is decided in \
{{ each.pairs - each.agree - each.against }}.
{% endif %}
{% endfor %}
{% if intervals > 1 %}
Of {{ intervals }} intervals of 95 %, one or more leave 0 out by chance alone in up to {{ chance }} % of such tables. \
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
        """Of a bundle."""
        weights = all_weights(bundle)
        ends = float(weights.min()), float(weights.max())
        deviation = float(weights.std(dtype="float64"))
        return cls(bundle.spec.name, str(bundle.spec.provenance["task"]), weights.size, *ends, deviation, errors)


def main(argv: Sequence[str] | None = None) -> int:
    """Correlate, print."""
    parser = command_line.parser(__doc__, "-m bench.study width")
    command.add_output(parser)

    def run(arguments: argparse.Namespace) -> int:
        found = kept_points()
        values = [{**asdict(point), "range": point.range, "ratio": point.ratio} for point in found]
        return command.show(arguments, [table(found)], lambda: figures(found), values)

    return command_line.guarded(run, parser.parse_args(argv))


def joined_tables(folder: Path | None = None) -> tuple[list[Table], dict[str, Figure]]:
    """The table and the pictures of what the studies cells and sweep kept, here or in another folder.

    Raises:
        BenchError: no committed bundle has been judged.
    """
    found = kept_points(folder)
    return [table(found)], figures(found)


def kept_points(folder: Path | None = None) -> list[Point]:
    """Those of the committed bundles."""
    bundles = [Bundle.load(manifest.parent) for manifest in sorted(ZOO.glob("**/manifest.json"))]
    judged, swept = (stored(each.EXPERIMENT, folder and folder / each.EXPERIMENT.path.name) for each in (cells, sweep))
    return points(bundles, judged, swept)


def points(bundles: Sequence[Bundle], judged: Results, swept: Results) -> list[Point]:
    """Width and errors of every bundle that has an error, by width; sources of too few errors are left out.

    Args:
        bundles: those that are committed.
        judged: rows of the study cells.
        swept: rows of the study sweep.

    Raises:
        BenchError: no bundle has been judged.
    """
    errors: dict[str, dict[str, Estimate]] = {source: {} for source in SOURCES}
    device = {each.subject: each.value(ERROR, "int8") for each in cells.judged(judged)}
    for bundle in bundles:
        name = bundle.spec.name
        found = {source: sweep_tables.papers_error(swept, name, bits) for source, bits in SWEPT.items()}
        for source, error in {DEVICE: device.get(name), **found}.items():
            if error is not None and error.low is not None:
                errors[source][name] = error
    kept = {source: of for source, of in errors.items() if len(of) >= FEWEST_PAIRS}
    made = [
        Point.of(bundle, {source: of[bundle.spec.name] for source, of in kept.items() if bundle.spec.name in of})
        for bundle in bundles
    ]
    if not any(point.errors for point in made):
        raise command_line.BenchError("no committed bundle was judged yet.", "python -m bench.study cells --keep")
    return sorted((point for point in made if point.errors), key=lambda point: point.range)


def sources(found: Iterable[Point]) -> list[str]:
    """Those that have an error of some policy."""
    return [source for source in SOURCES if any(source in point.errors for point in found)]


def correlations(found: Sequence[Point], source: str) -> dict[str, Correlation]:
    """Rank correlation of each measure of width with the error, but where the points are too few or all alike."""
    having = [point for point in found if source in point.errors]
    made = {}
    for name in MEASURES:
        with suppress(ValueError):
            made[name] = correlate(
                [getattr(point, name) for point in having], [point.errors[source].value for point in having]
            )
    return made


def verdict(found: Correlation) -> str:
    """What a correlation supports."""
    if found.low > 0:
        return "wider weights go with larger errors"
    if found.high < 0:
        return "wider weights go with smaller errors, against the paper's claim"
    return "the data do not decide whether wider weights go with larger errors"


def compared(found: Sequence[Point], source: str) -> tuple[int, int, list[str]]:
    """The paper's second comparison, of pairs of policies of one task: in how many the wider one's error surely is the
    larger one, in how many the smaller one; and the task of each pair."""
    agree = against = 0
    tasks = []
    for one, other in combinations([point for point in found if source in point.errors], 2):
        if one.task and one.task == other.task:
            tasks.append(one.task)
            narrow, wide = (point.errors[source] for point in sorted((one, other), key=lambda point: point.range))
            agree += wide.is_above(narrow.value if narrow.high is None else narrow.high)
            against += narrow.is_above(wide.value if wide.high is None else wide.high)
    return agree, against, tasks


def table(found: Sequence[Point]) -> Table:
    """The policies from narrow to wide; correlations and what they support as notes."""
    shown, intervals = sources(found), 0
    said: list[dict[str, object]] = []
    clear: list[str] = []
    for source in shown:
        errors = [point.errors[source] for point in found if source in point.errors]
        agree, against, tasks = compared(found, source)
        rhos = correlations(found, source)
        intervals += len(rhos)
        clear += [
            f"that of {source} with the {MEASURES[name]}" for name, rho in rhos.items() if rho.low > 0 or rho.high < 0
        ]
        said.append({
            "words": SOURCES[source],
            "policies": len(errors),
            "seen": sum(error.is_seen for error in errors),
            "correlations": [
                (MEASURES[name], correlation(rho.rho, rho.low, rho.high), verdict(rho)) for name, rho in rhos.items()
            ],
            "pairs": len(tasks),
            "tasks": dict.fromkeys(tasks),
            "agree": agree,
            "against": against,
        })  # fmt: skip
    rows = tuple(
        (
            point.name,
            f"{point.weights:,}",
            f"{point.low:.2f} … {point.high:.2f}".replace("-", "−"),
            f"{point.range:.2f}",
            f"{point.deviation:.3f}",
            f"{point.ratio:.1f}",
            *(lost(point.errors[source]) if source in point.errors else NOT_KNOWN for source in shown),
        )
        for point in found
    )
    headers = ("policy", "weights", "from … to", "range", "std", "range / std")
    notes = filled(NOTES, sources=said, intervals=intervals, chance=f"{100 * (1 - 0.95**intervals):.0f}", clear=clear)
    return Table(PAGE, TITLE, (*headers, *(f"error, {source}, %" for source in shown)), rows, notes)


def figures(found: Sequence[Point]) -> dict[str, Figure]:
    """A picture for each measure of width, a panel for each source: errors of the policies in the order of width."""
    drawn = {}
    for stem, measure in zip((PAGE, BESIDE), MEASURES, strict=True):
        ordered = sorted(found, key=lambda point: float(getattr(point, measure)))
        panels = []
        for source in sources(found):
            rho = correlations(found, source).get(measure)
            errors = {point.name: point.errors[source] for point in ordered if source in point.errors}
            line = Line("", errors, sweep_tables.style_of(STYLES[source]), joined=False)
            words = f"   Spearman's ρ = {correlation(rho.rho, rho.low, rho.high)}" if rho else ""
            panels.append(Panel(f"{source}  n={len(errors)}{words}", [line]))
        drawn[stem] = facets(
            panels,
            [point.name for point in ordered],
            title=TITLE,
            said=f"policies from left to right by the {MEASURES[measure]}; relative error of the return, % of |fp32|\n"
            "(linear up to 5, then logarithmic); bars: 95 % intervals; dotted: 5 %",
            x_label="",
            scale=error_scale,
            columns=1,
            turned=True,
        )
    return drawn
