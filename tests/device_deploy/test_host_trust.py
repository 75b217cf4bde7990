"""Signed releases: whose are run, which tamperings are refused, and that the old release goes on serving."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.deploy.connection import Connection, connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.errors import HostError, TrustError, VerificationError
from quarl.device.deploy.helper_session import helper
from quarl.device.deploy.local_device import LocalFolder, running_local_device
from quarl.device.deploy.on_device import files
from quarl.device.deploy.on_device import trust as on_device
from quarl.device.deploy.on_device.files import HelperError
from quarl.device.deploy.on_device.signatures import check_signature
from quarl.device.deploy.on_device.trust import Trust
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases, rollback
from quarl.device.deploy.signing import sshsig
from quarl.device.deploy.signing.keys import SigningKey, made_key, signing_key
from quarl.device.deploy.signing.record import USUAL, Signing, signed_record
from quarl.device.deploy.switching import begin
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy import devices
from tests.device_deploy.devices import TestDevice, as_test_device, let_sign, served_text, stand_in_payload
from tests.device_deploy.needs import needs_ssh

ME = {"user": "ann", "host": "desk", "pid": 1, "policy": "P"}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDevice]:
    """A device of this module, whose lists of signers its tests change."""
    with running_local_device(tmp_path_factory.mktemp("trust")) as local:
        yield as_test_device(local)


@pytest.fixture
def line(own: TestDevice) -> Iterator[Connection]:
    let_sign(own.home)
    own.home.joinpath("quarl/trust/revoked").unlink(missing_ok=True)
    own.home.joinpath("quarl/trust/device_class").unlink(missing_ok=True)
    with own.connect() as connection:
        yield connection


@pytest.fixture
def bare(line: Connection) -> WheelSet:
    return WheelSet(probe(line).python, ())


@pytest.fixture
def old(line: Connection, name: str, bare: WheelSet) -> DeployResult:
    return install(line, stand_in_payload(name, "old"), bare)


@pytest.fixture
def serves_old(own: TestDevice, line: Connection, name: str, old: DeployResult) -> Iterator[None]:
    """Whatever is tried in the test, afterwards the old release serves and nothing is left of another."""
    yield
    assert served_text(line, name) == "old"
    assert list_releases(line).policies[name].current == old.release
    assert not own.leftovers(name)


def key_of(tmp_path: Path, name: str = "other") -> SigningKey:
    return made_key(tmp_path, name)


def sent(line: Connection, name: str, text: str, signature: str, files: dict[str, bytes], release: str) -> None:
    """What a host without scruples does: send a record and files, and ask for them to be published and served."""
    with helper(line, probe(line).python.path) as session:
        session.call("begin", policy=name, digest="d" * 64, by=ME)
        folder = session.call("receive", release=release, need_bytes=1, record=text, signature=signature)["incoming"]
        for path, data in files.items():
            line.run(f"mkdir -p {folder}/$(dirname {path})")
            line.upload(data, f"{folder}/{path}")
        session.call("verify")
        session.call("publish")
        session.call("switch", release=release, scripts={})


def signed(line: Connection, name: str, bare: WheelSet, text: str = "new", key: SigningKey | None = None) -> tuple:
    """(record, signature, files) of an honest new release for the device as it is now."""
    payload = stand_in_payload(name, text)
    with helper(line, bare.python.path) as session:
        trust = session.call("begin", policy=name, digest=None, by=ME)["trust"]
    made = signed_record(payload, bare, key or devices.signing_key(), trust, USUAL)
    return made.text, made.signature, {file.path: file.data for file in payload.files}


def changed(text: str, **values: object) -> str:
    return json.dumps({**json.loads(text), **values}, sort_keys=True, separators=(",", ":"))


# On the way to the device: each is what somebody sends who has no key.


@pytest.mark.usefixtures("serves_old")
@pytest.mark.parametrize("path", ["bundle/ballast.bin", "lib/agent.py", "run-agent", "bundle/policy.json"])
def test_a_file_that_is_not_the_signed_one_is_refused(line: Connection, name: str, bare: WheelSet, path: str) -> None:
    text, signature, files = signed(line, name, bare)
    with pytest.raises(VerificationError, match=f"{path} differs"):
        sent(line, name, text, signature, {**files, path: files[path] + b"#"}, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
def test_a_file_added_to_a_release_is_refused(line: Connection, name: str, bare: WheelSet) -> None:
    text, signature, files = signed(line, name, bare)
    with pytest.raises(VerificationError, match=r"lib/json\.py does not belong there"):
        sent(line, name, text, signature, {**files, "lib/json.py": b"raise SystemExit"}, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
@pytest.mark.parametrize("field", ["files", "digest", "serial", "target_class", "commit", "created"])
def test_a_record_that_was_changed_after_it_was_signed_is_refused(
    line: Connection, name: str, bare: WheelSet, field: str
) -> None:
    text, signature, files = signed(line, name, bare)
    with pytest.raises(TrustError, match="it was changed"):
        sent(line, name, changed(text, **{field: json.loads(text)[field]}) + " ", signature, files, "0002-dddddddd")
    with pytest.raises(TrustError, match="it was changed"):
        sent(line, name, changed(text, **{field: "x"}), signature, files, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
@pytest.mark.parametrize(
    "signature", ["", "nonsense", "-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----"]
)
def test_what_is_no_signature_is_refused(line: Connection, name: str, bare: WheelSet, signature: str) -> None:
    text, _, files = signed(line, name, bare)
    with pytest.raises(TrustError, match="none that ssh-keygen makes"):
        sent(line, name, text, signature, files, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
def test_a_stranger_is_refused_before_anything_is_sent_and_by_the_device_itself(
    line: Connection, name: str, bare: WheelSet, tmp_path: Path
) -> None:
    stranger = key_of(tmp_path)
    with pytest.raises(
        TrustError, match=rf"signed by {re.escape(stranger.fingerprint)}; allowed are .*Nothing was sent.*serves"
    ) as caught:
        install(line, stand_in_payload(name, "new"), bare, signing=Signing(stranger.file))
    assert "signers" in caught.value.next_step and "--sign-key" in caught.value.next_step
    text, signature, files = signed(line, name, bare, key=stranger)
    with pytest.raises(TrustError, match=re.escape(stranger.fingerprint)):
        sent(line, name, text, signature, files, "0002-dddddddd")
    pretended = changed(text, signer=devices.signing_key().fingerprint)
    with pytest.raises(TrustError, match=re.escape(stranger.fingerprint)):
        sent(line, name, pretended, stranger.sign(pretended.encode()).decode(), files, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
def test_a_signature_for_another_purpose_is_refused(
    line: Connection, name: str, bare: WheelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signer signs other things with the key, too: a commit, a file."""
    monkeypatch.setattr("quarl.device.deploy.signing.keys.NAMESPACE", "git")
    text, signature, files = signed(line, name, bare)
    with pytest.raises(TrustError, match="not of this record"):
        sent(line, name, text, signature, files, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
def test_another_class_of_device_is_refused(line: Connection, name: str, bare: WheelSet) -> None:
    text, _, files = signed(line, name, bare)
    swapped = changed(text, target_class="rover/armv7l")
    with pytest.raises(TrustError, match=r"signed for the target_class 'rover/armv7l'; here it is 'any/"):
        sent(line, name, swapped, devices.signing_key().sign(swapped.encode()).decode(), files, "0002-dddddddd")


@pytest.mark.usefixtures("serves_old")
def test_a_release_of_another_policy_is_refused(line: Connection, name: str, bare: WheelSet) -> None:
    text, signature, files = signed(line, f"{name}-other", bare)
    with pytest.raises(TrustError, match="signed for the policy"):
        sent(line, name, text, signature, files, "0002-dddddddd")


def test_an_older_release_sent_again_is_refused(line: Connection, name: str, bare: WheelSet) -> None:
    """A downgrade: whoever recorded an old release has its signature, too."""
    text, signature, files = signed(line, name, bare, "old")
    sent(line, name, text, signature, files, "0001-dddddddd")
    newer = install(line, stand_in_payload(name, "new"), bare).release
    with pytest.raises(TrustError, match=r"its serial is \d+, and \d+ was accepted here: it is an older one"):
        sent(line, name, text, signature, files, "0003-dddddddd")
    assert served_text(line, name) == "new"
    assert list_releases(line).policies[name].current == newer


def test_a_lower_serial_has_to_be_allowed_and_is_then_signed_for(line: Connection, name: str, bare: WheelSet) -> None:
    install(line, stand_in_payload(name, "first"), bare, signing=Signing(serial=5_000_000_000))
    with pytest.raises(TrustError, match="Serial 7 is not above 5000000000") as caught:
        install(line, stand_in_payload(name, "second"), bare, signing=Signing(serial=7))
    assert "--allow-serial" in caught.value.next_step
    install(line, stand_in_payload(name, "second"), bare, signing=Signing(serial=7, allow_serial=True))
    assert served_text(line, name) == "second"
    install(line, stand_in_payload(name, "third"), bare, signing=Signing(serial=8))
    assert served_text(line, name) == "third"
    assert rollback(line, name).release.startswith("0002-"), "among accepted releases no serial is in the way"


# On the device: each is what somebody does who can write the folder.

Tamper = Callable[[Path], None]


def _append(path: str) -> Tamper:
    def tamper(folder: Path) -> None:
        (folder / path).write_bytes((folder / path).read_bytes() + b"#")

    return tamper


def _add(folder: Path) -> None:
    (folder / "lib" / "json.py").write_text("raise SystemExit(9)")


def _link(folder: Path) -> None:
    (folder / "lib" / "agent.py").rename(folder.parent.parent / "moved.py")
    (folder / "lib" / "agent.py").symlink_to(folder.parent.parent / "moved.py")


def _unsign(folder: Path) -> None:
    (folder / "release.json.sig").unlink()


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(_append("bundle/ballast.bin"), id="artifact"),
        pytest.param(_append("lib/agent.py"), id="code"),
        pytest.param(_append("run-agent"), id="starter"),
        pytest.param(_append("release.json"), id="record"),
        pytest.param(_add, id="a file added"),
        pytest.param(_link, id="a link in place of a file"),
        pytest.param(_unsign, id="signature removed"),
    ],
)
def test_a_release_that_was_changed_on_the_device_is_neither_started_nor_gone_back_to(
    own: TestDevice, line: Connection, name: str, bare: WheelSet, old: DeployResult, tamper: Tamper
) -> None:
    new = install(line, stand_in_payload(name, "new"), bare).release
    tamper(own.policy_folder(name) / "releases" / old.release)
    with pytest.raises(HostError) as caught:
        rollback(line, name, old.release)
    assert isinstance(caught.value, (TrustError, VerificationError))
    assert f"Release {new} still serves" in caught.value.message
    assert served_text(line, name) == "new"
    tamper(own.policy_folder(name) / "releases" / new)
    with pytest.raises((TrustError, VerificationError), match="is not started"):
        served_text(line, name)
    assert install(line, stand_in_payload(name, "new"), bare).release.startswith("0003-"), "it is sent anew"
    assert served_text(line, name) == "new"


