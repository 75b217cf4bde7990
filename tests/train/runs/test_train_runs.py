"""``quarl train``: runs reproduce, resume, are interrupted, diverge."""

import json
import shlex
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.policy.locate import code_version
from quarl.train.algorithms.common.learner import Learner
from quarl.train.runs.checkpoint import load_checkpoint
from quarl.train.runs.request import TRAINING_FOLDER, UNFINISHED
from quarl.train.runs.run import Run
from tests.train.small_runs import AWARE, DISTILL, DQN, METHODS, PPO, SMALL, assert_same_weights, curve, train


@pytest.mark.parametrize(
    ("method", "more"),
    [
        pytest.param(method, words, marks=pytest.mark.slow if method == "distill" else ())
        for method in METHODS
        for words in ([], [*AWARE, "4", "--quant-delay", "768"])
        if not words or method == "dqn"  # what quantizers remember goes on as any other weight
    ],
)
def test_an_interrupted_run_resumes_to_the_same_curve_and_weights(
    method: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, iteration = METHODS[method]
    options = [*options, *more]
    if method == "distill":
        assert train(tmp_path / "teacher", *PPO, "--steps", "256") == 0
        options = [*options, "--teacher", str(tmp_path / "teacher")]
    assert train(tmp_path / "whole", *options, "--steps", "2048") == 0
    # Two interruptions at the ends of iterations, by the time limit that --minutes sets.
    for stop_at in (2, 5):
        stop_after_rows(monkeypatch, tmp_path / "parts", stop_at)
        resume = ["--resume"] if stop_at > 2 else []
        assert train(tmp_path / "parts", *options, "--steps", "2048", *resume) == 0
        monkeypatch.undo()
        assert int(curve(tmp_path / "parts")[-1]["step"]) == stop_at * iteration
    assert train(tmp_path / "parts", *options, "--steps", "2048", "--resume") == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert curve(tmp_path / "whole") == curve(tmp_path / "parts")
    assert Bundle.load(tmp_path / "parts").spec.normaliser == Bundle.load(tmp_path / "whole").spec.normaliser


def stop_after_rows(monkeypatch: pytest.MonkeyPatch, output: Path, rows: int) -> None:
    """Make the run stop by itself once its curve has so many rows, as Ctrl-C or --minutes would."""
    original = Run._find_stop

    def find_stop(run: Run, step: int, reached: str | None) -> str | None:
        made = step // METHODS[run.request.method][1]
        return "stopped by the test" if made >= rows else original(run, step, reached)

    monkeypatch.setattr(Run, "_find_stop", find_stop)


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "a", *PPO, "--steps", "512") == 0
    assert train(tmp_path / "a", *PPO, "--steps", "512", "--resume", "--set", "discount=0.5") == 2
    printed = capsys.readouterr().err
    assert "settings.discount = 0.99" in printed and "rollout_steps" not in printed
    assert train(tmp_path / "b", *PPO, "--steps", "512", "--resume") == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_run_resumed_with_other_steps_says_so_and_is_kept_aside(tmp_path: Path) -> None:
    assert train(tmp_path / "a", *PPO, "--steps", "512") == 0
    assert train(tmp_path / "a", *PPO, "--steps", "768", "--resume") == 0
    origin = json.loads((tmp_path / "a" / "policy.json").read_text())["provenance"]
    assert origin["replanned"] == {"at_step": 512, "from_steps": 512, "to_steps": 768}
    assert origin["steps"] == 768
    checkpoint = (tmp_path / TRAINING_FOLDER / "a" / "checkpoint.safetensors").read_bytes()
    assert train(tmp_path / "a", *PPO, "--steps", "256") == 0  # whoever forgets to resume has not lost the run
    assert (tmp_path / TRAINING_FOLDER / "a.previous" / "checkpoint.safetensors").read_bytes() == checkpoint


def test_a_distillation_is_not_resumed_with_another_teacher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("one", "1"), ("two", "2")):
        assert train(tmp_path / name, *PPO, "--steps", "256", "--seed", seed) == 0
    assert train(tmp_path / "I", *DISTILL, "--steps", "256", "--teacher", str(tmp_path / "one")) == 0
    assert train(tmp_path / "I", *DISTILL, "--steps", "256", "--resume", "--teacher", str(tmp_path / "two")) == 2
    assert "the checkpoint's teacher" in capsys.readouterr().err


