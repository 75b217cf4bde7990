"""How fast an ActorQ run can be at most, by the service times of its parts: operational bounds.

Utilisation law (Denning and Buzen 1978): at S steps a second a server of which every step demands D seconds is at work
for S · D of each second, and no server for more than all of it. So S is the largest number at which none is:

    max over servers of S · D_server(S) ≤ 1

D depends on S where versions do: an actor takes a version only when it looks and there is a newer one. Nobody waits
here but for a server that is at work all the time; queues, which make a run slower, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HALVINGS = 60  # of the interval that S is in
ROUNDING, SATURATED = 1e-9, 0.999


def part(words: str, default: float = 0.0) -> Any:
    """A service time that is 0 where it does not matter, and what it is of."""
    return field(default=default, metadata={"words": words})


@dataclass(frozen=True)
class Services:
    """Service times of one policy at one precision, in seconds of a processor (``learn_width``: cores), and bytes."""

    step_s: float = part("environment step")
    inference_s: float = part("inference, exploration included")
    python_s: float = part("rest of an actor's step")
    insert_client_s: float = part("insertion, actor's part")
    insert_server_s: float = part("insertion, replay's part")
    sample_client_s: float = part("round of minibatches, learner's part")
    sample_server_s: float = part("round of minibatches, replay's part")
    learn_s: float = part("round of updates")
    learn_width: float = part("… cores that it keeps busy", 1.0)
    push_s: float = part("handing over a version")
    build_s: float = part("building it")
    version_server_s: float = part("receiving and storing it")
    look_client_s: float = part("looking for a newer one, actor's part")
    look_server_s: float = part("looking, parameter process's part")
    renew_s: float = part("fetching and opening it")
    latency_s: float = part("waiting for an answer, beyond what is computed")
    version_bytes: float = part("bytes of a version, KB")

    @property
    def actor_step_s(self) -> float:
        """One step of an actor, its insertions and looks left out."""
        return self.step_s + self.inference_s + self.python_s


@dataclass(frozen=True)
class Layout:
    """A run and the cores that it has.

    Attributes:
        n_actors, insert_every, actor_update_period, samples_per_insert: as ``quarl actorq`` has them.
        rows: transitions of one round of the learner.
        cores: number of cores that all processes share.
    """

    n_actors: int
    rows: int
    cores: int
    insert_every: int = 16
    actor_update_period: int = 30
    samples_per_insert: float = 16.0

    def rounds(self, steps_per_s: float, services: Services) -> float:
        """The learner's rounds a second: as many as the actors' rows are worth, or without coupling all it can."""
        if self.samples_per_insert:
            return steps_per_s * self.samples_per_insert / self.rows
        return 1.0 / self.round_s(services) if services.learn_s else 0.0

    def round_s(self, services: Services) -> float:
        """One round of the learner on cores of its own: minibatches, updates, handing over."""
        return services.sample_client_s + services.learn_s / services.learn_width + services.push_s

    def step_s(self, services: Services) -> float:
        """One step of an actor that nobody keeps waiting, its share of insertions and looks included."""
        look_s = services.look_client_s + services.look_server_s + services.latency_s
        inserting = services.insert_client_s / self.insert_every
        return services.actor_step_s + inserting + look_s / self.actor_update_period

    def fed_by(self, services: Services) -> float:
        """How many actors, with a core each, keep the learner at work all the time."""
        return self.rows / self.samples_per_insert / self.round_s(services) * self.step_s(services)


def utilisation(steps_per_s: float, services: Services, layout: Layout) -> Mapping[str, float]:
    """Share of each second that every server is at work, by its name."""
    s, rounds = services, layout.rounds(steps_per_s, services)
    inserts, looks = steps_per_s / layout.insert_every, steps_per_s / layout.actor_update_period
    version_s = s.build_s + s.version_server_s
    # A version is built when somebody asks and the parameter process has time; those in between are left out.
    built = min(rounds, looks, max(1.0 - looks * s.look_server_s, 0.0) / version_s if version_s else math.inf)
    opened = min(layout.n_actors * built, looks)
    own = steps_per_s * s.actor_step_s + inserts * s.insert_client_s + looks * s.look_client_s + opened * s.renew_s
    replay = inserts * s.insert_server_s + rounds * s.sample_server_s
    parameters = looks * s.look_server_s + built * version_s
    learning = rounds * (s.sample_client_s + s.learn_s + s.push_s)
    found = {"actors": (own + looks * (s.look_server_s + s.latency_s)) / layout.n_actors, "replay": replay}
    if layout.samples_per_insert:  # else it is always at work, and nobody waits for it
        found["learner"] = rounds * layout.round_s(s)
    found["cores"] = (own + replay + parameters + learning) / layout.cores
    return {**found, "parameter process": parameters}  # last: it leaves versions out rather than hold anybody up


@dataclass(frozen=True)
class Bound:
    """The rates that a run can reach at most.

    Attributes:
        steps_per_s: environment steps a second of all actors.
        rounds_per_s: rounds of updates a second of the learner.
        busy: share of the time that every server is at work, by its name.
    """

    steps_per_s: float
    rounds_per_s: float
    busy: Mapping[str, float]

    @property
    def pace(self) -> str:
        """The first server that is at work all the time."""
        return next(name for name, share in self.busy.items() if share > SATURATED)


def bound(services: Services, layout: Layout) -> Bound:
    """The most steps a second at which no server is at work for more than all of the time."""
    low, high = 0.0, layout.n_actors / services.actor_step_s
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if max(utilisation(middle, services, layout).values()) <= 1.0 + ROUNDING:
            low = middle
        else:
            high = middle
    return Bound(low, layout.rounds(low, services), utilisation(low, services, layout))
