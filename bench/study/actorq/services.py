"""Service times of ActorQ's parts on this machine, from real calls to the modules of ``train/actorq``.

Everything is counted in seconds of a processor, not of a clock: what others do on this machine does not make it longer.
The actor and the learner are the very ``Actor`` and ``LearnerLoop``, whose ways to replay and parameters are functions
here; replay and parameter processes are those that ``cluster.connected`` starts, asked through Ray as in a run.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from bench.study.actorq.layout import Layout, Services
from train.actorq import cluster
from train.actorq.actor import Actor
from train.actorq.learner import LearnerLoop
from train.actorq.processes import called
from train.actorq.service import Columns, ReplayService, Reply
from train.actorq.settings import Plan
from train.actorq.wire import Published, Pushed, publish

MANY = 2**60
WARM_STEPS = 256
ACTOR_S = 3.0  # processor seconds that the actor's part takes at least
ROUNDS = 3  # of the learner, after the one that is compiled
FEWER_ROUNDS_FROM_S = 4.0  # a round that takes longer is measured once
CALLS = 150  # through Ray
VERSIONS = 6
BUILD_WAIT_S = 30.0


@dataclass(frozen=True)
class Setup:
    """What is run: as typed for ``python -m train.actorq``."""

    task: str = "dm_control,cartpole_balance"
    model: str = "512,512"
    method: str = "d4pg"
    updates: int = 16
    batch_size: int = 256
    insert_every: int = 16
    actor_update_period: int = 30
    learning_starts: int = 500

    def command(self, n_actors: int, bits: int, samples_per_insert: float, steps: int) -> list[str]:
        """Arguments of the command."""
        return [
            "--task", self.task, "--model", self.model, "--method", self.method, "--n-actors", str(n_actors),
            "--quantize", str(bits), "--quantize-communication", str(bits), "--batch-size", str(self.batch_size),
            "--samples-per-insert", f"{samples_per_insert:g}", "--insert-every", str(self.insert_every),
            "--actor-update-period", str(self.actor_update_period), "--steps", str(steps),
            "--set", f"updates={self.updates}", "--set", f"learning_starts={self.learning_starts}",
            "--evaluate-every", str(MANY), "--evaluate-episodes", "1", "--final-episodes", "1", "--quiet",
        ]  # fmt: skip

    def plan(self, bits: int, n_actors: int = 1, samples_per_insert: float = 0.0, steps: int = MANY) -> Plan:
        """The plan that the command would make."""
        from train.__main__ import make_request
        from train.actorq.__main__ import actorq_settings, make_plan, parser
        from train.runs.models import DEFAULT_POLICY
        from train.runs.presets import load_settings
        from train.suites.make import make_task

        arguments = parser().parse_args(self.command(n_actors, bits, samples_per_insert, steps))
        arguments.set.append(f"minibatch={arguments.batch_size}")
        asked = actorq_settings(arguments)
        found = load_settings(self.task, self.method, DEFAULT_POLICY)
        task = make_task(self.task, None, found.task)
        with redirect_stdout(StringIO()):
            request, settings = make_request(arguments, self.method, found, task, {}, {})
        plan: Plan = make_plan(request, None, found.task, dataclasses.asdict(settings), asked)
        return plan

    def layout(self, n_step: int, **more: Any) -> Layout:
        """The same for the simulation."""
        return Layout(
            1,
            insert_every=self.insert_every,
            actor_update_period=self.actor_update_period,
            updates=self.updates,
            minibatch=self.batch_size,
            n_step=n_step,
            **more,
        )


@dataclass(frozen=True)
class Measured:
    """What one command measured of a setup.

    Attributes:
        services: by bits.
        n_step: of the returns.
        engine_free: seconds of replay calls in this process, without Ray: insertion, a round's sample.
    """

    services: dict[int, Services]
    n_step: int
    engine_free: dict[str, float]


@dataclass(frozen=True)
class Learned:
    """The learner's part of :class:`Services`, and what it handed over last."""

    learn_s: float
    learn_width: float
    push_s: float
    pushed: Pushed


SHARED = (
    "step_s", "python_s", "insert_client_s", "insert_server_s", "sample_client_s", "sample_server_s",
    "look_client_s", "look_server_s", "latency_s",
)  # fmt: skip
"""What does the same whatever the bits: the mean over the widths is taken, which noise would tell apart."""


def measure(setup: Setup, widths: tuple[int, ...], say: Callable[[str], None]) -> Measured:
    """Services of a setup at each width."""
    from train.actorq.algorithms import settings_of

    plan = setup.plan(widths[0])
    say(f"{setup.model}: the learner …")
    rows = transitions(plan)
    learned = measure_learner(plan, rows)
    found: dict[int, dict[str, float]] = {}
    for bits in widths:
        own = setup.plan(bits)
        say(f"{setup.model}: an actor in {bits} bits, and what goes through Ray …")
        publish(learned.pushed, 1, bits, bits)  # the first loads the converter
        since = time.process_time()
        published = publish(learned.pushed, 1, bits, bits)
        build = time.process_time() - since
        parts = {**measure_actor(own, published), **measure_processes(own, learned.pushed, rows)}
        parts["version_server_s"] = max(parts["version_server_s"] - build, 0.0)
        parts["renew_s"] += parts.pop("fetch_s")
        parts["push_s"] = learned.push_s + parts.pop("hand_s")
        found[bits] = {**parts, "build_s": build, "version_bytes": float(published.data.nbytes)}
    same = {name: statistics.mean(parts[name] for parts in found.values()) for name in (*SHARED, "push_s")}
    services = {
        bits: Services(**{**parts, **same}, learn_s=learned.learn_s, learn_width=learned.learn_width)
        for bits, parts in found.items()
    }
    return Measured(services, settings_of(plan).n_step, measure_replay(plan, rows))


