"""A bundle whose files belong to different policies, or whose artifacts bear another's label, is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save

from quarl.policy import golden
from quarl.policy.bundle import Bundle, Golden, add_artifact, npz
from quarl.policy.errors import BundleError
from quarl.policy.golden import float_tolerance
from quarl.policy.reading import DEVICE_FILES, GOLDEN_FILE, MANIFEST_FILE, SPEC_FILE, WEIGHTS_FILE
from quarl.policy.reference import forward_float
from quarl.policy.spec import Precision
from tests.policy.small_bundle import EXPECTED, GOLDEN, SPEC, WEIGHTS, change, entry_of, sign
from tests.refusals import refused

OTHER = {name: value[..., ::-1].copy() for name, value in WEIGHTS.items()}


def swap(manifest: dict[str, Any], *fields: str) -> None:
    one, other = manifest["artifacts"]
    for field in fields:
        one[field], other[field] = other[field], one[field]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: swap(m, "precision"), "tflite artifact"),
        (lambda m: swap(m, "file", "bytes", "sha256"), "artifact must be"),
        (lambda m: swap(m, "golden_file"), "quarl convert --bits"),
        (lambda m: m["artifacts"][0].update(format="onnx"), "artifact must be"),
        (lambda m: m["artifacts"][0].update(golden_file=GOLDEN_FILE), r"with golden\.npz"),
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
    with refused(BundleError, "golden_mismatch"):
        Bundle.load(bundle.path)
    Bundle.load(bundle.path, DEVICE_FILES)  # which has no weights to compute them with


def test_another_order_of_additions_is_no_difference(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden outputs made on another processor differ in their last bits, within what the analysis allows."""
    tolerance = float_tolerance(SPEC, WEIGHTS, GOLDEN).min()
    sign(bundle.path, GOLDEN_FILE, moved(bundle.golden(), tolerance / 2))
    monkeypatch.setattr(golden, "FEW_ROUNDINGS", 0.0)
    Bundle.load(bundle.path)


def test_the_same_files_are_computed_once_in_a_process(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "_agreeing", set())
    computed = Mock(side_effect=forward_float)
    monkeypatch.setattr(golden, "forward_float", computed)
    for _ in range(3):
        Bundle.load(bundle.path)
    assert computed.call_count == 1
    sign(bundle.path, WEIGHTS_FILE, save(OTHER))
    with refused(BundleError, "golden_mismatch"):
        Bundle.load(bundle.path)
