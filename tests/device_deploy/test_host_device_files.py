"""No file on the device stops or misleads a deployment: what was added, exchanged, linked, or named to harm."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import (
    AgentError,
    CheckFailedError,
    DamagedWheelsError,
    HostError,
    RemoteCommandError,
    UnsupportedDeviceError,
    VerificationError,
)
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.payload import Payload, starter
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases, remove_releases
from quarl.device.deploy.text import may_act, printable, printable_reply
from quarl.device.deploy.verbs import _releases_text
from tests.device_deploy.conftest import new_site
from tests.device_deploy.devices import Site, TestDevice, as_test_device, stand_in_payload, stand_in_wheel


@pytest.fixture
def own(tmp_path: Path) -> Iterator[TestDevice]:
    """A device of the test's own, whose shared folders may be spoilt."""
    with running_local_device(tmp_path / "device") as local:
        yield as_test_device(local)


def a_module(folder: Path) -> str:
    (folder / "lib" / "sitecustomize.py").write_text("raise SystemExit")
    return "lib/sitecustomize.py"


def a_link(folder: Path) -> str:
    (folder / "lib" / "json.py").symlink_to("/dev/zero")
    return "lib/json.py"


def a_pipe(folder: Path) -> str:
    (folder / "bundle" / "policy.json").unlink()
    os.mkfifo(folder / "bundle" / "policy.json")
    return "bundle/policy.json"


def a_file_behind_a_link(folder: Path) -> str:
    away = folder.parent.parent / "elsewhere.py"
    (folder / "lib" / "agent.py").rename(away)
    (folder / "lib" / "agent.py").symlink_to(away)
    return "lib/agent.py"


def without_end(folder: Path) -> str:
    with (folder / "bundle" / "ballast.bin").open("r+b") as stream:
        stream.truncate(1 << 36)
    return "bundle/ballast.bin"


def a_record_without_end(folder: Path) -> str:
    with (folder / "release").open("r+b") as stream:
        stream.truncate(1 << 36)
    return ": release "


def a_name_that_acts(folder: Path) -> str:
    (folder / "lib" / "\x1b[2Jx\n.py").write_text("")
    return "lib/ [2Jx"


SPOILT = (a_module, a_link, a_pipe, a_file_behind_a_link, without_end, a_record_without_end, a_name_that_acts)


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_what_is_beyond_a_releases_record_is_named(site: Site, old: DeployResult, spoil: Callable[[Path], str]) -> None:
    new = site.install("new")
    path = spoil(site.folder / "releases" / old.release)
    begun = time.monotonic()
    with pytest.raises(VerificationError) as refused:
        site.rollback()
    assert path in refused.value.message and "\x1b" not in str(refused.value)
    assert time.monotonic() - begun < 30, "nothing is waited for, nothing is read without an end"
    assert site.served() == "new"
    again = site.install("old")
    assert (again.previous, again.release[:4], again.unchanged) == (new.release, "0003", False)


def test_a_mark_that_was_being_written_when_the_power_went_spoils_nothing(site: Site, old: DeployResult) -> None:
    site.install("new")
    (site.folder / "releases" / old.release / "mark.json.part").write_text("{")
    assert site.rollback().release == old.release


def same_size(file: Path) -> str:
    file.write_bytes(file.read_bytes()[:-1] + b"#")
    return "numpy/content.bin"


def one_more(file: Path) -> str:
    (file.parent.parent / "json.py").write_text("")
    return "json.py"


def a_list(file: Path) -> str:
    (file.parent.parent / ".quarl-wheel.json").write_text("[]")
    return ".quarl-wheel.json"


def sizes_alone(file: Path) -> str:
    (file.parent.parent / ".quarl-wheel.json").write_text('{"files": {"numpy/content.bin": 7000}}')
    return ".quarl-wheel.json"


