"""A bundle is either whole or refused by the name of what is wrong; writing one is atomic."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import policy.bundle_writer as writer_module
from policy.bundle import CALIBRATION_FILE, DEVICE_FILES, GOLDEN_FILE, SPEC_FILE, WEIGHTS_FILE, Bundle
from policy.bundle_writer import add_artifact, copy_bundle, npz, write_bundle
from policy.errors import BundleError, SpecError
from policy.files import write_atomically
from policy.locate import working_bundle
from policy.manifest import MANIFEST_FILE, ArtifactEntry, FileRecord, Manifest, Parity
from policy.network import forward_float, weight_shapes
from policy.spec import (
    ArtifactFormat,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
)

SPEC = PolicySpec(
    name="T",
    observation=(ObservationField("state", (3,), "1"),),
    normaliser=Normaliser((0.0,) * 3, (1.0,) * 3),
    network=NetworkSpec((4,)),
    head=DiscreteHead(("stay", "go")),
    control_period_s=0.1,
    environment=EnvironmentSpec("Test-v0"),
)
RANDOM = np.random.default_rng(0)
WEIGHTS = {name: RANDOM.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(SPEC).items()}
CALIBRATION = RANDOM.normal(size=(20, 3)).astype(np.float32)
GOLDEN = RANDOM.normal(size=(5, 3)).astype(np.float32)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_bundle(tmp_path / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN, {"learning_curve.csv": b"step,return\n"})


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def entry_of(data: bytes, precision: Precision = Precision.INT8, suffix: str = "tflite") -> ArtifactEntry:
    return ArtifactEntry(
        file=f"{precision.value}.{suffix}",
        precision=precision,
        format=ArtifactFormat(suffix),
        scheme="weights symmetric per output channel, 8 bits",
        execution="int8 × int8",
        record=FileRecord.of(data),
        golden_file=f"{precision.value}.golden.npz",
        tolerance=0.25,
        output_step=0.125,
        runtimes={RuntimeName.LITERT: Parity("2.3.0", 0.0, 0.0, 1.0)},
    )


OUTPUTS = np.zeros((5, 2), np.float32)


def test_what_is_written_is_read(bundle: Bundle) -> None:
    read = Bundle.load(bundle.path)
    assert read.spec == SPEC
    assert set(files(bundle.path)) == {
        SPEC_FILE,
        WEIGHTS_FILE,
        CALIBRATION_FILE,
        GOLDEN_FILE,
        MANIFEST_FILE,
        "learning_curve.csv",
    }
    for name, value in WEIGHTS.items():
        np.testing.assert_array_equal(read.weights()[name], value)
    np.testing.assert_array_equal(read.calibration(), CALIBRATION)
    golden = read.golden()
    np.testing.assert_array_equal(golden.outputs, forward_float(SPEC, WEIGHTS, GOLDEN))
    np.testing.assert_array_equal(golden.actions, golden.outputs.argmax(axis=1))


def test_the_same_policy_gives_the_same_bytes(bundle: Bundle, tmp_path: Path) -> None:
    again = write_bundle(
        tmp_path / "again", SPEC, WEIGHTS, CALIBRATION, GOLDEN, {"learning_curve.csv": b"step,return\n"}
    )
    assert files(again.path) == files(bundle.path)


def rewrite(bundle: Bundle, name: str, data: bytes) -> None:
    """Replace a file and sign it: what a wrong program would write, rather than an accident."""
    (bundle.path / name).write_bytes(data)
    manifest = json.loads((bundle.path / MANIFEST_FILE).read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": FileRecord.of(data).sha256}
    (bundle.path / MANIFEST_FILE).write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", [SPEC_FILE, WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE, "learning_curve.csv"])
def test_a_damaged_file_is_refused_by_name(bundle: Bundle, name: str) -> None:
    path = bundle.path / name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(BundleError, match=f"{name} is truncated: {len(data) - 1} bytes, the manifest says {len(data)}"):
        Bundle.load(bundle.path)
    path.write_bytes(data + b"\n")
    with pytest.raises(BundleError, match=f"{name} is longer than it was written"):
        Bundle.load(bundle.path)
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(BundleError, match=f"{name} was tampered with or damaged"):
        Bundle.load(bundle.path)
    path.unlink()
    if name == "learning_curve.csv":
        Bundle.load(bundle.path)  # nobody needs it
    else:
        with pytest.raises(BundleError, match=f"{name} is missing"):
            Bundle.load(bundle.path)


def test_a_device_needs_neither_weights_nor_calibration(bundle: Bundle) -> None:
    (bundle.path / WEIGHTS_FILE).unlink()
    (bundle.path / CALIBRATION_FILE).unlink()
    device = Bundle.load(bundle.path, DEVICE_FILES)
    assert len(device.golden().actions) == 5
    with pytest.raises(BundleError, match=f"{WEIGHTS_FILE} is missing"):
        device.weights()


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json is missing.*make train"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(format_version=2), "format_version 2; this program reads 1"),
        (lambda m: m.pop("format_version"), "format_version None"),
        (lambda m: m.pop("origin"), "lacks the field 'origin'"),
        (lambda m: m["files"].pop(WEIGHTS_FILE), f"does not list {WEIGHTS_FILE}"),
        (lambda m: m["files"][WEIGHTS_FILE].pop("sha256"), "lacks the field 'sha256'"),
        (lambda m: m["files"][WEIGHTS_FILE].update(bytes="many"), "cannot be read"),
        (lambda m: m.update(policy="U"), "manifest is of policy 'U', policy.json of 'T'"),
        (lambda m: m.update(files=[]), "cannot be read"),
        (lambda m: m["files"][WEIGHTS_FILE].update(bytes=float("inf")), "bytes is inf; it must be a whole number"),
        (lambda m: m["files"][WEIGHTS_FILE].update(bytes=-1), "a record has -1 bytes"),
        (lambda m: m["files"][WEIGHTS_FILE].update(sha256="abc"), "the sha256 'abc'"),
        (lambda m: m["files"].update({MANIFEST_FILE: m["files"][SPEC_FILE]}), "only plain names"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    bundle: Bundle, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    path = bundle.path / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=words):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # No error is greater than NaN: such a tolerance would let an artifact compute anything.
        (lambda a: a.update(tolerance=float("nan")), "tolerance is nan; it must be finite"),
        (lambda a: a.update(tolerance=float("inf")), "tolerance is inf; it must be finite"),
        (lambda a: a.update(tolerance=-1), "tolerance is -1.0; it must not be negative"),
        (lambda a: a.update(output_step="wide"), "output_step is 'wide'; it must be a number"),
        (lambda a: a.update(runtimes={"litert": 1}), "litert is 1; it must be an object"),
        (lambda a: a.update(file=SPEC_FILE), f"lists {SPEC_FILE} twice"),
    ],
)
def test_an_artifact_entry_that_is_none_is_refused(
    bundle: Bundle, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", OUTPUTS)
    path = bundle.path / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    change(manifest["artifacts"][0])
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=words):
        Bundle.load(bundle.path)


@pytest.mark.parametrize("text", ["", "{", '{"format_version": 1', "[]", "\x00", "[" * 100_000])
def test_a_truncated_manifest_is_refused(bundle: Bundle, text: str) -> None:
    (bundle.path / MANIFEST_FILE).write_text(text)
    with pytest.raises(BundleError, match=MANIFEST_FILE):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    "name", ["../T/policy.json", "/etc/passwd", "..", ".", "", "sub/file", "..\\windows", "nul\x00byte"]
)
@pytest.mark.parametrize("place", ["files", "artifact", "golden"])
def test_a_name_that_leaves_the_bundle_is_refused(bundle: Bundle, name: str, place: str) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", OUTPUTS)
    path = bundle.path / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    if place == "files":
        manifest["files"][name] = manifest["files"][SPEC_FILE]
    else:
        manifest["artifacts"][0]["file" if place == "artifact" else "golden_file"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="only plain names inside the bundle"):
        Bundle.load(bundle.path)


def test_a_spec_of_the_future_is_named_with_its_file(bundle: Bundle) -> None:
    spec = json.loads(SPEC.to_json())
    spec["format_version"] = 9
    rewrite(bundle, SPEC_FILE, json.dumps(spec).encode())
    with pytest.raises(BundleError, match=rf"{SPEC_FILE}: policy\.json has format_version 9"):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head/bias": np.zeros(3, np.float32)}, r"'head/bias' is float32\[3\]"),
        ({"head/bias": np.array([np.nan, 0.0], np.float32)}, "'head/bias' holds NaN"),
        ({"dense_0/kernel": WEIGHTS["dense_0/kernel"].astype(np.float64)}, "float64"),
        ({"extra": np.zeros(1, np.float32)}, "unexpected"),
    ],
)
def test_weights_that_do_not_fit_the_spec_are_refused(
    bundle: Bundle, change: dict[str, np.ndarray], words: str
) -> None:
    rewrite(bundle, WEIGHTS_FILE, save({**WEIGHTS, **change}))
    with pytest.raises(BundleError, match=f"{WEIGHTS_FILE}: .*{words}"):
        Bundle.load(bundle.path)


def test_calibration_of_another_observation_is_refused(bundle: Bundle) -> None:
    rewrite(bundle, CALIBRATION_FILE, npz(observations=CALIBRATION[:, :2]))
    with pytest.raises(BundleError, match=rf"{CALIBRATION_FILE}: 'observations' is float32\[20, 2\]"):
        Bundle.load(bundle.path)
    Bundle.load(bundle.path, DEVICE_FILES)  # a device never looks at it


def test_weights_that_are_no_safetensors_are_refused(bundle: Bundle) -> None:
    rewrite(bundle, WEIGHTS_FILE, b"\x80\x04\x95 a pickle, for example")
    with pytest.raises(BundleError, match=WEIGHTS_FILE):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"observations": GOLDEN[:, :2]}, r"'observations' is float32\[5, 2\]; the spec wants float32\[n, 3\]"),
        ({"observations": GOLDEN.astype(np.float64)}, r"'observations' is float64"),
        ({"outputs": None}, "'outputs' is absent"),
        ({"outputs": np.full((5, 2), np.inf, np.float32)}, "'outputs' holds NaN or infinity"),
        ({"actions": np.zeros(4, np.int64)}, "do not belong together"),
        ({"actions": None}, "do not belong together"),
        ({"actions": np.array(3)}, "do not belong together"),
        ({"actions": np.zeros(5, np.float32)}, "do not belong together"),
        ({"actions": np.array([0, 0, 1, 0, 0])}, "not the one that its outputs choose"),
        ({"observations": GOLDEN[:0], "outputs": OUTPUTS[:0], "actions": np.zeros(0, np.int64)}, "do not belong"),
    ],
)
def test_golden_vectors_that_do_not_fit_are_refused(
    bundle: Bundle, arrays: dict[str, np.ndarray | None], words: str
) -> None:
    good: dict[str, np.ndarray | None] = {"observations": GOLDEN, "outputs": OUTPUTS, "actions": np.zeros(5, np.int64)}
    kept = {name: value for name, value in {**good, **arrays}.items() if value is not None}
    rewrite(bundle, GOLDEN_FILE, npz(**kept))
    with pytest.raises(BundleError, match=words):
        Bundle.load(bundle.path)


def test_an_npz_that_is_damaged_anywhere_is_refused(bundle: Bundle) -> None:
    good = (bundle.path / GOLDEN_FILE).read_bytes()
    for place in range(len(good)):
        rewrite(bundle, GOLDEN_FILE, good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        # Some bytes are the archive's dates and attributes: what is accepted has to be the very same vectors.
        try:
            golden = Bundle.load(bundle.path).golden()
        except BundleError:
            continue
        np.testing.assert_array_equal(golden.observations, GOLDEN)


def test_a_pickle_in_an_npz_is_not_executed(bundle: Bundle) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, observations=np.array([{"an": "object"}], dtype=object))
    rewrite(bundle, CALIBRATION_FILE, buffer.getvalue())
    with pytest.raises(BundleError, match=f"{CALIBRATION_FILE} is no readable npz file"):
        Bundle.load(bundle.path).calibration()


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


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new and longer")
    assert files(tmp_path) == {"file": b"old"}


def test_an_artifact_is_listed_with_its_golden_outputs(bundle: Bundle) -> None:
    outputs = np.arange(10, dtype=np.float32).reshape(5, 2)
    add_artifact(bundle, entry_of(b"graph"), b"graph", outputs)
    read = Bundle.load(bundle.path)
    entry = read.artifact(Precision.INT8, ArtifactFormat.TFLITE)
    assert entry == entry_of(b"graph")
    assert read.artifact_data(entry) == b"graph"
    np.testing.assert_array_equal(read.expected_outputs(entry), outputs)
    with pytest.raises(BundleError, match=r"no fp32 onnx artifact; it has int8\.tflite.*make convert BITS=32 POLICY=T"):
        read.artifact(Precision.FP32, ArtifactFormat.ONNX)


def test_a_tampered_artifact_is_refused(bundle: Bundle) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", OUTPUTS)
    (bundle.path / "int8.tflite").write_bytes(b"grapH")
    with pytest.raises(BundleError, match=r"int8\.tflite was tampered with"):
        Bundle.load(bundle.path)


@pytest.mark.parametrize("survived", [1, 2, 3])
def test_an_interrupted_conversion_leaves_a_bundle_that_loads(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """The old artifact may be gone from the manifest, but nothing is listed that is not there as listed."""
    add_artifact(bundle, entry_of(b"old"), b"old", OUTPUTS)
    writes = 0

    def fails_later(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > survived:
            raise PowerFailureError
        write_atomically(path, data)

    monkeypatch.setattr(writer_module, "write_atomically", fails_later)
    with pytest.raises(PowerFailureError):
        add_artifact(Bundle.load(bundle.path), entry_of(b"new"), b"new", OUTPUTS + 1)
    monkeypatch.undo()
    assert Bundle.load(bundle.path).manifest.artifacts == {}
    add_artifact(Bundle.load(bundle.path), entry_of(b"new"), b"new", OUTPUTS + 1)
    assert Bundle.load(bundle.path).manifest.artifacts == {"int8.tflite": entry_of(b"new")}


def test_artifacts_share_golden_outputs_only_when_they_are_the_same(bundle: Bundle) -> None:
    add_artifact(bundle, entry_of(b"one"), b"one", OUTPUTS)
    add_artifact(bundle, entry_of(b"two", suffix="onnx"), b"two", OUTPUTS)
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {"int8.tflite", "int8.onnx"}
    # Another quantization: what the older artifact was checked against is gone, and it with it.
    add_artifact(bundle, entry_of(b"three", suffix="onnx"), b"three", OUTPUTS + 1)
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {"int8.onnx"}


def test_two_conversions_at_once_both_stay(bundle: Bundle) -> None:
    first, second = Bundle.load(bundle.path), Bundle.load(bundle.path)
    add_artifact(first, entry_of(b"one"), b"one", OUTPUTS)
    add_artifact(second, entry_of(b"two", Precision.FP32), b"two", OUTPUTS)
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {"int8.tflite", "fp32.tflite"}


def test_many_conversions_at_once_all_stay(bundle: Bundle) -> None:
    precisions = list(Precision)

    def add(precision: Precision) -> None:
        data = precision.value.encode()
        add_artifact(Bundle.load(bundle.path, ()), entry_of(data, precision), data, OUTPUTS)

    with ThreadPoolExecutor(len(precisions)) as pool:
        list(pool.map(add, precisions))
    assert set(Bundle.load(bundle.path).manifest.artifacts) == {f"{p.value}.tflite" for p in precisions}


def test_an_artifact_whose_file_is_gone_is_not_there(bundle: Bundle) -> None:
    assert not bundle.has_artifact(Precision.INT8, ArtifactFormat.TFLITE)
    bundle = add_artifact(bundle, entry_of(b"graph"), b"graph", OUTPUTS)
    assert bundle.has_artifact(Precision.INT8, ArtifactFormat.TFLITE)
    assert not bundle.has_artifact(Precision.INT8, ArtifactFormat.ONNX)
    (bundle.path / "int8.tflite").unlink()
    assert not Bundle.load(bundle.path).has_artifact(Precision.INT8, ArtifactFormat.TFLITE)


def test_a_manifest_round_trip(bundle: Bundle) -> None:
    manifest = bundle.manifest.with_artifact(entry_of(b"graph"), FileRecord.of(b"golden"))
    text = manifest.to_json().encode()
    assert Manifest.from_json(text, Path("manifest.json")) == manifest


def test_a_copy_has_the_policy_but_not_its_artifacts(bundle: Bundle, tmp_path: Path) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", OUTPUTS)
    copy = copy_bundle(Bundle.load(bundle.path), tmp_path / "copy", "zoo")
    assert copy.manifest.origin == "zoo"
    assert copy.manifest.artifacts == {}
    assert {"int8.tflite", "int8.golden.npz"}.isdisjoint(files(copy.path))
    np.testing.assert_array_equal(copy.calibration(), CALIBRATION)


def test_a_name_finds_the_users_bundle_then_the_zoos(tmp_path: Path) -> None:
    zoo, artifacts = tmp_path / "zoo", tmp_path / "artifacts"
    write_bundle(zoo / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    first = working_bundle("T", artifacts, zoo)
    assert (first.path, first.manifest.origin) == (artifacts / "T", "zoo")
    add_artifact(first, entry_of(b"graph"), b"graph", OUTPUTS)
    assert working_bundle("T", artifacts, zoo).manifest.artifacts, "the working copy is kept"

    newer = {**WEIGHTS, "head/bias": WEIGHTS["head/bias"] + 1}
    write_bundle(zoo / "T", SPEC, newer, CALIBRATION, GOLDEN)
    assert not working_bundle("T", artifacts, zoo).manifest.artifacts, "a copy of an older zoo is made again"

    add_artifact(working_bundle("T", artifacts, zoo), entry_of(b"graph"), b"graph", OUTPUTS)
    write_bundle(zoo / "T", replace(SPEC, normaliser=Normaliser((1.0,) * 3, (1.0,) * 3)), newer, CALIBRATION, GOLDEN)
    renewed = working_bundle("T", artifacts, zoo)
    assert renewed.spec.normaliser.mean == (1.0,) * 3 and not renewed.manifest.artifacts, "also when the weights stay"

    own = {**WEIGHTS, "head/bias": WEIGHTS["head/bias"] - 1}
    write_bundle(artifacts / "T", SPEC, own, CALIBRATION, GOLDEN)
    np.testing.assert_array_equal(working_bundle("T", artifacts, zoo).weights()["head/bias"], own["head/bias"])
    with pytest.raises(BundleError, match=r"no policy 'U'; known are T\..*--output-path artifacts/U"):
        working_bundle("U", artifacts, zoo)


def test_which_bundle_is_meant_is_said_once_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zoo, artifacts = tmp_path / "zoo", tmp_path / "artifacts"
    write_bundle(zoo / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    for _ in range(2):
        working_bundle("T", artifacts, zoo)
    assert capsys.readouterr() == ("", f"Policy {SPEC.name}: artifacts/T, a copy of zoo/T.\n")

    write_bundle(artifacts / "T", SPEC, WEIGHTS, CALIBRATION, GOLDEN)
    os.utime(artifacts / "T" / "weights.safetensors", (1e9, 1e9))  # 2001-09-09 01:46:40 UTC
    working_bundle("T", artifacts, zoo)
    said = capsys.readouterr().err
    assert re.fullmatch(rf"Policy {SPEC.name}: artifacts/T, trained here 2001-09-0[89] \(zoo/T is not used; .*\n", said)

    # As runs that were interrupted were written over their policy once.
    provenance = {"ended": "interrupted", "steps": 512}
    write_bundle(tmp_path / "U", replace(SPEC, provenance=provenance), WEIGHTS, CALIBRATION, GOLDEN)
    working_bundle("./U", artifacts, zoo)
    assert "by a run that was interrupted at step 512" in capsys.readouterr().err
