"""Measurements on all devices of a fleet, joined into one table; the fleet's state; a verb for each of a group."""

import json
from typing import Any

import pytest

from quarl import cli
from quarl.device.deploy.fleet.measuring import join_answers
from quarl.device.deploy.fleet.status import DeviceStatus
from quarl.device.deploy.fleet.tables import format_measured_table, status_table
from tests.device_deploy.fleet.conftest import Arena
from tests.device_deploy.fleet.faulty_fleet import Fault

NAMES = ["device-001", "device-002", "device-003"]


def test_each_device_is_measured_and_the_answers_are_joined(arena: Arena) -> None:
    arena.write(NAMES)
    assert arena.deploy()[0] == 0
    assert arena.typed("run", "latency", "--policy", "I", "--runs", "700")[0] == 0
    arena.devices.set_fault(NAMES[1], Fault.UNREACHABLE)
    status, lines, _ = arena.typed("run", "memory", "--policy", "I")
    assert status == 1 and "1 of 3 devices did not answer" in lines[-1]["error"]["message"]
    assert {line["device"]: line["state"] for line in lines if "device" in line} == {
        **dict.fromkeys(NAMES, "measured"),
        NAMES[1]: "not measured",
    }
    rows = {row.device: row for row in join_answers(arena.journal(), "I")}
    assert set(rows) == set(NAMES)
    for name, row in rows.items():
        assert row.release.startswith("0001-") and row.served == "int8 in native" and "loopback" in row.notes
        assert row.p50_us is not None and row.p99_us is not None and 0 < row.p50_us <= row.p99_us
        assert (row.memory_mb is None) == (name == NAMES[1])
    assert arena.deploy(4, "--only", NAMES[0])[0] == 0
    assert arena.typed("run", "memory", "--policy", "I", "--only", NAMES[0])[0] == 0
    rows = {row.device: row for row in join_answers(arena.journal(), "I")}
    assert rows[NAMES[0]].p50_us is None, "that was another release's"
    assert rows[NAMES[2]].p50_us is not None


def test_the_table_is_that_of_numbers_worked_by_hand() -> None:
    def event(device: str, kind: str, minute: int, answer: dict[str, Any], **more: Any) -> dict[str, Any]:
        served = {"release": "0003-aa", "precision": "int8", "runtime": "litert", "on": {"transport": "ssh"}, **more}
        time = f"2026-01-01T00:{minute:02d}"
        return {
            "state": "measured", "policy": "III", "device": device, "kind": kind, "time": time, "answer": answer,
            **served,
        }  # fmt: skip

    found = [
        event("a", "latency", 1, {"percentiles": {"p50": 9_000, "p99": 9_000}}),
        event("a", "latency", 2, {"percentiles": {"p50": 4_321, "p99": 123_456}, "invalid_reasons": ["throttled"]}),
        event("a", "memory", 3, {"memory": {"now": 45_600_000}}),
        event("a", "success", 4, {"success": {"rate": 0.9, "interval": [0.825, 0.945]}}),
        event("b", "latency", 1, {"percentiles": {"p50": 1_000}}, on={"transport": "loopback", "emulated": True}),
        event("b", "memory", 2, {"memory": {"now": 1_000_000}}, release="0004-bb"),
        {"state": "not measured", "policy": "III", "device": "c", "kind": "latency", "time": "2026"},
        event("d", "latency", 1, {"percentiles": {"p50": 1}}) | {"policy": "other"},
    ]
    lines = [line.split() for line in format_measured_table(join_answers(found, "III")).splitlines()[2:]]
    assert lines == [
        ["a", "0003-aa", "int8", "in", "litert", "4.32", "123", "45.6", "90.0", "[82.5,", "94.5]", "throttled"],
        ["b", "0004-bb", "int8", "in", "litert", "–", "–", "1", "–", "–"],
    ]


def test_the_state_of_each_device(arena: Arena) -> None:
    arena.write(NAMES)
    assert arena.deploy(8, "--only", NAMES[0], "--only", NAMES[1])[0] == 0
    link = arena.devices.folder(NAMES[1]).home / "quarl" / "policies" / "I" / "current"
    link.unlink()
    arena.devices.set_fault(NAMES[2], Fault.OTHER_KEY)
    status, lines, _ = arena.typed("status")
    assert status == 0 and lines[-1] == {"ok": True, "devices": 3, "entries": 3, "well": 1}
    found = {line["device"]: line for line in lines[:-1]}
    assert found[NAMES[0]]["release"].startswith("0001-") and found[NAMES[0]]["digest"] and not found[NAMES[0]]["drift"]
    assert found[NAMES[1]]["drift"].startswith("changed: 0001-") and not found[NAMES[1]]["release"]
    assert not found[NAMES[2]]["reached"] and "HAS CHANGED" in found[NAMES[2]]["health"][0]
    table = status_table([DeviceStatus("a", "I", "0001-ab", "abcdef0123", "", ("12 MB of disk left", "throttled"))])
    assert table.splitlines()[-1].split()[:5] == ["a", "I", "0001-ab", "abcdef01", "none"]
    assert table.splitlines()[-1].endswith("12 MB of disk left; throttled")


def test_any_verb_for_each_device_of_a_group(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    arena.write(NAMES)
    assert arena.deploy()[0] == 0
    monkeypatch.setenv("QUARL_FLEET", str(arena.file))
    arena.capture.readouterr()
    assert cli.main(["releases", "--target", "@arena"]) == 0
    assert [line.split(":")[0] for line in arena.capture.readouterr().out.splitlines()] == NAMES
    arena.devices.set_fault(NAMES[1], Fault.UNREACHABLE)
    assert cli.main(["remove", "--target", "@arena", "--policy", "I", "--all", "--json"]) == 1
    lines = [json.loads(line) for line in arena.capture.readouterr().out.splitlines()]
    assert {line["device"]: line["ok"] for line in lines[:-1]} == {**dict.fromkeys(NAMES, True), NAMES[1]: False}
    assert "remove failed on 1 of 3 devices" in lines[-1]["error"]["message"]
    assert arena.served(NAMES) == {**dict.fromkeys(NAMES), NAMES[1]: "int8"}
    assert cli.main(["deploy", "--target", "@arena", "--policy", "I"]) == 1
    assert "fleet deploy --group arena --policy I" in arena.capture.readouterr().err
    assert cli.main(["releases", "--target", "@nope"]) == 1
    assert "has no group 'nope'; it has arena" in arena.capture.readouterr().err
