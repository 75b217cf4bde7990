"""A2C's and the actor-critics' pure functions against numbers worked by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.spec import ContinuousHead, Convolution, NetworkSpec, Squash
from quarl.train.algorithms import a2c
from quarl.train.algorithms.common.actor_critic import ActorCritic, Forward, outputs_and_values
from quarl.train.algorithms.common.distributions import LOG_STD, Categorical, Gaussian, export_weights


def test_the_parts_of_the_loss_by_hand() -> None:
    # π = [0.75, 0.25]; log π(0) = −0.287682, log π(1) = −1.386294; A = 2 and −1.
    # policy = −(2·(−0.287682) + (−1)·(−1.386294)) / 2 = −0.405465;  value = ½ ((3 − 1)² + (5 − 6)²) / 2 = 1.25
    outputs = tf.constant([[math.log(3.0), 0.0]] * 2)
    batch = {"action": tf.constant([0, 1]), "advantage": tf.constant([2.0, -1.0]), "return": tf.constant([1.0, 6.0])}
    parts = a2c.loss_parts(Categorical(), {}, outputs, tf.constant([3.0, 5.0]), batch)
    assert float(parts["policy_loss"]) == pytest.approx(-0.405465, abs=1e-6)
    assert float(parts["value_loss"]) == pytest.approx(1.25)
    assert float(parts["entropy"]) == pytest.approx(0.562335, abs=1e-6)


def test_rmsprop_by_hand() -> None:
    # g = 0.75·4 + 0.25·2² = 4;  θ = 1 − 0.1·2/√(4 + 5) = 0.9333333
    arrays = {"a": np.array([1.0], np.float32)}, {"a": np.array([2.0], np.float32)}, {"a": np.array([4.0], np.float32)}
    weights, moments = a2c.rmsprop_step(*arrays, learning_rate=0.1, decay=0.75, epsilon=5.0)
    assert moments["a"] == pytest.approx(4.0)
    assert weights["a"] == pytest.approx(1 - 0.2 / 3, rel=1e-6)


GAUSSIAN = Gaussian(ContinuousHead((-2.0, 0.0), (2.0, 10.0), Squash.CLIP), log_std=math.log(2.0))


def test_the_gaussian_by_hand() -> None:
    # σ = 2; (a − y)/σ = 1 and −0.5: −½(1 + 0.25) − 2·(log 2 + ½ log 2π) = −0.625 − 2·1.612086 = −3.849172
    weights = {name: tf.constant(value) for name, value in GAUSSIAN.extra_weights().items()}
    outputs, actions = tf.constant([[0.0, 1.0]]), tf.constant([[2.0, 0.0]])
    assert float(GAUSSIAN.log_probability(outputs, actions, weights)[0]) == pytest.approx(-3.849172, abs=1e-5)
    # H = 2·(log 2 + ½ log 2π + ½) = 4.224171
    assert float(GAUSSIAN.entropy(outputs, weights)[0]) == pytest.approx(4.224171, abs=1e-5)
    # The environment is given actions in its units and within its bounds.
    drawn = np.array([[0.0, 0.0], [-1.0, 0.5], [3.0, -9.0]], np.float32)
    np.testing.assert_allclose(GAUSSIAN.to_environment(drawn), [[0.0, 5.0], [-2.0, 7.5], [2.0, 0.0]])


def test_what_is_drawn_has_the_probability_it_is_said_to_have() -> None:
    weights = GAUSSIAN.extra_weights()
    outputs = np.array([[0.5, -1.0]], np.float32).repeat(20_000, axis=0)
    actions, log_probabilities = GAUSSIAN.sample(np.random.default_rng(0), outputs, weights)
    again = GAUSSIAN.log_probability(tf.constant(outputs), tf.constant(actions), weights)
    np.testing.assert_allclose(log_probabilities, again, rtol=1e-4)
    np.testing.assert_allclose(actions.mean(axis=0), [0.5, -1.0], atol=0.06)  # 4 standard errors of 2/√20000
    np.testing.assert_allclose(actions.std(axis=0), 2.0, atol=0.04)


def test_a_bundle_holds_the_networks_weights_and_not_the_distributions() -> None:
    learner = ActorCritic.fresh(np.random.default_rng(0), NetworkSpec((4,)), (3,), 2, extra=GAUSSIAN.extra_weights())
    assert LOG_STD in learner.policy
    assert set(export_weights(learner.policy)) == {"dense_0/kernel", "dense_0/bias", "head/kernel", "head/bias"}


PICTURES = NetworkSpec((6,), convolutions=(Convolution(4, 3, 1),))


def picture_learner() -> ActorCritic:
    return ActorCritic.fresh(np.random.default_rng(0), PICTURES, (5, 5, 2), 3)


def test_both_heads_stand_on_one_trunk() -> None:
    learner = picture_learner()
    assert {name: value.shape for name, value in learner.value.items()} == {"head/kernel": (6, 1), "head/bias": (1,)}
    images = np.random.default_rng(1).integers(256, size=(7, 5, 5, 2)).astype(np.uint8)
    outputs, values = Forward(learner)(images)
    assert outputs.shape == (7, 3)
    assert values.shape == (7,)
    with tf.GradientTape() as tape:
        tape.watch(learner.policy)
        tape.watch(learner.value)
        _, value = outputs_and_values(PICTURES, learner.policy, learner.value, tf.constant(images))
    gradient = tape.gradient(value, learner.policy)
    assert np.abs(gradient["conv_0/kernel"]).max() > 0  # the value's error moves the trunk
    assert gradient["head/kernel"] is None  # but not the policy's head


def test_sixteen_bits_compute_nearly_the_same() -> None:
    learner = picture_learner()
    images = np.random.default_rng(1).integers(256, size=(64, 5, 5, 2)).astype(np.uint8)
    _, exact = Forward(learner)(images)
    _, rough = Forward(learner, "bfloat16")(images)
    assert 0 < np.abs(exact - rough).max() < 0.02 * np.abs(exact).max()  # bfloat16 keeps 8 bits: 0.4 % a rounding
