"""A2C learns in seconds what a broken A2C cannot."""

from collections.abc import Callable
from typing import Any

import pytest

from quarl.train.algorithms import a2c
from quarl.train.suites.make import make_task

SETTINGS = a2c.A2CSettings(
    environments=16, rollout_steps=16, learning_rate=3e-3, normaliser_steps=2048, discount=0.98, gae_lambda=0.95
)
STEPS = 60 * 1024


def test_a2c_walks_the_corridor_straight(learn: Callable) -> None:
    result = learn(a2c.train, SETTINGS, STEPS)
    assert result.success == 1.0
    assert result.mean_length == 10  # the discount is felt: not one step too many


@pytest.fixture
def flipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of the advantage is wrong in the policy's loss."""
    right: Any = a2c.loss_parts

    def wrong(*arguments: Any) -> dict[str, Any]:
        *others, batch = arguments
        return right(*others, {**batch, "advantage": -batch["advantage"]})

    monkeypatch.setattr(a2c, "loss_parts", wrong)


@pytest.mark.slow
@pytest.mark.usefixtures("flipped")
def test_with_the_sign_of_the_advantage_flipped_it_does_not(learn: Callable) -> None:
    assert learn(a2c.train, SETTINGS, STEPS).success < 0.5


def test_a2c_balances_cartpole(learn: Callable) -> None:
    # A policy that learned nothing keeps the pole up for about 20 steps, always pushing one way for 9.
    settings = a2c.A2CSettings(
        environments=16, rollout_steps=16, learning_rate=2e-3, reward_scale=0.05, normaliser_steps=10_000
    )
    assert learn(a2c.train, settings, 60 * 1024, task=make_task("CartPole-v1")).mean_return > 400
