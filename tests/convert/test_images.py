"""Convolutions, layer normalisation and fields behind an image in the three runtimes: value by value what the numpy
references compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from quarl.convert import onnx_graph, tflite_graph
from quarl.convert.calibration import inspect
from quarl.convert.parity import ParityError
from quarl.convert.pipeline import FLOATS, INTEGERS, build, check_parities, convert
from quarl.convert.reference import NORM_STEPS, STEP_SLACK
from quarl.convert.rounding import forward_fixed_point
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.golden import float_tolerance
from quarl.policy.reference import IntegerNetwork, forward_float, forward_integer, normalise
from quarl.policy.simulate import quantize_network, stored_weights
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
from tests.convert.conftest import Runtimes
from tests.refusals import refused

Rows = Callable[[int, int], np.ndarray]
Made = Callable[[NetworkSpec, DiscreteHead | ContinuousHead], tuple[PolicySpec, Rows]]
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


COURT, DEPTH = (13, 14, 2), (12, 11, 1)
DEEPEST = 20.0  # m


def depth_spec(network: NetworkSpec = SMALL, head: DiscreteHead | ContinuousHead = THREE) -> PolicySpec:
    """A depth picture in metres, then two vector fields, which are normalised element by element."""
    depth = ObservationField("depth", DEPTH, "m")
    fields = (depth, ObservationField("velocity", (3,), "m/s"), ObservationField("goal_distance", (), "m"))
    normaliser = Normaliser((5.0,) * depth.size + (0.5, 0.0, -0.5, 15.0), (6.0,) * depth.size + (1.5, 1, 2, 8.0), 3.0)
    return replace(image_spec(network, DEPTH, head), name="depth", observation=fields, normaliser=normaliser)


def observations_of(spec: PolicySpec, count: int, seed: int) -> np.ndarray:
    """A floor and a wall at some distance in each picture, and normal vectors. (count, observation_size)"""
    random = np.random.default_rng(seed)
    pictures = np.full((count, *DEPTH), DEEPEST)
    pictures[:, 8:] = np.linspace(6.1, 1.03, 4)[:, None, None]  # none half-way between two levels
    for picture in pictures:
        left, top = random.integers(0, 7), random.integers(0, 5)
        picture[top : top + 6, left : left + 4] = random.uniform(1.0, 15.0)
    z = random.normal(0.0, 1.0, (count, spec.vector_size))
    vectors = z * spec.normaliser.scale[-spec.vector_size :] + spec.normaliser.mean[-spec.vector_size :]
    return np.concatenate([pictures.reshape(count, -1), vectors], axis=1).astype(np.float32)


def pictures(network: NetworkSpec, head: DiscreteHead | ContinuousHead) -> tuple[PolicySpec, Rows]:
    return image_spec(network, COURT, head), lambda count, seed: frames(COURT, count, seed)


def depths(network: NetworkSpec, head: DiscreteHead | ContinuousHead) -> tuple[PolicySpec, Rows]:
    spec = depth_spec(network, head)
    return spec, lambda count, seed: observations_of(spec, count, seed)


def vectors(network: NetworkSpec, head: DiscreteHead | ContinuousHead) -> tuple[PolicySpec, Rows]:
    plain = replace(network, hidden=(40, 30), convolutions=())
    spec = replace(image_spec(NetworkSpec(()), (2, 2, 2), head), observation=(ObservationField("state", (8,), "1"),))
    return replace(
        spec, network=plain
    ), lambda count, seed: np.random.default_rng(seed).normal(60.0, 90.0, (3 * count, 8)).astype(np.float32)


both_heads = pytest.mark.parametrize("head", [THREE, TWO], ids=["discrete", "continuous"])


def compared(
    runtimes: Runtimes, spec: PolicySpec, weights: dict[str, np.ndarray], calibration: np.ndarray, seen: np.ndarray,
    bits: int = 8,
) -> tuple[IntegerNetwork, dict[str, np.ndarray], np.ndarray]:  # fmt: skip
    """The integers, how far each runtime is from them on each observation, and the outputs."""
    integers = quantize_network(spec, weights, calibration, bits)
    once, twice = forward_integer(spec, integers, seen), forward_fixed_point(spec, integers, seen)
    apart = {}
    for runtime, process in runtimes.items():
        outputs = process.execute(spec, INTEGERS[runtime.artifact_format](spec, integers), seen).outputs
        apart[runtime.value] = np.abs(outputs - (twice if runtime is RuntimeName.TFLITE_RUNTIME else once))
    return integers, apart, once


@pytest.mark.parametrize("made", [pictures, depths])
@both_heads
@pytest.mark.parametrize("network", [SMALL, replace(SMALL, hidden=())], ids=["hidden", "no hidden layer"])
@pytest.mark.parametrize("bits", [8, 4])
def test_integer_convolutions_are_the_references_to_the_level(
    runtimes: Runtimes, made: Made, network: NetworkSpec, head: DiscreteHead | ContinuousHead, bits: int
) -> None:
    spec, rows = made(network, head)
    integers, apart, once = compared(runtimes, spec, random_weights(spec), rows(100, 1), rows(60, 2), bits)
    assert len(np.unique(once, axis=0)) > 10, "the images give the same outputs: nothing was compared"
    # A continuous head's tanh differs by a few units in the last place; onnxruntime may dequantize as q · s − z · s.
    slack = 0.0 if made is pictures else STEP_SLACK * integers.output_step
    largest = 1e-5 if isinstance(head, ContinuousHead) else slack
    assert all(each.max() <= largest for each in apart.values()), apart


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.W8, Precision.W4])
@pytest.mark.parametrize("made", [pictures, depths])
@pytest.mark.parametrize("network", [replace(SMALL, layer_norm=True), replace(SMALL, hidden=())], ids=["norm", "none"])
def test_the_float_graphs(runtimes: Runtimes, made: Made, network: NetworkSpec, precision: Precision) -> None:
    spec, rows = made(network, THREE if made is pictures else TWO)
    weights, seen = random_weights(spec), rows(40, 2)
    stored = stored_weights(spec, weights, precision)
    expected, tolerance = forward_float(spec, stored, seen), float_tolerance(spec, stored, seen)
    assert tolerance.min() > 1e-7 and tolerance.max() < 2e-3 * np.abs(expected).max()
    if spec.vector_size:
        other = seen.copy()
        other[:, -spec.vector_size :] = 0.0
        moved = np.abs(forward_float(spec, stored, other) - expected).max()
        assert moved > 100 * tolerance.max(), "the vector changes nothing: nothing was compared"
    for runtime in RuntimeName:
        data = FLOATS[runtime.artifact_format](spec, weights, precision)
        outputs = runtimes[runtime].execute(spec, data, seen).outputs
        assert (np.abs(outputs - expected) <= tolerance).all(), runtime.value


@both_heads
@pytest.mark.parametrize("made", [vectors, depths])
def test_layer_normalisation_between_integers_is_within_a_step(
    runtimes: Runtimes, made: Made, head: DiscreteHead | ContinuousHead
) -> None:
    spec, rows = made(replace(SMALL, layer_norm=True), head)
    integers, apart, once = compared(runtimes, spec, random_weights(spec), rows(130, 1), rows(34, 2))
    assert made is depths or not any(layer.relu for layer in integers.layers), "the ReLU follows the normalisation"
    assert np.ptp(once[:, 0]) > 10 * integers.output_step
    step = integers.output_step * (15.0 if isinstance(head, ContinuousHead) else 1.0)
    for runtime, each in apart.items():
        assert each.max() <= (NORM_STEPS + 0.01) * step, runtime
        if made is vectors:
            assert np.mean(each.max(axis=1) > 0.5 * step) <= 0.02, "a level in a hundred vectors"


def test_the_calibration_table_has_a_line_for_every_convolution() -> None:
    spec = depth_spec()
    weights, calibration = random_weights(spec), observations_of(spec, 100, 1)
    network = quantize_network(spec, weights, calibration)
    report = inspect(spec, weights, network, calibration, observations_of(spec, 40, 2))
    assert [item.name for item in report.ranges] == ["input", "conv_0", "conv_1", "dense_0", "head"]
    assert report.ranges[0].high == pytest.approx(2.5), "(20 − 5) / 6: of the picture only"
    assert report.ranges[2].low == normalise(spec.normaliser, calibration)[:, -spec.vector_size :].min()


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
    first = (kinds.SUB, kinds.MUL, kinds.MINIMUM, kinds.MAXIMUM, kinds.SLICE, kinds.RESHAPE, kinds.QUANTIZE)
    assert [(code.builtinCode, code.version) for code in model.operatorCodes] == [
        *((kind, 1) for kind in first),
        *((kinds.CONV_2D, 3), (kinds.CONCATENATION, 2), (kinds.FULLY_CONNECTED, 4)),
        *((kinds.DEQUANTIZE, 2), (kinds.ARG_MAX, 1)),
    ]


def test_a_nature_network_converts(tmp_path: Path, runtimes: Runtimes) -> None:
    spec = image_spec(NATURE, (84, 84, 4), THREE)
    weights = random_weights(spec)
    bundle = write_bundle(tmp_path / "image", spec, weights, frames((84, 84, 4), 64, 1), frames((84, 84, 4), 4, 2))
    assert (bundle.path / "calibration.npz").stat().st_size < 100_000
    jobs = [(Precision.FP16, ArtifactFormat.TFLITE), *((Precision.INT8, each) for each in ArtifactFormat)]
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


def test_a_bundle_converts_in_every_precision(tmp_path: Path, runtimes: Runtimes) -> None:
    spec = depth_spec()
    observed = observations_of(spec, 100, 1), observations_of(spec, 40, 2)
    bundle = write_bundle(tmp_path / "depth", spec, random_weights(spec), *observed)
    precisions = (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4)
    for precision, artifact_format in product(precisions, ArtifactFormat):
        done = convert(bundle, precision, artifact_format, runtimes)
        if precision is Precision.INT8:
            assert done.entry.fp32_agreement >= 0.9
    assert len(Bundle.load(bundle.path).manifest.artifacts) == 12


def test_a_vector_without_negative_values(runtimes: Runtimes) -> None:
    spec = replace(depth_spec(), normaliser=Normaliser((0.0,), (10.0,), float("inf")))
    calibration, fed = np.abs(observations_of(spec, 100, 1)), np.abs(observations_of(spec, 40, 2))
    integers, apart, _ = compared(runtimes, spec, random_weights(spec), calibration, fed)
    assert integers.layers[1].output.zero_point == integers.layers[1].output.low
    assert not any(each.any() for each in apart.values()), apart
