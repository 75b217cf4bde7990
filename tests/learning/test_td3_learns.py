"""TD3 is DDPG's training with its own defaults, and learns what a broken one cannot."""

import dataclasses
from pathlib import Path

import pytest

from quarl.train.algorithms import ddpg, td3
from quarl.train.methods import METHODS, settings_class
from tests.learning.continuous import learned

SETTINGS = td3.TD3Settings(
    environments=8, rollout_steps=8, updates=32, minibatch=64, critic_hidden=(32, 32), learning_starts=512,
    target_rate=0.02, discount=0.9, noise_first=0.3, replay_capacity=10_000,
)  # fmt: skip
STEPS = 4096
GOOD, BAD = 9.3, 8.5  # the best policy has 9.6, the ball left where it is 6.7


def test_the_defaults_are_the_papers() -> None:
    settings = td3.TD3Settings()
    assert settings.twin and settings.policy_period == 2
    assert (settings.target_noise, settings.target_noise_clip) == (0.2, 0.5)
    assert (settings.noise_first, settings.noise_last, settings.noise_reversion) == (0.1, 0.1, 1.0)
    assert (settings.target_rate, settings.discount, settings.actor_learning_rate) == (0.005, 0.99, 1e-3)
    assert settings.updates == settings.environments * settings.rollout_steps  # one for every step
    assert td3.train is ddpg.train and settings_class("td3") is td3.TD3Settings
    assert METHODS["td3"].actions == METHODS["ddpg"].actions


def test_td3_keeps_the_ball_in_the_middle(tmp_path: Path) -> None:
    assert learned(tmp_path, td3.train, SETTINGS, STEPS) > GOOD


@pytest.mark.slow
def test_with_target_networks_that_are_never_updated_it_does_not(tmp_path: Path) -> None:
    # The reward is for the place before the action, so without a bootstrap no action is better than another.
    assert learned(tmp_path, td3.train, dataclasses.replace(SETTINGS, target_rate=0.0), STEPS) < BAD
