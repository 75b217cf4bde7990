"""Trainings of a study's cells: found again by settings, seed and code, trained once, and what their rows say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from quarl.bench import command_line
from quarl.bench.study import trainings
from quarl.bench.study.trainings import Training, fly_episodes, identity, origin, train_once
from quarl.policy.bundle import Bundle
from tests.refusals import refused

CELL = Training("CartPole-v1", "dqn", steps=4096)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, balancing: Callable[..., Bundle]) -> list[list[str]]:
    """Commands of trainings; each writes a policy by hand instead."""
    commands: list[list[str]] = []

    def run(command: Sequence[str]) -> None:
        commands.append(list(command))
        seed = int(command[command.index("--seed") + 1])
        if seed == 9:
            raise command_line.BenchError("it diverged")
        balancing(Path(command[-1]), seed=seed, settings={"learning_rate": 0.001234567891, "weight_clip": 2.0})

    monkeypatch.setattr(trainings, "run_child", run)
    monkeypatch.setattr(trainings, "TRAINED", tmp_path)
    monkeypatch.setattr(trainings, "code_version", lambda: "v0.1")
    return commands


def test_a_training_is_made_once(started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train_once(CELL, 1)
    assert first.path.parent == tmp_path / "v0.1" and first.path.name.startswith("CartPole-v1-dqn-")
    assert train_once(CELL, 1).path == first.path and len(started) == 1
    assert started[0][1:-1] == [
        "-m", "quarl.train", "--task", "CartPole-v1", "--method", "dqn", "--seed", "1", "--quiet",
        "--final-episodes", "1", "--steps", "4096", "--output-path",
    ]  # fmt: skip
    assert train_once(CELL, 2).path.name == first.path.name.replace("seed1", "seed2")
    others = [train_once(CELL, 1, "--set", "weight_clip=2"), train_once(dataclasses.replace(CELL, steps=8192), 1)]
    assert len({each.path for each in (first, *others)}) == 3 and len(started) == 4
    monkeypatch.setattr(trainings, "code_version", lambda: "v0.2")
    assert train_once(CELL, 1).path != first.path and len(started) == 5, "of another commit"
    with pytest.raises(command_line.BenchError, match="it diverged"):
        train_once(CELL, 9)


def test_rows_say_what_made_them(started: list[list[str]]) -> None:
    bundle = train_once(CELL, 1)
    (played,) = fly_episodes(bundle, None, 2, "a test", origin(bundle))
    assert (played.preset, played.seed, played.returns, played.successes) == ("", 1, [500.0, 500.0], None)
    assert played.measures["training"] == bundle.path.name
    assert played.measures["settings"] == {"learning_rate": 0.00123457, "weight_clip": 2}
    assert played.measures["weights_sha256"] == bundle.manifest.files["weights.safetensors"].sha256


def test_a_cell_of_other_settings_is_another() -> None:
    assert identity(CELL) == identity(Training("CartPole-v1", "dqn", steps=4096))
    others = [
        identity(dataclasses.replace(CELL, method="ppo")),
        identity(CELL, (0.5, 0.2)),
        identity(Training("I", "ppo")),
    ]
    assert len({identity(CELL), *others}) == 4
    with refused(command_line.UsageError, "unknown_subject", shows=["'a'"]):
        trainings.about("a", {"b": CELL})
