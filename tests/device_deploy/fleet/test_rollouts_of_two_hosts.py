"""Two rollouts to the same devices: who comes second is told, and nobody counts what the other has replaced."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.device.deploy.fleet.identity import HELD_S, Identity
from quarl.device.deploy.fleet.rollout import Rollout
from quarl.device.deploy.state import ENDED_FILE, ROLLOUT_FILE
from tests.device_deploy.fleet.conftest import Arena, summary

INT8, INT4 = "int8", "int4"
ALL = [f"device-{number:03d}" for number in range(1, 5)]


@pytest.fixture
def one(arena: Arena) -> Arena:
    arena.write(ALL)
    return arena


@pytest.fixture
def other(one: Arena, tmp_path: Path) -> Arena:
    """Another host's fleet.toml and journal, with the same devices."""
    made = dataclasses.replace(one, file=tmp_path / "other.toml")
    made.write(ALL)
    return made


def marks(arena: Arena) -> list[tuple[bool, bool]]:
    """Of each device, whether it is in a rollout, and whether one has ended there."""
    folders = [arena.devices.folder(name).home / "quarl" / "policies" / "I" for name in ALL]
    return [((folder / ROLLOUT_FILE).exists(), (folder / ENDED_FILE).exists()) for folder in folders]


def of(lines: list[dict[str, object]], name: str) -> list[object]:
    """The codes of a device's errors."""
    return [line["code"] for line in lines if line.get("device") == name and "code" in line]


def test_the_second_is_refused_before_anything_is_sent_and_may_take_over(
    one: Arena, other: Arena, at_soak: Callable[[Callable[[], object]], None]
) -> None:
    found = []

    def second() -> None:
        found.append(other.deploy(4))
        assert one.served(ALL) == {ALL[0]: INT8, **dict.fromkeys(ALL[1:])}
        found.append(other.deploy(4, "--take-over"))

    at_soak(second)
    status, lines, states = one.deploy(8)
    (refused, refusal, _), (taken, _, taken_over) = found
    assert refused == 1 and [line.get("error", {}).get("code") for line in refusal] == ["device_in_rollout"]
    assert ALL[0] in refusal[0]["error"]["message"] and "--take-over" in refusal[0]["error"]["next"]
    assert taken == 0 and taken_over == dict.fromkeys(ALL, "proved")
    assert status == 1 and states == {ALL[0]: "replaced", **dict.fromkeys(ALL[1:], "not begun")}
    assert of(lines, ALL[0]) == ["replaced"] and one.served(ALL) == dict.fromkeys(ALL, INT4)
    assert marks(one) == [(False, True)] * len(ALL), "both have ended"
    assert one.deploy(8)[2] == dict.fromkeys(ALL, "proved"), "an ended rollout keeps nobody away"


def test_the_last_look_finds_what_was_replaced(one: Arena, other: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    last_look = Rollout._last_look

    def replaced_before(rollout: Rollout) -> None:
        monkeypatch.setattr(Rollout, "_last_look", last_look)
        assert other.deploy(4, "--take-over", "--only", ALL[1])[0] == 0
        last_look(rollout)

    monkeypatch.setattr(Rollout, "_last_look", replaced_before)
    status, lines, states = one.deploy(8)
    assert states == {**dict.fromkeys(ALL, "proved"), ALL[1]: "replaced"}
    assert status == 1 and summary(lines)["error"]["code"] == "fleet_incomplete" and of(lines, ALL[1]) == ["replaced"]
    assert one.served(ALL) == {**dict.fromkeys(ALL, INT8), ALL[1]: INT4}
    drifts = {line["device"]: line["drift"] for line in one.typed("status")[1] if "device" in line}
    assert drifts == {**dict.fromkeys(ALL, ""), ALL[1]: "behind: replaced"}


def test_who_ended_meanwhile_stays(one: Arena, other: Arena, at_soak: Callable[[Callable[[], object]], None]) -> None:
    at_soak(lambda: other.deploy(4, "--only", ALL[1]))
    status, lines, states = one.deploy(8, "--batch", "1")
    assert status == 1 and of(lines, ALL[1]) == ["device_in_rollout"]
    assert states == {ALL[0]: "proved", ALL[1]: "not changed", **dict.fromkeys(ALL[2:], "not begun")}
    assert one.served(ALL) == {ALL[0]: INT8, ALL[1]: INT4, **dict.fromkeys(ALL[2:])}
    assert one.deploy(8)[2] == dict.fromkeys(ALL, "proved"), "it starts over, and knows of the other"


def test_a_rollout_of_a_dead_host_resumes_or_ends(one: Arena, other: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as died:
        died.setattr(Rollout, "_last_look", lambda rollout: None)
        assert one.deploy(8, "--only", ALL[0], "--only", ALL[1])[0] == 0
    assert marks(one)[:2] == [(True, False)] * 2
    assert summary(other.deploy(4)[1])["error"]["code"] == "device_in_rollout"
    assert one.deploy(4, "--only", ALL[0])[0] == 0, "its own journal goes on"
    assert marks(one)[:2] == [(False, True), (True, False)]
    file = one.devices.folder(ALL[1]).home / "quarl" / "policies" / "I" / ROLLOUT_FILE
    mark = json.loads(file.read_text())
    for age_s in (HELD_S + 60, -HELD_S - 60):
        file.write_text(json.dumps({**mark, "time": int(time.time() - age_s)}))
        assert other.deploy(4 if age_s > 0 else 8)[2] == dict.fromkeys(ALL, "proved")
        assert marks(one)[1] == (False, True)


def test_whose_a_rollout_is() -> None:
    mine = Identity({"before"})
    mark = {**mine.mark(), "ended": False}
    theirs = {**mark, "rollout": "theirs"}
    assert mine.is_own(mark) and mine.is_own({**mark, "rollout": "before"}) and not mine.is_own(theirs)
    assert not mine.is_own({**mark, "host": "elsewhere"}), "a journal that was copied there"
    assert mine.is_at_work(theirs) and not mine.is_at_work(mark) and not mine.is_at_work(None)
    assert not mine.is_at_work({**theirs, "ended": True})
    for nonsense in ("now", -1, 10**400, None, True):
        assert not mine.is_at_work({**theirs, "time": nonsense})
