"""Fake quantization: by hand, arrays against tensors, and against the integers that are exported."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from quarl.policy import reference
from quarl.policy.reference import normalise
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    INPUT,
    NetworkSpec,
    Normaliser,
    PolicySpec,
    TrainedQuantization,
    WeightRange,
)
from quarl.train.networks.forward import activations, mlp, relu
from quarl.train.networks.weights import initial_weights
from quarl.train.quantization.aware import QuantizationAware, best_top
from quarl.train.quantization.fake import (
    LEVELS,
    FakeQuantization,
    fake_hidden,
    fake_input,
    fake_quantize_weights,
    scales_of,
)
from tests.train.actorq.small_plans import make_spec

NETWORK = NetworkSpec((16, 12))
SPEC = make_spec(hidden=NETWORK.hidden, size=6)
GRIDS = [(8, WeightRange.LARGEST), (5, WeightRange.LARGEST), (4, WeightRange.LARGEST), (2, WeightRange.MEAN)]


def trained(bits: int, weight_range: WeightRange) -> tuple[PolicySpec, dict[str, np.ndarray], np.ndarray]:
    """A random network with the ranges that 500 observations have; and the observations."""
    generator = np.random.default_rng(bits)
    weights = initial_weights(generator, NETWORK, (6,), 3, head_gain=1.0)
    weights |= {n: 0.3 * generator.standard_normal(w.shape, np.float32) for n, w in weights.items() if "bias" in n}
    observations = 2 * generator.standard_normal((500, 6), np.float32)
    inputs = normalise(SPEC.normaliser, observations)
    ranges = {INPUT: (float(inputs.min()), float(inputs.max()))}
    for name, values in zip(NETWORK.hidden_names, activations(NETWORK, weights, inputs), strict=True):
        ranges[name] = (0.0, 0.9 * float(values.max()))  # some are cut
    return (
        dataclasses.replace(SPEC, quantization=TrainedQuantization(bits, ranges, weight_range)),
        weights,
        observations,
    )


def rounded(policy: PolicySpec, weights: Any) -> Any:
    assert policy.quantization is not None
    fake = FakeQuantization.of(policy.quantization, policy.network)
    return fake_quantize_weights(weights, scales_of(policy.quantization.ranges, policy.quantization.bits), fake)


def test_levels_by_hand() -> None:
    levels = np.array([0.5, 3.0], np.float32)  # 2 bits: 0, ½, 1, 1½
    assert fake_hidden(np.array([0.0, 0.2, 0.3, 0.75, 1.4, 9.0], np.float32), levels).tolist() == [
        0.0, 0.0, 0.5, 1.0, 1.5, 1.5,
    ]  # fmt: skip
    assert fake_input(np.array([-99.0, -0.3, 99.0], np.float32), np.array([0.5, 28.0], np.float32)).tolist() == [
        -78.0, -0.5, 49.5,
    ]  # fmt: skip


@pytest.mark.parametrize(("bits", "weight_range"), GRIDS)
def test_the_artifacts_integers_are_those_of_training(bits: int, weight_range: WeightRange) -> None:
    policy, weights, observations = trained(bits, weight_range)
    network = quantize_network(policy, weights, observations, bits)
    made = rounded(policy, weights)
    for layer in network.layers:  # exactly: every weight is its integer times its channel's scale
        np.testing.assert_array_equal(made[f"{layer.name}/kernel"], layer.kernel * layer.kernel_scales)
    source = network.input
    for layer in network.layers:
        steps = np.float32(source.scale) * layer.kernel_scales
        np.testing.assert_allclose(made[f"{layer.name}/bias"], layer.bias * steps, rtol=1e-6)
        source = layer.output
    # The hidden layers' levels, each computed from the integers before it: one apart at most.
    inputs = normalise(policy.normaliser, observations)
    (levels, _), source = reference.input_levels(policy, network, observations), network.input
    ours = fake_input(inputs, made[f"{INPUT}/{LEVELS}"])
    np.testing.assert_allclose(ours, (levels - source.zero_point) * np.float32(source.scale), rtol=1e-6)
    for layer, next_name in zip(network.layers[:-1], NETWORK.hidden_names, strict=True):
        values = (levels - source.zero_point) * np.float32(source.scale)
        ours = relu(values @ made[f"{next_name}/kernel"] + made[f"{next_name}/bias"])
        ours = fake_hidden(ours, made[f"{next_name}/{LEVELS}"]) / np.float32(layer.output.scale)
        levels = reference.forward_layer(layer, source, levels)
        apart = np.abs(np.rint(ours) - (levels - layer.output.zero_point))
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.01
        assert levels.min() == layer.output.zero_point
        assert levels.max() == 127  # both ends of the range are met, so that clipping is seen, too
        source = layer.output


@pytest.mark.parametrize(("bits", "weight_range"), GRIDS)
def test_tensors_compute_what_arrays_do(bits: int, weight_range: WeightRange) -> None:
    import tensorflow as tf

    policy, weights, observations = trained(bits, weight_range)
    assert policy.quantization is not None
    arrays = rounded(policy, weights)
    as_tensors = {name: tf.constant(value) for name, value in weights.items()}
    scales = {k: tf.constant(v) for k, v in scales_of(policy.quantization.ranges, bits).items()}
    tensors = fake_quantize_weights(as_tensors, scales, FakeQuantization.of(policy.quantization, NETWORK))
    assert arrays.keys() == tensors.keys()
    for name, value in arrays.items():
        np.testing.assert_allclose(tensors[name].numpy(), value, rtol=3e-7, err_msg=name)
    inputs = normalise(policy.normaliser, observations[:1])
    np.testing.assert_allclose(mlp(tensors, tf.constant(inputs)), mlp(arrays, inputs), atol=1e-5)


def test_gradients_pass_the_rounding_and_stop_at_the_top() -> None:
    import tensorflow as tf

    kernel = tf.constant([[0.3, -2.0], [1.0, 0.1]])
    fake = FakeQuantization(3, WeightRange.LARGEST, nudged=False)
    values = tf.constant([0.3, 1.4, 1.6])
    with tf.GradientTape() as tape:
        tape.watch((kernel, values))
        weights = {"head/kernel": kernel, "head/bias": tf.zeros(2)}
        made = fake_quantize_weights(weights, {INPUT: tf.constant([1.0, 0.0])}, fake)["head/kernel"]
        of_values = fake_hidden(values, tf.constant([0.5, 3.0]))
        loss = tf.reduce_sum(made * tf.constant([[1.0, 2.0], [3.0, 4.0]])) + tf.reduce_sum(of_values)
    of_kernel, of_hidden = tape.gradient(loss, (kernel, values))
    # scales: 1 / 3 and 2 / 3
    np.testing.assert_allclose(made.numpy(), [[1 / 3, -2.0], [1.0, 0.0]], rtol=1e-6)
    assert of_kernel.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert of_hidden.numpy().tolist() == [1.0, 1.0, 0.0]


def test_a_range_ends_where_few_levels_lose_least() -> None:
    values = np.concatenate([np.linspace(0.0, 1.0, 1000), [10.0]]).astype(np.float32)
    assert best_top(values, 8) == pytest.approx(10.0)  # 255 steps of 0.04: nothing needs to be given up
    assert best_top(values, 2) == pytest.approx(2.0)  # the smallest candidate: a step of 3⅓ would round all to 0
    assert best_top(np.zeros(5, np.float32), 4) == 0.0


def test_quantizers_begin_after_the_delay_and_follow_the_ranges() -> None:
    aware = QuantizationAware(NETWORK, 4, 50)
    weights = initial_weights(np.random.default_rng(0), NETWORK, (6,), 3, head_gain=1.0)
    inputs = np.random.default_rng(1).standard_normal((64, 6)).astype(np.float32)
    assert not aware.begin(49)
    assert aware.acting(weights) is weights
    assert aware.group == {}
    aware.look(weights, inputs)
    assert not aware.begin(49)
    assert aware.begin(50)
    assert not aware.begin(60)  # it did already
    before = aware.scales["dense_1"].copy()
    made = aware.acting(weights)
    assert made is aware.acting(weights)
    assert len(np.unique(made["dense_0/kernel"][:, 0])) <= 15
    aware.look({**weights, "dense_1/bias": weights["dense_1/bias"] + 5.0}, inputs)
    assert aware.scales["dense_1"] > before
    twin = QuantizationAware(NETWORK, 4, 50)
    twin.restore({name: np.asarray(value) for name, value in aware.state().items()})
    assert {k: v.tolist() for k, v in twin.scales.items()} == {k: v.tolist() for k, v in aware.scales.items()}
    normaliser = Normaliser((0.0,) * 6, (1.0,) * 6)
    assert twin.policy(weights, normaliser).quantization == aware.policy(weights, normaliser).quantization is not None
