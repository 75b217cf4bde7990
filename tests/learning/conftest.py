"""A corridor: the smallest task that tells a working algorithm from a broken one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, ObservationField
from quarl.train.runs.request import RunRequest
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import StepResult, evaluate_episodes
from quarl.train.suites.task import Evaluation, Task
from tests.learning.continuous import judge_trained

LENGTH = 10  # cells from the start to the goal
TIME_LIMIT = 40


class Corridor:
    """Cells 0 … 10. In even cells action 1 leads on and action 0 back (not below 0), in odd cells the other way round.

    Reward 1 at cell 10, else nothing. Random steps reach it in about one episode of ten within the time limit; always
    the same action never does, and neither does a policy that prefers the wrong action anywhere on the way.
    """

    def __init__(self, environments: int) -> None:
        self.environments = environments
        self._cell = np.zeros(environments, np.int64)
        self._steps = np.zeros(environments, np.int64)

    def reset(self, mask: np.ndarray, episode_ids: np.ndarray) -> np.ndarray:
        self._cell[mask] = 0
        self._steps[mask] = 0
        return self._observation()

    def step(self, actions: np.ndarray) -> StepResult:
        onward = actions != self._cell % 2
        self._cell = np.maximum(self._cell + np.where(onward, 1, -1), 0)
        self._steps += 1
        won = self._cell >= LENGTH
        late = (self._steps >= TIME_LIMIT) & ~won
        return StepResult(self._observation(), won.astype(np.float32), won, late, won)

    def _observation(self) -> np.ndarray:
        cells = np.arange(LENGTH + 1)
        return (self._cell[:, None] == cells).astype(np.float32)


def corridor_task() -> Task:
    def evaluate(decide: Callable, episodes: int, seed: int, preset: str) -> Evaluation:
        return Evaluation.of(evaluate_episodes(Corridor(8), decide, episodes), preset)

    return Task(
        name="corridor",
        environment=EnvironmentSpec("corridor", {}),
        observation=(ObservationField("cell", (LENGTH + 1,), "1"),),
        head=DiscreteHead(("a", "b")),
        control_period_s=1.0,
        presets=("",),
        make=lambda environments, seed: Corridor(environments),
        evaluate=evaluate,
    )


@pytest.fixture
def learn(tmp_path: Path) -> Callable[..., Evaluation]:
    """learn(train function, settings, steps, task=…, network=…) → greedy episodes of the trained network."""

    def run(
        train: Callable,
        settings: object,
        steps: int,
        task: Task | None = None,
        seed: int = 1,
        network: NetworkSpec = NetworkSpec((32, 32)),  # noqa: B008 (frozen)
    ) -> Evaluation:
        from quarl.train.accelerator.table import build_accelerated_update

        chosen = task or corridor_task()
        request = RunRequest(
            chosen.name, "I", "test", network, steps, seed, tmp_path / "I", evaluate_every=0, quiet=True
        )
        with Run(request, chosen) as training:
            by_hand = build_accelerated_update(
                getattr(train, "__module__", "").rpartition(".")[2], settings, network, chosen.head
            )
            trained = train(training, settings, **({"accelerated": by_hand} if by_hand else {}))
            return judge_trained(training, trained, 24)

    return run
