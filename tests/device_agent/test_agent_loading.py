"""What is wrong is refused by name, and what was served goes on being served."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quarl.device import engine as native
from quarl.device.agent import runtimes
from quarl.device.agent.golden import check_golden
from quarl.device.agent.graph_executors import _match, _Tensor
from quarl.device.agent.protocol import AgentError
from quarl.device.agent.runtimes import find_installed_runtimes
from quarl.policy.bundle import Bundle, npz, write_bundle
from quarl.policy.reading import FileRecord
from quarl.policy.spec import ArtifactFormat, ObservationField, Precision, RuntimeName
from tests.device_agent.conftest import add_artifacts, flying_policy, recorded_observations
from tests.refusals import refused

Start = Callable[..., Any]


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    data = json.loads((path / "manifest.json").read_text())
    change(data)
    (path / "manifest.json").write_text(json.dumps(data))


def record_again(path: Path, name: str) -> None:
    """Let the manifest's hash of a file be that of what is there now: a fault that no hash shows."""
    data = (path / name).read_bytes()
    record = {"bytes": len(data), "sha256": FileRecord.of(data).sha256}

    def change(manifest: dict[str, Any]) -> None:
        for entry in manifest["artifacts"]:
            if entry["file"] == name:
                entry.update(record)
        if name in manifest["files"]:
            manifest["files"][name] = record

    rewrite(path, change)


def flip(path: Path, offset: int = -200) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def test_a_tampered_artifact_is_refused_and_the_old_one_goes_on_serving(
    copied: Path, start_agent: Start, fresh_observations: np.ndarray
) -> None:
    agent = start_agent(copied)
    agent.ask("load", precision="fp32", runtime="litert")
    before = agent.ask("act", observation=fresh_observations[0].tolist())
    flip(copied / "int8.tflite")
    reply = agent.request("load", precision="int8")
    assert reply["error"]["code"] == "bundle" and "int8.tflite was tampered with" in reply["error"]["message"]
    after = agent.ask("act", observation=fresh_observations[0].tolist())
    assert (after["action"], after["outputs"]) == (before["action"], before["outputs"])
    assert agent.ask("hello")["loaded"]["precision"] == "fp32"


