"""Convolutions and layer normalisation in the three runtimes: value by value what the numpy references compute."""

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
from quarl.convert.reference import NORM_STEPS
from quarl.convert.rounding import forward_fixed_point
from quarl.policy.bundle import write_bundle
from quarl.policy.golden import float_tolerance
from quarl.policy.reference import Weights, forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    NATURE_CONVOLUTIONS,
    ArtifactFormat,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    Squash,
    weight_shapes,
)
from tests.refusals import refused

Runtimes = dict[RuntimeName, RuntimeProcess]
SMALL = NetworkSpec((24,), convolutions=(Convolution(6, 4, 2), Convolution(8, 3, 1)))
NATURE = NetworkSpec((512,), convolutions=NATURE_CONVOLUTIONS)
THREE = DiscreteHead(("stay", "up", "down"))
TWO = ContinuousHead((-1.0, 0.0), (1.0, 30.0), Squash.TANH)


def image_spec(network: NetworkSpec, shape: tuple[int, int, int], head: DiscreteHead | ContinuousHead) -> PolicySpec:
    return PolicySpec(
        name="image",
        observation=(ObservationField("screen", shape, "grey level"),),
        normaliser=Normaliser((0.0,), (255.0,), float("inf")),
        network=network,
        head=head,
        control_period_s=1 / 15,
        environment=EnvironmentSpec("ALE/Pong-v5"),
    )


def vector_spec(network: NetworkSpec, head: DiscreteHead | ContinuousHead) -> PolicySpec:
    fields = (ObservationField("state", (8,), "1"),)
    return replace(image_spec(NetworkSpec(()), (2, 2, 2), head), observation=fields, network=network)


