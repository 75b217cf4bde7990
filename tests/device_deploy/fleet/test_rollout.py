"""Rollouts to an embedded fleet over SSH: order, what stops one, what is taken back, and going on."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import install
from quarl.device.deploy.errors import ReleaseError
from quarl.device.deploy.fleet.board import Board
from quarl.device.deploy.fleet.inventory import Fleet, Member
from quarl.device.deploy.fleet.journal import Memory, open_journal
from quarl.device.deploy.fleet.result import Result
from quarl.device.deploy.fleet.rollout import Rollout, Settings
from quarl.device.deploy.fleet.worker_pool import WorkerPool
from quarl.device.deploy.payload import Payload
from quarl.device.deploy.probe import TargetFacts, probe
from quarl.device.deploy.releases import list_releases, remove_releases, rollback
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy.devices import served_text, stand_in_payload
from tests.device_deploy.fleet.conftest import Arena, summary
from tests.device_deploy.fleet.faulty_fleet import Fault
from tests.refusals import refused

INT8, INT4 = "int8", "int4"


def ids(*numbers: int) -> list[str]:
    return [f"device-{number:03d}" for number in numbers]


ALL = ids(1, 2, 3, 4, 5, 6)


def order(lines: list[dict[str, object]], state: str) -> list[object]:
    return [line["device"] for line in lines if line.get("state") == state]


def test_a_canary_then_batches_then_nothing_more_to_do(arena: Arena) -> None:
    status, lines, states = arena.deploy(8, "--batch", "2")
    assert status == 0, lines
    assert states == dict.fromkeys(ALL, "proved")
    begun = order(lines, "begun")
    assert begun[0] == ALL[0] and [set(begun[1:3]), set(begun[3:5])] == [set(ALL[1:3]), set(ALL[3:5])]
    first_batch = next(index for index, line in enumerate(lines) if line.get("phase") == "batch 1 of 3")
    assert {"device": ALL[0], "state": "proved"}.items() <= lines[first_batch - 1].items(), "the canary proved it first"
    done = summary(lines)
    assert done["kinds"] == 1 and done["complete"] and done["counts"] == {"proved": 6}
    assert [name for name, _ in done["phases"]] == ["canary", *(f"batch {number} of 3" for number in (1, 2, 3))]
    assert arena.served(ALL) == dict.fromkeys(ALL, INT8)
    sent = done["sent_bytes"]
    status, lines, _ = arena.deploy(8, "--batch", "2", soak=60)
    assert status == 0 and summary(lines)["seconds"] < 60, "what has proved itself is not watched again"
    assert sent > 6 * 100_000 and summary(lines)["sent_bytes"] == 0 and order(lines, "switched") == []


def test_a_canary_that_misses_deadlines_is_rolled_back_alone(arena: Arena) -> None:
    assert arena.deploy()[0] == 0
    status, lines, states = arena.deploy(4, "--deadline-ms", "0.000001")
    assert status == 1 and summary(lines)["error"]["code"] == "fleet_incomplete"
    assert "One decision in a hundred takes" in summary(lines)["error"]["message"]
    assert states == {ALL[0]: "rolled back", **dict.fromkeys(ALL[1:], "not begun")}
    assert order(lines, "begun") == ALL[:1]
    assert arena.served(ALL) == dict.fromkeys(ALL, INT8)
    status, lines, _ = arena.typed("status", "--policy", "I")
    drifts = {line["device"]: line["drift"] for line in lines if "device" in line}
    assert drifts == {ALL[0]: "rolled back", **dict.fromkeys(ALL[1:], "behind: not begun")}
    assert arena.deploy(4)[2] == dict.fromkeys(ALL, "proved"), "what was taken back may be tried again"


def test_a_first_release_that_is_taken_back_leaves_nothing(arena: Arena) -> None:
    status, _, states = arena.deploy(8, "--deadline-ms", "0.000001", "--canary", "2")
    assert status == 1
    assert [states[name] for name in ALL[:3]] == ["rolled back", "rolled back", "not begun"]
    assert arena.served(ALL) == dict.fromkeys(ALL)
    assert not (arena.devices.folder(ALL[0]).home / "quarl" / "policies" / "I").exists()


@pytest.mark.slow
def test_a_device_lost_in_the_switch_stops_and_rolls_back_its_phase(arena: Arena) -> None:
    assert arena.deploy()[0] == 0
    arena.devices.set_fault(ALL[2], Fault.DIES_AFTER_SWITCH)
    status, lines, states = arena.deploy(4, "--batch", "2", "--parallel", "1")
    assert status == 1 and "the release failed on 1 device up to batch 1 of 3, 0 are allowed" in str(lines[-1])
    assert states == {ALL[0]: "proved", ALL[1]: "rolled back", ALL[2]: "unknown", **dict.fromkeys(ALL[3:], "not begun")}
    assert arena.served(ALL) == {ALL[0]: INT4, ALL[1]: INT8, ALL[2]: INT4, **dict.fromkeys(ALL[3:], INT8)}
    found = {line["device"]: line for line in arena.typed("status")[1] if "device" in line}
    assert found[ALL[2]]["drift"] == "not seen; last unknown" and not found[ALL[2]]["reached"]
    arena.devices.heal(ALL[2])
    status, lines, states = arena.deploy(4, "--batch", "2")
    assert status == 0 and states == dict.fromkeys(ALL, "proved")
    assert ALL[0] not in order(lines, "switched"), "the canary has it"
    assert arena.served(ALL) == dict.fromkeys(ALL, INT4) and not arena.half_done(ALL)


@pytest.mark.slow
def test_as_many_may_fail_as_were_allowed(arena: Arena) -> None:
    assert arena.deploy()[0] == 0
    arena.devices.set_fault(ALL[2], Fault.DIES_BEFORE_SWITCH)
    arena.devices.set_fault(ALL[3], Fault.DIES_AFTER_SWITCH)
    status, lines, states = arena.deploy(4, "--max-fail", "2")
    assert status == 1 and summary(lines)["error"]["message"].startswith("Some devices do not serve it yet.")
    assert {name: state for name, state in states.items() if state != "proved"} == dict.fromkeys(ALL[2:4], "unknown")
    arena.devices.heal(ALL[2])
    arena.devices.heal(ALL[3])
    assert arena.served(ALL[2:4]) == {ALL[2]: INT8, ALL[3]: INT4}, "each is at one release or the other"
    assert arena.deploy(4)[2] == dict.fromkeys(ALL, "proved") and not arena.half_done(ALL)


def test_unreachable_canaries_are_replaced_and_the_command_resumes(arena: Arena) -> None:
    arena.devices.set_fault(ALL[0], Fault.UNREACHABLE)
    arena.devices.set_fault(ALL[1], Fault.OTHER_KEY)
    status, lines, states = arena.deploy(8, "--canary", "2")
    assert status == 1
    assert states == {**dict.fromkeys(ALL[:2], "not changed"), **dict.fromkeys(ALL[2:], "proved")}
    canaries = [line for line in lines if line.get("phase") == "canary"]
    assert set(order(canaries, "proved")) == set(ALL[2:4])
    errors = {line["device"]: line for line in lines if line.get("state") == "not changed"}
    assert errors[ALL[0]]["code"] == "connection_failed" and errors[ALL[1]]["code"] == "changed_host_key"
    arena.devices.heal(ALL[0])
    arena.devices.heal(ALL[1])
    status, lines, states = arena.deploy(8, "--canary", "2")
    assert status == 0 and states == dict.fromkeys(ALL, "proved") and set(order(lines, "switched")) == set(ALL[:2])


def test_a_fleet_that_nobody_reaches(arena: Arena) -> None:
    for name in ALL:
        arena.devices.set_fault(name, Fault.UNREACHABLE)
    status, lines, states = arena.deploy()
    assert status == 1 and states == dict.fromkeys(ALL, "not changed")
    assert "no device could be changed" in summary(lines)["error"]["message"]


@pytest.mark.slow
def test_a_canary_that_is_gone_in_its_soak(arena: Arena, at_soak: Callable[[Callable[[], object]], None]) -> None:
    """It cannot be taken back, which is said, and the next rollout goes on."""
    assert arena.deploy()[0] == 0
    at_soak(lambda: arena.devices.set_fault(ALL[0], Fault.UNREACHABLE))
    status, lines, states = arena.deploy(4, soak=1)
    assert status == 1 and states == {ALL[0]: "rollback failed", **dict.fromkeys(ALL[1:], "not begun")}
    assert order(lines, "failed") == ALL[:1]
    assert f"releases --target {ALL[0]}" in summary(lines)["error"]["next"]
    arena.devices.heal(ALL[0])
    assert arena.served(ALL) == {ALL[0]: INT4, **dict.fromkeys(ALL[1:], INT8)}
    assert arena.deploy(4)[2] == dict.fromkeys(ALL, "proved")


def test_a_canary_that_refuses_its_golden_vectors(arena: Arena) -> None:
    """The release's own agent refuses it on the device, which no bundle that the host accepts brings about."""
    for name in ALL[:2]:
        with connect(name) as connection:
            install(connection, stand_in_payload("S", "old"), WheelSet(probe(connection).python, ()))
    result = roll_out(arena, stand_in_payload("S", "new", refuse="load"))
    assert result.stopped == "the release failed on 1 device up to canary, 0 are allowed"
    assert result.states == {ALL[0]: "refused", **dict.fromkeys(ALL[1:], "not begun")}
    assert "vector 3 differs" in result.errors[ALL[0]]
    for name in ALL[:2]:
        with connect(name) as connection:
            assert served_text(connection, "S") == "old"


