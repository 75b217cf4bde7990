"""A rollout that ends in its middle: Ctrl-C, kill -9, the network gone. Nothing is half done, and it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device_deploy.devices import eventually
from tests.device_deploy.fleet.conftest import Arena, own_state
from tests.device_deploy.fleet.faulty_fleet import Fault, running_fleet

pytestmark = pytest.mark.slow

SLOW = ("device-004", "device-005")
ALL = [f"device-{number:03d}" for number in range(1, 10)]


def begun(arena: Arena, *words: str) -> subprocess.Popen[str]:
    """A rollout of int4 in a process of its own; some devices are so slow that it does not end before it is killed."""
    for name in SLOW:
        arena.devices.set_fault(name, Fault.SLOW)
    options = ["--policy", str(arena.policy.path), "--bits", "4", "--soak", "0", "--canary", "0", "--batch", "100%"]
    command = [
        sys.executable,
        "-m",
        "quarl.device.deploy",
        "fleet",
        "deploy",
        "--fleet",
        str(arena.file),
        *options,
        *words,
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        # A shell's background jobs inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def heal(arena: Arena) -> None:
    for name in SLOW:
        arena.devices.heal(name)


@pytest.mark.parametrize(("number", "at"), [("SIGINT", "begun"), ("SIGKILL", "switched")])
def test_killed_in_the_middle(arena: Arena, number: str, at: str) -> None:
    arena.write(ALL)
    assert arena.deploy(8, "--canary", "0", "--batch", "100%")[0] == 0
    before = len(arena.journal())
    process = begun(arena, "--parallel", "3")
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
            process = begun(lost, "--parallel", "2")
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
