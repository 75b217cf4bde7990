"""ε-greedy actions, plain and held."""

import numpy as np

from quarl.train.algorithms.common.exploration import EpsilonGreedy


def values(rows: int) -> np.ndarray:
    return np.tile(np.array([0.0, 2.0, 1.0], np.float32), (rows, 1))


def test_plain_actions_are_greedy_or_uniform() -> None:
    explore = EpsilonGreedy(3000, longest=1)
    assert (explore(np.random.default_rng(0), values(3000), 0.0) == 1).all()
    counts = np.bincount(explore(np.random.default_rng(0), values(3000), 1.0), minlength=3)
    assert (np.abs(counts - 1000) < 110).all()  # 4 standard deviations of a uniform draw are 103
    assert (explore(np.random.default_rng(0), values(3000), 0.0) == 1).all()  # nothing is held


def test_random_actions_are_held_at_most_to_the_episodes_end() -> None:
    explore, generator = EpsilonGreedy(4000, longest=4), np.random.default_rng(0)
    first = explore(generator, values(4000), 1.0)
    steps = [explore(generator, values(4000), 0.0) for _ in range(4)]
    held = [((action == first) & (first != 1)).sum() / (first != 1).sum() for action in steps]
    np.testing.assert_allclose(held, [0.75, 0.5, 0.25, 0.0], atol=0.05)  # durations 1, 2, 3, 4 alike
    explore(generator, values(4000), 1.0)
    explore.begin(np.ones(4000, bool))
    assert (explore(generator, values(4000), 0.0) == 1).all()


def test_restored_it_holds_the_same() -> None:
    one, other = (EpsilonGreedy(50, longest=9) for _ in range(2))
    one(np.random.default_rng(0), values(50), 0.7)
    other.restore({name: array.copy() for name, array in one.state().items()})
    for _ in range(3):
        a, b = (explore(np.random.default_rng(1), values(50), 0.1) for explore in (one, other))
        np.testing.assert_array_equal(a, b)
