"""A device without Python: a shell, some small programs and ssh-keygen do all that is done on one that has it."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarl.device.agent.loop.client import Client
from quarl.device.agent.loop.frames import release_number
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, deploy
from quarl.device.deploy.device import Device, open_device
from quarl.device.deploy.errors import (
    AgentError,
    DeviceLockedError,
    ReleaseError,
    RemoteCommandError,
    TrustError,
    UnsupportedDeviceError,
    VerificationError,
)
from quarl.device.deploy.local_device import write_programs
from quarl.device.deploy.probe import probe
from quarl.device.deploy.releases import list_releases, remove_releases, rollback
from quarl.device.deploy.shell import VERIFIER
from quarl.device.deploy.signing.keys import ensure_key
from quarl.device.deploy.signing.record import Signing
from quarl.device.deploy.state import ROLLOUT_FILE
from quarl.device.deploy.switching import begin
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.device_agent.loop.loops import next_where
from tests.device_deploy import devices
from tests.device_deploy.devices import TestDevice, eventually, let_sign, needs_ssh

pytestmark = needs_ssh
INT8 = Precision.INT8
SHELLS = [name for name in ("dash", "busybox", "bash") if shutil.which(name)]


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
    """Signings by other keys: the same content signed by another is a new release, and quickly made."""
    return (Signing(ensure_key(tmp_path, f"key{number}").file) for number in range(9))


def newer(line: Connection, bundle: Bundle, signing: Signing) -> DeployResult:
    assert signing.key is not None
    with open_device(line) as session:
        session.signers([signing.key.with_suffix(".pub").read_text()], [], None)
    return deploy(line, bundle, [INT8], without_python=True, signing=signing)


def serves(line: Connection, release: str) -> None:
    """See that this release's agent starts."""
    with AgentSession(line, "I") as agent:
        assert agent.request("load", precision="int8")["golden"]["max_error"] == 0.0
    assert list_releases(line).policies["I"].current == release


def expected(bundle: Bundle, count: int) -> tuple[Any, list[int]]:
    """Observations, and the actions of the reference."""
    outputs = bundle.read_expected(bundle.artifact(INT8, ArtifactFormat.NATIVE)).outputs
    return bundle.golden().observations[:count], outputs[:count].argmax(axis=1).tolist()


def test_it_decides_rightly(bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult) -> None:
    assert line.run("command -v python3 python", check=False).stdout == "" and old.sent_files == 3
    assert [(check.vectors, check.max_error) for check in old.checks] == [(512, 0.0)]
    observations, actions = expected(policy_i, 50)
    with AgentSession(line, "I") as agent:
        hello = agent.request("hello")
        assert hello["device"]["python"] is None and hello["agent"]["version"].endswith("(static)")
        assert agent.request("load", precision="int8")["golden"]["action_agreement"] == 1.0
        assert [agent.act(row) for row in observations] == actions
        assert agent.request("memory")["ok"] and agent.request("latency", runs=50)["valid"] in (True, False)
        with pytest.raises(AgentError, match="has no simulator"):
            agent.request("episodes", episodes=1)
        with pytest.raises(ReleaseError, match=rf"{old.release} .*{agent.pid}"):
            remove_releases(line, "I", whole=True)
    assert deploy(line, policy_i, [INT8], without_python=True).unchanged
    assert not bare_device.leftovers("I") and not list((bare_device.home / "quarl" / "run").iterdir())
    with AgentSession(line, "I", threads=2) as agent, pytest.raises(AgentError) as caught:
        agent.request("hello")
    assert caught.value.exit_status == 2


def test_python_is_named_where_it_is_needed(line: Connection, policy_i: Bundle) -> None:
    assert probe(line).pythons == () and "Python none" in probe(line).summary()
    with pytest.raises(UnsupportedDeviceError, match="no python3") as caught:
        deploy(line, policy_i, [INT8], [RuntimeName.NATIVE])
    assert "native" in caught.value.next_step


