"""The real agent, a real bundle and real wheels, deployed over SSH to both servers."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarl import cli
from quarl.convert.pipeline import build_graph
from quarl.device.deploy.agent_session import AgentSession
from quarl.device.deploy.connection import Connection
from quarl.device.deploy.deploy import deploy
from quarl.device.deploy.errors import AgentError, CheckFailedError, ConnectionLostError, VerificationError
from quarl.device.deploy.releases import list_releases, rollback
from quarl.policy.bundle import Bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.device_deploy.devices import Line, TestDevice

INT8, FP32 = Precision.INT8, Precision.FP32


def current(connection: Connection, policy: str) -> str | None:
    return list_releases(connection).policies[policy].current


@pytest.fixture(scope="module")
def deployed(device: TestDevice, bundle: Bundle) -> Iterator[TestDevice]:
    """The device with the real policy on it: int8 in LiteRT."""
    with device.connect() as connection:
        deploy(connection, bundle, [INT8])
    yield device


@pytest.fixture
def serving(deployed: TestDevice) -> Iterator[Connection]:
    """A connection to it."""
    with deployed.connect() as connection:
        yield connection


def test_the_agent_serves_over_ssh(serving: Connection, bundle: Bundle) -> None:
    with AgentSession(serving, "tiny") as agent:
        hello = agent.request("hello")
        assert hello["device"]["transport"] == "loopback"
        assert hello["agent"]["pid"] == agent.pid
        assert hello["runtimes"] == {"litert": "2.3.0"}, "exactly what was sent, nothing of the device's own"
        load = agent.request("load", precision="int8")
        assert load["golden"]["vectors"] >= 32
        assert load["golden"]["action_agreement"] == 1.0
        golden = bundle.golden()
        reply = agent.request("act", observations=golden.observations.tolist())
        entry = bundle.artifact(INT8, RuntimeName.LITERT.artifact_format)
        expected = bundle.read_expected(entry).outputs.argmax(axis=1)
        assert reply["actions"] == expected.tolist()


def test_the_agent_loads_only_what_it_may(serving: Connection) -> None:
    """From its memory map on the device: one runtime's libraries and numpy's, none of the host's."""
    with AgentSession(serving, "tiny") as agent:
        agent.request("load", precision="int8")
        maps = serving.run(f"cat /proc/{agent.pid}/maps").stdout
    libraries = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    ours = {path for path in libraries if "/quarl/" in path or "site-packages" in path or "dist-packages" in path}
    assert any("ai_edge_litert" in path for path in ours) and any("/numpy/" in path for path in ours)
    assert all("/quarl/envs/" in path for path in ours)
    assert not any("tensorflow" in path.split("/quarl/")[-1].split("/")[0] for path in ours)


def test_an_artifact_tampered_with_is_refused_there(serving: Connection, deployed: TestDevice, bundle: Bundle) -> None:
    """After the deployment, by whoever has the device: no agent starts, and one that was started does not load it."""
    file = deployed.home / "quarl" / "policies" / "tiny" / "current" / "bundle" / "int8.tflite"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(VerificationError, match=r"int8\.tflite differs"), AgentSession(serving, "tiny"):
            pass
        file.write_bytes(whole)
        with AgentSession(serving, "tiny") as agent, pytest.raises(AgentError, match=r"int8\.tflite") as caught:
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            agent.request("load", precision="int8")
        assert caught.value.agent_code == "bundle"
    finally:
        file.write_bytes(whole)


