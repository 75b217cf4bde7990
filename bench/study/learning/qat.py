"""Does learning with quantizers beat quantizing afterwards? Both at every width, on the same episodes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import Pictures, error_scale, facets, in_order, panel
from quarl.bench.report.text import estimate, format_loss, join_distinct
from quarl.bench.study import command
from quarl.bench.study.experiment import ERROR, RETURN, SUCCESS, EpisodePlan, Results, SeedResult
from quarl.bench.study.measures.execution import execution_of
from quarl.bench.study.records import Condition
from quarl.bench.study.trainings import Training, fly_episodes, of_cells, origin, train_once
from quarl.bench.tables import Table, group_by, pivot, tabulate
from quarl.policy.quantize import Scheme
from quarl.policy.simulate import Widths
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle

CELLS = {
    "cartpole-ppo": Training("CartPole-v1", "ppo"),
    "cartpole-a2c": Training("CartPole-v1", "a2c"),
    "cartpole-dqn": Training("CartPole-v1", "dqn"),
    "mountaincarcontinuous-ddpg": Training("MountainCarContinuous-v0", "ddpg"),
    # fewer steps than the zoo's policies: there are eight trainings a seed
    "I": Training("navigation", "ppo", policy="I", steps=3_000_000),
    "II": Training("navigation", "ppo", policy="II", steps=2_000_000),
}
BITS = (8, 7, 6, 5, 4, 3, 2)
SEEDS = (20, 21, 22)
EPISODES, EPISODES_OF_NAVIGATION = 100, 1000
PURPOSE = "quantization-aware study"  # of the flown episodes
HALF = 0.5
DELAYS = {"cartpole-dqn": (HALF, 0.2)}  # shares of the steps in floats to choose from
CHOOSING_SEEDS, CHOOSING_BITS = (10, 11, 12, 13), 4
AFTERWARDS, LEARNED = "afterwards", "in training"
WAYS = {AFTERWARDS: "quantized after training (PTQ)", LEARNED: "trained with quantizers (QAT)"}
SHORT = {AFTERWARDS: "PTQ", LEARNED: "QAT"}
LIMIT_PERCENT = 2.0  # of the float return, that a policy may lose and still count as good as it

TABLE = """\
Learning with quantizers (QAT) against quantizing after training (PTQ): mean returns
n: trainings of the seeds {{ results.seeds }}, and episodes of each on every preset. In brackets 95 % intervals over \
trainings (Student's t), without brackets: all trainings are equal. Weights and hidden activations have the bits, \
observation and outputs 8. All trainings of a seed have the same settings and steps, and their policies fly the same \
episodes. Error: (float − it) / |float|; negative: better than float. QAT − PTQ: in % of |float|.
Share of the steps that QAT learns in floats first: {% for name, each in measures.items() %}{{ name }} \
{{ each.quant_delay }}{{ ", " if not loop.last }}{% endfor %}.
{% for name, each in measures.items() if each.tried %}
{{ name }}: chosen by the mean return at {{ choosing_bits }} bits ({% for share, earned in each.tried.items() %}\
{{ share }}: {{ "%.1f" | format(earned) }}{{ ", " if not loop.last }}{% endfor %}) on the seeds \
{{ choosing_seeds }}, none of which is reported here.
{% endfor %}
PTQ's ranges go to the largest weight and the largest activation at every width; QAT's cut rare large activations, and \
from 3 bits down follow the mean weight: part of the gain is the range.
{% for place, words in places.items() %}
{{ place }}: QAT is {{ words.gain }}; its error is {{ words.error }}.
{% endfor %}
{% if unmeasured %}
Not measured: {{ unmeasured | several }}.
{% endif %}
An artifact computes QAT at {{ executed["in training"] }} bits and PTQ at {{ executed["afterwards"] }}, in an int8 \
container of one byte a weight: size, speed and kernel are int8's. The others are simulated; no size or speed follows.
{{ results.measurement_note }}
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.EpisodesOptions):
    """What to measure.

    Attributes:
        bits: default: all of them
    """

    bits: Annotated[tuple[int, ...], cli.reads(command_line.read_bits(2, 8), "2-8")] = ()


def grid(options: Options, subject: str) -> list[Condition]:
    """Return the float policy, and each width quantized afterwards and in training.

    Raises:
        UsageError: a seed is to choose and to report.
    """
    if subject in DELAYS and (both := sorted(set(CHOOSING_SEEDS) & set(options.seeds or ()))):
        raise command_line.UsageError(
            f"seed {both[0]} chooses the quantization delay, and must not be reported as well.", "type --seeds 20,21,22"
        )
    return [{}, *(condition_of(way, bits) for bits in options.bits or BITS for way in WAYS)]


