"""A replay's side of the run: who waits, whose steps count, and when everybody hears that it is over."""

import json
from typing import Any

import numpy as np
import pytest

from quarl.train.actorq.plan import Plan
from quarl.train.actorq.replay import ReplayService, Reply, steps_of
from tests.train.actorq.small_plans import FACTS, make_plan, make_rows


def filled(plan: Plan, rows: int) -> ReplayService:
    service = ReplayService(plan, 0)
    for first in range(0, rows, 4):
        assert service.insert(make_rows(min(4, rows - first), first=first), FACTS) is not None
    return service


def drawn(service: ReplayService, updates: int = 0) -> int:
    """Rounds until the service lets the learner wait, or says that it is over."""
    for rounds in range(1000):
        answer = service.sample(updates)
        if answer is None or answer[0] is None:
            return rounds
    raise AssertionError("the learner may go on for ever")


def test_both_sides_wait_by_hand() -> None:
    service = filled(make_plan(), 9)
    assert service.sample(0) is None  # the learner waits for the minimum of 10
    service.insert(make_rows(1), FACTS)
    assert service.sample(0) is not None
    service = ReplayService(make_plan(), 0)
    assert service.sample(0) is None
    replies = [service.insert(make_rows(4), FACTS) for _ in range(5)]
    # (20 − 10) · 2 = 20 samples ahead, as many as the slack: the sixth would make 28.
    assert [reply.step for reply in replies if reply is not None] == [4, 8, 12, 16, 20]
    assert service.insert(make_rows(4), FACTS) is None
    assert service.reply == Reply(20, 0, False)  # what may not be inserted yet is not counted
    assert service.insert({}, FACTS) == Reply(20, 0, False)  # without rows one only hears how far the run is
    assert service.facts()["size"] == 20
    answer = service.sample(6)
    assert answer is not None and answer[0] is not None
    assert answer[0]["observation"].shape == (2, 4, 4)
    assert answer[1] == Reply(20, 6, False)
    assert service.insert(make_rows(4), FACTS) == Reply(24, 6, False)  # 12 + 8 = 20
    # (24 − 10) · 2 − 8 = 20 ahead; five rounds of 8 lead to −20.
    assert drawn(service, 7) == 5
    assert service.reply == Reply(24, 7, False)


