"""A bundle is either whole or refused by the name of what is wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from quarl.policy.bundle import Bundle, Contents, Expected, add_artifact, npz, write_bundle
from quarl.policy.errors import BundleError
from quarl.policy.reading import (
    CALIBRATION_FILE,
    DEVICE_FILES,
    GOLDEN_FILE,
    MANIFEST_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    FileRecord,
    map_verified,
    read_verified,
    verify,
)
from quarl.policy.reference import forward_float
from tests.policy.small_bundle import CALIBRATION, EXPECTED, GOLDEN, OUTPUTS, SPEC, WEIGHTS, entry_of, files
from tests.refusals import refused


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
    np.testing.assert_array_equal(golden.outputs, forward_float(SPEC, WEIGHTS, GOLDEN, exact=True))
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
    with refused(BundleError, "wrong_size"):
        Bundle.load(bundle.path)
    path.write_bytes(data + b"\n")
    with refused(BundleError, "wrong_size"):
        Bundle.load(bundle.path)
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with refused(BundleError, "wrong_sha256"):
        Bundle.load(bundle.path)
    path.unlink()
    if name == "learning_curve.csv":
        Bundle.load(bundle.path)  # nobody needs it
    else:
        with pytest.raises(BundleError, match=f"{name} is missing"):
            Bundle.load(bundle.path)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_is_mapped_has_been_verified(in_place: bool, tmp_path: Path) -> None:
    path, data = tmp_path / "int8.native", bytes(range(256)) * 40
    for content in (data, b""):
        path.write_bytes(content)
        mapped = map_verified(path, FileRecord.of(content), 10**6, in_place=in_place)
        assert mapped[: len(content)] == content
    for content, wrong in (
        (data[:-1], "is truncated"),
        (data + b"0", "is too long"),
        (data[::-1], "was tampered with"),
    ):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=wrong):
            map_verified(path, FileRecord.of(data), 10**6, in_place=in_place)


def test_each_file_is_read_once_and_its_arrays_are_read_only(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def opened(path: Path, record: FileRecord, largest: int) -> bytes:
        read.append(path.name)
        return read_verified(path, record, largest)

    def checked(path: Path, record: FileRecord, largest: int) -> None:
        read.append(path.name)
        verify(path, record, largest)

    monkeypatch.setattr("quarl.policy.reading.read_verified", opened)
    monkeypatch.setattr("quarl.policy.reading.verify", checked)
    loaded = Bundle.load(bundle.path)
    for _ in range(2):
        contents = Contents.of(loaded)
        assert contents.weights is not loaded.weights()  # whoever adds a name to his own adds it to nobody else's
        golden = contents.golden
        arrays = golden.observations, golden.outputs, golden.actions, contents.calibration, *contents.weights.values()
        assert not any(array.flags.writeable for array in arrays)
    assert sorted(read) == sorted(loaded.manifest.files)
    loaded.forget()
    loaded.golden()
    assert read[-1] == GOLDEN_FILE and len(read) == len(loaded.manifest.files) + 1


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CALIBRATION_FILE, GOLDEN_FILE])
def test_a_file_that_is_written_after_it_was_read_is_verified_again(bundle: Bundle, name: str) -> None:
    loaded, path = Bundle.load(bundle.path), bundle.path / name
    data = path.read_bytes()
    Contents.of(loaded)
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    for _ in range(2):
        with refused(BundleError, "wrong_sha256"):
            Contents.of(loaded)
    path.unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        Contents.of(loaded)
    path.write_bytes(data)
    np.testing.assert_array_equal(Contents.of(loaded).golden.outputs, bundle.golden().outputs)


def test_a_device_needs_neither_weights_nor_calibration(bundle: Bundle) -> None:
    (bundle.path / WEIGHTS_FILE).unlink()
    (bundle.path / CALIBRATION_FILE).unlink()
    device = Bundle.load(bundle.path, DEVICE_FILES)
    assert len(device.golden().actions) == 5
    with pytest.raises(BundleError, match=f"{WEIGHTS_FILE} is missing"):
        device.weights()


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json is missing.*quarl train"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(format_version=3), "format_version"),
        (lambda m: m.pop("format_version"), "format_version"),
        (lambda m: m.update(format_version=True), "format_version"),
        (lambda m: m.update(format_version=2.0), "format_version"),
        (lambda m: m.pop("origin"), "lacks the field 'origin'"),
        (lambda m: m["files"].pop(WEIGHTS_FILE), f"does not list {WEIGHTS_FILE}"),
        (lambda m: m["files"][WEIGHTS_FILE].pop("sha256"), "lacks the field 'sha256'"),
        (lambda m: m["files"][WEIGHTS_FILE].update(bytes="many"), "cannot be read"),
        (lambda m: m.update(policy="U"), "must name the"),
        (lambda m: m.update(files=[]), "cannot be read"),
        (lambda m: m["files"][WEIGHTS_FILE].update(bytes=float("inf")), "be an integer"),
        (lambda m: m["files"][WEIGHTS_FILE].update(bytes=-1), "hexadecimal digits"),
        (lambda m: m["files"][WEIGHTS_FILE].update(sha256="abc"), "sha256"),
        (lambda m: m["files"].update({MANIFEST_FILE: m["files"][SPEC_FILE]}), "the manifest must"),
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
        (lambda a: a.update(output_step=[1, float("inf")]), "must be finite"),
        (lambda a: a.update(output_step=[0, -1]), "not be negative"),
        (lambda a: a.update(output_step="wide"), "output_step"),
        (lambda a: a.update(output_step=[]), "output_step"),
        (lambda a: a.update(runtimes={"litert": 1}), "be an object"),
        (lambda a: a.update(file=SPEC_FILE), f"lists {SPEC_FILE} twice"),
    ],
)
def test_an_artifact_entry_that_is_none_is_refused(
    bundle: Bundle, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    path = bundle.path / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    change(manifest["artifacts"][0])
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=words):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("tolerance", "words"),
    [
        # No error is greater than NaN: such a tolerance would let an artifact compute anything.
        (np.full((5, 2), np.nan), "'tolerance' holds NaN or infinity"),
        (np.full((5, 2), 1e30), "tolerance of output"),
        (np.full((5, 2), -0.1), r"0 to 0\.25"),
        (np.full((4, 2), 0.1), "arrays must have"),
        (np.full((5, 1), 0.1), r"float32\[5, 1\]"),
    ],
)
def test_a_tolerance_that_would_let_all_pass_is_refused(bundle: Bundle, tolerance: np.ndarray, words: str) -> None:
    made = add_artifact(bundle, entry_of(b"graph"), b"graph", Expected(OUTPUTS, tolerance))
    with pytest.raises(BundleError, match=words):
        made.read_expected(entry_of(b"graph"))


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
    add_artifact(bundle, entry_of(b"graph"), b"graph", EXPECTED)
    path = bundle.path / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    if place == "files":
        manifest["files"][name] = manifest["files"][SPEC_FILE]
    else:
        manifest["artifacts"][0]["file" if place == "artifact" else "golden_file"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"the manifest must|printable"):
        Bundle.load(bundle.path)


def test_a_spec_of_the_future_is_named_with_its_file(bundle: Bundle) -> None:
    spec = json.loads(SPEC.to_json())
    spec["format_version"] = 9
    rewrite(bundle, SPEC_FILE, json.dumps(spec).encode())
    with refused(BundleError, "bundle", shows=["format_version"]):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head/bias": np.zeros(3, np.float32)}, ["'head/bias'", "[3]"]),
        ({"head/bias": np.array([np.nan, 0.0], np.float32)}, ["'head/bias'", "NaN"]),
        ({"dense_0/kernel": WEIGHTS["dense_0/kernel"].astype(np.float64)}, ["float64"]),
        ({"extra": np.zeros(1, np.float32)}, ["unexpected"]),
    ],
)
def test_weights_that_do_not_fit_the_spec_are_refused(
    bundle: Bundle, change: dict[str, np.ndarray], words: list[str]
) -> None:
    rewrite(bundle, WEIGHTS_FILE, save({**WEIGHTS, **change}))
    with refused(BundleError, "bundle", shows=[WEIGHTS_FILE, *words]):
        Bundle.load(bundle.path)


def test_calibration_of_another_observation_is_refused(bundle: Bundle) -> None:
    rewrite(bundle, CALIBRATION_FILE, npz(observations=CALIBRATION[:, :2]))
    with refused(BundleError, "bundle", shows=["'observations'", "20"]):
        Bundle.load(bundle.path)
    Bundle.load(bundle.path, DEVICE_FILES)  # a device never looks at it


def test_weights_that_are_no_safetensors_are_refused(bundle: Bundle) -> None:
    rewrite(bundle, WEIGHTS_FILE, b"\x80\x04\x95 a pickle, for example")
    with pytest.raises(BundleError, match=WEIGHTS_FILE):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"observations": GOLDEN[:, :2]}, "'observations'"),
        ({"observations": GOLDEN.astype(np.float64)}, "'observations'"),
        ({"outputs": None}, "'outputs' is"),
        ({"outputs": np.full((5, 2), np.inf, np.float32)}, "'outputs' holds NaN or infinity"),
        ({"actions": np.zeros(4, np.int64)}, "arrays must have"),
        ({"actions": None}, "'actions' is"),
        ({"actions": np.array(3)}, "of observations, 5"),
        ({"actions": np.zeros(5, np.float32)}, r"float32\[5\]"),
        ({"actions": np.array([0, 0, 1, 0, 0])}, "its outputs choose"),
        (
            {"observations": GOLDEN[:0], "outputs": OUTPUTS[:0], "actions": np.zeros(0, np.int64)},
            "holds no golden vectors",
        ),
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
    with refused(BundleError, "bundle", shows=["'observations'"]):
        Bundle.load(bundle.path).calibration()