def transitions(plan: Plan, least: int = 600) -> list[Columns]:
    """Insertions that a real actor makes while it has no parameters."""
    found: list[Columns] = []

    def insert(columns: Columns, facts: dict[str, Any]) -> Reply:
        found.extend([columns] if columns else [])
        return Reply(0, 0, facts["steps"] >= least)

    Actor(plan, 0, 0, lambda known: None, insert).run()
    return found


def measure_replay(plan: Plan, rows: list[Columns]) -> dict[str, float]:
    """Seconds of an insertion and of a round's sample, called in this process."""
    service = filled(plan, rows)
    inserting, sampling = [], []
    for columns in rows:
        since = time.process_time_ns()
        service.insert(columns, {"actor": 0, "life": 0})
        inserting.append(time.process_time_ns() - since)
        since = time.process_time_ns()
        service.sample(0)
        sampling.append(time.process_time_ns() - since)
    return {"insert_s": statistics.mean(inserting) / 1e9, "sample_s": statistics.mean(sampling) / 1e9}


def filled(plan: Plan, rows: list[Columns]) -> ReplayService:
    """A shard that may be sampled."""
    service = ReplayService(plan, 0)
    for columns in rows:
        service.insert(columns, {"actor": 0, "life": 0})
    return service


def measure_learner(plan: Plan, rows: list[Columns]) -> Learned:
    """Rounds of the real loop, the first, which is compiled, left out."""
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
    cpu_each = max((cpu_last - cpu) / rounds - push, 0.0)
    return Learned(cpu_each, max(cpu_each * rounds / wall, 1.0), push, handed[-1])


def measure_actor(plan: Plan, published: Published) -> dict[str, float]:
    """The real actor: parts of a step, and of opening a version, in processor seconds."""
    versions = [published.version]
    began = [0.0]
    warm: dict[str, Any] = {}

    def pull(known: int) -> Published | None:
        versions[0] += 1
        return dataclasses.replace(published, version=versions[0])

    def insert(columns: Columns, facts: dict[str, Any]) -> Reply:
        if not warm and facts["steps"] >= WARM_STEPS:
            warm.update(facts)
            began[0] = time.process_time()
        enough = bool(warm) and time.process_time() - began[0] > ACTOR_S
        return Reply(0, 0, enough)

    facts = Actor(plan, 0, 0, pull, insert).run()
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
    """What replay and parameter process cost through Ray: this side's and theirs, and what neither computes."""
    with cluster.connected(plan.actorq, None), cluster.Cluster(plan, True, 0) as processes:
        shard, server = processes.shards[0], processes.server
        for columns in rows:
            called(shard.insert, columns, {"actor": 0, "life": 0})
        facts = {"actor": 0, "life": 0, "seconds": {str(i): 0.0 for i in range(20)}}
        inserts = _calls(shard, lambda i: called(shard.insert, rows[i % len(rows)], facts))
        samples = _calls(shard, lambda i: called(shard.sample, 0))

        def put(count: int) -> None:
            called(server.put, count, pushed.spec, pushed.weights, pushed.calibration)

        def get(known: int) -> int:
            found = called(server.latest, known)
            if found is None:
                return known
            return Published.from_parts(found[0], np.asarray(cluster.outcome(found[1][0]))).version

        put(1)
        known = get(0)
        looks = _calls(server, lambda i: get(known))
        handing, versions, fetching = [], [], []
        for count in range(2, 2 + VERSIONS):
            theirs = _server_s(server)
            since = time.process_time()
            put(count)
            handing.append(time.process_time() - since)
            newest, asked, until = known, 0, time.monotonic() + BUILD_WAIT_S
            while newest == known and time.monotonic() < until:
                since = time.process_time()
                newest = get(known)
                fetching.append(time.process_time() - since)
                asked += 1
                if newest == known:
                    time.sleep(0.02)
            known = newest
            versions.append(_server_s(server) - theirs - (asked + 1) * looks[1])
            fetching = [*fetching[:-asked], fetching[-1]]
    return {
        "insert_client_s": inserts[0],
        "insert_server_s": inserts[1],
        "sample_client_s": samples[0],
        "sample_server_s": samples[1],
        "look_client_s": looks[0],
        "look_server_s": looks[1],
        "latency_s": looks[2],
        "version_server_s": statistics.median(versions),
        "fetch_s": max(statistics.median(fetching) - looks[0], 0.0),
        "hand_s": statistics.median(handing),
    }


def _server_s(process: Any) -> float:
    return float(called(process.facts)["cpu_s"])


def _calls(process: Any, call: Callable[[int], Any]) -> tuple[float, float, float]:
    """Mean of many calls: processor seconds here and there, and the clock's beyond both."""
    for index in range(CALLS // 5):
        call(index)
    theirs, ours, since = _server_s(process), time.process_time(), time.perf_counter()
    for index in range(CALLS):
        call(index)
    wall, here = time.perf_counter() - since, time.process_time() - ours
    there = _server_s(process) - theirs
    return here / CALLS, there / CALLS, max(wall - here - there, 0.0) / CALLS