def test_an_old_manifest_replayed_in_a_newer_ones_place_is_refused(
    own: TestDevice, line: Connection, name: str, bare: WheelSet, old: DeployResult
) -> None:
    """Whole and rightly signed, but not what was accepted under that name."""
    new = install(line, stand_in_payload(name, "new"), bare).release
    releases = own.policy_folder(name) / "releases"
    shutil.rmtree(releases / new)
    shutil.copytree(releases / old.release, releases / new)
    with pytest.raises(TrustError, match=f"not the one that was accepted here as release {new}"):
        served_text(line, name)
    assert rollback(line, name, old.release).release == old.release
    assert served_text(line, name) == "old"


@pytest.mark.parametrize("where", ["another root", "another policy"])
def test_a_link_to_somebody_elses_release_is_not_followed(
    own: TestDevice, line: Connection, name: str, bare: WheelSet, old: DeployResult, tmp_path: Path, where: str
) -> None:
    """Whole, rightly signed and accepted there: by a signer of his own, or for another robot's arm."""
    current = own.policy_folder(name) / "current"
    install(line, stand_in_payload(f"{name}-other", "other"), bare)
    elsewhere = own.policy_folder(f"{name}-other") / "current"
    if where == "another root":
        shutil.copytree(own.home / "quarl", tmp_path / "quarl", symlinks=True)
        elsewhere = tmp_path / "quarl" / "policies" / name / "releases" / old.release
    current.unlink()
    current.symlink_to(elsewhere.resolve())
    with pytest.raises(TrustError, match=f"is no release of {name} in"):
        served_text(line, name)
    current.unlink()
    current.symlink_to(f"releases/{old.release}")
    assert served_text(line, name) == "old"


