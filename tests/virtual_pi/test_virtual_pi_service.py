"""A policy served in a loop on the virtual Pi: it survives a reboot, under systemd and without; systemd's limits hold.

The machine under systemd is booted twice, the one under busybox's init twice, from one card.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from quarl import cli
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.errors import HostError
from quarl.device.virtual_pi import running
from quarl.device.virtual_pi.machine import MachineSettings
from quarl.device.virtual_pi.recipe import Init
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision
from tests.device_deploy.devices import eventually

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0
# An emulator's times say nothing of a Pi's: no deadline is on trial here, and a slow rate gives the watchdog patience.
USUAL = ("--rate", "1", "--enable", "--trial", "1", "--most-missed", "1e6")


def verb(pi: Any, capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """One verb on the machine: exit status and reply."""
    capsys.readouterr()
    status = cli.main([name, "--target", f"pi@{pi.name}", "--policy", "I", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def is_active(pi: Any, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the loop is active, and answers."""
    status, reply = verb(pi, capsys, "serving")
    return status == 0 and reply["state"] == "active" and reply["loop"] is not None


def boot_id(pi: Any) -> str:
    with pi.connect() as connection:
        return str(connection.run("cat /proc/sys/kernel/random/boot_id").stdout)


def test_under_systemd_it_is_served_after_a_reboot_and_within_limits(
    pi: Any, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    pi.start(MachineSettings(init=Init.SYSTEMD))
    assert pi.root("readlink /proc/1/exe").strip().endswith("/lib/systemd/systemd")
    with pi.connect() as connection:
        release = deploy(connection, bundle, [Precision.INT8]).release
    status, served = verb(pi, capsys, "serve", *USUAL)
    assert (status, served["manager"], served["release"], served["state"]) == (0, "systemd", release, "active")

    # What the refusal prints, typed as root, gives the loop its priority and its memory, from the next boot on too.
    assert not any(each["granted"] for each in served["loop"]["granted"])
    grants = served["loop"]["what_grants_it"]
    assert "/etc/security/limits.d/quarl.conf" in grants.splitlines()[0]
    lines = "".join(f"{line}\\n" for line in grants.splitlines()[1:])
    pi.root(f"printf '{lines}' > /etc/security/limits.d/quarl.conf")

    before = boot_id(pi)
    running.reboot(pi.name)
    assert boot_id(pi) != before
    assert eventually(lambda: is_active(pi, capsys), PATIENCE_S)
    assert all(each["granted"] for each in verb(pi, capsys, "serving")[1]["loop"]["granted"])

    hanging = verb(pi, capsys, "serving")[1]
    pi.root(f"kill -STOP {hanging['pid']}")  # no heartbeat: the watchdog's

    def started_again() -> bool:
        state = verb(pi, capsys, "serving")[1]
        return state["restarts"] > hanging["restarts"] and state["state"] == "active" and state["loop"] is not None

    assert eventually(started_again, PATIENCE_S)

    status, refused = verb(pi, capsys, "serve", *USUAL, "--memory-max", "8")
    assert status == 1 and "did not start" in refused["error"]["message"]
    assert "oom-kill" in pi.root("journalctl -b --no-pager _UID=1000 + _PID=1 | grep -m1 oom-kill")
    assert eventually(lambda: is_active(pi, capsys), PATIENCE_S)  # as it was served before
    assert verb(pi, capsys, "unserve") == (0, {"ok": True, "was_served": True})
    running.stop(pi.name)


def test_without_systemd_a_supervisor_does_it_and_cron_starts_it(
    pi: Any, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    pi.up()
    with pi.connect() as connection:
        release = deploy(connection, bundle, [Precision.INT8]).release
        status, served = verb(pi, capsys, "serve", *USUAL)
        assert (status, served.get("manager"), served.get("state")) == (0, "supervisor", "active"), served
        assert connection.run("crontab -l").stdout.count("@reboot") == 1
    running.reboot(pi.name)
    assert eventually(lambda: reached(pi) and is_active(pi, capsys), PATIENCE_S)
    assert verb(pi, capsys, "serving")[1]["loop"]["release"] == release
    assert verb(pi, capsys, "unserve")[0] == 0
    with pi.connect() as connection:
        assert connection.run("crontab -l", check=False).stdout == ""
        assert connection.run("pgrep -f [s]upervise.py || true").stdout == ""


def reached(pi: Any) -> bool:
    try:
        with pi.connect():
            return True
    except HostError:
        return False
