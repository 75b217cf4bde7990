"""The actor's window: returns by hand, the end of an episode, and the later steps that a correction needs."""

from typing import Any

import numpy as np
import pytest

from quarl.train.actorq.stepping import NO_CHOICE, Choice, Step, Window
from quarl.train.algorithms.common.replay import Replay, n_step_returns
from quarl.train.suites.episodes import Transition


def step(time: int, reward: float = 0.0, end: str = "", **others: Any) -> Step:
    """A step from [time, time + ½] to [time + 1, time + 1½]; ``end`` is "terminated", "time limit" or nothing."""
    values = {
        "observation": np.array([time, time + 0.5], np.float32), "reward": reward, "terminated": end == "terminated",
        "cut": bool(end), "next_observation": np.array([time + 1, time + 1.5], np.float32), "updates": 10 * time,
    }  # fmt: skip
    action, greedy = others.pop("action", time % 3), others.pop("greedy", 2)
    choice = Choice(action, np.zeros(1), greedy, others.pop("chosen", False))
    return Step(choice=choice, **{**values, **others})


def filled(window: Window, *steps: Step) -> dict[str, np.ndarray]:
    for one in steps:
        window.add(one)
    return window.take()


def test_a_row_is_ready_when_its_return_is_complete_and_is_given_once() -> None:
    window = Window(3, 0.5)
    lengths = []
    for time, reward in enumerate([1.0, 2.0, 4.0, 8.0]):
        window.add(step(time, reward))
        lengths.append(len(window))
    assert lengths == [0, 0, 1, 2]
    rows = window.take()
    np.testing.assert_array_equal(rows["return"], [1 + 2 / 2 + 4 / 4, 2 + 4 / 2 + 8 / 4])
    np.testing.assert_array_equal(rows["discount"], [0.125, 0.125])  # γ³
    np.testing.assert_array_equal(rows["observation"], [[0, 0.5], [1, 1.5]])
    np.testing.assert_array_equal(rows["next_observation"], [[3, 3.5], [4, 4.5]])
    np.testing.assert_array_equal(rows["action"], [0, 1])
    np.testing.assert_array_equal(rows["greedy"], [2, 2])
    np.testing.assert_array_equal(rows["updates"], [0, 10])
    assert len(window) == 0
    rows = filled(window, step(4, 16.0))  # the two steps that waited are still there
    np.testing.assert_array_equal(rows["return"], [4 + 8 / 2 + 16 / 4])
    np.testing.assert_array_equal(rows["observation"], [[2, 2.5]])


@pytest.mark.parametrize(
    ("end", "discounts"), [("terminated", [0, 0, 0]), ("time limit", [0.125, 0.25, 0.5])], ids=["terminated", "limit"]
)
def test_only_time_limits_are_bootstrapped(end: str, discounts: list[float]) -> None:
    window = Window(3, 0.5)
    rows = filled(window, step(0, 1.0), step(1, 2.0), step(2, 4.0, end))
    np.testing.assert_array_equal(rows["return"], [1 + 2 / 2 + 4 / 4, 2 + 4 / 2, 4])
    np.testing.assert_array_equal(rows["discount"], discounts)
    np.testing.assert_array_equal(rows["next_observation"], [[3, 3.5]] * 3)  # what the last step led to, no reset
    rows = filled(window, step(7, 1.0), step(8, 1.0), step(9, 1.0))  # nothing of the old episode flows in
    np.testing.assert_array_equal(rows["return"], [1 + 1 / 2 + 1 / 4])
    np.testing.assert_array_equal(rows["observation"], [[7, 7.5]])
    rows = filled(Window(5, 0.5), step(0, 1.0), step(1, 2.0, end))  # an episode shorter than the window is not lost
    np.testing.assert_array_equal(rows["return"], [2, 2])
    np.testing.assert_array_equal(rows["discount"], [0.25, 0.5] if end == "time limit" else [0, 0])


