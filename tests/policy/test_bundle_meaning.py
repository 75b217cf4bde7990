"""A bundle whose files belong to different policies, or whose artifacts bear another's label, is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from policy import bundle_checks
from policy.bundle import CALIBRATION_FILE, DEVICE_FILES, GOLDEN_FILE, SPEC_FILE, WEIGHTS_FILE, Bundle, Expected, Golden
from policy.bundle_writer import add_artifact, npz, write_bundle
from policy.errors import BundleError
from policy.float_errors import float_tolerance
from policy.integer import forward_integer, quantize_network
from policy.manifest import MANIFEST_FILE
from policy.network import forward_float
from policy.quantization import to_fp16
from policy.spec import ContinuousHead, Precision, Squash
from tests.policy.small_bundle import CALIBRATION, EXPECTED, GOLDEN, OUTPUTS, SPEC, WEIGHTS, change, entry_of, sign

OTHER = {name: value[..., ::-1].copy() for name, value in WEIGHTS.items()}


def swap(manifest: dict[str, Any], *fields: str) -> None:
    one, other = manifest["artifacts"]
    for field in fields:
        one[field], other[field] = other[field], one[field]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: swap(m, "precision"), r"calls int\d\.tflite, with int\d\.golden\.npz, the int\d tflite artifact"),
        (lambda m: swap(m, "file", "bytes", "sha256"), r"calls int\d\.tflite"),
        (lambda m: swap(m, "golden_file"), r"its golden_file int\d\.golden\.npz.*make convert BITS=\d"),
        (lambda m: m["artifacts"][0].update(format="onnx"), r"the file of that one is int\d\.onnx"),
        (lambda m: m["artifacts"][0].update(golden_file=GOLDEN_FILE), r"with golden\.npz, the int\d tflite artifact"),
    ],
)
def test_an_artifact_under_another_label_is_refused(
    bundle: Bundle, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    for precision in (Precision.INT8, Precision.INT4):
        data = precision.value.encode()
        add_artifact(bundle, entry_of(data, precision), data, EXPECTED)
    Bundle.load(bundle.path)
    change(bundle.path, MANIFEST_FILE, edit)
    with pytest.raises(BundleError, match=words):
        Bundle.load(bundle.path, DEVICE_FILES)


def moved(golden: Golden, by: float) -> bytes:
    outputs = golden.outputs.copy()
    outputs[0] += np.float32(by)  # of both, so that the action stays
    return npz(observations=golden.observations, outputs=outputs, actions=golden.actions)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (WEIGHTS_FILE, lambda b: save(OTHER)),
        (WEIGHTS_FILE, lambda b: save({**WEIGHTS, "head/bias": WEIGHTS["head/bias"] + np.float32(1e-4)})),
        (WEIGHTS_FILE, lambda b: save({name: value * np.float32(1e38) for name, value in WEIGHTS.items()})),
        (
            SPEC_FILE,
            lambda b: replace(SPEC, normaliser=replace(SPEC.normaliser, scale=(1.0, 1.0, 2.0))).to_json().encode(),
        ),
        (GOLDEN_FILE, lambda b: moved(b.golden(), 1e-4)),
    ],
)
def test_files_of_different_policies_are_refused(bundle: Bundle, name: str, make: Callable[[Bundle], bytes]) -> None:
    """With the manifest's hashes mended: only computing the golden outputs again can tell."""
    sign(bundle.path, name, make(bundle))
    with pytest.raises(BundleError, match=rf"{GOLDEN_FILE}: the golden outputs are not those of these weights"):
        Bundle.load(bundle.path)
    Bundle.load(bundle.path, DEVICE_FILES)  # which has no weights to compute them with


