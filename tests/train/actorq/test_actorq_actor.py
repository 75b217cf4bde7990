"""An actor in this process: it acts through the artifact, looks for parameters when it should, and ends when told."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from quarl.device.agent.runtimes import open_artifact
from quarl.policy.spec import DiscreteHead, RuntimeName
from quarl.train.actorq import actor as module
from quarl.train.actorq.actor import Actor
from quarl.train.actorq.learner import LearnerLoop
from quarl.train.actorq.parameters import ParameterServer
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.replay import Columns, ReplayService, Reply
from quarl.train.actorq.wire import Published, Pushed, publish, unpack_artifact
from tests.train.actorq.small_plans import make_plan, make_spec, make_weights, push

PATIENCE_S = 60.0  # for what must come; nothing is timed
SPEC = replace(make_spec(hidden=(8,)), head=DiscreteHead(("action_0", "action_1")))
HANDED = push(SPEC, make_weights(SPEC))
"""A fresh policy of CartPole, as its learner hands it over."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEWAL_PAUSE_S", 0.0)


def always(pushed: Pushed, action: int, updates: int) -> Pushed:
    """The policy that always takes one action."""
    weights = {name: np.zeros_like(array) for name, array in pushed.weights.items()}
    weights["head/bias"][action] = 1.0
    return replace(pushed, weights=weights, updates=updates)


class Shelf:
    """Hands out what it is told, in turn, then nothing newer."""

    def __init__(self, *versions: Published | None) -> None:
        self.versions = list(versions)
        self.known: list[int] = []

    def __call__(self, known: int) -> Published | None:
        self.known.append(known)
        return self.versions.pop(0) if self.versions else None


class Counter:
    """Takes rows; ends after so many; ``updates`` says how far the learner is when it has taken so many."""

    def __init__(self, steps: int, updates: Callable[[int], int] = lambda rows: 0) -> None:
        self.steps, self.updates = steps, updates
        self.columns: list[Columns] = []
        self.taken = 0

    def __call__(self, columns: Columns, facts: dict[str, Any]) -> Reply:
        if columns:
            self.columns.append(columns)
            self.taken += len(columns["return"])
        return Reply(self.taken, self.updates(self.taken), self.taken >= self.steps)

    def rows(self, name: str) -> np.ndarray:
        return np.concatenate([columns[name] for columns in self.columns])


GREEDY = {"epsilon_first": 0.0, "epsilon_last": 0.0}
INT8 = ("litert", "native")
"""Runtimes of actors in int8."""


@pytest.mark.parametrize("runtime", INT8)
def test_an_actor_follows_the_artifact_it_pulled(runtime: str) -> None:
    plan = make_plan(algorithm=GREEDY, actor_update_period=10, insert_every=5, runtime=runtime)
    made_as = plan.actorq.artifact_format
    left, right = (publish(always(HANDED, action, 7 * action), action + 1, 8, 8, made_as) for action in (0, 1))
    shelf, counter = Shelf(left, right), Counter(30)
    facts = Actor(plan, 0, 0, shelf, counter).run()
    assert counter.rows("action").tolist() == counter.rows("greedy").tolist() == [0] * 10 + [1] * 20
    assert counter.rows("updates").tolist() == [0] * 10 + [7] * 20
    # Before the first step, and after the steps 10, 20 …; it says which version it has.
    assert shelf.known[:3] == [0, 1, 2]
    assert (facts["pulls"], facts["renewals"], facts["updates"]) == (len(shelf.known), 2, 7)
    assert facts["steps"] == 30
    assert (facts["counts"]["step"], facts["counts"]["inference"], facts["counts"]["load"]) == (30, 30, 2)


@pytest.mark.parametrize(("period", "pulls"), [(1, 41), (7, 6), (40, 2), (41, 1)])
def test_pulls_are_counted(period: int, pulls: int) -> None:
    shelf = Shelf(publish(HANDED, 1, 8, 8))
    facts = Actor(make_plan(actor_update_period=period), 0, 0, shelf, Counter(40)).run()
    assert facts["pulls"] == len(shelf.known) == pulls  # 1 + 40 steps / period
    assert facts["renewals"] == 1