def test_the_rows_are_those_that_the_other_replay_puts_together() -> None:
    """One environment, 300 steps with ends of both kinds: every step's row is train/algorithms/common/replay.py's."""
    generator, window, replay = np.random.default_rng(0), Window(4, 0.9), Replay(400, 1, (2,))
    for time in range(300):
        end = str(generator.choice(["", "", "", "", "terminated", "time limit"]))
        end = "time limit" if time == 299 else end
        last = (
            {"next_observation": np.full(2, -time, np.float32)} if end else {}
        )  # unlike what the next one begins with
        one = step(time, float(np.float32(generator.normal())), end, **last)
        window.add(one)
        reward, done = np.array([one.reward], np.float32), np.array([one.cut])
        ended = np.array([one.terminated])
        seen = one.next_observation[None]
        replay.add(one.observation[None], np.array([one.choice.action]), Transition(seen, reward, ended, done, seen))
    rows = window.take()
    assert len(rows["return"]) == 300  # each step is the first of exactly one row, in order
    drawn = replay.take(np.arange(297), 4)
    returns, discounts = n_step_returns(drawn.rewards, drawn.cut, drawn.terminated, 0.9)
    np.testing.assert_allclose(rows["return"][:297], returns, rtol=1e-5, atol=1e-6)  # float64 sums against float32
    np.testing.assert_allclose(rows["discount"][:297], discounts, rtol=1e-6)
    for name, expected in (
        ("observation", drawn.observations),
        ("next_observation", drawn.next_observations),
        ("action", drawn.actions),
    ):
        np.testing.assert_array_equal(rows[name][:297], expected)


def test_the_later_steps_come_along_where_they_belong_to_the_return() -> None:
    window = Window(3, 0.5, follows=True)
    rows = filled(
        window,
        step(0, 1.0, greedy=1, chosen=True),
        step(1, 2.0, greedy=0, chosen=True),
        step(2, 4.0, greedy=2, chosen=False),  # chance did something
        step(3, 8.0, greedy=1, chosen=True, end="time limit"),
    )
    np.testing.assert_array_equal(
        rows["following"],
        [[[1.0, 1.5], [2.0, 2.5]], [[2.0, 2.5], [3.0, 3.5]], [[3.0, 3.5], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]],
    )
    no = NO_CHOICE
    np.testing.assert_array_equal(rows["following_greedy"], [[0, no], [no, 1], [1, no], [no, no]])
    # R before each of them: 1; 1 + 2/2.  2; 2 + 4/2.  4; there is none.  There is none.
    there = [[True, True], [True, True], [True, False], [False, False]]
    np.testing.assert_array_equal(rows["following_return"][np.array(there)], [1, 2, 2, 4, 4])


def test_columns_have_the_contracts_names_and_types() -> None:
    rows = filled(Window(2, 0.5, follows=True), step(0), step(1))
    assert {name: (column.dtype.name, column.shape) for name, column in rows.items()} == {
        "observation": ("float32", (1, 2)),
        "action": ("int32", (1,)),
        "return": ("float32", (1,)),
        "discount": ("float32", (1,)),
        "next_observation": ("float32", (1, 2)),
        "updates": ("int64", (1,)),
        "greedy": ("int32", (1,)),
        "following": ("float32", (1, 1, 2)),
        "following_greedy": ("int32", (1, 1)),
        "following_return": ("float32", (1, 1)),
    }
    torques = np.array([0.25, -1.0])
    rows = filled(Window(1, 0.5), step(0, action=torques, greedy=np.zeros(2)), step(1, action=-torques, greedy=torques))
    assert rows["action"].dtype == rows["greedy"].dtype == np.float32
    np.testing.assert_array_equal(rows["action"], [[0.25, -1], [-0.25, 1]])
    np.testing.assert_array_equal(rows["greedy"], [[0.0, 0.0], [0.25, -1.0]])
    assert not {name for name in rows if name.startswith("following")}
