"""The best policy of a run: what was judged is what the bundle computes."""

from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.policy.spec import Normaliser, TrainedQuantization, WeightRange
from quarl.train import __main__ as command
from quarl.train.deciding import greedy
from quarl.train.networks.policy import Policy
from quarl.train.runs.best import BestPolicy
from quarl.train.runs.checkpoint import Checkpoint, CheckpointError
from quarl.train.runs.logs import column, read_rows
from quarl.train.suites.make import make_task
from quarl.train.suites.task import episode_seed
from tests.train.small_runs import SMALL

QUANTIZATION = TrainedQuantization(3, {"input": (-1.0, 2.0), "dense_0": (0.0, 3.0)}, WeightRange.MEAN)


def policy(weight: float, quantization: TrainedQuantization | None = None) -> Policy:
    return Policy({"w": np.array([weight])}, Normaliser((weight,), (2.0,), 5.0), quantization)


@pytest.mark.parametrize("quantization", [None, QUANTIZATION])
def test_the_best_evaluation_is_kept_whole_and_survives_a_checkpoint(quantization: TrainedQuantization | None) -> None:
    best, last = BestPolicy(""), policy(9.0)
    assert best.policy(lambda: last) is last
    for step, (value, weight) in enumerate([(1.0, 10.0), (3.0, 30.0), (float("nan"), 40.0), (2.0, 20.0)]):
        row = {"greedy_return": value, "greedy_success": float("nan")}
        best.offer(row, lambda weight=weight: policy(weight, quantization), step)  # type: ignore[misc]
    copy = BestPolicy("")
    copy.restore(best.state())
    for kept in (best, copy):
        assert kept.policy(lambda: last) == policy(30.0, quantization)
        assert kept.notes() == {"best_step": 1, "best_evaluation": 3.0}
    copy.forget()
    copy.restore(BestPolicy("").state())
    assert copy.policy(lambda: last) is last


def test_success_chooses_where_the_task_has_it() -> None:
    best = BestPolicy("hard")
    best.offer({"greedy_success_hard": 0.5, "greedy_return_hard": 9.0}, lambda: policy(1.0), 1)
    best.offer({"greedy_success_hard": 0.4, "greedy_return_hard": 99.0}, lambda: policy(2.0), 2)
    assert best.policy(lambda: policy(3.0)) == policy(1.0)


def test_a_best_policy_without_normaliser_is_an_older_format() -> None:
    arrays = {"best/weights/w": np.array([1.0]), "best/value": np.array([3.0]), "best/step": np.array([7])}
    with pytest.raises(CheckpointError, match="older format: its best"):
        Checkpoint(arrays, {}).restore("best", BestPolicy(""))


DQN = [*SMALL, "--method", "dqn", "--set", "environments=8", "--set", "minibatch=32", "--set", "learning_starts=1024"]


def test_the_bundle_is_the_policy_that_was_judged_best(tmp_path: Path) -> None:
    """Also where the best of all evaluations came before the observations' statistics stood still: it was of another
    policy than its weights make in the end."""
    few = ["--evaluate-every", "128", "--evaluate-episodes", "3", "--final-episodes", "2", "--seed", "1"]
    assert command.main([*DQN, "--steps", "1280", *few, "--output-path", str(tmp_path / "I")]) == 0
    bundle = Bundle.load(tmp_path / "I")
    origin = bundle.spec.provenance
    steps, returns = column(read_rows((tmp_path / "I" / "learning_curve.csv").read_text()), "greedy_return")
    assert max(returns[:7]) > max(returns[7:]), "the early evaluations shall be tempting"
    assert origin["best_step"] >= 1024
    judged = dict(zip(steps, returns, strict=True))[origin["best_step"]]
    assert origin["best_evaluation"] == pytest.approx(judged, abs=1e-4)
    seed = episode_seed(origin["seed"], f"judging at {origin['best_step']}")
    again = make_task("cartpole").evaluate(greedy(bundle.spec, bundle.weights()), 3, seed, "")
    assert again.mean_return == pytest.approx(judged, abs=1e-4)
