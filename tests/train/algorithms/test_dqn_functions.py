"""DQN's pure functions against numbers worked by hand, and its ε-greedy actions, plain and held."""

import numpy as np
import tensorflow as tf

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms import dqn
from quarl.train.algorithms.common.exploration import EpsilonGreedy
from quarl.train.algorithms.common.learner import learn
from quarl.train.algorithms.common.replay import n_step_returns
from quarl.train.algorithms.dqn import DQNSettings


def test_double_targets_by_hand() -> None:
    # Row 0: the online network prefers action 1, which the target network values 10: 1 + 0.9·10 = 10 (not 1 + 0.9·20).
    # Row 1: terminated, so the factor is 0 and only the reward is left.
    targets = dqn.td_targets(
        tf.constant([1.0, 5.0]), tf.constant([0.9, 0.0]), tf.constant([[2.0, 3.0], [1.0, 0.0]]),
        tf.constant([[20.0, 10.0], [7.0, 7.0]]),
    )  # fmt: skip
    np.testing.assert_allclose(targets, [10.0, 5.0])


def test_n_step_returns_by_hand() -> None:
    # γ = 0.5; columns: an unbroken episode, one that terminates at its 2nd step, one cut by time at its 2nd,
    # one that terminates at once.
    rewards = np.array([[1, 1, 1, 1], [2, 2, 2, 2], [4, 4, 4, 4]], np.float32)
    done = np.array([[0, 0, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]], bool)
    terminated = np.array([[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]], bool)
    returns, factors = n_step_returns(rewards, done, terminated, 0.5)
    # 1 + ½·2 + ¼·4 = 3;  1 + ½·2 = 2;  2;  1
    np.testing.assert_array_equal(returns, np.array([3, 2, 2, 1], np.float32))
    # γ³;  0, since it terminated;  γ², since a time limit is bootstrapped;  0
    np.testing.assert_array_equal(factors, np.array([0.125, 0, 0.25, 0], np.float32))


def test_huber_by_hand() -> None:
    np.testing.assert_allclose(dqn.huber(tf.constant([0.5, -1.0, 3.0]), 1.0), [0.125, 0.5, 2.5])
    np.testing.assert_allclose(dqn.huber(tf.constant([3.0]), 2.0), [4.0])  # 2 · (3 − 1)


def test_the_target_network_is_renewed_every_period_and_only_then() -> None:
    settings = DQNSettings(target_period=3, updates=2, minibatch=4)
    generator = np.random.default_rng(0)
    learner = dqn.fresh_learner(generator, NetworkSpec((4,)), (2,), 3)
    update = dqn.make_update(settings, NetworkSpec((4,)))
    shape = (2, 4)
    batches = {
        "observation": generator.normal(size=(*shape, 2)).astype(np.float32),
        "action": generator.integers(3, size=shape).astype(np.int32),
        "return": np.ones(shape, np.float32),
        "discount": np.full(shape, 0.9, np.float32),
        "next_observation": generator.normal(size=(*shape, 2)).astype(np.float32),
    }
    first = learner.groups["target"]["head/bias"].copy()
    learn(update, learner, batches, 1e-2)  # updates 1 and 2
    np.testing.assert_array_equal(learner.groups["target"]["head/bias"], first)
    assert not np.array_equal(learner.groups["online"]["head/bias"], first)
    learn(update, learner, batches, 1e-2)  # update 3 renews, update 4 moves on
    assert not np.array_equal(learner.groups["target"]["head/bias"], first)
    assert not np.array_equal(learner.groups["target"]["head/bias"], learner.groups["online"]["head/bias"])
    learn(update, learner, batches, 1e-2)  # update 6 is the last one and renews
    np.testing.assert_array_equal(learner.groups["target"]["head/bias"], learner.groups["online"]["head/bias"])


def values(rows: int) -> np.ndarray:
    return np.tile(np.array([0.0, 2.0, 1.0], np.float32), (rows, 1))


def test_plain_actions_are_greedy_or_uniform() -> None:
    explore = EpsilonGreedy(3000, longest=1)
    assert (explore(np.random.default_rng(0), values(3000), 0.0) == 1).all()
    counts = np.bincount(explore(np.random.default_rng(0), values(3000), 1.0), minlength=3)
    assert (np.abs(counts - 1000) < 110).all()  # 4 standard deviations of a uniform draw are 103
    assert (explore(np.random.default_rng(0), values(3000), 0.0) == 1).all()  # nothing is held


def test_random_actions_are_held_at_most_to_the_episodes_end() -> None:
    explore, generator = EpsilonGreedy(4000, longest=4), np.random.default_rng(0)
    first = explore(generator, values(4000), 1.0)
    steps = [explore(generator, values(4000), 0.0) for _ in range(4)]
    held = [((action == first) & (first != 1)).sum() / (first != 1).sum() for action in steps]
    np.testing.assert_allclose(held, [0.75, 0.5, 0.25, 0.0], atol=0.05)  # durations 1, 2, 3, 4 alike
    explore(generator, values(4000), 1.0)
    explore.begin(np.ones(4000, bool))
    assert (explore(generator, values(4000), 0.0) == 1).all()


def test_restored_it_holds_the_same() -> None:
    one, other = (EpsilonGreedy(50, longest=9) for _ in range(2))
    one(np.random.default_rng(0), values(50), 0.7)
    other.restore({name: array.copy() for name, array in one.state().items()})
    for _ in range(3):
        a, b = (explore(np.random.default_rng(1), values(50), 0.1) for explore in (one, other))
        np.testing.assert_array_equal(a, b)
