"""An environment that raises or returns something else than Gymnasium's interface says is named, at once."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from quarl.convert.__main__ import main as convert
from quarl.train.__main__ import main
from quarl.train.evaluate import main as evaluate
from quarl.train.runs import run
from quarl.train.suites.episodes import Episodes
from quarl.train.suites.errors import EnvironmentFaultError, TaskError
from quarl.train.suites.gymnasium_task import refuse_spaces
from quarl.train.suites.make import make_task
from quarl.train.suites.task import unpair_if_unseeded
from tests.train.suites.faulty_environments import FAULTY, Hanging

SMALL = ["--method", "ppo", "--set", "environments=8", "--set", "rollout_steps=16", "--set", "minibatch=64", "--quiet"]
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
    for name in ("Walk", "WalkLimited", "Item"):  # the last wants numpy's integers as actions
        played(name)


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


@pytest.mark.parametrize(("name", "method"), [("HangsUp", "ppo"), ("NanReward", "dqn")])
def test_training_ends_at_once_with_the_environments_fault(
    name: str, method: str, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", f"{MODULE}:{name}-v0", "--method", method, "--output-path", f"{tmp_path}/made", "--quiet"]
    assert main([*words, "--steps", "4000"]) == 1
    said = capsys.readouterr().err
    assert f"{name}-v0: step()" in said and "Traceback" not in said and "learning rate" not in said


def test_an_endless_episode_is_truncated_and_who_judges_it_is_told() -> None:
    task = make_task(f"{MODULE}:Endless-v0", options={"max_episode_steps": 30})
    assert (
        make_task(f"{MODULE}:Endless-v0").notes and not task.notes and not make_task(f"{MODULE}:WalkLimited-v0").notes
    )
    judged = task.evaluate(lambda rows: np.zeros(len(rows), np.int64), 3, 0, "")
    assert judged.mean_length == 30
    with pytest.raises(TaskError, match="max-episode-steps"):
        make_task("navigation", options={"max_episode_steps": 30})


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(-np.finfo(np.float32).max, np.finfo(np.float32).max, np.float32), (0, np.inf, np.float32), (0, 10, np.int32)],
)
def test_what_the_refusal_of_an_action_space_says_to_register_is_taken(low: float, high: float, kind: type) -> None:
    environment = FAULTY[0]()
    environment.action_space = Box(low, high, (1,), kind)
    with pytest.raises(TaskError, match="TransformAction") as caught:
        refuse_spaces("It-v0", environment.observation_space, environment.action_space)
    typed = str(caught.value).partition("wrapped in ")[2]
    typed = typed[: typed.index("numpy.float32)") + len("numpy.float32)")] + ")"
    wrapped = eval(typed, {"gymnasium": gymnasium, "numpy": np, "Box": Box, "environment": environment})
    refuse_spaces("It-v0", wrapped.observation_space, wrapped.action_space)
    assert wrapped.action(np.array([0.6], np.float32)).dtype == kind


@pytest.mark.parametrize("name", ["Unseeded", "UnseededSteps", "Walk", "Nested"])
def test_an_environment_that_ignores_its_seed_is_found(name: str) -> None:
    task = make_task(f"{MODULE}:{name}Limited-v0")
    found = unpair_if_unseeded(task, 3)
    assert found.paired == (len(found.notes) == 0) == (name in ("Walk", "Nested"))


def test_what_ignores_its_seed_is_compared_unpaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", f"{MODULE}:UnseededLimited-v0", *SMALL, "--output-path", str(tmp_path / "u"), "--steps", "256"]
    assert main(words) == 0
    assert convert(["--policy", str(tmp_path / "u"), "--bits", "32", "--format", "tflite"]) == 0
    capsys.readouterr()
    assert evaluate(["--input-path", str(tmp_path / "u"), "--precision", "fp32", "--compare", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["minus_float"][0]["paired"] is False and len(report["notes"]) == 1


@pytest.mark.parametrize("where", ["an iteration", "a judgement"])
def test_one_sigterm_ends_a_run_whose_environment_hangs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "STOP_WITHIN_S", 0.3)
    monkeypatch.setattr(run, "JUDGE_WITHIN_S", 0.3)
    monkeypatch.setattr(run, "WRITE_WITHIN_S", 0.3)
    judge = run.Run._judge_when_due

    def hanging(self: run.Run, step: int, *rest: Any) -> Any:
        if step >= 256:
            Hanging.hangs = True
            threading.Timer(0.2, signal.raise_signal, [signal.SIGTERM]).start()
        if where == "an iteration" and step >= 256:
            self._log.flush()
            self.save(step, {}, {})
            return {}, None
        return judge(self, step, *rest)

    monkeypatch.setattr(run.Run, "_judge_when_due", hanging)
    words = ["--task", f"{MODULE}:Hanging-v0", *SMALL, "--output-path", str(tmp_path / "h"), "--steps", "4096"]
    try:
        assert main([*words, "--evaluate-every", "128"]) == 130
    finally:
        Hanging.hangs = False
    said = capsys.readouterr().err
    assert "checkpoint of step 256 is kept" in said