# Keys.


def test_a_spare_signer_goes_on_when_the_other_is_revoked(
    own: TestDevice, line: Connection, name: str, bare: WheelSet, old: DeployResult, tmp_path: Path
) -> None:
    spare = key_of(tmp_path, "spare")
    let_sign(own.home, devices.signing_key(), spare)
    same = install(line, stand_in_payload(name, "old"), bare, signing=Signing(spare.file))
    assert not same.unchanged and same.release != old.release and same.reused_files == 4, "it is signed by another"
    assert install(line, stand_in_payload(name, "old"), bare, signing=Signing(spare.file)).unchanged
    new = install(line, stand_in_payload(name, "new"), bare, signing=Signing(spare.file))
    with helper(line, bare.python.path) as session:
        session.call("signers", add=[], revoke=[devices.signing_key().public], device_class=None)
    assert served_text(line, name) == "new"
    with pytest.raises(TrustError, match="revoked here"):
        rollback(line, name, old.release)
    with pytest.raises(TrustError, match=r"revoked here.*Nothing was sent"):
        install(line, stand_in_payload(name, "newer"), bare)
    assert list_releases(line).policies[name].current == new.release
    with helper(line, bare.python.path) as session:
        for add, revoke, why in (
            ([devices.signing_key().public], [], "does not come back"),
            ([], [spare.public], "nobody could sign any more"),
        ):
            with pytest.raises(TrustError, match=why):
                session.call("signers", add=add, revoke=revoke, device_class=None)
    assert rollback(line, name, same.release).release == same.release, "the same content, signed by who still counts"