@pytest.mark.parametrize("runtime", [name.value for name in RuntimeName])
def test_what_was_verified_decides_whatever_becomes_of_the_file(
    runtime: str, copied: Path, start_agent: Start, fresh_observations: np.ndarray
) -> None:
    agent = start_agent(copied)
    agent.ask("load", precision="int8", runtime=runtime)
    before = agent.ask("act", observations=fresh_observations.tolist())
    path = copied / f"int8.{RuntimeName(runtime).artifact_format.value}"
    data = bytearray(path.read_bytes())
    with path.open("r+b") as file:  # in place: who has mapped it sees it
        file.write(bytes(data[: len(data) // 2]) + bytes(len(data) - len(data) // 2))
    after = agent.ask("act", observations=fresh_observations.tolist())
    assert (after["actions"], after["outputs"]) == (before["actions"], before["outputs"])
    path.write_bytes(b"")
    assert agent.ask("act", observations=fresh_observations.tolist())["outputs"] == before["outputs"]


def test_a_release_keeps_how_its_layers_are_faster_beside_the_releases(
    pilot: Bundle, tmp_path: Path, start_agent: Start, fresh_observations: np.ndarray
) -> None:
    release = tmp_path / "policies" / "pilot" / "releases" / "0001-a"
    shutil.copytree(pilot.path, release / "bundle")
    (release / "release").write_text("{}")
    there = sorted(release.rglob("*"))
    replies = []
    for _ in range(2):
        agent = start_agent(release / "bundle")
        agent.ask("load", precision="int8", runtime="native")
        mapped = Path(f"/proc/{agent.process.pid}/maps").read_text()
        assert str(release / "bundle" / "int8.native") in mapped, "of a release it is not copied"
        replies.append(agent.ask("act", observations=fresh_observations.tolist())["outputs"])
        kept = (release.parent.parent / "native-modes.json").read_bytes()
        replies.append(kept)
    assert replies[:2] == replies[2:], "the second agent has read it, and measured nothing"
    assert sorted(release.rglob("*")) == there, "its files are compared with its record"
    (entry,) = json.loads(kept)["measured"]
    assert entry["artifact"] == pilot.artifact(Precision.INT8, ArtifactFormat.NATIVE).record.sha256


@pytest.mark.parametrize("runtime", [name.value for name in RuntimeName])
def test_no_decision_is_made_of_outputs_that_are_no_numbers(runtime: str, tmp_path: Path, start_agent: Start) -> None:
    spec, weights = flying_policy()
    spec = dataclasses.replace(spec, normaliser=dataclasses.replace(spec.normaliser, clip=float("inf")))
    observations = recorded_observations(60, 0)
    bundle = add_artifacts(write_bundle(tmp_path / "open", spec, weights, observations[:40], observations[40:]))
    agent = start_agent(bundle.path)
    agent.ask("load", precision="fp32", runtime=runtime)
    far = np.full((2, spec.observation_size), 1e-3, np.float32)
    far[1] = 3e38  # a finite number, whose products are none
    reply = agent.request("act", observations=far.tolist())
    assert reply["error"]["code"] == "not_finite" and "observations[1]" in reply["error"]["message"]
    assert agent.request("act", observation=far[1].tolist())["error"]["code"] == "not_finite"
    assert agent.ask("act", observation=far[0].tolist())["action"] >= 0


@pytest.mark.parametrize("step", [5e-324, 0.0])
def test_a_step_that_nothing_can_be_divided_by_is_refused(copied: Path, start_agent: Start, step: float) -> None:
    rewrite(copied, lambda m: [entry.update(output_step=[step] * 25) for entry in m["artifacts"]])
    reply = start_agent(copied).request("load", precision="int8")
    assert reply["error"]["code"] == "bundle" and "at least 1e-30" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("precision", "runtime"), [(p.value, r.value) for p in (Precision.FP32, Precision.INT8) for r in RuntimeName]
)
def test_an_artifact_of_other_weights_fails_its_golden_vectors(
    precision: str, runtime: str, copied: Path, start_agent: Start
) -> None:
    name = f"{precision}.{RuntimeName(runtime).artifact_format.value}"
    golden = f"{precision}.golden.npz"
    with np.load(copied / golden, allow_pickle=False) as archive:
        outputs, tolerance = archive["outputs"], archive["tolerance"]
    outputs[17, 3] += 1.0  # as if vector 17 had been computed by another network
    (copied / golden).write_bytes(npz(outputs=outputs, tolerance=tolerance))
    record_again(copied, golden)
    agent = start_agent(copied)
    reply = agent.request("load", precision=precision, runtime=runtime)
    assert reply["error"]["code"] == "golden"
    assert name in reply["error"]["message"]
    assert "golden vector 17, output 3 has an error of 1" in reply["error"]["message"]
    assert "1 of 48 vectors fail" in reply["error"]["message"]
    assert agent.request("memory")["error"]["code"] == "not_loaded"


class Miscounting:
    """An executor with the right outputs and an action that is the next one's; or with NaN among the outputs."""

    def __init__(self, outputs: np.ndarray, by: int) -> None:
        self._outputs, self._by, self._row = outputs, by, -1

    def decide(self, observation: np.ndarray) -> int:
        self._row += 1
        return int(self._outputs[self._row].argmax() + self._by) % self._outputs.shape[1]

    def outputs(self) -> np.ndarray:
        return self._outputs[self._row]

    def state(self) -> np.ndarray:
        return np.zeros(0, np.float32)


def test_wrong_actions_and_nan_fail_the_golden_vectors(pilot: Bundle) -> None:
    entry = pilot.artifact(Precision.INT8, ArtifactFormat.TFLITE)
    expected, golden = pilot.read_expected(entry), pilot.golden()

    def check(outputs: np.ndarray, by: int) -> dict[str, Any]:
        executor: Any = Miscounting(outputs, by)
        rows = list(golden.observations[:, None])
        return check_golden(
            pilot.spec, entry, executor, rows, pilot.read_expected_rows(entry), pilot.golden_rows(), RuntimeName.LITERT
        )

    assert check(expected.outputs, by=0)["action_agreement"] == 1.0
    with refused(AgentError, "golden"):
        check(expected.outputs, by=1)
    broken = expected.outputs.copy()
    broken[5, 2] = np.nan
    with pytest.raises(AgentError, match="golden vector 5, output 2 has NaN or infinity"):
        check(broken, by=0)


def test_a_graph_that_is_no_graph_is_refused(copied: Path, start_agent: Start) -> None:
    for name in ("int8.tflite", "int8.onnx"):
        (copied / name).write_bytes(b"TFL3 it is not" * 50)
        record_again(copied, name)
    for runtime in ("litert", "onnxruntime"):
        reply = start_agent(copied).request("load", precision="int8", runtime=runtime)
        assert reply["error"]["code"] == "runtime" and f"{runtime} cannot execute" in reply["error"]["message"]


def test_a_graph_of_another_policy_is_refused(copied: Path, gliding: Bundle, start_agent: Start) -> None:
    (copied / "fp32.onnx").write_bytes((gliding.path / "fp32.onnx").read_bytes())
    record_again(copied, "fp32.onnx")
    reply = start_agent(copied).request("load", precision="fp32", runtime="onnxruntime")
    assert reply["error"]["code"] == "runtime"
    assert "float32[1, 25] and an integer [1]" in reply["error"]["message"]


def test_a_policy_for_another_observation_is_refused_by_field(
    pilot: Bundle, make: Callable[..., Bundle], tmp_path: Path, start_agent: Start
) -> None:
    fields = list(pilot.spec.observation)
    fields[1] = ObservationField("goal_bearing", (1,), "deg")
    spec = dataclasses.replace(pilot.spec, observation=tuple(fields))
    other = make(tmp_path / "other", spec, pilot.weights())
    agent = start_agent(other.path)
    reply = agent.request("load", precision="fp32")
    assert reply["error"]["code"] == "spec"
    assert "'goal_bearing' of shape (1,) in 'deg'" in reply["error"]["message"]
    assert agent.request("memory")["error"]["code"] == "not_loaded"


def test_a_policy_of_another_task_is_not_compared_with_the_simulator(
    pilot: Bundle, make: Callable[..., Bundle], tmp_path: Path, start_agent: Start
) -> None:
    environment = dataclasses.replace(pilot.spec.environment, id="CartPole-v1")
    fields = (ObservationField("state", (32,), "1"),)
    spec = dataclasses.replace(pilot.spec, observation=fields, environment=environment)
    agent = start_agent(make(tmp_path / "other", spec, pilot.weights()).path)
    agent.ask("load", precision="fp32")
    reply = agent.request("episodes", episodes=2)
    assert reply["error"]["code"] == "spec" and "'state'" in reply["error"]["message"]


@pytest.mark.parametrize("name", ["policy.json", "golden.npz", "int8.golden.npz"])
def test_every_file_that_the_device_reads_is_verified(name: str, copied: Path, start_agent: Start) -> None:
    flip(copied / name, 40)
    reply = start_agent(copied).request("load", precision="int8")
    assert reply["error"]["code"] == "bundle" and name in reply["error"]["message"]


def test_truncated_and_undeployed_artifacts_differ(copied: Path, start_agent: Start) -> None:
    agent = start_agent(copied)
    (copied / "int8.tflite").unlink()
    reply = agent.request("load", precision="int8", runtime="litert")
    assert "int8.tflite is listed but not on this device" in reply["error"]["message"]
    (copied / "fp32.tflite").write_bytes((copied / "fp32.tflite").read_bytes()[:1000])
    reply = agent.request("load", precision="fp32")
    assert "fp32.tflite is truncated" in reply["error"]["message"]
    assert agent.ask("hello")["bundle"]["precisions"] == ["fp32", "int8"]  # int8.onnx is there


def test_a_device_that_holds_only_its_part_of_the_bundle_serves(copied: Path, start_agent: Start) -> None:
    others = ("fp32.onnx", "fp32.tflite", "fp32.native", "int8.onnx", "int8.native")
    for name in ("weights.safetensors", "calibration.npz", *others):
        (copied / name).unlink()
    agent = start_agent(copied)
    assert agent.ask("hello")["bundle"]["artifacts"] == [
        {
            "file": "int8.tflite",
            "precision": "int8",
            "format": "tflite",
            "bytes": (copied / "int8.tflite").stat().st_size,
        }
    ]
    assert agent.ask("load", precision="int8")["loaded"]["file"] == "int8.tflite"


def test_a_missing_precision_is_refused_with_its_command(pilot: Bundle, start_agent: Start) -> None:
    reply = start_agent(pilot.path).request("load", precision="fp16")
    assert (
        reply["error"]["code"] == "bundle" and reply["error"]["next"] == "Type: quarl convert --bits 16 --policy pilot"
    )
    assert not reply["error"]["message"].endswith(reply["error"]["next"])


def test_a_future_manifest_is_refused(copied: Path, start_agent: Start) -> None:
    rewrite(copied, lambda manifest: manifest.update(format_version=99))
    agent = start_agent(copied)
    assert "format_version" in agent.ask("hello")["bundle_error"]["message"]
    assert "format_version" in agent.request("load", precision="int8")["error"]["message"]


def test_a_process_uses_one_runtime(pilot: Bundle, start_agent: Start) -> None:
    agent = start_agent(pilot.path)
    agent.ask("load", precision="int8", runtime="onnxruntime")
    reply = agent.request("load", precision="int8", runtime="litert")
    assert reply["error"]["code"] == "unavailable" and "already runs on onnxruntime" in reply["error"]["message"]
    assert agent.ask("load", precision="fp32")["loaded"]["runtime"] == "onnxruntime"


def test_a_runtime_whose_import_failed_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel for another C library leaves its package in sys.modules; the next runtime is still to be had."""
    monkeypatch.setattr(runtimes, "sys", SimpleNamespace(modules={"ai_edge_litert": object()}))
    assert runtimes.find_imported_runtime() is None
    modules = {"ai_edge_litert": object(), "ai_edge_litert.interpreter": object()}
    monkeypatch.setattr(runtimes, "sys", SimpleNamespace(modules=modules))
    assert runtimes.find_imported_runtime() is RuntimeName.LITERT


def test_without_a_name_the_preferred_installed_runtime_is_taken(pilot: Bundle, start_agent: Start) -> None:
    agent = start_agent(pilot.path, "--threads", "2")
    loaded = agent.ask("load", precision="int8", runtime=None)["loaded"]
    assert loaded["runtime"] == agent.ask("hello")["preferred_runtime"] == "litert" and loaded["threads"] == 2
    assert agent.ask("load", precision="int8", threads=1)["loaded"]["threads"] == 1


def test_the_next_runtime_is_used_without_the_preferred_artifact(copied: Path, start_agent: Start) -> None:
    rewrite(copied, lambda m: m.update(artifacts=[a for a in m["artifacts"] if a["format"] == "onnx"]))
    assert start_agent(copied).ask("load", precision="int8")["loaded"]["runtime"] == "onnxruntime"


def test_a_runtime_that_is_not_installed_is_refused_with_what_is(
    monkeypatch: pytest.MonkeyPatch, pilot: Bundle
) -> None:
    from quarl.device.agent import serving as loading
    from quarl.device.agent.operations import Load
    from quarl.policy.spec import Precision

    request = Load(Precision.INT8, RuntimeName.LITERT, None)
    monkeypatch.setattr(loading, "find_installed_runtimes", lambda: {RuntimeName.TFLITE_RUNTIME: "2.14.0"})
    with refused(AgentError, "unavailable"):
        loading.choose(pilot, request, None)
    assert loading.choose(pilot, dataclasses.replace(request, runtime=None), None)[0] is RuntimeName.TFLITE_RUNTIME
    monkeypatch.setattr(loading, "find_installed_runtimes", dict)
    with refused(AgentError, "unavailable"):
        loading.choose(pilot, request, None)


def test_versions_are_those_of_the_installed_distributions() -> None:
    from importlib import metadata

    assert {name.value: version for name, version in find_installed_runtimes().items()} == {
        "litert": metadata.version("ai-edge-litert"),
        "tflite-runtime": metadata.version("tflite-runtime"),
        "onnxruntime": metadata.version("onnxruntime"),
        "native": native.VERSION,
    }


def test_the_outputs_of_a_graph_are_told_apart_by_type_and_shape(pilot: Bundle) -> None:
    source = _Tensor(0, "observation", [1, 32], np.float32)
    logits, action = _Tensor(1, "a", [1, 25], np.float32), _Tensor(2, "b", [1], np.int64)
    assert _match(pilot.spec, [source], [action, logits]) == (source, logits, action, None, None)
    for results in (
        [logits],
        [logits, logits],
        [_Tensor(1, "a", [1, 24], np.float32), action],
        [logits, action, action],
    ):
        with refused(AgentError, "runtime", shows=["'pilot'"]):
            _match(pilot.spec, [source], results)
    with pytest.raises(AgentError, match=r"observation int8\[1, 32\]"):
        _match(pilot.spec, [_Tensor(0, "observation", [1, 32], np.int8)], [logits, action])
