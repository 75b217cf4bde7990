"""A policy of depth pictures and vectors, distilled from one of range rays: small runs, typed as a user types them."""

import json
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.policy.reference import choose_actions, compute_activations, forward_float
from quarl.train import __main__ as command
from quarl.train import evaluate
from quarl.train.deciding import greedy
from tests.train.small_runs import assert_same_weights, curve

SMALL = ["--task", "AirLearning/NavigationDepth-v0", "--model", "nature-4,8", "--seed", "3", "--quiet"]
SMALL += ["--set", "environments=8", "--set", "rollout_steps=4", "--set", "updates=2", "--set", "minibatch=16"]
SMALL += ["--set", "capacity=200", "--evaluate-every", "64", "--evaluate-episodes", "2", "--final-episodes", "2"]
STEPS = ["--steps", "128"]


@pytest.fixture(autouse=True)
def few_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flights that are recorded for calibration are few."""
    monkeypatch.setattr("quarl.train.runs.results.RECORDED_EPISODES_WITH_IMAGES", 2)
    monkeypatch.setattr("quarl.train.runs.results.CALIBRATION_IMAGES", 64)


def train(output: Path, *options: str) -> int:
    teacher = [] if "ppo" in options else ["--teacher", "zoo/I"]  # a name means what was trained here, if anything was
    return command.main([*SMALL, *teacher, *options, "--output-path", str(output)])


def test_a_run_writes_a_bundle_and_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "whole", *STEPS) == 0
    assert train(tmp_path / "parts", *STEPS, "--minutes", "0") == 0  # one iteration
    assert train(tmp_path / "parts", *STEPS, "--resume") == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert curve(tmp_path / "whole") == curve(tmp_path / "parts")

    bundle = Bundle.load(tmp_path / "whole")
    spec, weights, teacher = bundle.spec, bundle.weights(), Bundle.load(Path("zoo/I")).spec
    assert spec.environment.id == "AirLearning/NavigationDepth-v0" and spec.vector_size == 8
    assert spec.provenance["teacher"] == "I" and spec.provenance["algorithm"] == "distill"
    mean, scale = np.asarray(spec.normaliser.mean), np.asarray(spec.normaliser.scale)
    assert set(mean[:7056]) == {0.0} and set(scale[:7056]) == {20.0}
    assert tuple(mean[7056:]) == teacher.normaliser.mean[24:] and tuple(scale[7056:]) == teacher.normaliser.scale[24:]

    # Where they join, picture and vector reach about as far: k = 2^round(…) leaves a factor of √2 at most.
    calibration = bundle.calibration()
    assert 16 < len(calibration) <= 64 and calibration[:, :7056].max() == 20.0
    joined = np.abs(compute_activations(spec, weights, calibration)[3])
    assert 0.70 < joined[:, :-8].max() / joined[:, -8:].max() < 1.42

    golden = bundle.golden()
    wanted = choose_actions(spec, forward_float(spec, weights, golden.observations))
    np.testing.assert_array_equal(greedy(spec, weights)(golden.observations), wanted)

    capsys.readouterr()
    flown = ["--input-path", str(tmp_path / "whole"), "--episodes", "3", "--preset", "shipped", "--json"]
    assert evaluate.main(flown) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["task"] == "navigation-depth" and [row["policy"] for row in report["results"]] == ["whole", "blind"]
    assert report["executed_by"].startswith("tensorflow-cpu")
    assert evaluate.main([*flown, "--zones", "--command-latency", "0.2", "--episodes", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2 * 4
    assert evaluate.main([*flown, "--task", "navigation"]) == 1
    assert "field 0" in capsys.readouterr().err
