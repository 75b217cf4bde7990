"""The rewards that PPO and A2C learn from, against numbers worked by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.train.algorithms.a2c import A2CSettings
from quarl.train.algorithms.common.rollouts import SMALLEST_VARIANCE, RewardScaling
from quarl.train.algorithms.ppo import PPOSettings
from quarl.train.runs.checkpoint import load_checkpoint
from quarl.train.runs.request import TRAINING_FOLDER
from tests.train.small_runs import PPO, SMALL, assert_same_weights, curve, train

A2C = [*SMALL, "--method", "a2c", "--set", "environments=8", "--set", "rollout_steps=16"]
NORMALISED = ["--set", "normalise_rewards=true"]


def settings(environments: int = 1, **values: Any) -> A2CSettings:
    return A2CSettings(environments=environments, discount=0.5, normalise_rewards=True, **values)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def flags(*values: list[bool]) -> np.ndarray:
    return np.array(values, bool)


def test_rewards_are_scaled_by_the_return_deviation_by_hand() -> None:
    # γ = 0.5: G = 1, 1 + 0.5·1 = 1.5, 4 + 0.5·1.5 = 4.75; their mean is 29/12.
    scaled = RewardScaling(settings())
    returns = [1.0, 1.5, 4.75]
    variance = sum((each - 29 / 12) ** 2 for each in returns) / 3
    found = scaled(rows([1], [1], [4]), flags([False], [False], [False]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], np.array([1, 1, 4]) / (variance + SMALLEST_VARIANCE) ** 0.5, rtol=1e-6)
    # The return goes on in the next rollout, G = 2 + 0.5·4.75 = 4.375, and its rewards are divided by all so far.
    returns.append(4.375)
    np.testing.assert_allclose(scaled(rows([2]), flags([False])), 2 / np.std(returns), rtol=1e-6)


def test_a_return_ends_with_its_episode_in_its_own_environment() -> None:
    # The first environment's episode ends with its second step: G = 2, 2 + 1 = 3 and then 2, not 3.5; the second's goes
    # on: G = 0, 8, 4.
    scaled = RewardScaling(settings(2))
    found = scaled(rows([2, 0], [2, 8], [2, 0]), flags([False, False], [True, False], [False, False]))
    deviation = np.std([2, 3, 2, 0, 8, 4])
    np.testing.assert_allclose(found, rows([2, 0], [2, 8], [2, 0]) / deviation, rtol=1e-6)
    # An end at a rollout's last step counts, too: G = 1 + 0.5·2 = 2 and 1, then 1 and 1 + 0.5·3 = 2.5.
    scaled(rows([1, 1]), flags([True, False]))
    scaled(rows([1, 1]), flags([False, False]))
    np.testing.assert_allclose(scaled.state()["return"], [0.5, 0.5 * (1 + 0.5 * (1 + 0.5 * 4))])


def test_what_is_rare_is_cut_and_a_constant_reward_is_no_division_by_zero() -> None:
    scaled = RewardScaling(settings(reward_clip=2.0, reward_scale=0.5))
    calm = np.zeros((99, 1), np.float32)
    found = scaled(np.append(calm, rows([-9]), axis=0), np.ones((100, 1), bool))
    assert found[-1, 0] == -2.0 * 0.5  # −9 is ten deviations
    none = RewardScaling(settings())(np.zeros((4, 1), np.float32), np.zeros((4, 1), bool))
    np.testing.assert_array_equal(none, 0.0)


def test_by_default_rewards_are_only_multiplied() -> None:
    scaled = RewardScaling(PPOSettings(reward_scale=0.25))
    np.testing.assert_array_equal(scaled(rows([4, 8]), flags([True, False])), rows([1, 2]))
    assert scaled.state() == {}
    scaled.restore({})  # of a checkpoint from before there was a choice


def test_restored_statistics_go_on_to_the_same_bits() -> None:
    generator = np.random.default_rng(0)
    one, other = RewardScaling(settings(4)), RewardScaling(settings(4))
    rollouts = [(generator.normal(size=(5, 4)).astype(np.float32), generator.random((5, 4)) < 0.2) for _ in range(6)]
    for rewards, cut in rollouts[:3]:
        one(rewards, cut)
    other.restore({name: array.copy() for name, array in one.state().items()})
    for rewards, cut in rollouts[3:]:
        np.testing.assert_array_equal(one(rewards, cut), other(rewards, cut))


@pytest.mark.parametrize("options", [PPO, A2C], ids=["ppo", "a2c"])
def test_a_run_with_normalised_rewards_resumes_to_the_same_bits(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarl.train.algorithms.a2c.REPORT_EVERY", 128)
    assert train(tmp_path / "whole", *options, *NORMALISED, "--steps", "2048") == 0
    assert train(tmp_path / "parts", *options, *NORMALISED, "--steps", "2048", "--minutes", "0") == 0
    folder = tmp_path / TRAINING_FOLDER / "parts"
    kept = load_checkpoint(folder)
    assert kept.facts["step"] < 2048 and kept.group("rewards")["count"][0] == kept.facts["step"]
    assert train(tmp_path / "parts", *options, *NORMALISED, "--steps", "2048", "--resume") == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert curve(tmp_path / "whole") == curve(tmp_path / "parts")
    # CartPole pays 1 a step: the log's returns are the lengths.
    assert [row["return"] for row in curve(tmp_path / "whole")] == [row["length"] for row in curve(tmp_path / "whole")]
