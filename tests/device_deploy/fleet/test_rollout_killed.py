"""A rollout that ends in its middle: Ctrl-C, kill -9, no network, a loop that falls. Nothing is half done."""

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
from tests.device_deploy.fleet.conftest import Arena, own_state
from tests.device_deploy.fleet.faulty_fleet import Fault, running_fleet

pytestmark = pytest.mark.slow

SLOW = ("device-004", "device-005")
ALL = [f"device-{number:03d}" for number in range(1, 10)]


def begun(arena: Arena, *words: str) -> subprocess.Popen[str]:
    """A rollout of int4 in a process of its own."""
    options = ["--policy", str(arena.policy.path), "--bits", "4", "--soak", "0", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "quarl.device.deploy", "fleet", "deploy", "--fleet", str(arena.file), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def begun_slowly(arena: Arena, *words: str) -> subprocess.Popen[str]:
    """The same at once on all devices, some of which are so slow that it does not end before it is killed."""
    for name in SLOW:
        arena.devices.set_fault(name, Fault.SLOW)
    return begun(arena, "--canary", "0", "--batch", "100%", *words)


def heal(arena: Arena) -> None:
    for name in SLOW:
        arena.devices.heal(name)


@pytest.mark.parametrize(("number", "at"), [("SIGINT", "begun"), ("SIGKILL", "switched")])
def test_killed_in_the_middle(arena: Arena, number: str, at: str) -> None:
    arena.write(ALL)
    assert arena.deploy(8, "--canary", "0", "--batch", "100%")[0] == 0
    before = len(arena.journal())
    process = begun_slowly(arena, "--parallel", "3")
    wanted = 5 if at == "begun" else 2
    assert eventually(lambda: sum(each.get("state") == at for each in arena.journal()[before:]) >= wanted, 60)
    process.send_signal(signal.Signals[number])
    _, error = process.communicate(timeout=60)
    heal(arena)
    if number == "SIGINT":
        assert process.returncode == 130 and "no device is between two releases" in error
    assert eventually(lambda: arena.is_idle(ALL)), "a device that was told to switch does so, its host gone or not"
    assert not arena.half_done(ALL)
    served = arena.served(ALL)
    assert set(served.values()) <= {"int8", "int4"}
    found = {line["device"]: line for line in arena.typed("status")[1] if "device" in line}
    said = {name: line["release"].split("-")[0] for name, line in found.items()}
    assert said == {name: "0002" if precision == "int4" else "0001" for name, precision in served.items()}
    assert all(line["drift"] for line in found.values()), "none has proved the new release"
    status, lines, states = arena.deploy(4, "--canary", "0", "--batch", "100%")
    assert status == 0 and states == dict.fromkeys(ALL, "proved"), lines
    assert arena.served(ALL) == dict.fromkeys(ALL, "int4")


def test_a_network_that_is_lost_in_the_middle(arena: Arena, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole fleet is switched off, and on again: every line breaks at once."""
    with own_state(tmp_path):
        root = tmp_path / "fleet"
        lost = Arena(arena.devices, arena.policy, arena.file, capsys)
        lost.write(ALL[:6])
        with running_fleet(root, 6) as devices:
            lost.devices = devices
            assert lost.deploy(8, "--canary", "0", "--batch", "100%")[0] == 0
            before = len(lost.journal())
            process = begun_slowly(lost, "--parallel", "2")
            assert eventually(lambda: sum(each.get("state") == "begun" for each in lost.journal()[before:]) >= 3, 60)
            os.kill(devices.pid, signal.SIGKILL)
            process.communicate(timeout=120)
            heal(lost)
            assert process.returncode == 1
        with running_fleet(root, 6) as devices:
            lost.devices = devices
            assert set(lost.served(ALL[:6]).values()) <= {"int8", "int4"}
            assert lost.deploy(4)[2] == dict.fromkeys(ALL[:6], "proved")
            assert not lost.half_done(ALL[:6])


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


def test_a_loop_that_falls_in_soak_goes_back(served: Arena, at_soak: Callable[[Callable[[], object]], None]) -> None:
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
    process = begun(served)
    assert eventually(lambda: current(served, NAMES[0]) != before or process.poll() is not None, 60)
    process.kill()
    process.communicate(timeout=60)
    assert eventually(lambda: current(served, NAMES[0]) == before, 60)
    assert eventually(lambda: state(served)["state"] == "active", 60)
    assert loop_serves(served) == before and served.serving(NAMES[1]) == "int8"
    end_service(served)