def condition_of(way: str, bits: int) -> Condition:
    """Return the condition of a width, and of when the quantizers come."""
    return {"quantized": way, "bits": bits}


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Trains what is not there, and flies it."""
    for seed in episodes.seeds:
        if condition.get("quantized") == LEARNED:
            delay, tried = choose_delay(subject)
            bundle = train_with_quantizers(subject, seed, condition["bits"], delay)
            updates = bundle.spec.provenance["quantized_updates"]
            measures = {**origin(bundle), "quant_delay": delay, "tried": tried, "quantized_updates": updates}
        else:
            bundle = train_once(CELLS[subject], seed)
            measures = {} if condition else origin(bundle)
        yield from fly_episodes(bundle, widths(condition), episodes.count, PURPOSE, measures)


def train_with_quantizers(subject: str, seed: int, bits: int, delay: float) -> Bundle:
    """Return a training with quantizers."""
    words = ("--precision", str(bits), "--quantization-method", "quantization-aware", "--quant-delay", str(delay))
    return train_once(CELLS[subject], seed, *words)


def widths(condition: Condition) -> Widths | None:
    """Weights and hidden activations of this many bits; of a policy that learned with quantizers these are its own."""
    return Widths(Scheme.SYMMETRIC, condition["bits"], activation_bits=condition["bits"]) if condition else None


@functools.cache
def choose_delay(subject: str) -> tuple[float, dict[str, float]]:
    """Share of the steps in floats, and what each that was tried earned; of equal ones the first, QuaRL's."""
    shares = DELAYS.get(subject, (HALF,))
    if len(shares) == 1:
        return shares[0], {}
    tried = {share: fmean(evaluate_delay(subject, seed, share) for seed in CHOOSING_SEEDS) for share in shares}
    return max(tried, key=lambda share: tried[share]), {f"{share:g}": value for share, value in tried.items()}


def evaluate_delay(subject: str, seed: int, delay: float) -> float:
    """Mean return of one of the trainings that choose, on the preset that it was trained on."""
    bundle = train_with_quantizers(subject, seed, CHOOSING_BITS, delay)
    first = next(fly_episodes(bundle, widths({"bits": CHOOSING_BITS}), EPISODES, f"choice of the {PURPOSE}", {}))
    return fmean(first.returns)


def places(results: Results) -> dict[tuple[str, str], list[int]]:
    """Return the widths of each (cell, preset), from many bits to few; without one that is not measured wholly yet."""
    measured: dict[tuple[str, str], list[tuple[int | None, str | None]]] = {}
    for row in results.summary:
        measured.setdefault((row["subject"], row["preset"]), []).append((row["bits"], row["quantized"]))
    widths_by_place = {}
    for place, cells in measured.items():
        widths = sorted({bits for bits, _ in cells if bits}, reverse=True)
        if widths and set(cells) == {(None, None), *((bits, way) for bits in widths for way in WAYS)}:
            widths_by_place[place] = widths
    return widths_by_place


def gain(results: Results, place: tuple[str, str], bits: int) -> Estimate | None:
    """Gain of QAT over PTQ, in % of |float|."""
    return results.contrast(place[0], condition_of(AFTERWARDS, bits), condition_of(LEARNED, bits), place[1])


