"""The cells of bench/study/speed.py, and the medians of their times and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quarl.bench.report.text import NOT_KNOWN, three_digits

EPISODES = 20  # of each judgement


@dataclass(frozen=True)
class SpeedCell:
    """A method on a task: the mean return to reach, and the steps between two judgements of either side."""

    method: str
    task: str
    target: float
    every: int


def median_time(runs: Sequence[Mapping[str, Any]], training_only: bool = False) -> tuple[float, bool]:
    """Return the median CPU time, s, and whether it was reached: a run that did not reach the goal counts as the
    longest.

    Where the median run did not reach the goal, the time is a lower bound: the longest time that one took.
    """
    times = [run["return"] - (run["import_cpu_s"] if training_only else 0.0) for run in runs]
    reached = sorted(time for time, run in zip(times, runs, strict=True) if run["reached"])
    middle = (len(runs) - 1) // 2  # of an even number the lower one
    return (reached[middle], True) if middle < len(reached) else (max(times), False)


def format_seconds(time: tuple[float, bool] | None) -> str:
    """``0.318``, with ``>`` where it is a bound."""
    return NOT_KNOWN if time is None else f"{'' if time[1] else '> '}{three_digits(time[0])}"


def ratio(ours: tuple[float, bool] | None, theirs: tuple[float, bool] | None) -> str:
    """Return how many times as fast ours is: ``"8.1×"``, with ``>`` where theirs did not reach, ``"–"`` where ours did
    not."""
    if ours is None or theirs is None or not ours[1]:
        return NOT_KNOWN
    return f"{'' if theirs[1] else '> '}{three_digits(theirs[0] / ours[0])}×"


def median_steps(runs: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the median of the steps made, of an even number the lower one; None where there are no runs."""
    steps = sorted(run["steps"] for run in runs)
    return steps[(len(steps) - 1) // 2] if steps else None
