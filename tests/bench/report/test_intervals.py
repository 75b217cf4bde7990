"""Paired differences, worked by hand."""

from __future__ import annotations

import math

import pytest

from quarl.bench.report import text
from quarl.bench.report.intervals import compute_paired_difference, independent_difference, newcombe_interval
from quarl.train.intervals import Estimate


def test_newcombe_method_10_on_a_published_table() -> None:
    # Newcombe 1998, Statistics in Medicine 17:2635: both 36, only A 12, only B 2, neither 0 gives 0.0569 to 0.3404.
    low, high = newcombe_interval(36, 12, 2, 0)
    assert (round(low, 4), round(high, 4)) == (0.0569, 0.3404)


def test_newcombe_of_independent_rates_on_a_published_example() -> None:
    # 56 of 70 against 48 of 80 (Newcombe 1998, table II, example a).
    assert independent_difference(56, 70, 48, 80) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


def test_newcombe_by_hand_where_the_correlation_vanishes() -> None:
    # 25 25 25 25: p_A = p_B = 0.5, c = 25·25 − 25·25 = 0, so φ = 0 and the half width is √2 times Wilson's:
    # Wilson of 50/100: z √(0.25/100 + z²/40000) / (1 + z²/100) = 0.0961683
    low, high = newcombe_interval(25, 25, 25, 25)
    assert high == pytest.approx(math.sqrt(2) * 0.0961683, abs=1e-6)
    assert low == pytest.approx(-high)


def test_newcombe_by_hand_where_both_agree() -> None:
    # 40 10 5 45: p_A = 0.5, p_B = 0.45; Wilson 0.4038315 … 0.5961685 and 0.3561454 … 0.5475540.
    # c = 40·45 − 10·5 = 1750, lowered by n/2 to 1700;  φ = 1700 / √(50·50·45·55) = 0.6834257
    # low:  x = 0.0961685, y = 0.0975540: √(x² − 2φxy + y²) = 0.0770836;  high: y = 0.0938546: 0.0756311
    low, high = newcombe_interval(40, 10, 5, 45)
    assert (low, high) == (pytest.approx(0.05 - 0.0770836, abs=1e-6), pytest.approx(0.05 + 0.0756311, abs=1e-6))


def test_agreement_narrows_the_interval() -> None:
    # The same rates, 80 % and 80 %: once in step with each other, once independent.
    in_step = newcombe_interval(790, 10, 10, 190)
    independent = newcombe_interval(640, 160, 160, 40)
    assert in_step[1] - in_step[0] < 0.4 * (independent[1] - independent[0])


def test_paired_difference_counts() -> None:
    a = [True] * 6 + [False] * 4
    b = [True] * 4 + [False] * 5 + [True]
    found = compute_paired_difference(a, b)
    assert (found.both, found.only_a, found.only_b, found.neither, found.episodes) == (4, 2, 1, 3, 10)
    assert found.difference == pytest.approx(0.1)
    assert found.low < 0.1 < found.high


@pytest.mark.parametrize(("a", "b"), [([True], [True, False]), ([], [])])
def test_other_episodes_are_not_paired(a: list[bool], b: list[bool]) -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        compute_paired_difference(a, b)


def test_the_interval_of_a_mean_by_hand() -> None:
    # 1, 2, 6: mean 3, s = √((4 + 1 + 9) / 2) = √7, t of 2 degrees of freedom 4.30265: half width 4.30265 √7 / √3
    estimate = Estimate.of_mean([1.0, 2.0, 6.0])
    half = 4.30265273 * math.sqrt(7) / math.sqrt(3)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3.0, 3.0 - half, 3.0 + half))
    assert Estimate.of_mean([4.0]) == Estimate(4.0, None, None)
    equal = Estimate.of_mean([500.0] * 300)
    assert text.estimate(equal) == "500.0" and equal.displayed_estimate == Estimate(500.0), (
        "equal episodes claim no certainty"
    )
    assert text.estimate(Estimate(500.0, 499.0, 501.0)) == "500.0 [499.0, 501.0]"


def test_the_relative_error_by_hand() -> None:
    # differences 10, 20, 0 of 100: 10 %; residuals 0, 10, −10, s = 10: half width 4.30265 · 10 / √3 percent
    estimate = Estimate.of_relative_error([90.0, 80.0, 100.0], [100.0, 100.0, 100.0])
    assert estimate is not None
    half = 43.0265273 / math.sqrt(3)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((10.0, 10.0 - half, 10.0 + half))


@pytest.mark.parametrize(
    ("returns", "reference", "percent"),
    [
        ([9.0, 18.0, 27.0], [10.0, 20.0, 30.0], 10.0),  # a tenth less in every episode, however unlike these are
        ([-110.0, -220.0], [-100.0, -200.0], 10.0),  # negative returns: lower is worse all the same
        ([11.0, 22.0], [10.0, 20.0], -10.0),  # better than the reference
    ],
)
def test_an_error_that_all_episodes_share_has_an_interval_without_width(
    returns: list[float], reference: list[float], percent: float
) -> None:
    estimate = Estimate.of_relative_error(returns, reference)
    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((percent,) * 3)


def test_no_relative_error_of_nothing() -> None:
    assert Estimate.of_relative_error([1.0, 2.0], [-1.0, 1.0]) is None
    with pytest.raises(ValueError, match="2 and 3 episodes cannot be paired"):
        Estimate.of_relative_error([1.0, 2.0], [1.0, 2.0, 3.0])
