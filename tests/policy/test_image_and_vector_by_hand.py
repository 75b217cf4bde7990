"""An image field with vector fields behind it: numbers worked by hand, shapes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.policy.errors import QuantizationError, SpecError
from quarl.policy.quantize import Affine
from quarl.policy.reference import (
    check_weights,
    compute_activations,
    forward_float,
    forward_integer,
    input_levels,
    split,
)
from quarl.policy.rewrites import equalise
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    NATURE_CONVOLUTIONS,
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    TrainedQuantization,
    weight_shapes,
)
from tests.refusals import refused

DEPTH = ObservationField("depth", (3, 3, 1), "m")
SPEC = PolicySpec(
    name="depth",
    observation=(DEPTH, ObservationField("velocity", (2,), "m/s"), ObservationField("yaw_rate", (), "rad/s")),
    # the depth in units of 2 m; velocity and yaw rate around 1, in units of ½
    normaliser=Normaliser((0.0,) * 9 + (1.0,) * 3, (2.0,) * 9 + (0.5,) * 3, 3.0),
    network=NetworkSpec((), convolutions=(Convolution(2, 2, 1),)),
    head=DiscreteHead(("left", "right")),
    control_period_s=0.25,
    environment=EnvironmentSpec("AirLearning/NavigationDepth-v0"),
)
WEIGHTS = {
    # (height, width, in, out): the first filter adds the window's diagonal, the second subtracts right from left
    "conv_0/kernel": np.array([[[[1, 1]], [[0, -1]]], [[[0, 1]], [[1, -1]]]], np.float32),
    "conv_0/bias": np.array([0.0, 2.5], np.float32),
    # rows of the four windows' two filters, then of the vector's three elements
    "head/kernel": np.array([[1, 0], [0, 1]] * 4 + [[10, 0], [0, 10], [1, 1]], np.float32),
    "head/bias": np.array([0.5, 0.0], np.float32),
}
OBSERVATION = np.array([[0, 1, 2, 3, 4, 5, 2, 2, 2, 0.5, 1.5, 9.0]], np.float32)


def test_the_vector_stands_behind_the_flattened_image() -> None:
    first, vector = split(SPEC, OBSERVATION)
    assert first.shape == (1, 3, 3, 1) and vector.tolist() == [[0.5, 1.5, 9.0]]
    # image / 2: 0 ½ 1 / 3/2 2 5/2 / 1 1 1.  diagonals 2, 3, 5/2, 3;  left minus right −1, −1, −½, −½, plus 5/2
    # vector: (½ − 1) / ½ = −1, (3/2 − 1) / ½ = 1, (9 − 1) / ½ = 16, cut to 3; no ReLU cuts the −1
    image, convolved, raw = compute_activations(SPEC, WEIGHTS, OBSERVATION)
    assert image[0, :, :, 0].tolist() == [[0, 0.5, 1], [1.5, 2, 2.5], [1, 1, 1]]
    assert convolved.tolist() == [[2, 1.5, 3, 1.5, 2.5, 2, 3, 2, -1, 1, 3]]
    # 2 + 3 + 5/2 + 3 − 10 + 3 + ½ = 4;  3/2 + 3/2 + 2 + 2 + 10 + 3 = 20
    assert raw.tolist() == [[4.0, 20.0]]
    assert forward_float(SPEC, WEIGHTS, OBSERVATION[0]).tolist() == [[4.0, 20.0]]


def test_the_first_dense_layer_has_rows_for_image_and_vector() -> None:
    spec = replace(
        SPEC,
        observation=(ObservationField("depth", (84, 84, 1), "m"), ObservationField("vector", (8,), "1")),
        normaliser=Normaliser((0.0,), (1.0,)),
        network=NetworkSpec((512,), convolutions=NATURE_CONVOLUTIONS),
    )
    assert (spec.observation_size, spec.vector_size) == (84 * 84 + 8, 8)
    assert weight_shapes(spec)["dense_0/kernel"] == (7 * 7 * 64 + 8, 512)
    assert PolicySpec.from_json(spec.to_json()) == spec
    without = {**WEIGHTS, "head/kernel": WEIGHTS["head/kernel"][:8]}
    with refused(SpecError, "spec", shows=["'head/kernel'", "11"]):
        check_weights(SPEC, without)


def test_without_convolutions_all_fields_are_one_vector() -> None:
    spec = replace(SPEC, network=NetworkSpec((4,)))
    assert spec.vector_size == 0 and weight_shapes(spec)["dense_0/kernel"] == (12, 4)
    first, vector = split(spec, OBSERVATION)
    assert first.shape == (1, 12) and vector.shape == (1, 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((DEPTH, replace(DEPTH, name="second")), r"image field first, and vector.*'second'.*the shape \(3, 3, 1\)"),
        ((DEPTH, ObservationField("grid", (2, 2), "1")), r"vector fields may follow; 'grid'.*the shape \(2, 2\)"),
        ((ObservationField("speed", (3,), "m/s"), DEPTH), "a network with"),
    ],
)
def test_other_fields_are_refused(fields: tuple[ObservationField, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        replace(SPEC, observation=fields, normaliser=Normaliser((0.0,), (1.0,)))


def test_quantizers_from_training_are_refused() -> None:
    trained = TrainedQuantization(8, {"input": (0.0, 1.0), "conv_0": (0.0, 1.0)})
    with pytest.raises(SpecError, match="the range that image and vector share is not monitored"):
        replace(SPEC, quantization=trained)


def test_image_and_vector_share_the_levels_of_the_last_convolution() -> None:
    network = quantize_network(SPEC, WEIGHTS, OBSERVATION)
    # the joined values −1 … 3: 4 / 255 a step, so that zero is round(−128 + 255 / 4) = −64; 3 is then 191 steps above
    assert network.layers[0].output == Affine(float(np.float32(3 / 191)), -64)
    assert network.input == Affine(float(np.float32(2.5 / 255)), -128), "of the image alone, 0 … 5/2"
    image, vector = input_levels(SPEC, network, OBSERVATION)
    # 1 is 63.7 steps, 64; −1 likewise, and 3 the uppermost level.   ½ is 51 steps above −128
    assert vector.tolist() == [[-128, 0, 127]]
    assert image[0, 0, :, 0].tolist() == [-128, -77, -26]
    outputs = forward_integer(SPEC, network, OBSERVATION)
    np.testing.assert_allclose(outputs, [[4.0, 20.0]], rtol=0, atol=0.25)


def test_equalised_weights_by_hand() -> None:
    # the convolution reaches 3 and the vector 3: nothing to do;  16 times the depth lets it reach 48 or so
    for name, values in equalise(SPEC, WEIGHTS, OBSERVATION).items():
        np.testing.assert_array_equal(values, WEIGHTS[name])
    far = OBSERVATION * np.array([16] * 9 + [1] * 3, np.float32)
    wide = replace(SPEC, normaliser=replace(SPEC.normaliser, clip=100.0))
    # diagonals up to 48 against the vector's 16:  log₂(16 / 48) = −1.58, so that k is ¼
    made = equalise(wide, WEIGHTS, far)
    np.testing.assert_array_equal(made["conv_0/kernel"], WEIGHTS["conv_0/kernel"] / 4)
    assert made["conv_0/bias"].tolist() == [0.0, 0.625]
    expected = np.array([[4, 0], [0, 4]] * 4 + [[10, 0], [0, 10], [1, 1]], np.float32)
    np.testing.assert_array_equal(made["head/kernel"], expected)
    np.testing.assert_array_equal(made["head/bias"], WEIGHTS["head/bias"])
    np.testing.assert_array_equal(forward_float(wide, made, far), forward_float(wide, WEIGHTS, far))


@pytest.mark.parametrize("factor", [16.0, 1 / 16])
def test_equalised_integers_are_nearer_to_the_floats(factor: float) -> None:
    spec = replace(SPEC, network=NetworkSpec((12,), convolutions=SPEC.network.convolutions))
    random = np.random.default_rng(1)
    observations = random.normal(1.0, 1.0, (200, 12)).astype(np.float32)
    weights = {name: random.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in weight_shapes(spec).items()}
    # image and vector matter alike, but one of them reaches further
    weights["conv_0/kernel"] *= np.float32(factor)
    weights["conv_0/bias"] *= np.float32(factor)
    weights["dense_0/kernel"][:8] /= np.float32(factor)
    made = equalise(spec, weights, observations)
    exact = forward_float(spec, weights, observations)
    np.testing.assert_array_equal(forward_float(spec, made, observations), exact)
    before, after = (
        np.abs(forward_integer(spec, quantize_network(spec, each, observations), observations) - exact)
        for each in (weights, made)
    )
    assert after.mean() < before.mean() / 2


def test_what_cannot_be_equalised_is_left_alone() -> None:
    silent = {**WEIGHTS, "conv_0/bias": np.full(2, -100.0, np.float32)}
    for spec, weights in ((SPEC, silent), (replace(SPEC, network=NetworkSpec(())), WEIGHTS)):
        assert all(
            np.array_equal(values, weights[name]) for name, values in equalise(spec, weights, OBSERVATION).items()
        )
    with pytest.raises(QuantizationError, match="must have observations"):
        equalise(SPEC, WEIGHTS, OBSERVATION[:0])
