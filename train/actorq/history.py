"""What a run's processes did, those included that died, and those before a resumption.

A process tells of its own life only; when it is gone, what it told last is added to the sums of all that are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from quarl.policy.errors import QuarlError
from quarl.train.actorq.actor import PARTS
from quarl.train.actorq.parameters import COUNTED

MOST_DEATHS = 5  # of one process in a row, none of which lived for a minute: replacing does not mend that
SHORT_LIFE_S = 60.0
LARGEST = "largest_updates"

Facts = Mapping[str, Any]
Sums = dict[str, dict[str, float]]


class GaveUpError(QuarlError, RuntimeError):
    """A process died again and again."""


class Deaths:
    """What died when, and whether that was too often."""

    def __init__(self, notes: Sequence[dict[str, Any]] = ()) -> None:
        """Args: what was noted before a resumption."""
        self._began: dict[str, float] = {}
        self._in_a_row: dict[str, int] = {}
        self.notes = list(notes)

    def begins(self, who: str) -> None:
        """Note that a process starts."""
        self._began[who] = time.monotonic()

    def note(self, who: str, step: int, **facts: Any) -> None:
        """Remember a death; another of its kind starts now.

        Raises:
            GaveUpError: it is the fifth of these in a row that did not live for a minute.
        """
        now = time.monotonic()
        short = now - self._began.get(who, -math.inf) < SHORT_LIFE_S
        self._in_a_row[who] = self._in_a_row.get(who, 0) + 1 if short else 1
        self._began[who] = now
        self.notes.append({"who": who, "step": step, **facts})
        if self._in_a_row[who] >= MOST_DEATHS:
            raise GaveUpError(
                f"{who} died {MOST_DEATHS} times in a row, each time within {SHORT_LIFE_S:g} s of its start; the "
                f"last cause: {facts.get('why', 'killed')}. If a checkpoint was written, type the same command with "
                "--resume to continue from it."
            )


def sums_of(learner: Facts, server: Facts, shards: Sequence[Facts]) -> Sums:
    """Return the sums of what the processes reported last; ``{}`` for one that is left out.

    Returns:
        ``cpu_s`` of learner, replay and parameters, ``learner_seconds`` by part, ``parameters`` and ``replay``.
    """
    return {
        "cpu_s": {
            "learner": learner.get("cpu_s", 0.0),
            "replay": sum(shard.get("cpu_s", 0.0) for shard in shards),
            "parameters": server.get("cpu_s", 0.0),
        },
        "learner_seconds": dict(learner.get("seconds", {})),
        "parameters": {name: server.get(name, 0) for name in COUNTED},
        "replay": {
            "refused": sum(shard.get("refused_stale", 0) for shard in shards),
            LARGEST: max((shard.get("largest_staleness", 0) for shard in shards), default=0),
        },
    }


def add_sums(one: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]) -> Sums:
    """Add two sums, name by name; of largest values the larger one is kept."""
    together: Sums = {}
    for kind in {**one, **other}:
        mine, others = one.get(kind, {}), other.get(kind, {})
        together[kind] = {
            name: max(mine.get(name, 0), others.get(name, 0))
            if name == LARGEST
            else mine.get(name, 0) + others.get(name, 0)
            for name in {**mine, **others}
        }
    return together


def sum_over_actors(facts: Sequence[Mapping[str, Any]], name: str) -> int:
    """Sum of one of the actors' counts."""
    return sum(int(actor[name]) for actor in facts)


def breakdown(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all actors together: steps, pulls and renewals, and microseconds per step by part.

    ``other`` is what no part accounts for: the actor's own Python.
    """
    steps = sum_over_actors(facts, "steps")
    seconds = {part: sum(actor["seconds"][part] for actor in facts) for part in PARTS}
    seconds["other"] = max(sum(actor["seconds"]["total"] for actor in facts) - sum(seconds.values()), 0.0)
    return {
        "steps": steps,
        "pulls": sum_over_actors(facts, "pulls"),
        "renewals": sum_over_actors(facts, "renewals"),
        "microseconds_per_step": {part: round(1e6 * value / max(steps, 1), 2) for part, value in seconds.items()},
    }
