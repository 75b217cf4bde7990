"""D4PG's pure functions and its update against numbers worked by hand."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms import d4pg
from quarl.train.algorithms.common.deterministic import fresh_learner
from quarl.train.algorithms.common.learner import Learner, learn
from quarl.train.algorithms.d4pg import D4PGSettings
from quarl.train.networks.forward import mlp
from tests.train.algorithms.transitions import draw_batches

ATOMS = np.array([0.0, 1.0, 2.0, 3.0], np.float32)


def project(returns: float, discount: float, probabilities: list[float]) -> np.ndarray:
    row = tf.constant([probabilities])
    return d4pg.project_distribution(tf.constant([returns]), tf.constant([discount]), row, ATOMS).numpy()[0]


PROJECTED: dict[str, tuple[float, float, list[float], list[float]]] = {
    # γ' = 1, R = 1: every atom moves one up; what would be 4 is clipped to 3 and joins what came from 2.
    "atoms on atoms": (1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [0, 0.1, 0.2, 0.7]),
    # R = 0.25, γ' = 0.5: the atoms 0, 1, 2, 3 go to 0.25, 0.75, 1.25, 1.75.
    # m₀ = 0.75 p₀ + 0.25 p₁;  m₁ = 0.25 p₀ + 0.75 p₁ + 0.75 p₂ + 0.25 p₃;  m₂ = 0.25 p₂ + 0.75 p₃
    "atoms between atoms": (0.25, 0.5, [0.4, 0.2, 0.1, 0.3], [0.35, 0.1 + 0.15 + 0.075 + 0.075, 0.025 + 0.225, 0]),
    "beyond the upper end": (9.0, 1.0, [0.25] * 4, [0, 0, 0, 1]),
    "beyond the lower end": (-9.0, 1.0, [0.25] * 4, [1, 0, 0, 0]),
    "terminated, the reward alone": (1.5, 0.0, [0.7, 0.1, 0.1, 0.1], [0, 0.5, 0.5, 0]),
}


@pytest.mark.parametrize("case", PROJECTED)
def test_projections_by_hand(case: str) -> None:
    returns, discount, probabilities, expected = PROJECTED[case]
    np.testing.assert_allclose(project(returns, discount, probabilities), expected, atol=1e-6)


def test_a_projection_keeps_the_sum_and_inside_the_ends_the_mean() -> None:
    generator = np.random.default_rng(0)
    atoms = np.linspace(-10, 10, 51, dtype=np.float32)
    p = generator.dirichlet(np.ones(51), size=100).astype(np.float32)
    returns = generator.uniform(-2, 2, 100).astype(np.float32)
    discounts = generator.uniform(0, 0.8, 100).astype(np.float32)
    projected = d4pg.project_distribution(tf.constant(returns), tf.constant(discounts), tf.constant(p), atoms).numpy()
    np.testing.assert_allclose(projected.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(projected @ atoms, returns + discounts * (p @ atoms), atol=1e-4)


def mass(returns: float, discount: float, probabilities: list[float], atoms: np.ndarray = ATOMS) -> float:
    row = tf.constant([probabilities])
    return float(d4pg.compute_clipped_mass(tf.constant([returns]), tf.constant([discount]), row, atoms)[0])


def test_the_mass_beyond_the_ends_by_hand() -> None:
    # 0 … 3, γ' = 1. R = 1: what came from 3 is beyond. R = −2: what came from 0 and 1. R = 9: all. R = 0: nothing.
    for returns, expected in ((1.0, 0.4), (-2.0, 0.3), (9.0, 1.0), (0.0, 0.0)):
        assert mass(returns, 1.0, [0.1, 0.2, 0.3, 0.4]) == pytest.approx(expected)
    assert mass(-0.01, 0.0, [0.1, 0.2, 0.3, 0.4]) == pytest.approx(1.0)  # a little beyond is beyond: it never adds up
    # Rewards of 1 with γ = 0.99 stay within 0 … 100, whatever float32 makes of 1 + 99.
    atoms = np.linspace(0, 100, 51, dtype=np.float32)
    for steps in range(1, 20):
        top = [0.0] * 50 + [1.0]
        assert mass(sum(0.99**k for k in range(steps)), 0.99**steps, top, atoms) == 0.0


def test_the_atoms_that_rewards_need_by_hand() -> None:
    settings = D4PGSettings(n_step=2, discount=0.5)  # 1 / (1 − ¼) = 4/3
    assert d4pg.recommend_atom_range(np.array([[-9.0, -3.0]]), settings) == (-12.0, 0.0)
    assert d4pg.recommend_atom_range(np.array([[-0.3, 930.0]]), settings) == (-0.4, 1300.0)  # 1,240, rounded outwards
    assert d4pg.recommend_atom_range(np.array([[7.5]]), settings) == (0.0, 10.0)


def test_returns_outside_the_atoms_are_told_once_with_what_to_type() -> None:
    settings = D4PGSettings(n_step=1, discount=0.9, target_period=10)
    watch, beyond = d4pg.AtomWatch(settings), np.full((4, 5), 0.3, np.float32)
    within, returns = np.zeros((4, 5), np.float32), np.array([[-20.0, -5.0]])
    assert watch.look(within, returns, 1_000) is None
    assert watch.look(beyond, returns, 99) is None  # the first guess of the target networks
    sentence = watch.look(beyond, returns, 100)
    assert sentence is not None and "30 %" in sentence and "atoms 0 … 100" in sentence
    assert "--set value_min=-200 --set value_max=0" in sentence
    assert watch.look(beyond, returns, 110) is None


def test_cross_entropy_mean_value_and_support_by_hand() -> None:
    # softmax([0, log 3]) = [¼, ¾];  −(½ log ¼ + ½ log ¾)
    loss = d4pg.cross_entropy(tf.constant([[0.5, 0.5]]), tf.constant([[0.0, np.log(3.0)]], tf.float32))
    np.testing.assert_allclose(loss, [-0.5 * np.log(0.25) - 0.5 * np.log(0.75)], rtol=1e-6)
    logits = tf.constant([[0.0, np.log(3.0)]], tf.float32)
    np.testing.assert_allclose(d4pg.mean_value(logits, np.array([2.0, 10.0], np.float32)), [8.0], rtol=1e-6)  # ½ + 7½
    support = D4PGSettings(atoms=5, value_min=-1.0, value_max=1.0).support
    np.testing.assert_array_equal(support, np.array([-1, -0.5, 0, 0.5, 1], np.float32))


def test_the_actors_gradient_leads_to_the_more_valuable_atom() -> None:
    # No hidden layers: the logit of the upper atom is 2 a, that of the lower one 0, a = tanh(w s), s = 1, w = 0.
    kernel = np.array([[0.0, 0.0], [0.0, 2.0]], np.float32)  # rows: s, a
    critic = {"0/head/kernel": kernel, "0/head/bias": np.zeros(2, np.float32)}
    actor = {"head/kernel": tf.constant([[0.0]]), "head/bias": tf.constant([0.0])}
    with tf.GradientTape() as tape:
        tape.watch(actor)
        loss = d4pg.actor_loss(actor, critic, tf.constant([[1.0]]), np.array([0.0, 1.0], np.float32))
    # Q = σ(2 a): −Q = −½, and −dQ/dw = −σ'(0) · 2 · tanh'(0) = −¼ · 2 = −½
    assert float(loss) == pytest.approx(-0.5)
    assert float(tape.gradient(loss, actor)["head/kernel"][0, 0]) == pytest.approx(-0.5)


def columns(updates: int) -> dict[str, np.ndarray]:
    drawn = draw_batches(np.random.default_rng(5), updates)
    return {**drawn, "return": 50 + 10 * drawn["return"]}


@pytest.mark.slow
def test_the_targets_are_copied_every_period_and_only_then() -> None:
    settings = D4PGSettings(target_period=3, actor_learning_rate=1e-2, critic_learning_rate=1e-2)
    start = np.random.default_rng(0)
    learner = fresh_learner(start, NetworkSpec((8,)), NetworkSpec((8,)), (3,), 2, critic_outputs=51)
    update = d4pg.make_update(settings)
    for done in range(1, 7):
        before = learner.groups
        learn(update, learner, columns(1), 1.0)
        for name in ("actor", "critic"):
            source = learner.groups[name] if done % 3 == 0 else before[f"{name}_target"]
            for key, value in learner.groups[f"{name}_target"].items():
                np.testing.assert_array_equal(value, source[key])


def test_the_critic_learns_the_distribution_of_terminal_rewards() -> None:
    settings = D4PGSettings(critic_learning_rate=1e-2)
    learner = fresh_learner(
        np.random.default_rng(0), NetworkSpec((8,)), NetworkSpec((32,)), (3,), 2, critic_outputs=settings.atoms
    )
    batch = columns(1)
    batch["discount"][:] = 0.0
    many = {name: np.repeat(column, 400, axis=0) for name, column in batch.items()}
    learn(d4pg.make_update(settings), learner, many, 1.0)
    logits = d4pg.critic_logits(learner.groups["critic"], batch["observation"][0], batch["action"][0])
    np.testing.assert_allclose(d4pg.mean_value(logits, settings.support), batch["return"][0], atol=1.5)


WATCHED = D4PGSettings(minibatch=4, atoms=21, value_min=0.0, value_max=100.0, critic_learning_rate=1e-2)


@lru_cache
def watched_update(with_losses: bool) -> Callable[..., Any]:
    """Compiled once for all tests below: that takes seconds."""
    return d4pg.make_update(WATCHED, with_losses=with_losses)


def two_updates(batch: dict[str, np.ndarray], with_losses: bool) -> tuple[np.ndarray, dict[str, Any], Learner]:
    """What a round of two updates tells, the arrays before it, and the learner after it."""
    network = NetworkSpec((8,))
    learner = fresh_learner(np.random.default_rng(0), network, network, (3,), 2, critic_outputs=WATCHED.atoms)
    before = learner.groups
    metrics = learn(watched_update(with_losses), learner, batch, 1.0)
    return np.concatenate(metrics, axis=1), before, learner


def assert_same_critics(one: Learner, other: Learner) -> None:
    for name, array in one.groups["critic"].items():
        np.testing.assert_allclose(other.groups["critic"][name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_transition_losses_follow_the_metrics() -> None:
    batch = columns(2)
    metrics, before, learner = two_updates(batch, with_losses=True)
    plain, _, same = two_updates(batch, with_losses=False)
    assert (metrics.shape, plain.shape) == ((2, 5 + 4), (2, 5))
    np.testing.assert_allclose(metrics[:, :5], plain, rtol=1e-5)
    np.testing.assert_allclose(metrics[:, 5:].mean(axis=1), metrics[:, 0], rtol=1e-5)  # the critic's loss is their mean
    assert_same_critics(learner, same)
    # The first update's, from the networks as they were: targets of the target networks, cross entropy of the critic.
    following = batch["next_observation"][0]
    action = tf.tanh(mlp(before["actor_target"], following))
    probabilities = tf.nn.softmax(d4pg.critic_logits(before["critic_target"], following, action))
    targets = d4pg.project_distribution(batch["return"][0], batch["discount"][0], probabilities, WATCHED.support)
    logits = d4pg.critic_logits(before["critic"], batch["observation"][0], batch["action"][0])
    np.testing.assert_allclose(metrics[0, 5:], d4pg.cross_entropy(targets, logits), rtol=1e-4)


def test_importance_weights_scale_the_critic_loss_only() -> None:
    batch, weight = columns(2), np.array([[1.0, 0.5, 0.25, 0.0]] * 2, np.float32)
    plain, _, unweighted = two_updates(batch, with_losses=True)
    ones, _, same = two_updates({**batch, "weight": np.ones((2, 4), np.float32)}, with_losses=True)
    metrics, _, weighted = two_updates({**batch, "weight": weight}, with_losses=True)
    np.testing.assert_allclose(ones, plain, rtol=1e-5)
    assert_same_critics(same, unweighted)
    np.testing.assert_allclose(metrics[0, 5:], plain[0, 5:], rtol=1e-5)
    np.testing.assert_allclose(metrics[:, 0], (weight * metrics[:, 5:]).mean(axis=1), rtol=1e-5)
    kernel = "0/head/kernel"
    assert not np.allclose(weighted.groups["critic"][kernel], unweighted.groups["critic"][kernel], atol=1e-4)
    # A transition of weight 0 teaches the critic nothing: another return there changes nothing.
    other = {**batch, "return": batch["return"] + np.array([0, 0, 0, 30], np.float32), "weight": weight}
    _, _, ignorant = two_updates(other, with_losses=True)
    assert_same_critics(ignorant, weighted)
