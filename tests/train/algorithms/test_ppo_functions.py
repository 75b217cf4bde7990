"""PPO's pure functions against numbers worked by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms import ppo
from quarl.train.algorithms.common.actor_critic import ActorCritic
from quarl.train.algorithms.common.distributions import Categorical
from quarl.train.algorithms.common.rollouts import compute_advantages
from quarl.train.algorithms.common.settings import linear
from quarl.train.algorithms.ppo import PPOSettings
from quarl.train.networks.optimiser import clip_by_global_norm


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def flags(*values: bool) -> np.ndarray:
    return np.array(values, bool)[:, None]


def test_generalized_advantages_by_hand_over_one_unbroken_episode() -> None:
    # γ = 0.5, λ = 0.5, so γλ = 0.25; V = 2, 4, 8 and V of what follows the last step 16.
    # δ₂ = 3 + 0.5·16 − 8 = 3;  δ₁ = 2 + 0.5·8 − 4 = 2;  δ₀ = 1 + 0.5·4 − 2 = 1
    # A₂ = 3;  A₁ = 2 + 0.25·3 = 2.75;  A₀ = 1 + 0.25·2.75 = 1.6875
    none = flags(False, False, False)
    advantages = compute_advantages(column(1, 2, 3), column(2, 4, 8), column(4, 8, 16), none, none, 0.5, 0.5)
    np.testing.assert_array_equal(advantages[:, 0], np.array([1.6875, 2.75, 3.0], np.float32))


def test_a_termination_cuts_bootstrap_and_trace() -> None:
    # The second step terminates: δ₁ = 2 + 0 − 4 = −2, A₁ = −2; A₀ = 1 + 0.25·(−2) = 0.5; A₂ is the next episode's.
    ended = flags(False, True, False)
    advantages = compute_advantages(column(1, 2, 3), column(2, 4, 8), column(4, 8, 16), ended, ended, 0.5, 0.5)
    np.testing.assert_array_equal(advantages[:, 0], np.array([0.5, -2.0, 3.0], np.float32))


def test_a_time_limit_cuts_the_trace_but_keeps_the_bootstrap() -> None:
    # As before, but the second step is cut by the time limit: δ₁ = 2 + 0.5·8 − 4 = 2, A₁ = 2; A₀ = 1 + 0.25·2 = 1.5.
    never, ended = flags(False, False, False), flags(False, True, False)
    advantages = compute_advantages(column(1, 2, 3), column(2, 4, 8), column(4, 8, 16), never, ended, 0.5, 0.5)
    np.testing.assert_array_equal(advantages[:, 0], np.array([1.5, 2.0, 3.0], np.float32))


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


@pytest.mark.parametrize(("ratio", "advantage", "expected"), [
    (1.5, 2.0, 2.4),  # above 1 + ε with a good action: clipped to 1.2 · 2
    (0.5, 2.0, 1.0),  # below 1 − ε with a good action: min keeps 0.5 · 2, so there is a way back
    (1.5, -2.0, -3.0),  # above with a bad action: not clipped, it has to come back
    (0.5, -2.0, -1.6),  # below with a bad action: clipped to 0.8 · −2
    (1.1, 2.0, 2.2),  # inside
])  # fmt: skip
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, expected: float) -> None:
    value = ppo.compute_clipped_surrogate(tf.constant([ratio]), tf.constant([advantage]), 0.2)
    assert float(value) == pytest.approx(expected, rel=1e-6)


def test_policy_loss_by_hand() -> None:
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


def test_value_loss_by_hand() -> None:
    assert float(ppo.value_loss(tf.constant([3.0, 5.0]), tf.constant([1.0, 6.0]))) == pytest.approx(
        0.5 * (4.0 + 1.0) / 2
    )


def test_clipping_by_norm_scales_all_gradients_together() -> None:
    gradients = {"a": tf.constant([3.0]), "b": tf.constant([4.0])}  # norm 5
    clipped, norm = clip_by_global_norm(gradients, 0.5)
    assert float(norm) == 5.0
    np.testing.assert_allclose([clipped["a"][0], clipped["b"][0]], [0.3, 0.4], rtol=1e-6)
    untouched, _ = clip_by_global_norm(gradients, 10.0)
    np.testing.assert_allclose([untouched["a"][0], untouched["b"][0]], [3.0, 4.0], rtol=1e-6)


def test_every_epoch_sees_every_row_once() -> None:
    order = ppo.shuffle_minibatches(np.random.default_rng(0), rows=12, minibatch=4, epochs=2)
    assert order.shape == (6, 4)
    for epoch in order.reshape(2, 12):
        assert sorted(epoch) == list(range(12))
    assert not np.array_equal(order[:3], order[3:])


def test_a_schedule_is_linear_and_stops_at_its_ends() -> None:
    assert [linear(1.0, 0.2, share) for share in (-1.0, 0.0, 0.5, 1.0, 2.0)] == pytest.approx([1, 1, 0.6, 0.2, 0.2])


def test_a_minibatch_must_divide_the_batch() -> None:
    with pytest.raises(ValueError, match="minibatch"):
        PPOSettings(minibatch=3000)


def test_the_compiled_update_is_the_uncompiled_one() -> None:
    """XLA's result equals the same arithmetic run operation by operation; 2 epochs × 2 minibatches."""
    generator = np.random.default_rng(1)
    settings = PPOSettings(environments=8, rollout_steps=4, minibatch=16, epochs=2)
    batch = {
        "observation": generator.normal(size=(32, 3)).astype(np.float32),
        "action": generator.integers(4, size=32).astype(np.int32),
        "log_probability": np.full(32, math.log(0.25), np.float32),
        "advantage": generator.normal(size=32).astype(np.float32),
        "return": generator.normal(size=32).astype(np.float32),
    }
    order = ppo.shuffle_minibatches(generator, 32, 16, 2)
    results = []
    for eager in (False, True):
        learner = ActorCritic.fresh(np.random.default_rng(2), NetworkSpec((8,)), (3,), 4)
        tf.config.run_functions_eagerly(eager)
        try:
            update = ppo.make_update(settings, learner.network, Categorical())
            (metrics,) = learner.take(update, batch, order, np.float32(0), np.float32(1e-2), np.float32(0.01))
        finally:
            tf.config.run_functions_eagerly(False)
        assert metrics.shape == (4, 7)
        results.append((learner, metrics))
    (compiled, compiled_metrics), (plain, plain_metrics) = results
    np.testing.assert_allclose(compiled_metrics, plain_metrics, rtol=1e-4, atol=1e-5)
    for name, value in plain.policy.items():
        # Adam divides by √v, which magnifies rounding of small gradients; a step is 1e-2, the tolerance a thousandth.
        np.testing.assert_allclose(compiled.policy[name], value, atol=1e-5, err_msg=name)