def test_another_order_of_additions_is_no_difference(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden outputs made on another processor differ in their last bits, within what the analysis allows."""
    tolerance = float_tolerance(SPEC, WEIGHTS, GOLDEN).min()
    sign(bundle.path, GOLDEN_FILE, moved(bundle.golden(), tolerance / 2))
    monkeypatch.setattr(bundle_checks, "FEW_ROUNDINGS", 0.0)
    Bundle.load(bundle.path)


def test_the_same_files_are_computed_once_in_a_process(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_checks, "_agreeing", set())
    computed = []
    monkeypatch.setattr(bundle_checks, "forward_float", lambda *a: computed.append(1) or forward_float(*a))
    for _ in range(3):
        Bundle.load(bundle.path)
    assert len(computed) == 1
    sign(bundle.path, WEIGHTS_FILE, save(OTHER))
    with pytest.raises(BundleError, match="not those of these weights"):
        Bundle.load(bundle.path)


def expected(precision: Precision, weights: dict[str, np.ndarray] = WEIGHTS) -> np.ndarray:
    if precision.is_integer:
        return forward_integer(SPEC, quantize_network(SPEC, weights, CALIBRATION, precision.bits), GOLDEN)
    half = {name: to_fp16(value).astype(np.float32) for name, value in weights.items()}
    return forward_float(SPEC, half if precision is Precision.FP16 else weights, GOLDEN)


def allowing(outputs: np.ndarray) -> Expected:
    return Expected(outputs, np.full(outputs.shape, 1e-3))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT2])
def test_expected_outputs_are_those_of_the_weights(bundle: Bundle, precision: Precision) -> None:
    entry = entry_of(b"graph", precision)
    bundle = add_artifact(bundle, entry, b"graph", allowing(expected(precision)))
    bundle.check_expected(entry)
    words = rf"{precision.value}\.golden\.npz: the golden outputs are not those of these weights"
    for wrong in (expected(precision, OTHER), expected(precision) + 1, OUTPUTS):
        bundle = add_artifact(bundle, entry, b"graph", allowing(wrong))
        with pytest.raises(BundleError, match=words):
            bundle.check_expected(entry)


def test_swapped_golden_files_and_another_calibration_are_noticed(bundle: Bundle) -> None:
    """The files themselves change places, and the manifest's hashes with them."""
    for precision, made in ((Precision.INT8, Precision.INT2), (Precision.INT2, Precision.INT8)):
        bundle = add_artifact(bundle, entry_of(b"graph", precision), b"graph", allowing(expected(made)))
    for entry in bundle.manifest.artifacts.values():
        with pytest.raises(BundleError, match="are not those of these weights and this calibration"):
            bundle.check_expected(entry)
    entry = entry_of(b"graph")
    bundle = add_artifact(bundle, entry, b"graph", allowing(expected(Precision.INT8)))
    bundle.check_expected(entry)
    sign(bundle.path, CALIBRATION_FILE, npz(observations=CALIBRATION * np.float32(100)))
    with pytest.raises(BundleError, match="this calibration"):
        Bundle.load(bundle.path).check_expected(entry)
    sign(bundle.path, CALIBRATION_FILE, npz(observations=CALIBRATION[:0]))
    with pytest.raises(BundleError, match=r"int8\.tflite cannot be this policy's: the calibration set is empty"):
        Bundle.load(bundle.path).check_expected(entry)


def test_a_narrow_output_beside_a_wide_one_is_checked_in_its_own_steps(tmp_path: Path) -> None:
    """PWM 1000 … 2000 beside a tilt of ±0.3 rad: a stuck tilt is a tiny part of the other's step."""
    spec = replace(SPEC, head=ContinuousHead((1000.0, -0.3), (2000.0, 0.3), Squash.TANH))
    bundle = write_bundle(tmp_path / "T", spec, WEIGHTS, CALIBRATION, GOLDEN)
    outputs = forward_integer(spec, quantize_network(spec, WEIGHTS, CALIBRATION), GOLDEN)
    entry = entry_of(b"graph")
    bundle = add_artifact(bundle, entry, b"graph", allowing(outputs))
    bundle.check_expected(entry)
    outputs[:, 1] = 0.3
    bundle = add_artifact(bundle, entry, b"graph", allowing(outputs))
    with pytest.raises(BundleError, match=r"output 1 of vector \d is 0\.3, computed again"):
        bundle.check_expected(entry)
