"""Trainings of the study of wide weights joined: what each means does to the weights, to the return, to few bits.

Intervals are about trainings of different seeds, as in qat/statistics.py. A means is compared with the plain
training seed by seed: both begin with the same draw of weights and fly the same episodes, and are different policies
all the same, so the noise of both is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.report.intervals import Correlation, Estimate, correlate, mcnemar_exact
from bench.study.qat.statistics import over_trainings, relative_error
from bench.study.wide.training import PLAIN
from policy.quantization import Scheme

if TYPE_CHECKING:
    from bench.study.wide.store import Answer

Place = tuple[Scheme, int]
"""A scheme at a width."""


@dataclass(frozen=True)
class Row:
    """A variant of a cell, over all its trainings.

    Attributes:
        cell, variant: which.
        seeds: of the trainings.
        episodes: of each training.
        engine: that computed the updates.
        range, deviation: of the weights of all layers together.
        ratio: mean over the layers of range / deviation.
        mean_return: of the float policies.
        quantized: mean return by scheme and width.
        errors: 100 · (float − quantized) / |float| of the mean returns, in percent; None where float's is 0.
        singles: mean return of each training by scheme and width.
        ratio_gain, return_gain: minus the plain trainings of the same seeds; None for the plain ones, or without any.
        quantized_gain: likewise, of the policies quantized alike.
    """

    cell: str
    variant: str
    seeds: tuple[int, ...]
    episodes: int
    engine: str
    range: Estimate
    deviation: Estimate
    ratio: Estimate
    mean_return: Estimate
    quantized: Mapping[Place, Estimate]
    errors: Mapping[Place, Estimate | None]
    singles: Mapping[Place, tuple[float, ...]]
    ratio_gain: Estimate | None
    return_gain: Estimate | None
    quantized_gain: Mapping[Place, Estimate]


def rows_of(answers: Sequence[Answer]) -> list[Row]:
    """By cell and variant, in the order of the answers."""
    found = []
    for cell in dict.fromkeys(answer.cell for answer in answers):
        of_cell = [answer for answer in answers if answer.cell == cell]
        plain = {answer.seed: answer for answer in of_cell if answer.variant == PLAIN.name}
        for variant in dict.fromkeys(answer.variant for answer in of_cell):
            chosen = sorted((each for each in of_cell if each.variant == variant), key=lambda each: each.seed)
            found.append(_row(chosen, plain if variant != PLAIN.name else {}))
    return found


def _row(chosen: Sequence[Answer], plain: Mapping[int, Answer]) -> Row:
    first = chosen[0]
    places = [(each.scheme, each.bits) for each in first.quantized]
    pairs = [(answer, plain[answer.seed]) for answer in chosen if answer.seed in plain]
    floats = [answer.mean_return for answer in chosen]
    by_place = {place: [answer.at(*place) for answer in chosen] for place in places}
    return Row(
        cell=first.cell,
        variant=first.variant,
        seeds=tuple(answer.seed for answer in chosen),
        episodes=first.episodes,
        engine=first.engine,
        range=over_trainings([exact(answer.range) for answer in chosen]),
        deviation=over_trainings([exact(answer.deviation) for answer in chosen]),
        ratio=over_trainings([exact(answer.ratio) for answer in chosen]),
        mean_return=over_trainings(floats),
        quantized={place: over_trainings([one.mean_return for one in each]) for place, each in by_place.items()},
        errors={
            place: relative_error(floats, [one.mean_return for one in each], [one.change for one in each])
            for place, each in by_place.items()
        },
        singles={place: tuple(one.mean_return.value for one in each) for place, each in by_place.items()},
        ratio_gain=gain([exact(a.ratio) for a, _ in pairs], [exact(b.ratio) for _, b in pairs]) if pairs else None,
        return_gain=gain([a.mean_return for a, _ in pairs], [b.mean_return for _, b in pairs]) if pairs else None,
        quantized_gain={place: gain(*quantized_alike(pairs, place)) for place in places if pairs},
    )


def quantized_alike(pairs: Sequence[tuple[Answer, Answer]], place: Place) -> tuple[list[Estimate], list[Estimate]]:
    """Mean returns of the first and of the second of each pair, quantized alike."""
    ones, others = ([each.at(*place).mean_return for each in side] for side in zip(*pairs, strict=True))
    return ones, others


@dataclass(frozen=True)
class Signs:
    """A means against the plain training, pair by pair of the same cell and seed.

    Attributes:
        above, below: pairs in which its number is above and below the plain one's; equal ones are neither.
        p_value: of a split at least as uneven where either side is equally likely (two-sided sign test).
    """

    above: int
    below: int
    p_value: float


def signs(answers: Sequence[Answer], variant: str, number: Callable[[Answer], float]) -> Signs:
    """Over all cells and seeds: cells differ in unit and size of their returns, and the sign of a pair has neither."""
    plain = {(each.cell, each.seed): each for each in answers if each.variant == PLAIN.name}
    found = [
        number(each) - number(plain[each.cell, each.seed])
        for each in answers
        if each.variant == variant and (each.cell, each.seed) in plain
    ]
    above, below = sum(each > 0.0 for each in found), sum(each < 0.0 for each in found)
    return Signs(above, below, mcnemar_exact(above, below))


def correlation(answers: Sequence[Answer], measure: str, place: Place) -> Correlation | None:
    """Spearman's ρ over trainings of a width of the weights and of the return lost to a quantizer.

    None where the trainings are too few, or all lose the same.

    Args:
        answers: of one cell, all variants and seeds: task, method and network's shape are the same.
        measure: ``range`` or ``ratio`` of an answer.
        place: the quantizer.
    """
    try:
        return correlate(
            [getattr(each, measure) for each in answers], [-each.at(*place).change.value for each in answers]
        )
    except ValueError:
        return None


def exact(value: float) -> Estimate:
    """A training's number that has no noise over episodes, such as its weights' range."""
    return Estimate(value, None, None)


def gain(ones: Sequence[Estimate], others: Sequence[Estimate]) -> Estimate:
    """Mean of one minus the other, pair by pair, with the interval of :func:`over_trainings`.

    Half of a pair's interval: √(half² + half²), as of two policies that have nothing in common but the episodes.
    """
    return over_trainings([_minus(one, other) for one, other in zip(ones, others, strict=True)])


def _minus(one: Estimate, other: Estimate) -> Estimate:
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Estimate(value, None, None)
    half = math.hypot((one.high - one.low) / 2.0, (other.high - other.low) / 2.0)
    return Estimate(value, value - half, value + half)


def side(estimate: Estimate | None) -> int:
    """1 where the whole interval lies above 0, −1 where below, 0 where it holds 0 or there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return 0
    return int(estimate.low > 0.0) - int(estimate.high < 0.0)
