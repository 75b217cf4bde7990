"""The statistics, by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from quarl.device.agent import memory
from quarl.device.agent.measure import (
    Statistics,
    compute_required_runs,
    median_ranks,
    percentile,
    thin,
    time_calls,
    timer_overhead,
)


def test_a_percentile_needs_two_runs_beyond_it_with_99_percent_confidence() -> None:
    # P(at most one of n above the q-quantile) = qⁿ + n (1 − q) qⁿ⁻¹ ≤ 0.01
    # p50: n = 11: 12 / 2048 = 0.0059; n = 10: 11 / 1024 = 0.0107
    assert compute_required_runs(0.5) == 11
    # p99: n = 662: 0.99⁶⁶² (1 + 662 / 99) = 0.001291 · 7.6869 = 0.00993; n = 661: 0.01002
    assert 0.99**662 * (1 + 662 / 99) <= 0.01 < 0.99**661 * (1 + 661 / 99)
    assert compute_required_runs(0.99) == 662
    assert compute_required_runs(0.9) == 64
    assert compute_required_runs(0.95) == 130
    assert compute_required_runs(0.999) == 6636


def test_percentiles_are_nearest_ranks() -> None:
    hundred = list(range(1, 101))
    assert [percentile(hundred, q) for q in (0.5, 0.9, 0.95, 0.99)] == [50, 90, 95, 99]
    assert percentile([10, 20, 30], 0.5) == 20
    assert percentile([10, 20, 30, 40], 0.5) == 20
    assert percentile([10, 20, 30, 40], 0.51) == 30
    assert percentile(list(range(1, 21)), 0.55) == 11  # 0.55 · 20 is 11.000000000000002 in floats
    assert percentile([7], 0.999) == 7


@pytest.mark.parametrize(
    ("runs", "ranks"),
    [
        (1, None),
        (5, None),  # 2 · (1/2)⁵ = 6.25 % is more than 5 %
        (6, (1, 6)),  # 2 · (1/2)⁶ = 3.1 %
        (8, (1, 8)),  # 2 · 9/256 = 7.0 % for the second
        (9, (2, 8)),  # 2 · 10/512 = 3.9 %
        (10, (2, 9)),
        (20, (6, 15)),
        (100, (40, 61)),
    ],
)
def test_the_medians_interval_is_that_of_the_sign_test(runs: int, ranks: tuple[int, int] | None) -> None:
    assert median_ranks(runs) == ranks


def test_the_median_interval_agrees_with_binomial_and_normal() -> None:
    k, upper = median_ranks(1000) or (0, 0)
    exact = [sum(math.comb(1000, i) for i in range(count)) / 2**1000 for count in (k, k + 1)]
    assert exact[0] <= 0.025 < exact[1]
    assert upper == 1000 - k + 1
    k, _ = median_ranks(1_000_000) or (0, 0)
    assert abs(k - (500_000 - 1.959964 * 500)) < 2


def test_statistics_give_only_what_the_runs_support() -> None:
    few = Statistics.of([10, 20, 30, 40])
    assert few.percentiles == {} and few.p50_interval is None
    assert few.percentiles_withheld["p99"] == "needs 662 runs, there are 4"
    assert (few.mean, few.min, few.max) == (25.0, 10, 40)
    assert few.std == pytest.approx(math.sqrt((225 + 25 + 25 + 225) / 3))
    many = Statistics.of(list(range(1, 663)))
    assert many.percentiles == {"p50": 331, "p90": 596, "p95": 629, "p99": 656}
    assert list(many.percentiles_withheld) == ["p99.9"]
    assert "p99" not in Statistics.of(list(range(661))).percentiles
    assert many.p50_interval is not None and many.p50_interval[0] < 331 < many.p50_interval[1]
    assert Statistics.of([5]).std == 0.0


def test_samples_are_thinned_evenly_and_keep_both_ends() -> None:
    assert thin([1, 2, 3], keep=5) == [1, 2, 3]
    assert thin(list(range(1001)), keep=5) == [0, 250, 500, 750, 1000]
    kept = thin(list(range(123_457)))
    assert len(kept) == 2000 and kept[0] == 0 and kept[-1] == 123_456 and kept == sorted(kept)


def test_timed_calls_cycle_through_the_inputs_after_the_warm_up() -> None:
    seen: list[str] = []
    times = time_calls(seen.append, ["a", "b", "c"], warmup=2, runs=4)
    assert seen == ["a", "b", "a", "b", "c", "a"]
    assert len(times) == 4 and all(isinstance(t, int) and t >= 0 for t in times)


def test_garbage_collection_is_off_only_while_timing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import gc

    states: list[bool] = []
    time_calls(lambda _: states.append(gc.isenabled()), [0], warmup=0, runs=2)
    assert states == [False, False] and gc.isenabled()
    order: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: order.append("collected"))
    time_calls(order.append, ["called"], warmup=1, runs=1)
    assert order == ["collected", "called", "called"], "a collection after the warm-up would undo it"
    with pytest.raises(ZeroDivisionError):
        time_calls(lambda x: 1 / x, [0], warmup=0, runs=1)
    assert gc.isenabled()


def test_conditions_are_read_between_runs_and_caches_warmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quarl.device.agent.measure.CHUNK_NS", 0)  # every run ends a chunk
    looks: list[int] = []
    seen: list[int] = []
    times = time_calls(seen.append, [1, 2], warmup=0, runs=3, between=looks.append)
    assert looks == [1, 2] and len(times) == 3
    assert seen == [1, 1, 2, 1, 2, 1, 2, 1, 1]


def test_the_timers_own_cost_is_stated() -> None:
    timer = timer_overhead()
    assert timer["overhead_ns"] >= 0 and timer["resolution_ns"] > 0 and "clock" in timer


STATUS = """Name:\tpython (x) y
VmPeak:\t   90000 kB
VmHWM:\t   33000 kB
VmRSS:\t   31000 kB
RssAnon:\t   20000 kB
RssFile:\t   11000 kB
VmSwap:\t       8 kB
Threads:\t1
"""


def test_memory_is_read_in_bytes() -> None:
    resident = memory.parse_status(STATUS)
    assert resident == memory.Resident(31000 * 1024, 33000 * 1024, 20000 * 1024, 11000 * 1024, 8 * 1024)
    assert memory.parse_status("VmRSS:\tmuch kB\n") == memory.Resident(None, None, None, None, None)


ALLOCATING = """
import dataclasses, json
from quarl.device.agent import memory
found = [memory.read()]
block = bytearray(b"x") * (64 * 2**20)  # touched, so resident
found.append(memory.read())
del block
found.append(memory.read())
if memory.reset_peak():
    found.append(memory.read())
