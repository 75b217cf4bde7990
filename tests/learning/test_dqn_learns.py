"""DQN learns in seconds what a broken DQN cannot."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.spec import Convolution, DiscreteHead, EnvironmentSpec, NetworkSpec, ObservationField
from quarl.train.algorithms import dqn
from quarl.train.algorithms.common.replay import Replay
from quarl.train.runs.checkpoint import load_checkpoint
from quarl.train.runs.request import RunRequest
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import StepResult, evaluate_episodes
from quarl.train.suites.make import make_task
from quarl.train.suites.task import Evaluation, Task

SETTINGS = dqn.DQNSettings(
    environments=16, rollout_steps=16, updates=32, minibatch=64, learning_rate=1e-3, learning_starts=2048,
    target_period=50, n_step=2, discount=0.95, replay_capacity=20_000, exploration=0.5,
)  # fmt: skip
STEPS = 20 * 1024
NUMPY = dataclasses.replace(SETTINGS, engine="numpy")
PRIORITIZED = dataclasses.replace(NUMPY, priority_exponent=0.6)


@pytest.mark.parametrize("settings", [SETTINGS, NUMPY, PRIORITIZED], ids=["tensorflow", "numpy", "prioritized"])
def test_dqn_walks_the_corridor_straight(learn: Callable, settings: dqn.DQNSettings) -> None:
    result = learn(dqn.train, settings, STEPS)
    assert result.success == 1.0
    assert result.mean_length == 10


@pytest.mark.slow
def test_with_the_sign_of_the_error_flipped_it_does_not(learn: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn, "huber", lambda errors, delta: -tf.abs(errors))
    assert learn(dqn.train, SETTINGS, STEPS).success < 0.5


CARTPOLE = dqn.DQNSettings(
    environments=8, rollout_steps=16, updates=32, minibatch=128, learning_rate=1e-3, learning_starts=1000, n_step=5,
    target_period=100, reward_scale=0.02, replay_capacity=40_000, engine="numpy",
)  # fmt: skip


def test_dqn_balances_cartpole(learn: Callable) -> None:
    assert learn(dqn.train, CARTPOLE, 30_000, task=make_task("CartPole-v1")).mean_return > 400


# --- images -------------------------------------------------------------------------------------------------------

SIDE = 16


class Lamp:
    """Two successive grey pictures of a lamp in one of three columns; the right action names the column to which it
    went from the picture before: left 0, stayed 1, right 2 (round the corner). Ten steps, 1 for each right answer.

    One picture alone does not tell the answer, so the stack must be in order, also where an episode begins.
    """

    def __init__(self, environments: int, seed: int) -> None:
        self.environments = environments
        self._seed = seed
        self._images = np.zeros((environments, SIDE, SIDE, 2), np.uint8)
        self._columns = np.zeros((environments, 2), np.int64)
        self._steps = np.zeros(environments, np.int64)
        self._generators = [np.random.default_rng(0)] * environments

    def reset(self, mask: np.ndarray, episode_ids: np.ndarray) -> np.ndarray:
        for index in np.flatnonzero(mask):
            self._generators[index] = np.random.default_rng([self._seed, int(episode_ids[index])])
            self._steps[index] = 0
            for _ in range(2):
                self._show(index)
        return self._images.copy()

    def _show(self, index: int) -> None:
        column = int(self._generators[index].integers(3))
        self._columns[index] = self._columns[index][1], column
        picture = np.zeros((SIDE, SIDE), np.uint8)
        picture[:, 5 * column : 5 * column + 5] = 255
        self._images[index] = np.stack([self._images[index, :, :, 1], picture], axis=-1)

    def step(self, actions: np.ndarray) -> StepResult:
        before, now = self._columns.T
        right = actions == (now - before + 1) % 3
        for index in range(self.environments):
            self._show(index)
        self._steps += 1
        no = np.zeros(self.environments, bool)
        return StepResult(self._images.copy(), right.astype(np.float32), self._steps >= 10, no, None)


def lamp_task() -> Task:
    def evaluate(decide: Callable, episodes: int, seed: int, preset: str) -> Evaluation:
        return Evaluation.of(evaluate_episodes(Lamp(8, seed), decide, episodes), preset)

    return Task(
        name="lamp",
        environment=EnvironmentSpec("lamp", {}),
        observation=(ObservationField("frames", (SIDE, SIDE, 2), "grey level"),),
        head=DiscreteHead(("left", "stayed", "right")),
        control_period_s=1.0,
        presets=("",),
        make=Lamp,
        evaluate=evaluate,
        frames=2,
    )


IMAGES = dqn.DQNSettings(
    environments=8, rollout_steps=8, updates=8, minibatch=32, learning_rate=2e-3, learning_starts=512,
    target_period=20, n_step=1, discount=0.5, replay_capacity=4000, exploration=0.3,
)  # fmt: skip
CONVOLUTIONS = NetworkSpec((32,), convolutions=(Convolution(8, 4, 4), Convolution(8, 2, 2)))


def test_dqn_with_convolutions_learns_from_stacked_pictures(learn: Callable) -> None:
    assert learn(dqn.train, IMAGES, 4000, task=lamp_task(), network=CONVOLUTIONS).mean_return > 9.5


@pytest.mark.slow
def test_with_the_stack_in_the_wrong_order_it_does_not(learn: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Replay._observations
    monkeypatch.setattr(Replay, "_observations", lambda self, *where: right(self, *where)[..., ::-1])
    assert learn(dqn.train, IMAGES, 4000, task=lamp_task(), network=CONVOLUTIONS).mean_return < 7


def test_a_run_on_pictures_resumes_with_an_empty_replay_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, settings = lamp_task(), dataclasses.replace(IMAGES, learning_starts=128, updates=1)
    request = RunRequest("lamp", "x", "dqn", CONVOLUTIONS, 640, 1, tmp_path / "x", minutes=0.0, evaluate_every=0)
    with Run(request, task) as run:
        assert dqn.train(run, settings).steps == 64  # one iteration, then the minutes are over
    checkpoint = load_checkpoint(request.training_folder)
    assert not checkpoint.group("replay")
    assert checkpoint.group("stream")["actions"].shape[0] == settings.environments
    with Run(dataclasses.replace(request, minutes=None, resume=True), task) as run:
        trained = dqn.train(run, settings)
    assert trained.steps == 640
    assert trained.notes["updates"] == 9 - 1  # iterations after the first, without the one that refills the replay
    assert "128 steps refill the replay" in capsys.readouterr().err
