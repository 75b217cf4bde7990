"""Mixed precision: the tables of rows made up by hand, what is asked, and the task whose learning is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from quarl import cli
from quarl.bench.study import mixed
from quarl.bench.study.experiment import Results
from quarl.bench.study.measures.catch import Catch, catch_task
from quarl.bench.study.mixed import EXPERIMENT, LEARNING, PONG, UPDATE
from quarl.bench.study.records import Record
from quarl.train.suites.episodes import evaluate_episodes

Recorded = Callable[..., Record]
FACTS = {"tensorflow": "2.21.0", "has_unit": True}
TYPE = {"threads": 1, "type": "bfloat16"}


@pytest.fixture
def both(recorded: Recorded) -> Callable[..., list[Record]]:
    """float32's record and that of bfloat16."""

    def make(
        work: str, full: Sequence[float], half: Sequence[float], subject: str = "A", seed: int = 0,
        measures: Sequence[Mapping[str, Any]] = ({}, {}),
    ) -> list[Record]:  # fmt: skip
        condition = {"work": work, **({} if subject == "catch" else {"batch": 32}), **TYPE}
        return [
            recorded(
                {**condition, **({"half": True} if at else {})}, values, subject, seed, **{**FACTS, **measures[at]}
            )
            for at, values in enumerate((full, half))
        ]

    return make


@pytest.fixture
def timed(both: Callable[..., list[Record]]) -> list[Record]:
    """Updates and acting, whose medians are 60 and 40, 1 and 0.8 ms."""
    wall = [{"wall_ms": value, "count": 3} for value in (120.0, 60.0)]
    return [
        *both(UPDATE, [50.0, 60.0, 90.0], [40.0, 30.0, 70.0], measures=wall),
        *both("act on 1", [1.0], [0.8], measures=wall),
    ]


def test_a_row_has_both_times_their_ratio_and_the_papers(
    timed: list[Record], both: Callable[..., list[Record]]
) -> None:
    pong = both(PONG, [50.0], [80.0], measures=[{"steps": 64, "losses": [1.0, 3.0]}] * 2)
    (table,) = Results(EXPERIMENT, [*timed, *pong]).tables()
    row = ("A", "3 conv(128) + FC 128", "bfloat16", "60.0", "40.0", "1.50×", "1.25×", "50.0", "80.0", "1.60×", "0.814×")
    assert table.rows == (row,)
    assert "Minibatch 32, 1 thread, TensorFlow 2.21.0 with oneDNN, on a machine" in table.notes[0]
    assert "a bfloat16 unit" in table.notes[0] and "(A 3 times)" in table.notes[0]
    assert "by wall time the updates' speed-ups are 2.00×" in table.notes[0]
    assert "A over 64 steps" in table.notes[2] and "A 2.00e+00 and 2.00e+00." in table.notes[3]


def test_what_was_not_measured_is_not_known(timed: list[Record]) -> None:
    (table,) = Results(EXPERIMENT, timed).tables()
    assert table.rows[0][7:10] == ("–", "–", "–")
    assert not any("loss" in note or "Pong:" in note for note in table.notes)


def test_losses_are_compared_round_by_round() -> None:
    rising = [float(n) for n in range(1, 9)]
    sentence = mixed.losses_words(rising, [2 * loss for loss in rising])
    assert sentence == "4.50e+00 and 9.00e+00 (correlation over 8 rounds 1.000)"


def test_the_learning_curves_are_compared_seed_by_seed(both: Callable[..., list[Record]]) -> None:
    facts = {"at": [8, 16], "judged": 256}
    curves = [
        *both(LEARNING, [-0.5, 0.5], [-0.5, 0.6], "catch", 0, [facts, facts]),
        *both(LEARNING, [-0.5, 0.7], [-0.5, 0.9], "catch", 1, [facts, facts]),
    ]
    (table,) = Results(EXPERIMENT, curves).tables()
    assert table.rows[1] == ("bfloat16", "16", "0.60 [0.50, 0.70]", "0.75 [0.60, 0.90]")
    # Differences at the last step 0.1 and 0.2: s = 0.0707, t of one degree of freedom 12.706: ± 12.706 · 0.05
    assert "+0.15 [−0.49, +0.79] at the last step, +0.08 [−0.24, +0.39] over the whole curve" in table.notes[0]
    assert "mean of 2 seeds" in table.title and "256 greedy episodes" in table.notes[1]


def test_float32_is_that_which_was_timed_beside_it(timed: list[Record]) -> None:
    """Another 16-bit type has a float32 of its own."""
    other = [{**each, "condition": {**each["condition"], "type": "float16"}, "returns": [9.0]} for each in timed]
    (table,) = Results(EXPERIMENT, [*timed, *other]).tables()
    assert [(row[2], row[3]) for row in table.rows] == [("bfloat16", "60.0"), ("float16", "9.00")]


def test_what_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = mixed.Options(type="float16", updates=40, steps=0, batch=64, threads=2)
    condition = mixed.grid(arguments, "A")
    common = {"batch": 64, "threads": 2, "type": "float16", "half": True}
    assert condition[0] == {"work": UPDATE, "count": 40, **common}
    assert [each["work"] for each in condition] == [UPDATE, "act on 1", "act on 8"], "0 steps: no Pong"
    assert EXPERIMENT.reference(condition[1]) == {"work": "act on 1", "batch": 64, "threads": 2, "type": "float16"}
    assert mixed.grid(arguments, "catch") == [{"work": LEARNING, "threads": 2, "type": "float16", "half": True}]
    assert mixed.main(["D"]) == cli.EXIT_USAGE
    assert "no policy 'D'" in capsys.readouterr().err


def test_measurements_take_turns_and_the_first_is_not_counted() -> None:
    from quarl.bench.study.measures.mixed_timing import time_in_turns

    calls: list[str] = []
    found = time_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert "".join(calls) == "baabba"
    assert [(len(values), measures["count"]) for values, measures in found.values()] == [(2, 2), (2, 2)]


def test_the_papers_networks() -> None:
    from quarl.bench.study.measures.mixed_timing import ACTIONS, IMAGE
    from quarl.policy.spec import network_shapes

    network = mixed.POLICIES["B"].network
    assert [(layer.filters, layer.kernel, layer.stride) for layer in network.convolutions] == [
        (512, 8, 4),
        (512, 4, 2),
        (512, 3, 1),
    ]
    shapes = network_shapes(mixed.POLICIES["A"].network, IMAGE, ACTIONS)
    # 8·8·4·128 + 4·4·128·128 + 3·3·128·128 + 3·128 + 7·7·128·128 + 128 + 128·6 + 6
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 1_246_470


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
    assert evaluate_episodes(Catch(4, seed=1), follow, 64).returns.mean() == 1.0
    stays = catch_task().evaluate(lambda pictures: np.ones(len(pictures), np.int64), 256, 1, "")
    assert stays.mean_return == pytest.approx(-0.75, abs=0.1)  # one column of eight
    assert stays.mean_length == 7


def test_an_episode_is_a_function_of_its_number() -> None:
    first, second = Catch(2, seed=3), Catch(2, seed=3)
    everyone = np.ones(2, bool)
    a, b = first.reset(everyone, np.array([4, 7])), second.reset(everyone, np.array([7, 4]))
    np.testing.assert_array_equal(a, b[::-1])
    assert a.shape == (2, 16, 16, 1)
