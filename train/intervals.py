"""The 95 % interval of a mean, by Student's t, and of a relative error: of training, evaluation and every table."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import variance
from typing import Any, TypeVar

CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054
"""Between ± it lie 95 % of a normal distribution."""
Interval = tuple[float, float]
RETURN_INTERVAL, NORMAL_RETURN_INTERVAL = "return_interval_t_95", "return_interval_95"
"""Keys of a judgement's interval in a provenance: Student's t; and mean ± 1.96 · s / √n, which older bundles have."""

Value = TypeVar("Value")


def deduplicate_by_start(starts: Iterable[Hashable], values: Iterable[Value]) -> list[Value]:
    """Values of the different episodes among these: greedy ones of one start are one and the same."""
    first_values: dict[Hashable, Value] = {}
    for start, value in zip(starts, values, strict=True):
        first_values.setdefault(start, value)
    return list(first_values.values())


@functools.cache
def student(degrees: int) -> float:
    """Return the t between ±which 95 % of Student's distribution lie.

    For whole degrees ν the probability is a finite sum in θ = atan(t / √ν) (Abramowitz and Stegun, 26.7.3 and 26.7.4),
    solved by Newton's method. The sum is concave in θ, so steps from the normal quantile, which is smaller, never
    pass the solution.
    """
    if degrees == 1:
        return math.tan(CONFIDENCE * math.pi / 2)
    odd = degrees % 2
    scale = 2 / math.pi if odd else 1.0
    theta, step = math.atan(NORMAL_QUANTILE / math.sqrt(degrees)), 1.0
    while step > 1e-15 * theta:
        terms = [math.cos(theta) ** odd]
        for power in range(odd, degrees - 2, 2):
            terms.append(terms[-1] * math.cos(theta) ** 2 * (power + 1) / (power + 2))
        probability = scale * (theta * odd + math.sin(theta) * math.fsum(terms))
        step = (CONFIDENCE - probability) / (scale * (degrees - 1) * terms[-1] * math.cos(theta))
        theta += step
    return math.sqrt(degrees) * math.tan(theta)


def half_width(residuals: Sequence[float]) -> float | None:
    """t · s / √n of values given as their differences from the mean, t of n − 1 degrees of freedom (Student 1908).

    None of a single one.
    """
    n = len(residuals)
    if n < 2:
        return None
    return student(n - 1) * math.sqrt(math.fsum(r * r for r in residuals) / (n - 1) / n)


def is_known(low: float | None, high: float | None) -> bool:
    """Return whether an interval says something: one value has none, and that of equal values, which has no width, says
    nothing of how far another value may lie."""
    return low is not None and high is not None and not math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """mean ± t · s / √n; None where the values give none: a single one, or all of them equal."""
    mean = math.fsum(values) / len(values)
    half = half_width([value - mean for value in values])
    return (mean - half, mean + half) if half is not None and is_known(mean - half, mean + half) else None


def difference_interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, Interval | None]:
    """Mean of one minus that of the other, of independent values, and its interval (Welch 1947).

    None where one has a single value, or neither varies.
    """
    samples = [[float(value) for value in values] for values in (one, other)]
    mean = math.fsum(samples[0]) / len(samples[0]) - math.fsum(samples[1]) / len(samples[1])
    if min(map(len, samples)) < 2:
        return mean, None
    squares = [variance(values) / len(values) for values in samples]
    if (total := sum(squares)) == 0.0:
        return mean, None
    freedom = total**2 / sum(square**2 / (len(values) - 1) for square, values in zip(squares, samples, strict=True))
    half = student(int(freedom)) * math.sqrt(total)
    return mean, (mean - half, mean + half)


def brackets(interval: Interval | None, form: str) -> str:
    """``[low, high]``; ``[–]`` where there is none."""
    return "[–]" if interval is None else f"[{', '.join(format(side, form) for side in interval)}]"


def read_return_interval(evaluation: Mapping[str, Any]) -> Interval | None:
    """95 % interval of a judgement's mean return in a provenance; s follows from an older bundle's 1.96 · s / √n."""
    if RETURN_INTERVAL in evaluation:
        low, high = evaluation[RETURN_INTERVAL]
    elif NORMAL_RETURN_INTERVAL in evaluation:
        ends = evaluation[NORMAL_RETURN_INTERVAL]
        mean, half = sum(ends) / 2, (ends[1] - ends[0]) / 2 * student(evaluation["episodes"] - 1) / 1.96
        low, high = mean - half, mean + half
    else:
        return None
    return (low, high) if is_known(low, high) else None


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Both ends are None where a single value gives none. Values that are all the same have an interval without width,
    which is never shown (:func:`is_known`).
    """

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> Estimate:
        """mean ± t · s / √n (:func:`half_width`)."""
        mean = math.fsum(values) / len(values)
        return cls._around(mean, [value - mean for value in values])

    @classmethod
    def of_relative_error(cls, returns: Sequence[float], reference: Sequence[float]) -> Estimate | None:
        """E = 100 · (F − Q) / |F| in percent, of the mean returns F of the reference and Q on the same episodes.

        QuaRL's relative error: positive where the quantized policy earns less. Its interval is that of a ratio of
        paired means (delta method: Cochran, Sampling Techniques, 1977, chapter 6): with d_i = f_i − q_i and R = d̄ / F,

            E ± 100 · t · s(d_i − R f_i) / (√n · |F|)

        so that an error shared by all episodes does not widen it. None where F is 0.

        Raises:
            ValueError: they are not the same episodes.
        """
        check_paired(returns, reference)
        n = len(returns)
        mean = math.fsum(reference) / n
        if mean == 0.0:
            return None
        differences = [f - q for q, f in zip(returns, reference, strict=True)]
        ratio = math.fsum(differences) / n / mean
        percent = 100.0 / abs(mean)
        residuals = [percent * (d - ratio * f) for d, f in zip(differences, reference, strict=True)]
        return cls._around(percent * math.fsum(differences) / n, residuals)

    @classmethod
    def of_rate(cls, successes: Sequence[bool]) -> Estimate:
        """Return a share of successes with Wilson's interval."""
        from quarl.airlearning_envs.flights import wilson_interval

        wins = sum(map(bool, successes))
        return cls(wins / len(successes), *wilson_interval(wins, len(successes)))

    @classmethod
    def _around(cls, value: float, residuals: Sequence[float]) -> Estimate:
        half = half_width(residuals)
        return cls(value) if half is None else cls(value, value - half, value + half)

    @property
    def displayed_estimate(self) -> Estimate:
        """The estimate itself, or its value alone where the interval says nothing."""
        return self if is_known(self.low, self.high) else Estimate(self.value)

    @property
    def is_seen(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.is_above() or self.times(-1.0).is_above()

    @property
    def side(self) -> int:
        """The side of 0 on which the whole interval lies: 1 or −1; 0 where it holds 0, or a single value has none."""
        return 0 if self.low is None or self.high is None else (self.low > 0.0) - (self.high < 0.0)

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit: 100 makes percent of a share."""
        if self.low is None or self.high is None:
            return Estimate(factor * self.value)
        return Estimate(factor * self.value, *sorted((factor * self.low, factor * self.high)))

    def is_above(self, bound: float = 0.0) -> bool:
        """Return whether the whole interval lies above; of a single value the value itself is compared."""
        return (self.value if self.low is None else self.low) > bound

    def is_within(self, bound: float) -> bool:
        """Return whether the whole interval lies at or below; of a single value the value itself is compared."""
        return (self.value if self.high is None else self.high) <= bound


def check_paired(a: Sequence[object], b: Sequence[object]) -> None:
    """Raise ValueError unless both have a value for each of the same episodes."""
    if len(a) != len(b) or not len(a):
        raise ValueError(f"{len(a)} and {len(b)} episodes cannot be paired. Fly the same episodes with both policies.")
