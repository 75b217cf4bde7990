"""The last observations as one: rows that shift, episodes that begin with zeros, and the same flown and trained."""

from pathlib import Path

import numpy as np
import pytest

from quarl.policy import pilot
from quarl.policy.bundle import Bundle
from quarl.policy.history import History
from quarl.policy.spec import Remembered
from quarl.train.deciding import float_decide
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.errors import TaskError
from quarl.train.suites.history import HistoryPolicy, as_single_observations, with_history
from quarl.train.suites.make import make_task
from tests.refusals import refused
from tests.train.small_runs import train

SMALL = [
    "--task",
    "navigation",
    "--history-length",
    "3",
    "--quiet",
    "--set",
    "environments=16",
    "--set",
    "rollout_steps=16",
]


def test_fields_are_rows_of_the_periods_and_bounds_go_with_them() -> None:
    plain, task = make_task("CartPole-v1"), make_task("CartPole-v1", options={"looks": 3})
    assert task.observation_size == 3 * plain.observation_size
    assert [field.shape for field in task.observation] == [(3, 1)] * 4
    assert {field.memory.of for field in task.observation if field.memory} == {Remembered.OBSERVATION}
    assert [field.row for field in task.observation] == list(plain.observation)
    assert plain.bounds is not None and task.bounds is not None
    assert task.bounds[1][:6].tolist() == [plain.bounds[1][0]] * 3 + [plain.bounds[1][1]] * 3


def test_an_episode_sees_what_its_history_makes() -> None:
    plain, task = make_task("CartPole-v1"), make_task("CartPole-v1", options={"looks": 3})
    one, other = EpisodeStream(plain.make(2, 7)), EpisodeStream(task.make(2, 7))
    histories = [History(task.observation) for _ in range(2)]
    seen = [history.observe(row).tolist() for history, row in zip(histories, one.observation, strict=True)]
    assert other.observation.tolist() == seen
    generator, ended = np.random.default_rng(1), 0
    for _ in range(60):
        actions = generator.integers(2, size=2)
        first, second = one.step(actions), other.step(actions)
        for place in range(2):
            before = histories[place].observe(first.last_observation[place]).tolist()
            assert second.last_observation[place].tolist() == before
            if first.done[place]:
                ended += 1
                histories[place].reset()
                assert second.observation[place].tolist() == histories[place].observe(first.observation[place]).tolist()
                assert second.observation[place].reshape(4, 3)[:, :2].tolist() == [[0.0, 0.0]] * 4
    assert ended > 2


def test_who_judges_brings_one_observation_a_period() -> None:
    task, seen = make_task("CartPole-v1", options={"looks": 2}), []

    def choose(whole: np.ndarray) -> np.ndarray:
        seen.append(whole.copy())
        return np.zeros(len(whole), np.int64)

    decide = as_single_observations(task, choose)
    assert isinstance(decide, HistoryPolicy)
    pilot.begin(decide, np.ones(1, bool))
    decide(np.arange(4.0)[None])
    decide(np.arange(4.0)[None] + 4)
    assert seen[1].reshape(4, 2).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    plain = make_task("CartPole-v1")
    assert as_single_observations(plain, task.evaluate) is task.evaluate  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, -1, 65, 2.0, True])
def test_what_no_length_is_and_pictures_have_their_own(length: object) -> None:
    with refused(TaskError, "task", shows=["--history-length"]):
        make_task("navigation-depth", options={"looks": 2})
    with refused(TaskError, "history_length_out_of_range", shows=["1", "64"]):
        with_history(make_task("CartPole-v1"), length)  # type: ignore[arg-type]


def test_a_policy_with_a_history_is_trained_and_evaluated_with_it(tmp_path: Path) -> None:
    options = [*SMALL, "--set", "minibatch=128", "--steps", "512", "--method", "ppo"]
    assert train(tmp_path / "L", *options) == 0
    bundle = Bundle.load(tmp_path / "L")
    assert bundle.spec.observation_size == 96 and bundle.spec.input_size == 96
    assert bundle.calibration().shape[1] == 96
    # Within an episode each row's older observations are those that were the newest before.
    ranges = bundle.calibration()[:, :72].reshape(-1, 3, 24)
    assert (ranges[:, 0] == 0).all(axis=1).any() and (ranges[:, 2] > 0).all()
    judged = bundle.spec.provenance["judged"][0]
    task = make_task("navigation")
    again = task.evaluate(float_decide(bundle), judged["episodes"], judged["seed"], judged["preset"])
    assert again.success == pytest.approx(judged["success"])