class OnePayload:
    """What a rollout is given to send: one stand-in release, whose agent answers what the test wants."""

    kinds = 1

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.bundle = SimpleNamespace(spec=SimpleNamespace(name=payload.policy))

    def of(self, member: Member, facts: TargetFacts) -> tuple[Payload, WheelSet]:
        return self.payload, WheelSet(facts.python, ())


def roll_out(arena: Arena, payload: Payload) -> Result:
    fleet = Fleet.load(arena.file)
    with open_journal(fleet) as journal:
        payloads: Any = OnePayload(payload)
        settings = Settings(soak_s=0, deadline_ms=1e3)
        return Rollout(fleet.members, payloads, settings, journal, Memory([], "S"), WorkerPool(4, Board())).run()


def test_two_rollouts_at_once_are_refused_and_a_torn_line_is_skipped(arena: Arena) -> None:
    with open_journal(Fleet.load(arena.file)) as journal:
        journal.write(policy="I", device=ALL[0], phase="canary", state="proved", digest="d" * 64)
        status, lines, _ = arena.deploy()
        assert status == 1 and lines[-1]["error"]["code"] == "rollout_at_work"
        assert arena.typed("status")[0] == 0
    with arena.file.with_name("fleet.journal.jsonl").open("a") as file:
        file.write('{"device": "device-00')
    assert arena.deploy(8, "--only", ALL[0])[0] == 0
    assert [event["state"] for event in arena.journal() if "phase" in event] == [
        *("proved", "begun", "switching", "switched", "proved")
    ]


