"""The Gymnasium environments: registration, autoreset, pictures; they are checked, seeded, pickled and copied."""

from __future__ import annotations

import copy
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence

from quarl.airlearning_envs import gym_env, register
from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.layout import build_layouts
from quarl.airlearning_envs.rules import EndCause
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator
from quarl.airlearning_envs.simulators.simulator import Call
from quarl.train.suites.navigation import DepthEpisodes, NavigationEpisodes
from tests.refusals import refused

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
    with refused(SettingsError, "unknown_render_mode", render_mode="human"):
        gym_env.NavigationEnv(render_mode="human")
    with refused(SettingsError, "unknown_preset", name="soft"):
        gym_env.NavigationEnv(preset="soft")
    with refused(SettingsError, "unknown_setting", name="windy"):
        gym_env.NavigationEnv(windy=True)
    with refused(SettingsError, "many_seeds", seed=[1, 2]):
        gym_env.NavigationVectorEnv(2).reset(seed=[1, 2])
    with refused(SettingsError, "wrong_reset_mask"):
        gym_env.NavigationVectorEnv(2).reset(seed=1, options={"reset_mask": np.zeros(2, bool)})
    with refused(SettingsError, "seed_with_reset_mask"):
        gym_env.NavigationVectorEnv(2).reset(seed=1, options={"reset_mask": np.array([True, False])})


EVERYTHING: dict[str, Any] = {
    "latency": {"kind": "uniform", "values_s": [0, 0.3]}, "range_noise_m": 0.1, "gust_m_s": 1.0, "gain_spread": 0.1,
    "altitude_spread_m": 0.5,
}  # fmt: skip
"""Settings under which every part of the simulator has a state."""


def pickled(original: Any) -> Any:
    pickle = importlib.import_module("pickle")
    return pickle.loads(pickle.dumps(original))


COPIES = pytest.mark.parametrize("duplicate", [pickled, copy.deepcopy])


def single(name: str, **settings: Any) -> gym.Env[Any, Any]:
    return gym.make(name, **EVERYTHING, **settings)


def vector(name: str) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.make_vec(name, num_envs=4, **EVERYTHING)


def steps(env: Any, actions: list[Any]) -> list[Any]:
    """Everything that an environment returns; a single one is reset where an episode ends."""
    seen: list[Any] = []
    for action in actions:
        seen.append(env.step(action))
        if isinstance(env, gym.Env) and (seen[-1][2] or seen[-1][3]):
            seen.append(env.reset())
    return seen


@pytest.mark.parametrize("name", IDS)
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space.*")
def test_gymnasiums_checker_finds_nothing(name: str, recwarn: pytest.WarningsRecorder) -> None:
    check_env(gym.make(name, render_mode="rgb_array").unwrapped)
    complaints = [str(w.message) for w in recwarn if "symmetric and normalized" not in str(w.message)]
    assert not complaints


@pytest.mark.parametrize("make", [single, vector])
@pytest.mark.parametrize("name", IDS)
def test_a_seed_fixes_the_flight(make: Callable[[str], Any], name: str) -> None:
    def rollout() -> list[Any]:
        env = make(name)
        env.action_space.seed(5)
        return [env.reset(seed=3), *steps(env, [env.action_space.sample() for _ in range(60)])]

    assert data_equivalence(rollout(), rollout(), exact=True)


@COPIES
@pytest.mark.parametrize("make", [single, vector])
@pytest.mark.parametrize("name", IDS)
def test_a_copy_of_an_environment_continues_as_its_original(
    make: Callable[[str], Any], name: str, duplicate: Callable[[Any], Any]
) -> None:
    env = make(name)
    env.action_space.seed(1)
    env.reset(seed=0)
    steps(env, [env.action_space.sample() for _ in range(6)])
    other = duplicate(env)
    actions = [env.action_space.sample() for _ in range(60)]
    seen = steps(env, actions)
    assert data_equivalence(seen, steps(other, actions), exact=True)
    assert data_equivalence(env.reset(seed=7), other.reset(seed=7), exact=True)
    assert data_equivalence(steps(env, actions[:9]), steps(other, actions[:9]), exact=True)


@COPIES
def test_a_copy_draws_the_same_pictures(duplicate: Callable[[Any], Any]) -> None:
    env = single(IDS[0], render_mode="rgb_array")
    env.reset(seed=0)
    env.step(0)
    env.render()
    other = duplicate(env)
    for each in (env, other):
        each.step(5)
    assert np.array_equal(np.asarray(env.render()), np.asarray(other.render()))


