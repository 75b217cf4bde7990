"""A device without Python: sshd, sh, coreutils and ssh-keygen are enough for the agent that is one program."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl.device.agent.loop.client import Client
from quarl.device.agent.loop.frames import release_number
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, deploy
from quarl.device.deploy.errors import (
    AgentError,
    ReleaseError,
    ServiceError,
    TrustError,
    UnsupportedDeviceError,
    VerificationError,
)
from quarl.device.deploy.helper_session import helper
from quarl.device.deploy.on_device import files
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases, remove_releases, rollback
from quarl.device.deploy.signing.keys import SigningKey, made_key
from quarl.device.deploy.signing.record import Signing
from quarl.device.deploy.switching import begin
from quarl.device.deploy.without_python.device import LAUNCHER
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.device_agent.loop.loops import next_where
from tests.device_deploy import devices
from tests.device_deploy.devices import TestDevice, eventually, let_sign
from tests.device_deploy.needs import needs_ssh

pytestmark = needs_ssh
INT8 = Precision.INT8


@pytest.fixture
def line(bare_device: TestDevice) -> Iterator[Connection]:
    let_sign(bare_device.home)
    for name in ("revoked", "device_class"):
        (bare_device.home / "quarl/trust" / name).unlink(missing_ok=True)
    with bare_device.connect() as connection:
        yield connection


@pytest.fixture
def deployed(line: Connection, policy_i: Bundle) -> DeployResult:
    """The release that serves."""
    return deploy(line, policy_i, [INT8], without_python=True)


def current(bare_device: TestDevice) -> Path:
    return bare_device.policy_folder("I") / "current"


def serves(line: Connection) -> None:
    """See that an agent starts and has its golden vectors right."""
    with AgentSession(line, "I") as agent:
        assert agent.request("load", precision="int8")["golden"]["max_error"] == 0.0


def another(line: Connection, bundle: Bundle, tmp_path: Path) -> DeployResult:
    """A newer release of the same content, signed by another key that the device trusts."""
    spare = key_of(tmp_path, "spare")
    with helper(line, "") as session:
        session.call("signers", add=[spare.public], revoke=[], device_class=None)
    return deploy(line, bundle, [INT8], without_python=True, signing=Signing(spare.file))


def key_of(folder: Path, name: str = "other") -> SigningKey:
    return made_key(folder, name)


def test_it_decides_as_the_reference_does(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, deployed: DeployResult
) -> None:
    assert line.run("command -v python3 python", check=False).stdout == ""
    assert deployed.release.startswith("000") and deployed.sent_files + deployed.reused_files in (0, 3)
    golden = policy_i.golden().observations[:50]
    expected = policy_i.expected(policy_i.artifact(INT8, ArtifactFormat.NATIVE)).outputs[:50].argmax(axis=1)
    with AgentSession(line, "I") as agent:
        assert agent.request("hello")["device"]["python"] is None
        assert agent.request("load", precision="int8")["golden"]["action_agreement"] == 1.0
        assert [agent.act(row) for row in golden] == expected.tolist()
        assert agent.request("latency", runs=50)["valid"] in (True, False)
        assert agent.request("memory")["ok"]
        with helper(line, "") as session:
            busy = begin(session, "I", None, 0.0)
            assert busy["current"] == deployed.release
            with pytest.raises(ReleaseError, match=f"an agent runs from {deployed.release} .process {agent.pid}"):
                session.call("drop", release=None, whole=True)
    assert deploy(line, policy_i, [INT8], without_python=True).unchanged
    assert not bare_device.leftovers("I") and not list((bare_device.home / "quarl" / "run").iterdir())
    with AgentSession(line, "I", threads=2) as agent, pytest.raises(AgentError, match="ended with status 2"):
        agent.request("hello")


def test_python_is_named_where_it_is_needed(line: Connection, policy_i: Bundle, deployed: DeployResult) -> None:
    assert probe(line).pythons == () and "Python none" in probe(line).summary()
    with pytest.raises(UnsupportedDeviceError) as caught:
        deploy(line, policy_i, [INT8], [RuntimeName.NATIVE])
    assert "no python3" in caught.value.message and "AGENT=native" in caught.value.next_step
    with (
        helper(line, "") as session,
        pytest.raises(ServiceError, match="there is no Python, and without it no"),
    ):
        begin(session, "I", None, 0.0)
        session.call("serving")


TAMPERED = {
    "program": ("lib/policy-agent", VerificationError, "lib/policy-agent differs"),
    "pack": ("bundle/policy.pack", VerificationError, "bundle/policy.pack differs"),
    "starter": ("run-agent", VerificationError, "run-agent differs"),
    "record": ("release.json", TrustError, "not of this record"),
    "signature": ("release.json.sig", TrustError, "not of this record"),
}


LOOSE = {"quarl/trust/allowed_signers": 0o666, "quarl/trust/accepted.json": 0o620, "quarl/trust": 0o777, "": 0o775}


@pytest.mark.parametrize("path", LOOSE)
def test_a_list_that_others_may_write_is_not_believed(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, deployed: DeployResult, tmp_path: Path, path: str
) -> None:
    place = bare_device.home / path
    before = place.stat().st_mode
    place.chmod(LOOSE[path])
    try:
        with pytest.raises(TrustError, match=f"{re.escape(str(place.resolve()))} may be written by others"):
            serves(line)
        with pytest.raises(TrustError, match=f"{re.escape(str(place.resolve()))} may be written by others"):
            deploy(line, policy_i, [INT8], without_python=True)
    finally:
        place.chmod(before)
    serves(line)


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_file_is_not_started(
    bare_device: TestDevice, line: Connection, deployed: DeployResult, name: str
) -> None:
    path, error, why = TAMPERED[name]
    file = current(bare_device) / path
    whole, mode = file.read_bytes(), file.stat().st_mode
    at = 200 if name == "signature" else 3 * len(whole) // 4
    changed = bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]])
    replaced(file, changed, mode)
    try:
        with pytest.raises(error, match=f"release {deployed.release} of I is not started: .*{why}"):
            serves(line)
    finally:
        replaced(file, whole, mode)
    serves(line)


def replaced(path: Path, data: bytes, mode: int = 0o755) -> None:
    """A new file in the place of one that may be running."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.chmod(mode & 0o777)
    new.replace(path)


