"""D4PG learns in seconds what a broken D4PG cannot."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from quarl.train.algorithms import d4pg
from quarl.train.runs.logs import column, read_rows
from tests.learning.continuous import assert_resumes_alike, beginning, learned

SETTINGS = d4pg.D4PGSettings(
    environments=8, rollout_steps=8, updates=32, minibatch=64, critic_hidden=(32, 32), learning_starts=512,
    discount=0.9, n_step=3, value_max=10.0, target_period=20, actor_learning_rate=1e-3, critic_learning_rate=1e-3,
    noise_first=0.3, noise_last=0.1, replay_capacity=10_000,
)  # fmt: skip
STEPS = 4096
GOOD, BAD = 9.3, 8.5  # the best policy has 9.6, the ball left where it is 6.7


def test_d4pg_keeps_the_ball_in_the_middle(tmp_path: Path) -> None:
    assert learned(tmp_path, d4pg.train, SETTINGS, STEPS) > GOOD


@pytest.mark.parametrize(("value_min", "warns"), [(0.0, False), (20.0, True)], ids=["within", "outside"])
def test_returns_outside_the_atoms_are_logged_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value_min: float, warns: bool
) -> None:
    settings = dataclasses.replace(SETTINGS, value_min=value_min, value_max=value_min + 10.0)  # returns are 0 … 10
    with beginning(tmp_path, 1024) as run:
        d4pg.train(run, settings)
        masses = column(read_rows(run.curve.read_text()), "clipped_mass")[1]
    printed = capsys.readouterr().err
    assert printed.count("--set value_min=") == warns
    assert (masses[-1] > 0.9) == warns
    if not warns:
        assert max(masses) < 0.05


@pytest.fixture
def shifted_atoms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bootstrap comes out six atoms too high: soon all is worth the largest atom, whatever the action."""
    right = d4pg.project_distribution

    def shifted(*arguments: Any) -> tf.Tensor:
        return tf.roll(right(*arguments), 6, axis=1)

    monkeypatch.setattr(d4pg, "project_distribution", shifted)


@pytest.mark.slow
def test_with_the_projection_onto_shifted_atoms_it_does_not(tmp_path: Path, shifted_atoms: None) -> None:
    assert learned(tmp_path, d4pg.train, SETTINGS, STEPS) < BAD


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits_as_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_alike(tmp_path, monkeypatch, d4pg.train, SETTINGS)
