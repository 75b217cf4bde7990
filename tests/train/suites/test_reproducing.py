"""One seed gives one policy, on discrete and continuous tasks alike; an evaluation does not depend on its batch."""

from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.train import __main__ as command
from quarl.train.suites.make import make_task
from quarl.train.suites.names import resolve
from tests.train import small_runs
from tests.train.suites.test_suites import installed

ROLLOUT = ["--set", "environments=8", "--set", "rollout_steps=16", "--set", "minibatch=32"]
REPLAY = [*ROLLOUT, "--set", "learning_starts=128", "--set", "updates=4"]
RUNS = [
    ("acrobot", "a2c", ["--set", "environments=8", "--set", "rollout_steps=16"]),
    ("pendulum", "ppo", ROLLOUT),
    ("mountaincarcontinuous", "ddpg", [*REPLAY, "--set", "critic_hidden=[16]"]),
    ("dm_control,cartpole_balance", "d4pg", [*REPLAY, "--set", "critic_hidden=[16]"]),
    ("pendulum", "td3", [*REPLAY, "--set", "critic_hidden=[16]"]),
    ("pendulum", "sac", [*REPLAY, "--set", "critic_hidden=[16]"]),
]


def train(output: Path, task: str, method: str, options: list[str], seed: int) -> dict[str, np.ndarray]:
    few = ["--steps", "512", "--evaluate-every", "512", "--evaluate-episodes", "1", "--final-episodes", "1"]
    small = ["--model", "16,16", "--quiet", "--seed", str(seed), "--output-path", str(output)]
    assert command.main(["--task", task, "--method", method, *few, *small, *options]) == 0
    return dict(Bundle.load(output).weights())


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method", "options"), RUNS, ids=[f"{run[0]}-{run[1]}" for run in RUNS])
def test_one_seed_gives_one_policy(
    task: str, method: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(task)
    monkeypatch.setattr("quarl.train.runs.results.RECORDED_EPISODES", 1)
    one, two = (train(tmp_path / name, task, method, options, 5) for name in ("one", "two"))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert Bundle.load(tmp_path / "one").spec.provenance["task"] == resolve(task).canonical
    assert small_runs.curve(tmp_path / "one") == small_runs.curve(tmp_path / "two")
    assert len({(tmp_path / name / "calibration.npz").read_bytes() for name in ("one", "two")}) == 1
    if method == "ppo":
        other = train(tmp_path / "other", task, method, options, 6)
        assert any((array != one[name]).any() for name, array in other.items())


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "lunarlander", "dm_control,reacher_hard"])
def test_an_evaluation_of_more_episodes_begins_with_the_same_returns(name: str) -> None:
    task = make_task(installed(name))

    def decide(observation: np.ndarray) -> np.ndarray:
        if task.is_discrete:
            return (observation[:, 2] > 0).astype(np.int64)
        return np.tanh(observation[:, : task.outputs]).astype(np.float32)

    few, many = (task.evaluate(decide, episodes, 9, "") for episodes in (2, 5))
    assert many.returns[:2] == few.returns
    assert len(set(many.returns)) > 1
    assert many.episodes == 5