def test_without_parameters_it_acts_at_random_and_says_so() -> None:
    counter = Counter(200)
    facts = Actor(make_plan(), 0, 0, Shelf(), counter).run()
    assert set(counter.rows("updates").tolist()) == {-1}
    assert set(counter.rows("action").tolist()) == {0, 1}
    assert (facts["updates"], facts["renewals"], facts["counts"]["load"]) == (-1, 0, 0)
    assert facts["episodes"] > 3
    assert facts["returns"] == pytest.approx(200, abs=60)  # every step of CartPole gives 1; the last episode is open


def test_exploration_begins_anew_with_every_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, ended = Counter(200), []
    actor = Actor(make_plan(), 0, 0, Shelf(), counter)
    monkeypatch.setattr(actor._explorer, "end_episode", lambda: ended.append(actor.facts()["steps"]))
    assert actor.run()["episodes"] == len(ended) > 3
    assert ended == (np.flatnonzero(counter.rows("discount") == 0.0) + 1).tolist()  # CartPole fell, within its limit


@pytest.mark.parametrize(("behind", "late"), [(5, 0), (6, 1)])
def test_too_far_behind_it_waits_for_newer_parameters(behind: int, late: int) -> None:
    plan = make_plan(max_staleness=5, actor_update_period=1000, insert_every=8)
    # Pulls: at the start version 1; once it is too late nothing yet, then one too old, nothing, then one new enough.
    versions = [
        publish(replace(HANDED, updates=updates), version, 8, 8) for version, updates in ((1, 0), (2, 0), (3, 1))
    ]
    shelf = Shelf(versions[0], None, versions[1], None, versions[2])
    counter = Counter(16, lambda taken: behind if taken == 8 else 0)
    facts = Actor(plan, 0, 0, shelf, counter).run()
    assert facts["late_renewals"] == late
    assert shelf.known == ([0, 1, 1, 2, 2] if late else [0])
    assert counter.rows("updates").tolist() == [0] * 8 + [late] * 8


def test_when_the_run_is_over_nobody_waits_for_parameters() -> None:
    plan = make_plan(max_staleness=5, actor_update_period=1000, insert_every=8)
    shelf = Shelf(publish(HANDED, 1, 8, 8))
    facts = Actor(plan, 0, 0, shelf, Counter(8, lambda taken: 99 if taken else 0)).run()
    assert (facts["steps"], facts["pulls"]) == (8, 1)


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_rows_follow_each_other_as_the_environment_went(task: str) -> None:
    plan = make_plan(algorithm={"n_step": 1}, pendulum=task == "Pendulum-v1")
    counter = Counter(300)
    Actor(plan, 0, 0, Shelf(), counter).run()
    before, after = counter.rows("observation"), counter.rows("next_observation")
    assert len(np.unique(before, axis=0)) == len(before)  # no buffer that the environment writes again
    follows = (before[1:] == after[:-1]).all(axis=1)
    if task == "CartPole-v1":
        np.testing.assert_array_equal(follows, counter.rows("discount")[:-1] > 0)  # an end, and a reset
    else:
        assert np.flatnonzero(~follows).tolist() == [199]  # its time limit, bootstrapped
        assert (counter.rows("discount") > 0).all()


def test_actors_and_lives_see_other_episodes_and_each_the_same_again() -> None:
    def seen(index: int, life: int) -> np.ndarray:
        counter = Counter(40)
        Actor(make_plan(n_actors=2), index, life, Shelf(), counter).run()
        return counter.rows("observation")

    np.testing.assert_array_equal(seen(0, 0), seen(0, 0))
    assert (seen(0, 0) != seen(1, 0)).any()
    assert (seen(0, 0) != seen(0, 1)).any()


@pytest.mark.parametrize(("n_step", "correct", "follows"), [(3, True, True), (3, False, False), (1, True, False)])
def test_later_steps_are_sent_only_where_a_correction_needs_them(n_step: int, correct: bool, follows: bool) -> None:
    counter = Counter(20)
    Actor(make_plan(algorithm={"n_step": n_step}, correct_mismatch=correct), 0, 0, Shelf(), counter).run()
    assert all(("following" in columns) == follows for columns in counter.columns)


