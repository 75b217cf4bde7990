"""Discrete events of an ActorQ run, by simpy: actors, replay shards, the learner, the parameter process, the network.

What is measured comes in as :class:`Services` (``bench/actorq_services.py``), what is assumed as :class:`Layout`. Two
worlds are simulated with the same processes. With ``cores`` all of them share the cores of one machine (processor
sharing, as a fair scheduler does it), which is what can be compared with real runs here. Without, every process has a
machine of its own, but actors stand ``actors_per_machine`` together and their parameters cross a network.

Who may insert or sample is decided by the very rule of the replay, :class:`train.actorq.replay.Ratio`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from train.actorq.replay import Ratio

LINK_BYTES_PER_S = 125e6
"""1 Gbit/s."""
WARM_SHARE = 0.25  # of the simulated time, before anything is counted
SMALLEST_S = 1e-12

Events = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True)
class Services:
    """Service times of one policy at one precision, in seconds of a processor, and bytes.

    Attributes:
        step_s: one step of the environment.
        inference_s: one decision, exploration included.
        python_s: the rest of an actor's step.
        insert_client_s: an actor's part of one insertion.
        insert_server_s: the replay's part of it.
        sample_client_s: the learner's part of one round's minibatches.
        sample_server_s: the replay's part of it.
        learn_s: one round of updates, preparation included.
        learn_width: cores that the round keeps busy.
        push_s: the learner's handing over of one version.
        version_server_s: the parameter process's part of one version: receiving it, storing what was built.
        build_s: quantizing and converting it.
        look_client_s: an actor's looking for a newer version, found or not.
        look_server_s: the parameter process's part of it.
        renew_s: an actor's unpacking and opening of a new version.
        latency_s: of one call between processes, beyond what either computes.
        version_bytes: of one version on its way.
    """

    step_s: float
    inference_s: float
    python_s: float = 0.0
    insert_client_s: float = 0.0
    insert_server_s: float = 0.0
    sample_client_s: float = 0.0
    sample_server_s: float = 0.0
    learn_s: float = 0.0
    learn_width: float = 1.0
    push_s: float = 0.0
    version_server_s: float = 0.0
    build_s: float = 0.0
    look_client_s: float = 0.0
    look_server_s: float = 0.0
    renew_s: float = 0.0
    latency_s: float = 0.0
    version_bytes: float = 0.0

    @property
    def actor_step_s(self) -> float:
        """One step of an actor, its insertions and pulls left out."""
        return self.step_s + self.inference_s + self.python_s


@dataclass(frozen=True)
class Layout:
    """A run and where it runs.

    Attributes:
        n_actors, replay_shards, insert_every, actor_update_period, samples_per_insert: as ``python -m train.actorq``
            has them.
        updates, minibatch: of one round of the learner.
        n_step: of the returns, for the replay's slack.
        cores: that all processes share; None: a machine for each process.
        actors_per_machine: that share one copy of a version in the object store.
        link_bytes_per_s: of the parameter process's network.
        learner_speed: times as fast as the measured learner.
    """

    n_actors: int
    replay_shards: int = 1
    insert_every: int = 16
    actor_update_period: int = 30
    samples_per_insert: float = 16.0
    updates: int = 16
    minibatch: int = 256
    n_step: int = 5
    cores: int | None = None
    actors_per_machine: int = 1
    link_bytes_per_s: float = LINK_BYTES_PER_S
    learner_speed: float = 1.0

    @property
    def rows(self) -> int:
        """Transitions of one round."""
        return self.updates * self.minibatch

    def round_s(self, services: Services) -> float:
        """One round of the learner on a machine of its own: minibatches, updates, handing over."""
        learn = services.learn_s / services.learn_width / self.learner_speed
        return services.sample_client_s + learn + services.push_s

    def ratio(self, services: Services) -> Ratio:
        """A shard's rule, with the slack of ``train/actorq/service.py``, as it is after long.

        Whoever is faster, actors or learner, is ahead then by the whole slack; to simulate how it gets there would take
        more events than all the rest.
        """
        ratio = self.samples_per_insert or math.inf
        moves = max(self.rows, self.n_actors * (self.insert_every + self.n_step) * ratio)
        rule = Ratio(self.samples_per_insert, 1, 2 * moves)
        rule.inserted = 1
        if self.samples_per_insert and services.learn_s > 0:
            actors = self.n_actors / services.actor_step_s * self.samples_per_insert  # samples that they allow, 1/s
            ahead = int(2 * moves - self.rows) // self.replay_shards * self.replay_shards
            rule.sampled = -ahead if actors > self.rows / self.round_s(services) else ahead
        return rule


@dataclass(frozen=True)
class Rates:
    """What came out, over the counted time.

    Attributes:
        n_actors: of the layout.
        steps_per_s, updates_per_s: of all actors; of the learner.
        learner, replay, parameters, link: shares of the time that each was at work (the busiest shard's); the link is
            0 where all share a machine.
        versions_per_s: that actors opened, each version counted once a machine.
    """

    n_actors: int
    steps_per_s: float
    updates_per_s: float
    learner: float
    replay: float
    parameters: float
    link: float
    versions_per_s: float

    def utilisation(self) -> dict[str, float]:
        """By resource."""
        return {name: getattr(self, name) for name in RESOURCES}


RESOURCES = ("learner", "replay", "parameters", "link")


# --- processors ---------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    left_s: float
    width: float
    done: simpy.Event


class SharedCores:
    """Processor sharing: work of width w gets min(w, a fair share) of the cores; what one cannot use the others get."""

    def __init__(self, env: simpy.Environment, cores: float) -> None:
        self._env, self._cores = env, cores
        self._jobs: list[_Job] = []
        self._since, self._turn = 0.0, 0

    def work(self, seconds: float, width: float = 1.0) -> Events:
        """So many seconds of processor, on at most ``width`` cores at a time."""
        if seconds <= 0.0:
            return
        self._advance()
        job = _Job(seconds, width, self._env.event())
        self._jobs.append(job)
        self._plan()
        yield job.done

    def rates(self) -> list[float]:
        """Cores of each job now: water-filling."""
        given = [0.0] * len(self._jobs)
        left, cores = sorted(range(len(self._jobs)), key=lambda i: self._jobs[i].width), self._cores
        while left:
            index = left.pop(0)
            given[index] = min(self._jobs[index].width, cores / (len(left) + 1))
            cores -= given[index]
        return given

    def _advance(self) -> None:
        passed, self._since = self._env.now - self._since, self._env.now
        for job, rate in zip(self._jobs, self.rates(), strict=True):
            job.left_s -= passed * rate
        for job in [each for each in self._jobs if each.left_s <= SMALLEST_S]:
            self._jobs.remove(job)
            job.done.succeed()

    def _plan(self) -> None:
        """Look again when the next job is done, unless another comes before."""
        self._turn += 1
        if self._jobs:
            soonest = min(job.left_s / rate for job, rate in zip(self._jobs, self.rates(), strict=True))
            self._env.process(self._later(soonest, self._turn))

    def _later(self, seconds: float, turn: int) -> Events:
        yield self._env.timeout(seconds)
        if turn == self._turn:
            for job in self._jobs:  # the soonest is done, whatever floats leave of it
                job.left_s -= SMALLEST_S
            self._advance()
            self._plan()


class OwnCores:
    """A machine for each process: nobody waits for a processor."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env

    def work(self, seconds: float, width: float = 1.0) -> Events:
        """So many seconds of processor, on ``width`` cores."""
        yield self._env.timeout(seconds / width)


class Busy:
    """A server of capacity one with a queue before it, and how long it was at work."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._line = simpy.Resource(env, 1)
        self._busy_s, self._since, self._from = 0.0, math.nan, 0.0

    def serve(self, work: Events) -> Events:
        """Wait for one's turn, then the work."""
        with self._line.request() as turn:
            yield turn
            self._since = self._env.now
            yield from work
            self._busy_s += self._env.now - max(self._since, self._from)
            self._since = math.nan

    def restart(self) -> None:
        """Count from now on."""
        self._busy_s, self._from = 0.0, self._env.now

    def share(self) -> float:
        """Of the time since :meth:`restart`."""
        running = 0.0 if math.isnan(self._since) else self._env.now - max(self._since, self._from)
        passed = self._env.now - self._from
        return (self._busy_s + running) / passed if passed > 0 else 0.0


# --- the run ------------------------------------------------------------------------------------------------------


class Shard:
    """A replay process: its rule, its processor, and who waits for the rule."""

    def __init__(self, world: World) -> None:
        self._world, self._rule = world, world.layout.ratio(world.services)
        self.server = Busy(world.env)
        self._changed = world.env.event()

    def insert(self, rows: int) -> Events:
        """Once the rule allows."""
        while not self._rule.may_insert(rows):
            yield self._changed
        self._rule.inserted += rows
        self._tell()
        yield from self.server.serve(self._world.cores.work(self._world.services.insert_server_s))

    def sample(self) -> Events:
        """A round's minibatches, once the rule allows."""
        rows = self._world.layout.rows
        while not self._rule.may_sample(rows):
            yield self._changed
        self._rule.sampled += rows
        self._tell()
        yield from self.server.serve(self._world.cores.work(self._world.services.sample_server_s))

    def _tell(self) -> None:
        changed, self._changed = self._changed, self._world.env.event()
        changed.succeed()


class World:
    """One simulated run."""

    def __init__(self, services: Services, layout: Layout) -> None:
        self.env = simpy.Environment()
        self.services, self.layout = services, layout
        self.cores: Any = OwnCores(self.env) if layout.cores is None else SharedCores(self.env, layout.cores)
        self.shards = [Shard(self) for _ in range(layout.replay_shards)]
        self.learner, self.parameters, self.link = (Busy(self.env) for _ in range(3))
        self.pushed, self.ready, self.building = 1, 1, False
        self.copies: dict[tuple[int, int], simpy.Event] = {}
        self.steps, self.rounds, self.versions = 0, 0.0, 0
        for index in range(layout.n_actors):
            self.env.process(self._act(index))
        if services.learn_s > 0:
            self.env.process(self._learn())

    def run(self, seconds: float, most_steps: float = math.inf) -> Rates:
        """Simulate; the first part is not counted.

        Args:
            seconds: simulated.
            most_steps: of the environments, after which it ends sooner: what is fast needs no long time.
        """
        warm, most = WARM_SHARE * seconds, WARM_SHARE * most_steps
        self._until(warm, most)
        began, servers = self.env.now, [self.learner, self.parameters, self.link, *(s.server for s in self.shards)]
        for server in servers:
            server.restart()
        self.steps, self.rounds, self.versions = 0, 0.0, 0
        self._until(began + seconds - warm, most_steps - most)
        passed = self.env.now - began
        # Rounds are few and long: those under way count by their part, which is what the learner's work is.
        each = self.layout.round_s(self.services)
        exact = self.layout.cores is None and each > 0
        rounds = self.learner.share() * passed / each if exact else self.rounds
        return Rates(
            self.layout.n_actors,
            self.steps / passed,
            rounds * self.layout.updates / passed,
            self.learner.share(),
            max(shard.server.share() for shard in self.shards),
            self.parameters.share(),
            self.link.share(),
            self.versions / passed,
        )

    def _until(self, until: float, most_steps: float) -> None:
        while self.env.peek() <= until:
            if self.steps >= most_steps:
                return
            self.env.step()
        if self.env.now < until:
            self.env.run(until)

    def _act(self, index: int) -> Events:
        """An actor: steps, insertions that are answered while it goes on, looks for newer parameters."""
        services, layout, env = self.services, self.layout, self.env
        shard, machine = self.shards[index % layout.replay_shards], index // layout.actors_per_machine
        # Actors that began together would insert and look together for ever; real ones drift apart at once.
        ready = index * layout.insert_every // layout.n_actors
        since = index * layout.actor_update_period // layout.n_actors
        known, under_way = 1, None
        while True:
            steps = min(layout.insert_every - ready, layout.actor_update_period - since)
            yield from self.cores.work(steps * services.actor_step_s)
            self.steps, ready, since = self.steps + steps, ready + steps, since + steps
            if ready == layout.insert_every:
                if under_way is not None:
                    yield under_way
                yield from self.cores.work(services.insert_client_s)
                under_way, ready = env.process(self._sent(shard, layout.insert_every)), 0
            if since == layout.actor_update_period:
                since = 0
                known = yield from self._look(known, machine)

    def _sent(self, shard: Shard, rows: int) -> Events:
        yield self.env.timeout(self.services.latency_s)
        yield from shard.insert(rows)

    def _look(self, known: int, machine: int) -> Events:
        """Ask for a newer version; what is ready is taken, the newest is built behind."""
        yield from self.cores.work(self.services.look_client_s)
        yield self.env.timeout(self.services.latency_s)
        yield from self.parameters.serve(self.cores.work(self.services.look_server_s))
        if self.pushed > self.ready and not self.building:
            self.building = True
            self.env.process(self._build(self.pushed))
        found = self.ready
        if found > known:
            if (machine, found) not in self.copies:
                self.copies.pop((machine, known), None)
                self.copies[machine, found] = self.env.process(self._fetch())
            yield self.copies[machine, found]
            yield from self.cores.work(self.services.renew_s)
        return found

    def _fetch(self) -> Events:
        """One copy of a version to one machine."""
        self.versions += 1
        if self.layout.cores is None:
            seconds = self.services.version_bytes / self.layout.link_bytes_per_s
            yield from self.link.serve(OwnCores(self.env).work(seconds))
        else:
            yield self.env.timeout(0.0)  # it lies in the machine's memory

    def _build(self, version: int) -> Events:
        yield from self.parameters.serve(self.cores.work(self.services.build_s + self.services.version_server_s))
        self.ready, self.building = version, False

    def _learn(self) -> Events:
        """The learner: the next round's minibatches are asked for while it learns from the last."""
        env, turn = self.env, 0
        asked = env.process(self._sampled(turn))
        while True:
            yield asked
            turn = (turn + 1) % self.layout.replay_shards
            asked = env.process(self._sampled(turn))
            yield from self.learner.serve(self._round())

    def _round(self) -> Events:
        services = self.services
        yield from self.cores.work(services.sample_client_s)
        yield from self.cores.work(services.learn_s / self.layout.learner_speed, services.learn_width)
        self.rounds += 1.0
        yield from self.cores.work(services.push_s)
        self.pushed += 1

    def _sampled(self, turn: int) -> Events:
        yield self.env.timeout(self.services.latency_s)
        yield from self.shards[turn].sample()


def simulate(services: Services, layout: Layout, seconds: float, most_steps: float = math.inf) -> Rates:
    """One run's rates; see :meth:`World.run`."""
    return World(services, layout).run(seconds, most_steps)


def horizon_s(services: Services, layout: Layout, rounds: float = 40.0) -> float:
    """Seconds to simulate: so many rounds of the learner, and so many looks of an actor."""
    slow = 1.0 if layout.cores is None else max(1.0, (layout.n_actors + 1) / layout.cores)
    learn = layout.round_s(services)
    look = layout.actor_update_period * services.actor_step_s
    if layout.samples_per_insert:  # a round's rows come from so many steps
        steps = layout.rows / layout.samples_per_insert
        learn = max(learn, steps * services.actor_step_s / layout.n_actors)
    return rounds * max(learn, look) * slow


def curve(
    services: Services, layout: Layout, actors: tuple[int, ...], rounds: float, most_steps: float
) -> tuple[Rates, ...]:
    """Rates for each number of actors."""
    layouts = [dataclasses.replace(layout, n_actors=count) for count in actors]
    return tuple(simulate(services, each, horizon_s(services, each, rounds), most_steps) for each in layouts)
