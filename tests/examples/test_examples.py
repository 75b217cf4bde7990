"""The examples, run as their reader runs them: what they print is true of what lies on the device."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quarl.convert.pipeline import convert_all
from quarl.device.agent.loop.client import LoopError, request
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision
from tests.device_deploy.devices import eventually, runs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, a policy of the zoo, and room for what they make."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "zoo" / "I", folder / "I")
    return folder


def run(place: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=300,
        env={**os.environ, "QUARL_LOCAL_DEVICE": str(place / "device")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def found(pattern: str, text: str) -> tuple[float, ...]:
    match = re.search(pattern, text)
    assert match, f"{pattern!r} is not in:\n{text}"
    return tuple(float(number.replace(",", "")) for number in match.groups())


def test_a_user_task_is_learned_and_solved_on_the_device(place: Path) -> None:
    printed = run(place, "examples/own_task.py")
    artifact = Bundle.load(place / "artifacts" / "reach").artifact(Precision.INT8, ArtifactFormat.TFLITE)
    assert found(r"int8\.tflite +([\d,]+) ", printed) == (artifact.record.size,)
    (mean_return,) = found(r"reach +own_task:Reach-v0 +int8 +litert on local +20 +(-[\d.]+)", printed)
    # Steps are 5 cm and the mean way is 1.3 m, so the best return is about -14; never arriving costs 100 to 200.
    assert mean_return > -40
    p50, p90 = found(r"reach +int8 +litert +([\d.]+) +([\d.]+) ", printed)
    assert 0 < p50 <= p90


def test_a_device_answers_and_a_robot_is_driven_by_what_was_deployed(place: Path) -> None:
    printed = run(place, "examples/ask_device.py", "local", str(place / "I"))
    assert "release 0001-" in printed and "sent and checked there" in printed
    size = Bundle.load(place / "I").artifact(Precision.INT8, ArtifactFormat.TFLITE).record.size
    assert found(r"serving int8\.tflite, ([\d,]+) bytes, in litert", printed) == (size,)
    same, total = found(r"as the float policy does on (\d+) of (\d+) recorded", printed)
    assert total == 100 and same >= 90
    peak, before = found(r"resident: ([\d.]+) MB while deciding, ([\d.]+) MB before", printed)
    assert 5 < before < peak < 500
    assert "was there already" in run(place, "examples/ask_device.py", "local", str(place / "I"))

    starter = place / "device" / "home" / "quarl" / "policies" / "I" / "current" / "run-agent"
    printed = run(place, "examples/robot_loop.py", "2.5", str(starter))
    decisions, period, missed = found(r"(\d+) decisions, one every (\d+) ms, (\d+) missed", printed)
    assert 8 <= decisions + missed <= 20
    assert period == 250
    for what in ("woke late by", "observation to action"):
        (most,) = found(rf"{what}, ms: .*most ([\d.]+)", printed)
        assert most >= 0
    (fallbacks,) = found(r"fallback actions: (\d+);", printed)
    assert fallbacks < 5
    assert "flights ended by: " in printed


def test_a_robot_without_a_policy_is_told_what_to_type(place: Path) -> None:
    done = subprocess.run([sys.executable, "examples/robot_loop.py"], cwd=place, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("no policy is deployed there. Type: make deploy POLICY=I")


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("examples/*.py")))
def test_help_is_shown_and_nothing_is_started(place: Path, name: str) -> None:
    assert run(place, f"examples/{name}", "--help").startswith(f"usage: {name}")
    if name in ("robot_loop.py", "mavlink.py", "ros2.py"):
        # What is not understood starts nothing either.
        done = subprocess.run([sys.executable, f"examples/{name}", "a", "b", "c", "d"], cwd=place, capture_output=True)
        assert done.returncode == 2


@pytest.fixture(scope="module")
def converted(place: Path) -> Path:
    """Policy I for the loop."""
    convert_all([Bundle.load(place / "I")], [Precision.INT8], [ArtifactFormat.TFLITE])
    return place / "I"


@pytest.mark.parametrize(
    ("how", "status"),
    {"interrupted": 130, "terminated": 143, "no action comes": 1, "the loop is killed": 1, "error": 1}.items(),
)
def test_a_robot_leaves_no_loop_behind(place: Path, converted: Path, tmp_path: Path, how: str, status: int) -> None:
    starter, started = tmp_path / "run-agent", tmp_path / "started"
    loop = f"{sys.executable} -m device.agent.loop --bundle={converted} --priority=0 --fallback=19"
    starter.write_text(f'#!/bin/sh\nshift\necho $$ $2 > {started}\nexec {loop} "$@"\n')
    starter.chmod(0o755)
    words = ["examples/robot_loop.py", "600", str(starter)]
    if how == "error":  # in the robot's own part, while it flies
        spoilt = "from quarl.airlearning_envs.gym_env import NavigationEnv as E; E.step = lambda self, action: 1 / 0; "
        words = [
            "-c",
            f"import runpy, sys; {spoilt}del sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')",
            *words,
        ]
    robot = subprocess.Popen(
        [sys.executable, *words],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    )
    try:
        assert eventually(lambda: started.exists() and started.read_text().endswith("\n"), 60.0)
        pid, socket = started.read_text().split()

        def flies() -> bool:
            with contextlib.suppress(LoopError):
                return bool(request(socket, op="loop")["controller"])
            return False

        assert how == "error" or eventually(flies, 60.0)
        if how == "interrupted":
            robot.send_signal(signal.SIGINT)
        elif how == "terminated":
            robot.terminate()
        elif how != "error":
            os.kill(int(pid), signal.SIGSTOP if how == "no action comes" else signal.SIGKILL)
        _, printed = robot.communicate(timeout=60)
    finally:
        robot.kill()
    assert not runs(int(pid))
    assert (robot.returncode, how != "error" or "ZeroDivisionError" in printed) == (status, True), printed


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.glob("examples/*.py")}
    assert set(lengths) == {"own_task.py", "ask_device.py", "robot_loop.py", "ros2.py", "mavlink.py"}
    assert max(lengths.pop("ros2.py"), lengths.pop("mavlink.py")) <= 165
    assert lengths.pop("robot_loop.py") <= 110
    assert max(lengths.values()) <= 90, lengths
