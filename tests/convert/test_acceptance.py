"""What an artifact is worth: wrong artifacts that compute what their integers say, and are refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from quarl.convert import __main__ as cli
from quarl.convert import pipeline
from quarl.convert.acceptance import FLOOR, AcceptanceError, agreement
from quarl.convert.parity import ParityError
from quarl.convert.reference import integer_reference
from quarl.policy.bundle import Bundle, npz, write_bundle
from quarl.policy.golden import find_active_units
from quarl.policy.places import ZOO
from quarl.policy.reading import CALIBRATION_FILE, MANIFEST_FILE, WEIGHTS_FILE, FileRecord
from quarl.policy.reference import IntegerNetwork
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    Precision,
    Squash,
    weight_shapes,
)
from tests.convert.conftest import Capture, Patch, Runtimes, Small, contents, make_spec

TFLITE = ArtifactFormat.TFLITE


def put(bundle: Bundle, name: str, data: bytes) -> Bundle:
    """The bundle with another file in it and a manifest that agrees, which only the numbers can give away."""
    (bundle.path / name).write_bytes(data)
    manifest = replace(bundle.manifest, files={**bundle.manifest.files, name: FileRecord.of(data)})
    (bundle.path / MANIFEST_FILE).write_text(manifest.to_json())
    return Bundle(bundle.path, bundle.spec, manifest)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.INT8])
def test_another_policys_weights_are_refused(bundle: Bundle, runtimes: Runtimes, precision: Precision) -> None:
    random = np.random.default_rng(8)
    others = {
        name: (value + random.normal(0, 0.5, value.shape)).astype(np.float32)
        for name, value in bundle.weights().items()
    }
    swapped = put(bundle, WEIGHTS_FILE, save(others))
    before = contents(bundle.path)
    # fp32 is held to the outputs that training recorded; what is rounded, to acting like them
    with pytest.raises(ParityError if precision is Precision.FP32 else AcceptanceError):
        pipeline.convert(swapped, precision, TFLITE, runtimes)
    assert contents(bundle.path) == before


def test_a_narrow_calibration_is_refused_unless_accepted(bundle: Bundle, capsys: Capture) -> None:
    mean = np.array(bundle.spec.normaliser.mean, np.float32)
    timid = mean + np.float32(0.03) * (bundle.calibration() - mean)
    put(bundle, CALIBRATION_FILE, npz(observations=timid))
    arguments = ["--policy", str(bundle.path), "--bits", "8", "--format", "tflite"]
    before = contents(bundle.path)
    assert cli.main(arguments) == 1
    refused = capsys.readouterr().err
    assert f"below the threshold of {FLOOR:.0%}. It was not written." in refused and "--accept" in refused
    assert "lie outside the calibrated range" in refused
    assert contents(bundle.path) == before

    assert cli.main([*arguments, "--accept", "--json"]) == 0
    (written,) = json.loads(capsys.readouterr().out)
    assert written["fp32_agreement"] < FLOOR
    assert any("lie outside the calibrated range" in warning for warning in written["warnings"])
    entry = Bundle.load(bundle.path).manifest.artifacts["int8.tflite"]
    assert list(entry.warnings) == written["warnings"] and entry.fp32_agreement == written["fp32_agreement"]


LOW, HIGH = (1000.0, -0.3), (2000.0, 0.3)
"""A motor's pulse width in microseconds beside a tilt in radians."""


@pytest.fixture
def tilting(tmp_path: Path) -> Bundle:
    state, normaliser = ObservationField("state", (6,), "1"), Normaliser((0.5,) * 6, (2.0,) * 6, 5.0)
    head = ContinuousHead(LOW, HIGH, Squash.TANH)
    spec = make_spec(observation=(state,), normaliser=normaliser, network=NetworkSpec((32, 16)), head=head)
    random = np.random.default_rng(3)
    weights = {
        name: random.normal(0.0, 1.0 / np.sqrt(shape[0]), shape).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }
    observations = random.normal(0.5, 2.0, (600, 6)).astype(np.float32)
    return write_bundle(tmp_path / "tilting", spec, weights, observations[:500], observations[500:])


def stuck(network: IntegerNetwork) -> IntegerNetwork:
    """The second output always at its upper limit."""
    head = network.layers[-1]
    kernel, bias = head.kernel.copy(), head.bias.copy()
    kernel[:, 1], bias[1] = 0, 2**20
    return replace(network, layers=(*network.layers[:-1], replace(head, kernel=kernel, bias=bias)))


def test_a_tilt_that_is_stuck_beside_a_pulse_width_is_refused(
    tilting: Bundle, runtimes: Runtimes, monkeypatch: Patch
) -> None:
    """One tolerance for both would be that of the pulse width: more than the tilt's whole range."""
    right = pipeline.INTEGERS[TFLITE]
    network = quantize_network(tilting.spec, tilting.weights(), tilting.calibration())
    reference = integer_reference(tilting.spec, network, tilting.golden().observations)
    assert reference.step is not None and reference.step[0] > HIGH[1] - LOW[1]
    assert reference.tolerance[:, 1].max() < 0.05 < reference.tolerance[:, 0].max()
    monkeypatch.setitem(pipeline.INTEGERS, TFLITE, lambda spec, network: right(spec, stuck(network)))
    with pytest.raises(ParityError, match=r"output 1 must be within .* steps"):
        pipeline.convert(tilting, Precision.INT8, TFLITE, runtimes)
    # And where the weights themselves say so, they are not worth the policy.
    golden = tilting.golden().outputs
    assert agreement(tilting.spec, np.where([False, True], np.float32(HIGH[1]), golden), golden) < 0 < FLOOR


def test_where_a_tanh_is_flat_next_to_nothing_is_allowed(tilting: Bundle) -> None:
    network = quantize_network(tilting.spec, tilting.weights(), tilting.calibration())
    reference = integer_reference(tilting.spec, network, tilting.golden().observations)
    half = (np.array(HIGH) - np.array(LOW)) / 2
    squashed = np.abs((reference.outputs - np.array(LOW)) / half - 1)
    assert squashed.max() > 0.9
    # d tanh = 1 − tanh²
    slope = 1 - squashed**2
    steep, flat = slope > 0.9, slope < 0.2
    assert (reference.tolerance / half)[flat].max() < 0.5 * (reference.tolerance / half)[steep].min()


def test_an_error_that_the_relu_cuts_is_not_handed_on(small: Small) -> None:
    """A deep network's tolerance grows with its layers, not with the units that are off."""
    from quarl.policy.golden import float_tolerance

    spec, weights, *_, observations = small
    off = {**weights, "dense_0/bias": weights["dense_0/bias"] - np.float32(1e3)}  # all of the first layer is off
    assert float_tolerance(spec, off, observations).max() < 0.2 * float_tolerance(spec, weights, observations).max()


def test_golden_vectors_excite_every_unit_that_the_calibration_excites(tmp_path: Path) -> None:
    bundle = Bundle.load(ZOO / "I")
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    few = write_bundle(tmp_path / "I", spec, weights, calibration, bundle.golden().observations[:2])
    golden = few.golden().observations
    assert 2 < len(golden) < 40
    np.testing.assert_array_equal(
        find_active_units(spec, weights, golden).any(axis=0), find_active_units(spec, weights, calibration).any(axis=0)
    )
