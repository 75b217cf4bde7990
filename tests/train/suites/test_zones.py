"""The curriculum's zones in training: whose zone an episode is of, when one opens, and flying episodes again."""

from typing import Any

import numpy as np
import pytest

from quarl import cli
from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.curriculum import zone_bounds
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.errors import TaskError
from quarl.train.suites.make import make_task
from quarl.train.suites.navigation import NavigationEpisodes
from quarl.train.suites.zones import DEFAULTS, Zones, read_zones
from tests.refusals import refused

ARENAS = {"hard": PRESETS["hard"], "shipped": PRESETS["shipped"]}


def test_an_episode_is_of_the_zone_that_was_open_when_it_began() -> None:
    zones = Zones(ARENAS, window=4, advance_at=0.5)
    assert zones.record_episodes(np.array([True, False, False]), 9) == "", "the window is not full"
    assert zones.record_episodes(np.array([True]), 10) == (
        "zone 2 of 4 opened: goals on hard 6 to 15.5 m, on shipped 10 to 16.5 m away"
    )
    assert zones.figures() == {"zone": 2.0}
    zones.record_episodes(np.array([True] * 4), 14)
    assert zones.of(np.array([0, 9, 10, 13, 14, 99])).tolist() == [0, 0, 1, 1, 2, 2]
    copy = Zones(ARENAS, window=4, advance_at=0.5)
    copy.restore(zones.state())
    assert copy.of(np.array([9, 10, 14])).tolist() == [0, 1, 2]
    assert copy.record_episodes(np.array([True] * 4), 20).startswith("zone 4 of 4 opened: goals on hard 6 to 25 m")


def test_the_defaults_are_air_learnings() -> None:
    assert DEFAULTS == {"window_episodes": 1000, "advance_at": 0.3}
    assert read_zones(ARENAS, None) is None
    zones = read_zones(ARENAS, {})
    assert zones is not None
    assert zones.record_episodes(np.arange(1000) >= 701, 1000) == "", "29.9 %"
    assert zones.record_episodes(np.ones(1, bool), 1001) != "", "the oldest failure left"


@pytest.mark.parametrize(
    "option",
    [True, {"window": 5}, {"window_episodes": 0}, {"window_episodes": 9.5}, {"advance_at": 0}, {"advance_at": 1.1}],
)
def test_another_curriculum_is_refused_when_the_task_is_made(option: Any) -> None:
    with refused(TaskError, "task", shows=["window_episodes", "1000"]):
        make_task("navigation", None, {"curriculum": option})


def zoned(window: int = 6) -> EpisodeStream:
    """Eight drones on hard and four on shipped; any six successive successes or failures open a zone."""
    shares = [(PRESETS["hard"], 8), (PRESETS["shipped"], 4)]
    return EpisodeStream(NavigationEpisodes(shares, 5, Zones(ARENAS, window, advance_at=1e-9)))


def test_goals_are_of_the_open_zones_of_each_arena() -> None:
    task = make_task("navigation", None, {"arenas": {"hard": 0.5, "shipped": 0.5}, "curriculum": {}})
    first = task.make(400, 5).reset(np.ones(400, bool), np.arange(400))
    distances = first[:, 25]
    for arena, part in (("hard", distances[:200]), ("shipped", distances[200:])):
        low, high = zone_bounds(PRESETS[arena])[0]
        assert low <= part.min() < low + 0.2 and high - 0.2 < part.max() <= high
    blind = task.baseline
    assert blind is not None
    stream = zoned()
    for _ in range(400):
        seen = stream.step(blind(stream.observation))
        begun = seen.observation[seen.done, 25]
        places = np.flatnonzero(seen.done)
        stats = stream.take_stats()
        for place, distance in zip(places, begun, strict=True):
            bounds = zone_bounds(PRESETS["hard" if place < 8 else "shipped"])
            assert bounds[0][0] <= distance <= bounds[int(stats.figures["zone"]) - 1][1]
    assert stats.figures == {"zone": 4.0}


def test_episodes_of_several_zones_are_flown_again_to_the_same_bits() -> None:
    generator = np.random.default_rng(0)
    stream, mixed = zoned(), 0
    for step in range(240):
        # half of the drones turn on the spot until their time is over: their zones are long past
        actions = np.where(np.arange(12) % 2, 15 + step % 5, generator.integers(10, size=12))
        stream.step(actions)
        state = stream.state()
        zones = np.searchsorted(state["progression/first_ids"], state["ids"], side="right")
        if step % 30 == 29:
            mixed += len(np.unique(zones)) > 1
            copy = zoned()
            copy.restore({name: array.copy() for name, array in state.items()})
            np.testing.assert_array_equal(copy.observation, stream.observation)
            for name, array in copy.state().items():
                np.testing.assert_array_equal(array, state[name], err_msg=name)
    assert mixed >= 3
    for _ in range(60):
        actions = generator.integers(25, size=12)
        one, other = stream.step(actions), copy.step(actions)
        np.testing.assert_array_equal(one.observation, other.observation)
        np.testing.assert_array_equal(one.reward, other.reward)


def test_without_a_curriculum_nothing_is_added_to_checkpoints_and_curves() -> None:
    stream = EpisodeStream(make_task("navigation").make(2, 0))
    assert not [name for name in stream.state() if "progression" in name]
    assert "zone" not in stream.take_stats().row()


def test_distributed_training_takes_late_commands_and_no_curriculum() -> None:
    from quarl.train.actorq.plan import make_plan

    typed = ["--task", "navigation", "--method", "dqn"]
    with refused(TaskError, "curriculum_not_distributed"):
        make_plan(cli.options("actorq", [*typed, "--curriculum"]))
    plan = make_plan(cli.options("actorq", [*typed, "--command-latency", "0.2"]))
    assert plan.make_task().environment.settings["latency"] == {"kind": "fixed", "values_s": [0.2]}
    assert plan.request.settings["task"]["settings"]["latency"]["values_s"] == [0.2]
