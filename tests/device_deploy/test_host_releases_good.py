"""A rollback lands on something good: marks, pruning, damaged records, and a line that is cut in the switch."""

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
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.device import Device
from quarl.device.deploy.errors import CheckFailedError, ConnectionLostError, HostError, ReleaseError, VerificationError
from quarl.device.deploy.golden import golden_checks
from quarl.device.deploy.probe import probe
from quarl.device.deploy.records import parse_old_record, parse_record
from quarl.device.deploy.releases import list_releases, remove_releases
from quarl.device.deploy.wheels import WheelSet
from quarl.policy.spec import Precision, RuntimeName
from tests.device_deploy.devices import Line, Site, eventually, stand_in_payload
from tests.refusals import refused


def test_a_default_rollback_does_not_go_where_somebody_rolled_back_from(site: Site) -> None:
    """1 good, 2 bad and left, 3 bad: back from 3 is 1, not 2."""
    first, second = site.bring("a", "b")
    assert site.rollback().release == first
    (third,) = site.bring("c")
    back = site.rollback()
    assert (back.release, back.previous, back.marked_bad) == (first, third, False)
    left = site.shown()
    assert "rolled back from 2" in left[second].left and "rolled back from 2" in left[third].left
    assert (left[first].why_not, left[second].bad) == ("", "")
    # Going there by name, or deploying it again, checks it and ends that.
    assert site.rollback(second).release == second
    assert site.shown()[second].why_not == ""
    assert site.bring("c") == [third]
    assert site.shown()[third].why_not == ""
    assert site.rollback().release == second, "old content that is deployed again can be gone back from"


def test_pruning_keeps_the_last_good_release(site: Site) -> None:
    first, *others = site.bring("good", "bad 1")
    for text in ("bad 2", "bad 3", "bad 4"):
        site.rollback(first, mark_bad_too=True)
        others += site.bring(text)
    assert site.releases() == [first, *others[-3:]]
    more = site.bring("one more", "two more", "three more")
    assert site.releases() == [first, *more], "the one that was gone back to, and the newest"
    for expected in (more[1], more[0], first):
        assert site.rollback().release == expected
    assert site.shown()[first].good.startswith("rolled back to 2")


def test_mark_bad_is_shown_and_ends_when_the_same_is_deployed_and_passes(site: Site) -> None:
    first, second = site.bring("a", "b")
    assert site.rollback(mark_bad_too=True).marked_bad
    assert site.shown()[second].bad.startswith("rolled back from 2")
    again = site.install("b")
    assert (again.release, again.sent_bytes, len(again.checks)) == (second, 0, 1)
    assert site.shown()[second].bad == ""
    record = (site.folder / "releases" / first / "release").read_text()
    assert parse_record(first, site.name, record).policy == site.name


def test_a_release_that_fails_is_marked_and_passed_over(site: Site) -> None:
    first, second, third, fourth = site.bring("a", "b", "c", "d")
    (site.folder / "releases" / third / "lib" / "agent.py").write_text("")
    back = site.rollback()
    assert (back.release, back.previous) == (second, fourth)
    assert len(back.warnings) == 1 and f"{third} was passed over" in back.warnings[0]
    assert "lib/agent.py" in site.shown()[third].bad
    assert site.served() == "b"
    assert first not in site.releases()


def test_nothing_good_is_left_to_go_back_to(site: Site) -> None:
    first, second = site.bring("a", "b")
    site.rollback()
    with refused(ReleaseError, "no_earlier_release", shows=[site.name, first]):
        site.rollback()
    with refused(ReleaseError, "release", shows=["0099"]):
        site.rollback("0099-x")
    site.rollback(second, mark_bad_too=True)
    with refused(ReleaseError, "no_good_release", shows=[site.name, second, f"{first} is marked bad"]) as caught:
        site.rollback()
    assert "--to RELEASE" in caught.value.next_step
    assert site.served() == "b"


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


def test_every_damaged_record_is_named_and_refused(site: Site) -> None:
    first, second, third = site.bring("a", "b", "c")
    record = site.folder / "releases" / second / "release"
    whole = record.read_bytes()
    for index, (damage, reason) in enumerate(DAMAGED.values()):
        damage(record)
        listed = site.shown()
        assert reason in listed[second].damage and not listed[first].damage and not listed[third].damage
        if index % 6 == 0:
            with pytest.raises(VerificationError, match=second) as refused:
                site.rollback(second)
            assert reason in refused.value.message and f"Release {third} still serves" in refused.value.message
        record.unlink(missing_ok=True)
        record.write_bytes(whole)
    assert not site.shown()[second].damage
    assert site.rollback(second).release == second


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


def test_a_release_of_an_older_version_is_shown_and_not_gone_back_to(site: Site) -> None:
    first, second = site.bring("a", "b")
    folder = site.folder / "releases" / first
    (folder / "release").unlink()
    (folder / "release.json").write_text(json.dumps({**OLD, "policy": site.name}))
    listed = site.shown()
    assert (listed[first].is_old, listed[first].damage, listed[first].precisions) == (True, "", ("int8",))
    assert listed[first].why_not and not listed[second].is_old
    for release in (first, None):
        with pytest.raises(ReleaseError, match=f"(?s){first}.*deploy(ed)? .*again"):
            site.rollback(release)
    assert site.served() == "b"
    (again,) = site.bring("a")
    assert again.startswith("0003-") and site.rollback().release == second


