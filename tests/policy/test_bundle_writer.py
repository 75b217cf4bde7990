"""Writing a bundle is atomic: whatever interrupts it, the bundle is the old one or the new one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import quarl.policy.bundle as writer_module
from quarl.policy.bundle import Bundle, Expected, add_artifact, copy_bundle, write_bundle
from quarl.policy.errors import BundleError, SpecError
from quarl.policy.files import PART, write_atomically
from quarl.policy.reading import MANIFEST_FILE, FileRecord, Manifest
from quarl.policy.spec import (
    ArtifactFormat,
    Precision,
)
from tests.policy.small_bundle import CALIBRATION, EXPECTED, GOLDEN, OUTPUTS, SPEC, WEIGHTS, entry_of, files
from tests.refusals import refused


def test_misshapen_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for arguments in (
        ({**WEIGHTS, "head/bias": np.zeros(1, np.float32)}, CALIBRATION, GOLDEN),
        (WEIGHTS, CALIBRATION[:, :2], GOLDEN),
        (WEIGHTS, CALIBRATION, GOLDEN[:, :2]),
    ):
        with pytest.raises(SpecError):
            write_bundle(tmp_path / "T", SPEC, *arguments)
        assert list(tmp_path.iterdir()) == []


class PowerFailureError(Exception):
    """The power fails."""


def test_an_interrupted_write_leaves_the_old_bundle(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(bundle.path)
    writes = 0

    def fails_at_third(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise PowerFailureError
        write_atomically(path, data)

    monkeypatch.setattr(writer_module, "write_atomically", fails_at_third)
    with pytest.raises(PowerFailureError):
        write_bundle(bundle.path, replace(SPEC, control_period_s=0.5), WEIGHTS, CALIBRATION, GOLDEN)
    assert files(bundle.path) == before
    assert [path.name for path in bundle.path.parent.iterdir()] == ["T"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_bundle_is_replaced_and_nothing_is_left_beside_it(
    bundle: Bundle, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(writer_module, "_exchange", lambda one, other: False)
    write_bundle(bundle.path, replace(SPEC, control_period_s=0.5), WEIGHTS, CALIBRATION, GOLDEN)
    assert Bundle.load(bundle.path).spec.control_period_s == 0.5
    assert [path.name for path in bundle.path.parent.iterdir()] == ["T"]
    assert "learning_curve.csv" not in files(bundle.path)


def test_a_bundle_that_is_replaced_is_never_absent(bundle: Bundle, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    if not writer_module._exchange(one, other):
        pytest.skip("this file system cannot swap two folders in one step")
    absent, stop = [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            absent.extend([True] * (not (bundle.path / MANIFEST_FILE).exists()))

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(30):
        write_bundle(bundle.path, SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    stop.set()
    looking.join()
    assert not absent


def test_an_artifact_is_listed_with_its_golden_outputs(bundle: Bundle) -> None:
    outputs = np.arange(10, dtype=np.float32).reshape(5, 2)
    add_artifact(bundle, entry_of(b"graph"), b"graph", Expected(outputs, EXPECTED.tolerance))
    read = Bundle.load(bundle.path)
    entry = read.artifact(Precision.INT8, ArtifactFormat.TFLITE)
    assert entry == entry_of(b"graph")
    assert read.artifact_data(entry) == b"graph"
    np.testing.assert_array_equal(read.read_expected(entry).outputs, outputs)
    with pytest.raises(
        BundleError, match=r"no fp32 onnx artifact; it has int8\.tflite.*quarl convert --bits 32 --policy T"
    ):
        read.artifact(Precision.FP32, ArtifactFormat.ONNX)


def test_a_tampered_artifact_is_refused(bundle: Bundle) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    (bundle.path / "int8.tflite").write_bytes(b"grapH")
    with refused(BundleError, "wrong_sha256"):
        Bundle.load(bundle.path)


@pytest.mark.parametrize("survived", [1, 2, 3])
def test_an_interrupted_conversion_leaves_a_bundle_that_loads(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """The old artifact may be gone from the manifest, but nothing is listed that is not there as listed."""
    add_artifact(bundle, entry_of(b"old"), b"old", EXPECTED)
    writes = 0

    def fails_later(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > survived:
            raise PowerFailureError
        write_atomically(path, data)

    monkeypatch.setattr(writer_module, "write_atomically", fails_later)
    with pytest.raises(PowerFailureError):
        add_artifact(Bundle.load(bundle.path), entry_of(b"new"), b"new", Expected(OUTPUTS + 1, EXPECTED.tolerance))
    monkeypatch.undo()
    assert Bundle.load(bundle.path).manifest.artifacts == {}
    add_artifact(Bundle.load(bundle.path), entry_of(b"new"), b"new", Expected(OUTPUTS + 1, EXPECTED.tolerance))
    assert Bundle.load(bundle.path).manifest.artifacts == {"int8.tflite": entry_of(b"new")}


def test_half_a_file_of_a_killed_conversion_goes_with_the_next(bundle: Bundle) -> None:
    (bundle.path / f".int8.tflite.0123{PART}").write_bytes(b"ha")
    add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    assert not list(bundle.path.glob(".*"))


def test_artifacts_share_golden_outputs_only_when_they_are_the_same(bundle: Bundle) -> None:
    add_artifact(bundle, entry_of(b"one"), b"one", EXPECTED)
    add_artifact(bundle, entry_of(b"two", suffix="onnx"), b"two", EXPECTED)
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {"int8.tflite", "int8.onnx"}
    # Another quantization: what the older artifact was checked against is gone, and it with it.
    add_artifact(bundle, entry_of(b"three", suffix="onnx"), b"three", Expected(OUTPUTS + 1, EXPECTED.tolerance))
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {"int8.onnx"}


def test_two_conversions_at_once_both_stay(bundle: Bundle) -> None:
    first, second = Bundle.load(bundle.path), Bundle.load(bundle.path)
    add_artifact(first, entry_of(b"one"), b"one", EXPECTED)
    add_artifact(second, entry_of(b"two", Precision.FP32), b"two", EXPECTED)
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {"int8.tflite", "fp32.tflite"}


def test_many_conversions_at_once_all_stay(bundle: Bundle) -> None:
    precisions = list(Precision)

    def add(precision: Precision) -> None:
        data = precision.value.encode()
        add_artifact(Bundle.load(bundle.path, ()), entry_of(data, precision), data, EXPECTED)

    with ThreadPoolExecutor(len(precisions)) as pool:
        list(pool.map(add, precisions))
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {f"{p.value}.tflite" for p in precisions}


def test_an_artifact_whose_file_is_gone_is_not_there(bundle: Bundle) -> None:
    assert not bundle.has_artifact(Precision.INT8, ArtifactFormat.TFLITE)
    bundle = add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    assert bundle.has_artifact(Precision.INT8, ArtifactFormat.TFLITE)
    assert not bundle.has_artifact(Precision.INT8, ArtifactFormat.ONNX)
    (bundle.path / "int8.tflite").unlink()
    assert not Bundle.load(bundle.path).has_artifact(Precision.INT8, ArtifactFormat.TFLITE)


def test_a_manifest_round_trip(bundle: Bundle) -> None:
    manifest = bundle.manifest.with_artifact(entry_of(b"graph"), FileRecord.of(b"golden"))
    text = manifest.to_json().encode()
    assert Manifest.from_json(text, Path("manifest.json")) == manifest


def test_a_copy_has_the_policy_but_not_its_artifacts(bundle: Bundle, tmp_path: Path) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    copy = copy_bundle(Bundle.load(bundle.path), tmp_path / "copy", "zoo")
    assert copy.manifest.origin == "zoo"
    assert copy.manifest.artifacts == {}
    assert {"int8.tflite", "int8.golden.npz"}.isdisjoint(files(copy.path))
    np.testing.assert_array_equal(copy.calibration(), CALIBRATION)
