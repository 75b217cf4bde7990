"""Signed releases, between host and device: whose are sent, and what is said. What is refused there: test_verify.py."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.deploy.connection import connect
from quarl.device.deploy.deploy import DeployResult, install
from quarl.device.deploy.device import open_device
from quarl.device.deploy.errors import TrustError, VerificationError
from quarl.device.deploy.fleet import status
from quarl.device.deploy.fleet.inventory import Member
from quarl.device.deploy.local_device import LocalFolder, running_local_device
from quarl.device.deploy.loops import unserve
from quarl.device.deploy.probe import probe
from quarl.device.deploy.records import parse_record
from quarl.device.deploy.signing import sshsig
from quarl.device.deploy.signing.keys import ensure_key, signing_key
from quarl.device.deploy.signing.lists import NAMESPACE, change_lists
from quarl.device.deploy.signing.provisioning import root_floor
from quarl.device.deploy.signing.record import USUAL, Signing, sign_record
from quarl.device.deploy.state import Accepted
from quarl.device.deploy.switching import begin
from quarl.device.deploy.wheels import WheelSet
from tests.device_deploy import devices
from tests.device_deploy.conftest import new_site
from tests.device_deploy.devices import (
    Site,
    TestDevice,
    as_test_device,
    let_sign,
    needs_ssh,
    served_text,
    stand_in_payload,
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDevice]:
    """A device of this module, whose lists of signers its tests change."""
    with running_local_device(tmp_path_factory.mktemp("trust")) as local:
        yield as_test_device(local)


@pytest.fixture
def site(own: TestDevice) -> Iterator[Site]:
    let_sign(own.home)
    for name in ("revoked", "device_class"):
        own.home.joinpath("quarl/trust", name).unlink(missing_ok=True)
    with own.connect() as connection:
        yield new_site(own, connection)


@pytest.fixture
def serves_old(site: Site, old: DeployResult) -> Iterator[None]:
    """Whatever is tried in the test, afterwards the old release serves and nothing is left of another."""
    yield
    assert site.served() == "old"
    assert site.releases() == [old.release] and not site.leftovers()


def send_and_replace(site: Site, replaced: str, by: bytes | None) -> None:
    """What a host without scruples does: sign, exchange a file, send all, and ask for it to be published."""
    payload = stand_in_payload(site.name, "new")
    with open_device(site.connection, site.bare.python.path) as session:
        trust = begin(session, payload.policy, None, 0.0)["trust"]
        signed = sign_record(payload, site.bare, devices.signing_key(), trust, USUAL)
        text = signed.text.replace("\nby ", f"\nby {replaced}") if replaced == "eve" else signed.text
        session.receive("0002-dddddddd", text, signed.signature, 1)
        files = {**{file.path: file.data for file in payload.files}, replaced: by}
        for path, data in files.items():
            if data is not None:
                site.connection.upload(data, f"quarl/{session.incoming}/{path}")
        session.publish()


@pytest.mark.usefixtures("serves_old")
@pytest.mark.parametrize(("replaced", "by", "error"), [
    ("bundle/ballast.bin", b"x", VerificationError),
    ("run-agent", b"#!/bin/sh\n", VerificationError),
    ("lib/json.py", b"raise SystemExit", VerificationError),
    ("lib/agent.py", None, VerificationError),
    ("eve", None, TrustError),
])  # fmt: skip
def test_what_was_changed_is_not_published(site: Site, replaced: str, by: bytes | None, error: type[Exception]) -> None:
    with pytest.raises(error, match="it was changed" if replaced == "eve" else replaced):
        send_and_replace(site, replaced, by)


@pytest.mark.usefixtures("serves_old")
def test_a_stranger_is_refused_before_anything_is_sent(site: Site, tmp_path: Path) -> None:
    stranger = ensure_key(tmp_path, "stranger")
    with pytest.raises(TrustError) as caught:
        site.install("new", signing=Signing(stranger.file))
    assert stranger.fingerprint in caught.value.message and "signers" in caught.value.next_step
    with pytest.raises(TrustError, match="ssh-keygen -t ed25519"):
        site.install("new", signing=Signing(tmp_path / "none"))


def test_a_release_that_was_changed_on_the_device_is_sent_anew(site: Site, old: DeployResult) -> None:
    new = site.install("new").release
    for release in (old.release, new):
        file = site.folder / "releases" / release / "lib/agent.py"
        file.write_text(file.read_text() + "#")
    with pytest.raises(VerificationError) as caught:
        site.rollback(old.release)
    assert "lib/agent.py" in caught.value.message and new in caught.value.message
    with pytest.raises(VerificationError, match=r"lib/agent\.py"):
        site.served()
    again = site.install("new")
    assert again.release.startswith("0003-") and site.served() == "new"


def test_each_release_is_shown_with_its_trust(site: Site, old: DeployResult, monkeypatch: pytest.MonkeyPatch) -> None:
    releases, new = site.folder / "releases", site.install("new").release
    shutil.copytree(releases / old.release, releases / "0003-planted")
    (releases / "0004-old").mkdir()
    (releases / "0004-old" / "release.json").write_text("{}")
    (releases / old.release / "release.sig").unlink()
    shown = site.shown()
    trust = {release: each.trust for release, each in shown.items()}
    assert trust.keys() == {old.release, new, "0003-planted", "0004-old"} and trust[new] == "trusted"
    assert "signed" in trust[old.release] and "accepted" in trust["0003-planted"] and "older" in trust["0004-old"]
    assert shown["0004-old"].is_old and all(each.why_not for each in shown.values() if each.name != new)
    monkeypatch.setattr(status, "connect", lambda target, identity: site.device.connect())
    for path, serving, health in ((releases, new, ""), (releases / new, new, "signed")):
        (path / "release.sig").unlink(missing_ok=True)
        (found,) = status.status_of(Member("own"), lambda step: None, {}, site.name)
        assert found.release == serving and any(health in each for each in found.health) is bool(health)


def test_a_lower_serial_has_to_be_allowed_and_is_then_signed_for(site: Site) -> None:
    site.install("first", signing=Signing(serial=5_000_000_000))
    with pytest.raises(TrustError, match=r"above 5000000000.* 7") as caught:
        site.install("second", signing=Signing(serial=7))
    assert "--allow-serial" in caught.value.next_step
    assert Accepted.parse("P 7\n", '{"serials": {"P": 9, "Q": 3}}').serials == {"P": 7, "Q": 3}
    for text, signing in (("second", Signing(serial=7, allow_serial=True)), ("third", Signing(serial=8))):
        site.install(text, signing=signing)
        assert site.served() == text
    assert site.rollback().release.startswith("0002-"), "among accepted releases no serial is in the way"


@pytest.mark.parametrize("text", ["", "garbage\n", "\x00\x00"])
def test_what_was_accepted_is_damaged_and_repaired_by_a_deployment(site: Site, old: DeployResult, text: str) -> None:
    (site.device.home / "quarl/trust/accepted").write_text(text)
    assert site.install("old").release.startswith("0002-"), "signed and sent again"
    assert site.served() == "old" and not site.leftovers()


def test_a_record_says_what_was_signed(site: Site) -> None:
    payload = dataclasses.replace(stand_in_payload(site.name, "one"), weights="f" * 64)
    release = install(site.connection, payload, site.bare).release
    text = (site.folder / "releases" / release / "release").read_text()
    record = parse_record(release, site.name, text)
    assert (record.signer, record.files, record.digest) == (
        devices.signing_key().fingerprint,
        payload.hashes,
        payload.digest,
    )
    assert record.serial > 1_700_000_000 and "\nclass any/" in text
    assert f"\nweights {'f' * 64}\n" in text and "\ncommit " in text
    (shown,) = site.state().releases
    assert shown.signer == record.signer


def test_a_spare_signer_goes_on_when_the_other_is_revoked(site: Site, old: DeployResult, tmp_path: Path) -> None:
    spare, usual = ensure_key(tmp_path, "spare"), devices.signing_key()
    let_sign(site.device.home, usual, spare)
    same = site.install("old", signing=Signing(spare.file))
    assert not same.unchanged and same.release != old.release and same.reused_files == 4, "it is signed by another"
    assert site.install("old", signing=Signing(spare.file)).unchanged
    new = site.install("new", signing=Signing(spare.file))
    with open_device(site.connection) as session:
        session.signers([], [usual.public], None)
    assert site.served() == "new"
    with pytest.raises(TrustError, match="revoked"):
        site.rollback(old.release)
    with pytest.raises(TrustError, match="revoked"):
        site.install("newer")
    assert site.state().current == new.release
    with open_device(site.connection) as session:
        for add, revoke, why in (([usual.public], [], "a revoked key"), ([], [spare.public], "no key could sign")):
            with pytest.raises(TrustError, match=why):
                session.signers(add, revoke, None)
    assert site.rollback(same.release).release == same.release, "the same content, signed by who still counts"


@needs_ssh
def test_a_key_in_the_ssh_agent_signs(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its public half, as a token's is; the private one is nowhere on the disk."""
    key = ensure_key(tmp_path, "other")
    printed = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    values = dict(part.split(";")[0].split("=") for part in printed.splitlines() if "=" in part)
    try:
        for variable, value in values.items():
            monkeypatch.setenv(variable, value)
        subprocess.run(["ssh-add", "-q", str(key.file)], check=True)
        key.file.unlink()
        let_sign(site.device.home, key)
        site.install("agent", signing=Signing(key.file.with_name("other.pub")))
        assert site.served() == "agent"
    finally:
        os.kill(int(values["SSH_AGENT_PID"]), 15)