def test_another_manifest_than_the_signed_one_is_not_read(serving: Connection, deployed: TestDevice) -> None:
    """Exchanged with the artifact it is of, between the start and the load."""
    bundle = deployed.home / "quarl" / "policies" / "tiny" / "current" / "bundle"
    whole = {path: path.read_bytes() for path in (bundle / "manifest.json", bundle / "int8.tflite")}
    artifact = whole[bundle / "int8.tflite"]
    other = artifact[:-1] + bytes([artifact[-1] ^ 1])
    manifest = whole[bundle / "manifest.json"].decode()
    manifest = manifest.replace(hashlib.sha256(artifact).hexdigest(), hashlib.sha256(other).hexdigest())
    try:
        with AgentSession(serving, "tiny") as agent:
            (bundle / "int8.tflite").write_bytes(other)
            (bundle / "manifest.json").write_text(manifest)
            for op in ("load", "hello"):
                try:
                    found = json.dumps(agent.request(op, precision="int8") if op == "load" else agent.request(op))
                except AgentError as error:
                    found = error.message
                assert "this release" in found
        with pytest.raises(VerificationError, match=r"bundle/manifest\.json"), AgentSession(serving, "tiny"):
            pass
    finally:
        for path, data in whole.items():
            path.write_bytes(data)


def test_what_was_verified_is_what_is_imported(serving: Connection, deployed: TestDevice) -> None:
    """Code that is changed after the start, before it is imported: the agent imports it from what was verified."""
    code = deployed.home / "quarl" / "policies" / "tiny" / "current" / "lib" / "quarl.zip"
    whole = code.read_bytes()
    try:
        with AgentSession(serving, "tiny") as agent:
            code.write_bytes(b"")
            agent.request("load", precision="int8")
            assert agent.request("episodes", episodes=1, preset="easy")["ok"], "imported now"
    finally:
        code.write_bytes(whole)


def test_the_real_agents_wheels_are_compared_by_file(serving: Connection, deployed: TestDevice, bundle: Bundle) -> None:
    again = deploy(serving, bundle, [INT8])
    assert again.unchanged and again.sent_bytes == 0
    assert sorted(path.name.split("-")[0] for path in (deployed.home / "quarl" / "envs").iterdir()) == ["ai", "numpy"]
    files = sum(len(json.loads(path.read_text())["files"]) for path in (deployed.home / "quarl" / "envs").glob("*/.q*"))
    assert again.compared_files == files > 500


@pytest.mark.slow
@pytest.mark.parametrize("what", ["observation", "artifact"])
def test_what_only_the_devices_agent_can_tell_is_not_served(
    serving: Connection, bundle: Bundle, tmp_path: Path, what: str
) -> None:
    """Bearing and distance are swapped, of the same size, or an artifact is another's: hashes agree, numbers do not."""
    before, wrong = current(serving, "tiny"), tmp_path / "tiny"
    shutil.copytree(bundle.path, wrong)
    if what == "observation":
        spec = json.loads((wrong / "policy.json").read_text())
        fields = spec["observation"]
        fields[1], fields[2] = fields[2], fields[1]
        rewrite(wrong, "policy.json", json.dumps(spec).encode())
    else:
        flipped = {name: value[..., ::-1].copy() for name, value in bundle.weights().items() if name.startswith("head")}
        made = build_graph(
            bundle.spec, {**bundle.weights(), **flipped}, bundle.calibration(), INT8, ArtifactFormat.TFLITE
        )
        rewrite(wrong, "int8.tflite", made)
    says = f"{'goal_.*' if what == 'observation' else ''}Release {before} still serves"
    with pytest.raises(CheckFailedError, match=says):
        deploy(serving, Bundle.load(wrong), [INT8])
    assert current(serving, "tiny") == before
    with AgentSession(serving, "tiny") as agent:
        assert agent.request("load", precision="int8")["ok"]