@pytest.mark.parametrize(("text", "reason"), [
    *((text, "cannot be read") for text in ("", "{", "[" * 100_000)),
    ("[]", "is not a JSON object"),
    *((json.dumps({**OLD, name: 5}), f"{name} of the record") for name in OLD if name != "serial"),
    (json.dumps({**OLD, "policy": "other"}), "policy of the record"),
    (json.dumps({**OLD, "files": {"run-agent": "0" * 64, "../x": "0" * 64}}), "files of the record"),
    (json.dumps({**OLD, "by": "\x1b]0;owned\x07"}), "by of the record"),
])  # fmt: skip
def test_a_damaged_record_of_an_older_version(text: str, reason: str) -> None:
    record = parse_old_record("0001-a", "P", text)
    assert reason in record.damage and record.is_old


@pytest.mark.parametrize("case", ["a list", "no files", "no precisions"])
def test_a_damaged_record_stops_nothing(site: Site, case: str) -> None:
    damage, reason = DAMAGED[case]
    first, second, third = site.bring("a", "b", "c")
    damage(site.folder / "releases" / second / "release")
    listed = site.shown()
    assert reason in listed[second].damage and not listed[third].damage
    assert site.rollback().release == first, "passes over the damaged one"
    again = site.install("b")
    assert again.release.startswith("0004-") and not again.unchanged
    assert site.served() == "b"


def test_the_serving_release_has_a_damaged_record(site: Site) -> None:
    first, second = site.bring("a", "b")
    (site.folder / "releases" / second / "release").write_text("[]")
    assert site.state().current == second
    assert site.rollback().release == first
    (site.folder / "releases" / first / "mark.json").write_text('"nonsense"')
    assert "its mark is damaged" in site.shown()[first].bad
    assert site.bring("a") == [first], "checked again, and the mark is gone"
    assert site.shown()[first].why_not == ""


def test_a_check_of_nothing_is_no_check(site: Site, old: DeployResult) -> None:
    folder = f"releases/{old.release}"
    for precisions, runtimes in (((), (RuntimeName.LITERT,)), ((Precision.INT8,), ())):
        with pytest.raises(CheckFailedError, match="No golden vector"):
            golden_checks(site.connection, site.name, folder, precisions, runtimes, lambda step: None)


def cut_in_the_switch(
    monkeypatch: pytest.MonkeyPatch, site: Site, line: Line, release: str, *, for_good: bool = False
) -> None:
    """From the switch on nothing comes back through the line; when the device has switched, it is cut."""

    def cut() -> None:
        assert eventually(lambda: (site.folder / "current").readlink().name == release)
        if for_good:
            line.close()
        line.cut()

    point = Device.point

    def pointing(session: Device, *arguments: str) -> None:
        line.hold_back()
        threading.Thread(target=cut, daemon=True).start()
        point(session, *arguments)

    monkeypatch.setattr(Device, "point", pointing)


