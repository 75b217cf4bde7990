"""The tables of the study of wide weights, and what they support in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bench.measuring.execution import execution_of
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined
from bench.report.text import estimate as bracketed
from bench.study.wide.statistics import Row, Signs, correlation, rows_of, side, signs
from bench.study.wide.training import PLAIN, VARIANTS
from policy.quantization import Scheme

if TYPE_CHECKING:
    from bench.report.intervals import Correlation
    from bench.study.wide.store import Answer

LABELS = {variant.name: variant.label for variant in VARIANTS}
ARROWS = {1: " ↑", 0: "", -1: " ↓"}
SCHEMES = {
    Scheme.QUARL: "QuaRL's quantizer, weights only",
    Scheme.SYMMETRIC: "symmetric, one scale an output channel, activations of 8 bits",
}
SHORT = {Scheme.QUARL: "QuaRL's", Scheme.SYMMETRIC: "symmetric"}
MEASURES = {"range": "range", "ratio": "range / std"}
FEW = 6  # bits up to which there is something to lose
CHANCE = 0.05  # that a test, or an interval of 95 %, finds a difference where there is none


def tables(answers: Sequence[Answer]) -> list[Table]:
    """The summary, the weights and returns, and the errors of each scheme."""
    rows = rows_of(answers)
    return [
        summary(answers),
        weights(rows, answers),
        *(errors(rows, scheme, words) for scheme, words in SCHEMES.items()),
        orders(answers),
    ]


def summary(answers: Sequence[Answer]) -> Table:
    """How often a means is better than the plain training of the same cell and seed: a row for each means."""
    names = [name for name in dict.fromkeys(each.variant for each in answers) if name != PLAIN.name]
    places = [(each.scheme, each.bits) for each in answers[0].quantized]
    columns: list[tuple[str, Callable[[Answer], float]]] = [
        ("narrower", lambda each: -each.ratio),
        ("fp32", lambda each: each.mean_return.value),
        *((f"{SHORT[place[0]]} {place[1]}", partial(quantized_return, place=place)) for place in places),
    ]
    lines, tests = [], len(names) * len(columns)
    for name in names:
        found = [signs(answers, name, number) for _, number in columns]
        lines.append((LABELS.get(name, name), *(_split(each, tests) for each in found)))
    pairs = sum(each.variant == names[0] for each in answers) if names else 0
    cells = len({each.cell for each in answers})
    return Table(
        "wide-weights-summary",
        f"Better : worse than the plain training of the same cell and seed, {pairs} pairs of {cells} cells",
        ("", *(header for header, _ in columns)),
        tuple(lines),
        (
            "Narrower: range of the weights in standard deviations, mean of the layers. fp32: mean return. The others: "
            "mean return after quantization to so many bits, against the plain policies quantized alike, what was "
            "gained or lost in fp32 included; equal returns count on neither side.",
            f"†: p < 0.05 by the sign test, which about {CHANCE * tests:.0f} of these {tests} would be by chance alone "
            f"if no means did anything. ‡: p < 0.05 / {tests}, which chance alone makes in a twentieth of such tables "
            "at most.",
        ),
    )


def quantized_return(answer: Answer, place: tuple[Scheme, int]) -> float:
    """Mean return of a policy quantized so."""
    return answer.at(*place).mean_return.value


def _split(found: Signs, tests: int) -> str:
    mark = "‡" if found.p_value < CHANCE / tests else "†" if found.p_value < CHANCE else ""
    return f"{found.above} : {found.below}{mark}"


def weights(rows: Sequence[Row], answers: Sequence[Answer]) -> Table:
    """How wide the weights are, and what the float policies reach."""
    lines: list[tuple[str, ...]] = []
    for number, row in enumerate(rows):
        if number and row.cell != rows[number - 1].cell:
            lines.append(())
        lines.append(
            (
                row.cell,
                LABELS.get(row.variant, row.variant),
                bracketed(row.range),
                bracketed(row.deviation),
                bracketed(row.ratio),
                _signed(row.ratio_gain),
                bracketed(row.mean_return),
                _signed(row.return_gain),
            )
        )
    headers = ("cell", "variant", "range", "std", "range / std", "minus plain", "fp32 return", "minus plain")
    return Table(
        "wide-weights",
        "Width of the weights, and the return of the float policies",
        headers,
        tuple(lines),
        (
            f"Means over {counts(rows)}. Range and standard deviation of the weights of all layers together, no "
            "biases; range / std of each layer by itself, mean of the layers: n bits over that range leave steps of "
            "range / std / 2ⁿ deviations, whatever the scale. In brackets 95 % intervals over trainings (Student's; of "
            "returns the one over episodes where that is wider). ↑, ↓: beyond the interval above or below plain.",
            *_points(rows),
            *_engines(rows),
            *_machines(answers),
        ),
        left=2,
    )


def errors(rows: Sequence[Row], scheme: Scheme, words: str) -> Table:
    """Relative error by width: a row for each variant of a cell."""
    widths = list(dict.fromkeys(bits for row in rows for kind, bits in row.quantized if kind is scheme))
    lines: list[tuple[str, ...]] = []
    for number, row in enumerate(rows):
        if number and row.cell != rows[number - 1].cell:
            lines.append(())
        cells = (
            bracketed(row.errors[scheme, bits], 1.0, "+") + ARROWS[side(row.quantized_gain.get((scheme, bits)))]
            for bits in widths
        )
        lines.append((row.cell, LABELS.get(row.variant, row.variant), *cells))
    activations = None if scheme is Scheme.QUARL else 8
    executions = dict.fromkeys(execution_of(scheme, bits, activations).words for bits in widths)
    return Table(
        f"wide-weights-{scheme.value}",
        f"Relative error in %, {words}",
        ("cell", "variant", *(f"{bits} bits" for bits in widths)),
        tuple(lines),
        (
            "Error: (float − quantized) / |float| of the mean returns over the same episodes, of each policy against "
            "its own floats; negative: better than float. ↑, ↓: the return itself is above or below that of the plain "
            "policies quantized alike, beyond the interval. Where returns are negative an error has no bound.",
            f"Quantization is simulated; on a device: {'; '.join(executions)}.",
        ),
        left=2,
    )


def orders(answers: Sequence[Answer]) -> Table:
    """Whether, within a cell, the trainings with wider weights lose more: a row for each cell."""
    widths = sorted({each.bits for each in answers[0].quantized if each.scheme is Scheme.QUARL and each.bits <= FEW})
    columns = [(bits, measure) for bits in reversed(widths) for measure in MEASURES]
    lines, decided = [], []
    for cell in dict.fromkeys(answer.cell for answer in answers):
        mine = [answer for answer in answers if answer.cell == cell]
        found = [correlation(mine, measure, (Scheme.QUARL, bits)) for bits, measure in columns]
        lines.append((cell, str(len(mine)), *map(_rho, found)))
        decided += [each for each in found if each is not None]
    above, below = sum(each.low > 0 for each in decided), sum(each.high < 0 for each in decided)
    return Table(
        "wide-weights-orders",
        "Do the wider of a cell's trainings lose more? Spearman's ρ of the width with the return lost",
        ("cell", "trainings", *(f"{bits} bits: {MEASURES[measure]}" for bits, measure in columns)),
        tuple(lines),
        (
            "All variants and seeds of a cell, which share task, method and the network's shape; QuaRL's quantizer, "
            "weights only. Lost: float minus quantized mean return. In brackets the 95 % bootstrap interval over "
            "trainings; –: all lose the same, or they are fewer than eight.",
            f"Of {len(decided)} intervals {above} lie above 0 (wider loses more) and {below} below; about "
            f"{CHANCE * len(decided):.0f} would leave 0 out by chance alone. Variants differ in more than their width, "
            "and trainings of one seed begin alike: an order, not a cause.",
        ),
    )


def _rho(found: Correlation | None) -> str:
    return NOT_KNOWN if found is None else bracketed(Estimate(found.rho, found.low, found.high), 1.0, "+")


def counts(rows: Sequence[Row]) -> str:
    """``3 trainings (seeds 0, 1, 2), 100 episodes of each``."""
    said = dict.fromkeys(
        f"{len(row.seeds)} training{'s' * (len(row.seeds) > 1)} (seed{'s' * (len(row.seeds) > 1)} "
        f"{', '.join(map(str, row.seeds))}), {row.episodes:,} episodes of each"
        for row in rows
    )
    return "; or ".join(said)


def _signed(estimate: Estimate | None) -> str:
    return NOT_KNOWN if estimate is None else bracketed(estimate, 1.0, "+") + ARROWS[side(estimate)]


def _points(rows: Sequence[Row]) -> list[str]:
    """What an interval without width means; nothing where there is none."""
    if not any(row.mean_return.low == row.mean_return.high is not None for row in rows):
        return []
    return ["An interval that is a point: every episode of every training had this return."]


def _engines(rows: Sequence[Row]) -> list[str]:
    names = dict.fromkeys(row.engine for row in rows)
    engines = {engine: [row for row in rows if row.engine == engine] for engine in names}
    if len(engines) < 2:
        return []
    said = [
        f"{engine}: {joined(dict.fromkeys(LABELS.get(row.variant, row.variant) for row in mine))}"
        for engine, mine in engines.items()
    ]
    return [f"Engines of the trainings, which compute the same up to float rounding: {'; '.join(said)}."]


def _machines(answers: Sequence[Answer]) -> list[str]:
    found = []
    for machine in dict.fromkeys(answer.machine for answer in answers):
        mine = [answer for answer in answers if answer.machine == machine]
        dates = sorted({answer.date for answer in mine})
        seconds = sum(answer.cpu_s for answer in mine)
        when = dates[0] if len(dates) == 1 else f"{dates[0]} … {dates[-1]}"
        found.append(f"{len(mine)} trainings, {seconds / 60:.0f} CPU-minutes, on {machine}, {when}.")
    return found
