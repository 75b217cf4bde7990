"""Intervals of 95 %: of paired differences of rates (Newcombe, which no library here has), and of rank correlations.

Those of means and relative errors are in :mod:`train.intervals`; that of a single rate is
:func:`airlearning_envs.flights.wilson_interval`, since devices make it, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.train.intervals import CONFIDENCE, Estimate, check_paired

# --- two policies on the same episodes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedDifference:
    """Success of A minus success of B on the same episodes, as fractions.

    Attributes:
        both, only_a, only_b, neither: episodes by who succeeded.
        difference: (only_a − only_b) / episodes.
        low, high: 95 % interval of the difference.
    """

    both: int
    only_a: int
    only_b: int
    neither: int
    difference: float
    low: float
    high: float

    @property
    def estimate(self) -> Estimate:
        """The difference with its interval."""
        return Estimate(self.difference, self.low, self.high)

    @property
    def episodes(self) -> int:
        """Episodes that both flew."""
        return self.both + self.only_a + self.only_b + self.neither


def compute_paired_difference(a: Sequence[bool], b: Sequence[bool]) -> PairedDifference:
    """Compare two policies episode by episode.

    Args:
        a, b: whether each episode succeeded, episode by episode, of the same length.

    Raises:
        ValueError: the lengths differ or are zero.
    """
    check_paired(a, b)
    pairs = list(zip(map(bool, a), map(bool, b), strict=True))
    both, only_a = pairs.count((True, True)), pairs.count((True, False))
    only_b, neither = pairs.count((False, True)), pairs.count((False, False))
    low, high = newcombe_interval(both, only_a, only_b, neither)
    difference = (only_a - only_b) / len(pairs)
    return PairedDifference(both, only_a, only_b, neither, difference, low, high)


def independent_difference(a: int, of_a: int, b: int, of_b: int) -> tuple[float, float, float]:
    """p_A − p_B of independent trials and its 95 % interval: Newcombe 1998, Statistics in Medicine 17:873, method 10.

    low = d − sqrt((p_A − l_A)² + (u_B − p_B)²),   high = d + sqrt((u_A − p_A)² + (p_B − l_B)²)
    """
    from quarl.airlearning_envs.flights import wilson_interval

    (p_a, p_b), (l_a, u_a), (l_b, u_b) = (a / of_a, b / of_b), wilson_interval(a, of_a), wilson_interval(b, of_b)
    return p_a - p_b, p_a - p_b - math.hypot(p_a - l_a, u_b - p_b), p_a - p_b + math.hypot(u_a - p_a, p_b - l_b)


def newcombe_interval(both: int, only_a: int, only_b: int, neither: int) -> tuple[float, float]:
    """95 % interval of p_A − p_B for paired proportions: Newcombe 1998, Statistics in Medicine 17:2635, method 10.

    It joins the Wilson intervals [l_A, u_A] and [l_B, u_B] of the two rates by their correlation φ:

        low  = d − sqrt((p_A − l_A)² − 2 φ (p_A − l_A)(u_B − p_B) + (u_B − p_B)²)
        high = d + sqrt((u_A − p_A)² − 2 φ (u_A − p_A)(p_B − l_B) + (p_B − l_B)²)

    With e, f, g, h = both, only_a, only_b, neither: φ = c / sqrt((e+f)(g+h)(e+g)(f+h)), where c = eh − fg, lowered by
    n/2 (but not below 0) when it is positive; φ = 0 when the root is 0.
    """
    from quarl.airlearning_envs.flights import wilson_interval

    e, f, g, h = both, only_a, only_b, neither
    n = e + f + g + h
    p_a, p_b = (e + f) / n, (e + g) / n
    (l_a, u_a), (l_b, u_b) = wilson_interval(e + f, n), wilson_interval(e + g, n)
    cross = float(e * h - f * g)
    if cross > 0:
        cross = max(0.0, cross - n / 2)
    root = math.sqrt(float(e + f) * (g + h) * (e + g) * (f + h))
    phi = cross / root if root else 0.0
    low = _combine(p_a - l_a, u_b - p_b, phi)
    high = _combine(u_a - p_a, p_b - l_b, phi)
    return max(-1.0, p_a - p_b - low), min(1.0, p_a - p_b + high)


def _combine(x: float, y: float, phi: float) -> float:
    return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))


# --- rank correlation -------------------------------------------------------------------------------------------------

RESAMPLES, SEED = 10_000, 0
# Of four pairs of which three errors are 0, the bootstrap made an interval of −1.00 … −0.77: confident about nothing.
FEWEST_PAIRS = 8


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ of n pairs.

    Attributes:
        rho: −1 … 1.
        low, high: 95 % bootstrap interval.
        pairs: n.
    """

    rho: float
    low: float
    high: float
    pairs: int

    @property
    def side(self) -> int:
        """The side of 0 on which the whole interval lies; see :attr:`Estimate.side`."""
        return Estimate(self.rho, self.low, self.high).side


def spearman(x: np.ndarray, y: np.ndarray, axis: int = -1) -> NDArray[np.float64]:
    """ρ = Pearson's correlation of the ranks along an axis (Spearman 1904); NaN where all values of one are equal."""
    from scipy.stats import rankdata

    a, b = (r - r.mean(axis=axis, keepdims=True) for r in (rankdata(x, axis=axis), rankdata(y, axis=axis)))
    squares = (a * a).sum(axis=axis) * (b * b).sum(axis=axis)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = np.asarray((a * b).sum(axis=axis) / np.sqrt(squares))
    return result


def correlate(x: Sequence[float], y: Sequence[float], resamples: int = RESAMPLES) -> Correlation:
    """ρ of the pairs (x_i, y_i) and its percentile bootstrap interval; a resample of equal values counts as ρ = 0.

    With a dozen pairs the interval is too narrow rather than too wide (Efron and Tibshirani 1993, chapter 13).

    Raises:
        ValueError: fewer than eight pairs, different lengths, a value that is not finite, or nothing but equal values.
    """
    from scipy.stats import bootstrap

    pairs = np.array([x, y], np.float64)
    count = pairs.shape[1]
    if count < FEWEST_PAIRS or not np.isfinite(pairs).all():
        raise ValueError(f"a rank correlation needs at least {FEWEST_PAIRS} pairs of finite values, got {count}.")
    rho = float(spearman(*pairs))
    if np.isnan(rho):
        raise ValueError("a rank correlation is undefined: all values of one side are equal.")
    low, high = bootstrap(
        tuple(pairs),
        lambda x, y, axis: np.nan_to_num(spearman(x, y, axis)),
        n_resamples=resamples,
        paired=True,
        method="percentile",
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Correlation(rho, float(low), float(high), count)


def order_of(x: Sequence[float], y: Sequence[float]) -> Correlation | None:
    """Correlate as :func:`correlate` does; None where there is no order: too few pairs, or nothing but equal values."""
    try:
        return correlate(x, y)
    except ValueError:
        return None
