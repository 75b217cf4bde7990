"""Settings: presets, JSON round trip, refusals; and the curriculum."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from quarl.airlearning_envs.config import PRESETS, NavigationConfig, RewardStyle
from quarl.airlearning_envs.curriculum import Curriculum, zone_bounds, zone_config
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.task import CONTROL_PERIOD_S, NavigationTask
from tests.refusals import refused


def test_presets_are_air_learnings_arenas() -> None:
    arenas = {name: (c.arena_m, c.arena_height_m) for name, c in PRESETS.items()}
    assert arenas == {"easy": (50, 20), "medium": (60, 20), "shipped": (35, 5), "hard": (30, 10)}
    assert PRESETS["hard"].static_obstacles == (10, 19) and PRESETS["hard"].moving_obstacles == (6, 9)
    assert PRESETS["shipped"].static_obstacles == (7, 7) and PRESETS["shipped"].moving_obstacles == (0, 0)
    assert (PRESETS["hard"].spacing_m, PRESETS["shipped"].spacing_m) == (4.0, 2.0)
    for config in PRESETS.values():
        assert config.success_radius_m == 3.0 and config.body_radius_m == 0.3
        assert config.max_steps == 200 and config.control_period_s == CONTROL_PERIOD_S == 0.25
        assert config.latency is None and config.wind_m_s == config.range_noise_m == config.gain_spread == 0.0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_settings_survive_json(name: str) -> None:
    changed = PRESETS[name].with_settings(
        {"latency": {"kind": "empirical", "values_s": [0.01, 0.2]}, "reward_style": "air-learning", "wind_m_s": 2}
    )
    assert changed.reward_style is RewardStyle.AIR_LEARNING and changed.wind_m_s == 2.0
    assert NavigationConfig.from_settings(json.loads(json.dumps(changed.to_settings()))) == changed


def test_the_digest_tells_tasks_apart_by_every_setting_but_the_latency() -> None:
    hard = PRESETS["hard"]
    settings = hard.to_settings()
    changed = {hard.digest()}
    for name, value in settings.items():
        other: Any
        if isinstance(value, list):
            other = [value[0], value[1] * 1.01] if name.endswith("_m") else [value[0], value[1] + 1]
        elif isinstance(value, str):
            other = "air-learning"
        elif name == "control_period_s":
            other = 0.5
        else:
            other = None if value is None else value + 1 if isinstance(value, int) else value * 0.99 or 0.01
        if other is not None:
            changed.add(hard.with_settings({name: other}).digest())
    assert len(changed) == len(settings)  # one for each but the latency, and hard itself
    assert len({config.digest() for config in PRESETS.values()}) == len(PRESETS)
    assert all(re.fullmatch("[0-9a-f]{12}", digest) for digest in changed)


def test_the_digest_is_that_of_the_episodes() -> None:
    hard = PRESETS["hard"]
    for same in ({"latency": 0.2}, {"latency": {"kind": "empirical", "values_s": [0.01]}}, {"arena_m": 30}, {}):
        assert hard.with_settings(same).digest() == hard.digest()
    assert dataclasses.replace(hard, arena_m=int(hard.arena_m)).digest() == hard.digest()
    assert NavigationConfig.from_settings(json.loads(json.dumps(hard.to_settings()))).digest() == hard.digest()


def test_from_settings_takes_a_preset_and_changes() -> None:
    config = NavigationConfig.from_settings({"preset": "shipped", "latency": 0.4})
    assert config.arena_m == 35.0 and config.latency is not None and config.latency.longest_s == 0.4
    assert NavigationConfig.from_settings({}) == PRESETS["hard"]


@pytest.mark.parametrize(
    ("settings", "code", "about"),
    [
        ({"preset": "impossible"}, "unknown_preset", "impossible"),
        ({"gravity": 9.81}, "unknown_setting", "gravity"),
        ({"wind_m_s": -1}, "setting_out_of_range", "wind_m_s"),
        ({"range_dropout": float("nan")}, "setting_out_of_range", "range_dropout"),
        ({"wind_m_s": "strong"}, "wrong_setting_type", "wind_m_s"),
        ({"max_steps": 2.5}, "wrong_setting_type", "max_steps"),
        ({"max_steps": float("inf")}, "wrong_setting_type", "max_steps"),
        ({"moving_obstacles": 3}, "wrong_setting_type", "moving_obstacles"),
        ({"static_obstacles": "19"}, "wrong_setting_type", "static_obstacles"),
        ({"static_obstacles": [1.7, 3]}, "wrong_setting_type", "static_obstacles"),
        ({"static_obstacles": [1, float("inf")]}, "wrong_setting_type", "static_obstacles"),
        ({"reward_style": "none"}, "wrong_setting_type", "reward_style"),
        ({"goal_distance_m": [9, 8]}, "setting_not_a_range", "goal_distance_m"),
        ({"goal_distance_m": [30, 40]}, "goal_outside_arena", None),
        ({"goal_distance_m": [2, 10]}, "goal_outside_arena", None),
        ({"latency": 1e6}, "latency_too_long", None),
        ({"latency": {"kind": "normal", "values_s": [1.0, 3.0]}}, "latency_too_long", None),
        ({"altitude_m": 12.0}, "altitude_outside_arena", None),
        ({"altitude_m": 3.0, "altitude_spread_m": 3.0}, "altitude_outside_arena", None),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], code: str, about: str | None) -> None:
    with refused(SettingsError, code, name=about):
        NavigationConfig.from_settings(settings)


def test_zones_cut_the_goal_distance_into_four() -> None:
    assert zone_bounds(PRESETS["easy"]) == ((8, 16), (16, 24), (24, 32), (32, 40))
    assert zone_config(PRESETS["easy"], 2).goal_distance_m == (24, 32)
    assert zone_config(PRESETS["easy"], 2, inclusive=True).goal_distance_m == (8, 32)


def test_the_curriculum_advances_at_thirty_percent_of_a_full_window() -> None:
    curriculum = Curriculum(PRESETS["easy"])
    assert curriculum.config.goal_distance_m == (8, 16)
    assert not curriculum.record([True] * 999), "the window is not full"
    assert curriculum.record([False]), "999 of 1000 succeeded"
    assert curriculum.zone == 1
    assert not curriculum.record([True] * 999), "the window starts again with the zone"
    assert not curriculum.record([False] * 701 + [True] * 299), "29.9 %"
    assert curriculum.record([True]), "the oldest failure left: 300 of 1000"
    assert curriculum.zone == 2 and curriculum.config.goal_distance_m == (8, 32)
    curriculum.record([True] * 1000)
    assert curriculum.zone == 3 and not curriculum.record([True] * 2000), "there is no fifth zone"
    assert curriculum.config == PRESETS["easy"]


def test_a_restored_curriculum_counts_on() -> None:
    curriculum, copy = Curriculum(PRESETS["easy"], window=10), Curriculum(PRESETS["easy"], window=10)
    assert curriculum.record([True] * 10)
    curriculum.record([True, True] + [False] * 7)
    copy.restore(curriculum.state())
    assert copy.zone == 1 and not copy.record([False]), "2 of 10"
    copy.restore(curriculum.state())
    assert copy.record([True]), "3 of 10"
    copy.restore(Curriculum(PRESETS["easy"]).state())
    assert copy.zone == 0 and not copy.record([True] * 9), "an empty window"


def test_the_core_takes_over_a_zone_for_its_next_episodes() -> None:
    core = NavigationTask(zone_config(PRESETS["easy"], 0), 200)
    assert core.reset(seed=0)[:, 25].max() <= 16.0 + 1e-3
    core.use(zone_config(PRESETS["easy"], 3))
    assert core.reset(seed=0)[:, 25].min() >= 32.0 - 1e-3
    with pytest.raises(SettingsError, match="goal_distance_m only"):
        core.use(PRESETS["hard"])
