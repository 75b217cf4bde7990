"""A rollback lands on something good: marks, pruning, damaged records, and a line that is cut in the switch."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.device import Device
from quarl.device.deploy.errors import CheckFailedError, ConnectionLostError, HostError, ReleaseError, VerificationError
from quarl.device.deploy.golden import golden_checks
from quarl.device.deploy.probe import probe
from quarl.device.deploy.records import parse_old_record, parse_record
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
    record = (device.policy_folder(name) / "releases" / first / "release").read_text()
    assert parse_record(first, name, record).policy == name


def test_a_release_that_fails_is_marked_and_passed_over(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second, third, fourth = bring(connection, name, bare, "a", "b", "c", "d")
    (device.policy_folder(name) / "releases" / third / "lib" / "agent.py").write_text("")
    back = rollback(connection, name)
    assert (back.release, back.previous) == (second, fourth)
    assert len(back.warnings) == 1 and f"{third} was passed over" in back.warnings[0]
    assert "lib/agent.py" in shown(connection, name)[third].bad
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


def changed(key: str, value: str | None) -> Callable[[Path], None]:
    """Another value of a key of the record; None: no such line."""

    def write(path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} ")]
        path.write_text("\n".join([*([] if value is None else [f"{key} {value}"]), *lines, ""]))

    return write


def without_sums(path: Path) -> None:
    path.write_text(path.read_text().partition("\n\n")[0])


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def zeros_for_ever(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    path.write_bytes(b"")
    with path.open("r+b") as stream:
        stream.truncate(1 << 36)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a list": (lambda path: path.write_text("[]"), "serial of the record"),
    "empty": (lambda path: path.write_text(""), "serial of the record"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe{"), "serial of the record"),
    "huge": (huge, "serial of the record"),
    "missing": (Path.unlink, "its record is missing"),
    "a pipe": (a_pipe, "release is a special file"),
    "a link": (zeros_for_ever, "release is a link"),
    "no serial": (changed("serial", "1e3"), "serial of the record"),
    "a wheel elsewhere": (
        lambda path: path.write_text(f"wheel ../x {'0' * 64}\n{path.read_text()}"),
        "wheel of the record",
    ),
    "no precisions": (changed("precisions", None), "precisions of the record"),
    "no runtimes": (changed("runtimes", ""), "runtimes of the record"),
    "no files": (without_sums, "files of the record"),
    "files elsewhere": (lambda path: path.write_text(f"{path.read_text()}{'0' * 64}  ../x\n"), "files of the record"),
    "another policy": (changed("policy", "other"), "policy of the record"),
    "nobody's": (changed("by", "x" * 201), "by of the record"),
    "a terminal's sequence": (changed("by", "\x1b]0;owned\x07"), "by of the record"),
    "a digest of another kind": (changed("digest", "x"), "digest of the record"),
}


def test_every_damaged_record_is_named_and_refused(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second, third = bring(connection, name, bare, "a", "b", "c")
    record = device.policy_folder(name) / "releases" / second / "release"
    whole = record.read_bytes()
    for index, (damage, reason) in enumerate(DAMAGED.values()):
        damage(record)
        listed = shown(connection, name)
        assert reason in listed[second].damage and not listed[first].damage and not listed[third].damage
        if index % 6 == 0:
            with pytest.raises(VerificationError, match=second) as refused:
                rollback(connection, name, second)
            assert reason in refused.value.message and f"Release {third} still serves" in refused.value.message
        record.unlink(missing_ok=True)
        record.write_bytes(whole)
    assert not shown(connection, name)[second].damage
    assert rollback(connection, name, second).release == second


OLD = {
    "policy": "P",
    "digest": "d" * 64,
    "created": "2026",
    "by": "ann",
    "environments": [],
    "serial": 7,
    "precisions": ["int8"],
    "runtimes": ["litert"],
    "files": {"run-agent": "0" * 64},
}
"""A record of an older version."""


def test_a_release_of_an_older_version_is_shown_and_not_gone_back_to(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    folder = device.policy_folder(name) / "releases" / first
    (folder / "release").unlink()
    (folder / "release.json").write_text(json.dumps({**OLD, "policy": name}))
    listed = shown(connection, name)
    assert (listed[first].is_old, listed[first].damage, listed[first].precisions) == (True, "", ("int8",))
    assert listed[first].why_not and not listed[second].is_old
    for release in (first, None):
        with pytest.raises(ReleaseError, match=f"(?s){first}.*deploy(ed)? .*again"):
            rollback(connection, name, release)
    assert served_text(connection, name) == "b"
    (again,) = bring(connection, name, bare, "a")
    assert again.startswith("0003-") and rollback(connection, name).release == second


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "cannot be read") for text in ("", "{", "[" * 100_000)),
        ("[]", "is not a JSON object"),
        *((json.dumps({**OLD, name: 5}), f"{name} of the record") for name in OLD if name != "serial"),
        (json.dumps({**OLD, "policy": "other"}), "policy of the record"),
        (json.dumps({**OLD, "files": {"run-agent": "0" * 64, "../x": "0" * 64}}), "files of the record"),
        (json.dumps({**OLD, "by": "\x1b]0;owned\x07"}), "by of the record"),
    ],
)
def test_a_damaged_record_of_an_older_version(text: str, reason: str) -> None:
    record = parse_old_record("0001-a", "P", text)
    assert reason in record.damage and record.is_old


@pytest.mark.parametrize("case", ["a list", "no files", "no precisions"])
def test_a_damaged_record_stops_nothing(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet, case: str
) -> None:
    damage, reason = DAMAGED[case]
    first, second, third = bring(connection, name, bare, "a", "b", "c")
    damage(device.policy_folder(name) / "releases" / second / "release")
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
    (device.policy_folder(name) / "releases" / second / "release").write_text("[]")
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
    link = device.policy_folder(name) / "current"

    def cut() -> None:
        assert eventually(lambda: link.readlink().name == release)
        if for_good:
            line.close()
        line.cut()

    point = Device.point

    def pointing(session: Device, *arguments: str) -> None:
        line.hold_back()
        threading.Thread(target=cut, daemon=True).start()
        point(session, *arguments)

    monkeypatch.setattr(Device, "point", pointing)


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
    def failing(session: Device, *arguments: str) -> None:
        raise HostError("The device could not do it: no such luck.")

    monkeypatch.setattr(Device, "point", failing)
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


def test_what_somebody_planted_moves_no_number_and_no_serial(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, _ = bring(connection, name, bare, "a", "b")
    folder = device.policy_folder(name) / "releases"
    for planted in ("99999999-zz", "0077-zz"):
        shutil.copytree(folder / first, folder / planted)
        record = folder / planted / "release"
        record.write_text(re.sub("serial [0-9]+", "serial 999999999999999", record.read_text()))
    accepted = device.home / "quarl" / "trust" / "accepted"
    others = [line for line in accepted.read_text().splitlines() if not line.startswith((f"{name} ", f"{name}/"))]
    accepted.write_text("".join(f"{line}\n" for line in others))
    (third,) = bring(connection, name, bare, "c")
    assert len(third) == len(first) and served_text(connection, name) == "c"
    assert shown(connection, name)["0077-zz"].trust not in ("", "trusted")
    (fourth,) = bring(connection, name, bare, "d")
    assert int(fourth[:4]) == int(third[:4]) + 1
    assert f"{name} 9" not in accepted.read_text()


def test_lists_that_are_damaged_blame_no_release(
    device: TestDevice, connection: Connection, name: str, bare: WheelSet
) -> None:
    first, second = bring(connection, name, bare, "a", "b")
    accepted = device.home / "quarl" / "trust" / "accepted"
    whole = accepted.read_text()
    accepted.unlink()
    accepted.mkdir()
    with pytest.raises(HostError):
        rollback(connection, name)
    accepted.rmdir()
    accepted.write_text(whole)
    listed = shown(connection, name)
    assert not listed[first].bad and not listed[second].bad
    assert rollback(connection, name).release == first


def test_a_quarl_that_cannot_be_entered_changes_nothing_beside_it(tmp_path: Path) -> None:
    """A link to a disk that is not mounted: what lies in the home folder is not taken for what lies there."""
    with connect("local", local_folder=tmp_path) as connection:
        home = tmp_path / "home"
        (home / "quarl").symlink_to("/nowhere/quarl")
        precious = home / "policies" / "P" / "incoming" / "precious"
        precious.mkdir(parents=True)
        bare = WheelSet(probe(connection).python, ())
        with pytest.raises(HostError):
            list_releases(connection)
        with pytest.raises(HostError):
            install(connection, stand_in_payload("P"), bare)
        assert precious.is_dir() and sorted(path.name for path in home.iterdir()) == ["policies", "quarl"]
