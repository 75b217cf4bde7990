"""DDPG's pure functions, its noise and its update against numbers worked by hand."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.spec import ContinuousHead, DiscreteHead, NetworkSpec, Squash
from quarl.train.algorithms import ddpg
from quarl.train.algorithms.common.continuous import soft_update
from quarl.train.algorithms.common.deterministic import fresh_learner
from quarl.train.algorithms.common.exploration import ActionRange, ExplorationNoise
from quarl.train.algorithms.common.learner import Learner, learn
from quarl.train.algorithms.ddpg import DDPGSettings
from quarl.train.networks.weights import Weights
from tests.train.algorithms.transitions import draw_batches


def test_targets_and_soft_updates_by_hand() -> None:
    # Row 0: 1 + 0.9 · 10 = 10. Row 1 terminated, so its factor is 0 and only the reward is left.
    returns, discounts = tf.constant([1.0, 5.0]), tf.constant([0.9, 0.0])
    np.testing.assert_allclose(ddpg.td_targets(returns, discounts, [tf.constant([10.0, 7.0])]), [10, 5])
    values = [tf.constant([10.0, 2.0]), tf.constant([4.0, 8.0])]  # of two critics the smaller value is the target
    targets = ddpg.td_targets(tf.constant([1.0, 1.0]), tf.constant([0.5, 0.5]), values)
    np.testing.assert_allclose(targets, [3, 2])  # 1 + ½ · 4;  1 + ½ · 2
    new = soft_update({"w": np.array([0.0, 8.0])}, {"w": np.array([4.0, 0.0])}, 0.25)
    np.testing.assert_array_equal(new["w"], [1.0, 6.0])  # ¾ · 0 + ¼ · 4;  ¾ · 8 + ¼ · 0


def linear_critic(weights: list[float]) -> Weights:
    """Q = w · [s, a] without hidden layers."""
    return {"0/head/kernel": np.array(weights, np.float32)[:, None], "0/head/bias": np.zeros(1, np.float32)}


def test_actor_loss_and_its_gradient_by_hand() -> None:
    # One state s = 2, y = w s with w = 0.5, so a = tanh 1. Q = 3 s + 4 a.
    critic = linear_critic([3.0, 4.0])
    states = tf.constant([[2.0]])
    weights = {"head/kernel": tf.constant([[0.5]]), "head/bias": tf.constant([0.0])}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = ddpg.actor_loss(weights, critic, states, 0.25)
    # L = −(6 + 4 tanh 1) + ¼ · 1²;  dL/dw = −4 (1 − tanh² 1) · s + ¼ · 2 · y · s
    assert float(loss) == pytest.approx(-(6 + 4 * np.tanh(1.0)) + 0.25, rel=1e-6)
    slope = -4 * (1 - np.tanh(1.0) ** 2) * 2 + 0.25 * 2 * 1 * 2
    assert float(tape.gradient(loss, weights)["head/kernel"][0, 0]) == pytest.approx(slope, rel=1e-5)


def test_the_smoothing_noise_is_clipped() -> None:
    settings = DDPGSettings(target_noise=0.2, target_noise_clip=0.3)
    noise = ddpg.target_action_noise(np.random.default_rng(0), (20_000, 2), settings)
    assert np.abs(noise).max() == np.float32(0.3)
    # A normal variable of deviation σ cut at 1.5 σ has the deviation √(0.7785) σ = 0.8823 σ.
    assert noise.std() == pytest.approx(0.8823 * 0.2, rel=0.02)


class Ones:
    """A random generator whose normal draws are all 1."""

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.ones(shape, dtype)


def draw(noise: ExplorationNoise, scale: float) -> list[float]:
    return noise(Ones(), scale)[:, 0].tolist()  # type: ignore[arg-type]


def test_the_noise_by_hand_and_its_deviation() -> None:
    # θ = ¼, σ = 2, ε = 1: x = 2;  ¾ · 2 + 2 = 3.5;  ¾ · 3.5 + 2 = 4.625. The second environment starts over after two.
    noise = ExplorationNoise(environments=2, size=1, reversion=0.25, repeat=1)
    assert draw(noise, 2.0) == [2.0, 2.0]
    assert draw(noise, 2.0) == [3.5, 3.5]
    noise.begin(np.array([False, True]))
    assert draw(noise, 2.0) == [4.625, 2.0]
    # A reversion of one is independent noise; a slow process has the deviation that its docstring states.
    noise = ExplorationNoise(1, 1, reversion=1.0, repeat=1)
    assert [draw(noise, 0.5) for _ in range(3)] == [[0.5]] * 3
    values = np.concatenate([noise(np.random.default_rng(seed), 0.5) for seed in range(2000)])
    assert values.std() == pytest.approx(0.5, rel=0.1)
    generator = np.random.default_rng(0)
    noise = ExplorationNoise(400, 1, reversion=0.1, repeat=1)
    values = np.concatenate([noise(generator, 0.3) for _ in range(400)][100:])
    assert values.std() == pytest.approx(0.3 / np.sqrt(0.1 * 1.9), rel=0.03)


def test_a_draw_is_held_for_repeat_steps_counted_from_the_episodes_start() -> None:
    noise = ExplorationNoise(2, 1, reversion=1.0, repeat=2)
    generator = np.random.default_rng(0)
    first, second = noise(generator, 1.0).copy(), noise(generator, 1.0).copy()
    np.testing.assert_array_equal(first, second)
    noise.begin(np.array([True, False]))
    third = noise(generator, 1.0).copy()
    noise.begin(np.array([True, False]))
    fourth = noise(generator, 1.0).copy()
    assert third[0] != fourth[0]  # a new episode takes a new draw
    assert second[1] != third[1] == fourth[1]


def test_a_restored_process_goes_on_with_the_same_numbers() -> None:
    noise, copy = ExplorationNoise(3, 2, 0.2, 3), ExplorationNoise(3, 2, 0.2, 3)
    generator = np.random.default_rng(0)
    for _ in range(4):
        noise(generator, 0.7)
    copy.restore(noise.state())
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    for _ in range(4):
        np.testing.assert_array_equal(noise(one, 0.7), copy(other, 0.7))


def test_units_of_the_range_are_the_inverse_of_physical_units() -> None:
    reach = ActionRange(ContinuousHead((-2.0, 0.0, -3.0), (2.0, 10.0, -1.0), Squash.TANH), "d4pg")
    units = reach.unit(np.array([[-2.0, 0.0, -3.0], [0.0, 7.5, -2.0], [2.0, 10.0, -1.0]], np.float32))
    np.testing.assert_allclose(units, [[-1.0, -1.0, -1.0], [0.0, 0.5, 0.0], [1.0, 1.0, 1.0]], atol=1e-6)
    assert units.dtype == np.float32
    many = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    np.testing.assert_allclose(reach.unit(reach.physical(many)), many, atol=1e-6)
    np.testing.assert_allclose(reach.unit(reach.physical(many)[0]), many[0], atol=1e-6)  # one action alone, too


def test_named_actions_are_refused_with_what_to_type() -> None:
    with pytest.raises(ValueError, match="--method dqn"):
        ActionRange(DiscreteHead(("left", "right")), "ddpg")


def batches(updates: int, size: int = 4) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    drawn = draw_batches(generator, updates, size)
    return {**drawn, "target_noise": 0.1 * generator.normal(size=(updates, size, 2)).astype(np.float32)}


def learner(critics: int = 1) -> Learner:
    return fresh_learner(np.random.default_rng(0), NetworkSpec((8,)), NetworkSpec((8,)), (3,), 2, critics)


def test_one_update_by_the_equations() -> None:
    # Adam's first step moves every weight by about the learning rate against its gradient's sign; the targets follow
    # the learned weights by τ.
    settings = DDPGSettings(updates=1, target_rate=0.25, actor_learning_rate=1e-3, critic_learning_rate=1e-2)
    start, new = learner(), learner()
    learn(ddpg.make_update(settings), new, batches(1), 1.0)
    for name, rate in (("actor", 1e-3), ("critic", 1e-2)):
        for key, old in start.groups[name].items():
            moved = new.groups[name][key] - old
            assert np.abs(moved).max() < 1.001 * rate
            expected = 0.75 * old + 0.25 * new.groups[name][key]
            np.testing.assert_allclose(new.groups[f"{name}_target"][key], expected, atol=1e-6)
    assert new.updates == 1


@pytest.mark.slow
def test_a_policy_period_delays_actor_and_targets() -> None:
    settings = DDPGSettings(updates=1, policy_period=3, twin=True, target_noise=0.2)
    update, new, old = ddpg.make_update(settings), learner(2), learner(2)
    moved = []
    for _ in range(3):
        learn(update, new, batches(1), 1.0)
        moved.append(not np.array_equal(new.groups["actor"]["head/kernel"], old.groups["actor"]["head/kernel"]))
        same = np.array_equal(
            new.groups["critic_target"]["1/head/kernel"], old.groups["critic_target"]["1/head/kernel"]
        )
        assert same != moved[-1]
    assert moved == [False, False, True]
