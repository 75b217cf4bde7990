"""Answers of several trainings joined: means whose intervals know of trainings and of episodes, and what they support.

An interval has to be about trainings of different seeds: another training of the same settings may be better or worse
by more than any number of episodes tells. There are few of them, so the interval over trainings is Student's; it holds
the noise of the episodes too, but where three trainings happen to agree it says nothing of it. The wider of that
interval and the one over episodes alone is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.report.intervals import Estimate

if TYPE_CHECKING:
    from bench.study.qat.store import Answer

# 97.5 % quantiles of Student's distribution by degrees of freedom
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
LIMIT_PERCENT = 2.0  # of the float return, that a policy may lose and still count as good as it


@dataclass(frozen=True)
class Row:
    """A cell on a preset at one width, over all trainings.

    Attributes:
        cell, preset, bits: which.
        seeds: of the trainings.
        episodes: of each training.
        reference, ptq, qat: mean returns.
        ptq_error, qat_error: 100 · (float − it) / |float| of the mean returns, in percent; None where float's is 0.
        gain: mean return of QAT minus that of PTQ.
        success: shares of float, PTQ and QAT; None where the task has no success.
        qat_by_seed, ptq_by_seed: mean return of each training.
    """

    cell: str
    preset: str
    bits: int
    seeds: tuple[int, ...]
    episodes: int
    reference: Estimate
    ptq: Estimate
    qat: Estimate
    ptq_error: Estimate | None
    qat_error: Estimate | None
    gain: Estimate
    success: tuple[float, float, float] | None
    qat_by_seed: tuple[float, ...]
    ptq_by_seed: tuple[float, ...]

    @property
    def is_noise(self) -> bool:
        """Whether the interval of QAT minus PTQ holds 0."""
        return holds(self.gain, 0.0)


def rows_of(answers: Sequence[Answer]) -> list[Row]:
    """By cell and preset in the order of the answers, then from many bits to few."""
    found = []
    for cell in dict.fromkeys(answer.cell for answer in answers):
        of_cell = [answer for answer in answers if answer.cell == cell]
        for index, outcome in enumerate(of_cell[0].reference):
            for bits in sorted({answer.bits for answer in of_cell}, reverse=True):
                chosen = sorted((answer for answer in of_cell if answer.bits == bits), key=lambda each: each.seed)
                found.append(_row(cell, outcome.preset, bits, chosen, index))
    return found


def _row(cell: str, preset: str, bits: int, chosen: Sequence[Answer], index: int) -> Row:
    reference = [answer.reference[index] for answer in chosen]
    ptq, qat = [answer.ptq[index] for answer in chosen], [answer.qat[index] for answer in chosen]
    returns = [[outcome.mean_return for outcome in outcomes] for outcomes in (reference, ptq, qat)]
    shares = [[each.success.value for each in outcomes if each.success] for outcomes in (reference, ptq, qat)]
    changes = ([answer.ptq_change[index] for answer in chosen], [answer.qat_change[index] for answer in chosen])
    errors = [
        relative_error(returns[0], other, [change.mean_return for change in change_of])
        for other, change_of in zip(returns[1:], changes, strict=True)
    ]
    return Row(
        cell=cell,
        preset=preset,
        bits=bits,
        seeds=tuple(answer.seed for answer in chosen),
        episodes=chosen[0].episodes,
        reference=over_trainings(returns[0]),
        ptq=over_trainings(returns[1]),
        qat=over_trainings(returns[2]),
        ptq_error=errors[0],
        qat_error=errors[1],
        gain=over_trainings([answer.gain[index].mean_return for answer in chosen]),
        success=None if not shares[0] else (_mean(shares[0]), _mean(shares[1]), _mean(shares[2])),
        qat_by_seed=tuple(each.value for each in returns[2]),
        ptq_by_seed=tuple(each.value for each in returns[1]),
    )


def over_trainings(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of one estimate for each training, each with its interval over episodes.

    half = max(t · s / √S, √(Σ half_s²) / S), with S trainings, their deviation s and Student's t of S − 1 degrees.
    """
    values = [each.value for each in estimates]
    mean = _mean(values)
    halves = [_half(each) for each in estimates]
    return _around(mean, [value - mean for value in values], halves)


def relative_error(
    reference: Sequence[Estimate], other: Sequence[Estimate], change: Sequence[Estimate]
) -> Estimate | None:
    """E = 100 · (F − Q) / |F| in percent, of the mean returns F and Q over all trainings; None where F is 0.

    As ``Estimate.of_relative_error``, with trainings in place of episodes: with d_s = f_s − q_s and
    R = (F − Q) / F the residual of a training is 100 · (d_s − R f_s) / |F|. Its variance over episodes,
    var d − 2 R cov(d, f) + R² var f, follows from the three intervals, as 2 cov(d, f) = var d + var f − var q.

    Args:
        reference: f_s, the float policy's mean return in each training.
        other: q_s, the quantized one's.
        change: q_s − f_s, episode by episode.
    """
    mean = _mean([each.value for each in reference])
    if mean == 0.0:
        return None
    differences = [f.value - q.value for f, q in zip(reference, other, strict=True)]
    ratio, percent = _mean(differences) / mean, 100.0 / abs(mean)
    residuals = [percent * (d - ratio * f.value) for d, f in zip(differences, reference, strict=True)]
    halves: list[float | None] = []
    for f, q, d in zip(map(_half, reference), map(_half, other), map(_half, change), strict=True):
        if f is None or q is None or d is None:
            halves.append(None)
        else:
            square = d * d - ratio * (d * d + f * f - q * q) + ratio * ratio * f * f
            halves.append(percent * math.sqrt(max(0.0, square)))
    return _around(percent * _mean(differences), residuals, halves)


def _around(value: float, residuals: Sequence[float], halves: Sequence[float | None]) -> Estimate:
    n = len(residuals)
    known = [half for half in halves if half is not None]
    found = []
    if len(known) == n:
        found.append(math.sqrt(math.fsum(half * half for half in known)) / n)
    if n > 1:
        found.append(student(n - 1) * math.sqrt(math.fsum(r * r for r in residuals) / (n - 1) / n))
    return Estimate(value, value - max(found), value + max(found)) if found else Estimate(value, None, None)


def student(degrees: int) -> float:
    """97.5 % quantile of Student's distribution; beyond the table its expansion, right to 0.01."""
    return STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.96 + 2.37 / degrees + 2.8 / degrees**2


def holds(estimate: Estimate, value: float) -> bool:
    """Whether the value lies in the interval; without an interval, whatever lies there."""
    if estimate.low is None or estimate.high is None:
        return True
    return estimate.low <= value <= estimate.high


def within_words(error: Estimate | None, limit: float = LIMIT_PERCENT) -> str:
    """What an error and its interval say about the limit: ``yes``, ``no``, ``undecided, the mean is +3.1 %``."""
    if error is None:
        return "not defined, float's return is 0"
    if error.low is None or error.high is None:
        return f"{'below' if error.value <= limit else 'above'}, without an interval"
    if error.high <= limit:
        return "yes"
    if error.low > limit:
        return "no"
    return f"undecided, the mean is {error.value:+.1f} %".replace("-", "−")


def _half(estimate: Estimate) -> float | None:
    return None if estimate.low is None or estimate.high is None else (estimate.high - estimate.low) / 2.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
