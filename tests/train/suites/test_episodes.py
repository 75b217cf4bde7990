"""Endless episodes: numbering, tallies, and restoring to the same bits by flying again."""

import numpy as np
import pytest

from quarl.airlearning_envs.flights import blind_policy
from quarl.train.suites.episodes import EpisodeStream, StepResult, evaluate_episodes
from quarl.train.suites.make import make_task


class Counting:
    """Episode k lasts 2 + k % 3 steps; observation [episode id, steps so far, sum of the actions]; reward = action."""

    def __init__(self, environments: int) -> None:
        self.environments = environments
        self.resets = 0
        self._state = np.zeros((environments, 3), np.float32)

    def reset(self, mask: np.ndarray, episode_ids: np.ndarray) -> np.ndarray:
        self.resets += 1
        self._state = self._state.copy()
        self._state[mask] = 0.0
        self._state[mask, 0] = episode_ids[mask]
        return self._state

    def step(self, actions: np.ndarray) -> StepResult:
        self._state = self._state + np.stack([0 * actions, 0 * actions + 1, actions], axis=1).astype(np.float32)
        length = 2 + self._state[:, 0] % 3
        done = self._state[:, 1] >= length
        return StepResult(self._state, actions.astype(np.float32), done, np.zeros_like(done), self._state[:, 2] >= 2)


def test_ended_episodes_are_followed_by_the_next_number() -> None:
    stream = EpisodeStream(Counting(2))  # episode 0 lasts 2 steps, 1 lasts 3, 2 lasts 4, 3 lasts 2
    seen = []
    for _ in range(5):
        transition = stream.step(np.array([1, 0]))
        seen.append(
            (
                transition.done.tolist(),
                transition.observation[:, 0].tolist(),
                transition.last_observation[:, 0].tolist(),
            )
        )
    assert seen == [
        ([False, False], [0, 1], [0, 1]),
        ([True, False], [2, 1], [0, 1]),
        ([False, True], [2, 3], [2, 1]),
        ([False, False], [2, 3], [2, 3]),
        ([False, True], [2, 4], [2, 3]),
    ]
    stats = stream.take_stats()
    assert (stats.episodes, stats.total_return, stats.total_length, stats.successes) == (3, 2.0, 7, 1)
    assert stream.take_stats().episodes == 0


def test_restored_streams_begin_new_episodes_without_replay() -> None:
    live = Counting(2)
    live.replayable = False  # type: ignore[attr-defined]
    stream = EpisodeStream(live)
    for _ in range(3):
        stream.step(np.array([1, 0]))
    other = EpisodeStream(live)
    other.restore(stream.state())
    assert other.observation[:, :2].tolist() == [[4, 0], [5, 0]], "0 to 3 had begun"
    other.step(np.array([1, 1]))
    assert other.state()["lengths"].tolist() == [1, 1]


@pytest.mark.parametrize("steps", [0, 1, 3, 200])
def test_a_restored_stream_goes_on_to_the_same_bits(steps: int) -> None:
    generator = np.random.default_rng(0)
    stream = EpisodeStream(Counting(5))
    for _ in range(steps):
        stream.step(generator.integers(3, size=5))
    copy = EpisodeStream(Counting(5))
    copy.restore({name: array.copy() for name, array in stream.state().items()})
    np.testing.assert_array_equal(copy.observation, stream.observation)
    for _ in range(20):
        actions = generator.integers(3, size=5)
        one, other = stream.step(actions), copy.step(actions)
        np.testing.assert_array_equal(one.observation, other.observation)
        np.testing.assert_array_equal(one.last_observation, other.last_observation)
    stream.take_stats()
    np.testing.assert_array_equal(stream.state()["returns"], copy.state()["returns"])


def test_pictures_and_what_a_teacher_sees_are_of_the_same_states() -> None:
    options = {"arenas": {"hard": 0.5, "shipped": 0.5}}
    task = make_task("navigation-depth", None, options)
    assert [part.name for part in task.observation][:2] == ["depth", "goal_bearing"] and task.vector_size == 8
    stream, rays = EpisodeStream(task.make(6, 11)), EpisodeStream(make_task("navigation", None, options).make(6, 11))
    for _ in range(45):
        np.testing.assert_array_equal(stream.teacher_observation, rays.observation)
        np.testing.assert_array_equal(rays.teacher_observation, rays.observation)
        assert stream.observation.shape == (6, task.observation_size) and stream.observation.dtype == np.float32
        np.testing.assert_array_equal(stream.observation[:, -8:], rays.observation[:, -8:])
        # The middle rays, 2 degrees to the left and right, and the middle columns of the row at eye level; the two
        # see the same wall or cylinder, but for its edges.
        ahead = stream.observation[:, :-8].reshape(6, 84, 84)[:, 41, 40:44].min(axis=1)
        assert np.median(np.abs(ahead - rays.observation[:, 11:13].min(axis=1))) < 1.0
        actions = blind_policy(rays.observation)
        stream.step(actions)
        rays.step(actions)


def test_a_policy_that_needs_no_picture_flies_alike_with_one() -> None:
    depth, rays = make_task("navigation-depth"), make_task("navigation")
    shown: list[tuple[int, ...]] = []

    def blind(observation: np.ndarray) -> np.ndarray:
        shown.append(observation.shape)
        return blind_policy(observation)

    assert depth.evaluate(blind, 20, 3, "hard") == rays.evaluate(blind_policy, 20, 3, "hard")
    assert set(shown) == {(20, 7064)}


def test_longer_episodes_than_the_first_buffer_are_remembered() -> None:
    task = make_task("navigation", "easy")
    stream = EpisodeStream(task.make(2, 3))
    for step in range(150):  # yawing on the spot lasts until the time limit of 200
        stream.step(np.full(2, 15 + step % 5))
    copy = EpisodeStream(task.make(2, 3))
    copy.restore(stream.state())
    np.testing.assert_array_equal(copy.observation, stream.observation)


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_judging_does_not_depend_on_the_batch(batch: int) -> None:
    judged = evaluate_episodes(Counting(batch), lambda observation: np.ones(len(observation), np.int64), 7)
    np.testing.assert_array_equal(judged.lengths, [2, 3, 4, 2, 3, 4, 2])
    np.testing.assert_array_equal(judged.returns, judged.lengths)
    assert judged.success is not None and judged.success.all()
