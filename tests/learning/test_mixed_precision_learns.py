"""Training in 16 bits reaches what training in 32 bits reaches, and with a wrong gradient it does not."""

import dataclasses
from collections.abc import Callable

import pytest

from quarl.bench.study.measures.catch import catch_task
from quarl.policy.spec import Convolution, NetworkSpec
from quarl.train.algorithms import dqn
from quarl.train.quantization import mixed_precision

CORRIDOR = dqn.DQNSettings(
    environments=16, rollout_steps=16, updates=32, minibatch=64, learning_rate=1e-3, learning_starts=2048,
    target_period=50, n_step=2, discount=0.95, replay_capacity=20_000, exploration=0.5,
)  # fmt: skip
CATCH = dqn.DQNSettings(
    environments=16, rollout_steps=8, updates=32, minibatch=32, learning_rate=1e-3, learning_starts=512, n_step=3,
    target_period=50, replay_capacity=8000, exploration=0.3, discount=0.9,
)  # fmt: skip
CONVOLUTIONS = NetworkSpec((64,), convolutions=(Convolution(32, 4, 2), Convolution(32, 3, 1)))


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_a_perceptron_walks_the_corridor_straight(learn: Callable, compute: str) -> None:
    result = learn(dqn.train, dataclasses.replace(CORRIDOR, compute=compute), 20 * 1024)
    assert result.success == 1.0
    assert result.mean_length == 10


def test_convolutions_learn_to_catch(learn: Callable) -> None:
    settings = dataclasses.replace(CATCH, compute="float16")
    assert learn(dqn.train, settings, 6144, task=catch_task(), network=CONVOLUTIONS).mean_return > 0.6


@pytest.mark.slow
def test_with_the_kernels_gradients_turned_round_they_do_not(learn: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    # The convolutions then forget what the layers behind them learn from.
    right = mixed_precision.parameter_gradients
    monkeypatch.setattr(
        mixed_precision, "parameter_gradients", lambda *arguments: tuple(-each for each in right(*arguments))
    )
    settings = dataclasses.replace(CATCH, compute="bfloat16")
    assert learn(dqn.train, settings, 6144, task=catch_task(), network=CONVOLUTIONS).mean_return < 0.3