print(json.dumps([dataclasses.asdict(each) for each in found]))
"""


def test_the_peak_follows_an_allocation_and_can_be_reset() -> None:
    # In a process of its own: from one that has long had much else, the kernel may take back megabytes at any moment.
    printed = subprocess.run([sys.executable, "-c", ALLOCATING], capture_output=True, text=True, check=True).stdout
    before, held, after, *fresh = json.loads(printed)
    most = 0.9 * 64 * 2**20
    assert held["now"] - before["now"] > most
    assert after["peak"] >= held["now"] * 0.99 and after["now"] < held["now"] - most
    assert all(each["peak"] < after["peak"] - most for each in fresh)


def test_the_lifetime_peak_outlives_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([50, 30, 30])  # before the reset, at the end of running, when asked
    monkeypatch.setattr(memory, "read", lambda: memory.Resident(20, next(peaks), None, None, None))
    monkeypatch.setattr(memory, "reset_peak", lambda: True)
    log = memory.MemoryLog()
    log.start_running()
    log.end_running()
    printed = log.to_dict()
    assert (printed["running_peak"], printed["lifetime_peak"], printed["peak_reset"]) == (30, 50, True)


def test_the_log_says_whether_another_load_came_before() -> None:
    log = memory.MemoryLog(loads=1)
    assert log.to_dict()["clean"] is True
    log.loads += 1
    assert log.to_dict()["clean"] is False
