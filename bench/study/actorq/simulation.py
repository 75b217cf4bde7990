"""Discrete events of an ActorQ run, by simpy: actors, replay shards, the learner, the parameter process, the network.

What is measured comes in as :class:`Services` (services.py), what is assumed as :class:`Layout`. Two
worlds are simulated with the same processes. With ``cores`` all of them share the cores of one machine (processor
sharing, as a fair scheduler does it), which is what can be compared with real runs here. Without, every process has a
machine of its own, but actors stand ``actors_per_machine`` together and their parameters cross a network.

Who may insert or sample is decided by the very rule of the replay, :class:`train.actorq.replay.Ratio`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from typing import Any

import simpy

from bench.study.actorq.layout import Layout, Rates, Services
from bench.study.actorq.processors import Busy, Events, OwnCores, SharedCores

WARM_SHARE = 0.25  # of the simulated time, before anything is counted
LOOKS = 6.0  # of each actor, at least


# --- the run ------------------------------------------------------------------------------------------------------


class Shard:
    """A replay process: its rule, its processor, and who waits for the rule, each side in its order."""

    def __init__(self, world: World) -> None:
        self._world, self._rule = world, world.layout.ratio(world.services)
        self.server = Busy(world.env)
        self._inserting: deque[tuple[int, simpy.Event]] = deque()
        self._sampling: deque[tuple[int, simpy.Event]] = deque()

    def insert(self, rows: int) -> Events:
        """Once the rule allows."""
        yield self._allowed(self._inserting, rows)
        yield from self.server.serve(self._world.cores.work(self._world.services.insert_server_s))

    def sample(self) -> Events:
        """A round's minibatches, once the rule allows."""
        yield self._allowed(self._sampling, self._world.layout.rows)
        yield from self.server.serve(self._world.cores.work(self._world.services.sample_server_s))

    def _allowed(self, line: deque[tuple[int, simpy.Event]], rows: int) -> simpy.Event:
        event = self._world.env.event()
        line.append((rows, event))
        moved = True
        while moved:  # what one side does may let the other go on
            moved = False
            while self._sampling and self._rule.may_sample(self._sampling[0][0]):
                self._rule.sampled += self._sampling[0][0]
                self._sampling.popleft()[1].succeed()
                moved = True
            while self._inserting and self._rule.may_insert(self._inserting[0][0]):
                self._rule.inserted += self._inserting[0][0]
                self._inserting.popleft()[1].succeed()
                moved = True
        return event


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
    """Seconds to simulate: so many rounds of the learner, and some looks of an actor where all wait for one."""
    slow = 1.0 if layout.cores is None else max(1.0, (layout.n_actors + 1) / layout.cores)
    learn = layout.round_s(services)
    look = layout.actor_update_period * services.actor_step_s
    if layout.samples_per_insert:  # a round's rows come from so many steps
        steps = layout.rows / layout.samples_per_insert
        learn = max(learn, steps * services.actor_step_s / layout.n_actors)
    inserts = layout.actor_update_period / layout.insert_every / layout.replay_shards
    held = layout.actor_update_period * layout.samples_per_insert / layout.rows  # rounds that a look's steps wait for
    queues = layout.n_actors * max(
        inserts * services.insert_server_s,
        held * layout.round_s(services),
        services.look_server_s,
        services.version_bytes / layout.link_bytes_per_s / layout.actors_per_machine,
    )
    return max(rounds * max(learn, look) * slow, LOOKS * queues)


def curve(
    services: Services, layout: Layout, actors: tuple[int, ...], rounds: float, most_steps: float
) -> tuple[Rates, ...]:
    """Rates for each number of actors."""
    layouts = [dataclasses.replace(layout, n_actors=count) for count in actors]
    found = []
    for each in layouts:
        least = LOOKS * each.n_actors * each.actor_update_period
        found.append(simulate(services, each, horizon_s(services, each, rounds), max(most_steps, least)))
    return tuple(found)
