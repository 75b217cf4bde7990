"""Atari games with several lives: training plays whole games, and marks every lost life as the end of the return."""

import numpy as np
import pytest

from quarl.train.suites.atari import DEFAULTS, AtariEpisodes, atari_task
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.make import make_task
from quarl.train.suites.names import Suite, missing_packages

pytestmark = pytest.mark.skipif(bool(missing_packages(Suite.ATARI)), reason="atari is not installed; type make suites")


@pytest.mark.parametrize(("name", "lives"), [("breakout", 5), ("seaquest", 4)])
def test_an_episode_spans_all_lives_of_a_game(name: str, lives: int) -> None:
    task = make_task(name)
    stream, generator = EpisodeStream(task.make(2, 0)), np.random.default_rng(0)
    lost, rewards, lengths = np.zeros(2, int), np.zeros(2), np.zeros(2, int)
    total, length, games = 0.0, 0, 0
    while games < 3:
        transition = stream.step(generator.integers(task.outputs, size=2))
        assert transition.life_lost is not None
        lost += transition.life_lost
        rewards += transition.reward
        lengths += 1
        assert transition.terminated[transition.life_lost].all()  # nothing is bootstrapped where a life is lost
        assert (transition.cut == transition.terminated).all()  # no game here comes to its time limit
        for place in np.flatnonzero(transition.done):
            assert lost[place] == lives
            games, total, length = games + 1, total + rewards[place], length + int(lengths[place])
            lost[place] = rewards[place] = lengths[place] = 0
    stats = stream.take_stats()
    assert (stats.episodes, stats.total_return, stats.total_length) == (games, total, length)


def test_training_and_judging_play_the_same_game() -> None:
    training, judged = (AtariEpisodes("breakout", 1, 3, DEFAULTS, training) for training in (True, False))
    everything, first = np.ones(1, np.bool_), np.zeros(1, np.int64)
    np.testing.assert_array_equal(training.reset(everything, first), judged.reset(everything, first))
    generator, losses, over = np.random.default_rng(1), 0, False
    while not over:
        action = generator.integers(4, size=1)
        one, other = training.step(action), judged.step(action)
        np.testing.assert_array_equal(one.observation, other.observation)
        assert one.terminated[0] == other.terminated[0]
        assert one.reward[0] == min(other.reward[0], 1.0)
        assert other.life_lost is None and one.life_lost is not None
        losses, over = losses + int(one.life_lost[0]), bool(one.terminated[0])
    assert losses == 5


def test_without_episodic_life_no_life_is_marked() -> None:
    episodes = make_task("breakout", options={"episodic_life": False}).make(1, 0)
    episodes.reset(np.ones(1, np.bool_), np.zeros(1, np.int64))
    assert episodes.step(np.zeros(1, np.int64)).life_lost is None


def test_games_that_begin_alike_are_one_game_and_are_known() -> None:
    consoles = AtariEpisodes("pong", 3, 7, DEFAULTS, training=False)
    pictures = consoles.reset(np.ones(3, np.bool_), np.array([1, 4, 8]))
    assert consoles.frames_before == {1: 2, 4: 4, 8: 2}, "of seed 7"
    for _ in range(40):
        np.testing.assert_array_equal(pictures[0], pictures[2])
        pictures = consoles.step(np.full(3, 2)).observation
    assert not np.array_equal(pictures[0], pictures[1])
    assert AtariEpisodes("pong", 1, 7, DEFAULTS, training=True).frames_before == {}


def test_pong_has_no_lives_to_lose() -> None:
    stream, generator = EpisodeStream(make_task("pong").make(1, 0)), np.random.default_rng(0)
    steps = [stream.step(generator.integers(6, size=1)) for _ in range(200)]
    assert not any(step.cut[0] for step in steps)
    assert sum(float(step.reward[0]) for step in steps) < 0  # points were lost, yet the return goes on


@pytest.mark.parametrize(("name", "cut"), [("breakout", True), ("freeway", False)], ids=["breakout", "without FIRE"])
def test_a_judged_game_that_is_never_started_is_cut(name: str, cut: bool) -> None:
    task = atari_task(name, {"idle_steps": 120})
    seen = task.evaluate(lambda observation: np.zeros(len(observation), np.int64), 1, 0, "")  # never FIRE
    if cut:  # the ball that the reset fires is lost within 80 steps; then the game waits for FIRE
        assert 120 < seen.mean_length < 300
    else:  # whoever cannot fire is not waited for: a game of 2 min 16 s
        assert seen.mean_length > 2_000


def test_firing_scoring_and_losing_a_life_keep_a_game_going() -> None:
    episodes = AtariEpisodes("breakout", 2, 0, {**DEFAULTS, "idle_steps": 30}, training=False)
    episodes.reset(np.ones(2, np.bool_), np.arange(2))
    nothing, sometimes = [], []
    for step in range(60):
        result = episodes.step(np.array([0, int(step % 20 == 19)]))  # the second fires every twentieth step
        nothing.append(bool(result.truncated[0]))
        sometimes.append(bool(result.truncated[1]))
    assert any(nothing) and not any(sometimes)
    episodes.reset(np.ones(2, np.bool_), np.arange(2, 4))
    assert not episodes.step(np.zeros(2, np.int64)).truncated.any()  # a new game starts over


def test_training_waits_for_whoever_does_not_fire() -> None:
    episodes = make_task("breakout", options={"idle_steps": 5}).make(1, 0)
    episodes.reset(np.ones(1, np.bool_), np.zeros(1, np.int64))
    assert not any(episodes.step(np.zeros(1, np.int64)).truncated[0] for _ in range(60))
