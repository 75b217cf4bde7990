"""Classic control as arrays: every step equals Gymnasium's, and an episode is a function of (seed, episode id)."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from quarl.train.suites.classic import PHYSICS, ClassicEpisodes, uniform
from quarl.train.suites.make import make_task
from tests.train.suites.test_suites import random_actions

STEPS = 1000


@pytest.mark.parametrize("environment_id", PHYSICS)
def test_a_step_equals_gymnasiums(environment_id: str) -> None:
    generator = np.random.default_rng(1)
    theirs: Any = gymnasium.make(environment_id)
    ours = ClassicEpisodes(environment_id, 1, seed=0)
    assert ours.physics.limit == gymnasium.spec(environment_id).max_episode_steps
    everything = np.ones(1, np.bool_)
    episode = ended = cut = 0

    def begin() -> None:
        seen, _ = theirs.reset(seed=episode)
        ours.reset(everything, np.array([episode]))
        ours.state = np.array(theirs.unwrapped.state, np.float64)[:, None]
        np.testing.assert_allclose(ours.physics.observe(ours.state)[0], seen, atol=1e-7)

    begin()
    action = random_actions(make_task(environment_id), generator, 1)
    for step in range(STEPS):
        # Actions are held for a while, so that a random policy reaches every corner, the flags included.
        if step % 20 == 0 or environment_id == "CartPole-v1":
            action = random_actions(make_task(environment_id), generator, 1)
        if environment_id.startswith("MountainCar"):  # drive with the slope: over the hill, and into the left wall
            faster = ours.state[1, 0] >= 0
            discrete = action.ndim == 1
            action = np.array([2 * faster]) if discrete else np.array([[2 * faster - 1]], np.float32)
        seen, reward, terminated, truncated, _ = theirs.step(action[0])
        got = ours.step(action)
        np.testing.assert_allclose(got.observation[0], seen, rtol=1e-6, atol=1e-6)
        assert got.reward[0] == pytest.approx(float(reward), rel=1e-6, abs=1e-6)
        assert got.terminated[0] == terminated
        assert got.truncated[0] == (truncated and not terminated)
        # A double pendulum doubles a difference in the last bit every few steps: compare step by step, not as flights.
        ours.state = np.array(theirs.unwrapped.state, np.float64)[:, None]
        if terminated or truncated:
            ended, cut, episode = ended + terminated, cut + (truncated and not terminated), episode + 1
            begin()
    assert ended + cut > 0
    if environment_id.startswith(("CartPole", "MountainCar")):
        assert ended > 0


@pytest.mark.parametrize("environment_id", PHYSICS)
def test_first_states_come_from_gymnasiums_distribution(environment_id: str) -> None:
    count = 4000
    ours = ClassicEpisodes(environment_id, count, seed=3)
    ours.reset(np.ones(count, np.bool_), np.arange(count))
    theirs: Any = gymnasium.make(environment_id)
    drawn = []
    for seed in range(1000):
        theirs.reset(seed=seed)
        drawn.append(np.array(theirs.unwrapped.state, np.float64))
    other = np.array(drawn).T
    for mine, reference in zip(ours.state, other, strict=True):
        spread = np.ptp(reference)
        assert np.abs(mine.mean() - reference.mean()) <= 0.05 * spread  # σ of the difference is 0.010 of the range
        assert abs(mine.min() - reference.min()) <= 0.02 * spread
        assert abs(mine.max() - reference.max()) <= 0.02 * spread
        assert np.abs(mine.std() - reference.std()) <= 0.03 * spread


@pytest.mark.parametrize("environment_id", PHYSICS)
def test_an_episode_has_the_same_bits_in_any_place_and_batch(environment_id: str) -> None:
    actions = random_actions(make_task(environment_id), np.random.default_rng(2), 30)

    def play(environments: int, place: int, before: int) -> np.ndarray:
        batch = ClassicEpisodes(environment_id, environments, seed=5)
        ids = np.arange(100, 100 + environments)
        batch.reset(np.ones(environments, np.bool_), ids)
        for _ in range(before):
            batch.step(np.repeat(actions[:1], environments, axis=0))
        ids[place] = 7
        seen = [batch.reset(np.arange(environments) == place, ids)[place]]
        for action in actions:
            seen.append(batch.step(np.repeat(action[None], environments, axis=0)).observation[place])
        return np.array(seen)

    alone = play(1, 0, 0)
    for environments, place, before in ((2, 1, 0), (5, 4, 3), (8, 2, 1), (33, 32, 5)):
        np.testing.assert_array_equal(play(environments, place, before), alone)


def test_uniform_numbers_depend_on_key_and_episode_alone() -> None:
    key, other = np.array([1], np.uint64), np.array([2], np.uint64)
    numbers = uniform(key, np.arange(20_000), 4)
    np.testing.assert_array_equal(uniform(key, np.array([17, 3]), 4), numbers[:, [17, 3]])
    assert not np.array_equal(uniform(other, np.arange(20_000), 4), numbers)
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    assert len(np.unique(numbers)) == numbers.size
    np.testing.assert_allclose(numbers.mean(axis=1), 0.5, atol=0.01)  # σ = 0.002
    np.testing.assert_allclose(np.corrcoef(numbers) - np.eye(4), 0.0, atol=0.03)  # σ = 0.007
    # The first output of SplitMix64 seeded with 0 is 0xE220A8397B1DCDAF (its reference implementation, Vigna 2015).
    number = uniform(np.array([0], np.uint64), np.array([0]), 1)[0, 0]
    assert number == (0xE220A8397B1DCDAF >> 11) * 2.0**-53


def test_arguments_of_the_environment_are_left_to_gymnasium() -> None:
    fast = make_task("cartpole").make(2, 0)
    slow = make_task("cartpole", None, {"sutton_barto_reward": True}).make(2, 0)
    assert isinstance(fast, ClassicEpisodes) and not isinstance(slow, ClassicEpisodes)
    slow.reset(np.ones(2, np.bool_), np.arange(2))
    assert slow.step(np.zeros(2, np.int64)).reward.tolist() == [0.0, 0.0]
