"""Where the actors' time went, from what each of them told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from train.actorq.actor import PARTS


def summed(facts: Sequence[Mapping[str, Any]], name: str) -> int:
    """Sum of one of the actors' counts."""
    return sum(int(each[name]) for each in facts)


def breakdown(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All actors together: steps, pulls and renewals, and microseconds per step by part.

    ``other`` is what no part accounts for: the actor's own Python.
    """
    steps = summed(facts, "steps")
    seconds = {part: sum(each["seconds"][part] for each in facts) for part in PARTS}
    seconds["other"] = max(sum(each["seconds"]["total"] for each in facts) - sum(seconds.values()), 0.0)
    return {
        "steps": steps,
        "pulls": summed(facts, "pulls"),
        "renewals": summed(facts, "renewals"),
        "microseconds_per_step": {part: round(1e6 * value / max(steps, 1), 2) for part, value in seconds.items()},
    }
