"""The interval of a mean that trainings and tables print."""

import numpy as np
import pytest
from scipy.special import stdtrit

from quarl.train.intervals import Estimate, brackets, mean_interval, read_return_interval, student
from quarl.train.runs.run import describe
from quarl.train.suites.episodes import EpisodeResults
from quarl.train.suites.task import Evaluation


def test_students_interval_by_hand_and_its_quantile_scipys() -> None:
    # 1, 3, 5, 7: mean 4, s² = 20 / 3, t of 3 degrees of freedom 3.182446: half width 3.182446 · sqrt(20/3) / 2
    values = [1.0, 3.0, 5.0, 7.0]
    assert student(3) == pytest.approx(3.182446, abs=1e-6)
    assert mean_interval(values) == pytest.approx((4 - 4.108520, 4 + 4.108520), abs=1e-5)
    estimate = Estimate.of_mean(values)
    assert (estimate.low, estimate.high) == mean_interval(values), "tables have the same"
    degrees = [*range(1, 400), 999, 1000, 9_999, 20_000]
    assert [student(each) for each in degrees] == pytest.approx(stdtrit(degrees, 0.975).tolist(), rel=1e-12)


@pytest.mark.parametrize("values", [[500.0], [500.0] * 20, [0.1 + 0.2, 0.3, 0.3]])
def test_one_episode_and_equal_ones_give_no_interval(values: list[float]) -> None:
    assert mean_interval(values) is None
    assert brackets(None, ".2f") == "[–]"
    mean = values[0]
    judged = Evaluation("hard", len(values), None, None, mean, mean_interval(values), 9.0)
    assert describe(judged) == f"hard: return {mean:.2f} [–] over {len(values)} episodes"


def test_equal_games_are_counted_once() -> None:
    # Those that begin after 4 frames are one game: 17 and 20, mean 18.5, s = 3 / √2, t of 1 degree 12.7062: ± 19.06
    judged = Evaluation.of(
        EpisodeResults(np.array([17.0, 20.0, 17.0]), np.array([9, 9, 9]), None), "", starts=(4, 9, 4)
    )
    assert (judged.mean_return, judged.episodes, judged.different) == (18.5, 3, [17.0, 20.0])
    assert judged.return_interval == pytest.approx((18.5 - 19.0593, 18.5 + 19.0593), abs=1e-4)
    assert describe(judged) == "return 18.50 [-0.56, 37.56] over 3 episodes, 2 of them different"


def test_an_older_bundles_interval_says_the_standard_deviation() -> None:
    # mean ± 1.96 · s / √n of 4 episodes with s = 2 is ± 1.96; Student's is ± 3.182446
    assert read_return_interval({"episodes": 4, "return_interval_95": [8.04, 11.96]}) == pytest.approx(
        (10 - 3.182446, 10 + 3.182446), abs=1e-6
    )
    assert read_return_interval({"episodes": 9, "return_interval_t_95": [8.0, 12.0]}) == (8.0, 12.0)
    assert read_return_interval({"episodes": 20, "return_interval_95": [500.0, 500.0]}) is None
    assert read_return_interval({"episodes": 1}) is None
