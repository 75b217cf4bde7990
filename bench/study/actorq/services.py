"""Service times of ActorQ's parts on this machine, from real calls to the modules of ``train/actorq``.

Everything is counted in seconds of a processor, not of a clock: what others do on this machine does not make it longer.
The actor and the learner are the very ``Actor`` and ``LearnerLoop``, whose ways to replay and parameters are functions
here; replay and parameter processes are those that ``cluster.connected`` starts, asked through Ray as in a run.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from quarl.bench.study.actorq.runs import planned
from quarl.train.actorq import cluster
from quarl.train.actorq.actor import Actor
from quarl.train.actorq.learner import LearnerLoop
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.processes import called, pulled
from quarl.train.actorq.replay import Columns, ReplayService, Reply
from quarl.train.actorq.wire import Published, Pushed, publish

LEAST_STEPS = 600  # of the insertions that the replay is filled with; learning has to start before
WARM_STEPS = 256
ACTOR_S = 3.0  # processor seconds that the actor's part takes at least
ROUNDS = 3  # of the learner, after the one that is compiled
FEWER_ROUNDS_FROM_S = 4.0  # a round that takes longer is measured once
CALLS = 150  # through Ray
VERSIONS = 6
BUILD_WAIT_S, PAUSE_S = 30.0, 0.02

T = TypeVar("T")


def cpu_s(call: Callable[[], T]) -> tuple[T, float]:
    """Call a function; returns its answer, and the processor seconds that it takes here."""
    since = time.process_time()
    return call(), time.process_time() - since


def measure(words: Sequence[str]) -> dict[str, float]:
    """Service times (:class:`bench.study.actorq.bounds.Services`) of what a command starts.

    Besides: ``insert_free_s`` and ``sample_free_s``, of an insertion and of a round's minibatches in one process,
    without Ray; and the command's updates a round, their transitions, and how often an actor inserts and looks.
    """
    plan = planned(words)
    updates, actorq = plan.settings.updates, plan.actorq
    counts = {"updates": updates, "rows": updates * plan.settings.minibatch}
    counts |= {name: getattr(actorq, name) for name in ("insert_every", "actor_update_period")}
    rows = transitions(plan)
    learner, pushed = measure_learner(plan, rows)
    bits = actorq.quantize
    publish(pushed, 1, bits, bits)  # the first loads the converter
    published, build = cpu_s(lambda: publish(pushed, 1, bits, bits))
    parts = measure_actor(plan, published) | measure_processes(plan, pushed, rows) | measure_replay(plan, rows)
    parts["version_server_s"] = max(parts["version_server_s"] - build, 0.0)
    parts["renew_s"] += parts.pop("fetch_s")
    learner["push_s"] += parts.pop("hand_s")
    return {**counts, **parts, **learner, "build_s": build, "version_bytes": float(published.data.nbytes)}


def transitions(plan: Plan) -> list[Columns]:
    """Insertions that a real actor makes while it has no parameters."""
    found: list[Columns] = []

    def insert(columns: Columns, facts: dict[str, Any]) -> Reply:
        found.extend([columns] if columns else [])
        return Reply(0, 0, facts["steps"] >= LEAST_STEPS)

    Actor(plan, 0, 0, lambda known: None, insert).run()
    return found


def filled(plan: Plan, rows: list[Columns]) -> ReplayService:
    """A shard that may be sampled."""
    service = ReplayService(plan, 0)
    for columns in rows:
        service.insert(columns, {"actor": 0, "life": 0})
    return service


def measure_replay(plan: Plan, rows: list[Columns]) -> dict[str, float]:
    """Seconds of an insertion and of a round's sample, called in this process."""
    service = filled(plan, rows)
    inserting, sampling = [], []
    for columns in rows:
        inserting.append(cpu_s(partial(service.insert, columns, {"actor": 0, "life": 0}))[1])
        sampling.append(cpu_s(partial(service.sample, 0))[1])
    return {"insert_free_s": statistics.mean(inserting), "sample_free_s": statistics.mean(sampling)}


