"""The study of memories: what is told is true, and when a mover was last seen is counted."""

from __future__ import annotations

import numpy as np

from airlearning_envs.config import preset
from airlearning_envs.flights import blind_policy, fly
from airlearning_envs.task import NavigationTask
from bench.study.learning.memory import EXPERIMENT, grid
from bench.study.measures.movers import NEVER, TOLD, Sightings, surroundings, told, told_task
from train.suites.episodes import EpisodeStream


def test_what_is_told_is_where_the_nearest_obstacles_are() -> None:
    core = NavigationTask(preset("hard"), 16)
    observation = core.reset(np.arange(16), 3)
    rows = told(core, observation)
    assert rows.shape == (16, 32 + 5 * TOLD) and rows.dtype == np.float32 and np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[:, :32], observation)
    ahead, right, size = rows[:, 32:40], rows[:, 40:48], rows[:, 64:72]
    place, _, sizes, _ = surroundings(core)
    gaps = np.nan_to_num(np.hypot(*place) - sizes, nan=np.inf)
    np.testing.assert_allclose(np.hypot(ahead, right)[:, 0] - size[:, 0], gaps.min(axis=1), atol=1e-4)
    # Straight ahead and near: the middle rays read its distance.
    met = (np.abs(right[:, 0]) < 0.3) & (ahead[:, 0] > 0) & (ahead[:, 0] < 15)
    for drone in np.flatnonzero(met):
        assert observation[drone, 11:13].min() <= ahead[drone, 0] - size[drone, 0] + 0.5


def test_velocities_that_are_told_are_those_that_are_flown() -> None:
    core = NavigationTask(preset("hard"), 8)
    core.reset(np.arange(8), 5)
    simulator = core.simulator
    before = simulator.obstacles.centre.copy()
    _, velocity, _, slots = surroundings(core)
    cosine, sine = simulator.heading
    core.step(np.full(8, 4))
    moved = (simulator.obstacles.centre - before)[:, :, : slots.movers] / core.config.control_period_s
    ahead = cosine[:, None] * moved[0] + sine[:, None] * moved[1]
    straight = np.isfinite(ahead) & (np.abs(ahead - velocity[0, :, : slots.movers]) < 1e-3)
    assert straight.sum() > 0.8 * np.isfinite(ahead).sum()  # the rest met a wall and turned back


def test_a_task_that_tells_plays_the_same_episodes() -> None:
    task = told_task()
    assert task.observation_size == 72 and task.presets == ("hard",)
    stream = EpisodeStream(task.make(4, 11))
    for _ in range(30):
        stream.step(blind_policy(stream.observation[:, :32]))
    assert np.isfinite(stream.observation).all()
    judged = task.evaluate(lambda rows: blind_policy(rows[:, :32]), 40, 7, "hard")
    assert judged.success == fly(preset("hard"), blind_policy, 40, 7).success_rate()


def test_flights_are_counted_by_how_they_ended() -> None:
    seen = Sightings(60)
    flights = fly(preset("hard"), blind_policy, 60, 7, batch=20, observe=seen.look)
    found = seen.measures(flights)
    assert found["movers"] == found["in_view"] + found["recent"] + found["unseen"] > 0
    assert found["movers"] + found["standing"] + found["otherwise"] == int((~flights.success).sum())
    assert (seen.looks_ago < NEVER).sum() > 30  # most have seen the nearest one at some time
    assert found["in_view"] > 0


def test_the_grid_has_the_committed_policies_and_the_one_that_is_told() -> None:
    conditions = grid(None, "navigation")  # type: ignore[arg-type]
    assert conditions == [{}, {"policy": "II-looks-4"}, {"policy": "GRU"}, {"policy": "told"}]
    assert EXPERIMENT.reference({"policy": "GRU"}) == {}
