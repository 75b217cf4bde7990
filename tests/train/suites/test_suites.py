"""The suites as tasks: what they show and take, that an episode is a function of (seed, number, actions), limits."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from quarl.policy.spec import ContinuousHead
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.errors import TaskError
from quarl.train.suites.gymnasium_task import refuse_spaces
from quarl.train.suites.make import make_task
from quarl.train.suites.names import missing_packages, resolve
from quarl.train.suites.task import Task
from tests.refusals import refused

# task, observation, actions, s between decisions
TASKS = [
    ("bipedalwalker", 24, 4, 0.02),
    ("lunarlander", 8, 4, 0.02),
    ("halfcheetah", 26, 6, 0.0165),
    ("walker2d", 22, 6, 0.0165),
    ("hopper", 15, 3, 0.0165),
    ("ant", 28, 8, 0.0165),
    ("HalfCheetah-v5", 17, 6, 0.05),
    ("Walker2d-v5", 17, 6, 0.008),
    ("dm_control,cartpole_balance", 5, 1, 0.01),
    ("dm_control,walker_stand", 24, 6, 0.025),
    ("dm_control,reacher_hard", 6, 2, 0.02),
    ("pong", 84 * 84 * 4, 6, 4 / 60),
    ("breakout", 84 * 84 * 4, 4, 4 / 60),
]


def installed(name: str) -> str:
    suite = resolve(name).suite
    if missing_packages(suite):
        pytest.skip(f"{suite.value} is not installed; type make suites")
    return name


def random_actions(task: Task, generator: np.random.Generator, count: int) -> np.ndarray:
    if isinstance(task.head, ContinuousHead):
        return generator.uniform(task.head.low, task.head.high, (count, task.outputs)).astype(np.float32)
    return generator.integers(0, task.outputs, count)


@pytest.mark.parametrize(("name", "observation", "actions", "period"), TASKS)
def test_spaces_and_period(name: str, observation: int, actions: int, period: float) -> None:
    task = make_task(installed(name))
    assert (task.observation_size, task.outputs) == (observation, actions)
    assert task.control_period_s == pytest.approx(period)
    assert task.name == resolve(name).canonical
    assert task.presets == ("",)


@pytest.mark.parametrize("name", [row[0] for row in TASKS])
def test_an_episode_has_the_same_bits_after_others_and_in_another_place(name: str) -> None:
    task = make_task(installed(name))
    generator = np.random.default_rng(0)
    actions = [random_actions(task, generator, 1) for _ in range(60)]

    def play(environments: int, place: int, before: int) -> tuple[np.ndarray, np.ndarray]:
        episodes = task.make(environments, 11)
        ids = np.arange(50, 50 + environments)
        episodes.reset(np.ones(environments, np.bool_), ids)
        for _ in range(before):
            result = episodes.step(random_actions(task, generator, environments))
            ended = result.terminated | result.truncated
            if ended.any():
                episodes.reset(ended, ids)
        ids[place] = 7
        seen = [episodes.reset(np.arange(environments) == place, ids)[place].copy()]
        rewards = []
        for action in actions:
            result = episodes.step(np.repeat(action, environments, axis=0))
            seen.append(result.observation[place].copy())
            rewards.append(result.reward[place])
            if result.terminated[place] or result.truncated[place]:
                break
            others = (result.terminated | result.truncated) & (np.arange(environments) != place)
            if others.any():
                episodes.reset(others, ids)
        return np.array(seen), np.array(rewards)

    alone = play(1, 0, 0)
    after = play(2, 1, 80)
    np.testing.assert_array_equal(after[0], alone[0])
    np.testing.assert_array_equal(after[1], alone[1])
    assert len(alone[0]) > 5 and np.isfinite(alone[0].astype(np.float64)).all()


ARENAS = {"arenas": {"hard": 0.5, "shipped": 0.5}}
RESTORED = [
    ("CartPole-v1", {}), ("CartPole-v1", {"looks": 4}), ("navigation", {**ARENAS, "settings": {"wind_m_s": 1.0}}),
    ("navigation-depth", ARENAS), ("bipedalwalker", {}), ("walker2d", {}), ("HalfCheetah-v5", {}),
    ("dm_control,walker_stand", {}), pytest.param("breakout", {}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), RESTORED)
def test_a_stream_is_restored_by_flying_again(name: str, options: dict[str, Any]) -> None:
    task = make_task(installed(name), None, options)
    generator, lost = np.random.default_rng(3), 0
    stream = EpisodeStream(task.make(3, 4))
    for _ in range(120):
        lives = stream.step(random_actions(task, generator, 3)).life_lost
        lost += 0 if lives is None else int(lives.sum())
    assert (lost > 2) == (name == "breakout")
    other = EpisodeStream(task.make(3, 4))
    other.restore({key: array.copy() for key, array in stream.state().items()})
    np.testing.assert_array_equal(other.observation, stream.observation)
    for _ in range(30):
        action = random_actions(task, generator, 3)
        one, two = stream.step(action), other.step(action)
        for field in ("observation", "reward", "terminated", "done"):
            np.testing.assert_array_equal(getattr(one, field), getattr(two, field), err_msg=field)
    np.testing.assert_array_equal(stream.state()["returns"], other.state()["returns"])


@pytest.mark.parametrize(("name", "limit"), [("dm_control,cartpole_balance", 1000), ("halfcheetah", 1000)])
def test_a_time_limit_truncates_and_does_not_terminate(name: str, limit: int) -> None:
    task = make_task(installed(name))
    episodes = task.make(1, 0)
    episodes.reset(np.ones(1, np.bool_), np.arange(1))
    action = np.zeros((1, task.outputs), np.float32)
    for step in range(1, limit + 1):
        result = episodes.step(action)
        assert not result.terminated[0]
        assert result.truncated[0] == (step == limit)


@pytest.mark.parametrize("name", ["dm_control,cartpole_balance", "HalfCheetah-v5", "bipedalwalker", "pendulum"])
def test_actions_beyond_the_bounds_are_clipped(name: str) -> None:
    task = make_task(installed(name))
    assert isinstance(task.head, ContinuousHead)
    seen = []
    for action in (np.array([task.head.high], np.float32), np.full((1, task.outputs), 1e3, np.float32)):
        episodes = task.make(1, 0)
        episodes.reset(np.ones(1, np.bool_), np.arange(1))
        result = [episodes.step(action) for _ in range(3)][-1]
        seen.append((result.observation.tolist(), result.reward.tolist()))
    assert seen[0] == seen[1]


def test_observations_of_the_control_suite_are_its_entries_in_its_order() -> None:
    task = make_task(installed("dm_control,walker_stand"))
    assert [(part.name, part.shape) for part in task.observation] == [
        ("orientations", (14,)),
        ("height", (1,)),
        ("velocity", (9,)),
    ]
    from quarl.train.suites.deepmind import import_suite

    environment = import_suite().load("walker", "stand", task_kwargs={"random": 0})
    episodes = task.make(1, 0)
    seen = episodes.reset(np.ones(1, np.bool_), np.arange(1))[0]
    words = np.random.SeedSequence([0, 0]).generate_state(4)
    environment.task.random.seed(words)
    entries = environment.reset().observation
    np.testing.assert_array_equal(seen, np.concatenate([np.ravel(entry) for entry in entries.values()], dtype="f4"))


def test_loading_is_silent_and_leaves_no_files(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("halfcheetah", "HalfCheetah-v5", "dm_control,cartpole_balance"):
        make_task(installed(name)).make(1, 0).reset(np.ones(1, np.bool_), np.arange(1))
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_task_is_refused() -> None:
    with refused(TaskError, "task", shows=["dm_control,walker_stand"]):
        make_task(installed("dm_control,walker_stnd"))
    endless = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    with pytest.raises(TaskError, match="actions bounded within"):
        refuse_spaces("Boundless-v0", gymnasium.spaces.Box(-1, 1, (2,), np.float32), endless)
