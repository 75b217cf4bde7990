"""The shard: what is drawn belongs together, stale rows stay out, priorities by hand."""

import json

import numpy as np
import pytest

from quarl.train.actorq.replay import Shard

Columns = dict[str, np.ndarray]
ALL_AGES = 10**9


def rows(first: int, count: int, updates: int | list[int] = 0) -> Columns:
    """Rows that are named first … first + count − 1, and hold their name in every column."""
    names = np.arange(first, first + count)
    return {
        "observation": np.stack([names, -names], axis=1).astype(np.float32),
        "action": names.astype(np.int32),
        "return": names.astype(np.float32) / 2,
        "discount": np.full(count, 0.5, np.float32),
        "next_observation": np.stack([names + 1, -names], axis=1).astype(np.float32),
        "updates": np.broadcast_to(np.asarray(updates, np.int64), (count,)),
        "greedy": names.astype(np.int32) + 7,
    }


def filled(capacity: int, count: int, exponent: float = 0.0, at_once: int = 3) -> Shard:
    shard = Shard(capacity, exponent, 0)
    for first in range(0, count, at_once):
        shard.add(rows(first, min(at_once, count - first)), 0, ALL_AGES)
    return shard


@pytest.mark.parametrize("exponent", [0.0, 0.6], ids=["uniform", "prioritized"])
@pytest.mark.parametrize(("count", "at_once"), [(6, 3), (10, 10), (25, 3), (25, 25)])
def test_drawn_rows_belong_together_also_when_the_ring_has_wrapped(exponent: float, count: int, at_once: int) -> None:
    shard = filled(10, count, exponent, at_once)
    held = min(count, 10)
    assert len(shard) == held
    drawn = shard.draw(4, 250, 1.0)
    names = drawn["action"]
    assert names.shape == (4, 250)
    np.testing.assert_array_equal(np.unique(names), np.arange(count - held, count))  # the newest, and all of them
    np.testing.assert_array_equal(drawn["rows"], names)  # insertion numbers, which here are the names
    assert drawn["rows"].dtype == np.int64
    np.testing.assert_array_equal(drawn["observation"], np.stack([names, -names], axis=-1))
    np.testing.assert_array_equal(drawn["next_observation"], np.stack([names + 1, -names], axis=-1))
    np.testing.assert_array_equal(drawn["return"], names / 2)
    assert ("weight" in drawn) == (exponent > 0)


def test_stale_rows_are_refused_and_counted() -> None:
    shard = Shard(100, 0.0, 0)
    # Behind by 10, 4, 3, 0 updates; the last one had no policy. Up to 4 are allowed.
    assert shard.add(rows(0, 5, [90, 96, 97, 100, -1]), 100, 4) == 1
    assert len(shard) == 4
    assert set(shard.draw(1, 200, 0.0)["action"].ravel().tolist()) == {1, 2, 3, 4}
    facts = shard.facts()
    assert (facts["inserted"], facts["refused_stale"], facts["largest_staleness"]) == (4, 1, 4)
    assert facts["mean_staleness"] == pytest.approx((4 + 3 + 0) / 3)  # a row without a policy has no age
    assert shard.add(rows(5, 2, 0), 100, 4) == 2  # all of them
    assert shard.facts()["refused_stale"] == 3
    # A policy newer than the shard has heard of is not stale, and makes nothing fresher than fresh.
    assert shard.add(rows(7, 1, 120), 100, 0) == 0
    assert shard.facts()["mean_staleness"] == pytest.approx(7 / 4)


def test_priorities_and_weights_by_hand() -> None:
    shard = filled(4, 4, exponent=0.5, at_once=4)
    shard.update_priorities(np.array([[0, 1], [2, 3]]), np.array([[1.0, -4.0], [9.0, 16.0]], np.float32))
    drawn = shard.draw(1, 10_000, 1.0)  # p^½ = 1, 2, 3, 4: of ten equal parts each has so many
    # One draw from each of 10,000 equal parts: the counts are exact but for the parts at the borders.
    np.testing.assert_allclose(np.bincount(drawn["action"].ravel()), [1000, 2000, 3000, 4000], atol=2)
    weights = {int(name): weight for name, weight in zip(drawn["action"][0], drawn["weight"][0], strict=True)}
    assert drawn["weight"].dtype == np.float32
    for name, expected in enumerate([1, 1 / 2, 1 / 3, 1 / 4]):  # (P / least P)^−1
        assert weights[name] == pytest.approx(expected, rel=1e-5)
    shard.add(rows(4, 1), 0, ALL_AGES)  # overwrites row 0, with the largest p^½ so far: 4, 2, 3, 4
    counts = np.bincount(shard.draw(1, 13_000, 1.0)["action"].ravel(), minlength=5)
    np.testing.assert_allclose(counts, [0, 2000, 3000, 4000, 4000], atol=2)


def test_an_overwritten_rows_priority_is_dropped() -> None:
    shard = filled(3, 3, exponent=1.0)
    shard.add(rows(3, 2), 0, ALL_AGES)  # 3 and 4 lie where 0 and 1 lay
    shard.update_priorities(np.array([0, 1, 2]), np.array([50.0, 50.0, 3.0], np.float32))
    counts = np.bincount(shard.draw(1, 5000, 1.0)["action"].ravel(), minlength=5)
    np.testing.assert_allclose(counts, [0, 0, 3000, 1000, 1000], atol=2)
    shard.add(rows(5, 1), 0, ALL_AGES)  # over row 2; the largest so far is 3, the errors of 50 were never heard
    counts = np.bincount(shard.draw(1, 5000, 1.0)["action"].ravel(), minlength=6)
    np.testing.assert_allclose(counts, [0, 0, 0, 1000, 1000, 3000], atol=2)


def test_uniform_draws_ignore_errors() -> None:
    shard = filled(4, 4)
    shard.update_priorities(np.array([0]), np.array([1e6], np.float32))
    assert np.bincount(shard.draw(1, 4000, 0.0)["action"].ravel()).max() < 1200  # 1000 ± 27 are expected


def test_recent_rows_are_the_newest_oldest_first() -> None:
    shard = filled(10, 25)
    recent = shard.recent(4)
    np.testing.assert_array_equal(recent["observation"][:, 0], [21, 22, 23, 24])
    np.testing.assert_array_equal(recent["greedy"], [28, 29, 30, 31])
    np.testing.assert_array_equal(shard.recent(99)["observation"][:, 0], np.arange(15, 25))
    recent["observation"][:] = 0.0  # a copy: the replay keeps its own
    np.testing.assert_array_equal(shard.recent(1)["observation"], [[24, -24]])


def test_facts_count_and_can_be_written_as_json() -> None:
    assert json.dumps(Shard(10, 0.0, 0).facts(), allow_nan=False)
    shard = filled(10, 25)
    shard.draw(2, 3, 0.0)
    facts = shard.facts()
    assert (facts["size"], facts["inserted"], facts["sampled"], facts["refused_stale"]) == (10, 25, 6, 0)
    # Per row 2 + 2 floats, 2 of float32, 2 of int32 and one of int64.
    assert facts["nbytes"] >= 10 * (4 * 4 + 2 * 4 + 2 * 4 + 8)
