"""Rollouts to devices that serve the policy in a loop: the loop is what is watched, and what is taken back with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from tests.device_deploy.devices import eventually
from tests.device_deploy.fleet.conftest import Arena

pytestmark = pytest.mark.slow
NAMES = ["device-001", "device-002"]
SERVED = ("--rate=20", "--priority=0", "--trial=1", "--most-missed=1e6", "--stale-ms=5000")
PYTHON_AGENT = ("--runtime", "native")
"""Another release that has int8 for the native engine, too."""


@pytest.fixture
def served(arena: Arena) -> Arena:
    """Two devices with int8, the first of which serves it in a loop."""
    arena.write(NAMES)
    assert arena.deploy()[0] == 0
    assert cli.main(["serve", "--target", NAMES[0], "--policy", "I", *SERVED]) == 0
    return arena


def state(arena: Arena) -> dict[str, Any]:
    """The loop's state, as its supervisor keeps it."""
    file: Path = arena.devices.folder(NAMES[0]).home / "quarl" / "services" / "I.state"
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def current(arena: Arena, name: str) -> str:
    return (arena.devices.folder(name).home / "quarl" / "policies" / "I" / "current").readlink().name


def loop_serves(arena: Arena) -> str:
    """The release that the loop says it serves."""
    arena.capture.readouterr()
    assert cli.main(["serving", "--target", NAMES[0], "--policy", "I", "--json"]) == 0
    return str(json.loads(arena.capture.readouterr().out)["loop"]["release"])


def end_service(arena: Arena) -> None:
    assert cli.main(["unserve", "--target", NAMES[0], "--policy", "I"]) == 0


def test_a_loop_that_falls_in_its_soak_goes_back_with_its_release(
    served: Arena, at_soak: Callable[[Callable[[], object]], None]
) -> None:
    before = current(served, NAMES[0])
    at_soak(lambda: os.kill(state(served)["pid"], signal.SIGKILL))
    status, lines, states = served.deploy(8, *PYTHON_AGENT, soak=2)
    assert status == 1 and states == {NAMES[0]: "rolled back", NAMES[1]: "not begun"}
    (why,) = [line["error"] for line in lines if line.get("state") == "failed"]
    assert "loop" in why, why
    assert current(served, NAMES[0]) == before == loop_serves(served)
    assert served.deploy(8, *PYTHON_AGENT, soak=2)[2] == dict.fromkeys(NAMES, "proved")
    assert current(served, NAMES[0]) != before and loop_serves(served) == current(served, NAMES[0])
    end_service(served)


def test_a_device_whose_host_is_killed_in_a_trial_goes_back_by_itself(served: Arena) -> None:
    """int4 has not what the loop is to decide with: its trial fails, and nobody is there to be told."""
    before = current(served, NAMES[0])
    options = ["--policy", str(served.policy.path), "--bits", "4", "--soak", "0"]
    command = [sys.executable, "-m", "quarl.device.deploy", "fleet", "deploy", "--fleet", str(served.file), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert eventually(lambda: current(served, NAMES[0]) != before or process.poll() is not None, 60)
    process.kill()
    process.communicate(timeout=60)
    assert eventually(lambda: current(served, NAMES[0]) == before, 60)
    assert eventually(lambda: state(served)["state"] == "active", 60)
    assert loop_serves(served) == before and served.serving(NAMES[1]) == "int8"
    end_service(served)
