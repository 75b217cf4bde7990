"""Mixed precision: what has 16 bits and what has 32, loss scaling, convolutions' gradients, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.bundle import Bundle
from quarl.policy.spec import Convolution, NetworkSpec
from quarl.train import __main__ as command
from quarl.train.networks.forward import forward, layer_norm, relu
from quarl.train.networks.weights import initial_weights
from quarl.train.quantization import mixed_precision
from quarl.train.quantization.mixed_precision import (
    Compute,
    apply_if_finite,
    cast,
    fresh_loss_scale,
    gradients_of,
    slower_here,
)
from quarl.train.runs.checkpoint import load_checkpoint
from quarl.train.runs.presets import FOLDER
from quarl.train.runs.request import TRAINING_FOLDER

NETWORK = NetworkSpec((16,), convolutions=(Convolution(8, 4, 2), Convolution(12, 3, 1)), layer_norm=True)
SHAPE = (13, 13, 2)  # a convolution of 4 × 4 and stride 2 leaves a row of pictures of odd height unused
HALF = [Compute.BFLOAT16, Compute.FLOAT16]


def weights_and_images() -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    generator = np.random.default_rng(0)
    weights = initial_weights(generator, NETWORK, SHAPE, 3, head_gain=1.0)
    images = generator.integers(0, 256, (8, *SHAPE), dtype=np.uint8)
    return {name: tf.constant(value) for name, value in weights.items()}, tf.constant(images)


def outputs_and_gradients(compute: Compute) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    weights, images = weights_and_images()
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = forward(NETWORK, cast(weights, compute), images)
        loss = tf.reduce_mean(outputs**2)
    return outputs, tape.gradient(loss, weights)


@pytest.mark.parametrize("compute", HALF)
def test_gradients_are_float32_and_those_of_float32_but_for_rounding(compute: Compute) -> None:
    exact_outputs, exact = outputs_and_gradients(Compute.FLOAT32)
    outputs, gradients = outputs_and_gradients(compute)
    assert outputs.dtype == tf.float32
    # One rounding is 2⁻⁹ (bfloat16) or 2⁻¹² (float16) of a value; some ten of them follow each other.
    tolerance = 10 * {Compute.BFLOAT16: 2.0**-9, Compute.FLOAT16: 2.0**-12}[compute]
    assert relative_error(outputs, exact_outputs) < tolerance
    for name, gradient in gradients.items():
        assert gradient.dtype == tf.float32, name
        assert 0 < relative_error(gradient, exact[name]) < 3 * tolerance, name


def relative_error(values: tf.Tensor, exact: tf.Tensor) -> float:
    return float(tf.norm(values - exact) / tf.norm(exact))


def test_float32_is_computed_as_if_there_was_no_choice() -> None:
    weights, images = weights_and_images()
    assert all(value is weights[name] for name, value in cast(weights, Compute.FLOAT32).items())
    values = tf.cast(images, tf.float32) * tf.constant(1.0 / 255.0)
    for index, layer in enumerate(NETWORK.convolutions):
        values = tf.nn.conv2d(values, weights[f"conv_{index}/kernel"], layer.stride, "VALID")
        values = tf.nn.relu(tf.nn.bias_add(values, weights[f"conv_{index}/bias"]))
    values = tf.reshape(values, (len(images), -1)) @ weights["dense_0/kernel"] + weights["dense_0/bias"]
    values = relu(layer_norm(values, weights["dense_0/gamma"], weights["dense_0/beta"]))
    expected = values @ weights["head/kernel"] + weights["head/bias"]
    np.testing.assert_array_equal(forward(NETWORK, weights, images), expected)


@pytest.mark.parametrize("compute", HALF)
def test_layer_normalisation_stays_float32(compute: Compute) -> None:
    half = cast(weights_and_images()[0], compute)
    kinds = {name.rpartition("/")[2]: value.dtype.name for name, value in half.items()}
    assert kinds == {"kernel": compute.value, "bias": compute.value, "gamma": "float32", "beta": "float32"}
    # Mean 1000, deviation 1: in bfloat16 the neighbours of 1000 are 996 and 1004, in float16 squares overflow.
    values = tf.constant([[999.0, 1001.0]])
    normalised = layer_norm(tf.cast(values, compute.value), tf.ones(2), tf.zeros(2))
    assert normalised.dtype == tf.float32
    if compute is Compute.FLOAT16:
        np.testing.assert_allclose(normalised, [[-1.0, 1.0]], atol=1e-4)


def step(state: dict, factor: float) -> tuple[dict, dict]:
    """One step of gradient descent on w · factor in float16; the new state, and the gradients."""
    weights = {"w": tf.constant(state["weights"]["w"])}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(tf.cast(cast(weights, Compute.FLOAT16)["w"] * np.float16(factor), tf.float32))
    gradients, finite = gradients_of(tape, loss, weights, state["loss_scale"])
    new = {"weights": {"w": weights["w"] - gradients["w"]}}
    return apply_if_finite(new, state, finite), gradients


def fresh(scale: float) -> dict:
    return {
        "weights": {"w": np.array([1.0], np.float32)},
        "loss_scale": {"scale": np.array([scale], np.float32), "good": np.zeros(1, np.float32)},
    }


def test_a_gradient_that_would_vanish_survives_by_the_scale() -> None:
    # 2⁻²⁰ · ½ · … : the smallest float16 is 2⁻²⁴. The gradient 2⁻²⁶ is made of 2⁻¹³ of the loss and 2⁻¹³ of the factor.
    def gradient(loss_scale: dict) -> float:
        weights = {"w": tf.constant([1.0])}
        with tf.GradientTape() as tape:
            tape.watch(weights)
            output = tf.cast(cast(weights, Compute.FLOAT16)["w"] * np.float16(2.0**-13), tf.float32)
            loss = tf.reduce_sum(output) * 2.0**-13
        return float(gradients_of(tape, loss, weights, loss_scale)[0]["w"][0])

    assert fresh_loss_scale(Compute.FLOAT32) == fresh_loss_scale(Compute.BFLOAT16) == {}
    assert gradient({}) == 0.0
    assert gradient(fresh_loss_scale(Compute.FLOAT16)) == 2.0**-26


def test_an_overflow_halves_the_scale_and_skips_the_step() -> None:
    state, gradients = step(fresh(32768.0), factor=4.0)  # 4 · 32768 is beyond 65504
    assert float(gradients["w"][0]) == 0.0
    assert state["loss_scale"]["scale"] == 16384
    assert state["weights"]["w"] == 1.0
    state, gradients = step(state, factor=2.0)  # 2 · 16384 is not
    assert float(gradients["w"][0]) == 2.0
    assert state["loss_scale"] == {"scale": 16384, "good": 1}
    assert state["weights"]["w"] == -1.0


def test_the_loss_scale_grows_and_an_overflow_resets_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_precision, "GROWTH_INTERVAL", 3)
    state, scales = fresh(8.0), []
    assert step(fresh(1.0), np.inf)[0]["loss_scale"]["scale"] == 1.0, "it does not fall below 1"
    for factor in (0.5, 0.5, 0.5, 0.5, np.inf, 0.5, 0.5, 0.5):
        state, _ = step(state, factor)
        scales.append(float(state["loss_scale"]["scale"][0]))
    assert scales == [8, 8, 16, 16, 8, 8, 8, 16]


@pytest.mark.parametrize(("side", "size", "stride"), [(84, 8, 4), (20, 4, 2), (9, 3, 1), (13, 4, 2), (11, 4, 4)])
def test_gradients_of_kernel_and_bias_are_tensorflows(side: int, size: int, stride: int) -> None:
    generator = np.random.default_rng(size)
    out = (side - size) // stride + 1
    inputs = tf.constant(generator.standard_normal((3, side, side, 5)), tf.float32)
    gradient = tf.constant(generator.standard_normal((3, out, out, 6)), tf.float32)
    shape = (size, size, 5, 6)
    to_kernel, to_bias = mixed_precision.parameter_gradients(inputs, gradient, shape, stride)
    strides = [1, stride, stride, 1]
    expected = tf.raw_ops.Conv2DBackpropFilter(
        input=inputs, filter_sizes=shape, out_backprop=gradient, strides=strides, padding="VALID"
    )
    np.testing.assert_allclose(to_kernel, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(to_bias, tf.reduce_sum(gradient, axis=(0, 1, 2)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("size", "stride"), [(4, 2), (3, 2)])
def test_convolution_gradients_equal_tensorflows_for_any_stride(size: int, stride: int) -> None:
    generator = np.random.default_rng(0)
    inputs = tf.constant(generator.standard_normal((2, 9, 9, 3)), tf.float32)
    kernel = tf.constant(generator.standard_normal((size, size, 3, 4)), tf.float32)
    bias = tf.constant(generator.standard_normal(4), tf.float32)
    found = []
    for own in (True, False):
        with tf.GradientTape() as tape:
            tape.watch((inputs, kernel, bias))
            if own:
                outputs = mixed_precision.convolution(inputs, kernel, bias, stride)
            else:
                outputs = tf.nn.relu(tf.nn.conv2d(inputs, kernel, stride, "VALID") + bias)
            loss = tf.reduce_sum(outputs**2)
        found.append((outputs, *tape.gradient(loss, (inputs, kernel, bias))))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("flags", "compute", "slow"), [
    ("flags : fpu avx512f avx512_bf16", Compute.BFLOAT16, False),
    ("flags : fpu avx512f", Compute.BFLOAT16, True),
    ("flags : fpu avx512_bf16", Compute.FLOAT16, True),
    ("Features : fp asimd asimdhp", Compute.FLOAT16, False),
    ("flags : fpu", Compute.FLOAT32, False),
])  # fmt: skip
def test_a_processor_without_the_unit_is_named(flags: str, compute: Compute, slow: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    message = slower_here(compute, tmp_path / "cpuinfo")
    assert (message is not None and "slower" in message) == slow
    assert slower_here(compute, tmp_path / "absent") is None


COMPILED = ["--set", 'engine="tensorflow"']
SMALL = [*COMPILED, "--task", "CartPole-v1", "--policy", "I", "--method", "dqn", "--seed", "3", "--quiet",
         "--steps", "512", "--set", "environments=8", "--set", "learning_starts=256", "--set", "minibatch=32",
         "--evaluate-every", "512", "--evaluate-episodes", "3", "--final-episodes", "4"]  # fmt: skip


def train(output: Path, *options: str) -> int:
    return command.main([*SMALL, *options, "--output-path", str(output)])


def test_the_choice_is_in_the_provenance(tmp_path: Path) -> None:
    assert train(tmp_path / "half", "--mixed-precision", "bfloat16") == 0
    bundle = Bundle.load(tmp_path / "half")
    assert bundle.spec.provenance["settings"]["compute"] == "bfloat16"
    assert {value.dtype.name for value in bundle.weights().values()} == {"float32"}
    # Master weights: were they rounded to bfloat16, the lower halves of their bits would be zero.
    assert (bundle.weights()["dense_0/kernel"].view(np.uint32) & 0xFFFF).any()


FEW = ["--seed", "3", "--quiet", "--policy", "I", "--steps", "256", "--evaluate-every", "256",
       "--evaluate-episodes", "2", "--final-episodes", "2", "--set", "environments=4"]  # fmt: skip
OFF_POLICY = ["--task", "Pendulum-v1", "--set", "learning_starts=64", "--set", "updates=2", "--set", "minibatch=32"]
OTHERS = {
    "ppo": ["--task", "CartPole-v1", "--set", "rollout_steps=32", "--set", "minibatch=32", *COMPILED],
    "a2c": ["--task", "CartPole-v1", "--set", "rollout_steps=32", *COMPILED],
    "dqn": ["--task", "CartPole-v1", "--set", "learning_starts=64", "--set", "minibatch=32", *COMPILED],
    "ddpg": [*OFF_POLICY, *COMPILED],
    "d4pg": OFF_POLICY,
    "sac": OFF_POLICY,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "compute"), [*((method, "bfloat16") for method in OTHERS), ("sac", "float16"), ("dqn", "float16")]
)
def test_every_algorithm_learns_in_either_type_and_goes_on(method: str, compute: str, tmp_path: Path) -> None:
    options = [*FEW, *OTHERS[method], "--method", method, "--output-path", str(tmp_path / "run")]
    assert command.main([*options, "--mixed-precision", compute]) == 0
    arrays = load_checkpoint(tmp_path / TRAINING_FOLDER / "run").arrays
    scales = [name for name in arrays if name.endswith("loss_scale/scale")]
    assert len(scales) == (0 if compute == "bfloat16" else 2 if method in ("ddpg", "d4pg", "sac") else 1)
    moments = [value for name, value in arrays.items() if "second/" in name]
    assert all(value.dtype == np.float32 for value in moments)
    assert any(value.any() for value in moments)  # it did learn
    assert command.main([*options, "--mixed-precision", compute, "--resume"]) == 0


def test_a_settings_file_that_chose_numpy_is_overruled(tmp_path: Path) -> None:
    few = ["--task", "CartPole-v1", "--method", "dqn", "--quiet", "--steps", "64", "--final-episodes", "2"]
    assert json.loads((FOLDER / "classic" / "CartPole-v1-dqn.json").read_text())["settings"]["engine"] == "numpy"
    assert command.main([*few, "--mixed-precision", "bfloat16", "--output-path", str(tmp_path / "run")]) == 0
    assert Bundle.load(tmp_path / "run").spec.provenance["settings"]["engine"] == "tensorflow"
