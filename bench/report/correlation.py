"""Spearman's rank correlation with a bootstrap interval, in numpy: the pinned packages have no scipy.

ρ = Pearson's correlation of the ranks, equal values sharing the mean of theirs (Spearman 1904). The interval is the
percentile bootstrap over pairs (Efron and Tibshirani 1993, chapter 13). With a dozen pairs it is too narrow rather than
too wide; read it as the least that chance can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES, SEED = 10_000, 0
INTERVAL_PERCENT = (2.5, 97.5)
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


def ranks(values: np.ndarray) -> NDArray[np.float64]:
    """Ranks from 1 along the last axis, the same shape; equal values share the mean of their ranks."""
    # rank_i = #{j : x_j < x_i} + (#{j : x_j = x_i} + 1) / 2
    mine, others = values[..., :, None], values[..., None, :]
    result: NDArray[np.float64] = (others < mine).sum(axis=-1) + ((others == mine).sum(axis=-1) + 1) / 2
    return result


def spearman(x: np.ndarray, y: np.ndarray) -> NDArray[np.float64]:
    """ρ along the last axis of two arrays of one shape; NaN where all values of one of them are equal."""
    a, b = (r - r.mean(axis=-1, keepdims=True) for r in (ranks(x), ranks(y)))
    # ρ = Σ a b / √(Σ a² Σ b²)
    squares = (a * a).sum(axis=-1) * (b * b).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: NDArray[np.float64] = np.asarray((a * b).sum(axis=-1) / np.sqrt(squares))
    return result


def correlate(x: Sequence[float], y: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED) -> Correlation:
    """ρ of the pairs (x_i, y_i) and its interval over resampled pairs; a resample of equal values counts as ρ = 0.

    Raises:
        ValueError: fewer than eight pairs, different lengths, a value that is not finite, or nothing but equal values.
    """
    pairs = np.array([x, y], np.float64)
    count = pairs.shape[1]
    if count < FEWEST_PAIRS or not np.isfinite(pairs).all():
        raise ValueError(f"{count} pairs with finite values wanted; a rank correlation takes at least {FEWEST_PAIRS}.")
    rho = float(spearman(*pairs))
    if np.isnan(rho):
        raise ValueError("all values of one side are equal; they have no order to correlate.")
    chosen = np.random.default_rng(seed).integers(0, count, (resamples, count))
    found = spearman(pairs[0][chosen], pairs[1][chosen])
    low, high = np.percentile(np.nan_to_num(found), INTERVAL_PERCENT)
    return Correlation(rho, float(low), float(high), count)