@needs_ssh
def test_a_key_in_the_ssh_agent_signs(
    own: TestDevice, line: Connection, name: str, bare: WheelSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by its public half, as a token's is; the private one is nowhere on the disk."""
    key = key_of(tmp_path)
    printed = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    values = dict(part.split(";")[0].split("=") for part in printed.splitlines() if "=" in part)
    try:
        for variable, value in values.items():
            monkeypatch.setenv(variable, value)
        subprocess.run(["ssh-add", "-q", str(key.file)], check=True)
        key.file.unlink()
        let_sign(own.home, key)
        install(line, stand_in_payload(name, "agent"), bare, signing=Signing(key.file.with_name("other.pub")))
        assert served_text(line, name) == "agent"
    finally:
        os.kill(int(values["SSH_AGENT_PID"]), 15)


LOOSE = {
    "the list": ("quarl/trust/allowed_signers", 0o666),
    "the list, by the group": ("quarl/trust/allowed_signers", 0o664),
    "what was accepted": ("quarl/trust/accepted.json", 0o602),
    "its folder": ("quarl/trust", 0o777),
    "a folder above": ("quarl", 0o1777),
    "the home folder": ("", 0o775),
}


@contextlib.contextmanager
def loose(path: Path, mode: int) -> Iterator[None]:
    """Others may write it meanwhile."""
    before = path.stat().st_mode
    owner = 1 if mode & 0o1000 and os.geteuid() == 0 else -1  # root's alone may be shared with others, as /tmp is
    os.chown(path, owner, -1)
    path.chmod(mode)
    try:
        yield
    finally:
        os.chown(path, os.geteuid() if owner == 1 else -1, -1)
        path.chmod(before)


@pytest.mark.parametrize("what", LOOSE)
def test_a_list_that_others_may_write_is_not_believed(
    own: TestDevice, line: Connection, name: str, bare: WheelSet, old: DeployResult, what: str
) -> None:
    path, mode = LOOSE[what]
    (own.home / "quarl/trust/revoked").touch()
    with loose(own.home / path, mode):
        with pytest.raises(TrustError) as deployed:
            install(line, stand_in_payload(name, "new"), bare)
        with pytest.raises(TrustError):
            served_text(line, name)
        with helper(line, bare.python.path) as session, pytest.raises(TrustError):
            session.call("signers", add=[devices.signing_key().public], revoke=[], device_class=None)
        with helper(line, bare.python.path) as session:  # what stops a robot needs nobody's trust
            assert begin(session, name, None, 0)["trust"].keys() == {"refused"}
            assert session.call("unserve")["was_served"] is False
    assert f"{(own.home / path).resolve()} " in deployed.value.message
    assert served_text(line, name) == "old"
    assert not own.leftovers(name)


def test_a_list_of_another_user_is_not_believed_and_one_of_roots_is(tmp_path: Path) -> None:
    def judged(owner: int, mode: int, above: int = 0o040755) -> str:
        modes = {"/home/pi/list": (mode, owner), "/home": (0o040777, 5)}

        def look(place: str) -> types.SimpleNamespace:
            found, by = modes.get(place, (above, 1000))
            return types.SimpleNamespace(st_mode=found, st_uid=by)

        return files.open_to_others("/home/pi/list", "/home/pi", look, 1000)

    assert judged(1000, 0o100644) == judged(0, 0o100644) == judged(1000, 0o100600) == ""
    assert judged(1001, 0o100600).startswith("/home/pi/list belongs to user 1001")
    assert judged(1000, 0o100664).startswith("/home/pi/list ") and judged(0, 0o100646).startswith("/home/pi/list ")
    assert judged(1000, 0o100644, 0o041777).startswith("/home/pi ")  # sticky, but not root's
    (tmp_path / "home").mkdir()
    with loose(tmp_path / "home", 0o770):  # it leads elsewhere: who may write the home folder may exchange the link
        assert files.open_to_others("/etc/passwd", str(tmp_path / "home"))


def test_hosts_that_others_may_write_down_are_not_known(own: TestDevice, line: Connection) -> None:
    for path, mode in ((own.known_hosts, 0o666), (own.known_hosts.parent, 0o777)):
        with loose(path, mode), pytest.raises(TrustError, match=re.escape(str(path))), own.connect():
            pass
    with own.connect():
        pass


def test_a_device_that_knows_nobody_says_what_to_type(
    own: TestDevice, line: Connection, name: str, bare: WheelSet
) -> None:
    (own.home / "quarl" / "trust" / "allowed_signers").unlink()
    with pytest.raises(TrustError, match=r"does not know yet whose policies.*Nothing was sent") as caught:
        install(line, stand_in_payload(name, "new"), bare)
    assert f"signers --target {line.target} --make" in caught.value.next_step


def test_roots_list_alone_counts_where_it_exists(tmp_path: Path) -> None:
    system, root = tmp_path / "etc", tmp_path / "quarl"
    ours, roots = key_of(tmp_path, "ours"), key_of(tmp_path, "roots")
    let_sign(tmp_path, ours)
    text = b'{"policy":"P"}'
    system.mkdir()
    (system / "allowed_signers").write_text(f'release@quarl namespaces="quarl-release" {roots.public}\n')
    trust = Trust(root, system)
    with pytest.raises(HelperError, match=re.escape(f"allowed are {roots.fingerprint}")):
        trust.check_new("P", text, ours.sign(text))
    with pytest.raises(HelperError, match="changed there, by root"):
        trust.change([ours.public], [], None)
    assert Trust(root, tmp_path / "nothing").anchor == root / "trust"


@needs_ssh
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('release@quarl namespaces="git" {key}', "not of this record"),
        ('someone@quarl namespaces="quarl-release" {key}', "not of this record"),
        ("# {key}", "names no key"),
        ("", "names no key"),
    ],
)
def test_a_line_that_lets_a_key_sign_other_things_lets_it_sign_no_release(tmp_path: Path, line: str, why: str) -> None:
    key = key_of(tmp_path)
    (tmp_path / "quarl" / "trust").mkdir(parents=True)
    (tmp_path / "quarl" / "trust" / "allowed_signers").write_text(line.format(key=key.public) + "\n")
    with pytest.raises(HelperError, match=why):
        Trust(tmp_path / "quarl", tmp_path).check_new("P", b"{}", key.sign(b"{}"))


