"""PPO with a GRU learns what only a memory can tell, and what it learned is the policy of its bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.policy import pilot
from quarl.policy.spec import Cell, DiscreteHead, EnvironmentSpec, NetworkSpec, ObservationField, Recurrence
from quarl.train.algorithms import ppo, recurrent_ppo
from quarl.train.runs.request import RunRequest
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import Observations, StepResult, evaluate_episodes
from quarl.train.suites.task import Evaluation, Task
from tests.learning.continuous import judge_trained

LENGTH = 5
GRU = NetworkSpec((16,), recurrences=(Recurrence(Cell.GRU, 16, 1),))
SMALL: dict[str, Any] = {"environments": 32, "rollout_steps": 16, "minibatch": 128}
SMALL |= {"learning_rate": 4e-3, "normaliser_steps": 1024}


class Recall:
    """One of two cues is shown at first, then nothing; the last of five actions must be the cue's.

    Whoever forgets is right in half of the episodes. The first cue of episode k follows from its number.
    """

    def __init__(self, environments: int) -> None:
        self.environments = environments
        self._cue, self._steps = np.zeros((2, environments), np.int64)

    def reset(self, mask: np.ndarray, episode_ids: np.ndarray) -> Observations:
        self._cue[mask] = episode_ids[mask] * 2654435761 // 2**16 % 2
        self._steps[mask] = 0
        return self._observation()

    def step(self, actions: np.ndarray) -> StepResult:
        self._steps += 1
        ended = self._steps == LENGTH
        won = ended & (actions == self._cue)
        return StepResult(self._observation(), won.astype(np.float32), ended, np.zeros_like(ended), won)

    def _observation(self) -> Observations:
        shown = np.where(self._steps == 0, 2.0 * self._cue - 1.0, 0.0)
        return np.stack([shown, self._steps / LENGTH], axis=1).astype(np.float32)


def recall_task() -> Task:
    def evaluate(decide: Callable, episodes: int, seed: int, preset: str) -> Evaluation:
        return Evaluation.of(evaluate_episodes(Recall(8), decide, episodes), preset)

    return Task(
        name="recall",
        environment=EnvironmentSpec("recall", {}),
        observation=(ObservationField("cue", (1,), "1"), ObservationField("share", (1,), "1")),
        head=DiscreteHead(("a", "b")),
        control_period_s=1.0,
        presets=("",),
        make=lambda environments, seed: Recall(environments),
        evaluate=evaluate,
    )


def trained(folder: Path, method: object, settings: object, network: NetworkSpec, steps: int) -> float:
    """Success of the policy of a bundle's spec, flown with its own memory."""
    task = recall_task()
    request = RunRequest(task.name, "R", "test", network, steps, 1, folder / "R", evaluate_every=0, quiet=True)
    with Run(request, task) as run:
        made = method.train(run, settings)  # type: ignore[attr-defined]
        success = judge_trained(run, made, 200).success
    assert success is not None
    return success


@pytest.mark.slow
def test_it_remembers_a_cue_and_without_a_memory_nothing_does(tmp_path: Path) -> None:
    settings = recurrent_ppo.RecurrentPPOSettings(**SMALL, unroll=8)
    assert trained(tmp_path / "gru", recurrent_ppo, settings, GRU, 40 * 512) > 0.95
    plain = ppo.PPOSettings(**SMALL)
    assert trained(tmp_path / "none", ppo, plain, NetworkSpec((16, 16)), 40 * 512) < 0.7


@pytest.mark.slow
def test_with_the_state_forgotten_at_every_step_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_ppo.Memory, "begin", lambda self, mask: setattr(self, "begins", np.ones_like(mask)))
    right = recurrent_ppo.unroll_network
    monkeypatch.setattr(
        recurrent_ppo,
        "unroll_network",
        lambda network, weights, inputs, state, begins: right(network, weights, inputs, state, begins * 0.0 + 1.0),
    )
    settings = recurrent_ppo.RecurrentPPOSettings(**SMALL, unroll=8)
    assert trained(tmp_path / "gru", recurrent_ppo, settings, GRU, 40 * 512) < 0.7


def test_a_greedy_pilot_begins_where_it_is_told() -> None:
    from quarl.train.algorithms.common.distributions import Categorical
    from quarl.train.networks.recurrent import Memory

    seen: list[np.ndarray] = []

    def outputs(memory: Memory, observations: np.ndarray) -> np.ndarray:
        seen.append(memory.begins.copy())
        memory.begins = np.zeros_like(memory.begins)
        return np.eye(2, dtype=np.float32)[: len(observations)]

    greedy_pilot = recurrent_ppo.GreedyPilot(outputs, Categorical(), 4)
    pilot.begin(greedy_pilot, np.ones(2, bool))
    greedy_pilot(np.zeros((2, 1)))
    pilot.begin(greedy_pilot, np.array([True, False]))
    pilot.begin(greedy_pilot, np.array([False, True]))
    greedy_pilot(np.zeros((2, 1)))
    assert [each.tolist() for each in seen] == [[True, True], [True, True]]
