"""The gate: whatever is wrong with an artifact, it is named, and nothing is written."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from safetensors.numpy import save

from quarl.convert import __main__ as cli
from quarl.convert import executor, pipeline, tflite_graph
from quarl.convert.acceptance import agreement
from quarl.convert.executor import ExecutionError, ExecutionResult, RuntimeProcess
from quarl.convert.parity import NoRuntimeError, ParityError, check
from quarl.convert.reference import float_reference, integer_reference
from quarl.policy.bundle import Bundle, npz, write_bundle
from quarl.policy.golden import UNIT_ROUNDOFF, find_active_units, float_tolerance
from quarl.policy.ladder import FLOOR, AcceptanceError
from quarl.policy.places import ZOO
from quarl.policy.reading import CALIBRATION_FILE, MANIFEST_FILE, WEIGHTS_FILE, FileRecord
from quarl.policy.reference import IntegerNetwork, forward_float
from quarl.policy.simulate import forward_stored, quantize_network
from quarl.policy.spec import (
    Activation,
    ArtifactFormat,
    ContinuousHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
)
from tests.convert.conftest import Capture, Patch, Runtimes, Small, contents, make_bundle, make_spec
from tests.refusals import refused


def wrong_output_scale(network: IntegerNetwork) -> IntegerNetwork:
    head = network.layers[-1]
    wrong = replace(head, output=replace(head.output, scale=head.output.scale * 1.05))
    return replace(network, layers=(*network.layers[:-1], wrong))


def one_scale_for_all_channels(network: IntegerNetwork) -> IntegerNetwork:
    """What a runtime makes of per-channel weights that does not know of them."""
    layers = [replace(la, kernel_scales=np.full_like(la.kernel_scales, la.kernel_scales[0])) for la in network.layers]
    return replace(network, layers=tuple(layers))


def one_weight_off(network: IntegerNetwork) -> IntegerNetwork:
    first = network.layers[0]
    kernel = first.kernel.copy()
    kernel[0, 0] = -kernel[0, 0]
    return replace(network, layers=(replace(first, kernel=kernel), *network.layers[1:]))


@pytest.mark.parametrize("spoil", [wrong_output_scale, one_scale_for_all_channels, one_weight_off])
@pytest.mark.parametrize("name", ["tflite", "onnx", "native"])
def test_an_artifact_with_wrong_numbers_is_refused_and_nothing_is_written(
    bundle: Bundle, monkeypatch: Patch, capsys: Capture, spoil: Callable[[IntegerNetwork], IntegerNetwork], name: str
) -> None:
    artifact_format = ArtifactFormat(name)
    right = pipeline.INTEGERS[artifact_format]
    monkeypatch.setitem(pipeline.INTEGERS, artifact_format, lambda spec, network: right(spec, spoil(network)))
    before = contents(bundle.path)
    assert cli.main(["--policy", str(bundle.path), "--bits", "8", "--format", name]) == 1
    assert contents(bundle.path) == before
    printed = capsys.readouterr().err
    runtime = {"onnx": "onnxruntime 1.", "tflite": "tflite-runtime 2.14", "native": "native 1"}[name]
    for word in (f"small/int8.{name}", runtime, "golden vector", "steps", "within 0.50 steps", "It was not written"):
        assert word in printed


def test_a_half_graph_with_one_wrong_bias_is_refused(bundle: Bundle, monkeypatch: Patch, capsys: Capture) -> None:
    right = tflite_graph.float_graph

    def spoilt(spec: PolicySpec, weights: dict[str, np.ndarray], precision: Precision) -> bytes:
        bias = weights["head/bias"].copy()
        bias[3] += 1e-3
        return right(spec, {**weights, "head/bias": bias}, precision)

    monkeypatch.setitem(pipeline.FLOATS, ArtifactFormat.TFLITE, spoilt)
    before = contents(bundle.path)
    assert cli.main(["--policy", str(bundle.path), "--bits", "16", "--format", "tflite"]) == 1
    assert contents(bundle.path) == before
    assert "fp16.tflite" in capsys.readouterr().err


def test_unit_roundoff_is_that_of_float32() -> None:
    assert np.float32(1.0) + np.float32(UNIT_ROUNDOFF) == np.float32(1.0)
    assert np.float32(1.0) + np.float32(2.1 * UNIT_ROUNDOFF) > np.float32(1.0)


def test_an_artifact_that_takes_the_smallest_logit_is_refused(bundle: Bundle, runtimes: Runtimes) -> None:
    candidate = pipeline.build(bundle, Precision.FP32, ArtifactFormat.TFLITE)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(candidate.data))
    for code in model.operatorCodes:
        if code.builtinCode == schema.BuiltinOperator.ARG_MAX:
            code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.ARG_MIN
    last = model.subgraphs[0].operators[-1]
    last.builtinOptions = schema.ArgMinOptionsT(outputType=schema.TensorType.INT32)
    last.builtinOptionsType = schema.BuiltinOptions.ArgMinOptions
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    spoilt = replace(candidate, data=bytes(builder.Output()))
    with refused(ParityError, "parity", shows=["2.14"]):
        pipeline.check_parities(bundle, spoilt, runtimes)


@pytest.mark.parametrize("runtime", list(RuntimeName))
def test_a_runtime_that_refuses_the_file_is_named(bundle: Bundle, runtimes: Runtimes, runtime: RuntimeName) -> None:
    candidate = pipeline.build(bundle, Precision.INT8, runtime.artifact_format)
    spoilt = replace(candidate, data=candidate.data[:200])
    with pytest.raises(ParityError, match=runtime.value):
        pipeline.check_parities(bundle, spoilt, {runtime: runtimes[runtime]})
    # and it goes on working
    assert pipeline.check_parities(bundle, candidate, {runtime: runtimes[runtime]})


def test_a_crashed_runtime_is_named_with_its_signal_and_restarted(small: Small) -> None:
    spec, weights, _, observations = small
    data = tflite_graph.float_graph(spec, weights)
    with RuntimeProcess(RuntimeName.LITERT) as process:
        process._process.kill()
        with refused(ExecutionError, "runtime_crashed"):
            process.execute(spec, data, observations)
        assert len(process.execute(spec, data, observations).outputs) == len(observations)


def stop(process: subprocess.Popen[str]) -> None:
    """Let it hang; it goes on after 20 s, so that a test that waits for it fails and does not hang too."""
    process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(20.0, process.send_signal, [signal.SIGCONT])
    timer.daemon = True
    timer.start()


def test_a_runtime_that_hangs_is_named_killed_and_started_again(
    bundle: Bundle, small: Small, monkeypatch: Patch
) -> None:
    spec, weights, _, observations = small
    with RuntimeProcess(RuntimeName.LITERT) as process:
        hung = process._process
        stop(hung)
        candidate = pipeline.build(bundle, Precision.FP32, ArtifactFormat.TFLITE)
        with monkeypatch.context() as patch:
            patch.setattr(executor, "TIMEOUT_S", 0.2)
            with refused(ParityError, "parity", shows=["0.2"]):
                pipeline.check_parities(bundle, candidate, {RuntimeName.LITERT: process})
        assert hung.returncode == -signal.SIGKILL
        data = tflite_graph.float_graph(spec, weights)
        assert len(process.execute(spec, data, observations).outputs) == len(observations)


def test_a_runtime_that_does_not_end_is_killed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(executor, "END_TIMEOUT_S", 0.2)
    with RuntimeProcess(RuntimeName.LITERT) as process:
        stop(process._process)
    assert process._process.returncode == -signal.SIGKILL


def execution_of(spec: PolicySpec, outputs: np.ndarray) -> ExecutionResult:
    return ExecutionResult("1.0", outputs, outputs.argmax(axis=1) if spec.is_discrete else outputs)


def test_nan_is_refused_before_anything_else(small: Small) -> None:
    spec, weights, _, observations = small
    reference = float_reference(spec, weights, observations)
    outputs = reference.outputs.copy()
    outputs[17, 2] = np.nan
    with pytest.raises(ParityError, match="golden vector 17 gives NaN"):
        check(RuntimeName.LITERT, "small/fp32.tflite", spec, execution_of(spec, outputs), reference)


@pytest.mark.parametrize("outputs", [np.zeros((99, 6), np.float32), np.zeros((100, 6)), np.zeros((100, 7), np.float32)])
def test_another_shape_or_type_is_refused(small: Small, outputs: np.ndarray) -> None:
    spec, weights, _, observations = small
    reference = float_reference(spec, weights, observations)
    with refused(ParityError, "parity", shows=["100"]):
        check(RuntimeName.LITERT, "small/fp32.tflite", spec, execution_of(spec, outputs), reference)


def test_levels_of_each_decision_are_not_replaced_by_floats(small: Small) -> None:
    spec, weights, _, observations = small
    spec = replace(spec, network=replace(spec.network, activation=Activation.TANH))
    reference = float_reference(spec, weights, observations, precision=Precision.DYNAMIC)
    check(RuntimeName.NATIVE, "small/dynamic.native", spec, execution_of(spec, reference.outputs), reference)
    floats = forward_stored(spec, weights, Precision.W8, exact=True)(observations)
    between = (0.7 * reference.outputs + 0.3 * floats).astype(np.float32)  # nearer than another level takes it
    with refused(ParityError, "golden_mismatch", shows=["small/dynamic.native", "90%"]):
        check(RuntimeName.NATIVE, "small/dynamic.native", spec, execution_of(spec, between), reference)


@pytest.mark.parametrize("own", [0, 1])
def test_integer_artifacts_use_one_of_two_roundings(small: Small, own: int) -> None:
    spec, weights, calibration, observations = small
    reference = integer_reference(spec, quantize_network(spec, weights, calibration), observations)
    assert reference.step is not None
    step = float(reference.step[1])
    apart = float(np.abs(reference.own[own] - reference.outputs).max()) / step
    outputs = reference.own[own] + np.float32(0.01 * step)  # what float rounding may do, and far more
    found = check(RuntimeName.LITERT, "small/int8.tflite", spec, execution_of(spec, outputs), reference)
    assert found.max_error_steps == pytest.approx(apart, abs=0.02)
    outputs = reference.own[own].copy()
    outputs[5, 1] += np.float32(step)
    with refused(ParityError, "golden_mismatch", shows=["1.00", "0.50"]):
        check(RuntimeName.LITERT, "small/int8.tflite", spec, execution_of(spec, outputs), reference)


def test_the_device_tolerance_covers_other_roundings_only(small: Small) -> None:
    spec, weights, calibration, observations = small
    reference = integer_reference(spec, quantize_network(spec, weights, calibration), observations)
    assert reference.step is not None
    spread = [np.abs(reference.own[0] - other) for other in reference.own[1:]]
    apart = np.max(spread, axis=(0, 1)) / reference.step
    beyond = reference.tolerance.max(axis=0) / reference.step - apart
    assert beyond.min() >= 1.0 and beyond.max() <= 1.01
    assert reference.tolerance.max() < 0.03 * np.ptp(reference.outputs), (
        "a tolerance of 3 % of the range checks nothing"
    )


def test_the_float_tolerance_is_a_few_units_in_the_last_place(small: Small) -> None:
    spec, weights, _, observations = small
    tolerance = float_tolerance(spec, weights, observations)
    exact = forward_float(spec, weights, observations)
    scale = float(np.abs(exact).max())
    assert tolerance.shape == (spec.output_size,)
    assert 1e-7 * scale < tolerance.min() and tolerance.max() < 2e-5 * scale


def test_a_missing_runtime_is_named_and_earlier_results_hold(
    bundle: Bundle, monkeypatch: Patch, capsys: Capture
) -> None:
    job = (bundle, Precision.INT8, ArtifactFormat.TFLITE)
    monkeypatch.setattr(pipeline, "available", lambda: (RuntimeName.LITERT,))
    assert cli.main(["--policy", str(bundle.path), "--format", "tflite"]) == 0
    assert "not tried: tflite-runtime" in capsys.readouterr().out
    entry = Bundle.load(bundle.path).manifest.artifacts["int8.tflite"]
    assert (set(entry.runtimes), entry.not_tried) == ({RuntimeName.LITERT}, (RuntimeName.TFLITE_RUNTIME,))
    assert pipeline.missing([(Bundle.load(bundle.path), *job[1:])]) == []
    monkeypatch.undo()
    assert len(pipeline.missing([(Bundle.load(bundle.path), *job[1:])])) == 1, "it can be tried now"
    (whole,) = pipeline.convert_each([(Bundle.load(bundle.path), *job[1:])])
    assert not whole.entry.not_tried and b"not_tried" not in (bundle.path / "manifest.json").read_bytes()
    manifest = (bundle.path / "manifest.json").read_bytes()
    monkeypatch.setattr(pipeline, "available", lambda: (RuntimeName.LITERT,))
    (again,) = pipeline.convert_each([(Bundle.load(bundle.path), *job[1:])])
    assert again.entry == whole.entry and (bundle.path / "manifest.json").read_bytes() == manifest
    monkeypatch.setattr(pipeline, "available", lambda: (RuntimeName.ONNXRUNTIME,))
    other = write_bundle(bundle.path.parent / "other", bundle.spec, bundle.weights(), *(bundle.calibration(),) * 2)
    with pytest.raises(NoRuntimeError) as caught:
        pipeline.convert_each([(other, *job[1:])])
    assert (caught.value.code, caught.value.values) == ("no_runtime", {"format": "tflite"})
    assert not other.manifest.artifacts


def test_the_python_of_another_environment_executes_tflite_runtime(monkeypatch: Patch) -> None:
    monkeypatch.delenv(executor.TFLITE_PYTHON, raising=False)
    monkeypatch.setattr(executor, "find_installed_runtimes", lambda: {RuntimeName.LITERT: "2"})
    assert executor.available() == (RuntimeName.LITERT,)
    monkeypatch.setenv(executor.TFLITE_PYTHON, "/elsewhere/python")
    assert executor.available() == (RuntimeName.TFLITE_RUNTIME, RuntimeName.LITERT)


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
    assert "lie outside the calibrated range" in refused and contents(bundle.path) == before

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
    return make_bundle(tmp_path / "tilting", spec)


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
