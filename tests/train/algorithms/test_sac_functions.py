"""SAC's pure functions and its update against numbers worked by hand, and what a bundle holds of its actor."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.bundle import Bundle
from quarl.policy.spec import ContinuousHead, NetworkSpec, Squash
from quarl.train import __main__ as command
from quarl.train.algorithms import sac
from quarl.train.algorithms.common.distributions import export_weights
from quarl.train.algorithms.common.learner import Learner, learn
from quarl.train.algorithms.sac import LOG_STD_BIAS, LOG_STD_WEIGHTS, SACSettings
from quarl.train.quantization.aware import fake_quantization
from quarl.train.quantization.fake import QUANTIZER, fake_quantize_weights, scales_of
from tests.train.algorithms.transitions import draw_batches


def actor(spread: float) -> dict[str, Any]:
    """h = relu(2 s), μ = 3 h + 1, log σ = spread · h − 1."""
    return {
        "dense_0/kernel": np.array([[2.0]], np.float32), "dense_0/bias": np.zeros(1, np.float32),
        "head/kernel": np.array([[3.0]], np.float32), "head/bias": np.ones(1, np.float32),
        LOG_STD_WEIGHTS: np.array([[spread]], np.float32), LOG_STD_BIAS: np.array([-1.0], np.float32),
    }  # fmt: skip


def test_two_heads_on_one_trunk_by_hand_for_arrays_and_tensors() -> None:
    states = np.array([[1.0], [-5.0], [10.0]], np.float32)  # h = 2, 0, 20
    for convert in (np.asarray, tf.constant):
        mean, log_std = sac.gaussian({name: convert(each) for name, each in actor(0.5).items()}, convert(states))
        np.testing.assert_allclose(mean, [[7], [1], [61]])
        np.testing.assert_allclose(log_std, [[0], [-1], [2]])  # ½ · 20 − 1 = 9, cut to 2
    _, low = sac.gaussian(actor(-50.0), states)
    np.testing.assert_allclose(low, [[-20], [-1], [-20]])


def test_a_drawn_action_and_its_density_by_hand() -> None:
    # μ = 0.5, σ = 2, ε = −0.25: u = 0, a = 0; log N = −½ · 0.0625 − log 2 − ½ log 2π, and tanh' 0 = 1.
    # The second element has μ = 1, σ = 1, ε = 0: a = tanh 1, log N = −½ log 2π, less log(1 − tanh² 1).
    mean, log_std = tf.constant([[0.5, 1.0]]), tf.constant([[np.log(2.0), 0.0]], tf.float32)
    action, log_probability = sac.squash_actions(mean, log_std, tf.constant([[-0.25, 0.0]]))
    np.testing.assert_allclose(action, [[0.0, np.tanh(1.0)]], atol=1e-7)
    expected = -0.03125 - np.log(2.0) - np.log(2 * np.pi) - np.log(1 - np.tanh(1.0) ** 2)
    assert float(log_probability[0]) == pytest.approx(expected, rel=1e-6)


def test_the_density_integrates_to_one() -> None:
    raw = np.linspace(-8.0, 8.0, 4001, dtype=np.float32)[:, None]
    mean, log_std = np.full_like(raw, 0.3), np.full_like(raw, -0.4)
    actions, logs = sac.squash_actions(
        tf.constant(mean), tf.constant(log_std), tf.constant((raw - mean) / np.exp(log_std))
    )
    densities, places = np.exp(logs.numpy()), actions.numpy()[:, 0]
    assert np.sum((densities[1:] + densities[:-1]) / 2 * np.diff(places)) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("end", [-30.0, 30.0])
def test_the_density_stays_finite_where_tanh_is_one(end: float) -> None:
    # log(1 − tanh² u) → 2 (log 2 − |u|), though in float32 1 − tanh² 30 is 0.
    mean = tf.constant([[end]])
    with tf.GradientTape() as tape:
        tape.watch(mean)
        _, log_probability = sac.squash_actions(mean, tf.zeros((1, 1)), tf.zeros((1, 1)))
    assert float(log_probability[0]) == pytest.approx(-0.5 * np.log(2 * np.pi) - 2 * (np.log(2.0) - 30.0), rel=1e-6)
    assert float(tape.gradient(log_probability, mean)[0, 0]) == pytest.approx(np.sign(end) * 2.0)


def test_targets_and_losses_by_hand() -> None:
    # Row 0: 1 + ½ (min(10, 4) − 2 · 3) = 0. Row 1: 1 + ½ (min(2, 8) + 2 · 1) = 3. Row 2 terminated: its reward alone.
    values = [tf.constant([10.0, 2.0, 7.0]), tf.constant([4.0, 8.0, 7.0])]
    logs = tf.constant([3.0, -1.0, 9.0])
    targets = sac.soft_targets(
        tf.constant([1.0, 1.0, 5.0]), tf.constant([0.5, 0.5, 0.0]), values, logs, tf.constant(2.0)
    )
    np.testing.assert_allclose(targets, [0, 3, 5])
    # ½ [(2 · 3 − 4) + (2 · (−1) − 2)] = −1
    values = [tf.constant([10.0, 2.0]), tf.constant([4.0, 8.0])]
    assert float(sac.actor_loss(tf.constant([3.0, -1.0]), values, tf.constant(2.0))) == -1.0
    # α = 3, log π = 0.5 and 1.5, H̄ = −2: L = −3 · mean(−1.5, −0.5) = 3 = dL/d log α.
    # The entropy −1 is above H̄, so that a step down this slope makes α smaller.
    log_temperature, given = tf.constant(np.log(3.0), tf.float32), tf.constant([0.5, 1.5])
    with tf.GradientTape() as tape:
        tape.watch([log_temperature, given])
        loss = sac.temperature_loss(log_temperature, given, -2.0)
    assert float(loss) == pytest.approx(3.0, rel=1e-6)
    slope, through = tape.gradient(loss, [log_temperature, given])
    assert float(slope) == pytest.approx(3.0, rel=1e-6)
    assert through is None  # the policy is not moved by it


SMALL = SACSettings(critic_hidden=(8,), actor_learning_rate=1e-3, critic_learning_rate=1e-2)


def batches(updates: int, size: int = 4) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    return {**draw_batches(generator, updates, size), **sac.draws(generator, (updates, size, 2))}


def learner(settings: SACSettings = SMALL) -> Learner:
    return sac.fresh_learner(np.random.default_rng(0), NetworkSpec((8,)), (3,), 2, settings)


def test_one_update_by_the_equations() -> None:
    # Adam's first step moves every weight by about the learning rate against its gradient's sign.
    settings = dataclasses.replace(SMALL, updates=1, target_rate=0.25, temperature=0.5, temperature_learning_rate=0.1)
    start, new = learner(settings), learner(settings)
    (metrics,) = learn(sac.make_update(settings), new, batches(1), 1.0)
    told = dict(zip(sac.METRICS, metrics[0].tolist(), strict=True))
    for name, rate in (("actor", 1e-3), ("critic", 1e-2)):
        for key, old in start.groups[name].items():
            assert 0 < np.abs(new.groups[name][key] - old).max() < 1.001 * rate
    for key, old in start.groups["critic"].items():
        expected = 0.75 * old + 0.25 * new.groups["critic"][key]
        np.testing.assert_allclose(new.groups["critic_target"][key], expected, atol=1e-6)
    # The entropy of a new policy, tanh ε, is above H̄ = −2, so that log α falls by the whole rate.
    assert told["temperature"] == pytest.approx(0.5) and told["entropy"] > -2.0
    moved = float(new.groups["temperature"]["log_temperature"][0]) - np.log(0.5)
    assert moved == pytest.approx(-0.1, rel=1e-3)
    assert "actor_target" not in new.groups


def test_the_critics_fall_towards_the_targets_and_the_actor_climbs_them() -> None:
    settings = dataclasses.replace(SMALL, updates=200, target_rate=1e-9, temperature=1e-6)
    columns = {name: np.repeat(column, 200, axis=0) for name, column in batches(1).items()}
    new = learner(settings)
    (metrics,) = learn(sac.make_update(settings), new, columns, 1.0)
    assert metrics[-1, 0] < 0.1 * metrics[0, 0]

    def loss(weights: dict[str, Any]) -> float:
        action, logs = sac.squash_actions(*sac.gaussian(weights, columns["observation"][0]), columns["noise"][0])
        values = [
            sac.critic_value(new.groups["critic"], index, columns["observation"][0], action) for index in sac.CRITICS
        ]
        return float(sac.actor_loss(logs, values, tf.constant(1e-6)))

    assert loss(new.groups["actor"]) < loss(learner(settings).groups["actor"])


@pytest.mark.slow
def test_many_updates_in_one_call_are_the_same_as_one_by_one() -> None:
    together, single, columns = learner(), learner(), batches(3)
    learn(sac.make_update(dataclasses.replace(SMALL, updates=3)), together, columns, 1.0)
    update = sac.make_update(dataclasses.replace(SMALL, updates=1))
    for index in range(3):
        learn(update, single, {name: column[index : index + 1] for name, column in columns.items()}, 1.0)
    for group, arrays in together.groups.items():
        for name, array in arrays.items():
            np.testing.assert_allclose(array, single.groups[group][name], atol=1e-6, err_msg=f"{group} {name}")


def test_quantizers_leave_the_layer_of_log_std_alone() -> None:
    fake = fake_quantization(4, NetworkSpec((8,)))
    assert fake is not None
    weights = {**learner().groups["actor"], LOG_STD_WEIGHTS: np.full((8, 2), 0.123, np.float32)}
    rounded = fake_quantize_weights(weights, scales_of({"input": (-5.0, 5.0), "dense_0": (0.0, 3.0)}, 4), fake)
    np.testing.assert_array_equal(rounded[LOG_STD_WEIGHTS], weights[LOG_STD_WEIGHTS])
    assert len(np.unique(np.abs(rounded["dense_0/kernel"][:, 0]))) < len(np.unique(np.abs(weights["dense_0/kernel"])))
    assert QUANTIZER not in rounded


def test_a_bundle_has_the_means_head_alone(tmp_path: Path) -> None:
    assert set(export_weights(learner().groups["actor"])) == {
        "dense_0/kernel", "dense_0/bias", "head/kernel", "head/bias"
    }  # fmt: skip
    assert command.main([
        "--task", "Pendulum-v1", "--method", "sac", "--model", "8", "--seed", "3", "--quiet", "--steps", "256",
        "--evaluate-every", "256", "--evaluate-episodes", "2", "--final-episodes", "2", "--set", "learning_starts=64",
        "--set", "updates=2", "--set", "minibatch=16", "--set", "critic_hidden=[8]",
        "--quantization-method", "quantization-aware", "--precision", "8", "--output-path", str(tmp_path / "run"),
    ]) == 0  # fmt: skip
    bundle = Bundle.load(tmp_path / "run")
    assert {name: value.shape for name, value in bundle.weights().items()} == {
        "dense_0/kernel": (3, 8), "dense_0/bias": (8,), "head/kernel": (8, 1), "head/bias": (1,)
    }  # fmt: skip
    assert isinstance(bundle.spec.head, ContinuousHead) and bundle.spec.head.squash is Squash.TANH
    assert bundle.spec.provenance["quantized_updates"] > 0
