"""The Gymnasium face: registration, autoreset, pictures."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from quarl.airlearning_envs import gym_env, register
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.layout import build_layouts
from quarl.airlearning_envs.rules import EndCause

IDS = ["AirLearning/Navigation-v0", "AirLearning/NavigationContinuous-v0", "AirLearning/NavigationDepth-v0"]
MODES = ["NextStep", "SameStep", "Disabled"]


def test_registering_twice_and_the_full_name() -> None:
    register()
    register()
    env = gym.make("quarl.airlearning_envs.gym_env:AirLearning/Navigation-v0", preset="easy", wind_m_s=1.5)
    assert env.unwrapped.config.arena_m == 50.0 and env.unwrapped.config.wind_m_s == 1.5  # type: ignore[attr-defined]


def test_info_tells_the_end() -> None:
    env = gym.make(IDS[0], preset="hard")
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, terminated, truncated, info = env.step(0)
        ended = terminated or truncated
    assert set(info) == {
        "success", "cause", "flight_time_s", "distance_m", "energy_j", "goal_distance_m", "episode_id",
    }  # fmt: skip
    assert isinstance(info["cause"], EndCause) and info["cause"] is not EndCause.NONE
    assert info["success"] == (info["cause"] is EndCause.GOAL)
    _, info = env.reset()
    assert info["episode_id"] == 1 and info["flight_time_s"] == 0.0
    _, info = env.reset(options={"episode_id": 9})
    assert info["episode_id"] == 9


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("mode", MODES)
def test_vector_spaces_and_autoreset(name: str, mode: str) -> None:
    envs = gym.make_vec(name, num_envs=6, autoreset_mode=mode)
    assert envs.metadata["autoreset_mode"].value == mode
    envs.action_space.seed(1)
    observation, info = envs.reset(seed=2)
    assert envs.observation_space.contains(observation)
    assert info["episode_id"].tolist() == list(range(6)) and info["_episode_id"].all()
    ended, next_id = np.zeros(6, bool), 6
    for _ in range(80):
        was, ids = ended, info["episode_id"]
        actions = envs.action_space.sample()
        observation, reward, terminated, truncated, info = envs.step(actions)
        ended = terminated | truncated
        assert envs.observation_space.contains(observation)
        assert reward.shape == ended.shape == (6,)
        if mode == "NextStep" and was.any():
            assert not reward[was].any() and not ended[was].any()
            assert (info["episode_id"][was] == np.arange(next_id, next_id + was.sum())).all()
            next_id += int(was.sum())
        if mode == "SameStep" and ended.any():
            assert (info["_final_obs"] == ended).all()
            for row in np.flatnonzero(ended):
                assert envs.single_observation_space.contains(info["final_obs"][row])
                assert info["final_info"]["cause"][row] != EndCause.NONE
                assert info["final_info"]["episode_id"][row] == ids[row] and info["cause"][row] == EndCause.NONE
            assert (info["episode_id"][ended] == np.arange(next_id, next_id + ended.sum())).all()
            next_id += int(ended.sum())
        if mode == "Disabled" and ended.any():
            observation, info = envs.reset(options={"reset_mask": ended})
            assert (info["cause"] == EndCause.NONE).all()
            next_id += int(ended.sum())
            ended = np.zeros(6, bool)
    assert next_id > 8, "some episodes have ended"


@pytest.mark.parametrize("mode", MODES[:2])
def test_the_vector_environment_flies_the_single_ones_episodes(mode: str) -> None:
    """Row by row, every transition is the one that the single environment makes in the same episode."""
    envs, single = gym.make_vec(IDS[0], num_envs=4, autoreset_mode=mode), gym.make(IDS[0]).unwrapped
    generator = np.random.default_rng(3)
    script = generator.integers(0, 25, (70, 4))
    observation, info = envs.reset(seed=8)
    flights: dict[int, list[Any]] = {k: [(None, observation[k], 0.0)] for k in range(4)}
    for actions in script:
        ids = info["episode_id"]
        observation, reward, _, _, info = envs.step(actions)
        for row in range(4):
            now = int(info["episode_id"][row])
            if now == ids[row]:
                flights[now].append((actions[row], observation[row], reward[row]))
                continue
            if mode == "SameStep":
                flights[int(ids[row])].append((actions[row], info["final_obs"][row], reward[row]))
            flights[now] = [(None, observation[row], 0.0)]
    single.reset(seed=8)
    assert len(flights) > 5
    for episode, transitions in flights.items():
        seen, _ = single.reset(options={"episode_id": episode})
        assert np.array_equal(seen, transitions[0][1])
        for action, wanted, wanted_reward in transitions[1:]:
            seen, got_reward, *_ = single.step(action)
            assert np.array_equal(seen, wanted) and got_reward == wanted_reward


def test_a_drone_reset_by_hand_is_not_reset_again() -> None:
    envs = gym.make_vec(IDS[0], num_envs=8, autoreset_mode="NextStep")
    envs.reset(seed=2)
    ended = np.zeros(8, bool)
    while not ended.any():
        _, _, terminated, truncated, _ = envs.step(np.zeros(8, np.int64))
        ended = terminated | truncated
    _, begun = envs.reset(options={"reset_mask": ended})
    _, _, _, _, info = envs.step(np.zeros(8, np.int64))
    assert info["episode_id"].tolist() == begun["episode_id"].tolist()
    assert (info["flight_time_s"][ended] > 0.0).all()


def test_without_autoreset_the_curriculum_counts_an_episode_once() -> None:
    envs = gym_env.NavigationVectorEnv(8, preset="easy", curriculum=True, autoreset_mode="Disabled")
    envs.reset(seed=0)
    assert envs.curriculum is not None
    counted: list[bool] = []

    def record(successes: Any) -> bool:
        counted.extend(successes)
        return False

    envs.curriculum.record = record  # type: ignore[method-assign]
    for _ in range(210):
        _, _, terminated, truncated, _ = envs.step(np.zeros(8, np.int64))
    assert (terminated | truncated).all() and len(counted) == 8


def test_curriculum_in_the_vector_environment() -> None:
    envs = gym.make_vec(IDS[0], num_envs=64, preset="easy", curriculum=True, autoreset_mode="SameStep")
    observation, info = envs.reset(seed=0)
    assert observation[:, 25].max() <= 16.0 + 1e-3 and (info["zone"] == 0).all()
    from quarl.airlearning_envs.flights import blind_policy

    for _ in range(600):
        observation, *_, info = envs.step(blind_policy(observation))
        if info["zone"][0]:
            break
    assert info["zone"][0] == 1, "blind flight masters the empty arena's first zone"


def test_depth_picture_of_a_wall_and_a_cylinder() -> None:
    env = gym.make(IDS[2], preset="shipped", static_obstacles=[1, 1]).unwrapped
    env.reset(seed=0)
    simulator = env.core.simulator  # type: ignore[attr-defined]
    layout = build_layouts(env.config, 0, np.array([0]))  # type: ignore[attr-defined]
    layout.start[:], layout.yaw[:], layout.size[:] = 0.0, 0.0, 1.0
    layout.centre[:, 0, 0] = (8.0, 0.0)
    simulator.begin(np.array([0]), layout)
    picture = simulator.depth(84, 84, 20.0)[0]
    assert picture.shape == (84, 84) and picture.dtype == np.float32
    middle = picture[41]
    assert middle[41] == pytest.approx(7.0, abs=0.02)  # the cylinder's front
    assert middle[0] == pytest.approx(17.5, abs=1e-3)  # planar depth of the wall ahead does not grow to the side
    assert middle[83] == pytest.approx(17.5, abs=1e-3)
    # 4 m above the floor and 1 m under the ceiling: row 83 looks down by 83/84, row 0 as far up.
    assert picture[83, 5] == pytest.approx(4.0 * 84 / 83, abs=1e-3)
    assert picture[0, 5] == pytest.approx(1.0 * 84 / 83, abs=1e-3)
    narrow = np.flatnonzero(middle < 10.0)
    # tan of the cylinder's half angle, asin(1/8): 0.126 * 42 pixels = 5.3 on each side.
    assert narrow.min() == 37 and narrow.max() == 46


def test_pictures() -> None:
    env = gym.make(IDS[0], render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(4):
        env.step(0)
    later = env.render()
    assert isinstance(first, np.ndarray) and isinstance(later, np.ndarray)
    assert first.shape == (640, 640, 3) and first.dtype == np.uint8
    assert first.std() > 20 and (first != later).any()
    envs = gym.make_vec(IDS[0], num_envs=2, render_mode="rgb_array")
    envs.reset(seed=0)
    pictures = envs.render()
    assert pictures is not None and len(pictures) == 2 and np.array_equal(pictures[0], first)
    assert gym.make(IDS[0]).unwrapped.render() is None


def test_wrong_use_is_refused() -> None:
    with pytest.raises(SettingsError, match="rgb_array"):
        gym_env.NavigationEnv(render_mode="human")
    with pytest.raises(SettingsError, match="easy, medium, shipped, hard"):
        gym_env.NavigationEnv(preset="soft")
    with pytest.raises(SettingsError, match="not known"):
        gym_env.NavigationEnv(windy=True)
    with pytest.raises(SettingsError, match="one integer"):
        gym_env.NavigationVectorEnv(2).reset(seed=[1, 2])
    with pytest.raises(SettingsError, match="reset_mask"):
        gym_env.NavigationVectorEnv(2).reset(seed=1, options={"reset_mask": np.zeros(2, bool)})
    with pytest.raises(SettingsError, match="a seed is for all drones"):
        gym_env.NavigationVectorEnv(2).reset(seed=1, options={"reset_mask": np.array([True, False])})
