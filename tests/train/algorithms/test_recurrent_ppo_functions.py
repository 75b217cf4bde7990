"""Recurrent PPO's functions: sequences cut from a rollout, states that go on, gradients through time."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.reference import forward_float
from quarl.policy.spec import Cell, NetworkSpec, Normaliser, Recurrence
from quarl.train.algorithms.recurrent_ppo import sequences
from quarl.train.methods import refuse_memory
from quarl.train.networks.recurrent import Memory, unroll_network
from quarl.train.runs.models import parse_model
from quarl.train.runs.presets import SettingsError
from quarl.train.suites.errors import TaskError
from tests.recurrent_policies import episodes, recurrent_spec, state_fields, weights_of
from tests.refusals import refused

TWO = NetworkSpec((9, 11), recurrences=(Recurrence(Cell.GRU, 8, 1), Recurrence(Cell.GRU, 5, 2)))
SPEC = dataclasses.replace(
    recurrent_spec("gru"), network=TWO, observation=(recurrent_spec("gru").observation[0], *state_fields(TWO)),
    normaliser=Normaliser((0.0,) * 7, (1.0,) * 7),
)  # fmt: skip


def test_sequences_are_cut_in_time_and_environments_stay_apart() -> None:
    column = np.arange(4 * 3).reshape(4, 3)  # (steps, environments)
    cut = sequences({"x": column}, 2)["x"]
    assert cut.tolist() == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]


def test_unrolled_steps_are_those_of_the_contract() -> None:
    weights = weights_of(SPEC)
    rows = episodes(SPEC, weights, 24, every=6)
    begins = (np.arange(24) % 6 == 0).astype(np.float32)[:, None]
    outputs, states = unroll_network(TWO, weights, rows[:, None, :7], np.ones((1, 13), np.float32), begins)
    wanted = forward_float(SPEC, weights, rows)
    np.testing.assert_allclose(outputs, wanted[:, :3], atol=1e-5)
    np.testing.assert_allclose(np.concatenate(states), wanted[:, 3:], atol=1e-5)
    as_tensors, _ = unroll_network(TWO, weights, tf.constant(rows[:, None, :7]), tf.ones((1, 13)), tf.constant(begins))
    np.testing.assert_allclose(as_tensors.numpy(), outputs, atol=1e-5)


def test_a_memory_steps_as_the_unrolled_network_does_and_is_resumed() -> None:
    weights = weights_of(SPEC)
    inputs = np.random.default_rng(2).standard_normal((10, 4, 7)).astype(np.float32)
    begins = np.random.default_rng(3).random((10, 4)) < 0.3
    begins[0] = True
    memory, made = Memory(4, 13), []
    for step in range(10):
        memory.begin(begins[step])
        if step == 5:
            kept = memory.state()
            memory = Memory(4, 13)
            memory.restore(kept)
        made.append(memory.step(TWO, weights, inputs[step]))
    wanted, states = unroll_network(TWO, weights, inputs, np.zeros((4, 13), np.float32), begins.astype(np.float32))
    np.testing.assert_allclose(np.concatenate(made), wanted, atol=1e-5)
    np.testing.assert_allclose(memory.states, states[-1], atol=1e-5)


def test_gradients_stop_at_the_episodes_beginning() -> None:
    weights = {name: tf.constant(value) for name, value in weights_of(SPEC).items()}
    inputs = tf.constant(np.random.default_rng(4).standard_normal((6, 1, 7)).astype(np.float32))
    begins = tf.constant(np.array([0, 0, 1, 0, 0, 0], np.float32)[:, None])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs, _ = unroll_network(TWO, weights, inputs, tf.zeros((1, 13)), begins)
        last = tf.reduce_sum(outputs[-1])
    reach = np.abs(tape.gradient(last, inputs).numpy()).max(axis=(1, 2))
    assert (reach[:2] == 0).all() and (reach[2:] > 0).all()


def test_the_gradient_is_that_of_differences() -> None:
    weights, direction = weights_of(SPEC), weights_of(SPEC, seed=9)
    inputs = np.random.default_rng(5).standard_normal((5, 2, 7)).astype(np.float32)
    begins = np.zeros((5, 2), np.float32)
    tensors = {name: tf.constant(value) for name, value in weights.items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = tf.reduce_mean(
            unroll_network(TWO, tensors, tf.constant(inputs), tf.zeros((2, 13)), tf.constant(begins))[0] ** 2
        )
    gradients = tape.gradient(loss, tensors)
    along = sum(float(np.sum(gradients[name].numpy() * direction[name])) for name in weights)

    def at(step: float) -> float:
        moved = {name: (value + step * direction[name]).astype(np.float64) for name, value in weights.items()}
        return float(np.mean(unroll_network(TWO, moved, inputs.astype(np.float64), np.zeros((2, 13)), begins)[0] ** 2))

    assert along == pytest.approx((at(1e-4) - at(-1e-4)) / 2e-4, rel=1e-3)


def test_a_model_with_a_memory_is_read_and_wants_its_method() -> None:
    network = parse_model("128,gru-64,32")
    assert network.hidden == (128, 32) and network.recurrences == (Recurrence(Cell.GRU, 64, 1),)
    assert parse_model("gru-16").recurrences == (Recurrence(Cell.GRU, 16, 0),)
    for text in ("gru", "gru-0", "lstm-8", "8,gru-"):
        with refused(SettingsError, "bad_model"):
            parse_model(text)
    with refused(TaskError, "method_not_recurrent"):
        refuse_memory("ppo", parse_model("gru-8"))
    with refused(TaskError, "method_needs_recurrence"):
        refuse_memory("recurrent_ppo", NetworkSpec((8,)))
    refuse_memory("recurrent_ppo", parse_model("gru-8"))
    refuse_memory("dqn", NetworkSpec((8,)))
