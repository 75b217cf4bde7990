"""A beam: the smallest task with continuous actions that tells a working actor-critic from a broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.policy.spec import ContinuousHead, EnvironmentSpec, NetworkSpec, ObservationField, Squash
from quarl.train.deciding import greedy
from quarl.train.runs.request import RunRequest, Trained
from quarl.train.runs.results import policy_spec
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import StepResult, evaluate_episodes
from quarl.train.suites.task import Evaluation, Task

TIME_LIMIT = 10
LOW, HIGH = -2.0, 4.0  # not symmetrical: a wrong unit of the action shows
REACH = 0.6  # of one step, at the action's bounds


class Beam:
    """A ball at x in −1 … 1 on a beam; an action of 1 (the middle of its range) leaves it, the bounds move it by 0.6.

    The reward 1 − x² is for where the ball lay *before* the action, so the action matters only for what follows: a
    critic that does not bootstrap learns nothing about it. At most 1 − x₀² + 9, in the mean 9.6 of 10 steps.
    """

    def __init__(self, environments: int, seed: int) -> None:
        self.environments = environments
        self._seed = seed
        self._place = np.zeros(environments)
        self._steps = np.zeros(environments, np.int64)

    def reset(self, mask: np.ndarray, episode_ids: np.ndarray) -> np.ndarray:
        for index in np.flatnonzero(mask):
            self._place[index] = np.random.default_rng([self._seed, int(episode_ids[index])]).uniform(-1, 1)
        self._steps[mask] = 0
        return self._observation()

    def step(self, actions: np.ndarray) -> StepResult:
        assert actions.shape == (self.environments, 1)
        assert actions.dtype == np.float32
        reward = (1.0 - self._place**2).astype(np.float32)
        moved = (actions[:, 0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2) * REACH
        self._place = np.clip(self._place + moved, -1.0, 1.0)
        self._steps += 1
        no = np.zeros(self.environments, bool)
        return StepResult(self._observation(), reward, no, self._steps >= TIME_LIMIT, None)

    def _observation(self) -> np.ndarray:
        return self._place[:, None].astype(np.float32)


def beam_task() -> Task:
    def evaluate(decide: Callable, episodes: int, seed: int, preset: str) -> Evaluation:
        return Evaluation.of(evaluate_episodes(Beam(8, seed), decide, episodes), preset)

    return Task(
        name="beam",
        environment=EnvironmentSpec("beam", {}),
        observation=(ObservationField("place", (1,), "1"),),
        head=ContinuousHead((LOW,), (HIGH,), Squash.TANH),
        control_period_s=1.0,
        presets=("",),
        make=Beam,
        evaluate=evaluate,
    )


@contextmanager
def beginning(folder: Path, steps: int, task: Task | None = None, resume: bool = False, seed: int = 1) -> Iterator[Run]:
    """A run on the beam (or another task) with a small network."""
    chosen = task or beam_task()
    request = RunRequest(
        chosen.name, "I", "ddpg", NetworkSpec((32, 32)), steps, seed, folder / "I", resume=resume,
        evaluate_every=1024, evaluate_episodes=8, quiet=True,
    )  # fmt: skip
    with Run(request, chosen) as run:
        yield run


def learned(
    folder: Path, train: Callable[[Run, Any], Trained], settings: object, steps: int, task: Task | None = None
) -> float:
    """The greedy mean return of what ``train`` learned."""
    with beginning(folder, steps, task) as run:
        return judge_trained(run, train(run, settings), 64).mean_return


def judge_trained(run: Run, trained: Trained, episodes: int) -> Evaluation:
    """Greedy episodes of what was trained, acting through the contract: normaliser, network, squash."""
    spec = policy_spec(run.request, run.task, trained.policy, trained.squash)
    return run.task.evaluate(greedy(spec, trained.policy.weights), episodes, 99, "")


def assert_resumes_alike(
    folder: Path, monkeypatch: pytest.MonkeyPatch, train: Callable[[Run, Any], Trained], settings: object
) -> None:
    """Assert that a run that was interrupted in the middle of episodes goes on to the same bits."""
    with beginning(folder / "whole", 2048) as run:
        whole = train(run, settings)
    with beginning(folder / "parts", 2048) as run:
        report = run.report

        def interrupting(step: int, *others: object) -> None:
            report(step, *others)  # type: ignore[arg-type]
            if step == 1088:  # in the middle of episodes, after the first evaluation
                run._stop = "interrupted"

        monkeypatch.setattr(run, "report", interrupting)
        assert train(run, settings).steps == 1088
    with beginning(folder / "parts", 2048, resume=True) as run:
        parts = train(run, settings)
    assert parts.notes == whole.notes
    assert parts.policy.normaliser == whole.policy.normaliser
    for name, weights in whole.policy.weights.items():
        np.testing.assert_array_equal(parts.policy.weights[name], weights)
