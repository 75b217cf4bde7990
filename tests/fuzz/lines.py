"""Mutated lines of the agent's protocol."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.fuzz.values import NASTY, scrambled, spoiled, text_of

LONG = 20
"""Runs and episodes of a line that is tried: legal ones of a million take their time, and are none of a fuzzer's."""


def requests(observations: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Legal requests to begin with."""
    rows = [list(row) for row in observations]
    return [
        *({"op": "act", "observation": row} for row in rows[:6]),
        *({"op": "act", "observations": rows[:3], "outputs": False, "id": number} for number in range(3)),
        {"op": "help", "id": "a"},
        {"op": "latency", "runs": 3, "warmup": 1, "path": "decide"},
        {"op": "memory", "runs": 2},
        {"op": "bye", "id": 1},
        {"op": "episodes", "preset": "easy", "episodes": 1, "seed": 3, "batch": 1, "settings": {"wind_m_s": 1.0}},
        {"op": "load", "precision": "int8", "runtime": "litert", "threads": 1},
        {"op": "hello"},
    ]


def line(legal: Sequence[dict[str, Any]], chance: random.Random) -> bytes:
    """A mutated line; short of newlines, since those end it."""
    request = chance.choice(legal) if chance.random() < 0.98 else chance.choice(NASTY)
    if isinstance(request, dict) and request.get("op") in ("episodes", "load", "hello") and chance.random() < 0.9:
        request = legal[0]
    for _ in range(chance.choice([0, 1, 1, 1, 2])):
        request = spoiled(request, chance) if isinstance(request, dict | list) else request
    text = text_of(request)
    if chance.random() < 0.3:
        text = scrambled(text, chance)
    return text.replace(b"\n", b" ").replace(b"\r", b" ")


def is_long(text: bytes) -> bool:
    """Whether a line is a legal request of much work."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    numbers = [data.get(key) for key in ("runs", "warmup", "episodes")] if isinstance(data, dict) else []
    return any(isinstance(number, int) and number > LONG for number in numbers) or (
        isinstance(data, dict) and data.get("op") == "episodes" and "episodes" not in data
    )