@pytest.mark.parametrize("content", [None, "", "ssh-rsa AAAAB3NzaC1yc2E= old\n"])
def test_a_file_without_a_key_that_counts(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "key.pub"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TrustError, match=r"key\.pub") as caught:
        signing_key(path)
    assert "ssh-keygen -t ed25519" in caught.value.next_step


@pytest.mark.usefixtures("serves_old")
def test_a_list_that_others_may_write_is_not_believed(site: Site) -> None:
    path = site.device.home.resolve() / "quarl/trust/allowed_signers"
    path.chmod(0o666)
    with pytest.raises(TrustError, match=str(path)):
        site.install("new")
    with pytest.raises(TrustError, match=str(path)):
        site.served()
    with open_device(site.connection) as session:
        with pytest.raises(TrustError, match=str(path)):
            session.signers([devices.signing_key().public], [], None)
        assert str(path) in begin(session, site.name, None, 0.0)["trust"]["refused"]
        assert unserve(session) is False, "what stops a robot needs nobody's trust"
    path.chmod(0o644)


def test_hosts_that_others_may_write_down_are_not_known(own: TestDevice, site: Site) -> None:
    for path, mode in ((own.known_hosts, 0o666), (own.known_hosts.parent, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(TrustError, match=str(path)), own.connect():
            pass
        path.chmod(before)
    with own.connect():
        pass


def test_a_device_that_knows_nobody_says_what_to_type(site: Site) -> None:
    (site.device.home / "quarl/trust/allowed_signers").unlink()
    with pytest.raises(TrustError, match="Nothing was sent") as caught:
        site.install("new")
    assert f"signers --target {site.connection.target} --make" in caught.value.next_step
    assert not site.folder.exists()


def test_the_class_of_a_device_has_a_name(site: Site, old: DeployResult) -> None:
    with open_device(site.connection) as session:
        for wrong in ("", "two words", "../x"):
            with pytest.raises(TrustError, match="consist of letters"):
                session.signers([], [], wrong)
        assert session.signers([], [], "rover")["target_class"] == f"rover/{probe(site.connection).machine}"
    with pytest.raises(TrustError, match=r"'any/.*'rover/"):
        site.served()
    assert site.install("old").release != old.release
    assert site.served() == "old"


def test_roots_lists_are_roots(tmp_path: Path) -> None:
    trust = {"anchor": "/etc/quarl", "by_root": "yes", "signers": [], "revoked": [], "target_class": "any/x"}
    with pytest.raises(TrustError, match="/etc/quarl"):
        change_lists("pi", trust, [ensure_key(tmp_path).public], [], None)
    serving = {name: {"release": "1", "serial": serial} for name, serial in (("P", 7), ("Q", 3))}
    assert root_floor({"floor": ["Q 5", "R 1"], "serving": serving}) == ["P 7", "Q 5", "R 1"]
    assert root_floor({"floor": ["P 7", "Q 5"], "serving": serving}) == []


def test_the_local_device_gets_a_key_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def signers(*words: str) -> tuple[int, str]:
        return cli.main(["signers", *words]), "".join(capsys.readouterr())

    assert "nobody yet" in signers()[1]
    with connect("local") as connection:
        install(connection, stand_in_payload("P", "one"), WheelSet(probe(connection).python, ()))
        assert served_text(connection, "P") == "one"
    key = signing_key(LocalFolder(tmp_path / "device").keys / "release_ed25519")
    revoke = "--revoke", f"{key.file}.pub"
    assert key.file.stat().st_mode & 0o077 == 0
    status, said = signers(*revoke)
    assert status == 1 and "P 0001-" in said, "it signed what serves"
    assert signers(*revoke, "--force")[0] == 1, "nobody else signs"
    status, said = signers("--make", "--class", "bench")
    assert status == 0 and said.count("SHA256:") == 4 and "bench/" in said and "spare_ed25519" in said
    assert cli.main(["releases", "--target", "local"]) == 0 and "not trusted" in capsys.readouterr().out
    status, said = signers(*revoke, "--force")
    assert status == 0 and f"revoked: {key.fingerprint}" in said
    with connect("local") as connection, pytest.raises(TrustError, match=re.escape(key.fingerprint)):
        served_text(connection, "P")


@needs_ssh
def test_either_tool_verifies_what_the_other_signed(tmp_path: Path) -> None:
    key, text = ensure_key(tmp_path), b"policy P\n"
    by_openssh, by_library = key.sign(text), sshsig.sign(key.file, text, NAMESPACE)
    assert by_openssh == by_library, "Ed25519 signs alike everywhere"
    let_sign(tmp_path, key)
    damaged = bytearray(by_library)
    damaged[-60] ^= 3
    names = "-n", NAMESPACE, "-I", "release@quarl", "-f", str(tmp_path / "quarl/trust/allowed_signers")
    for tool in (("ssh-keygen",), (sys.executable, "-m", sshsig.__name__)):
        for given, signature, good in (
            (text, by_library, True),
            (b"policy Q\n", by_library, False),
            (text, sshsig.sign(key.file, text, "git"), False),
            (text, bytes(damaged), False),
        ):
            (tmp_path / "sig").write_bytes(signature)
            command = [*tool, "-Y", "verify", *names, "-s", str(tmp_path / "sig")]
            done = subprocess.run(command, input=given, capture_output=True, check=False)
            assert (done.returncode == 0) is good and (key.fingerprint in done.stdout.decode()) is good


def test_a_host_without_openssh_deploys_to_the_local_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine has that was never reached over SSH: `make demo` is one command there, too."""
    tools, needed = (
        tmp_path / "tools",
        "cat chmod find flock grep head id ls mkdir mv rm sed sh sha256sum sync tr uname",
    )
    tools.mkdir()
    for program in f"{needed} basename cut df dirname env ln mktemp ps readlink sleep sort tail tar wc".split():
        (tools / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tools))
    with connect("local", local_folder=tmp_path / "device") as connection:
        bare = WheelSet(probe(connection).python, ())
        install(connection, stand_in_payload("P", "one"), bare)
        tool = tmp_path / "device" / "bin" / "ssh-keygen"
        assert sshsig.__name__ in tool.read_text(), "and it comes first on the device's PATH"
        assert served_text(connection, "P") == "one"
        stranger = ensure_key(tmp_path, "stranger")
        with pytest.raises(TrustError):
            install(connection, stand_in_payload("P", "two"), bare, signing=Signing(stranger.file))
        stranger.file.unlink()
        with pytest.raises(TrustError, match="ssh-keygen"):
            install(connection, stand_in_payload("P", "two"), bare, signing=Signing(stranger.file))
