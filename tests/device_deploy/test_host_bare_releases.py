"""Releases on a device without Python: tampered with on the way, sent again, gone back to, pruned, removed, locked."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, deploy
from quarl.device.deploy.errors import (
    DeviceLockedError,
    ReleaseError,
    RemoteCommandError,
    TrustError,
    VerificationError,
)
from quarl.device.deploy.fleet import rollout
from quarl.device.deploy.fleet.board import Board
from quarl.device.deploy.fleet.crew import Crew
from quarl.device.deploy.fleet.identity import DeviceInRolloutError
from quarl.device.deploy.fleet.inventory import Fleet
from quarl.device.deploy.fleet.journal import Memory, events, journal_file, opened
from quarl.device.deploy.fleet.payloads import Payloads
from quarl.device.deploy.fleet.result import Result
from quarl.device.deploy.helper_session import HelperSession, helper
from quarl.device.deploy.local_device import write_programs
from quarl.device.deploy.on_device.records import ROLLOUT_FILE
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases, remove_releases, rollback
from quarl.device.deploy.signing.keys import made_key
from quarl.device.deploy.signing.record import USUAL, SignedRecord, Signing, signed_record
from quarl.device.deploy.static_agent.release import static_payload
from quarl.device.deploy.switching import begin
from quarl.device.deploy.wheels import WheelSet
from quarl.device.deploy.without_python import device
from quarl.device.deploy.without_python.device import LAUNCHER
from quarl.policy.bundle import Bundle
from quarl.policy.spec import Precision
from tests.device_deploy import devices
from tests.device_deploy.devices import TestDevice, eventually, let_sign
from tests.device_deploy.needs import needs_ssh

pytestmark = needs_ssh
INT8 = Precision.INT8


@pytest.fixture
def line(bare_device: TestDevice) -> Iterator[Connection]:
    shutil.rmtree(bare_device.home / "quarl")
    let_sign(bare_device.home)
    with bare_device.connect() as connection:
        yield connection


@pytest.fixture
def old(line: Connection, policy_i: Bundle) -> DeployResult:
    """The first release, which serves."""
    return deploy(line, policy_i, [INT8], without_python=True)


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Signing]:
    """Signings by keys that the device comes to trust: the same content, so that a new release is quick."""
    return (Signing(made_key(tmp_path, f"key{number}").file) for number in range(9))


def newer(bare_device: TestDevice, line: Connection, bundle: Bundle, signing: Signing) -> DeployResult:
    assert signing.key is not None
    with helper(line, "") as session:
        session.call("signers", add=[signing.key.with_suffix(".pub").read_text()], revoke=[], device_class=None)
    return deploy(line, bundle, [INT8], without_python=True, signing=signing)


def serves(line: Connection, release: str, **where: Any) -> None:
    """See that this release's agent starts."""
    with AgentSession(line, "I", **where) as agent:
        assert agent.request("load", precision="int8")["golden"]["max_error"] == 0.0
    assert list_releases(line).policies["I"].current == release