@COPIES
@pytest.mark.parametrize("kind", [NavigationEpisodes, DepthEpisodes])
def test_a_copy_of_a_training_batch_continues_as_its_original(
    kind: type[NavigationEpisodes], duplicate: Callable[[Any], Any]
) -> None:
    episodes = kind([(PRESETS[preset].with_settings(EVERYTHING), 3) for preset in ("hard", "shipped")], seed=2)
    script = np.random.default_rng(3).integers(0, 25, (40, 6))
    episodes.reset(np.ones(6, bool), np.arange(6))
    for actions in script[:5]:
        episodes.step(actions)
    other = duplicate(episodes)
    for actions in script:
        wanted, got = episodes.step(actions), other.step(actions)
        assert data_equivalence(vars(got), vars(wanted), exact=True)
        if (ended := wanted.terminated | wanted.truncated).any():
            ours, theirs = (each.reset(ended, np.arange(6, 12)) for each in (episodes, other))
            assert np.array_equal(ours, theirs)


@COPIES
def test_a_copy_of_a_flight_follows_its_own_calls(duplicate: Callable[[Any], Any]) -> None:
    flight = Flight.hovering(PRESETS["easy"], 2)
    integrator = Integrator(flight, 0.125)
    parts = flight, integrator, CallsInForce(integrator, np.array([0.125, 0.25], np.float32), delays_differ=True)

    def fly(flight: Flight, integrator: Integrator, in_force: CallsInForce) -> list[bytes]:
        in_force.begin([Call(np.array([[4.0, -2.0], [1.0, 0.0], [0.5, -1.0]], np.float32))])
        for k in range(2):
            integrator.step(in_force.goal(k))
        return [array.tobytes() for array in vars(flight).values()]

    fly(*parts)
    other, before = duplicate(parts), flight.position.copy()
    flown = fly(*other)
    assert np.array_equal(flight.position, before), "the original stays"
    assert fly(*parts) == flown


def kept_arrays(owner: Any, path: str, seen: dict[int, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every array once that is kept by an object, by its attributes, by theirs and so on, with the path to it."""
    if id(owner) in seen:
        return
    seen[id(owner)] = owner
    if isinstance(owner, np.ndarray):
        yield path, owner
    parts = owner.items() if isinstance(owner, dict) else getattr(owner, "__dict__", {}).items()
    for key, part in itertools.chain(parts, enumerate(owner) if isinstance(owner, (list, tuple)) else ()):
        if not isinstance(part, type) and not callable(part):
            yield from kept_arrays(part, f"{path}.{key}", seen)


@pytest.mark.parametrize("make", [single, vector])
@pytest.mark.parametrize("name", IDS)
def test_no_part_keeps_a_view_of_another_ones_array(make: Callable[[str], Any], name: str) -> None:
    """A copy makes an array of its own of a view, which then no longer follows."""
    env = make(name).unwrapped
    env.reset(seed=0)
    env.action_space.seed(1)
    steps(env, [env.action_space.sample() for _ in range(12)])
    arrays = list(kept_arrays(env, type(env).__name__, {}))
    assert len(arrays) > 60
    assert not [(a, b) for (a, x), (b, y) in itertools.combinations(arrays, 2) if np.may_share_memory(x, y)]


@pytest.mark.parametrize("name", IDS)
def test_the_spec_reports_the_step_limit(name: str) -> None:
    for env, limit in (
        (gym.make(name), 200),
        (gym.make(name, max_steps=7), 7),
        (gym.make(name, max_episode_steps=5), 5),
        (gym.make_vec(name, num_envs=2), 200),
        (gym.make_vec(name, num_envs=2, max_steps=7), 7),
        (gym.make_vec(name, num_envs=2, max_episode_steps=5), 5),
    ):
        assert env.spec is not None and env.spec.max_episode_steps == limit
        make = gym.make if isinstance(env, gym.Env) else gym.make_vec
        again = make(env.spec)
        assert again.spec is not None and again.spec.max_episode_steps == limit
    assert not isinstance(gym.make(name), gym.wrappers.TimeLimit), "the environment truncates by itself"
    assert gym_env.NavigationEnv().spec is None


@pytest.mark.parametrize("limit", ["max_steps", "max_episode_steps"])
def test_a_vector_environment_truncates_at_either_limit(limit: str) -> None:
    options: dict[str, Any] = {"preset": "easy", limit: 3}
    envs = gym.make_vec(IDS[0], num_envs=2, **options)
    envs.reset(seed=0)
    truncated = [envs.step(np.array([19, 24]))[3].tolist() for _ in range(3)]
    assert truncated == [[False, False], [False, False], [True, True]]
