"""An artifact that is built again: another one is noticed, whatever its hashes say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.convert.__main__ import main as command
from quarl.convert.pipeline import convert
from quarl.convert.rebuild import check_artifact
from quarl.policy.bundle import Bundle, npz
from quarl.policy.errors import BundleError
from quarl.policy.reading import CALIBRATION_FILE, MANIFEST_FILE, FileRecord
from quarl.policy.spec import ArtifactFormat, Precision
from tests.convert.conftest import Runtimes
from tests.device_agent.conftest import AgentProcess
from tests.refusals import refused

TFLITE = ArtifactFormat.TFLITE
PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4, Precision.MIXED)


@pytest.fixture
def converted(bundle: Bundle, runtimes: Runtimes) -> Bundle:
    for precision in PRECISIONS:
        convert(bundle, precision, TFLITE, runtimes, accept=True)
    return Bundle.load(bundle.path)


def put(
    folder: Path, contents: dict[str, bytes], change: Callable[[dict[str, Any]], object] = lambda m: None
) -> Bundle:
    """The bundle with other files, a manifest that agrees with them, and something changed in that."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        record = {"bytes": len(data), "sha256": FileRecord.of(data).sha256}
        if name in manifest["files"]:
            manifest["files"][name] = record
        for entry in manifest["artifacts"]:
            if entry["file"] == name:
                entry.update(record)
    change(manifest)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    return Bundle.load(folder)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_was_converted_passes(converted: Bundle, precision: Precision) -> None:
    check_artifact(converted, converted.artifact(precision, TFLITE))


def test_an_artifact_of_fewer_bits_under_a_wide_tolerance_is_refused(converted: Bundle) -> None:
    """The agent has no weights: with a tolerance that is wide enough it would serve 4 bits as 8."""
    expected = converted.read_expected(converted.artifact(Precision.INT8, TFLITE))
    wide = np.full(expected.outputs.shape, 0.05 * np.ptp(converted.golden().outputs), np.float32)
    golden = npz(outputs=expected.outputs, tolerance=wide)
    narrow = put(converted.path, {"int8.golden.npz": golden})
    with refused(BundleError, "wider_tolerance"):
        check_artifact(narrow, narrow.artifact(Precision.INT8, TFLITE))
    fewer = put(converted.path, {"int8.tflite": (converted.path / "int4.tflite").read_bytes()})
    with refused(BundleError, "artifact_not_rebuilt"):
        check_artifact(fewer, fewer.artifact(Precision.INT8, TFLITE))


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.update(most_off=1.0),
        lambda entry: entry.pop("most_off"),
        lambda entry: entry.update(output_step=[1e-3 * step for step in entry["output_step"]]),
    ],
)
def test_a_manifest_that_asks_less_is_refused(converted: Bundle, change: Callable[[dict[str, Any]], object]) -> None:
    def of_int8(manifest: dict[str, Any]) -> None:
        change(next(entry for entry in manifest["artifacts"] if entry["file"] == "int8.tflite"))

    bundle = put(converted.path, {}, of_int8)
    with refused(BundleError, "bundle", shows=["output_step"]):
        check_artifact(bundle, bundle.artifact(Precision.INT8, TFLITE))


def test_another_calibration_is_refused_and_none(converted: Bundle) -> None:
    entry = converted.artifact(Precision.INT8, TFLITE)
    calibration = converted.calibration()
    half = put(converted.path, {CALIBRATION_FILE: npz(observations=calibration * np.float32(0.5))})
    with refused(BundleError, "artifact_not_rebuilt"):
        check_artifact(half, entry)
    none = put(converted.path, {CALIBRATION_FILE: npz(observations=calibration[:0])})
    with refused(BundleError, "bundle", shows=["int8.tflite"]):
        check_artifact(none, entry)


def test_most_flips_that_change_actions_are_refused_by_the_agent_alone(converted: Bundle) -> None:
    """An artifact that was changed within its tolerance moves more outputs by a step than rounding does."""
    data, chance = (converted.path / "int8.tflite").read_bytes(), random.Random(2)
    observations = converted.calibration()[:200]
    line = json.dumps({"op": "act", "observations": observations.tolist(), "outputs": False}).encode()

    agent = AgentProcess(converted.path)  # a process of its own: one that has loaded another runtime refuses LiteRT

    def actions(changed: bytes) -> list[int] | None:
        put(converted.path, {"int8.tflite": changed})
        loaded = agent.request("load", precision="int8", runtime="litert")
        assert loaded["ok"] or loaded["error"]["code"] in ("golden", "runtime", "bundle")
        return agent.send(line)["actions"] if loaded["ok"] else None

    right, otherwise = actions(data), 0
    assert right is not None
    for _ in range(60):
        place = chance.randrange(len(data))
        found = actions(data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :])
        otherwise += found is not None and sum(a != b for a, b in zip(found, right, strict=True)) > 2
    assert agent.end() == 0 and otherwise == 0


def test_the_command_verifies_what_a_bundle_has(converted: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", str(converted.path), "--verify", "--format", "tflite", "--bits"]
    assert command([*words, "8,32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [f"{converted.spec.name}/{each}.tflite" for each in ("int8", "fp32")]
    assert command([*words, "2"]) == 1  # not converted
    for bits, precision in (("8", Precision.INT8), ("32", Precision.FP32), ("16", Precision.FP16)):
        entry = converted.artifact(precision, TFLITE)
        expected = converted.read_expected(entry)
        turned = npz(outputs=expected.outputs[:, ::-1].copy(), tolerance=expected.tolerance)
        other = put(converted.path, {entry.golden_file: turned})
        assert command([*words, bits]) == 1 and entry.golden_file in capsys.readouterr().err
        with refused(BundleError, "golden_mismatch"):
            check_artifact(other, entry)