class Hall:
    """Replay and parameter server in this process; who may not go on waits, as in ``train/actorq/cluster.py``."""

    def __init__(self, plan: Plan, server: ParameterServer) -> None:
        self.service, self.server, self.changed = ReplayService(plan, 0), server, threading.Condition()
        self.rows: list[Columns] = []
        self.published: dict[int, Published] = {}

    def _when_ready(self, ask: Callable[[], Any]) -> Any:
        with self.changed:
            assert self.changed.wait_for(lambda: self._asked(ask), PATIENCE_S), "nobody may go on"
            self.changed.notify_all()
            return self.answer

    def _asked(self, ask: Callable[[], Any]) -> bool:
        self.answer = ask()
        return self.answer is not None

    def insert(self, columns: Columns, facts: dict[str, Any]) -> Reply:
        if columns:
            self.rows.append(columns)
        return self._when_ready(lambda: self.service.insert(columns, facts))

    def sample(self, updates: int) -> tuple[Columns | None, Reply]:
        return self._when_ready(lambda: self.service.sample(updates))

    def recent(self, count: int) -> Columns:
        with self.changed:
            return self.service.recent(count)

    def prioritise(self, rows: np.ndarray, errors: np.ndarray) -> None:
        with self.changed:
            self.service.update_priorities(rows, errors)

    def pull(self, known: int) -> Published | None:
        found = self.server.latest(known)
        if found is not None:
            self.published[found.updates] = found
        return found


@pytest.mark.parametrize(
    ("runtime", "quantize", "communication"),
    [("litert", 8, 8), ("litert", 16, 8), ("litert", 32, 32), ("native", 8, 8), ("native", 8, 16), ("native", 32, 32)],
)
def test_actors_and_learner_make_a_whole_run(runtime: str, quantize: int, communication: int) -> None:
    change = {"n_step": 3, "learning_starts": 100, "replay_capacity": 1000, "learning_rate": 1e-2}
    plan = make_plan(
        600, change, n_actors=2, quantize=quantize, quantize_communication=communication, actor_update_period=10,
        priority_exponent=0.6, runtime=runtime,
    )  # fmt: skip
    made_as: dict[str, Any] = {"artifact_format": plan.actorq.artifact_format}
    with closing(ParameterServer(quantize, communication, **made_as)) as server, ThreadPoolExecutor(3) as threads:
        hall = Hall(plan, server)
        loop = LearnerLoop(plan, hall.sample, hall.recent, server.put, hall.prioritise)
        learning = threads.submit(loop.run)
        acting = [threads.submit(Actor(plan, index, 0, hall.pull, hall.insert).run) for index in range(2)]
        results = [each.result(PATIENCE_S) for each in acting]
        learned = learning.result(PATIENCE_S)
        facts, served = hall.service.facts(), server.facts()
    assert 600 <= facts["step"] < 600 + 8
    assert facts["refused_stale"] == 0
    assert sum(each["steps"] for each in results) >= facts["step"]
    # Samples for an insertion: 2, up to the slack of 2 · 2 · 7 · 2 rows.
    assert abs((facts["inserted"] - 100) * 2 - facts["sampled"]) <= 56
    assert learned["updates"] == facts["sampled"] // 4
    assert served["pulls"] == sum(each["pulls"] for each in results)
    assert 1 < served["versions_built"] <= served["versions_put"]
    assert min(each["renewals"] for each in results) > 1
    assert 0.0 <= learned["cut_returns"] < 1.0
    acted_as_the_artifact_says(hall, RuntimeName(runtime))


def acted_as_the_artifact_says(hall: Hall, runtime: RuntimeName) -> None:
    """Every row's greedy action is what the artifact of its version decides on its observation."""
    compared = 0
    for updates, published in hall.published.items():
        executor = open_artifact(runtime, unpack_artifact(published), published.spec)
        for columns in hall.rows:
            for row in np.flatnonzero(columns["updates"] == updates):
                assert executor.decide(columns["observation"][row][None]) == columns["greedy"][row]
                compared += 1
    assert compared == sum(int((columns["updates"] >= 0).sum()) for columns in hall.rows) > 300
