"""How processes reach each other, with shards that answer here: what Ray itself does, test_actorq_runs.py looks at."""

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quarl.train.actorq.history import LARGEST, Deaths, GaveUpError, add_sums, sums_of
from quarl.train.actorq.replay import ReplayService, Reply
from quarl.train.actorq.wire import Published, publish
from tests.train.actorq.small_plans import FACTS, make_plan, make_rows, make_spec, make_weights, push

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed; type make actorq")


class Method:
    """A method of an actor, called at once; what it answered is the reference to it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def remote(self, *arguments: Any) -> Any:
        return self._answer(*arguments)


class Shard:
    """A shard in this process."""

    def __init__(self, index: int) -> None:
        self.service = ReplayService(make_plan(n_actors=2, replay_shards=2, samples_per_insert=0.0), index)
        for first in range(0, 12, 4):
            self.service.insert(make_rows(4, first=first), FACTS)
        self.sample_when_ready, self.hear = Method(self.service.sample), Method(self.service.hear)
        self.insert_when_ready = Method(self._inserted)
        self.numbers: list[int] = []

    def _inserted(self, columns: Any, facts: dict[str, Any]) -> Reply | None:
        self.numbers.append(facts["number"])
        return self.service.insert(columns, facts)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is its own reference, but where it may be none."""
    from quarl.train.actorq import processes

    monkeypatch.setattr(processes.ray, "get", got)


@dataclass(frozen=True)
class Reference:
    """To an answer that may be none."""

    answer: Any


def got(reference: Any) -> Any:
    return reference.answer if isinstance(reference, Reference) else reference


@needs_ray
@pytest.mark.usefixtures("here")
def test_every_shard_hears_of_every_round() -> None:
    from quarl.train.actorq.processes import Sampler

    shards = [Shard(0), Shard(1)]
    sampler = Sampler(shards)
    for updates in (0, 2, 4, 6):
        columns, reply = sampler(updates)
        assert columns is not None and not reply.stop
        assert reply.step == 24  # 12 of each, of which the first answer knows one
        # The shard that was asked ahead, a round ago, is a round behind; no shard is further.
        heard = [shard.service.reply.updates for shard in shards]
        assert max(heard) == updates and min(heard) >= updates - 2


@needs_ray
@pytest.mark.usefixtures("here")
def test_steps_that_an_actor_knows_of_do_not_become_fewer() -> None:
    from quarl.train.actorq.processes import Inserter

    shard = Shard(0)
    insert = Inserter(shard)
    insert({}, FACTS)
    assert insert(make_rows(4), FACTS).step == 12
    shard.service = ReplayService(make_plan(n_actors=2, replay_shards=2, samples_per_insert=0.0), 0)  # it started over
    assert [insert(make_rows(4), FACTS).step for _ in range(3)] == [16, 16, 16]
    assert shard.numbers == [1, 2, 3, 4, 5]


class Server:
    """A parameter server in this process: its newest version, and which ones those who asked had."""

    def __init__(self) -> None:
        self.newest: Published | None = None
        self.known: list[int] = []
        self.latest = Method(self._latest)

    def put(self, version: int) -> None:
        spec = make_spec()
        self.newest = publish(push(spec, make_weights(spec), 10 * version), version, 8, 8)

    def _latest(self, known: int) -> Reference:
        self.known.append(known)
        return Reference(None if self.newest is None or self.newest.version <= known else self.newest)


@needs_ray
@pytest.mark.usefixtures("here")
def test_a_look_takes_what_was_the_newest_at_the_one_before() -> None:
    from quarl.train.actorq.processes import Puller

    server = Server()
    pull = Puller(server)
    server.put(1)
    first = pull(0)
    assert first is not None and first.version == 1  # the first look waits: nothing was asked before it
    server.put(2)
    assert pull(1) is None  # asked before version 2 was there
    second = pull(1)
    assert second is not None and second.version == 2
    assert pull(2) is None and pull(2) is None
    assert server.known == [0, 1, 1, 2, 2, 2]


@needs_ray
@pytest.mark.usefixtures("here")
def test_a_version_whose_bytes_are_lost_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from quarl.train.actorq import processes

    server = Server()
    pull = processes.Puller(server)
    server.put(1)
    lost = [True]

    def get(reference: Any) -> Any:
        if isinstance(reference, np.ndarray) and lost and lost.pop():
            raise processes.RayError
        return got(reference)

    monkeypatch.setattr(processes.ray, "get", get)
    assert pull(0) is None
    found = pull(0)
    assert found is not None and found.version == 1
    assert server.known == [0, 0, 1]


@needs_ray
def test_a_process_that_cannot_be_built_says_what_its_building_raised() -> None:
    from ray.exceptions import ActorDiedError, RayTaskError

    from quarl.train.actorq.processes import reason

    trace = (
        "Traceback (most recent call last):\n  File \"x.py\", line 1\nModuleNotFoundError: No module named 'dm_control'"
    )
    raised = RayTaskError("ActorProcess.__init__", trace, ModuleNotFoundError("No module named 'dm_control'"))
    raised._actor_id = "ff" * 16
    assert reason(ActorDiedError(raised)) == "ModuleNotFoundError: No module named 'dm_control'"
    assert reason(ActorDiedError()).startswith("The actor died unexpectedly")


def test_sums_of_lives_by_hand() -> None:
    one = sums_of({"cpu_s": 2.0, "seconds": {"learn": 1.5}}, {"cpu_s": 0.5, "versions_put": 3}, [{"cpu_s": 1.0}])
    shards: list[dict[str, float]] = [{"cpu_s": 0.25, "refused_stale": 4, "largest_staleness": 90}]
    shards.append({"largest_staleness": 70})
    other = sums_of({"seconds": {"learn": 0.5, "push": 1.0}}, {"versions_put": 4, "bytes_served": 10}, shards)
    both = add_sums(one, other)
    assert both["cpu_s"] == {"learner": 2.0, "replay": 1.25, "parameters": 0.5}
    assert both["learner_seconds"] == {"learn": 2.0, "push": 1.0}
    assert (both["parameters"]["versions_put"], both["parameters"]["bytes_served"]) == (7, 10)
    assert both["replay"] == {"refused": 4, LARGEST: 90}
    assert add_sums({}, one) == one


def test_deaths_in_a_row_end_a_run_and_those_before_a_resumption_are_told() -> None:
    earlier = {"who": "actor 0", "step": 7, "why": "killed"}
    deaths = Deaths([earlier])
    for step in range(4):
        deaths.note("actor 0", step, why="no memory")
    with pytest.raises(GaveUpError, match="actor 0 died"):
        deaths.note("actor 0", 4, why="no memory")
    assert deaths.notes[0] == earlier and len(deaths.notes) == 6
