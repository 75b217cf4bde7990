"""A lost life ends the return and nothing else: what the stream, the rollout and the replay make of it, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from quarl.train.algorithms.common.replay import Replay, n_step_returns
from quarl.train.algorithms.common.rollouts import Rollout, compute_advantages
from quarl.train.suites.episodes import EpisodeStream, StepResult, evaluate_episodes

STACK = 3


class TwoLives:
    """A game of four steps with the rewards 1, 2, 4, 8; the second step loses the first life, the fourth ends the game.

    Observations are stacks of 3 frames of 1 × 1; a frame is 10 · (episode + 1) + steps so far, a game's first stack is
    black but for the newest one.
    """

    environments = 1

    def reset(self, mask: np.ndarray, episode_ids: np.ndarray) -> np.ndarray:
        self._steps = 0
        self._frames = [0, 0, 10 * (int(episode_ids[0]) + 1)]
        return self._observation()

    def step(self, actions: np.ndarray) -> StepResult:
        reward = np.array([2.0**self._steps], np.float32)
        self._steps += 1
        self._frames = [*self._frames[1:], self._frames[-1] + 1]
        over, no = np.array([self._steps == 4]), np.zeros(1, bool)
        return StepResult(self._observation(), reward, over, no, None, life_lost=np.array([self._steps in (2, 4)]))

    def _observation(self) -> np.ndarray:
        return np.array(self._frames, np.uint8).reshape(1, 1, 1, STACK)


ACTION = np.zeros(1, np.int64)


def test_the_stream_goes_on_with_the_same_game_and_counts_the_whole_of_it() -> None:
    stream = EpisodeStream(TwoLives())
    seen = [stream.step(ACTION) for _ in range(5)]
    assert [bool(each.terminated[0]) for each in seen] == [False, True, False, True, False]
    assert [bool(each.cut[0]) for each in seen] == [False, True, False, True, False]
    assert [bool(each.done[0]) for each in seen] == [False, False, False, True, False]
    # The lost life resets nothing; the game over begins the next game.
    assert [int(each.observation[0, 0, 0, -1]) for each in seen] == [11, 12, 13, 20, 21]
    stats = stream.take_stats()
    assert (stats.episodes, stats.total_return, stats.total_length) == (1, 15.0, 4)


def test_a_restored_stream_goes_on_after_the_lost_life() -> None:
    stream, copy = EpisodeStream(TwoLives()), EpisodeStream(TwoLives())
    for _ in range(3):
        stream.step(ACTION)
    copy.restore(stream.state())
    np.testing.assert_array_equal(copy.observation, stream.observation)
    assert copy.step(ACTION).done[0] and stream.step(ACTION).done[0]
    assert copy.take_stats() == stream.take_stats()


def test_judging_plays_whole_games() -> None:
    judged = evaluate_episodes(TwoLives(), lambda observation: ACTION, 3)
    assert (judged.returns.tolist(), judged.lengths.tolist()) == ([15.0] * 3, [4] * 3)


def test_the_advantages_of_a_rollout_end_at_the_lost_life() -> None:
    # V = 10 everywhere, γ = 0.5, λ = 1, five steps with the rewards 1, 2 | 4, 8 | 1:
    # R₁ = 2;  R₀ = 1 + ½·2 = 2;  R₃ = 8;  R₂ = 4 + ½·8 = 8;  R₄ = 1 + ½·10 = 6 (the rollout's end is bootstrapped).
    forward: Any = SimpleNamespace(values=lambda images: np.full(len(images), 10.0, np.float32))
    distribution: Any = SimpleNamespace(action_shape=(), action_type=np.int64)
    same = type("Same", (), {"__call__": lambda self, images: images, "update": lambda self, images: None})()
    stream = EpisodeStream(TwoLives())
    rollout = Rollout(5, distribution, stream.observation)
    for step in range(5):
        rollout.add(step, ACTION, np.zeros(1, np.float32), None, stream.step(ACTION))
    values, next_values = rollout.evaluate(forward, same)
    advantages = compute_advantages(
        rollout.rewards, values, next_values, rollout.terminated, rollout.cut, discount=0.5, gae_lambda=1.0
    )
    batch = rollout.batch(advantages, advantages + values)
    np.testing.assert_array_equal(batch["return"], np.array([2, 2, 8, 8, 6], np.float32))
    np.testing.assert_array_equal(batch["advantage"], np.array([-8, -8, -2, -2, -4], np.float32))


def test_the_replay_ends_the_return_but_not_the_stack_at_the_lost_life() -> None:
    stream, replay = EpisodeStream(TwoLives()), Replay(9, 1, (1, 1, STACK), frames=STACK)
    for _ in range(9):
        observation = stream.observation
        replay.add(observation, ACTION, stream.step(ACTION))
    drawn = replay.take(np.arange(6), 3)
    # Rows of the 1st game: before and at the loss, the two steps after it; then of the 2nd game the same.
    assert drawn.observations.reshape(6, STACK).tolist() == [
        [0, 0, 10], [0, 10, 11], [10, 11, 12], [11, 12, 13], [0, 0, 20], [0, 20, 21],
    ]  # fmt: skip
    # What the last step before the cut led to: the 12th frame for the first life, the 14th for the second.
    assert drawn.next_observations.reshape(6, STACK).tolist() == [
        [10, 11, 12], [10, 11, 12], [12, 13, 14], [12, 13, 14], [20, 21, 22], [20, 21, 22],
    ]  # fmt: skip
    returns, factors = n_step_returns(drawn.rewards, drawn.cut, drawn.terminated, 0.5)
    # 1 + ½·2 = 2;  2;  4 + ½·8 = 8;  8;  again 2 and 2; three steps never bootstrap here, one does before a loss.
    np.testing.assert_array_equal(returns, np.array([2, 2, 8, 8, 2, 2], np.float32))
    np.testing.assert_array_equal(factors, np.zeros(6, np.float32))
    # Frames: one for each of 9 steps, and a whole stack at the start of each of 3 games; none again for a new life.
    assert replay.state()["head"].tolist() == [9 + 3 * STACK]
    single = replay.take(np.arange(4), 1)
    _, factors = n_step_returns(single.rewards, single.cut, single.terminated, 0.5)
    np.testing.assert_array_equal(factors, np.array([0.5, 0, 0.5, 0], np.float32))
