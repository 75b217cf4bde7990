"""The agent without Python, deployed: no wheels, the same requests, and verified as any release is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from convert.pipeline import convert_each, missing
from device.host import __main__ as cli
from device.host.agent_session import AgentSession
from device.host.connection import Connection
from device.host.deploy import DeployResult, deploy
from device.host.errors import AgentError, VerificationError
from device.host.releases import rollback
from policy.bundle import Bundle
from policy.locate import ZOO
from policy.spec import ArtifactFormat, Precision
from tests.device_host.devices import TestDevice

INT8 = Precision.INT8


@pytest.fixture(scope="module")
def policy_i(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Policy I in int8 for the native engine."""
    folder = tmp_path_factory.mktemp("bundle") / "I"
    shutil.copytree(ZOO / "I", folder)
    convert_each(missing([(Bundle.load(folder), INT8, ArtifactFormat.NATIVE)]))
    return Bundle.load(folder)


@pytest.fixture
def deployed(connection: Connection, policy_i: Bundle) -> DeployResult:
    return deploy(connection, policy_i, [INT8], without_python=True)


def test_it_is_three_files_and_decides_as_the_reference_does(
    device: TestDevice, connection: Connection, policy_i: Bundle, deployed: DeployResult
) -> None:
    assert deployed.checks[0].vectors == 512 and deployed.checks[0].max_error == 0.0
    assert deployed.wheels_sent == () and deployed.request.runtimes[0].value == "native"
    release = device.policy_folder("I") / "releases" / deployed.release
    assert sum(path.is_file() for path in release.rglob("*")) == 3 + 2, "and its record, and that one's signature"
    golden = policy_i.golden().observations[:50]
    expected = policy_i.expected(policy_i.artifact(INT8, ArtifactFormat.NATIVE)).outputs[:50].argmax(axis=1)
    with AgentSession(connection, "I") as agent:
        assert agent.request("hello")["agent"]["version"].endswith("(static)")
        assert agent.request("load", precision="int8")["golden"]["action_agreement"] == 1.0
        assert [agent.act(row) for row in golden] == expected.tolist()
        assert agent.request("latency", runs=100)["valid"] in (True, False)
        with pytest.raises(AgentError, match="has no simulator"):
            agent.request("episodes", episodes=1)
    assert deploy(connection, policy_i, [INT8], without_python=True).unchanged


def test_what_was_verified_is_what_is_executed(
    device: TestDevice, connection: Connection, deployed: DeployResult
) -> None:
    folder = device.policy_folder("I") / "current"
    whole = {name: (folder / name).read_bytes() for name in ("lib/policy-agent", "bundle/policy.pack")}
    try:
        with AgentSession(connection, "I") as agent:
            for name, data in whole.items():
                _written(folder / name, data[:-1] + bytes([data[-1] ^ 1]))
            assert agent.request("load", precision="int8")["ok"], "it was in memory by then"
        for name, data in whole.items():
            with pytest.raises(VerificationError, match="is not started"), AgentSession(connection, "I"):
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


def test_more_threads_and_a_loop_are_refused(connection: Connection, deployed: DeployResult, policy_i: Bundle) -> None:
    with AgentSession(connection, "I", threads=2) as agent, pytest.raises(AgentError, match="ended with status 2"):
        agent.request("hello")
    with AgentSession(connection, "I", threads=1) as agent:
        assert agent.request("load", precision="int8", runtime="native")["ok"]
    with pytest.raises(VerificationError, match="serves one precision"):
        deploy(connection, policy_i, [INT8, Precision.FP32], without_python=True)


def test_one_goes_back_to_the_other(connection: Connection, policy_i: Bundle, deployed: DeployResult) -> None:
    usual = deploy(connection, policy_i, [INT8], [deployed.request.runtimes[0]])
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
    assert cli.main(["serve", "--policy", "I", "--rate", "20"]) == 1
    assert "serves in no loop yet" in capsys.readouterr().err