@pytest.mark.parametrize("kind", ["added", "hidden", "link", "missing", "unsigned", "folder"])
def test_what_does_not_belong_there_is_refused(
    bare_device: TestDevice, line: Connection, deployed: DeployResult, kind: str
) -> None:
    folder = current(bare_device)
    name = {"added": "lib/more", "hidden": ".more", "folder": "more", "unsigned": "release.json.sig"}.get(
        kind, "bundle/policy.pack"
    )
    path, kept = folder / name, bare_device.home / "kept"
    if path.exists():
        path.rename(kept)
    if kind == "link":
        path.symlink_to(kept)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("added", "hidden"):
        path.write_text("x")
    why = {"link": "is a symbolic link", "missing": "is missing", "unsigned": "is not signed"}
    try:
        with pytest.raises((VerificationError, TrustError), match=why.get(kind, f"{name} does not belong there")):
            serves(line)
    finally:
        files.remove(path)
        if kept.exists():
            kept.rename(path)
    serves(line)


def test_a_link_to_somewhere_else_is_not_followed(
    bare_device: TestDevice, line: Connection, deployed: DeployResult, tmp_path: Path
) -> None:
    shutil.copytree(bare_device.home / "quarl", tmp_path / "quarl", symlinks=True)
    link = current(bare_device)
    link.unlink()
    link.symlink_to(tmp_path / "quarl/policies/I/releases" / deployed.release)
    try:
        with pytest.raises(TrustError, match="is no release of I in"):
            serves(line)
    finally:
        link.unlink()
        link.symlink_to(f"releases/{deployed.release}")
    serves(line)


def test_another_policys_release_under_this_ones_name(
    bare_device: TestDevice, line: Connection, deployed: DeployResult
) -> None:
    other = bare_device.policy_folder("J")
    shutil.copytree(bare_device.policy_folder("I"), other, symlinks=True)
    try:
        with pytest.raises(TrustError, match="signed for the policy 'I'; here it is 'J'"), AgentSession(line, "J"):
            pass
    finally:
        shutil.rmtree(other)


def test_whose_signature_counts(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, deployed: DeployResult, tmp_path: Path
) -> None:
    stranger = key_of(tmp_path)
    with pytest.raises(TrustError, match=r"would not trust.*Nothing was sent"):
        deploy(line, policy_i, [INT8], without_python=True, signing=Signing(stranger.file))
    let_sign(bare_device.home, stranger)
    with pytest.raises(TrustError, match="not among those in"):
        serves(line)
    (bare_device.home / "quarl/trust/allowed_signers").unlink()
    with pytest.raises(TrustError, match="nobody may sign"):
        serves(line)
    let_sign(bare_device.home)
    serves(line)
    with helper(line, "") as session:
        session.call("signers", add=[], revoke=[], device_class="rover")
    with pytest.raises(TrustError, match="signed for the target_class 'any/"):
        serves(line)


def test_a_revoked_key_and_its_spare(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, deployed: DeployResult, tmp_path: Path
) -> None:
    new = another(line, policy_i, tmp_path)
    assert new.release > deployed.release and new.previous == deployed.release and new.reused_files == 3
    with helper(line, "") as session:
        session.call("signers", add=[], revoke=[devices.signing_key().public], device_class=None)
    serves(line)
    with pytest.raises(TrustError, match="revoked here"), AgentSession(line, "I", release=deployed.release):
        pass
    with pytest.raises(TrustError, match="revoked here"):
        rollback(line, "I", deployed.release)
    assert list_releases(line).policies["I"].current == new.release
    remove_releases(line, "I", whole=True)


def test_a_loop_that_the_devices_own_programs_start(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, deployed: DeployResult
) -> None:
    """By the launcher that a deployment leaves there, verified at each start."""
    root = bare_device.home / "quarl"
    assert (root / "services" / "launch.sh").read_bytes() == LAUNCHER.read_bytes()
    release, address = bare_device.releases("I")[-1], root / "run" / "I.sock"
    words = f"I quarl/policies/I/current loop --socket={address} --rate=20 --priority=0 --fallback=19 --stale-ms=5000"
    golden = policy_i.golden().observations[:5]
    actions = policy_i.expected(policy_i.artifact(INT8, ArtifactFormat.NATIVE)).outputs[:5].argmax(axis=1)
    process = line.start(f'cd "$HOME" && exec sh quarl/services/launch.sh {words}')
    try:
        assert eventually(address.exists, 60.0), process.stderr_lines()
        with Client.connect(address) as client:
            assert client.release == release_number(release)
            for observation, action in zip(golden, actions, strict=True):
                wanted = client.send(observation)
                found = next_where(client, lambda each, wanted=wanted: each.sequence == wanted)
                assert found.index == action
    finally:
        line.run(
            f"for id in /proc/[0-9]*; do case $(readlink $id/cwd 2>/dev/null) in {root}/policies/I/releases/*) "
            "kill ${id##*/};; esac; done"
        )
        assert process.wait(20.0) is not None
        process.close()
