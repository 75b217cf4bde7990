"""A rollback lands on something good: marks, pruning, damaged records, and a line that is cut in the switch."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import CheckFailedError, ConnectionLostError, HostError, ReleaseError, VerificationError
from quarl.device.deploy.golden import golden_checks
from quarl.device.deploy.helper_session import HelperSession
from quarl.device.deploy.releases import Release, list_releases, remove_releases, rollback
from quarl.device.deploy.wheels import WheelSet
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.devices import Line, TestDevice, eventually, served_text, stand_in_payload


def shown(connection: Connection, policy: str) -> dict[str, Release]:
    return {release.name: release for release in list_releases(connection).policies[policy].releases}


def bring(connection: Connection, name: str, bare: WheelSet, *texts: str) -> list[str]:
    return [install(connection, stand_in_payload(name, text), bare).release for text in texts]


def test_a_default_rollback_does_not_go_where_somebody_rolled_back_from(
    connection: Connection, name: str, bare: WheelSet
) -> None:
    """1 good, 2 bad and left, 3 bad: back from 3 is 1, not 2."""
    first, second = bring(connection, name, bare, "a", "b")
    assert rollback(connection, name).release == first
    (third,) = bring(connection, name, bare, "c")
    back = rollback(connection, name)
    assert (back.release, back.previous, back.marked_bad) == (first, third, False)
    left = shown(connection, name)
    assert "rolled back from 2" in left[second].left and "rolled back from 2" in left[third].left
    assert (left[first].why_not, left[second].bad) == ("", "")
    # Going there by name, or deploying it again, checks it and ends that.
    assert rollback(connection, name, second).release == second
    assert shown(connection, name)[second].why_not == ""
    assert bring(connection, name, bare, "c") == [third]
    assert shown(connection, name)[third].why_not == ""


def test_pruning_keeps_the_last_good_release(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, *others = bring(connection, name, bare, "good", "bad 1")
    for text in ("bad 2", "bad 3", "bad 4"):
        rollback(connection, name, first, mark_bad_too=True)
        others += bring(connection, name, bare, text)
    assert device.releases(name) == [first, *others[-3:]]
    more = bring(connection, name, bare, "one more", "two more", "three more")
    assert device.releases(name) == [first, *more], "the one that was gone back to, and the newest"
    for expected in (more[1], more[0], first):
        assert rollback(connection, name).release == expected
    assert shown(connection, name)[first].good.startswith("rolled back to 2")


def test_mark_bad_is_shown_and_ends_when_the_same_is_deployed_and_passes(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    assert rollback(connection, name, mark_bad_too=True).marked_bad
    assert shown(connection, name)[second].bad.startswith("rolled back from 2")
    again = install(connection, stand_in_payload(name, "b"), bare)
    assert (again.release, again.sent_bytes, len(again.checks)) == (second, 0, 1)
    assert shown(connection, name)[second].bad == ""
    assert json.loads((device.policy_folder(name) / "releases" / first / "release.json").read_text())["policy"] == name


def test_a_release_that_fails_is_marked_and_passed_over(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second, third, fourth = bring(connection, name, bare, "a", "b", "c", "d")
    (device.policy_folder(name) / "releases" / third / "lib" / "agent.py").write_text("")
    back = rollback(connection, name)
    assert (back.release, back.previous) == (second, fourth)
    assert len(back.warnings) == 1 and f"{third} was passed over" in back.warnings[0]
    assert "lib/agent.py differs" in shown(connection, name)[third].bad
    assert served_text(connection, name) == "b"
    assert first not in device.releases(name)


def test_nothing_good_is_left_to_go_back_to(connection: Connection, name: str, bare: WheelSet) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    rollback(connection, name)
    rollback(connection, name, second, mark_bad_too=True)
    with pytest.raises(
        ReleaseError, match=rf"no good release of {name} before {second}: {first} is marked bad"
    ) as caught:
        rollback(connection, name)
    assert "--to RELEASE" in caught.value.next_step
    assert served_text(connection, name) == "b"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def replaced(**members: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | members))

    return write


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def zeros_for_ever(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(1 << 33)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a list": (lambda path: path.write_text("[]"), "release.json is not a JSON object"),
    "truncated": (truncated, "release.json cannot be read"),
    "nested": (lambda path: path.write_text("[" * 100_000), "release.json cannot be read"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe{"), "release.json cannot be read"),
    "huge": (huge, "release.json has more than 1048576 bytes"),
    "missing": (Path.unlink, "release.json is missing"),
    "a pipe": (a_pipe, "release.json is a special file"),
    "a link": (zeros_for_ever, "release.json is a symbolic link"),
    "no precisions": (replaced(precisions=[]), "precisions of release.json is wrong"),
    "no runtimes": (replaced(runtimes=[]), "runtimes of release.json is wrong"),
    "no files": (replaced(files={}), "files of release.json is wrong"),
    "files elsewhere": (replaced(files={"run-agent": "0" * 64, "../x": "0" * 64}, sizes=None), "files of release.json"),
    "another policy": (replaced(policy="other"), "policy of release.json is wrong"),
    "numbers": (replaced(created=5), "created of release.json is wrong"),
    "a terminal's sequence": (replaced(by="\x1b]0;owned\x07"), "by of release.json is wrong"),
    "a digest of another kind": (replaced(digest=["x"]), "digest of release.json is wrong"),
}


def test_every_damaged_record_is_named_and_refused(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second, third = bring(connection, name, bare, "a", "b", "c")
    record = device.policy_folder(name) / "releases" / second / "release.json"
    whole = record.read_bytes()
    for damage, reason in DAMAGED.values():
        damage(record)
        listed = shown(connection, name)
        assert reason in listed[second].damage and not listed[first].damage and not listed[third].damage
        with pytest.raises(VerificationError, match=f"release {second} of {name} is damaged") as refused:
            rollback(connection, name, second)
        assert reason in refused.value.message and f"Release {third} still serves" in refused.value.message
        record.unlink(missing_ok=True)
        record.write_bytes(whole)
    assert not shown(connection, name)[second].damage
    assert rollback(connection, name, second).release == second


@pytest.mark.parametrize("case", ["a list", "truncated", "no precisions"])
def test_a_damaged_record_stops_nothing(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, case: str
) -> None:
    damage, reason = DAMAGED[case]
    first, second, third = bring(connection, name, bare, "a", "b", "c")
    damage(device.policy_folder(name) / "releases" / second / "release.json")
    listed = shown(connection, name)
    assert reason in listed[second].damage and not listed[third].damage
    assert rollback(connection, name).release == first, "passes over the damaged one"
    again = install(connection, stand_in_payload(name, "b"), bare)
    assert again.release.startswith("0004-") and not again.unchanged
    assert served_text(connection, name) == "b"


def test_the_serving_release_has_a_damaged_record(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    (device.policy_folder(name) / "releases" / second / "release.json").write_text("[]")
    assert list_releases(connection).policies[name].current == second
    assert rollback(connection, name).release == first
    (device.policy_folder(name) / "releases" / first / "mark.json").write_text('"nonsense"')
    assert "its mark is damaged" in shown(connection, name)[first].bad
    assert bring(connection, name, bare, "a") == [first], "checked again, and the mark is gone"
    assert shown(connection, name)[first].why_not == ""


def test_a_check_of_nothing_is_no_check(connection: Connection, name: str, old: DeployResult) -> None:
    folder = f"releases/{old.release}"
    for precisions, runtimes in (((), (RuntimeName.LITERT,)), ((Precision.INT8,), ())):
        with pytest.raises(CheckFailedError, match="No golden vector"):
            golden_checks(connection, name, folder, precisions, runtimes, lambda step: None)


# A line that is cut when the device has switched, and its answer has not come.


def cut_in_the_switch(
    monkeypatch: pytest.MonkeyPatch, device: TestDevice, name: str, line: Line, release: str, *, for_good: bool = False
) -> None:
    """From the switch on nothing comes back through the line; when the device has switched, it is cut."""
    call, link = HelperSession.call, device.policy_folder(name) / "current"

    def cut() -> None:
        assert eventually(lambda: link.readlink().name == release)
        if for_good:
            line.close()
        line.cut()

    def calling(session: HelperSession, op: str, **fields: Any) -> dict[str, Any]:
        if op == "switch":
            line.hold_back()
            threading.Thread(target=cut, daemon=True).start()
        return call(session, op, **fields)

    monkeypatch.setattr(HelperSession, "call", calling)


def test_cut_after_the_switch_and_asked_again(
    device: TestDevice,
    connection: Connection,
    name: str,
    bare: WheelSet,
    old: DeployResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = stand_in_payload(name, "new")
    expected = f"0002-{payload.digest[:8]}"
    with Line(device.host, device.port) as line, device.connect(line.port) as through:
        cut_in_the_switch(monkeypatch, device, name, line, expected)
        done = install(through, payload, bare)
    assert (done.release, done.previous) == (expected, old.release)
    assert len(done.warnings) == 1 and f"the device says that release {expected} serves" in done.warnings[0]
    assert served_text(connection, name) == "new"


@pytest.mark.parametrize("verb", ["deploy", "rollback"])
def test_cut_after_the_switch_and_not_to_be_reached(
    device: TestDevice,
    connection: Connection,
    name: str,
    bare: WheelSet,
    old: DeployResult,
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = stand_in_payload(name, "new")
    second = f"0002-{payload.digest[:8]}"
    if verb == "rollback":
        install(connection, payload, bare)
    serving, wanted = (second, old.release) if verb == "rollback" else (old.release, second)
    with Line(device.host, device.port) as line, device.connect(line.port) as through:
        cut_in_the_switch(monkeypatch, device, name, line, wanted, for_good=True)
        with pytest.raises(ConnectionLostError) as caught:
            rollback(through, name) if verb == "rollback" else install(through, payload, bare)
    assert f"Whether {serving} or {wanted} serves is unknown" in caught.value.message
    assert "still serves" not in caught.value.message
    assert f"quarl releases --target {through.target} --policy {name}" in caught.value.next_step
    assert list_releases(connection).policies[name].current == wanted


def test_a_switch_that_did_not_happen_is_read_again(
    connection: Connection, name: str, bare: WheelSet, old: DeployResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = HelperSession.call

    def failing(session: HelperSession, op: str, **fields: Any) -> dict[str, Any]:
        if op == "switch":
            raise HostError("The device could not do it: no such luck.")
        return call(session, op, **fields)

    monkeypatch.setattr(HelperSession, "call", failing)
    with pytest.raises(HostError, match=f"no such luck. Release {old.release} still serves"):
        install(connection, stand_in_payload(name, "new"), bare)


# Removing, and an agent that runs.


def test_an_agent_that_runs_keeps_its_release(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    (first,) = bring(connection, name, bare, "a")
    with AgentSession(connection, name) as agent:
        bring(connection, name, bare, "b", "c", "d")
        last = install(connection, stand_in_payload(name, "e"), bare)
        assert first in device.releases(name) and first not in last.removed
        assert any(f"{first} was not removed: process {agent.pid} runs from it" in each for each in last.warnings)
        with pytest.raises(ReleaseError, match=rf"agent runs from {first} \(process {agent.pid}\)") as caught:
            remove_releases(connection, name, first)
        assert "--force" in caught.value.next_step
        assert agent.request("hello")["text"] == "a"
        assert remove_releases(connection, name, first, force=True).removed == (first,)
    assert first not in device.releases(name)


def test_remove_all_but_the_serving_one_then_the_rest(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second, third = bring(connection, name, bare, "a", "b", "c")
    with pytest.raises(ReleaseError, match=f"{third} of {name} serves. Nothing was removed"):
        remove_releases(connection, name, third)
    with pytest.raises(ReleaseError, match="there is no release 0009-x"):
        remove_releases(connection, name, "0009-x")
    with pytest.raises(ReleaseError, match=f"there is no policy {name}-x"):
        remove_releases(connection, f"{name}-x")
    done = remove_releases(connection, name)
    assert (done.removed, done.serving) == ((first, second), third)
    assert served_text(connection, name) == "c"
    done = remove_releases(connection, name, whole=True)
    assert (done.removed, done.serving) == ((third,), None)
    assert name not in list_releases(connection).policies and not device.policy_folder(name).exists()


def test_the_command_line_removes_and_marks(
    device: TestDevice,
    connection: Connection,
    name: str,
    bare: WheelSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    monkeypatch.setattr("quarl.device.deploy.connection.connect", lambda target, identity: device.connect())
    assert cli.main(["rollback", "--policy", name]) == 0
    assert f"(before: {second}, not marked bad; --mark-bad does that)" in capsys.readouterr().out
    assert cli.main(["rollback", "--policy", name, "--to", second]) == 0
    capsys.readouterr()
    assert cli.main(["rollback", "--policy", name, "--mark-bad"]) == 0
    assert f"(before: {second}, marked bad)" in capsys.readouterr().out
    assert cli.main(["releases", "--policy", name]) == 0
    assert f"{second}  int8 in litert" in (out := capsys.readouterr().out) and "marked bad (rolled back from" in out
    assert cli.main(["remove", "--policy", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [second]
    assert cli.main(["remove", "--policy", name, "--release", first]) == 1
    assert "serves. Nothing was removed" in capsys.readouterr().err
    assert cli.main(["remove", "--policy", name, "--all"]) == 0
    assert f"removed {first}. None serves." in capsys.readouterr().out


def test_a_mark_of_several_lines_is_one_line_and_stops_nothing(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, _ = bring(connection, name, bare, "a", "b")
    mark = {"kind": "bad", "reason": "ImportError:\n\n  A module\x1b[2J that was " + "long " * 100}
    (device.policy_folder(name) / "releases" / first / "mark.json").write_text(json.dumps(mark))
    assert shown(connection, name)[first].bad.startswith("ImportError: A module [2J that was long")
    assert len(shown(connection, name)[first].bad) <= 200
    with pytest.raises(ReleaseError, match="is marked bad"):
        rollback(connection, name)


def test_a_folder_with_the_last_number_that_is_no_release_is_passed_by(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    (first,) = bring(connection, name, bare, "a")
    (device.policy_folder(name) / "releases" / "99999999-zz").mkdir()
    (device.policy_folder(name) / "releases" / "0002-zz").mkdir()
    (third,) = bring(connection, name, bare, "b")
    assert third.startswith("0003-") and served_text(connection, name) == "b"
    assert rollback(connection, name).release == first


def test_after_an_old_content_was_deployed_again_there_is_something_to_go_back_to(
    connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    assert install(connection, stand_in_payload(name, "a"), bare).release == first
    assert rollback(connection, name).release == second
