"""An image with vector fields behind it in the three runtimes: value by value what the numpy references compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from quarl.convert import onnx_graph, tflite_graph
from quarl.convert.calibration import inspect
from quarl.convert.executor import RuntimeProcess
from quarl.convert.parity import ParityError
from quarl.convert.pipeline import FLOATS, INTEGERS, build, check_parities, convert, half_weights
from quarl.convert.reference import NORM_STEPS, STEP_SLACK
from quarl.convert.rounding import forward_fixed_point
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.golden import float_tolerance
from quarl.policy.reference import Weights, forward_float, forward_integer, normalise
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
)
from tests.convert.test_images import THREE, TWO, image_spec, random_weights
from tests.refusals import refused

Runtimes = dict[RuntimeName, RuntimeProcess]
SHAPE = (12, 11, 1)
SMALL = NetworkSpec((24,), convolutions=(Convolution(6, 4, 2), Convolution(8, 3, 1)))
DEEPEST = 20.0  # m


def depth_spec(network: NetworkSpec = SMALL, head: DiscreteHead | ContinuousHead = THREE) -> PolicySpec:
    """A depth picture in metres, then two vector fields, which are normalised element by element."""
    depth = ObservationField("depth", SHAPE, "m")
    fields = (depth, ObservationField("velocity", (3,), "m/s"), ObservationField("goal_distance", (), "m"))
    normaliser = Normaliser((5.0,) * depth.size + (0.5, 0.0, -0.5, 15.0), (6.0,) * depth.size + (1.5, 1, 2, 8.0), 3.0)
    return replace(image_spec(network, SHAPE, head), name="depth", observation=fields, normaliser=normaliser)


def observations_of(spec: PolicySpec, count: int, seed: int) -> np.ndarray:
    """A floor and a wall at some distance in each picture, and normal vectors. (count, observation_size)"""
    random = np.random.default_rng(seed)
    pictures = np.full((count, *SHAPE), DEEPEST)
    pictures[:, 8:] = np.linspace(6.1, 1.03, 4)[:, None, None]  # none half-way between two levels
    for picture in pictures:
        left, top = random.integers(0, 7), random.integers(0, 5)
        picture[top : top + 6, left : left + 4] = random.uniform(1.0, 15.0)
    z = random.normal(0.0, 1.0, (count, spec.vector_size))
    vectors = z * spec.normaliser.scale[-spec.vector_size :] + spec.normaliser.mean[-spec.vector_size :]
    return np.concatenate([pictures.reshape(count, -1), vectors], axis=1).astype(np.float32)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("network", [replace(SMALL, layer_norm=True), replace(SMALL, hidden=())], ids=["norm", "none"])
def test_the_float_graphs(runtimes: Runtimes, network: NetworkSpec, half: bool) -> None:
    spec = depth_spec(network, TWO)
    weights, observations = random_weights(spec), observations_of(spec, 40, 2)
    stored: Weights = half_weights(weights) if half else weights
    expected, tolerance = forward_float(spec, stored, observations), float_tolerance(spec, stored, observations)
    assert tolerance.min() > 1e-7 and tolerance.max() < 2e-3 * np.abs(expected).max()
    other = observations.copy()
    other[:, -spec.vector_size :] = 0.0
    moved = np.abs(forward_float(spec, stored, other) - expected).max()
    assert moved > 100 * tolerance.max(), "the vector changes nothing: nothing was compared"
    for runtime, process in ((name, runtimes[name]) for name in Precision.FP32.runtimes):
        data = FLOATS[runtime.artifact_format](spec, weights, half)
        outputs = process.execute(spec, data, observations).outputs
        assert (np.abs(outputs - expected) <= tolerance).all(), runtime.value


@pytest.mark.parametrize("head", [THREE, TWO], ids=["discrete", "continuous"])
@pytest.mark.parametrize("network", [SMALL, replace(SMALL, hidden=())], ids=["hidden", "no hidden layer"])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_integer_graphs_are_the_references_to_the_level(
    runtimes: Runtimes, network: NetworkSpec, head: DiscreteHead | ContinuousHead, bits: int
) -> None:
    spec = depth_spec(network, head)
    weights, observations = random_weights(spec), observations_of(spec, 60, 2)
    integers = quantize_network(spec, weights, observations_of(spec, 100, 1), bits)
    once, twice = forward_integer(spec, integers, observations), forward_fixed_point(spec, integers, observations)
    assert len(np.unique(once, axis=0)) > 10, "the observations give the same outputs: nothing was compared"
    # A continuous head's tanh differs by a few units in the last place; onnxruntime may dequantize as q · s − z · s.
    largest = 1e-5 if isinstance(head, ContinuousHead) else STEP_SLACK * integers.output_step
    for runtime, process in runtimes.items():
        data = INTEGERS[runtime.artifact_format](spec, integers)
        outputs = process.execute(spec, data, observations).outputs
        expected = twice if runtime is RuntimeName.TFLITE_RUNTIME else once
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=largest, err_msg=runtime.value)


def test_layer_normalisation_behind_the_vector_is_within_a_step(runtimes: Runtimes) -> None:
    spec = depth_spec(replace(SMALL, layer_norm=True))
    weights, observations = random_weights(spec), observations_of(spec, 60, 2)
    integers = quantize_network(spec, weights, observations_of(spec, 100, 1))
    once, twice = forward_integer(spec, integers, observations), forward_fixed_point(spec, integers, observations)
    assert np.ptp(once[:, 0]) > 10 * integers.output_step
    for runtime, process in runtimes.items():
        data = INTEGERS[runtime.artifact_format](spec, integers)
        outputs = process.execute(spec, data, observations).outputs
        expected = twice if runtime is RuntimeName.TFLITE_RUNTIME else once
        assert np.abs(outputs - expected).max() <= (NORM_STEPS + 0.01) * integers.output_step, runtime.value


def test_image_and_vector_share_the_map_of_the_last_convolution() -> None:
    spec = depth_spec()
    weights, calibration = random_weights(spec), observations_of(spec, 100, 1)
    network = quantize_network(spec, weights, calibration)
    vector = normalise(spec.normaliser, calibration)[:, -spec.vector_size :]
    shared = network.layers[1].output
    assert shared.zero_point > shared.low and network.layers[0].output.zero_point == shared.low
    assert shared.scale * (shared.low - shared.zero_point) <= vector.min() + 1e-5 < 0.0
    report = inspect(spec, weights, network, calibration, observations_of(spec, 40, 2))
    assert [item.name for item in report.ranges] == ["input", "conv_0", "conv_1", "dense_0", "head"]
    assert report.ranges[0].high == pytest.approx(2.5), "(20 − 5) / 6: of the picture only"
    assert report.ranges[2].low == vector.min()


def test_onnxruntime_executes_all_of_it_in_integers() -> None:
    spec = depth_spec()
    integers = quantize_network(spec, random_weights(spec), observations_of(spec, 100, 1))
    executed = onnx_graph.list_executed_operators(onnx_graph.integer_graph(spec, integers))
    assert (executed.count("QLinearConv"), executed.count("QGemm")) == (2, 2), executed
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul"} & set(executed), f"left in float: {executed}"


def test_tflite_operators_are_of_versions_that_tflite_runtime_2_14_knows() -> None:
    spec = depth_spec()
    integers = quantize_network(spec, random_weights(spec), observations_of(spec, 100, 1))
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite_graph.integer_graph(spec, integers)))
    kinds = schema.BuiltinOperator
    assert [(code.builtinCode, code.version) for code in model.operatorCodes] == [
        (kinds.SUB, 1),
        (kinds.MUL, 1),
        (kinds.MINIMUM, 1),
        (kinds.MAXIMUM, 1),
        (kinds.SLICE, 1),
        (kinds.RESHAPE, 1),
        (kinds.QUANTIZE, 1),
        (kinds.CONV_2D, 3),
        (kinds.CONCATENATION, 2),
        (kinds.FULLY_CONNECTED, 4),
        (kinds.DEQUANTIZE, 2),
        (kinds.ARG_MAX, 1),
    ]


def test_a_bundle_converts_in_every_precision(tmp_path: Path, runtimes: Runtimes) -> None:
    spec = depth_spec()
    observed = observations_of(spec, 100, 1), observations_of(spec, 40, 2)
    bundle = write_bundle(tmp_path / "depth", spec, random_weights(spec), *observed)
    precisions = (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4)
    for precision, artifact_format in [(p, each) for p in precisions for each in p.formats]:
        done = convert(bundle, precision, artifact_format, runtimes)
        if precision is Precision.INT8:
            assert done.entry.fp32_agreement >= 0.9
    assert len(Bundle.load(bundle.path).manifest.artifacts) == 10
    # Two elements of the vector exchanged: everything loads and runs, and the numbers are others.
    kernel = bundle.weights()["dense_0/kernel"].copy()
    kernel[[-1, -2]] = kernel[[-2, -1]]
    candidate = build(bundle, Precision.FP32, ArtifactFormat.TFLITE)
    swapped = tflite_graph.float_graph(spec, {**bundle.weights(), "dense_0/kernel": kernel})
    with refused(ParityError, "golden_mismatch"):
        check_parities(bundle, replace(candidate, data=swapped), runtimes)


def test_a_vector_without_negative_values(runtimes: Runtimes) -> None:
    spec = replace(depth_spec(), normaliser=Normaliser((0.0,), (10.0,), float("inf")))
    weights, calibration = random_weights(spec), np.abs(observations_of(spec, 100, 1))
    integers = quantize_network(spec, weights, calibration)
    assert integers.layers[1].output.zero_point == integers.layers[1].output.low
    fed = np.abs(observations_of(spec, 40, 2))
    once, twice = forward_integer(spec, integers, fed), forward_fixed_point(spec, integers, fed)
    for runtime, process in runtimes.items():
        data = INTEGERS[runtime.artifact_format](spec, integers)
        expected = twice if runtime is RuntimeName.TFLITE_RUNTIME else once
        np.testing.assert_array_equal(process.execute(spec, data, fed).outputs, expected, err_msg=runtime.value)
