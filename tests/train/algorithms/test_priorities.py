"""Prioritized replay: numbers worked by hand, and draws that follow the priorities."""

import numpy as np
import pytest

from quarl.train.algorithms.common.priorities import Priorities, SumTree, importance_weights


def test_a_sum_tree_finds_the_leaf_into_whose_part_a_mass_falls() -> None:
    tree = SumTree(5)
    tree[np.arange(5)] = np.array([1.0, 0.0, 2.0, 0.5, 0.0])
    assert tree.total == 3.5
    # Parts of 0 … 3.5: leaf 0 has 0 … 1, leaf 2 has 1 … 3, leaf 3 has 3 … 3.5; leaves 1 and 4 have none.
    masses = np.array([0.0, 0.99, 1.0, 2.99, 3.0, 3.49])
    np.testing.assert_array_equal(tree.find(masses), [0, 0, 2, 2, 3, 3])
    # A mass that rounding put at the very end, or beyond, still finds a leaf that is not empty.
    np.testing.assert_array_equal(tree.find(np.array([3.5, 3.6])), [3, 3])
    tree[np.array([2, 2])] = np.array([7.0, 4.0])  # the last one counts
    assert tree.total == 5.5
    np.testing.assert_array_equal(tree[np.array([0, 2])], [1.0, 4.0])


@pytest.mark.parametrize("leaves", [1, 2, 3, 8, 9, 100])
def test_sums_hold_whatever_the_number_of_leaves(leaves: int) -> None:
    tree, values = SumTree(leaves), np.random.default_rng(0).random(leaves)
    tree[np.arange(leaves)] = values
    assert tree.total == pytest.approx(values.sum())
    ends = np.cumsum(values)
    np.testing.assert_array_equal(tree.find(ends - 1e-9), np.arange(leaves))
    np.testing.assert_array_equal(tree.leaves(), values)


def drawable(priorities: Priorities) -> list[int]:
    return np.flatnonzero(priorities.state()["leaves"]).tolist()


def test_only_steps_with_followers_that_are_still_held_can_be_drawn() -> None:
    priorities = Priorities(slots=4, environments=2, exponent=1.0, n_step=3)  # rows: slot · 2 + environment
    priorities.follow(2)
    assert drawable(priorities) == []
    priorities.follow(3)  # time 0 has two followers
    assert drawable(priorities) == [0, 1]
    priorities.follow(4)  # and time 1
    assert drawable(priorities) == [0, 1, 2, 3]
    priorities.follow(5)  # time 4 lies in slot 0 and overwrote time 0; time 2 can be drawn
    assert drawable(priorities) == [2, 3, 4, 5]
    priorities.follow(50)  # many at once: times 46 … 49 are held, 46 and 47 have followers, in slots 2 and 3
    assert drawable(priorities) == [4, 5, 6, 7]


def test_priorities_by_hand() -> None:
    priorities = Priorities(slots=4, environments=1, exponent=0.5, n_step=1)
    priorities.follow(3)
    np.testing.assert_array_equal(priorities.state()["leaves"], [1, 1, 1, 0])
    priorities.update(np.array([[0, 1]]), np.array([[-4.0, 0.25]], np.float32))
    np.testing.assert_allclose(priorities.state()["leaves"], [2, 0.5, 1, 0], rtol=1e-5)  # √4, √¼
    priorities.follow(4)  # new ones get the largest so far
    np.testing.assert_allclose(priorities.state()["leaves"], [2, 0.5, 1, 2], rtol=1e-5)


def test_draws_follow_the_priorities_and_each_part_of_the_total_gives_one() -> None:
    priorities = Priorities(slots=4, environments=1, exponent=1.0, n_step=1)
    priorities.follow(4)
    priorities.update(np.arange(4), np.array([4.0, 1.0, 2.0, 1.0], np.float32))
    rows, probabilities = priorities.draw(np.random.default_rng(0), (1000, 8))
    assert rows.shape == probabilities.shape == (1000, 8)
    np.testing.assert_allclose(probabilities, np.array([0.5, 0.125, 0.25, 0.125])[rows], rtol=1e-5)
    # Eight parts of one eighth: 4 always fall on row 0, 1 on row 1, 2 on row 2, 1 on row 3.
    assert (np.sort(rows, axis=1) == [0, 0, 0, 0, 1, 2, 2, 3]).mean() > 0.999
    # Parts that cut across rows: the shares are right on the average. 4 standard deviations of 30,000 draws are 0.012.
    rows, _ = priorities.draw(np.random.default_rng(1), (10_000, 3))
    np.testing.assert_allclose(np.bincount(rows.ravel(), minlength=4) / 30_000, [0.5, 0.125, 0.25, 0.125], atol=0.012)


def test_importance_weights_by_hand() -> None:
    # (N P)^−½ with N = 4: P = 0.5 → 1/√2, P = 0.125 → √2; divided by the largest of the minibatch.
    weights = importance_weights(np.array([[0.5, 0.125], [0.25, 0.25]]), 0.5)
    np.testing.assert_allclose(weights, [[0.5, 1.0], [1.0, 1.0]], rtol=1e-6)
    assert weights.dtype == np.float32


def test_weights_take_the_bias_of_the_priorities_back() -> None:
    """With β = 1 the weighted mean of drawn values is that of all values, up to the weights' common factor."""
    priorities = Priorities(slots=64, environments=1, exponent=1.0, n_step=1)
    priorities.follow(64)
    generator = np.random.default_rng(0)
    values = generator.random(64)
    priorities.update(np.arange(64), generator.uniform(0.1, 3.0, 64).astype(np.float32))
    rows, probabilities = priorities.draw(generator, (1, 100_000))
    weights = importance_weights(probabilities, 1.0)
    assert float((weights * values[rows]).sum() / weights.sum()) == pytest.approx(values.mean(), rel=0.02)


def test_restored_priorities_draw_the_same() -> None:
    generator = np.random.default_rng(0)
    one, other = (Priorities(slots=10, environments=3, exponent=0.6, n_step=2) for _ in range(2))
    one.follow(17)
    rows, _ = one.draw(generator, (5, 8))
    one.update(rows, generator.normal(size=(5, 8)).astype(np.float32))
    other.restore({name: array.copy() for name, array in one.state().items()})
    for priorities in (one, other):
        priorities.follow(19)
    first, second = (priorities.draw(np.random.default_rng(1), (3, 50)) for priorities in (one, other))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