@functools.cache
def policies(results: Results) -> list[dict[str, Any]]:
    """Return a row for each cell, preset, width and way of quantizing, with the float policies' beside it."""
    rows = []
    for place, widths in places(results).items():
        floats, name = results.row(place[0], {}, place[1]), ", ".join(filter(None, place))
        values = results.collect_outcomes("returns", place[0], {}, place[1])
        row = {"cell": name, "trainings": len(values), "each": floats["episodes"] // len(values), "floats": floats}
        for bits in widths:
            both = {way: results.row(place[0], condition_of(way, bits), place[1]) for way in WAYS}
            rates = [result[SUCCESS] for result in (floats, *both.values()) if result[SUCCESS]]
            row |= {
                "gain": gain(results, place, bits),
                "rates": " / ".join(f"{100 * rate.value:.1f}" for rate in rates),
            }
            for way, way_row in both.items():
                fewer = results.collect_outcomes("returns", place[0], condition_of(way, bits), place[1])
                singles = [100.0 * (f - q) / abs(f) for f, q in zip(values, fewer, strict=True) if f]
                rows.append({**row, "way": SHORT[way], "singles": singles, **way_row})
    return rows


def facts(results: Results) -> dict[str, Any]:
    """Facts for the notes: on each cell in words, and which widths an artifact computes."""
    subjects = [subject for subject, _ in places(results)]
    learned = {record["subject"]: record for record in results.found if record["condition"].get("quantized") == LEARNED}
    learned_rows = (row for row in policies(results) if row["quantized"] == LEARNED)
    rows = group_by(learned_rows, lambda row: row["cell"])
    return {
        "measures": {name: learned[name]["measures"] for name in subjects},
        "choosing_bits": CHOOSING_BITS,
        "choosing_seeds": join_distinct(map(str, CHOOSING_SEEDS)),
        "places": {
            name: {
                "gain": by_words({row["bits"]: gain_words(row["gain"]) for row in of}),
                "error": by_words({row["bits"]: error_words(row[ERROR]) for row in of}),
            }
            for name, of in rows.items()
        },
        "unmeasured": [name for name in CELLS if name not in subjects],
        "executed": {
            way: join_distinct(
                str(n) for n in BITS if execution_of(Scheme.SYMMETRIC, n, n, trained=way == LEARNED).artifact
            )
            for way in WAYS
        },
    }


def by_words(verdicts: dict[int, str]) -> str:
    """Verdicts by width in words: ``equal at 8, 7 bits, better than PTQ at 2 bits``."""
    words = dict.fromkeys(verdicts.values())
    return ", ".join(
        f"{verdict} at {', '.join(str(n) for n in verdicts if verdicts[n] == verdict)} bits" for verdict in words
    )


def gain_words(found: Estimate | None) -> str:
    """Return the side of 0 on which the whole interval lies, in words; a single training is ``inside the noise``."""
    if found is not None and found.low is not None and found.low == found.high == 0.0:
        return "equal"
    return {1: "better than PTQ", -1: "worse", 0: "inside the noise"}[found.side if found else 0]


def error_words(found: Estimate | None) -> str:
    """Return the side of the limit on which the whole interval lies, in words."""
    if found is None:
        return "not defined"
    if found.is_within(LIMIT_PERCENT):
        return f"within {LIMIT_PERCENT:g} %"
    return f"above {LIMIT_PERCENT:g} %" if found.is_above(LIMIT_PERCENT) else "undecided"


def returns_table(results: Results) -> list[Table]:
    """Mean returns and errors of both ways of quantizing, for each cell and width."""
    cells = [
        {
            "cell": f"{row['cell']}, n={row['trainings']} × {row['each']:,}",
            "bits": str(row["bits"]),
            "float": estimate(row["floats"][RETURN]),
            "way": row["way"],
            "return": estimate(row[RETURN]),
            "error": format_loss(row[ERROR]),
        }
        for row in policies(results)
    ]
    lines = pivot(cells, ("cell", "bits", "float"), "way", {"return": "{}", "error": "{} error, %"})
    for line, row in zip(lines, policies(results)[:: len(WAYS)], strict=True):
        line["QAT − PTQ, %"] = estimate(row["gain"], sign="+")
        line |= {"success, %": row["rates"]} if row["rates"] else {}
    return [tabulate("qat", TABLE, lines, once=True, results=results, **facts(results))]


def picture(results: Results) -> Pictures:
    """Relative error over the bits, a panel for each cell."""
    rows = policies(results)
    labels = {way: (WAYS[way], style) for way, style in ((AFTERWARDS, 3), (LEARNED, 4))}
    panels = [
        panel(title, of, x="bits", y=ERROR, line="quantized", labels=labels, singles="singles")
        for title, of in group_by(rows, lambda row: f"{row['cell']}  n={row['trainings']}").items()
    ]
    if not panels:
        return {}
    below = (
        "relative error of the return, % of |float| (linear up to 5, then logarithmic); dotted: 5 %\n"
        "n: trainings a point; marks: their mean; bars: 95 % intervals over trainings; dots: single trainings"
    )
    title, x_label = "Learning with few bits, or quantizing afterwards", "bits of weights and activations"
    places = in_order(rows, "bits")
    return {"qat": facets(panels, places, title=title, subtitle=below, x_label=x_label, scale=error_scale)}


EXPERIMENT = of_cells(
    CELLS,
    SEEDS,
    lambda subject: EPISODES_OF_NAVIGATION if CELLS[subject].task == "navigation" else EPISODES,
    lambda subject: (DELAYS.get(subject), CHOOSING_SEEDS, CHOOSING_BITS),
    name="qat",
    factors=("quantized", "bits"),
    grid=grid,
    measure=measure,
    tables=[returns_table],
    figures=[picture],
)


@cli.verb()
def qat(options: Options) -> int:
    """Compare training with quantizers and quantization after training, at every width, on the same episodes.

        quarl study qat --keep                         six cells, 8 … 2 bits, three seeds (hours, navigation most)
        quarl study qat cartpole-ppo --bits 4,2 --seeds 5
        quarl study qat --stored --update-docs         fills docs/study.md, draws the picture

    For every cell and seed: a float training, and one with quantizers (QAT) for every width, of the same settings, seed
    and steps. The same episodes are flown with the float policy, with that policy quantized after training (PTQ:
    symmetric per output channel, weights and hidden activations of n bits, ranges from its calibration) and with the
    QAT policy, with its own quantizers. Observation and outputs keep 8 bits in both (policy/simulate.py, which agrees
    with the artifacts).

    Intervals are over trainings. QuaRL trains the first half of the steps in float; where a cell has several such
    shares, the share with the highest return at 4 bits is used, chosen with other seeds than those of the tables.
    """
    return command.run(__name__, options)


main = cli.of("study qat")
