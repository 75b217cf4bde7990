"""Two policies on the same episodes: the difference of their success and what chance alone would make of it.

The interval of a single rate is :func:`airlearning_envs.flights.wilson_interval`; there is one copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PairedDifference:
    """Success of A minus success of B on the same episodes, as fractions.

    Attributes:
        both, only_a, only_b, neither: episodes by who succeeded.
        difference: (only_a − only_b) / episodes.
        low, high: 95 % interval of the difference.
        p_value: McNemar's exact test of "A and B succeed equally often".
    """

    both: int
    only_a: int
    only_b: int
    neither: int
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def episodes(self) -> int:
        """Episodes that both flew."""
        return self.both + self.only_a + self.only_b + self.neither


def paired_difference(a: Sequence[bool], b: Sequence[bool]) -> PairedDifference:
    """Compare two policies episode by episode.

    Args:
        a, b: whether each episode succeeded, episode by episode, of the same length.

    Raises:
        ValueError: the lengths differ or are zero.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"{len(a)} and {len(b)} episodes cannot be paired; fly the same ones with both.")
    pairs = list(zip(map(bool, a), map(bool, b), strict=True))
    both, only_a = pairs.count((True, True)), pairs.count((True, False))
    only_b, neither = pairs.count((False, True)), pairs.count((False, False))
    low, high = newcombe_interval(both, only_a, only_b, neither)
    difference = (only_a - only_b) / len(pairs)
    return PairedDifference(both, only_a, only_b, neither, difference, low, high, mcnemar_exact(only_a, only_b))


def newcombe_interval(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, float]:
    """95 % interval of p_A − p_B for paired proportions: Newcombe 1998, Statistics in Medicine 17:2635, method 10.

    It joins the Wilson intervals [l_A, u_A] and [l_B, u_B] of the two rates by their correlation φ:

        low  = d − sqrt((p_A − l_A)² − 2 φ (p_A − l_A)(u_B − p_B) + (u_B − p_B)²)
        high = d + sqrt((u_A − p_A)² − 2 φ (u_A − p_A)(p_B − l_B) + (p_B − l_B)²)

    With e, f, g, h = both, only_a, only_b, neither: φ = c / sqrt((e+f)(g+h)(e+g)(f+h)), where c = eh − fg, lowered by
    n/2 (but not below 0) when it is positive; φ = 0 when the root is 0.
    """
    from airlearning_envs.flights import wilson_interval

    e, f, g, h = both, only_a, only_b, neither
    n = e + f + g + h
    p_a, p_b = (e + f) / n, (e + g) / n
    (l_a, u_a), (l_b, u_b) = wilson_interval(e + f, n), wilson_interval(e + g, n)
    cross = float(e * h - f * g)
    if cross > 0:
        cross = max(0.0, cross - n / 2)
    root = math.sqrt(float(e + f) * (g + h) * (e + g) * (f + h))
    phi = cross / root if root else 0.0
    low = _joined(p_a - l_a, u_b - p_b, phi)
    high = _joined(u_a - p_a, p_b - l_b, phi)
    return max(-1.0, p_a - p_b - low), min(1.0, p_a - p_b + high)


def _joined(x: float, y: float, phi: float) -> float:
    return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """P(a split of the discordant episodes at least as uneven as this) when either side is equally likely.

    p = min(1, 2 Σ_{k ≤ min} C(m, k) 2⁻ᵐ), m = only_a + only_b (McNemar 1947; exact binomial form).
    """
    m, fewer = only_a + only_b, min(only_a, only_b)
    # C(m, k) 2⁻ᵐ through logarithms: 2⁻ᵐ alone is 0 in floating point from m = 1075 on
    terms = (
        math.lgamma(m + 1) - math.lgamma(k + 1) - math.lgamma(m - k + 1) - m * math.log(2) for k in range(fewer + 1)
    )
    return min(1.0, 2.0 * math.fsum(math.exp(term) for term in terms))


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; both ends are None where a single episode gives none."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> Estimate:
        """mean ± 1.96 · s / √n."""
        mean = math.fsum(values) / len(values)
        return cls._around(mean, [value - mean for value in values])

    @classmethod
    def of_relative_error(cls, returns: Sequence[float], reference: Sequence[float]) -> Estimate | None:
        """E = 100 · (F − Q) / |F| in percent, of the mean returns F of the reference and Q on the same episodes.

        QuaRL's relative error: positive where the quantized policy earns less. Its interval is that of a ratio of
        paired means (delta method: Cochran, Sampling Techniques, 1977, chapter 6): with d_i = f_i − q_i and R = d̄ / F,

            E ± 100 · 1.96 · s(d_i − R f_i) / (√n · |F|)

        so that an error shared by all episodes does not widen it. None where F is 0.

        Raises:
            ValueError: they are not the same episodes.
        """
        if len(returns) != len(reference) or not len(returns):
            raise ValueError(
                f"{len(returns)} and {len(reference)} episodes cannot be paired; fly the same ones with both."
            )
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
    def _around(cls, value: float, residuals: Sequence[float]) -> Estimate:
        n = len(residuals)
        if n < 2:
            return cls(value, None, None)
        half = 1.96 * math.sqrt(math.fsum(r * r for r in residuals) / (n - 1) / n)
        return cls(value, value - half, value + half)
