"""The agent without Python, deployed: no wheels, the same requests, verified as any release is; served in a loop."""

from functools import partial
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.agent.loop.client import Client
from quarl.device.agent.loop.frames import Flag, release_number
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import DeployResult, deploy
from quarl.device.deploy.errors import VerificationError
from quarl.device.deploy.local_device import running_local_device
from quarl.device.deploy.releases import rollback
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.device_agent.loop.loops import next_where
from tests.device_deploy.devices import TestDevice, as_test_device, good_reply, run_verb, runs

INT8, FALLBACK, PATIENCE_S = Precision.INT8, 19, 60.0
USUAL = ("--rate=20", "--priority=0", "--trial=0.5", "--most-missed=1e6", "--stale-ms=5000")


@pytest.fixture
def deployed(connection: Connection, policy_i: Bundle) -> DeployResult:
    return deploy(connection, policy_i, [INT8], without_python=True)


def test_what_is_verified_is_executed(device: TestDevice, connection: Connection, deployed: DeployResult) -> None:
    folder = device.policy_folder("I") / "current"
    whole = {name: (folder / name).read_bytes() for name in ("lib/policy-agent", "bundle/policy.pack")}
    try:
        with AgentSession(connection, "I") as agent:
            for name, data in whole.items():
                _written(folder / name, data[:-1] + bytes([data[-1] ^ 1]))
            assert agent.request("load", precision="int8")["ok"], "it was in memory by then"
        for name, data in whole.items():
            with pytest.raises(VerificationError), AgentSession(connection, "I"):
                pass
            _written(folder / name, data)
    finally:
        for name, data in whole.items():
            _written(folder / name, data)
    with AgentSession(connection, "I") as agent:
        assert agent.request("load", precision="int8")["ok"]


def _written(path: Path, data: bytes) -> None:
    """A new file in the place of one that may be running."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.chmod(0o755)
    new.replace(path)


def test_one_goes_back_to_the_other(connection: Connection, policy_i: Bundle, deployed: DeployResult) -> None:
    with pytest.raises(VerificationError, match="one precision"):
        deploy(connection, policy_i, [INT8, Precision.FP32], without_python=True)
    assert deployed.wheels_sent == () and deployed.request.runtimes == (RuntimeName.NATIVE,)
    usual = deploy(connection, policy_i, [INT8], deployed.request.runtimes)
    assert usual.release != deployed.release
    assert rollback(connection, "I", deployed.release).release == deployed.release
    with AgentSession(connection, "I") as agent:
        assert agent.request("hello")["device"]["python"] is None


def test_the_command(
    policy_i: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    assert cli.main(["deploy", "--policy", str(policy_i.path), "--agent", "native"]) == 0
    assert "int8 in native (512 golden vectors" in capsys.readouterr().out
    assert not list((tmp_path / "device" / "home" / "quarl").glob("envs/*"))


run, answer = partial(run_verb, "I"), partial(good_reply, "I")


def test_it_serves_in_a_loop(
    policy_i: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = policy_i.golden().observations
    actions = policy_i.read_expected(policy_i.artifact(INT8, ArtifactFormat.NATIVE)).outputs.argmax(axis=1)
    root = tmp_path / "a-device-whose-home-has-a-path-that-is-longer-than-the-address-of-a-socket-may-be"
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(root))
    with running_local_device(root) as local:
        device = as_test_device(local)
        with device.connect() as connection:
            deploy(connection, policy_i, [INT8], without_python=True)
        try:
            for arguments, why in (
                (("--fallback=99",), "fallback is (99.0,)"),
                (("--fallback=19", "--threads=2"), "this agent decides with 1"),
                (("--fallback=19", "--bits=4"), "int4 in native"),
                (("--fallback=19", "--runtime=litert"), "int8 in litert"),
            ):
                assert run("serve", *USUAL, *arguments) == 1
                assert why in capsys.readouterr().err
            done = answer(capsys, "serve", *USUAL, f"--fallback={FALLBACK}")
            release = device.releases("I")[-1]
            assert (done["state"], done["manager"], done["restarts"]) == ("active", "supervisor", 0)
            assert done["release"] == done["loop"]["release"] == release
            assert done["loop"]["loaded"]["runtime"] == "native"
            assert done["loop"]["counts"]["decided_ns"]["count"] > 0, "tried without a controller"
            socket = device.home / "quarl" / "run" / "I.sock"
            with Client.connect(socket) as client:
                assert client.release == release_number(release) != 0
                assert next_where(client, lambda each: each.sequence == 0).index == FALLBACK
                for observation, action in zip(golden[:5], actions[:5], strict=True):
                    wanted = client.send(observation)
                    found = next_where(client, lambda each, wanted=wanted: each.sequence == wanted)
                    assert (found.index, found.flags & ~Flag.MISSED & ~Flag.HELD) == (action, Flag(0))
            pid = answer(capsys, "serving")["pid"]
            assert Path(f"/proc/{pid}/comm").read_text().strip() != "python3"
            assert answer(capsys, "unserve")["was_served"]
            assert not runs(pid) and not socket.exists()
        finally:
            run("unserve")