def test_an_older_release_sent_again_is_refused(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    new, folder = newer(bare_device, line, policy_i, next(keys)), bare_device.policy_folder("I")
    shutil.copytree(folder / "releases" / old.release, folder / "incoming" / "0009-again")
    with pytest.raises(TrustError, match="an older one, sent again"):
        serves(line, new.release, folder="quarl/policies/I/incoming/0009-again")
    shutil.rmtree(folder / "incoming" / "0009-again")
    first = (folder / "releases" / old.release / "release.json").read_text()
    signature = (folder / "releases" / old.release / "release.json.sig").read_text()
    with helper(line, "") as session, pytest.raises(TrustError, match="an older one, sent again"):
        begin(session, "I", None, 0.0)
        session.call("receive", release="0009-again", need_bytes=1, record=first, signature=signature)
    shutil.move(folder / "releases" / new.release, bare_device.home / "aside")
    shutil.copytree(folder / "releases" / old.release, folder / "releases" / new.release)
    with pytest.raises(TrustError, match=f"not the one that was accepted here as release {new.release}"):
        serves(line, new.release)
    shutil.rmtree(folder / "releases" / new.release)
    shutil.move(bare_device.home / "aside", folder / "releases" / new.release)
    serves(line, new.release)


def signed(line: Connection, bundle: Bundle, key: Any) -> tuple[SignedRecord, dict[str, bytes]]:
    """An honest new release for the device as it is now."""
    payload = static_payload(bundle, [INT8], probe(line).machine)
    with helper(line, "") as session:
        trust = begin(session, "I", None, 0.0)["trust"]
    made = signed_record(payload, WheelSet(probe(line).python, ()), key, trust, USUAL)
    return made, {file.path: file.data for file in payload.files}


@pytest.mark.parametrize("how", ["program", "pack", "starter", "added", "missing", "record", "stranger", "unfinished"])
def test_what_is_not_as_signed_is_not_published(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, tmp_path: Path, how: str
) -> None:
    """What a host without scruples does; afterwards the old release serves and nothing is left of another."""
    key = made_key(tmp_path, "stranger") if how == "stranger" else devices.signing_key()
    made, sent = signed(line, policy_i, key)
    name = {"program": "lib/policy-agent", "pack": "bundle/policy.pack", "starter": "run-agent"}.get(how)
    text = json.dumps({**json.loads(made.text), "by": "eve"}, sort_keys=True, separators=(",", ":"))
    record = text if how == "record" else made.text
    why = r"differs|belong|missing|changed|signed by|never"
    with pytest.raises((TrustError, VerificationError), match=why), helper(line, "") as session:
        begin(session, "I", None, 0.0)
        reply = session.call("receive", release="0002-dddddddd", need_bytes=1, record=record, signature=made.signature)
        folder = reply["incoming"]
        if how == "unfinished":
            raise TrustError("never published")
        for path, data in {**sent, **({"lib/more": b"x"} if how == "added" else {})}.items():
            if how != "missing" or path != "run-agent":
                line.upload(data + b"#" * (path == name), f"{folder}/{path}")
        session.call("verify")
    assert not bare_device.leftovers("I") and bare_device.releases("I") == [old.release]
    serves(line, old.release)


def test_going_back_and_removing(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    second, third = (newer(bare_device, line, policy_i, next(keys)) for _ in range(2))
    assert rollback(line, "I", mark_bad_too=True).release == second.release
    serves(line, second.release)
    shown = {release.name: release for release in list_releases(line).policies["I"].releases}
    assert list(shown) == [old.release, second.release, third.release]
    assert "rolled back from" in shown[third.release].bad and "rolled back to" in shown[second.release].good
    assert shown[old.release].precisions == ("int8",) and shown[old.release].signer
    damaged = bare_device.policy_folder("I") / "releases" / old.release / "bundle" / "policy.pack"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(VerificationError, match=r"bundle/policy\.pack differs"):
        rollback(line, "I", old.release)
    serves(line, second.release)
    with pytest.raises(ReleaseError, match=r"there is no release 0077-a"):
        remove_releases(line, "I", "0077-a")
    with pytest.raises(ReleaseError, match=r"serves\. Nothing was removed"):
        remove_releases(line, "I", second.release)
    assert remove_releases(line, "I").removed == (old.release, third.release)
    serves(line, second.release)
    assert remove_releases(line, "I", whole=True).serving is None
    assert not bare_device.policy_folder("I").exists() and not list_releases(line).policies


def test_whose_rollout_it_is(
    bare_device: TestDevice, line: Connection, old: DeployResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written, ended by a new name, and keeps no release from being switched on where it cannot be written."""
    mark, folder = {"rollout": "one's", "host": "h", "user": "u", "time": 1}, bare_device.policy_folder("I")

    def switch(session: HelperSession, mark: dict[str, Any]) -> Any:
        begin(session, "I", None, 0.0)
        session.call("switch", release=old.release, scripts={}, rollout=mark)
        return begun(session)

    def begun(session: HelperSession) -> Any:
        session.call("discard")
        return begin(session, "I", None, 0.0)["rollout"]

    with helper(line, "") as session:
        assert begin(session, "I", None, 0.0)["rollout"] is None, "an older version filled it"
        session.call("discard")
        assert switch(session, mark) == {**mark, "ended": False}
        session.call("end_rollout", rollout="two's")
        assert begun(session) == {**mark, "ended": False}
        session.call("end_rollout", rollout="one's")
        assert begun(session) == {**mark, "ended": True} and not (folder / ROLLOUT_FILE).exists()
        session.call("discard")
        monkeypatch.setattr(device, "ROLLOUT_FILE", "r" * 300)  # no file system takes so long a name
        assert switch(session, {**mark, "rollout": "two's"}) == {**mark, "ended": True}
    serves(line, old.release)


def test_a_rollout_that_died_and_another(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "connect", lambda target, identity: bare_device.connect())

    def rolled_out(name: str) -> Result:
        file = tmp_path / f"{name}.toml"
        file.write_text("[groups.all]\ntargets = ['bare']\nagent = 'native'\n")
        fleet = Fleet.load(file)
        with opened(fleet) as journal:
            memory, settings = Memory(events(journal_file(fleet)), "I"), rollout.Settings(soak_s=0, deadline_ms=1e3)
            made = rollout.Rollout(fleet.members, Payloads(policy_i), settings, journal, memory, Crew(1, Board()))
            return made.run()

    with monkeypatch.context() as died:
        died.setattr(rollout.Rollout, "_last_look", lambda rollout: None)
        assert rolled_out("one").complete
    with pytest.raises(DeviceInRolloutError):
        rolled_out("two")
    assert not (tmp_path / "two.journal.jsonl").read_text()
    file = bare_device.policy_folder("I") / ROLLOUT_FILE
    mark = json.loads(file.read_text())
    file.write_text(json.dumps({**mark, "time": 0}))
    assert rolled_out("two").complete and file.exists(), "one died long ago, and nothing had to be switched"
    assert rolled_out("one").complete and not file.exists()


def test_old_ones_are_pruned(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    done = [newer(bare_device, line, policy_i, next(keys)) for _ in range(3)]
    assert done[-1].removed == (old.release,) and done[-1].previous == done[-2].release
    assert bare_device.releases("I") == [each.release for each in done]


def test_one_at_a_time(bare_device: TestDevice, line: Connection, old: DeployResult) -> None:
    held = bare_device.home / "quarl" / "lock.held"
    with helper(line, "") as first, bare_device.connect() as second:
        begin(first, "I", None, 0.0)
        assert list_releases(second).locked_by is not None
        with helper(second, "") as other, pytest.raises(DeviceLockedError, match="policy I"):
            begin(other, "I", None, 0.0)
        assert held.is_symlink()
    assert eventually(lambda: not held.is_symlink())
    held.symlink_to("999999999.1")  # of a shell that was killed
    (bare_device.policy_folder("I") / "incoming" / "0005-dead").mkdir()
    assert list_releases(line).locked_by is None
    with helper(line, "") as session:
        assert begin(session, "I", None, 0.0)["swept"] == ["policies/I/incoming/0005-dead"]
    assert not bare_device.leftovers("I")
    assert eventually(lambda: not held.is_symlink())


def test_a_link_in_the_place_of_a_folder_is_refused(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, tmp_path: Path
) -> None:
    incoming = bare_device.policy_folder("I") / "incoming"
    shutil.rmtree(incoming)
    incoming.symlink_to(tmp_path)
    with pytest.raises(RemoteCommandError, match="incoming is a symbolic link; it must be a folder"):
        deploy(line, policy_i, [INT8], without_python=True)
    assert not list(tmp_path.iterdir())
    incoming.unlink()


def test_a_device_that_gets_python_later_goes_on(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    new, programs = newer(bare_device, line, policy_i, next(keys)), bare_device.home.parent / "bin"
    write_programs(programs)
    try:
        assert probe(line).pythons
        serves(line, new.release)
        assert rollback(line, "I").release == old.release
        assert deploy(line, policy_i, [INT8], without_python=True).release == new.release
    finally:
        (programs / "python3").unlink()
    assert rollback(line, "I", old.release).release == old.release
    serves(line, old.release)


def test_the_launcher_alone(bare_device: TestDevice, line: Connection, old: DeployResult, tmp_path: Path) -> None:
    """By hand, and where root has a list: then the user's counts no longer."""
    shells = [["sh"], *([["busybox", "sh"]] if shutil.which("busybox") else [])]
    for shell in shells:
        assert subprocess.run([*shell, "-n", LAUNCHER], check=False).returncode == 0
        words, folder = ["I", str(bare_device.policy_folder("I") / "current")], tmp_path / "etc"
        done = launched(shell, bare_device, *words, "--check")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"quarl-launch": {}}), done
        done = launched(shell, bare_device, *words)
        assert done.returncode == 0 and done.stdout == "" and done.stderr == "", "no request, no reply"
        folder.mkdir(exist_ok=True)
        stranger = made_key(tmp_path, "stranger")
        (folder / "allowed_signers").write_text(f'release@quarl namespaces="quarl-release" {stranger.public}\n')
        done = launched(shell, bare_device, *words, system=str(folder))
        assert done.returncode == 1 and "not among those in" in done.stderr and str(folder) in done.stderr
        assert done.stderr.count("\n") == 1
        assert launched(shell, bare_device, "I", "/nowhere").returncode == 1
        assert launched(shell, bare_device, "../I", words[1]).returncode == 1
    assert not list((bare_device.home / "quarl" / "run").iterdir())


def launched(
    shell: list[str], device: TestDevice, *words: str, system: str = "/etc/quarl"
) -> subprocess.CompletedProcess[str]:
    """The launcher as the device runs it."""
    path = device.home / "launch.sh"
    path.write_text(LAUNCHER.read_text().replace("/etc/quarl", system))
    environment = {"HOME": str(device.home), "PATH": str(device.home.parent / "bin")}
    command = [shutil.which(shell[0]) or "", *shell[1:], str(path), *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=60
    )