@pytest.mark.parametrize("ratio", [0.25, 1.0, 16.0, 500.0])
@pytest.mark.parametrize("sizes", [(1, 4, 1), (64, 4, 1), (3, 256, 8)], ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_one_side_may_always_go_on_with_its_largest(ratio: float, sizes: tuple[int, int, int], shards: int) -> None:
    often, minibatch, updates = sizes
    change = {"minibatch": minibatch, "updates": updates, "n_step": 5, "replay_capacity": 3000}
    plan = make_plan(10**9, change, samples_per_insert=ratio, insert_every=often, n_actors=3, replay_shards=shards)
    service = ReplayService(plan, 0)
    largest = make_rows(often - 1 + 5)  # one below the threshold, when an episode's end completes a whole window
    insertions = rounds = 0
    while rounds < 5:
        if service.insert(largest, FACTS) is not None:
            insertions += 1
        elif service.sample(0) is not None:
            rounds += 1
        else:
            pytest.fail(f"nobody may go on after {insertions} insertions and {rounds} rounds")
        assert insertions < 10_000, "the learner is never waited for"


def test_without_a_ratio_nobody_waits_but_for_the_minimum() -> None:
    service = filled(make_plan(samples_per_insert=0.0), 9)
    assert service.sample(0) is None
    for _ in range(50):
        assert service.insert(make_rows(4), FACTS) is not None
    for _ in range(100):
        answer = service.sample(0)
        assert answer is not None and answer[0] is not None


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_at_the_quota_everybody_hears_that_it_is_over(ratio: float) -> None:
    service = filled(make_plan(22, samples_per_insert=ratio), 20)
    assert service.sample(0) is not None
    assert not service.reply.stop
    assert service.insert(make_rows(4), FACTS) == Reply(24, 0, True)  # the last insertion may go beyond
    assert service.insert(make_rows(4), FACTS) == Reply(24, 0, True)  # what comes later is dropped
    assert service.facts()["inserted"] == 24
    # With the ratio (24 − 10) · 2 − 8 = 20 samples ahead: 5 rounds lead to −20. Without one nothing is owed.
    assert drawn(service) == (5 if ratio else 0)
    assert service.sample(9) == (None, Reply(24, 9, True))


def test_stop_ends_the_run_whatever_is_left() -> None:
    service = filled(make_plan(), 20)
    service.stop()
    assert service.sample(3) == (None, Reply(20, 3, True))
    assert service.insert(make_rows(4), FACTS) == Reply(20, 3, True)
    assert service.facts()["inserted"] == 20
    waiting = ReplayService(make_plan(), 0)
    assert waiting.sample(0) is None
    waiting.stop()
    assert waiting.sample(0) == (None, Reply(0, 0, True))
    assert filled(make_plan(8), 8).sample(0) == (None, Reply(8, 0, True)), "a run shorter than the minimum"


@pytest.mark.parametrize(("total", "parts"), [(10, 3), (2, 3), (0, 2), (12, 4), (1_000_001, 7)])
def test_equal_shards_get_equal_shares_and_one_of_more_actors_more(total: int, parts: int) -> None:
    actorq = make_plan(n_actors=2 * parts, replay_shards=parts).actorq
    shares = [steps_of(total, actorq, index) for index in range(parts)]
    assert sum(shares) == total and max(shares) - min(shares) <= 1
    actorq = make_plan(101, n_actors=3, replay_shards=2).actorq
    assert [steps_of(101, actorq, index) for index in range(2)] == [67, 34]  # two actors and one


def test_several_shards_make_exactly_the_steps_that_are_left() -> None:
    plan = make_plan(101, samples_per_insert=0.0, n_actors=3, replay_shards=3)
    made = []
    for index in range(3):
        service, rows = ReplayService(plan, index, start_step=20), 0
        assert service.reply.step == (6, 7, 7)[index]
        while not service.reply.stop:
            service.insert(make_rows(1), FACTS)
            rows += 1
        made.append(rows)
    assert made == [33 - 6, 34 - 7, 34 - 7]
    assert sum(made) == 101 - 20


def test_a_replaced_process_keeps_its_steps_and_gathers_again() -> None:
    service = ReplayService(make_plan(22), 0)
    service.go_on(15)
    assert service.reply == Reply(15, 0, False)
    assert service.insert(make_rows(4), FACTS) == Reply(19, 0, False)
    assert service.sample(5) is None  # 4 rows are below the minimum of 10
    assert service.insert(make_rows(3), FACTS) == Reply(22, 5, True)


def test_what_came_before_it_knew_its_steps_is_added_to_them() -> None:
    service = ReplayService(make_plan(40), 0, start_step=5)
    assert service.insert(make_rows(4), FACTS) == Reply(9, 0, False)
    service.go_on(20)  # which the one before had received, the 5 included
    assert service.reply == Reply(24, 0, False)


def test_rows_that_were_sent_twice_are_taken_once() -> None:
    service = ReplayService(make_plan(), 0)
    first = {**FACTS, "number": 1}
    for step, facts in ((4, first), (4, first), (8, {**FACTS, "number": 2}), (8, first)):
        assert service.insert(make_rows(4), facts) == Reply(step, 0, False)
    assert service.facts()["size"] == 8
    another_life = {"actor": 0, "life": 1, "number": 1}
    assert service.insert(make_rows(4), another_life) == Reply(12, 0, False)
    # One that had to wait was not taken: when it asks again it is.
    for number in (3, 4):
        assert service.insert(make_rows(4), {**FACTS, "number": number}) is not None
    waiting = {**FACTS, "number": 5}
    assert service.insert(make_rows(4), waiting) is None
    assert service.sample(2) is not None
    assert service.insert(make_rows(4), waiting) == Reply(24, 2, False)


def test_refused_rows_are_steps_but_nothing_to_learn_from() -> None:
    service = ReplayService(make_plan(max_staleness=5), 0)
    assert service.sample(100) is None  # which tells the service how far the learner is
    for step in (4, 8, 12, 16, 20, 24, 28):  # from a policy of 94 updates: 6 behind
        assert service.insert(make_rows(4, updates=94), FACTS) == Reply(step, 100, False)
    assert service.sample(100) is None  # there is not one row to draw
    assert service.facts()["refused_stale"] == 28
    for _ in range(3):
        assert service.insert(make_rows(4, updates=95), FACTS) is not None
    # (12 − 10) · 2 = 4 samples ahead: three rounds of 8 lead to −20.
    assert drawn(service, 100) == 3


def test_priorities_reach_the_shard() -> None:
    service = filled(make_plan(algorithm={"updates": 1, "minibatch": 8}, priority_exponent=1.0), 12)
    errors = np.zeros(12, np.float32)
    errors[5] = 1e6
    service.update_priorities(np.arange(12), errors)
    answer = service.sample(0)
    assert answer is not None and answer[0] is not None
    assert (answer[0]["rows"] == 5).all()
    np.testing.assert_array_equal(answer[0]["weight"], np.ones((1, 8), np.float32))


def test_the_last_word_of_every_life_of_an_actor_is_kept() -> None:
    service = ReplayService(make_plan(), 0)
    lives: list[dict[str, Any]] = [
        {"actor": 1, "life": 0, "steps": 3},
        {"actor": 1, "life": 1, "steps": 4},
        {"actor": 1, "life": 1, "steps": 9},
    ]
    for facts in lives:
        service.insert({}, facts)
    facts = json.loads(json.dumps(service.facts(), allow_nan=False))
    assert facts["actors"] == {"1.0": lives[0], "1.1": lives[2]}
    assert (facts["step"], facts["updates"], facts["size"]) == (0, 0, 0)


def test_shards_draw_differently_and_each_the_same_again() -> None:
    plan = make_plan(samples_per_insert=0.0, n_actors=2, replay_shards=2)

    def rows(index: int) -> np.ndarray:
        service = ReplayService(plan, index)
        service.insert(make_rows(50), FACTS)
        answer = service.sample(0)
        assert answer is not None and answer[0] is not None
        return answer[0]["rows"]

    np.testing.assert_array_equal(rows(0), rows(0))
    assert (rows(0) != rows(1)).any()