@pytest.mark.parametrize("spoil", [same_size, one_more, a_list, sizes_alone], ids=lambda spoil: spoil.__name__)
def test_wheels_are_compared_by_hash(site: Site, tmp_path: Path, spoil: Callable[[Path], str]) -> None:
    wheel, cache = stand_in_wheel(tmp_path / "cache", f"{site.name:7}".encode() * 1000)
    wheels = dataclasses.replace(site.bare, wheels=(wheel,))

    def bring(text: str) -> DeployResult:
        payload = stand_in_payload(site.name, text, environments=(wheel.folder,))
        return install(site.connection, payload, wheels, wheel_cache=cache)

    first, second = bring("a"), bring("b")
    assert (len(first.wheels_sent), second.wheels_sent) == (1, ())
    unpacked = site.device.home / "quarl" / "envs" / wheel.folder / "numpy" / "content.bin"
    path = spoil(unpacked)
    with pytest.raises(DamagedWheelsError) as refused:
        site.rollback()
    assert f"envs/{wheel.folder}: {path}" in refused.value.message
    assert not any(each.bad for each in site.state().releases), (
        "wheels are shared: nothing is wrong with the release itself"
    )
    assert bring("c").wheels_sent == (str(wheel),), "and sent again, which mends it"
    assert unpacked.read_bytes() == f"{site.name:7}".encode() * 1000
    assert site.rollback(first.release).release == first.release
    assert remove_releases(site.connection, site.name, whole=True).environments == (wheel.folder,)
    assert not unpacked.exists()


def test_bytecode_is_never_believed(site: Site, tmp_path: Path) -> None:
    """Python takes it for the source where time and size agree; so it is removed, and made again of the source."""
    wheel, cache = stand_in_wheel(tmp_path / "cache", f"{site.name:7}".encode())
    payload = stand_in_payload(site.name, environments=(wheel.folder,))
    wheels = dataclasses.replace(site.bare, wheels=(wheel,))
    install(site.connection, payload, wheels, wheel_cache=cache)
    bytecode = site.device.home / "quarl" / "envs" / wheel.folder / "numpy" / "__pycache__"
    bytecode.mkdir()
    (bytecode / "content.cpython-311.pyc").write_bytes(b"anything")
    assert install(site.connection, payload, wheels, wheel_cache=cache).unchanged
    assert not bytecode.exists()
    remove_releases(site.connection, site.name, whole=True)


@pytest.mark.parametrize("which", ["incoming", "releases", "", "current"])
def test_a_folder_of_a_policy_that_is_a_link(site: Site, old: DeployResult, tmp_path: Path, which: str) -> None:
    folder, elsewhere = site.folder, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    place = folder / which if which else folder
    place.rename(tmp_path / "aside")
    if which == "current":
        place.mkdir()
    else:
        place.symlink_to(elsewhere)
    try:
        with pytest.raises(RemoteCommandError, match=rf"{place} is a (symbolic link|folder); it must be") as refused:
            site.install("new")
        assert "remove them there" in refused.value.next_step
        assert any(str(place) in problem for problem in list_releases(site.connection).problems)
        assert dataclasses.replace(site, name=f"{site.name}-II").install().release, "the others are not stopped"
        assert [path.name for path in elsewhere.iterdir()] == ["precious"]
    finally:
        place.rmdir() if which == "current" else place.unlink()
        (tmp_path / "aside").rename(place)
    assert site.served() == "old"


@pytest.mark.parametrize("which", ["lock", "envs"])
@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_lock_and_wheels_folder_are_not_written_through(own: TestDevice, tmp_path: Path, which: str, kind: str) -> None:
    outside, place = tmp_path / "precious", own.home / "quarl" / which
    outside.write_text("mine")
    place.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(outside)
    else:
        place.hardlink_to(outside)
    with own.connect() as connection:
        site = new_site(own, connection)
        with pytest.raises(RemoteCommandError, match=rf"{place} is a .*; it must be a (file|folder)"):
            site.install()
        assert list_releases(connection).locked_by is None
        assert outside.read_text() == "mine"
        place.unlink()
        assert site.install().release.startswith("0001-")


