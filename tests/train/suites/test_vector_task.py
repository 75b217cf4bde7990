"""Natively vectorised environments as tasks, in each of Gymnasium's three modes after an episode's end."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.bench.command_line import UsageError
from quarl.bench.study.bundles import task_of
from quarl.convert.__main__ import main as convert
from quarl.policy.bundle import Bundle
from quarl.train import evaluate
from quarl.train.runs.request import TRAINING_FOLDER
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.errors import EnvironmentFaultError, TaskError
from quarl.train.suites.make import make_task
from quarl.train.suites.names import Suite, resolve
from tests.refusals import refused
from tests.train.small_runs import train

MODULE = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Counting(VectorEnv):
    """Episode k of a batch is cut after 3 + k % 2 steps, or terminates then where k % 4 is 3.

    Observation [k, steps so far, offset of the seed]; the reward is 1 + the action.
    """

    live = 0

    def __init__(self, num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, finals=True, extra=0):
        self.num_envs, self.mode, self.finals = num_envs + extra, autoreset_mode, finals
        self.metadata = {"autoreset_mode": autoreset_mode, "render_fps": 20}
        self.single_observation_space, self.single_action_space = Box(0, 99, (3,), np.float32), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.state, self.ended = np.zeros((self.num_envs, 3), np.float32), np.zeros(self.num_envs, bool)
        Counting.live += 1

    def close_extras(self, **options):
        Counting.live -= 1

    def begin(self, mask):
        self.state[mask, 0] = np.arange(self.next, self.next + mask.sum())
        self.next += mask.sum()
        self.state[mask, 1], self.ended[mask] = 0, False

    def reset(self, *, seed=None, options=None):
        if options is None:
            super().reset(seed=seed)
            self.next, self.state[:, 2] = 0, self.np_random.integers(50)
        self.begin(np.ones(self.num_envs, bool) if options is None else options["reset_mask"])
        return self.state, {}

    def step(self, actions):
        assert actions.shape == (self.num_envs,)
        reward, moves, info = 1.0 + actions, np.ones(self.num_envs, bool), {}
        if self.mode is AutoresetMode.NEXT_STEP:
            moves = ~self.ended
            self.begin(self.ended.copy())
        else:
            assert not self.ended.any()
        self.state[moves, 1] += 1
        ended = self.state[:, 1] >= 3 + self.state[:, 0] % 2
        terminated = ended & (self.state[:, 0] % 4 == 3)
        self.ended = ended.copy()
        if self.mode is AutoresetMode.SAME_STEP and ended.any():
            final = np.full(self.num_envs, None)
            for row in np.flatnonzero(ended):
                final[row] = self.state[row].copy()
            info = {"final_obs": final, "_final_obs": ended} if self.finals else {}
            self.begin(ended)
        return self.state, np.where(moves, reward, 7.0), terminated, ended & ~terminated, info


def disabled(num_envs, autoreset_mode, extra=0):
    return Counting(num_envs, autoreset_mode, extra=extra)


def same_step(num_envs, finals=True):
    return Counting(num_envs, AutoresetMode.SAME_STEP, finals)


def next_step(num_envs):
    return Counting(num_envs)


def silent(num_envs):
    environments = Counting(num_envs)
    environments.metadata = {}
    return environments


def one(num_envs):
    return gymnasium.make("CartPole-v1")


def broken(num_envs):
    raise RuntimeError("no licence for this simulator")


gymnasium.register("Batch-v0", vector_entry_point=Counting)
'''
NAME = "vectorised_in_a_test"
PPO = ["--method", "ppo", "--set", "environments=8", "--set", "rollout_steps=16", "--set", "minibatch=64"]
SMALL = ["--policy", "I", "--quiet", *PPO, "--steps", "256"]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop(NAME, None)
    importlib.invalidate_caches()


def pushing(observation: np.ndarray) -> np.ndarray:
    return np.ones(len(observation), np.int64)


@pytest.mark.parametrize("function", ["disabled", "same_step", "Batch-v0"])
def test_a_step_shows_the_last_observation_and_the_reset_the_first(function: str) -> None:
    task = make_task(f"{NAME}:{function}")
    assert (task.control_period_s, task.outputs, task.observation_size, task.paired) == (0.05, 2, 3, False)
    stream = EpisodeStream(task.make(2, 0))  # episode 0 lasts 3 steps, 1 lasts 4, 2 lasts 3, 3 lasts 4 and terminates
    seen = []
    for _ in range(8):
        each = stream.step(np.array([0, 1]))
        numbers = each.observation[:, :2].tolist(), each.last_observation[:, :2].tolist()
        seen.append((*numbers, each.done.tolist(), each.terminated.tolist()))
    no = [False, False]
    assert seen == [
        ([[0, 1], [1, 1]], [[0, 1], [1, 1]], no, no),
        ([[0, 2], [1, 2]], [[0, 2], [1, 2]], no, no),
        ([[2, 0], [1, 3]], [[0, 3], [1, 3]], [True, False], no),
        ([[2, 1], [3, 0]], [[2, 1], [1, 4]], [False, True], no),
        ([[2, 2], [3, 1]], [[2, 2], [3, 1]], no, no),
        ([[4, 0], [3, 2]], [[2, 3], [3, 2]], [True, False], no),
        ([[4, 1], [3, 3]], [[4, 1], [3, 3]], no, no),
        ([[4, 2], [5, 0]], [[4, 2], [3, 4]], [False, True], [False, True]),
    ]
    stats = stream.take_stats()
    assert (stats.episodes, stats.total_length, stats.total_return) == (4, 3 + 4 + 3 + 4, 3 + 8 + 3 + 8)


def test_steps_after_a_reset_are_not_learned_from() -> None:
    stream = EpisodeStream(make_task(f"{NAME}:next_step").make(2, 0))
    seen = []
    for _ in range(6):
        each = stream.step(np.array([0, 1]))
        seen.append((each.observation[0, :2].tolist(), each.reward[0], each.done[0], each.terminated[0], each.cut[0]))
    assert seen == [
        ([0, 1], 1, False, False, False),
        ([0, 2], 1, False, False, False),
        ([0, 3], 1, True, False, True),  # a time limit: its bootstrap is V of that observation
        ([2, 0], 0, False, True, True),  # only a reset, whatever the environment says it is worth
        ([2, 1], 1, False, False, False),
        ([2, 2], 1, False, False, False),
    ]
    assert make_task(f"{NAME}:next_step").evaluate(pushing, 5, 0, "").returns == (6, 8, 6, 8, 6)


@pytest.mark.parametrize("function", ["disabled", "same_step", "next_step"])
def test_a_batch_is_judged_and_a_restored_one_begins_new_episodes(function: str) -> None:
    task = make_task(f"{NAME}:{function}")
    assert task.evaluate(pushing, 5, 0, "").returns == (6, 8, 6, 8, 6)
    one = EpisodeStream(task.make(3, 4))
    for _ in range(3):
        one.step(np.ones(3, np.int64))
    other = EpisodeStream(task.make(3, 4))
    other.restore(one.state())
    assert (other.observation[:, 1] == 0).all()
    assert other.observation[0, 2] != EpisodeStream(task.make(3, 4)).observation[0, 2]  # drawn from another seed
    for _ in range(12):
        other.step(np.ones(3, np.int64))
    assert other.take_stats().episodes >= 6


@pytest.mark.parametrize(("fault", "values"), [
    ({"observation": [0, 9, np.nan]}, (0, 1)),
    ({"reward": [1.0, np.nan, 0.0]}, (1, 1)),
    ({"reward": 1.0}, (0, 1)),
    ({"terminated": False}, (0, 1)),
    ({"info": None}, (0, 1)),
])  # fmt: skip
@pytest.mark.parametrize("function", ["disabled", "same_step", "next_step"])
def test_a_batch_that_returns_something_else_is_named(
    function: str, fault: dict, values: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes: Any = make_task(f"{NAME}:{function}").make(3, 0)
    episodes.reset(np.ones(3, bool), np.arange(3))
    names = "observation", "reward", "terminated", "truncated", "info"
    right = episodes.batch.step
    monkeypatch.setattr(
        episodes.batch, "step", lambda actions: tuple((dict(zip(names, right(actions), strict=True)) | fault).values())
    )
    if "observation" in fault:
        fault["observation"] = np.tile(np.float32(fault["observation"]), (3, 1))
    with pytest.raises(EnvironmentFaultError) as caught:
        episodes.step(np.zeros(3, np.int64))
    error = caught.value
    assert (error.values["episode"], error.values["step"], error.values["method"]) == (*values, "step")


def test_a_batch_that_never_ends_is_truncated_where_it_can_be() -> None:
    options = {"max_episode_steps": 2}  # episodes end after 3 steps or 4
    assert make_task(f"{NAME}:disabled", options=options).evaluate(pushing, 4, 0, "").returns == (4,) * 4
    assert make_task(f"{NAME}:disabled").notes and not make_task(f"{NAME}:disabled", options=options).notes
    # One whose own limit is the same is never cut: a step that only resets is none of the episode's.
    own = make_task(f"{NAME}:next_step", options={"max_episode_steps": 4})
    assert own.evaluate(pushing, 5, 0, "").returns == (6, 8, 6, 8, 6)
    for function in ("same_step", "next_step"):
        with pytest.raises(TaskError, match="max-episode-steps"):
            make_task(f"{NAME}:{function}", options=options).evaluate(pushing, 4, 0, "")


def test_batches_that_were_judged_in_are_closed() -> None:
    task = make_task(f"{NAME}:Batch-v0")
    task.evaluate(pushing, 5, 0, "")
    assert importlib.import_module(NAME).Counting.live == 0


def test_it_is_trained_and_judged_unpaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = f"{NAME}:next_step"
    assert train(tmp_path / "I", "--task", task, *SMALL, "--minutes", "0") == 0
    assert train(tmp_path / "I", "--task", task, *SMALL, "--resume") == 0
    spec = Bundle.load(tmp_path / "I").spec
    assert (spec.provenance["task"], spec.environment.id) == (task, task)
    assert "two policies cannot be compared" in str(spec.provenance["episodes"])
    assert (tmp_path / TRAINING_FOLDER / "I" / "checkpoint.safetensors").exists()
    report = tmp_path / "report.json"
    judging = ["--input-path", str(tmp_path / "I"), "--episodes", "6"]
    assert evaluate.main([*judging, "--output", str(report)]) == 0
    assert 3 <= json.loads(report.read_text())["results"][0]["mean_return"] <= 8
    assert convert(["--policy", str(tmp_path / "I"), "--bits", "8", "--format", "tflite"]) == 0
    assert evaluate.main([*judging, "--precision", "int8", "--compare", "--output", str(report)]) == 0
    assert json.loads(report.read_text())["minus_float"][0]["paired"] is False
    capsys.readouterr()
    with refused(UsageError, "unseeded_episodes"):
        task_of(Bundle.load(tmp_path / "I"))
    assert train(tmp_path / "J", "--task", task, *SMALL, "--workers", "2") == 2
    assert "stepped as one" in capsys.readouterr().err


def test_an_environment_is_vectorised_only_on_request(tmp_path: Path) -> None:
    name = resolve("vector, CartPole-v1")
    assert (name.canonical, name.suite, name.target) == ("vector,CartPole-v1", Suite.VECTOR, "CartPole-v1")
    assert make_task("CartPole-v1").paired and not make_task("vector,CartPole-v1").paired
    assert make_task("vector,AirLearning/Navigation-v0").outputs == make_task("navigation").outputs
    assert train(tmp_path / "I", "--task", "vector,CartPole-v1", *SMALL) == 0
    assert Bundle.load(tmp_path / "I").spec.environment.id == "CartPole-v1"
    words = ["--input-path", str(tmp_path / "I"), "--episodes", "3"]
    assert evaluate.main(words) == evaluate.main([*words, "--task", "CartPole-v1"]) == 0


@pytest.mark.parametrize(("task", "options", "words"), [
    (f"{NAME}:silent", {}, ["metadata['autoreset_mode']", "NEXT_STEP, SAME_STEP or DISABLED"]),
    (f"{NAME}:one", {}, ["a gymnasium.vector.VectorEnv"]),
    (f"{NAME}:broken", {}, ["RuntimeError: no licence for this simulator", f"{NAME}.py, line", "num_envs=N"]),
    (f"{NAME}:disabled", {"extra": 1}, ["an evaluation fewer", "--set environments=N"]),
    (f"{NAME}:Batch-v0", {"colour": "red"}, ["colour"]),
    (f"{NAME}:same_step", {"finals": False}, ["has no final_obs", "terminated"]),
    (f"{NAME}:absent", {}, ["neither a word"]),
    ("vector,Acrobot-v1", {}, ["no vector_entry_point", "Type --task Acrobot-v1"]),
    ("vector,NoSuchTask-v0", {}, ["neither a word"]),
    ("vector,no_such_module:Any-v0", {}, ["no module no_such_module in"]),
])  # fmt: skip
def test_what_is_no_batch_to_learn_from_is_refused(task: str, options: dict, words: list[str]) -> None:
    with pytest.raises(TaskError) as caught:
        stream = EpisodeStream(make_task(task, None, options).make(4, 0))
        for _ in range(4):
            stream.step(np.ones(4, np.int64))
    for word in words:
        assert word in str(caught.value)
