"""PPO's pure functions against numbers worked by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from quarl.train.algorithms import ppo
from quarl.train.algorithms.common.distributions import Categorical
from quarl.train.algorithms.common.rollouts import compute_advantages
from quarl.train.networks.optimiser import clip_by_global_norm


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def flags(*values: bool) -> np.ndarray:
    return np.array(values, bool)[:, None]


def test_generalized_advantages_by_hand() -> None:
    # γ = 0.5, λ = 0.5, so γλ = 0.25; V = 2, 4, 8 and V of what follows the last step 16.
    # δ₂ = 3 + 0.5·16 − 8 = 3;  δ₁ = 2 + 0.5·8 − 4 = 2;  δ₀ = 1 + 0.5·4 − 2 = 1
    # Unbroken: A₂ = 3;  A₁ = 2 + 0.25·3 = 2.75;  A₀ = 1 + 0.25·2.75 = 1.6875
    # The second step terminates: δ₁ = A₁ = 2 + 0 − 4 = −2;  A₀ = 1 + 0.25·(−2) = 0.5; A₂ is the next episode's.
    # A time limit cuts it, and keeps the bootstrap: A₁ = δ₁ = 2;  A₀ = 1 + 0.25·2 = 1.5
    never, ended = flags(False, False, False), flags(False, True, False)
    steps = column(1, 2, 3), column(2, 4, 8), column(4, 8, 16)
    cases = (never, never, [1.6875, 2.75, 3.0]), (ended, ended, [0.5, -2.0, 3.0]), (never, ended, [1.5, 2.0, 3.0])
    for terminated, cut, expected in cases:
        advantages = compute_advantages(*steps, terminated, cut, 0.5, 0.5)
        np.testing.assert_array_equal(advantages[:, 0], np.array(expected, np.float32))


def test_environments_do_not_mix() -> None:
    generator = np.random.default_rng(3)
    rewards, values, following = generator.normal(size=(3, 6, 4)).astype(np.float32)
    done = generator.random((6, 4)) < 0.3
    together = compute_advantages(rewards, values, following, done, done, 0.9, 0.8)
    for k in range(4):
        part = slice(k, k + 1)
        alone = compute_advantages(
            rewards[:, part], values[:, part], following[:, part], done[:, part], done[:, part], 0.9, 0.8
        )
        np.testing.assert_array_equal(together[:, part], alone)


def test_losses_by_hand() -> None:
    # Logits [ln 3, 0]: π = [0.75, 0.25] in both rows. H = −(¾ ln ¾ + ¼ ln ¼) = 0.562335.
    outputs = tf.constant([[math.log(3.0), 0.0]] * 2)
    batch = {
        "action": tf.constant([0, 1]),
        "log_probability": tf.math.log([0.5, 0.25]),  # ρ = 1.5 and 1
        "advantage": tf.constant([3.0, 1.0]),  # normalised: 1 and −1
    }
    # L = (min(1.5·1, 1.2·1) + min(1·−1, 1·−1)) / 2 = (1.2 − 1) / 2 = 0.1; loss = −0.1 − 0.5 · 0.562335
    loss, parts = ppo.policy_loss(Categorical(), {}, outputs, batch, 0.2, tf.constant(0.5))
    assert float(parts["policy_loss"]) == pytest.approx(-0.1, abs=1e-6)
    assert float(parts["entropy"]) == pytest.approx(0.562335, abs=1e-6)
    assert float(loss) == pytest.approx(-0.1 - 0.5 * 0.562335, abs=1e-6)
    # k3 = mean((ρ − 1) − ln ρ) = ((0.5 − ln 1.5) + 0) / 2
    assert float(parts["divergence"]) == pytest.approx((0.5 - math.log(1.5)) / 2, abs=1e-6)
    assert float(parts["clipped"]) == 0.5
    assert float(ppo.value_loss(tf.constant([3.0, 5.0]), tf.constant([1.0, 6.0]))) == pytest.approx(
        0.5 * (4.0 + 1.0) / 2
    )


def test_every_epoch_sees_every_row_once() -> None:
    order = ppo.shuffle_minibatches(np.random.default_rng(0), rows=12, minibatch=4, epochs=2)
    assert order.shape == (6, 4)
    for epoch in order.reshape(2, 12):
        assert sorted(epoch) == list(range(12))
    assert not np.array_equal(order[:3], order[3:])


def test_clipping_by_norm_scales_all_gradients_together() -> None:
    gradients = {"a": tf.constant([3.0]), "b": tf.constant([4.0])}  # norm 5
    for limit, expected in ((0.5, [0.3, 0.4]), (10.0, [3.0, 4.0])):
        clipped, norm = clip_by_global_norm(gradients, limit)
        assert float(norm) == 5.0
        np.testing.assert_allclose([clipped["a"][0], clipped["b"][0]], expected, rtol=1e-6)
