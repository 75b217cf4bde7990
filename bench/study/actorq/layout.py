"""What goes into the simulation of ActorQ and what comes out: service times, a run and where it runs, rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from train.actorq.replay import Ratio

LINK_BYTES_PER_S = 125e6
"""1 Gbit/s."""


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