def test_an_upload_folder_that_died_as_a_link_is_swept(site: Site, old: DeployResult, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (site.folder / "incoming" / "0002-x").symlink_to(tmp_path)
    site.install("new")
    assert not site.leftovers() and (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("to", ["releases/../../../..", "/etc", "releases/0009-absent", "\x1b]0;x\x07"])
def test_a_current_that_leads_elsewhere_serves_nothing(site: Site, old: DeployResult, to: str) -> None:
    link = site.folder / "current"
    link.unlink()
    link.symlink_to(to)
    found = list_releases(site.connection)
    assert found.policies[site.name].current is None
    assert any(str(link) in problem and "which is no release" in problem for problem in found.problems)
    assert "\x1b" not in _releases_text(found, "it", None)
    assert site.rollback().release == old.release
    assert site.served() == "old"


@pytest.mark.parametrize(("part", "message"), [("a:b", "has a ':'"), ("a\nend=1", "has a line break")])
def test_a_home_folder_that_pythonpath_cannot_hold(tmp_path: Path, part: str, message: str) -> None:
    with running_local_device(tmp_path / part) as local, as_test_device(local).connect() as connection:
        with pytest.raises(UnsupportedDeviceError, match=f"home folder of .* {message}") as refused:
            probe(connection)
        assert "usermod -d" in refused.value.next_step


def test_a_release_that_was_moved_where_pythonpath_cannot_hold_it(tmp_path: Path) -> None:
    place = tmp_path / "a:b" / "run-agent"
    place.parent.mkdir()
    place.write_text(starter("python3", (), isolated=True))
    done = subprocess.run(["sh", str(place)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and f"{place.parent} has a ':', which PYTHONPATH cannot hold" in done.stderr


ACTING = {
    b"stand-in agent is up": b"up \\x1b]0;owned\\x07",
    b"vector 3 differs": b"\\x1b[2J\\u202evector \\x9b31m3",
    b"giving up now": b"\\x1b]0;owned\\x07 \\rgiving up",
}


def test_what_the_device_says_is_made_printable(site: Site, old: DeployResult) -> None:
    """What its agent answers, and what stands in its log."""

    def acting(payload: Payload) -> Payload:
        files = payload.files
        for was, said in ACTING.items():
            files = tuple(dataclasses.replace(file, data=file.data.replace(was, said)) for file in files)
        return dataclasses.replace(payload, files=files)

    with pytest.raises(CheckFailedError) as refused:
        install(site.connection, acting(stand_in_payload(site.name, "new", refuse="load")), site.bare)
    assert r"\x1b[2J\u202evector \x9b31m3" in refused.value.message
    assert printable(str(refused.value), "\n") == str(refused.value)
    install(site.connection, acting(stand_in_payload(site.name)), site.bare)
    with AgentSession(site.connection, site.name) as agent, pytest.raises(AgentError, match="giving up") as died:
        agent.request("die")
    assert r"\x1b]0;owned\x07 \x0dgiving up" in died.value.message and "\x1b" not in str(died.value)


def test_printable() -> None:
    assert printable("Größe 3 µs") == "Größe 3 µs"
    assert printable("a\x1b[2J\x07\x9b\x7f\r\n") == r"a\x1b[2J\x07\x9b\x7f\x0d\x0a"
    assert printable("a\nb\tc", "\n\t") == "a\nb\tc"
    assert printable("\u202e\u2028\ud800\U000e0001") == r"\u202e\u2028\ud800\U000e0001"
    assert printable_reply({"a\x1b": ["b\x1b", 1, None, 2.5, {"c": "d\n"}]}) == {
        r"a\x1b": [r"b\x1b", 1, None, 2.5, {"c": "d\n"}]
    }
    assert not may_act(b'{"a": [1.5, "b"]}') and may_act(b'{"a": "\\u001b"}') and may_act(b'{"a": "\xc2\x9b"}')
    assert str(HostError("a\x1b", "b\x1b\nc")) == "a\\x1b\n  next: b\\x1b\nc"
