"""Timing in nanoseconds and what may be said of it: percentiles only where the number of runs supports them."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
"""Name and quantile of every percentile that is reported where the runs support it."""

PERCENTILE_CONFIDENCE = 0.99
INTERVAL_CONFIDENCE = 0.95
MAX_SAMPLES = 2000
CHUNK_NS = 1_000_000_000
"""Between timed runs the clock and throttle flags are looked at this often."""
REWARM_RUNS = 3
TIMER_PAIRS = 1001

T = TypeVar("T")


@dataclass(frozen=True)
class Statistics:
    """Distribution of run times.

    Attributes:
        runs: how many there were.
        percentiles: by name, ns; only those the run count supports.
        percentiles_withheld: the others, with the reason.
        p50_interval: distribution-free interval of the median at INTERVAL_CONFIDENCE, ns; None below 6 runs.
        mean, std, min, max: ns; std of the sample (n − 1), 0 for one run.
    """

    runs: int
    percentiles: dict[str, int]
    percentiles_withheld: dict[str, str]
    p50_interval: tuple[int, int] | None
    mean: float
    std: float
    min: int
    max: int

    @classmethod
    def of(cls, sorted_ns: Sequence[int]) -> Statistics:
        """Return the statistics of at least one run time, sorted, in ns."""
        runs = len(sorted_ns)
        mean = math.fsum(sorted_ns) / runs
        variance = math.fsum((value - mean) ** 2 for value in sorted_ns) / max(runs - 1, 1)
        needed = {name: compute_required_runs(quantile) for name, quantile in PERCENTILES.items()}
        ranks = median_ranks(runs)
        return cls(
            runs=runs,
            percentiles={
                name: percentile(sorted_ns, quantile) for name, quantile in PERCENTILES.items() if runs >= needed[name]
            },
            percentiles_withheld={
                name: f"needs {needed[name]} runs, there are {runs}" for name in PERCENTILES if runs < needed[name]
            },
            p50_interval=None if ranks is None else (sorted_ns[ranks[0] - 1], sorted_ns[ranks[1] - 1]),
            mean=mean,
            std=math.sqrt(variance),
            min=sorted_ns[0],
            max=sorted_ns[-1],
        )


def compute_required_runs(quantile: float) -> int:
    """Fewest runs that support a percentile: with 99 % confidence at least two of them lie beyond the true one.

    Then the second largest run is a distribution-free upper bound of it, so that neither one outlier nor the lack of
    one decides the figure. Of n independent runs the number above the q-quantile is binomial (n, 1 − q):

        P(at most one above) = qⁿ + n (1 − q) qⁿ⁻¹ ≤ 1 − 0.99

    which gives p50 11, p90 64, p95 130, p99 662 (Wilks' two-sided 99 %/99 % sample size), p99.9 6636.
    """

    def chance(runs: int) -> float:
        return quantile**runs + runs * (1.0 - quantile) * quantile ** (runs - 1)

    # Of one run the chance is 1; it falls with every further one.
    few, enough = 1, 2
    while chance(enough) > 1.0 - PERCENTILE_CONFIDENCE:
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if chance(middle) <= 1.0 - PERCENTILE_CONFIDENCE else (middle, enough)
    return enough


def percentile(sorted_values: Sequence[int], quantile: float) -> int:
    """Return the smallest value that at least ``quantile`` of all values do not exceed: x₍⌈qn⌉₎, a value that
    occurred."""
    # 0.55 · 20 is 11.000000000000002 in floats: the ceiling is taken a hair below.
    rank = max(math.ceil(quantile * len(sorted_values) - 1e-9), 1)
    return sorted_values[rank - 1]


def median_ranks(runs: int) -> tuple[int, int] | None:
    """Ranks (k, n − k + 1), from 1, of the order statistics that enclose the median with 95 % confidence.

    The number of runs below the median is binomial (n, ½), whatever the distribution of the times:
    k is the largest with 2 · P(B < k) ≤ 5 %. None below 6 runs, where even minimum and maximum do not enclose it so.
    """
    allowed = (1.0 - INTERVAL_CONFIDENCE) / 2.0
    if 0.5**runs > allowed:
        return None
    k = max(int(runs / 2 - math.sqrt(runs)), 1)  # two standard deviations below the middle
    while k > 1 and _binomial_tail(runs, k - 1) > allowed:
        k -= 1
    while _binomial_tail(runs, k) <= allowed:
        k += 1
    return k, runs - k + 1


def _binomial_tail(runs: int, largest: int) -> float:
    """P(B ≤ largest) of a binomial (runs, ½) for largest < runs / 2, summed downwards until nothing is added."""
    log_term = math.lgamma(runs + 1) - math.lgamma(largest + 1) - math.lgamma(runs - largest + 1)
    term = math.exp(log_term - runs * math.log(2.0))
    total = 0.0
    while largest >= 0 and term > total * 1e-17:
        total += term
        term *= largest / (runs - largest + 1)
        largest -= 1
    return total


def thin(sorted_values: Sequence[int], keep: int = MAX_SAMPLES) -> list[int]:
    """At most ``keep`` of the sorted values, evenly spaced by rank, with the first and the last."""
    count = len(sorted_values)
    if count <= keep:
        return list(sorted_values)
    return [sorted_values[round(index * (count - 1) / (keep - 1))] for index in range(keep)]


def time_calls(
    call: Callable[[T], object],
    inputs: Sequence[T],
    warmup: int,
    runs: int,
    between: Callable[[int], None] = lambda done: None,
) -> list[int]:
    """Time ``call`` on the inputs in turn, one by one.

    Args:
        call: what is timed.
        inputs: what it is called with, in turn, so that no run sees the data of the one before.
        warmup: untimed calls before.
        runs: timed calls.
        between: called about once a second with the number of runs done, outside the timing; a few untimed calls
            bring the caches back afterwards.

    Returns:
        ns of each run, in order. The garbage collector is off meanwhile.
    """
    count, clock = len(inputs), time.perf_counter_ns
    times = [0] * runs
    collecting = gc.isenabled()
    gc.collect()  # before the warm-up: it walks all objects and would leave the caches cold
    gc.disable()
    try:
        for index in range(warmup):
            call(inputs[index % count])
        deadline = clock() + CHUNK_NS
        for index in range(runs):
            value = inputs[index % count]
            start = clock()
            call(value)
            end = clock()
            times[index] = end - start
            if end > deadline and index + 1 < runs:
                between(index + 1)
                for again in range(REWARM_RUNS):
                    call(inputs[again % count])
                deadline = clock() + CHUNK_NS
    finally:
        if collecting:
            gc.enable()
    return times


def timer_overhead() -> dict[str, Any]:
    """Return what reading the clock twice costs, ns (median of TIMER_PAIRS), and the clock's resolution."""
    clock = time.perf_counter_ns
    pairs = [0] * TIMER_PAIRS
    for index in range(len(pairs)):
        start = clock()
        end = clock()
        pairs[index] = end - start
    info = time.get_clock_info("perf_counter")
    return {
        "overhead_ns": percentile(sorted(pairs), 0.5),
        "resolution_ns": info.resolution * 1e9,
        "clock": info.implementation,
    }
