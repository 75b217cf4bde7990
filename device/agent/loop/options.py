"""The options of a loop: checked on the host, and read on the device by the loop in C, whose table is made of these."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Optional

MOST_HERTZ = 2000.0
MAX_THREADS = 64


class Pace(Enum):
    """What a decision waits for."""

    CLOCK = "clock"  # the next tick of the loop's own
    OBSERVATION = "observation"  # the next observation


class OnMiss(Enum):
    """What is sent when an action was ready too late."""

    HOLD = "hold"  # the action before, once more; after --hold-for-ms the fallback action
    FALLBACK = "fallback"  # the fallback action
    STOP = "stop"  # the fallback action, and the loop ends


RANGES = {
    "rate": (0.01, MOST_HERTZ),
    "deadline_ms": (0.01, 1e6),
    "stale_ms": (0.01, 1e6),
    "hold_for_ms": (0.01, 1e6),
    "priority": (0, 99),
    "core": (0, 1023),
    "spin_us": (0, 10**6),
    "threads": (1, MAX_THREADS),
}


@dataclass(**({"kw_only": True} if sys.version_info >= (3, 10) else {}))
class LoopOptions:
    """A loop.

    Attributes:
        rate: decisions a second; default: the policy's own
        deadline_ms: an action is late after this; default: a period
        stale_ms: an observation is stale then; default: 2.5 periods
        pace: what a decision waits for
        on_miss: what is sent where an action is late
        hold_for_ms: the fallback follows then; default: 5 periods
        fallback: action sent in its place, an index or numbers such as 0,0,0; default: the policy's own
        priority: of SCHED_FIFO; 0: the ordinary scheduler
        core: the only core to run on; default: any
        spin_us: poll so long before each wait ends
        threads: of the inference runtime
    """

    rate: Optional[float] = None
    deadline_ms: Optional[float] = None
    stale_ms: Optional[float] = None
    pace: Pace = Pace.CLOCK
    on_miss: OnMiss = OnMiss.HOLD
    hold_for_ms: Optional[float] = None
    fallback: tuple[float, ...] = ()
    priority: int = 50
    core: Optional[int] = None
    spin_us: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; allowed are {low:g} … {high:g}")

    def to_arguments(self) -> list[str]:
        """As a device reads it; what is left to the device is not in it."""

        def text(value: Any) -> str:
            if isinstance(value, Enum):
                return str(value.value)
            return ",".join(f"{number:.9g}" for number in value) if isinstance(value, tuple) else f"{value:.9g}"

        values = {field.name: getattr(self, field.name) for field in fields(LoopOptions)}
        return [
            f"--{name.replace('_', '-')}={text(value)}" for name, value in values.items() if value not in (None, ())
        ]


def read_action(text: str) -> tuple[float, ...]:
    """Read an action's index, or numbers: ``0,0,0``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no action; allowed is an index, or numbers: 0,0,0") from None
