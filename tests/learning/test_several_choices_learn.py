"""PPO and A2C learn several choices at once, in seconds, to a share that a broken algorithm does not reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from quarl.policy.spec import NetworkSpec
from quarl.train.accelerator import on_policy
from quarl.train.algorithms import a2c, ppo
from quarl.train.suites.make import make_task
from tests.train.suites.several_choices import STEPS

MODULE = "tests.train.suites.several_choices"
PPO = ppo.PPOSettings(
    environments=16, rollout_steps=32, minibatch=128, learning_rate=1e-2, normaliser_steps=512, discount=0.0,
    engine="numpy",
)  # fmt: skip
A2C = a2c.A2CSettings(
    environments=16, rollout_steps=16, learning_rate=1e-2, normaliser_steps=512, discount=0.0, optimiser="adam"
)
NETWORK = NetworkSpec((32,))
# All choices right at every step earn 16. Drawn at random they earn 16 / 24 (Dials), 16 / 8 (Switches), 16 / 3
# (FromOne); with one of the choices left to chance 8 at most.
SOLVED = 15.0


@pytest.mark.parametrize("name", ["Dials", "Switches", "FromOne", "FromFive"])
def test_ppo_makes_every_choice_right(name: str, learn: Callable) -> None:
    result = learn(ppo.train, PPO, 8 * 1024, task=make_task(f"{MODULE}:{name}-v0"), network=NETWORK)
    assert result.mean_length == STEPS and result.mean_return > SOLVED


@pytest.mark.parametrize(("name", "engine"), [("Dials", "numpy"), ("Switches", "tensorflow")])
def test_a2c_makes_every_choice_right(name: str, engine: str, learn: Callable) -> None:
    task, settings = make_task(f"{MODULE}:{name}-v0"), dataclasses.replace(A2C, engine=engine)
    assert learn(a2c.train, settings, 12 * 1024, task=task, network=NETWORK).mean_return > SOLVED


def test_without_the_probability_of_one_choice_it_is_left_to_chance(
    learn: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = on_policy.MultiCategoricalScore

    def first_alone(parts: tuple[slice, ...]) -> on_policy.MultiCategoricalScore:
        score = right(parts)
        slopes = score.slopes
        monkeypatch.setattr(score, "slopes", lambda *given: slopes(*given) * ([1.0] * 7 + [0.0] * 2), raising=False)
        return score

    monkeypatch.setattr(on_policy, "MultiCategoricalScore", first_alone)
    task = make_task(f"{MODULE}:Dials-v0")
    assert learn(ppo.train, PPO, 8 * 1024, task=task, network=NETWORK).mean_return < SOLVED
