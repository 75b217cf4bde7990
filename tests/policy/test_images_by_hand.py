"""Convolutions and layer normalisation: numbers worked by hand, TensorFlow's own numbers, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import BundleError, SpecError
from quarl.policy.locate import working_bundle
from quarl.policy.places import ZOO
from quarl.policy.quantize import Affine
from quarl.policy.reference import (
    IMAGES_AT_ONCE,
    IntegerLayer,
    IntegerNorm,
    accumulate,
    as_batch,
    check_weights,
    convolve,
    forward_activation,
    forward_float,
    forward_integer,
    forward_layer,
    grey_levels,
    layer_norm,
)
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
    weight_shapes,
)
from tests.refusals import refused

SPEC = PolicySpec(
    name="image",
    observation=(ObservationField("screen", (3, 3, 1), "grey level"),),
    normaliser=Normaliser((0.0,), (255.0,), float("inf")),
    network=NetworkSpec((), convolutions=(Convolution(2, 2, 1),)),
    head=DiscreteHead(("left", "right")),
    control_period_s=1 / 15,
    environment=EnvironmentSpec("ALE/Pong-v5"),
)
IMAGE = np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1)  # 0 1 2 / 3 4 5 / 6 7 8
# (height, width, in, out): the first filter adds the window's diagonal, the second subtracts right from left.
KERNEL = np.array([[[[1, 1]], [[0, -1]]], [[[0, 1]], [[1, -1]]]], np.float32)


def weights_of(spec: PolicySpec, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in weight_shapes(spec).items()}


def test_a_convolution_by_hand() -> None:
    # windows 0 1 3 4 / 1 2 4 5 / 3 4 6 7 / 4 5 7 8: diagonals 4, 6, 10, 12; left minus right −2 everywhere
    expected = [[[4, -2], [6, -2]], [[10, -2], [12, -2]]]
    assert convolve(IMAGE, KERNEL, 1)[0].tolist() == expected
    assert convolve(IMAGE, KERNEL, 2)[0].tolist() == [[[4, -2]]], "stride 2 leaves one window, without padding"


@pytest.mark.parametrize(("height", "width", "stride"), [(7, 7, 1), (9, 8, 2), (12, 11, 3), (4, 4, 4)])
def test_convolutions_are_those_of_tensorflow(height: int, width: int, stride: int) -> None:
    tf = pytest.importorskip("tensorflow")
    random = np.random.default_rng(height)
    images = random.normal(size=(IMAGES_AT_ONCE + 3, height, width, 3)).astype(np.float32)
    kernel = random.normal(size=(4, 3, 3, 5)).astype(np.float32)
    expected = tf.nn.conv2d(images, kernel, stride, "VALID").numpy()
    np.testing.assert_allclose(convolve(images, kernel, stride), expected, rtol=0, atol=1e-5)


def test_layer_normalisation_by_hand() -> None:
    # mean 3, deviations −2, 0, 2, variance 8/3, root 1.63299: −1.22474, 0, 1.22474; then · γ + β
    values = np.array([[1.0, 3.0, 5.0]], np.float32)
    gamma, beta = np.array([2.0, 1.0, 1.0], np.float32), np.array([0.0, 0.5, -1.0], np.float32)
    np.testing.assert_allclose(layer_norm(values, gamma, beta), [[-2.449485, 0.5, 0.224742]], atol=1e-5)
    # of equal values nothing is left but β
    np.testing.assert_array_equal(layer_norm(np.full((1, 3), 7.0, np.float32), gamma, beta), [beta])


def test_an_integer_convolution_by_hand() -> None:
    # levels 0 … 8, zero point 1: values −1 … 7.  diagonal of the first window: −1 + 3 = 2, and so on: 2, 4, 8, 10
    levels, input_map = IMAGE.astype(np.int32), Affine(0.5, 1)
    bias, scales = np.array([3, -4], np.int32), np.array([0.5, 0.25], np.float32)
    layer = IntegerLayer("conv_0", KERNEL.astype(np.int8), bias, scales, Affine(0.5, -128), relu=True)
    assert accumulate(layer, input_map, levels)[0].tolist() == [[[5, -6], [7, -6]], [[11, -6], [13, -6]]]
    # · 0.5 · 0.5 / 0.5 = ½: 2.5 → 2, 3.5 → 4, 5.5 → 6, 6.5 → 6, half to even;  −6 is cut to zero: −128
    expected = np.array([[[2, 0], [4, 0]], [[6, 0], [6, 0]]]) - 128
    assert forward_layer(layer, input_map, levels)[0].tolist() == expected.tolist()
    strided = replace(layer, stride=2)
    assert forward_layer(strided, input_map, levels)[0].tolist() == [[[-126, -128]]]


def test_an_integer_layer_normalisation_by_hand() -> None:
    # levels 4, 8, 12 of step 0.5 above the zero point 2: 1, 3, 5, normalised as above: −2.449, 0.5, 0.2247
    gamma, beta = np.array([2.0, 1.0, 1.0], np.float32), np.array([0.0, 0.5, -1.0], np.float32)
    norm = IntegerNorm(gamma, beta, NetworkSpec((3,), layer_norm=True), Affine(0.1, -128))
    kernel, bias, scales = np.eye(3, dtype=np.int8), np.zeros(3, np.int32), np.ones(3, np.float32)
    layer = IntegerLayer("dense_0", kernel, bias, scales, Affine(0.5, 2), relu=False, norm=norm)
    # ReLU, then steps of 0.1: 0, 5, 2.247
    assert forward_activation(layer, np.array([[4, 8, 12]], np.int32)).tolist() == [[-128, -123, -126]]
    assert layer.result == norm.output


def test_every_grey_level_has_a_level_of_its_own() -> None:
    """Also those that were not recorded: the input's map is 1/255 with the zero point −128, so that q = x − 128."""
    recorded = np.full((80, 9), 87.0, np.float32)
    recorded[::2, 3:5] = 236.0
    network = quantize_network(SPEC, weights_of(SPEC), recorded)
    assert (network.input.scale, network.input.zero_point) == (float(np.float32(1 / 255)), -128)
    head = network.layers[-1].output
    # A single dense layer that passes one pixel on, in the input's own steps.
    spec = replace(SPEC, network=NetworkSpec(()), observation=(ObservationField("screen", (1, 1, 1), "grey level"),))
    kernel, scales = np.array([[1, 0]], np.int8), np.ones(2, np.float32)
    copy = IntegerLayer("head", kernel, np.zeros(2, np.int32), scales, network.input, relu=False)
    levels = np.arange(256, dtype=np.float32)[:, None]
    outputs = forward_integer(spec, replace(network, layers=(copy,)), levels)
    np.testing.assert_array_equal(np.rint(outputs[:, 0] * 255), levels[:, 0])
    assert head.scale > 0


