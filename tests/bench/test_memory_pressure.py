"""The large model that is shipped as a skeleton, and what is said of memory pressure."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.bench.memory_pressure import probe as pressure_probe
from quarl.bench.memory_pressure.cases import Case, pressure_table, speed_ups
from quarl.bench.memory_pressure.depth_network import LEGACY_OBSERVATION, Skeleton, enlarge
from quarl.convert.pipeline import convert_all
from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import ArtifactFormat, Precision


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundle") / "I"
    copy_bundle(Bundle.load(ZOO / "I"), path, "zoo")
    convert_all([Bundle.load(path)], [Precision.FP32, Precision.INT8], [ArtifactFormat.TFLITE])
    return Bundle.load(path)


def artifact(bundle: Bundle, precision: Precision) -> bytes:
    return (bundle.path / bundle.artifact(precision, ArtifactFormat.TFLITE).file).read_bytes()


def write(skeleton: Skeleton, path: Path) -> None:
    """The whole file, as the device writes it."""
    with path.open("wb") as stream:
        stream.write(skeleton.head)
        stream.truncate(skeleton.size)
        for fill in skeleton.fills:
            stream.seek(fill.offset)
            repeats = -(-fill.size // len(fill.pattern))
            stream.write((fill.pattern * repeats)[: fill.size])


def logits(model: Path, observation: np.ndarray) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(model))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], observation)
    interpreter.invoke()
    return next(
        interpreter.get_tensor(row["index"]) for row in interpreter.get_output_details() if row["name"] == "logits"
    )


def test_the_legacy_observation_is_a_depth_image_and_three_numbers() -> None:
    assert LEGACY_OBSERVATION == 39_427


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8])
def test_a_skeleton_of_the_same_size_is_the_same_policy(bundle: Bundle, precision: Precision, tmp_path: Path) -> None:
    """Every large buffer lies outside the flatbuffer, and the runtime reads it there to the last bit."""
    data = artifact(bundle, precision)
    skeleton = enlarge(data, 32, 32)
    assert skeleton.fills
    (tmp_path / "original.tflite").write_bytes(data)
    write(skeleton, tmp_path / "skeleton.tflite")
    observation = bundle.golden().observations[:1]
    np.testing.assert_array_equal(
        logits(tmp_path / "skeleton.tflite", observation), logits(tmp_path / "original.tflite", observation)
    )


@pytest.mark.parametrize(("precision", "width"), [(Precision.FP32, 4), (Precision.INT8, 1)])
def test_only_the_first_layer_grows(bundle: Bundle, precision: Precision, width: int, tmp_path: Path) -> None:
    skeleton = enlarge(artifact(bundle, precision), 32)
    assert LEGACY_OBSERVATION * 64 * width in [fill.size for fill in skeleton.fills]  # I's first layer has 64 nodes
    assert len(skeleton.head) + sum(len(fill.pattern) for fill in skeleton.fills) < 300_000  # what is sent
    write(skeleton, tmp_path / "large.tflite")
    assert (tmp_path / "large.tflite").stat().st_size == skeleton.size
    outputs = logits(tmp_path / "large.tflite", np.zeros((1, LEGACY_OBSERVATION), np.float32))
    assert outputs.shape == (1, 25)
    assert np.isfinite(outputs).all()


def test_an_artifact_without_that_dimension_is_refused(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="33"):
        enlarge(artifact(bundle, Precision.FP32), 33)


def request_to_write(skeleton: Skeleton, path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "head": base64.b64encode(skeleton.head).decode(),
        "size": skeleton.size,
        "fills": [[fill.offset, fill.size, base64.b64encode(fill.pattern).decode()] for fill in skeleton.fills],
    }


def probe(verb: str, request: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, pressure_probe.__file__, verb], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_device_writes_what_the_host_means_and_counts(bundle: Bundle, tmp_path: Path) -> None:
    skeleton = enlarge(artifact(bundle, Precision.INT8), 32, 5000)
    write(skeleton, tmp_path / "host.tflite")
    notes = probe("write", request_to_write(skeleton, tmp_path / "device.tflite"))
    assert notes["bytes"] == skeleton.size
    assert (tmp_path / "device.tflite").read_bytes() == (tmp_path / "host.tflite").read_bytes()
    assert not list(tmp_path.glob("*.part"))
    found = probe("measure", {"path": str(tmp_path / "device.tflite"), "runtime": "litert", "warmup": 2, "runs": 3})
    assert found["inputs"] == 5000
    assert (len(found["warmup"]), len(found["runs"])) == (2, 3)
    assert set(pressure_probe.COUNTERS) <= set(found["runs"][0])
    assert found["after_runs"]["VmRSS"] > 5000 * 64
    assert found["machine"]["MemTotal"] > 0


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, pressure_probe.__file__, "hold", "30"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()


def test_memory_is_held_until_the_input_ends(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    resident = Path(f"/proc/{holder.pid}/statm").read_text().split()[1]
    assert int(resident) * 4096 > 30_000_000
    holder.stdin.close()
    assert holder.wait(20) == 0


def case(target: str, model: str, precision: str, ns: int, swapped: int = 0, emulated: bool = True) -> Case:
    run = {"ns": ns, "major_faults": swapped, "minor_faults": 0, "pswpin": swapped, "pgpgin": 4 * swapped}
    measured = {
        "inputs": 39427,
        "load": {"pswpout": 0},
        "after_runs": {"VmRSS": 1, "VmSwap": 0},
        "machine": {"MemTotal": 1 << 30, "SwapTotal": 1 << 30},
        "runs": [run, {**run, "ns": ns + 2}, {**run, "ns": 10 * ns}],
    }
    return Case(target, model, precision, 1, emulated, measured)


CASES = [
    case("poor", "legacy", "fp32", 75_598, swapped=100_000),
    case("poor", "legacy", "int8", 998),
    case("poor", "small", "fp32", 38),
    case("poor", "small", "int8", 8),
    case("roomy", "legacy", "fp32", 4_398),
    case("roomy", "legacy", "int8", 998),
]


def test_speed_ups_come_apart_by_hand() -> None:
    found = speed_ups(CASES, "poor", "roomy")
    assert found["total"] == 75.6  # medians: 75,600 / 1,000
    assert found["computing"] == 4.4
    assert found["small"] == 4.0
    assert found["pressure"] == pytest.approx(75.6 / 4.4)
    alone = speed_ups(CASES, "poor", None)
    assert (alone["computing"], alone["pressure"]) == (None, None)


ASKED = {"target": "poor", "roomy": "roomy", "runtime": "litert", "runs": 3, "warmup": 2, "held": 300}


def answer_of(cases: list[Case], **asked: object) -> dict[str, object]:
    return {"machine": "m", "code": "c", **ASKED, **asked, "cases": [asdict(each) for each in cases]}


def test_the_table_shows_no_emulated_time() -> None:
    made = pressure_table(answer_of(CASES))
    shown = {row[:3]: row for row in made.rows}
    assert shown["poor", "III, enlarged", "fp32"][5] == "7,560×"  # of the small int8
    assert "ns" not in "".join("".join(row) for row in made.rows)
    notes = " ".join(made.notes)
    assert "EMULATED" in notes
    assert "computing 4.40× (on roomy, with memory enough) × memory pressure 17.2×" in notes
    # 100,000 pages of 4 KiB at 25 MB/s
    assert "410 MB per decision takes a real Pi 3b at least 16.4 s" in notes


def test_a_real_devices_times_are_shown() -> None:
    real = [case("pi", "small", precision, ns, emulated=False) for precision, ns in (("fp32", 398), ("int8", 98))]
    made = pressure_table(answer_of(real, target="pi", roomy=None))
    assert made.rows[0][5] == "400 ns"
    assert "EMULATED" not in " ".join(made.notes)
