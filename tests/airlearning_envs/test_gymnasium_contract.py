"""What Gymnasium and its users may do with the environments: check, seed, pickle and copy them."""

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

from quarl.airlearning_envs import gym_env
from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator
from quarl.airlearning_envs.simulators.simulator import Call
from quarl.train.suites.navigation import DepthEpisodes, NavigationEpisodes

IDS = ["AirLearning/Navigation-v0", "AirLearning/NavigationContinuous-v0", "AirLearning/NavigationDepth-v0"]
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