def test_images_that_are_no_grey_levels_keep_their_recorded_range() -> None:
    recorded = np.linspace(0.0, 100.0, 900, dtype=np.float32).reshape(100, 9)
    assert grey_levels(recorded) is None
    network = quantize_network(SPEC, weights_of(SPEC), recorded)
    assert network.input.scale == pytest.approx(100 / 255 / 255)


def test_observations_may_be_flat_or_images() -> None:
    flat = IMAGE.reshape(1, 9)
    np.testing.assert_array_equal(as_batch(SPEC, IMAGE.astype(np.uint8)), flat)
    np.testing.assert_array_equal(
        forward_float(SPEC, weights_of(SPEC), IMAGE), forward_float(SPEC, weights_of(SPEC), flat)
    )
    with pytest.raises(SpecError, match=r"\(1, 3, 1"):
        as_batch(SPEC, IMAGE.reshape(1, 3, 1, 3))


def test_a_nature_network_has_the_published_shapes() -> None:
    """Mnih et al. 2015, Methods: 32 of 8 × 8 by 4, 64 of 4 × 4 by 2, 64 of 3 × 3 by 1, then 512."""
    spec = replace(
        SPEC,
        observation=(ObservationField("screen", (84, 84, 4), "grey level"),),
        network=NetworkSpec((512,), convolutions=NATURE_CONVOLUTIONS),
    )
    shapes = weight_shapes(spec)
    assert shapes["conv_0/kernel"] == (8, 8, 4, 32) and shapes["conv_2/kernel"] == (3, 3, 64, 64)
    assert shapes["dense_0/kernel"] == (7 * 7 * 64, 512)
    assert PolicySpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observation": [{"name": "state", "shape": [9], "unit": "1"}]}, "a network with"),
        ({"network": {"convolutions": [{"filters": 2, "kernel": 4, "stride": 1}]}}, r"\(3, 3, 1\) is too small for"),
        ({"network": {"convolutions": [{"filters": 2, "kernel": 2, "stride": 0}]}}, "three"),
        ({"network": {"convolutions": [{"filters": 2, "kernel": 2}]}}, r"lacks the field 'stride'"),
        ({"network": {"convolutions": [{"filters": 2.5, "kernel": 2, "stride": 1}]}}, "be an integer"),
        ({"network": {"layer_norm": "yes"}}, r"network\.layer_norm"),
        ({"normaliser": {"mean": [0.0, 0.0], "scale": [1.0, 1.0]}}, "normaliser"),
    ],
)
def test_specs_that_do_not_fit_together_are_refused(change: dict[str, object], words: str) -> None:
    data = SPEC.to_dict()
    for part, value in change.items():
        data[part] = {**data[part], **value} if isinstance(value, dict) else value
    with pytest.raises(SpecError, match=words):
        PolicySpec.from_json(json.dumps(data))