def test_what_somebody_deployed_by_hand_is_not_taken_back(arena: Arena) -> None:
    assert arena.deploy(8, "--only", ALL[0])[0] == 0
    arena.file.with_name("fleet.journal.jsonl").unlink()
    status, _, states = arena.deploy(8, "--deadline-ms", "0.000001", "--only", ALL[0])
    assert status == 1 and states == {ALL[0]: "failed"} and arena.serving(ALL[0]) == INT8


def test_an_artifact_that_is_missing_is_named_before_a_device_is_asked(arena: Arena) -> None:
    status, lines, states = arena.deploy(6)
    assert status == 1 and states == {} and "has no int6 native artifact" in lines[-1]["error"]["message"]
    assert arena.journal() == []


def test_what_somebody_changed_meanwhile_is_not_gone_back_from(arena: Arena) -> None:
    with connect(ALL[0]) as connection:
        wheels = WheelSet(probe(connection).python, ())
        first, second = (install(connection, stand_in_payload("S", text), wheels).release for text in ("one", "two"))
        with refused(ReleaseError, "changed_meanwhile", shows=[first, second]):
            rollback(connection, "S", only_from=first)
        with pytest.raises(ReleaseError, match="somebody"):
            remove_releases(connection, "S", first, withdraw=True)
        assert served_text(connection, "S") == "two"
        assert remove_releases(connection, "S", second, withdraw=True).serving is None
        found = list_releases(connection).policies["S"]
        assert found.current is None and [each.name for each in found.releases] == [first]