def test_ctrl_c_leaves_a_usable_bundle_and_a_checkpoint(tmp_path: Path) -> None:
    output = tmp_path / "I"
    options = [option for option in PPO if option != "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "quarl.train", *options, "--steps", "100000000", "--output-path", str(output),
         "--evaluate-every", "512", "--evaluate-episodes", "3"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "greedy" in line:  # training is under way
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(timeout=60) == 130, rest
    assert not output.exists()
    bundle = Bundle.load(tmp_path / TRAINING_FOLDER / "I" / UNFINISHED)
    assert bundle.spec.provenance["ended"] == "interrupted"
    assert bundle.spec.provenance["code"] == code_version()
    words = [*options, "--steps", "100000000", "--evaluate-every", "512", "--evaluate-episodes", "3"]
    assert bundle.spec.provenance["command"] == shlex.join(["quarl", "train", *words])
    assert len(bundle.golden().observations) >= 256
    assert (tmp_path / TRAINING_FOLDER / "I" / "checkpoint.safetensors").exists()


PENDULUM = ["--task", "Pendulum-v1", "--policy", "I", "--seed", "3", "--quiet", "--method", "ddpg"]
DDPG = [*PENDULUM, "--set", "learning_starts=256", "--set", "updates=4", "--set", 'engine="numpy"']
A2C = [*SMALL, "--method", "a2c", "--set", "environments=8", "--set", "rollout_steps=16"]


@pytest.mark.parametrize(("options", "drawing", "third", "message"), [
    (PPO, "quarl.train.algorithms.common.rollouts.Rollout.batch", 768, "value_loss became nan at step 768"),
    (A2C, "quarl.train.algorithms.common.rollouts.Rollout.batch", 384, "value_loss became nan at step 384"),
    (DQN, "quarl.train.algorithms.common.experience.Experience.draw", 512, "loss became nan at step 512"),
    (DDPG, "quarl.train.algorithms.common.experience.Experience.draw", 320, "critic_loss became nan at step 320"),
], ids=["ppo", "a2c", "dqn", "ddpg"])  # fmt: skip
def test_a_nan_stops_training_names_the_step_and_keeps_the_checkpoint(
    options: list[str],
    drawing: str,
    third: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third batch that is learned from has a NaN among its returns, as after a reward that is none."""
    monkeypatch.setattr("quarl.train.runs.run.CHECKPOINT_EVERY_S", 0.0)  # a checkpoint after every row of the curve
    monkeypatch.setattr("quarl.train.algorithms.a2c.REPORT_EVERY", 128)
    original = resolved(drawing)
    calls: list[int] = []
    saved: list[tuple[int, bytes]] = []
    checkpoint = tmp_path / TRAINING_FOLDER / "I" / "checkpoint.safetensors"

    def poisoned(*arguments: Any) -> dict[str, np.ndarray]:
        calls.append(1)
        batch: dict[str, np.ndarray] = original(*arguments)
        if len(calls) == 3:
            batch["return"].reshape(-1)[7] = np.nan  # a view: the columns are contiguous
        return batch

    save = Run.save

    def remembering(run: Run, step: int, *rest: Any) -> None:
        save(run, step, *rest)
        saved.append((step, checkpoint.read_bytes()))

    monkeypatch.setattr(drawing, poisoned)
    monkeypatch.setattr(Run, "save", remembering)
    assert train(tmp_path / "I", *options, "--steps", "1024") == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert str(checkpoint) in printed
    assert not (tmp_path / "I").exists()
    step, last_good = saved[-1]
    assert step < third
    assert checkpoint.read_bytes() == last_good
    monkeypatch.setattr(drawing, original)
    monkeypatch.setattr(Run, "save", save)
    assert train(tmp_path / "I", *options, "--steps", "1024", "--resume") == 0  # from before the NaN
    assert Bundle.load(tmp_path / "I").spec.provenance["resumed_at"] == [step]
    assert train(tmp_path / "clean", *options, "--steps", "1024") == 0
    assert_same_weights(tmp_path / "I", tmp_path / "clean")
    assert curve(tmp_path / "I") == curve(tmp_path / "clean")


def resolved(path: str) -> Any:
    """What ``monkeypatch.setattr`` finds under a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name) if module.islower() else getattr(resolved(module), name)


def test_weights_that_are_no_numbers_are_not_saved_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quarl.train.algorithms import dqn

    monkeypatch.setattr("quarl.train.runs.run.CHECKPOINT_EVERY_S", 0.0)
    learn = dqn.learn

    def poisoned(update: Any, learner: Learner, *rest: Any, **named: Any) -> Any:
        if learner.updates == 64:  # after two rounds of 32
            online = learner.groups["online"]
            learner.groups["online"] = {name: np.full_like(value, np.nan) for name, value in online.items()}
        return learn(update, learner, *rest, **named)

    monkeypatch.setattr(dqn, "learn", poisoned)
    assert train(tmp_path / "I", *DQN, "--steps", "1024") == 1
    assert "loss became nan at step 512" in capsys.readouterr().err
    kept = load_checkpoint(tmp_path / TRAINING_FOLDER / "I")
    assert (kept.facts["step"], kept.facts["updates"]) == (384, 64)
    assert all(np.isfinite(array).all() for array in kept.group("online").values())


def test_bundles_are_rewritten_for_int8_and_checkpoints_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarl.policy.rewrites.MOST", -1.0)  # after so few steps action values have little in common
    assert train(tmp_path / "I", *DQN, "--steps", "512") == 0
    bundle, arrays = Bundle.load(tmp_path / "I"), load_checkpoint(tmp_path / TRAINING_FOLDER / "I").arrays
    assert bundle.spec.provenance["rewrites"] == ["centred"]
    written = bundle.weights()["head/kernel"]
    raw = [arrays[f"{group}/head/kernel"].astype(np.float64) for group in ("online", "best/weights")]
    assert all(np.abs(each.mean(axis=1)).max() > 1e-3 for each in raw)
    assert np.abs(written.mean(axis=1)).max() < 1e-6
    assert any(np.allclose(written, each - each.mean(axis=1, keepdims=True), atol=1e-6) for each in raw)
