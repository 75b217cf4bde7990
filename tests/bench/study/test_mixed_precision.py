"""bench/study/mixed/command.py: the tables, what is kept, and the task whose learning is compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.study.mixed import command as mixed_precision
from bench.study.mixed import measuring as mixed_measuring
from bench.study.mixed.catch import Catch, catch_task
from train.suites.episodes import judge


def timing(milliseconds: float) -> dict[str, Any]:
    return {"wall_ms": 2 * milliseconds, "cpu_ms": milliseconds, "low_ms": 1.0, "high_ms": 2.0, "count": 3}


def document(**more: Any) -> dict[str, Any]:
    policy = {
        "filters": 128,
        "hidden": 128,
        "weights": 1_246_470,
        "paper_minutes": [127, 156],
        "update": {"float32": timing(60), "bfloat16": timing(40)},
        "act_1": {"float32": timing(1.0), "bfloat16": timing(0.8)},
        "act_8": {"float32": timing(4.0), "bfloat16": timing(2.0)},
        "pong": {"float32": {"steps_per_cpu_s": 50.0}, "bfloat16": {"steps_per_cpu_s": 80.0}},
    }
    return {
        "machine": "a machine", "has_unit": True, "tensorflow": "2.21.0", "gpu": False, "threads": 1, "cores": 1,
        "batch": 32, "type": "bfloat16", "policies": {"A": policy}, **more,
    }  # fmt: skip


def test_a_row_has_both_times_their_ratio_and_the_papers() -> None:
    (table,) = mixed_precision.tables(document())
    row = ("A", "3 conv(128) + FC 128", "60.0", "40.0", "1.50×", "1.25×", "50.0", "80.0", "1.60×", "0.814×")
    assert table.rows == (row,)
    assert "1 thread," in table.notes[0]
    assert "a machine" in table.notes[0]
    assert "a bfloat16 unit" in table.notes[0]


def test_what_was_not_measured_is_not_known() -> None:
    without = document()
    del without["policies"]["A"]["pong"]
    (table,) = mixed_precision.tables(without)
    assert table.rows[0][6:9] == ("–", "–", "–")


def test_losses_are_compared_round_by_round() -> None:
    with_losses = document()
    rising = [float(n) for n in range(1, 9)]
    with_losses["policies"]["A"]["pong"]["float32"]["losses"] = rising
    with_losses["policies"]["A"]["pong"]["bfloat16"]["losses"] = [2 * loss for loss in rising]
    (table,) = mixed_precision.tables(with_losses)
    assert "A 4.50e+00 and 9.00e+00 (correlation over 8 rounds 1.000)" in table.notes[2]


def test_the_learning_curves_are_compared_seed_by_seed() -> None:
    def curves(*last: float) -> list[dict[str, Any]]:
        return [{"seed": seed, "returns": [[8, -0.5], [16, value]]} for seed, value in enumerate(last)]

    found = {
        "steps": 16, "episodes": 256, "curves": {"float32": curves(0.5, 0.7), "bfloat16": curves(0.6, 0.9)},
        "last_difference": [0.15, 0.1, 0.2], "mean_difference": [-0.05, -0.1, 0.0],
    }  # fmt: skip
    table = mixed_precision.tables(document(catch=found))[1]
    assert table.rows[1] == ("16", "0.60 [0.50, 0.70]", "0.75 [0.60, 0.90]")
    assert "+0.150 [+0.100, +0.200] at the last step, −0.050 [−0.100, +0.000]" in table.notes[0]


def test_a_paired_difference_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, deviation 1, t(2) = 4.303: 2 ± 4.303 / √3.
    assert mixed_measuring.paired([0, 0, 0], [1, 2, 3]) == pytest.approx((2, 2 - 2.4843, 2 + 2.4843), abs=1e-3)


def test_only_answers_to_one_question_are_put_together() -> None:
    other = document()
    other["policies"] = {"C": other["policies"]["A"]}
    assert list(mixed_precision.merged(document(), other)["policies"]) == ["A", "C"]
    assert list(mixed_precision.merged(document(), {**other, "batch": 64})["policies"]) == ["C"]


def test_measurements_take_turns_and_the_first_is_not_counted() -> None:
    calls: list[str] = []
    found = mixed_measuring.timed_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert "".join(calls) == "baabba"
    assert found["a"].count == found["b"].count == 2


def test_the_papers_networks() -> None:
    network = mixed_measuring.POLICIES["B"].network
    assert [(layer.filters, layer.kernel, layer.stride) for layer in network.convolutions] == [
        (512, 8, 4),
        (512, 4, 2),
        (512, 3, 1),
    ]
    # 8·8·4·128 + 4·4·128·128 + 3·3·128·128 + 3·128 + 7·7·128·128 + 128 + 128·6 + 6
    assert mixed_measuring.parameters(mixed_measuring.POLICIES["A"].network) == 1_246_470


# --- catch --------------------------------------------------------------------------------------------------------


def follow(pictures: np.ndarray) -> np.ndarray:
    """Go where the ball is: the column of the upper white square, against that of the lower one."""
    cells = pictures[:, ::2, ::2, 0] > 0
    paddle, ball = cells[:, -1].argmax(axis=1), cells.any(axis=1)
    columns = np.arange(8)
    other = np.where(ball.sum(axis=1) == 2, (ball * columns).sum(axis=1) - paddle, paddle)
    return np.sign(other - paddle) + 1


def test_who_follows_the_ball_catches_it_and_who_does_not_seldom_does() -> None:
    # The ball is at most 7 columns away and falls for 7 steps.
    assert judge(Catch(4, seed=1), follow, 64).returns.mean() == 1.0
    stays = catch_task().evaluate(lambda pictures: np.ones(len(pictures), np.int64), 256, 1, "")
    assert stays.mean_return == pytest.approx(-0.75, abs=0.1)  # one column of eight
    assert stays.mean_length == 7


def test_an_episode_is_a_function_of_its_number() -> None:
    first, second = Catch(2, seed=3), Catch(2, seed=3)
    everyone = np.ones(2, bool)
    a, b = first.reset(everyone, np.array([4, 7])), second.reset(everyone, np.array([7, 4]))
    np.testing.assert_array_equal(a, b[::-1])
    assert a.shape == (2, 16, 16, 1)
