"""What a journal remembers: what has proved itself, what a rollout brought, and how a device differs from that."""

from typing import Any

from quarl.device.deploy.fleet.journal import Memory
from quarl.device.deploy.fleet.states import State
from quarl.device.deploy.fleet.status import _drift

Event = dict[str, Any]


def begin(*devices: str) -> Event:
    return {"policy": "I", "event": "begin", "devices": list(devices)}


def on(device: str, *states: str, release: str = "0002-b", digest: str = "b", previous: str = "0001-a") -> list[Event]:
    """What a rollout writes of a device on its way through these states."""
    facts = {"release": release, "digest": digest, "previous": previous}
    with_release = ("switching", "switched", "unchanged", "failed", "proved", "rollback failed")
    found = []
    for state in states:
        known = facts if state in with_release else {"release": previous} if state == "rolled back" else {}
        found.append({"policy": "I", "device": device, "phase": "canary", "state": state, **known})
    return found


SWITCHED = ("begun", "switching", "switched")


def test_what_a_rollout_brought_goes_back_until_it_is_accepted() -> None:
    for states in (SWITCHED, ("begun", "switching"), ("begun", "switching", "unknown"), (*SWITCHED, "failed")):
        assert Memory([begin("d"), *on("d", *states)], "I").find_previous_release("d", "0002-b") == "0001-a", states
    cut = [begin("d"), *on("d", *SWITCHED), begin("d"), *on("d", "begun", "not changed"), begin("d")]
    assert Memory(cut, "I").find_previous_release("d", "0002-b") == "0001-a", (
        "a rollout that did not reach it changes nothing"
    )
    assert Memory([begin("d"), *on("d", *SWITCHED, previous="")], "I").find_previous_release("d", "0002-b") == ""


def test_what_no_rollout_brought_or_what_was_accepted_stays() -> None:
    proved = [begin("d"), *on("d", *SWITCHED, "proved")]
    assert Memory(proved, "I").find_previous_release("d", "0002-b") is None
    assert Memory(proved, "I").has_passed_soak("d", "b") and not Memory(proved, "I").has_passed_soak("d", "c")
    back = [begin("d"), *on("d", *SWITCHED, "failed", "rolled back")]
    assert Memory(back, "I").find_previous_release("d", "0002-b") is None, "somebody deployed it by hand since"
    assert not Memory(back, "I").has_passed_soak("d", "b")
    later = [*proved, begin("d"), *on("d", *SWITCHED, release="0003-c", digest="c", previous="0002-b")]
    assert Memory(later, "I").find_previous_release("d", "0002-b") is None, "somebody went back to it by hand"
    assert not Memory(later, "I").has_passed_soak("d", "b")
    assert Memory(later, "I").find_previous_release("d", "0003-c") == "0002-b"
    assert Memory([], "I").find_previous_release("d", "0002-b") is None
    assert Memory(later, "II").find_previous_release("d", "0003-c") is None, "of another policy"


def test_a_refused_release_leaves_what_was_proved() -> None:
    found = [begin("d"), *on("d", *SWITCHED, "proved"), begin("d"), *on("d", "begun", "refused")]
    assert Memory(found, "I").has_passed_soak("d", "b")


def test_how_a_device_differs_from_what_was_rolled_out() -> None:
    def drift(found: list[Event], current: str = "0002-b", digest: str = "b") -> str:
        return _drift(Memory(found, "I"), "d", current, digest)

    proved = [begin("d", "e"), *on("d", *SWITCHED, "proved")]
    assert drift([]) == "" == drift(proved)
    assert drift(proved, "0001-a", "a") == "changed: 0002-b was rolled out"
    assert drift([begin("d"), *on("d", *SWITCHED)]) == "not proved yet"
    assert drift([begin("d"), *on("d", "begun")], "0001-a", "a") == "cut off in the rollout"
    assert drift([begin("d"), *on("d", "begun", "refused")], "0001-a", "a") == "behind: refused"
    back = [begin("d"), *on("d", *SWITCHED, "failed", "rolled back")]
    assert drift(back, "0001-a", "a") == "rolled back"
    assert drift(back) == "changed: rolled back to 0001-a"
    again = [*proved, begin("d", "e"), *on("e", "begun", "unchanged")]
    assert drift(again) == "", "the same content, though the second rollout did not come to it"
    other = [*proved, begin("d", "e"), *on("e", *SWITCHED, release="0003-c", digest="c")]
    assert drift(other) == f"behind: {State.NOT_BEGUN}"
    assert drift([*proved, begin("d", "e"), *on("e", "begun", "not changed")]) == "", "nobody got another"
