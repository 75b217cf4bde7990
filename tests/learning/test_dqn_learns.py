"""DQN learns in seconds what a broken DQN cannot."""

import dataclasses
from collections.abc import Callable

import pytest
import tensorflow as tf

from train import dqn
from train.tasks import make_task

SETTINGS = dqn.DQNSettings(
    environments=16, rollout_steps=16, updates=32, minibatch=64, learning_rate=1e-3, learning_starts=2048,
    target_period=50, n_step=2, discount=0.95, replay_capacity=20_000, exploration=0.5,
)  # fmt: skip
STEPS = 20 * 1024


def test_dqn_walks_the_corridor_straight(learn: Callable) -> None:
    result = learn(dqn.train, SETTINGS, STEPS)
    assert result.success == 1.0
    assert result.mean_length == 10


def test_with_a_target_network_that_is_never_updated_it_does_not(learn: Callable) -> None:
    # The reward then travels no farther back than the n steps of a return: the start never hears of the goal.
    never = dataclasses.replace(SETTINGS, target_period=10**9)
    assert learn(dqn.train, never, STEPS).success < 0.5


def test_with_the_sign_of_the_error_flipped_it_does_not(learn: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dqn, "huber", lambda errors, delta: -tf.abs(errors))
    assert learn(dqn.train, SETTINGS, STEPS).success < 0.5


def test_dqn_balances_cartpole(learn: Callable) -> None:
    settings = dqn.DQNSettings(
        environments=8, rollout_steps=16, updates=32, minibatch=128, learning_rate=1e-3, learning_starts=1000,
        reward_scale=0.02, replay_capacity=40_000,
    )  # fmt: skip
    assert learn(dqn.train, settings, 60_000, task=make_task("CartPole-v1")).mean_return > 400
