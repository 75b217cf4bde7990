"""An environment that raises or returns something else than Gymnasium's interface says is named, at once."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.train.__main__ import main
from quarl.train.suites.episodes import Episodes
from quarl.train.suites.errors import EnvironmentFaultError
from quarl.train.suites.make import make_task
from tests.train.suites.faulty_environments import FAULTY

MODULE = "tests.train.suites.faulty_environments"
WHERE = {  # method, step, words
    "FourValues": ("step", 1, "4 values|not enough values"),
    "ObservationAlone": ("reset", 0, "a ndarray|too many values|not enough values"),
    "WithoutSeed": ("reset", 0, "unexpected keyword argument 'seed'"),
    "OtherShape": ("step", 1, r"shape \(2, 1\); its space has \(2,\)"),
    "Infinite": ("step", 3, "inf as element 1"),
    "NanReward": ("step", 3, "nan as the reward"),
    "NoReward": ("step", 1, "None as the reward"),
    "HangsUp": ("step", 3, "TimeoutError: request timed out"),
}


def played(name: str, steps: int = 10) -> Episodes:
    episodes = make_task(f"{MODULE}:{name}-v0").make(2, 0)
    episodes.reset(np.ones(2, np.bool_), np.array([5, 6]))
    for _ in range(steps):
        episodes.step(np.zeros(2, np.int64))
    return episodes


def test_a_right_environment_is_played() -> None:
    played("Walk"), played("WalkLimited")


@pytest.mark.parametrize("limit", ["", "Limited"])
@pytest.mark.parametrize("kind", FAULTY, ids=lambda kind: kind.__name__)
def test_a_faulty_environment_is_named(kind: type, limit: str) -> None:
    name, (method, step, words) = kind.__name__, WHERE[kind.__name__]
    with pytest.raises(EnvironmentFaultError, match=words) as caught:
        played(f"{name}{limit}")
    error = caught.value
    assert (error.code, error.values["method"]) == ("environment_fault", method)
    assert (error.values["episode"], error.values["step"]) == (5, step)
    assert f"{name}{limit}-v0" in error.values["environment"] and "faulty_environments.py:" in error.message


@pytest.mark.parametrize("method", ["ppo", "dqn"])
@pytest.mark.parametrize("name", ["FourValues", "Infinite", "NanReward", "HangsUp"])
def test_training_ends_at_once_with_the_environments_fault(
    name: str, method: str, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", f"{MODULE}:{name}-v0", "--method", method, "--output-path", f"{tmp_path}/made", "--quiet"]
    assert main([*words, "--steps", "4000"]) == 1
    said = capsys.readouterr().err
    assert f"{name}-v0: step()" in said and "Traceback" not in said and "learning rate" not in said
