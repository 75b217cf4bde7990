"""The replay: what is drawn belongs together, whatever is drawn from, and nothing is kept twice."""

import numpy as np
import pytest

from quarl.train.algorithms.common.replay import Replay
from quarl.train.suites.episodes import Transition

STACK = 4


def add_vectors(replay: Replay, steps: int, episode: int = 3) -> None:
    """Environment 0 never ends; environment 1 after every ``episode`` steps. Observation = [time, environment].

    What a step leads to is [time + 1, environment], or [-time, environment] at an end.
    """
    for time in range(steps):
        now = np.array([[time, 0], [time, 1]], np.float32)
        done = np.array([False, time % episode == episode - 1])
        last = np.array([[time + 1, 0], [-time if done[1] else time + 1, 1]], np.float32)
        after = np.array([[time + 1, 0], [time + 1, 1]], np.float32)
        replay.add(now, np.array([time % 5, 4]), Transition(after, np.full(2, time, np.float32), done, done, last))


def check_vectors(replay: Replay, oldest: int, newest: int, episode: int = 3) -> None:
    rows = replay.sample(np.random.default_rng(0), 20_000, n_step=3)
    times, where = rows.observations.T
    assert times.min() == oldest
    assert times.max() == newest - 2  # the last that has two followers
    np.testing.assert_array_equal(rows.rewards, np.stack([times, times + 1, times + 2]))
    np.testing.assert_array_equal(rows.actions, np.where(where == 0, times % 5, 4))
    # What follows: three steps later in environment 0; the end of the episode in environment 1, if that is nearer.
    end = times + (episode - 1 - times % episode)
    next_one = np.where((where == 1) & (end <= times + 2), -end, times + 3)
    np.testing.assert_array_equal(rows.next_observations, np.stack([next_one, where], axis=1))


def test_drawn_rows_belong_together_also_when_the_ring_has_wrapped() -> None:
    replay = Replay(20, 2, (2,))
    add_vectors(replay, 25)  # 10 slots: times 15 … 24 are left
    assert len(replay) == 20
    check_vectors(replay, 15, 24)


@pytest.mark.parametrize("episode", [1, 2, 7])
def test_the_tape_grows_when_many_episodes_need_it(episode: int) -> None:
    replay = Replay(2000, 2, (2,))
    add_vectors(replay, 2500, episode)
    check_vectors(replay, 1500, 2499, episode)


def test_continuous_actions_are_kept_as_they_are() -> None:
    replay = Replay(20, 2, (2,), action_size=3)
    for time in range(4):
        now = np.full((2, 2), time, np.float32)
        no = np.zeros(2, bool)
        actions = np.array([[time, 0.5, -0.25], [time, 1.5, 2.5]], np.float32)
        replay.add(now, actions, Transition(now + 1, np.zeros(2, np.float32), no, no, now + 1))
    rows = replay.sample(np.random.default_rng(0), 50, 1)
    assert rows.actions.shape == (50, 3)
    assert rows.actions.dtype == np.float32
    np.testing.assert_array_equal(rows.actions[:, 0], rows.observations[:, 0])


def add_images(replay: Replay, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two environments that stack 4 frames of 2 × 3, each frame full of its own number; what was really seen.

    Environment 0 starts with four equal frames and ends every 5th step, environment 1 starts with three black ones.
    """
    seen = []
    count = 0

    def frame() -> np.ndarray:
        nonlocal count
        count += 1
        return np.full((2, 3, 1), count % 251, np.uint8)

    def start(environment: int) -> np.ndarray:
        first = frame()
        black = np.zeros((2, 3, STACK - 1), np.uint8)
        return np.concatenate([black, first], -1) if environment else np.repeat(first, STACK, -1)

    now = np.stack([start(0), start(1)])
    for time in range(steps):
        last = np.stack([np.concatenate([image[..., 1:], frame()], -1) for image in now])
        done = np.array([time % 5 == 4, time % 11 == 2])
        after = np.stack([start(index) if done[index] else last[index] for index in range(2)])
        replay.add(now, np.zeros(2, int), Transition(after, np.full(2, time, np.float32), done, done, last))
        seen.append((now, last))
        now = after
    return seen


def test_frame_stacks_are_rebuilt_across_episode_ends() -> None:
    replay = Replay(40, 2, (2, 3, STACK), frames=STACK)
    seen = add_images(replay, 55)
    rows = replay.take(np.arange(40), 1)  # every transition held
    for index in range(40):
        time, where = int(rows.rewards[0, index]), index % 2
        np.testing.assert_array_equal(rows.observations[index], seen[time][0][where])
        np.testing.assert_array_equal(rows.next_observations[index], seen[time][1][where])
    assert sorted(set(rows.rewards[0].astype(int))) == list(range(35, 55))
    assert rows.observations.dtype == np.uint8


def test_a_hundred_thousand_atari_transitions_take_less_than_0_8_gb() -> None:
    assert Replay(100_000, 8, (84, 84, 4), frames=4).nbytes < 0.8e9


def test_images_that_are_no_stacks_of_frames_are_refused() -> None:
    replay = Replay(40, 2, (2, 3, 3), frames=3)
    generator = np.random.default_rng(0)
    no = np.zeros(2, bool)
    one, two = generator.integers(255, size=(2, 2, 2, 3, 3)).astype(np.uint8)
    with pytest.raises(ValueError, match="newest frames"):
        replay.add(one, np.zeros(2, int), Transition(two, np.zeros(2, np.float32), no, no, two))


def test_a_restored_replay_draws_and_goes_on_the_same() -> None:
    replay, copy = Replay(20, 2, (2,)), Replay(20, 2, (2,))
    add_vectors(replay, 25)
    copy.restore({name: array.copy() for name, array in replay.state().items()})
    for _ in range(2):
        one, other = (r.sample(np.random.default_rng(1), 50, 2) for r in (replay, copy))
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.next_observations, other.next_observations)
        assert len(copy) == len(replay)
        add_vectors(replay, 7)
        add_vectors(copy, 7)
