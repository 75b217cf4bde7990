"""Numbers worth typing: the floors, deadlines and counts of episodes at which a candidate begins to meet a demand."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from quarl.airlearning_envs.flights import Z_95
from quarl.train.intervals import Estimate

FLOOR_STEPS = 1000  # floors are named in thousandths
DEADLINE_DIGITS = 3


def floor_at_most(low: float | None) -> float | None:
    """Return the largest floor in thousandths that this lower bound reaches; None where none above 0 does."""
    if low is None:
        return None
    steps = int(Decimal(str(low)) * FLOOR_STEPS)
    return min(steps, FLOOR_STEPS) / FLOOR_STEPS if steps > 0 else None


def floor_above(low: float | None) -> float | None:
    """Return the smallest floor in thousandths that this lower bound misses; None where none up to 1 does."""
    reached = floor_at_most(low) or 0.0
    steps = round(reached * FLOOR_STEPS) + 1
    return steps / FLOOR_STEPS if steps <= FLOOR_STEPS else None


def deadline_at_least(p99_ns: float) -> float:
    """Return the shortest deadline of three digits, in ms, that this p99 keeps."""
    return float(Context(DEADLINE_DIGITS, ROUND_CEILING).create_decimal(_milliseconds(p99_ns)))


def deadline_below(p99_ns: float) -> float:
    """Return the longest deadline of three digits, in ms, that this p99 misses."""
    digits = Context(DEADLINE_DIGITS, ROUND_FLOOR)
    return float(digits.next_minus(_milliseconds(p99_ns)))


def _milliseconds(ns: float) -> Decimal:
    return Decimal(str(ns)) / Decimal(1_000_000)


def episodes_until_met(quality: Estimate, floor: float, episodes: int, has_success: bool) -> int | None:
    """Episodes after which the lower end would reach the floor if the value stays; None where it has, or would not.

    Args:
        quality, floor: of a candidate, and of the demand.
        episodes: number of episodes that the quality was measured on.
        has_success: whether it is a share of successes; else of a return.
    """
    if quality.low is None or quality.low >= floor:
        return None
    return episodes_for_share(quality.value, floor) if has_success else episodes_for_mean(quality, floor, episodes)


def episodes_for_share(value: float, floor: float) -> int | None:
    """Episodes after which Wilson's lower bound of a share that stays at ``value`` reaches the floor.

    It is reached where the floor is no longer refused: |p − f| = z √(f (1 − f) / n), so n = z² f (1 − f) / (p − f)².
    """
    if value <= floor:
        return None
    return max(1, two_digits_up(Z_95**2 * floor * (1.0 - floor) / (value - floor) ** 2))


def episodes_for_mean(quality: Estimate, floor: float, episodes: int) -> int | None:
    """Episodes after which a mean's lower bound reaches the floor, its interval narrowing as 1 / √n."""
    if quality.low is None or quality.value <= floor:
        return None
    return two_digits_up(episodes * ((quality.value - quality.low) / (quality.value - floor)) ** 2)


def two_digits_up(number: float) -> int:
    """Return two significant digits, rounded up: 1,234 is 1,300."""
    return int(Context(2, ROUND_CEILING).create_decimal(Decimal(math.ceil(number))))


def number(value: float) -> str:
    """Return a number as it is typed: ``0.95``, ``20``, ``0.00171``."""
    return f"{value:.15g}" if value >= 1e-4 else f"{value:.15f}".rstrip("0")
