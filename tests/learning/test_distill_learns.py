"""A student learns from a teacher's answers, and not from the opposite of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import write_bundle
from quarl.policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, Normaliser, ObservationField, PolicySpec
from quarl.train.algorithms import distill

CELLS = 11
SETTINGS = distill.DistillSettings(environments=16, rollout_steps=16, minibatch=128, learning_rate=2e-3, capacity=4096)
STEPS = 30 * 256


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    """The corridor's solution as a linear policy: logit 4 for the action that leads on."""
    spec = PolicySpec(
        "teacher",
        (ObservationField("cell", (CELLS,), "1"),),
        Normaliser((0.0,) * CELLS, (1.0,) * CELLS),
        NetworkSpec(()),
        DiscreteHead(("a", "b")),
        1.0,
        EnvironmentSpec("corridor"),
    )
    cells = np.arange(CELLS)
    kernel = 4.0 * np.stack([cells % 2 == 1, cells % 2 == 0], axis=1).astype(np.float32)
    weights = {"head/kernel": kernel, "head/bias": np.zeros(2, np.float32)}
    everything = np.eye(CELLS, dtype=np.float32)
    write_bundle(tmp_path / "teacher", spec, weights, everything, everything)
    return str(tmp_path / "teacher")


def test_the_student_does_what_the_teacher_does(learn: Callable, teacher: str) -> None:
    result = learn(partial(distill.train, teacher_name=teacher), SETTINGS, STEPS)
    assert result.success == 1.0
    assert result.mean_length == 10


def test_a_student_of_the_opposite_does_not(learn: Callable, teacher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = distill.divergence
    monkeypatch.setattr(distill, "divergence", lambda teacher, student, t: right(-teacher, student, t))
    assert learn(partial(distill.train, teacher_name=teacher), SETTINGS, STEPS).success < 0.5