def test_missing_parts_of_the_new_layers_are_named() -> None:
    spec = replace(SPEC, network=NetworkSpec((4,), convolutions=SPEC.network.convolutions, layer_norm=True))
    weights = weights_of(spec)
    check_weights(spec, weights)
    for name in ("dense_0/gamma", "conv_0/bias"):
        with refused(SpecError, "wrong_weight_names"):
            check_weights(spec, {key: value for key, value in weights.items() if key != name})
    with refused(SpecError, "wrong_weight_names", shows=["'dense_0/beta'", "'dense_0/gamma'"]):
        check_weights(replace(spec, network=replace(spec.network, layer_norm=False)), weights)
    with refused(SpecError, "spec", shows=["'conv_0/kernel'"]):
        check_weights(spec, {**weights, "conv_0/kernel": weights["conv_0/kernel"].transpose(2, 0, 1, 3)})


def test_a_spec_older_than_convolutions_round_trips() -> None:
    for name in ("I", "II", "III"):
        text = (ZOO / name / "policy.json").read_text(encoding="utf-8")
        spec = PolicySpec.from_json(text)
        assert (spec.network.convolutions, spec.network.layer_norm) == ((), False)
        assert spec.to_json() == text


def test_a_name_finds_the_zoos_then_the_benchmarks_bundle(tmp_path: Path) -> None:
    zoo, artifacts = tmp_path / "zoo", tmp_path / "artifacts"
    weights, images = weights_of(SPEC), np.zeros((4, 9), np.float32)
    write_bundle(zoo / "I", SPEC, weights, images, images)
    write_bundle(zoo / "benchmark" / "pong-ppo", SPEC, weights, images, images)
    found = working_bundle("pong-ppo", artifacts, zoo)
    assert (found.path, found.manifest.origin) == (artifacts / "pong-ppo", "zoo")
    renewed = {**weights, "head/bias": weights["head/bias"] + 1}
    write_bundle(zoo / "benchmark" / "pong-ppo", SPEC, renewed, images, images)
    np.testing.assert_array_equal(
        working_bundle("pong-ppo", artifacts, zoo).weights()["head/bias"], renewed["head/bias"]
    )
    assert working_bundle("I", artifacts, zoo).path == artifacts / "I"
    for name in ("benchmark", "pong-dqn"):
        with pytest.raises(BundleError, match="is no policy"):
            working_bundle(name, artifacts, zoo)


def test_a_bundle_of_images_that_are_cut_short_is_refused(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 9)).astype(np.float32)
    bundle = write_bundle(tmp_path / "image", SPEC, weights_of(SPEC), images, images)
    data = (bundle.path / "golden.npz").read_bytes()
    (bundle.path / "golden.npz").write_bytes(data[:-1])
    with pytest.raises(BundleError, match=r"golden.npz is truncated"):
        Bundle.load(bundle.path)