def random_weights(spec: PolicySpec, seed: int = 1) -> dict[str, np.ndarray]:
    """Layers that keep the size of what passes through them; channels differ in size, as trained ones do."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        part = name.split("/")[1]
        spread = np.exp(random.normal(0.0, 0.4, shape[-1]))
        if part == "kernel":
            spread = spread * np.sqrt(2.0 / np.prod(shape[:-1]))
        size = {"bias": 0.05, "beta": 0.3}.get(part, 1.0) * spread
        weights[name] = (spread if part == "gamma" else random.normal(0.0, 1.0, shape) * size).astype(np.float32)
    return weights


def frames(shape: tuple[int, int, int], count: int, seed: int) -> np.ndarray:
    """Stacked pictures of a court with two bats and a moving ball: mostly flat, as a game's are. (count, size)"""
    random = np.random.default_rng(seed)
    height, width, stack = shape
    made = np.full((count, *shape), 87, np.uint8)
    made[:, : height // 6] = 52
    made[:, height - height // 12 :] = 236
    for image in made:
        bats, ball, speed = (
            random.integers(0, height - 3, 2),
            random.integers(3, width - 3, 2),
            random.integers(-2, 3, 2),
        )
        image[bats[0] : bats[0] + 3, 0], image[bats[1] : bats[1] + 3, -1] = 130, 147
        for age in range(stack):
            row, column = (ball + age * speed) % (height, width)
            image[row, column, age] = 236
    return made.reshape(count, -1).astype(np.float32)


def states(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(60.0, 90.0, (count, 8)).astype(np.float32)


@pytest.mark.parametrize("head", [THREE, TWO], ids=["discrete", "continuous"])
@pytest.mark.parametrize("network", [SMALL, replace(SMALL, hidden=())], ids=["hidden", "no hidden layer"])
@pytest.mark.parametrize("bits", [8, 4])
def test_integer_convolutions_are_the_references_to_the_level(
    runtimes: Runtimes, network: NetworkSpec, head: DiscreteHead | ContinuousHead, bits: int
) -> None:
    spec = image_spec(network, (13, 14, 2), head)
    weights, observations = random_weights(spec), frames((13, 14, 2), 40, 2)
    integers = quantize_network(spec, weights, frames((13, 14, 2), 100, 1), bits)
    once, twice = forward_integer(spec, integers, observations), forward_fixed_point(spec, integers, observations)
    assert len(np.unique(once, axis=0)) > 10, "the images give the same outputs: nothing was compared"
    # A continuous head's tanh differs by a few units in the last place.
    largest = 1e-5 if isinstance(head, ContinuousHead) else 0.0
    for runtime, process in runtimes.items():
        data = INTEGERS[runtime.artifact_format](spec, integers)
        outputs = process.execute(spec, data, observations).outputs
        expected = twice if runtime is RuntimeName.TFLITE_RUNTIME else once
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=largest, err_msg=runtime.value)


@pytest.mark.parametrize("half", [False, True])
def test_float_convolutions_and_layer_normalisation(runtimes: Runtimes, half: bool) -> None:
    spec = image_spec(replace(SMALL, layer_norm=True), (13, 14, 2), THREE)
    weights, observations = random_weights(spec), frames((13, 14, 2), 40, 2)
    stored: Weights = half_weights(weights) if half else weights
    expected = forward_float(spec, stored, observations)
    tolerance = float_tolerance(spec, stored, observations)
    assert tolerance.min() > 1e-7 and tolerance.max() < 1e-3 * np.abs(expected).max()
    for runtime, process in ((name, runtimes[name]) for name in Precision.FP32.runtimes):
        data = FLOATS[runtime.artifact_format](spec, weights, half)
        outputs = process.execute(spec, data, observations).outputs
        assert (np.abs(outputs - expected) <= tolerance).all(), runtime.value


@pytest.mark.parametrize("head", [THREE, TWO], ids=["discrete", "continuous"])
def test_layer_normalisation_between_integers_is_within_a_step(
    runtimes: Runtimes, head: DiscreteHead | ContinuousHead
) -> None:
    spec = vector_spec(NetworkSpec((40, 30), layer_norm=True), head)
    weights, observations = random_weights(spec), states(100, 2)
    integers = quantize_network(spec, weights, states(400, 1))
    assert all(not layer.relu for layer in integers.layers), "the ReLU follows the normalisation"
    once, twice = forward_integer(spec, integers, observations), forward_fixed_point(spec, integers, observations)
    step = integers.output_step * (15.0 if isinstance(head, ContinuousHead) else 1.0)
    assert np.ptp(once[:, 0]) > 10 * integers.output_step
    for runtime, process in runtimes.items():
        data = INTEGERS[runtime.artifact_format](spec, integers)
        outputs = process.execute(spec, data, observations).outputs
        expected = twice if runtime is RuntimeName.TFLITE_RUNTIME else once
        assert np.abs(outputs - expected).max() <= (NORM_STEPS + 0.01) * step, runtime.value
        assert np.mean(np.abs(outputs - expected).max(axis=1) > 0.5 * step) <= 0.02, "a level in a hundred vectors"


def test_onnxruntime_executes_every_convolution_in_integers() -> None:
    spec = image_spec(SMALL, (13, 14, 2), THREE)
    integers = quantize_network(spec, random_weights(spec), frames((13, 14, 2), 100, 1))
    executed = onnx_graph.list_executed_operators(onnx_graph.integer_graph(spec, integers))
    assert (executed.count("QLinearConv"), executed.count("QGemm")) == (2, 2)
    assert not {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul"} & set(executed), f"left in float: {executed}"


def test_tflite_operators_are_of_versions_that_tflite_runtime_2_14_knows() -> None:
    spec = image_spec(SMALL, (13, 14, 2), THREE)
    integers = quantize_network(spec, random_weights(spec), frames((13, 14, 2), 100, 1))
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(tflite_graph.integer_graph(spec, integers)))
    kinds = schema.BuiltinOperator
    assert [(code.builtinCode, code.version) for code in model.operatorCodes] == [
        (kinds.MUL, 1),
        (kinds.RESHAPE, 1),
        (kinds.QUANTIZE, 1),
        (kinds.CONV_2D, 3),
        (kinds.FULLY_CONNECTED, 4),
        (kinds.DEQUANTIZE, 2),
        (kinds.ARG_MAX, 1),
    ]


def test_a_nature_network_converts(tmp_path: Path, runtimes: Runtimes) -> None:
    spec = image_spec(NATURE, (84, 84, 4), THREE)
    weights = random_weights(spec)
    bundle = write_bundle(tmp_path / "image", spec, weights, frames((84, 84, 4), 64, 1), frames((84, 84, 4), 4, 2))
    assert (bundle.path / "calibration.npz").stat().st_size < 100_000
    jobs = [(Precision.FP16, ArtifactFormat.TFLITE), *((Precision.INT8, each) for each in Precision.INT8.formats)]
    done = {made.entry.file: made for made in (convert(bundle, *job, runtimes) for job in jobs)}
    assert 0.49 < done["fp16.tflite"].entry.record.size / done["fp16.tflite"].fp32_bytes < 0.51
    for suffix in ("tflite", "onnx"):
        assert 0.24 < done[f"int8.{suffix}"].entry.record.size / done[f"int8.{suffix}"].fp32_bytes < 0.27
    assert "3 of 3 convolutions QLinearConv" in done["int8.onnx"].entry.execution
    for name in (RuntimeName.LITERT, RuntimeName.ONNXRUNTIME):
        assert done[f"int8.{name.artifact_format.value}"].entry.runtimes[name].max_error_steps == 0.0
    # Two filters exchanged: everything loads and runs, and the numbers are others.
    swapped = {**weights, "conv_1/kernel": weights["conv_1/kernel"][..., [1, 0, *range(2, 64)]]}
    candidate = build(bundle, Precision.FP32, ArtifactFormat.TFLITE)
    with refused(ParityError, "golden_mismatch"):
        check_parities(bundle, replace(candidate, data=tflite_graph.float_graph(spec, swapped)), runtimes)


def test_the_calibration_table_has_a_line_for_every_convolution() -> None:
    spec = image_spec(SMALL, (13, 14, 2), THREE)
    weights, calibration = random_weights(spec), frames((13, 14, 2), 80, 1)
    network = quantize_network(spec, weights, calibration)
    report = inspect(spec, weights, network, calibration, frames((13, 14, 2), 40, 2))
    assert [item.name for item in report.ranges] == ["input", "conv_0", "conv_1", "dense_0", "head"]
    assert not [warning for warning in report.warnings if "calibration rows; record" in warning]
    few = inspect(spec, weights, network, calibration[:40], calibration)
    assert few.warnings[0] == "only 40 calibration rows; record 64 or more from rollouts."
