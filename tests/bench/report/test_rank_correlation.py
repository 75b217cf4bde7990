"""Ranks and their correlation against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.bench.report.intervals import correlate, spearman


def test_spearman_by_hand() -> None:
    # no ties: ρ = 1 − 6 Σd² / (n (n² − 1)); d = (0, −1, 1, 0): 1 − 6 · 2 / 60 = 0.8
    assert spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 30.0, 20.0, 90.0])) == pytest.approx(0.8)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.exp([1.0, 2.0, 3.0])) == pytest.approx(1.0), "only the order counts"
    # ties: ranks (1.5, 1.5, 3, 4) and (1, 2, 3, 4), centred (−1, −1, ½, 3/2) and (−3/2, −½, ½, 3/2):
    # Σ a b = 1.5 + 0.5 + 0.25 + 2.25 = 4.5, Σ a² = 4.5, Σ b² = 5, ρ = 4.5 / √22.5
    assert spearman(np.array([1.0, 1.0, 2.0, 3.0]), np.arange(4.0)) == pytest.approx(4.5 / np.sqrt(22.5))
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))


def test_interval_holds_the_correlation_and_narrows_with_n() -> None:
    random = np.random.default_rng(2)
    widths = []
    for count in (10, 200):
        x = random.normal(size=count)
        found = correlate(x.tolist(), (x + random.normal(size=count)).tolist(), resamples=500)
        assert found.low < found.rho < found.high and found.pairs == count
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2
    assert correlate(list(range(9)), list(range(9)), resamples=500).low == pytest.approx(1.0)


def test_unrelated_values_have_an_interval_around_zero() -> None:
    random = np.random.default_rng(3)
    found = correlate(random.normal(size=60).tolist(), random.normal(size=60).tolist(), resamples=500)
    assert found.low < 0 < found.high


def test_one_unequal_pair_decides_nothing() -> None:
    # without the one that differs, which is in no more than 1 − (7/8)⁸ = 66 % of the resamples, there is no order
    found = correlate(list(range(8)), [0.0] * 7 + [-1.0], resamples=500)
    assert found.rho == pytest.approx(-0.577, abs=1e-3)
    assert found.high == 0.0


@pytest.mark.parametrize(
    ("x", "words"),
    [([1.0, 2.0, 3.0], "pairs"), ([1.0] * 8, "correlation is undefined"), ([*range(8), np.nan], "finite")],
)
def test_what_has_no_correlation_is_refused(x: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        correlate(x, list(range(len(x))))