def test_the_class_of_a_device_has_a_name(line: Connection, name: str, bare: WheelSet, old: DeployResult) -> None:
    with helper(line, bare.python.path) as session:
        for wrong in ("", "two words", "../x"):
            with pytest.raises(TrustError, match="allowed are letters"):
                session.call("signers", add=[], revoke=[], device_class=wrong)
        said = session.call("signers", add=[], revoke=[], device_class="rover")
    assert said["target_class"] == f"rover/{on_device.machine()}"
    with pytest.raises(TrustError, match="signed for the target_class 'any/"):
        served_text(line, name)
    assert install(line, stand_in_payload(name, "old"), bare).release != old.release
    assert served_text(line, name) == "old"


def test_the_local_device_gets_a_key_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cli.main(["signers"]) == 0
    assert "nobody yet" in capsys.readouterr().out
    with connect("local") as connection:
        install(connection, stand_in_payload("P", "one"), WheelSet(probe(connection).python, ()))
        assert served_text(connection, "P") == "one"
    key = signing_key(LocalFolder(tmp_path / "device").keys / "release_ed25519")
    assert key.file.stat().st_mode & 0o077 == 0
    assert cli.main(["signers", "--revoke", f"{key.file}.pub"]) == 1
    assert "P 0001-" in (refused := capsys.readouterr().err) and "would not start any more" in refused
    assert cli.main(["signers", "--revoke", f"{key.file}.pub", "--force"]) == 1
    assert "add another signer first" in capsys.readouterr().err
    assert cli.main(["signers", "--make", "--class", "bench"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("SHA256:") == 4 and "bench/" in shown and "spare_ed25519" in shown
    assert cli.main(["signers", "--revoke", f"{key.file}.pub", "--force"]) == 0
    assert f"revoked: {key.fingerprint}" in capsys.readouterr().out
    with connect("local") as connection, pytest.raises(TrustError, match="a key that was revoked here"):
        served_text(connection, "P")


@pytest.mark.parametrize("content", [None, "", "ssh-rsa AAAAB3NzaC1yc2E= old\n"])
def test_a_file_without_a_key_that_counts(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key.pub"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TrustError) as caught:
        signing_key(path)
    assert "key.pub" in caught.value.message and "ssh-keygen -t ed25519" in caught.value.next_step


def test_a_record_says_what_was_signed(own: TestDevice, line: Connection, name: str, bare: WheelSet) -> None:
    payload = dataclasses.replace(stand_in_payload(name, "one"), weights="f" * 64)
    release = install(line, payload, bare).release
    text = (own.policy_folder(name) / "releases" / release / "release.json").read_text()
    record = json.loads(text)
    assert text == changed(text), "canonical: sorted, without spaces"
    assert record["signer"] == devices.signing_key().fingerprint
    assert record["weights"] == "f" * 64 and record["commit"] and record["serial"] > 1_700_000_000
    assert record["target_class"].startswith("any/") and record["files"] == payload.hashes
    (shown,) = list_releases(line).policies[name].releases
    assert shown.signer == record["signer"]


# A host without OpenSSH.


@needs_ssh
def test_either_tool_verifies_what_the_other_signed(tmp_path: Path) -> None:
    key, text = key_of(tmp_path), b'{"a":1}'
    by_openssh, by_library = key.sign(text), sshsig.sign(key.file, text, "quarl-release")
    assert by_openssh == by_library, "Ed25519 signs alike everywhere"
    let_sign(tmp_path, key)
    folder, library = tmp_path / "quarl" / "trust", (sys.executable, "-m", sshsig.__name__)
    for tool in (("ssh-keygen",), library):
        assert check_signature(text, by_library, folder, tool) == key.fingerprint
        for wrong in (b'{"a":2}', b""):
            with pytest.raises(HelperError, match="it was changed"):
                check_signature(wrong, by_library, folder, tool)
        with pytest.raises(HelperError, match="it was changed"):
            check_signature(text, sshsig.sign(key.file, text, "git"), folder, tool)
        damaged = bytearray(by_library)
        damaged[-60] ^= 3
        with pytest.raises(HelperError):
            check_signature(text, bytes(damaged), folder, tool)


def test_a_host_without_openssh_deploys_to_the_local_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine has that was never reached over SSH: `make demo` is one command there, too."""
    (tmp_path / "tools").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    with connect("local", local_folder=tmp_path / "device") as connection:
        bare = WheelSet(probe(connection).python, ())
        install(connection, stand_in_payload("P", "one"), bare)
        tool = tmp_path / "device" / "bin" / "ssh-keygen"
        assert "quarl.device.deploy.signing.sshsig" in tool.read_text(), "and it comes first on the device's PATH"
        assert served_text(connection, "P") == "one"
        with pytest.raises(TrustError, match="would not trust"):
            stranger = key_of(tmp_path)
            install(connection, stand_in_payload("P", "two"), bare, signing=Signing(stranger.file))
        with pytest.raises(TrustError, match="does not sign without ssh-keygen"):
            stranger.file.unlink()
            install(connection, stand_in_payload("P", "two"), bare, signing=Signing(stranger.file))
