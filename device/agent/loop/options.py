"""The options of a loop: read on the device as they were typed on the host, which checks them first."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from enum import Enum
from typing import Any

MOST_HERTZ = 2000.0
PASSED_ON = (
    "rate", "deadline_ms", "stale_ms", "pace", "on_miss", "hold_for_ms", "fallback", "priority", "core", "spin_us",
    "threads",
)  # fmt: skip


class Pace(Enum):
    """What a decision waits for."""

    CLOCK = "clock"  # the next tick of the loop's own
    OBSERVATION = "observation"  # the next observation


class OnMiss(Enum):
    """What is sent when an action was ready too late."""

    HOLD = "hold"  # the action before, once more; after --hold-for-ms the fallback action
    FALLBACK = "fallback"  # the fallback action
    STOP = "stop"  # the fallback action, and the loop ends


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number from {low:g} to {high:g}")
        return value

    return read


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed is an integer from {low} to {high}")
        return int(text)

    return read


def _action(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is an action's index, or numbers: 0,0,0") from None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that a host passes on to the device as they are typed."""
    add = parser.add_argument
    add("--rate", type=_number(0.01, MOST_HERTZ), metavar="HZ", help="decisions a second; default: the policy's own")
    add("--deadline-ms", type=_number(0.01, 1e6), metavar="MS", help="an action is late after this; default: a period")
    add("--stale-ms", type=_number(0.01, 1e6), metavar="MS", help="an observation is stale then; default: 2.5 periods")
    add("--pace", type=Pace, default=Pace.CLOCK, metavar="clock|observation", help="what a decision waits for")
    add("--on-miss", type=OnMiss, default=OnMiss.HOLD, metavar="hold|fallback|stop", help="where an action is late")
    add("--hold-for-ms", type=_number(0.01, 1e6), metavar="MS", help="the fallback follows then; default: 5 periods")
    add("--fallback", type=_action, default=(), metavar="ACTION", help="index or numbers; default: the policy's own")
    add("--priority", type=_integer(0, 99), default=50, help="of SCHED_FIFO, default 50; 0: the ordinary scheduler")
    add("--core", type=_integer(0, 1023), help="the only core to run on; default: any")
    add("--spin-us", type=_integer(0, 10**6), default=0, metavar="US", help="poll so long before each wait ends")
    add("--threads", type=_integer(1, 64), default=1, help="of the inference runtime (default 1)")


def typed(options: argparse.Namespace) -> list[str]:
    """What was read by :func:`add_options`, as it would be typed; what is left to the device is not in it."""

    def text(value: Any) -> str:
        if isinstance(value, Enum):
            return str(value.value)
        return ",".join(f"{each:.9g}" for each in value) if isinstance(value, tuple) else f"{value:.9g}"

    given = {name: getattr(options, name) for name in PASSED_ON}
    return [f"--{name.replace('_', '-')}={text(value)}" for name, value in given.items() if value not in (None, ())]