def measure_learner(plan: Plan, rows: list[Columns]) -> tuple[dict[str, float], Pushed]:
    """Rounds of the real loop, the first, which is compiled, left out; and what it handed over last."""
    service = filled(plan, rows)
    marks: list[tuple[float, float, dict[str, float]]] = []
    handed: list[Pushed] = []

    def sample(updates: int) -> tuple[Columns | None, Reply]:
        answer = service.sample(updates)
        assert answer is not None
        marks.append((time.process_time(), time.perf_counter(), loop.facts()["seconds"]))
        took = marks[-1][1] - marks[-2][1] if len(marks) > 1 else 0.0
        enough = len(marks) == ROUNDS + 2 or (len(marks) == 3 and took > FEWER_ROUNDS_FROM_S)
        return (None if enough else answer[0]), answer[1]

    loop = LearnerLoop(plan, sample, service.recent, handed.append, service.update_priorities)
    loop.run()
    (cpu, _, before), (cpu_last, _, after), rounds = marks[1], marks[-1], len(marks) - 2
    wall = sum(after[part] - before[part] for part in ("prepare", "learn"))
    push = (after["push"] - before["push"]) / rounds
    each = max((cpu_last - cpu) / rounds - push, 0.0)
    return {"learn_s": each, "learn_width": max(each * rounds / wall, 1.0), "push_s": push}, handed[-1]


def measure_actor(plan: Plan, published: Published) -> dict[str, float]:
    """The real actor: parts of a step, and of opening a version, in processor seconds."""
    warm: dict[str, Any] = {}

    def insert(columns: Columns, facts: dict[str, Any]) -> Reply:
        if not warm and facts["steps"] >= WARM_STEPS:
            warm.update(facts)
        return Reply(0, 0, bool(warm) and facts["cpu_s"] - warm["cpu_s"] > ACTOR_S)

    facts = Actor(plan, 0, 0, lambda known: dataclasses.replace(published, version=known + 1), insert).run()
    seconds = {part: facts["seconds"][part] - warm["seconds"][part] for part in facts["seconds"]}
    cpu = (facts["cpu_s"] - warm["cpu_s"]) / seconds["total"]  # the clock's seconds that were ours
    steps, renewals = facts["steps"] - warm["steps"], facts["renewals"] - warm["renewals"]
    others = seconds["total"] - sum(value for part, value in seconds.items() if part != "total")
    return {
        "step_s": cpu * seconds["step"] / steps,
        "inference_s": cpu * seconds["inference"] / steps,
        "python_s": cpu * (others + seconds["pull"] + seconds["insert"]) / steps,
        "renew_s": cpu * (seconds["deserialize"] + seconds["load"]) / max(renewals, 1),
    }


def measure_processes(plan: Plan, pushed: Pushed, rows: list[Columns]) -> dict[str, float]:
    """Measure replay and parameter process through Ray: this side's cost and theirs, and what neither computes."""
    with cluster.connected(plan.actorq, None), cluster.Cluster(plan, True, 0) as processes:
        shard, server = processes.shards[0], processes.server

        def get(known: int) -> int:
            found = pulled(server, known)
            return known if found is None else found.version

        for columns in rows:
            called(shard.insert_when_ready, columns, {"actor": 0, "life": 0})
        facts = {"actor": 0, "life": 0, "seconds": {str(i): 0.0 for i in range(20)}}
        called(server.put, pushed)
        known = get(0)
        calls = {
            "insert": _calls(shard, lambda i: called(shard.insert_when_ready, rows[i % len(rows)], facts)),
            "sample": _calls(shard, lambda i: called(shard.sample_when_ready, 0)),
            "look": _calls(server, lambda i: get(known)),
        }
        handing, versions, fetching = [], [], []
        for _ in range(VERSIONS):
            theirs = _server_s(server)
            handing.append(cpu_s(lambda: called(server.put, pushed))[1])
            before, actorq, fetched, until = known, 0, 0.0, time.monotonic() + BUILD_WAIT_S
            while known == before and time.monotonic() < until:
                time.sleep(PAUSE_S if actorq else 0.0)
                known, fetched = cpu_s(partial(get, known))
                actorq += 1
            versions.append(_server_s(server) - theirs - (actorq + 1) * calls["look"]["server_s"])
            fetching.append(fetched)
    return {
        **{f"{name}_{side}": each[side] for name, each in calls.items() for side in ("client_s", "server_s")},
        "latency_s": calls["look"]["latency_s"],
        "version_server_s": statistics.median(versions),
        "fetch_s": max(statistics.median(fetching) - calls["look"]["client_s"], 0.0),
        "hand_s": statistics.median(handing),
    }


def _server_s(process: Any) -> float:
    return float(called(process.facts)["cpu_s"])


def _calls(process: Any, call: Callable[[int], Any]) -> dict[str, float]:
    """Mean of many calls: processor seconds here and there, and the clock's beyond both."""
    for index in range(CALLS // 5):
        call(index)
    theirs, ours, since = _server_s(process), time.process_time(), time.perf_counter()
    for index in range(CALLS):
        call(index)
    wall, here = time.perf_counter() - since, time.process_time() - ours
    there = _server_s(process) - theirs
    spent = {"client_s": here, "server_s": there, "latency_s": max(wall - here - there, 0.0)}
    return {name: seconds / CALLS for name, seconds in spent.items()}