def test_cut_after_the_switch_and_asked_again(site: Site, old: DeployResult, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"0002-{stand_in_payload(site.name, 'new').digest[:8]}"
    with Line(site.device.host, site.device.port) as line, site.device.connect(line.port) as through:
        cut_in_the_switch(monkeypatch, site, line, expected)
        done = site.through(through).install("new")
    assert (done.release, done.previous) == (expected, old.release)
    assert len(done.warnings) == 1 and f"the device says that release {expected} serves" in done.warnings[0]
    assert site.served() == "new"


@pytest.mark.parametrize("verb", ["deploy", "rollback"])
def test_cut_after_the_switch_and_not_to_be_reached(
    site: Site, old: DeployResult, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = f"0002-{stand_in_payload(site.name, 'new').digest[:8]}"
    if verb == "rollback":
        site.install("new")
    serving, wanted = (second, old.release) if verb == "rollback" else (old.release, second)
    with Line(site.device.host, site.device.port) as line, site.device.connect(line.port) as through:
        cut_in_the_switch(monkeypatch, site, line, wanted, for_good=True)
        with pytest.raises(ConnectionLostError) as caught:
            site.through(through).rollback() if verb == "rollback" else site.through(through).install("new")
    assert f"Whether {serving} or {wanted} serves is unknown" in caught.value.message
    assert "still serves" not in caught.value.message
    assert f"quarl releases --target {through.target} --policy {site.name}" in caught.value.next_step
    assert site.state().current == wanted


def test_a_switch_that_failed_is_read_again(site: Site, old: DeployResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(session: Device, *arguments: str) -> None:
        raise HostError("The device could not do it: no such luck.")

    monkeypatch.setattr(Device, "point", failing)
    with pytest.raises(HostError, match=f"no such luck. Release {old.release} still serves"):
        site.install("new")


def test_an_agent_that_runs_keeps_its_release(site: Site) -> None:
    (first,) = site.bring("a")
    with AgentSession(site.connection, site.name) as agent:
        site.bring("b", "c", "d")
        last = site.install("e")
        assert first in site.releases() and first not in last.removed
        assert any(f"{first} was not removed: process {agent.pid} runs from it" in each for each in last.warnings)
        with pytest.raises(ReleaseError, match=rf"agent runs from {first} \(process {agent.pid}\)") as caught:
            remove_releases(site.connection, site.name, first)
        assert "--force" in caught.value.next_step
        assert agent.request("hello")["text"] == "a"
        assert remove_releases(site.connection, site.name, first, force=True).removed == (first,)
    assert first not in site.releases()


def test_remove_all_but_the_serving_one_then_the_rest(site: Site) -> None:
    first, second, third = site.bring("a", "b", "c")
    with pytest.raises(ReleaseError, match=f"{third}.* Nothing was removed"):
        remove_releases(site.connection, site.name, third)
    with pytest.raises(ReleaseError, match="no release 0009-x"):
        remove_releases(site.connection, site.name, "0009-x")
    with pytest.raises(ReleaseError, match=f"no policy {site.name}-x"):
        remove_releases(site.connection, f"{site.name}-x")
    done = remove_releases(site.connection, site.name)
    assert (done.removed, done.serving) == ((first, second), third)
    assert site.served() == "c"
    done = remove_releases(site.connection, site.name, whole=True)
    assert (done.removed, done.serving) == ((third,), None)
    assert site.name not in list_releases(site.connection).policies and not site.folder.exists()


def test_the_command_line_removes_and_marks(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = site.bring("a", "b")
    monkeypatch.setattr("quarl.device.deploy.connection.connect", lambda target, identity: site.device.connect())
    assert cli.main(["rollback", "--policy", site.name]) == 0
    assert f"(before: {second}, not marked bad; --mark-bad does that)" in capsys.readouterr().out
    assert cli.main(["rollback", "--policy", site.name, "--to", second]) == 0
    capsys.readouterr()
    assert cli.main(["rollback", "--policy", site.name, "--mark-bad"]) == 0
    assert f"(before: {second}, marked bad)" in capsys.readouterr().out
    assert cli.main(["releases", "--policy", site.name]) == 0
    assert f"{second}  int8 in litert" in (out := capsys.readouterr().out) and "marked bad (rolled back from" in out
    assert cli.main(["remove", "--policy", site.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == [second]
    assert cli.main(["remove", "--policy", site.name, "--release", first]) == 1
    assert "Nothing was removed" in capsys.readouterr().err
    assert cli.main(["remove", "--policy", site.name, "--all"]) == 0
    assert f"removed {first}. None serves." in capsys.readouterr().out


def test_a_mark_of_several_lines_is_one_line_and_stops_nothing(site: Site) -> None:
    first, _ = site.bring("a", "b")
    mark = {"kind": "bad", "reason": "ImportError:\n\n  A module\x1b[2J that was " + "long " * 100}
    (site.folder / "releases" / first / "mark.json").write_text(json.dumps(mark))
    assert site.shown()[first].bad.startswith("ImportError: A module [2J that was long")
    assert len(site.shown()[first].bad) <= 200
    with pytest.raises(ReleaseError, match="is marked bad"):
        site.rollback()


def test_a_folder_with_the_last_number_that_is_no_release_is_passed_by(site: Site) -> None:
    (first,) = site.bring("a")
    for name in ("99999999-zz", "0002-zz"):
        (site.folder / "releases" / name).mkdir()
    (third,) = site.bring("b")
    assert third.startswith("0003-") and site.served() == "b"
    assert site.rollback().release == first


def test_what_somebody_planted_moves_no_number_and_no_serial(site: Site) -> None:
    first, _ = site.bring("a", "b")
    folder = site.folder / "releases"
    for planted in ("99999999-zz", "0077-zz"):
        shutil.copytree(folder / first, folder / planted)
        record = folder / planted / "release"
        record.write_text(re.sub("serial [0-9]+", "serial 999999999999999", record.read_text()))
    accepted = site.device.home / "quarl" / "trust" / "accepted"
    others = [
        line for line in accepted.read_text().splitlines() if not line.startswith((f"{site.name} ", f"{site.name}/"))
    ]
    accepted.write_text("".join(f"{line}\n" for line in others))
    (third,) = site.bring("c")
    assert len(third) == len(first) and site.served() == "c"
    assert site.shown()["0077-zz"].trust not in ("", "trusted")
    (fourth,) = site.bring("d")
    assert int(fourth[:4]) == int(third[:4]) + 1
    assert f"{site.name} 9" not in accepted.read_text()


def test_lists_that_are_damaged_blame_no_release(site: Site) -> None:
    first, second = site.bring("a", "b")
    accepted = site.device.home / "quarl" / "trust" / "accepted"
    whole = accepted.read_text()
    accepted.unlink()
    accepted.mkdir()
    with pytest.raises(HostError):
        site.rollback()
    accepted.rmdir()
    accepted.write_text(whole)
    listed = site.shown()
    assert not listed[first].bad and not listed[second].bad
    assert site.rollback().release == first


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