def test_what_is_not_as_signed_neither_starts_nor_is_it_gone_back_to(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    new = newer(line, policy_i, next(keys))
    for name in ("lib/policy-agent", "bundle/policy.pack"):
        for release in (old.release, new.release):
            file = bare_device.policy_folder("I") / "releases" / release / name
            whole, mode = file.read_bytes(), file.stat().st_mode
            file.unlink()  # it may be running
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            with pytest.raises(VerificationError), AgentSession(line, "I", release=release):
                pass
            with pytest.raises(VerificationError, match=name):
                rollback(line, "I", release)
            file.write_bytes(whole)
            file.chmod(mode)
    serves(line, new.release)
    with open_device(line) as session:
        session.signers([], [devices.signing_key().public], None)
    with pytest.raises(TrustError, match="revoked"):
        rollback(line, "I", old.release)
    verdicts = [each.trust for each in list_releases(line).policies["I"].releases]
    assert "revoked" in verdicts[0] and verdicts[1:] == ["trusted"]


def test_a_loop_that_the_devices_own_programs_start(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult
) -> None:
    """By what a deployment leaves there, verified at each start."""
    root = bare_device.home / "quarl"
    assert (root / "services" / "launch.sh").read_bytes() == VERIFIER.read_bytes()
    words = "--rate=20", "--priority=0", "--fallback=19", "--stale-ms=5000"
    (root / "services" / "I.settings").write_text("".join(f"argument {word}\n" for word in words))
    address, (observations, actions) = root / "run" / "I.sock", expected(policy_i, 5)
    process = line.start('cd "$HOME" && echo $$ && exec sh quarl/services/launch.sh loop I')
    pid = int(process.read_line(20.0))
    try:
        assert eventually(address.exists, 60.0), process.stderr_lines()
        with Client.connect(address) as client:
            assert client.release == release_number(old.release)
            for observation, action in zip(observations, actions, strict=True):
                wanted = client.send(observation)
                assert next_where(client, lambda each, wanted=wanted: each.sequence == wanted).index == action
    finally:
        line.run(f"kill {pid}")
        assert process.wait(20.0) is not None
        process.close()


def test_going_back_pruning_and_removing(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    second, third, fourth = (newer(line, policy_i, next(keys)) for _ in range(3))
    assert fourth.removed == (old.release,) and fourth.previous == third.release
    assert rollback(line, "I", mark_bad_too=True).release == third.release
    serves(line, third.release)
    shown = {release.name: release for release in list_releases(line).policies["I"].releases}
    assert list(shown) == bare_device.releases("I") == [each.release for each in (second, third, fourth)]
    assert shown[fourth.release].bad and shown[third.release].good and not shown[second.release].why_not
    for release in ("0077-a", third.release):
        with pytest.raises(ReleaseError, match=release):
            remove_releases(line, "I", release)
    assert remove_releases(line, "I").removed == (second.release, fourth.release)
    serves(line, third.release)
    assert remove_releases(line, "I", whole=True).serving is None
    assert not bare_device.policy_folder("I").exists() and not list_releases(line).policies


def test_whose_rollout_it_is(bare_device: TestDevice, line: Connection, old: DeployResult) -> None:
    """It is written, and ended by a new name."""
    mark, folder = {"rollout": "one's", "host": "h", "user": "u", "time": 1}, bare_device.policy_folder("I")

    def begun(session: Device) -> Any:
        session.discard()
        return begin(session, "I", None, 0.0)["rollout"]

    with open_device(line) as session:
        assert begin(session, "I", None, 0.0)["rollout"] is None
        session.switch(old.release, mark, lambda done, total: None)
        assert json.loads((folder / ROLLOUT_FILE).read_text()) == mark
        for ends, ended in (("two's", False), ("one's", True)):
            session.end_rollout(ends)
            assert begun(session) == {**mark, "ended": ended} and (folder / ROLLOUT_FILE).exists() is not ended
    serves(line, old.release)


def test_one_at_a_time(bare_device: TestDevice, line: Connection, old: DeployResult) -> None:
    with bare_device.connect() as second, open_device(line) as session:
        begin(session, "I", None, 0.0)
        holder = list_releases(second).locked_by
        assert holder is not None and holder["policy"] == "I"
        with open_device(second) as other, pytest.raises(DeviceLockedError):
            begin(other, "I", None, 0.0)
        (bare_device.policy_folder("I") / "incoming" / "0005-dead").mkdir()
        line.run(f"kill -KILL {session.pid}")
        with open_device(second) as other:
            assert begin(other, "I", None, 5.0)["swept"] == ["policies/I/incoming/0005-dead"]
        assert not bare_device.leftovers("I") and list_releases(second).locked_by is None


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("flock", "answer"), [
    ("exit 1", "held"),
    ("echo why >&2; exit 1", "hindered"),  # as BusyBox's
    ("echo why >&2; exit 65", "hindered"),
    ("exit 127", "hindered"),
    ("grep -q ^flags:.*2$ /proc/self/fdinfo/9 || { echo read-only >&2; exit 65; }", "taken"),  # as on NFS
])  # fmt: skip
def test_a_lock_that_cannot_be_taken_is_not_somebodys(tmp_path: Path, shell: str, flock: str, answer: str) -> None:
    (tmp_path / "flock").write_text(f"#!/bin/sh\n{flock}\n")
    (tmp_path / "flock").chmod(0o755)
    script = f"{VERIFIER.read_text()}{VERIFIER.with_name('session.sh').read_text()}\ntake_lock me\n"
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [shell, *["sh"] * (shell == "busybox"), "-s"]
    done = subprocess.run(words, input=script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.partition("\n")[0].split()[0] == answer and ("why" in done.stdout) == ("why" in flock)


def test_whoever_cannot_lock_is_told_why(bare_device: TestDevice, line: Connection, old: DeployResult) -> None:
    flock = bare_device.home.parent / "bin" / "flock"
    real = flock.readlink()
    flock.unlink()
    try:
        flock.write_text("#!/bin/sh\necho no locks here >&2\nexit 1\n")
        flock.chmod(0o755)
        with open_device(line) as session, pytest.raises(RemoteCommandError) as caught:
            begin(session, "I", None, 0.0)
        assert "no locks here" in caught.value.message and list_releases(line).locked_by is None
    finally:
        flock.unlink()
        flock.symlink_to(real)


def test_a_device_that_gets_python_later_goes_on(
    bare_device: TestDevice, line: Connection, policy_i: Bundle, old: DeployResult, keys: Iterator[Signing]
) -> None:
    new, programs = newer(line, policy_i, next(keys)), bare_device.home.parent / "bin"
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