def rewrite(bundle: Path, name: str, data: bytes) -> None:
    """Replace a file of a bundle and its record, as an honest but mistaken tool would."""
    (bundle / name).write_bytes(data)
    manifest = json.loads((bundle / "manifest.json").read_text())
    artifacts = {entry["file"]: entry for entry in manifest["artifacts"]}
    record = artifacts[name] if name in artifacts else manifest["files"][name]
    record |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def test_a_connection_cut_while_wheels_are_sent(serving: Connection, deployed: TestDevice, bundle: Bundle) -> None:
    before = current(serving, "tiny")
    envs = sorted(path.name for path in (deployed.home / "quarl" / "envs").iterdir())
    with (
        Line(deployed.host, deployed.port, cut_after=2_000_000) as line,
        deployed.connect(line.port) as cut,
        pytest.raises(ConnectionLostError, match=f"Release {before} still serves"),
    ):
        deploy(cut, bundle, [INT8], [RuntimeName.ONNXRUNTIME])
    assert current(serving, "tiny") == before
    assert sorted(path.name for path in (deployed.home / "quarl" / "envs").iterdir()) == envs


@pytest.mark.slow
def test_all_runtimes_and_precisions_then_back(serving: Connection, deployed: TestDevice, bundle: Bundle) -> None:
    before = current(serving, "tiny")
    result = deploy(serving, bundle, [FP32, INT8], tuple(RuntimeName))
    assert {(check.precision, check.runtime) for check in result.checks} == {
        (precision.value, runtime.value) for precision in (FP32, INT8) for runtime in RuntimeName
    }
    assert result.wheels_sent == ("tflite-runtime 2.14.0", "onnxruntime 1.31.1"), "numpy and LiteRT were there"
    assert result.reused_files == 6, "of the bundle, and the loop's header"
    golden = bundle.golden().observations.tolist()
    actions = {}
    for precision, runtime in [(FP32, each) for each in RuntimeName] + [(INT8, RuntimeName.NATIVE)]:
        with AgentSession(serving, "tiny") as agent:
            agent.request("load", precision=precision.value, runtime=runtime.value)
            actions[runtime] = agent.request("act", observations=golden)["actions"]
    assert actions[RuntimeName.LITERT] == actions[RuntimeName.TFLITE_RUNTIME] == actions[RuntimeName.ONNXRUNTIME]
    expected = bundle.read_expected(bundle.artifact(INT8, RuntimeName.NATIVE.artifact_format)).outputs
    assert actions[RuntimeName.NATIVE] == expected.argmax(axis=1).tolist()
    modes = deployed.home / "quarl" / "policies" / "tiny" / "native-modes.json"
    assert modes.is_file(), "what was measured lies beside the releases"
    back = rollback(serving, "tiny")
    assert back.release == before and back.previous == result.release


def test_the_command_line_end_to_end(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TARGET=local as a newcomer uses it: prefetch, deploy, status, releases, deploy again, no way back yet."""
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    assert cli.main(["prefetch", "--runtime", "litert", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == 2
    deploying = ["deploy", "--policy", str(bundle.path), "--bits", "32,8", "--runtime", "litert", "--json"]
    assert cli.main(deploying) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["request"]["precisions"] == ["fp32", "int8"]
    assert [check["action_agreement"] for check in done["checks"]] == [1.0, 1.0]
    assert cli.main(["status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["transport"] == "loopback"
    assert status["deployed"]["policies"]["tiny"]["current"] == done["release"]
    assert cli.main(["releases"]) == 0
    assert f"* tiny   {done['release']}  fp32,int8 in litert" in capsys.readouterr().out
    assert cli.main(deploying) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] is True
    assert cli.main(["rollback", "--policy", "tiny"]) == 1
    assert "no release of tiny before" in capsys.readouterr().err


def test_the_command_line_says_what_is_wrong_before_it_connects(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    for arguments, message in (
        (["--policy", str(bundle.path), "--bits", "9"], "32, 16, 8 … 2"),
        (["--policy", str(bundle.path), "--bits", "16"], "quarl convert --bits 16"),
        (["--policy", str(bundle.path), "--runtime", "torch"], "tflite-runtime, litert"),
        (["--policy", str(tmp_path / "absent")], "missing"),
        (["--policy", str(bundle.path), "--target", "a b"], "TARGET="),
    ):
        assert cli.main(["deploy", *arguments]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "device").exists()
