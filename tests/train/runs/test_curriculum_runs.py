"""``quarl train --curriculum``: zones open, are logged, and a run that was killed goes on to the same bits."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.policy.bundle import Bundle
from quarl.train import __main__ as command
from quarl.train.runs.checkpoint import load_checkpoint
from quarl.train.runs.request import TRAINING_FOLDER
from quarl.train.runs.run import Run
from quarl.train.suites import zones
from tests.train.small_runs import assert_same_weights, curve

SMALL = ["--task", "navigation", "--policy", "I", "--seed", "3", "--set", "environments=16"]
SMALL += ["--evaluate-every", "1000000", "--evaluate-episodes", "1", "--final-episodes", "1"]
METHODS = {
    "ppo": ["--set", "rollout_steps=32", "--set", "minibatch=128", "--set", 'engine="numpy"'],
    "dqn": ["--set", "rollout_steps=16", "--set", "learning_starts=512", "--set", "minibatch=32"],
}


@pytest.fixture
def short_window(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One success among the last ten episodes opens the next zone."""
    short = {"window_episodes": 10, "advance_at": 0.1}
    monkeypatch.setattr(zones, "DEFAULTS", short)
    monkeypatch.setattr("quarl.train.runs.results.RECORDED_EPISODES", 1)
    return short


def train(output: Path, *options: str) -> int:
    return command.main([*options, "--output-path", str(output)])


class KilledError(Exception):
    """Stands for the end of the process."""


def kill_after_saves(monkeypatch: pytest.MonkeyPatch, saves: int) -> None:
    """End a run as abruptly as a kill does, once it has written so many checkpoints, one after each row."""
    monkeypatch.setattr("quarl.train.runs.run.CHECKPOINT_EVERY_S", 0.0)
    left, save = [saves], Run.save

    def save_and_die(run: Run, *rest: Any) -> None:
        save(run, *rest)
        left[0] -= 1
        if left[0] == 0:
            raise KilledError

    monkeypatch.setattr(Run, "save", save_and_die)


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=() if method == "ppo" else pytest.mark.slow) for method in METHODS]
)
def test_a_killed_run_with_a_curriculum_goes_on_to_the_same_bits(
    method: str, tmp_path: Path, short_window: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, "--method", method, *METHODS[method], "--steps", "4096", "--curriculum"]
    assert train(tmp_path / "whole", *options) == 0
    printed = capsys.readouterr().err
    several = 0
    for saves in (2, 3):
        with pytest.MonkeyPatch.context() as patch:
            kill_after_saves(patch, saves)
            with pytest.raises(KilledError):
                train(tmp_path / "parts", *options, "--quiet")
        kept = load_checkpoint(tmp_path / TRAINING_FOLDER / "parts").group("stream")
        several += len(np.unique(np.searchsorted(kept["progression/first_ids"], kept["ids"], side="right"))) > 1
    assert several, "one interruption at least found unfinished episodes of several zones"
    assert train(tmp_path / "parts", *options, "--quiet") == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    rows = curve(tmp_path / "whole")
    assert rows == curve(tmp_path / "parts")
    numbers = [int(row["zone"]) for row in rows]
    assert numbers == sorted(numbers) and numbers[0] < numbers[-1]
    opened = re.findall(r"^step ([\d,]+): zone (\d) of 4 opened: goals on hard 6 to \d", printed, re.MULTILINE)
    assert [int(number) for _, number in opened] == list(range(2, numbers[-1] + 1))
    for step, number in opened:
        (row,) = [row for row in rows if row["step"] == step.replace(",", "")]
        assert int(row["zone"]) >= int(number), "several may open within one row"
    spec = Bundle.load(tmp_path / "parts").spec
    assert spec.provenance["settings"]["task"]["curriculum"] == short_window
    assert spec.environment.settings == {"preset": "hard"}, "judged on the whole task"


def test_a_run_is_not_resumed_with_another_curriculum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--method", "ppo", *METHODS["ppo"], "--minutes", "0", "--quiet"]
    assert train(tmp_path / "I", *options) == 0
    assert "zone" not in curve(tmp_path / "I")[0]
    assert train(tmp_path / "I", *options, "--resume", "--curriculum") == 2
    assert "Resume with the options it was started with" in capsys.readouterr().err
