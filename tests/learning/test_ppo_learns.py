"""PPO learns in seconds what a broken PPO cannot."""

from collections.abc import Callable

import pytest

from quarl.bench.study.measures.catch import catch_task
from quarl.policy.spec import Convolution, NetworkSpec
from quarl.train.algorithms import ppo
from quarl.train.suites.make import make_task

SETTINGS = ppo.PPOSettings(
    environments=16, rollout_steps=64, minibatch=256, learning_rate=2e-3, normaliser_steps=2048, discount=0.98
)
STEPS = 30 * 1024


def test_ppo_walks_the_corridor_straight(learn: Callable) -> None:
    result = learn(ppo.train, SETTINGS, STEPS)
    assert result.success == 1.0
    assert result.mean_length == 10  # the discount is felt: not one step too many


@pytest.mark.slow
def test_with_the_sign_of_the_advantage_flipped_it_does_not(learn: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ppo.compute_clipped_surrogate
    monkeypatch.setattr(
        ppo, "compute_clipped_surrogate", lambda ratio, advantages, clip: right(ratio, -advantages, clip)
    )
    assert learn(ppo.train, SETTINGS, STEPS).success < 0.5


def test_ppo_balances_cartpole(learn: Callable) -> None:
    # A policy that learned nothing keeps the pole up for about 20 steps, always pushing one way for 9.
    settings = ppo.PPOSettings(
        environments=16, rollout_steps=64, minibatch=256, learning_rate=2e-3, reward_scale=0.05, normaliser_steps=10_000
    )
    assert learn(ppo.train, settings, 60 * 1024, task=make_task("CartPole-v1")).mean_return > 400


PICTURES = ppo.PPOSettings(
    environments=32, rollout_steps=28, minibatch=224, learning_rate=2e-3, discount=0.95, value_weight=0.5
)
CONVOLUTIONS = NetworkSpec((64,), convolutions=(Convolution(32, 4, 2), Convolution(32, 3, 1)))


@pytest.mark.slow
def test_ppo_learns_to_catch_from_pictures(learn: Callable) -> None:
    # A player that does not look returns about −0.7.
    assert learn(ppo.train, PICTURES, 28 * 1024, task=catch_task(), network=CONVOLUTIONS).mean_return > 0.5
