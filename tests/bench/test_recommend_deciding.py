"""The recommender's rule, on candidates made up by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quarl.airlearning_envs.flights import wilson_interval
from quarl.bench.recommending.deciding import Decision, Demand, DeployableArtifact, decide, fewest_bits
from quarl.bench.recommending.thresholds import (
    deadline_at_least,
    deadline_below,
    episodes_for_mean,
    episodes_for_share,
    episodes_until_met,
    floor_above,
    floor_at_most,
    number,
    two_digits_up,
)
from quarl.policy.spec import Precision
from quarl.train.intervals import Estimate

DEMAND = Demand(0.95, 20.0)


def candidate(
    precision: str, p50_us: float, low: float = 0.98, runtime: str = "litert", **changes: Any
) -> DeployableArtifact:
    """Turns within 1 % of p50, p99 twice as long, 100 bytes a bit; ``changes`` in place of these."""
    values: dict[str, Any] = {
        "precision": precision,
        "runtime": runtime,
        "quality": Estimate(low + 0.01, low, low + 0.02),
        "p50_ns": 1000 * p50_us,
        "p99_ns": 2000 * p50_us,
        "turns_ns": (990 * p50_us, 1010 * p50_us),
        "artifact_bytes": 100 * Precision(precision).bits,
        "resident_bytes": 50_000_000,
        **changes,
    }
    return DeployableArtifact(**values)


def names(decision: Decision) -> list[str]:
    return [each.name for each in decision.ranked]


def test_the_fastest_of_those_that_meet_both() -> None:
    slow, fast, wrong = candidate("fp32", 4.0), candidate("int8", 2.0), candidate("fp16", 1.0, low=0.90)
    decision = decide([slow, fast, wrong], DEMAND)
    assert decision.recommendation is fast
    assert names(decision) == ["int8 with litert", "fp32 with litert"]
    assert decision.as_fast == (fast,)
    assert decision.missed == (wrong,)
    assert decision.order == (fast, slow, wrong)


def test_turns_that_overlap_go_to_the_smaller_artifact() -> None:
    fp32 = candidate("fp32", 2.00, turns_ns=(1950, 2050))
    fp16 = candidate("fp16", 2.04, turns_ns=(2000, 2100))
    assert decide([fp32, fp16], DEMAND).recommendation is fp16
    apart = candidate("fp16", 2.10, turns_ns=(2051, 2150))
    assert decide([fp32, apart], DEMAND).recommendation is fp32
    touching = candidate("fp16", 2.10, turns_ns=(2050, 2150))
    assert decide([fp32, touching], DEMAND).recommendation is touching


def test_of_the_same_size_the_one_with_less_memory_and_then_the_fastest() -> None:
    litert = candidate("int8", 2.00, artifact_bytes=1000, resident_bytes=52_000_000)
    tflite = candidate("int8", 2.02, artifact_bytes=1009, resident_bytes=45_000_000, runtime="tflite-runtime")
    decision = decide([litert, tflite], DEMAND)
    assert decision.recommendation is tflite, "9 bytes of 1000 are no smaller artifact"
    larger = candidate("int8", 2.02, artifact_bytes=1011, resident_bytes=45_000_000, runtime="tflite-runtime")
    assert decide([litert, larger], DEMAND).recommendation is litert
    alike = candidate("int8", 2.02, artifact_bytes=1000, resident_bytes=51_990_000, runtime="tflite-runtime")
    assert decide([litert, alike], DEMAND).recommendation is litert
    silent = candidate("int8", 1.99, artifact_bytes=1000, resident_bytes=None, runtime="onnxruntime")
    assert decide([litert, silent], DEMAND).recommendation is litert
    assert decide([silent], DEMAND).recommendation is silent


def test_fewer_than_8_bits_are_not_chosen_where_int8_does() -> None:
    int8, int4 = candidate("int8", 2.00), candidate("int4", 1.5)
    assert decide([int8, int4], DEMAND).recommendation is int8
    assert decide([int8, int4], DEMAND).as_fast == (int8,)
    assert decide([int8, int4], DEMAND).order == (int8, int4)
    assert decide([candidate("int8", 2.0, low=0.9), int4], DEMAND).recommendation is int4
    packed = candidate("int4", 1.5, runtime="native")
    assert decide([candidate("int8", 2.0, runtime="native"), packed], DEMAND).recommendation is packed
    assert (int4.runs_as_int8, packed.runs_as_int8) == (True, False)
    elsewhere = candidate("int8", 2.0, runtime="onnxruntime")
    assert decide([elsewhere, int4], DEMAND).recommendation is int4


def test_the_floor_and_the_deadline_are_met_when_they_are_reached_exactly() -> None:
    exact = candidate("int8", 1.0, low=0.95, p99_ns=20_000_000)
    assert decide([exact], DEMAND).recommendation is exact
    assert decide([exact], Demand(0.9501, 20.0)).recommendation is None
    assert decide([exact], Demand(0.95, 19.999999)).recommendation is None


def test_a_floor_between_two_candidates_and_what_lowering_it_gives() -> None:
    fp32, int8 = candidate("fp32", 4.0, low=0.97), candidate("int8", 2.0, low=0.9342)
    decision = decide([fp32, int8], DEMAND)
    assert decision.recommendation is fp32
    change = decision.change
    assert change is not None
    # Down to 0.934 is 1.017 times; up to 0.971, which fp32 misses, 1.022 times; the deadlines are further.
    assert (change.demand, change.answer) == (Demand(0.934, 20.0), int8)
    assert change.factor == pytest.approx(0.95 / 0.934)


def test_a_floor_just_above_the_chosen_one() -> None:
    fp32, int8 = candidate("fp32", 4.0, low=0.99), candidate("int8", 2.0, low=0.96)
    change = decide([fp32, int8], DEMAND).change
    assert change is not None
    assert (change.demand.floor, change.answer) == (0.961, fp32)
    alone = decide([int8], DEMAND).change
    assert alone is not None
    assert (alone.demand.floor, alone.answer) == (0.961, None)


def test_a_deadline_between_two_candidates() -> None:
    fp32 = candidate("fp32", 4.0, low=1.0, p99_ns=19_000_000)
    int8 = candidate("int8", 2.0, low=1.0, p99_ns=21_337_000)
    decision = decide([fp32, int8], DEMAND)
    assert decision.recommendation is fp32
    change = decision.change
    assert change is not None
    # 18.9 would leave nothing and is 1.058 times shorter; 21.4 gives int8 and is 1.07 times longer.
    assert (change.demand, change.answer) == (Demand(0.95, 18.9), None)
    nearer = candidate("int8", 2.0, low=1.0, p99_ns=20_337_000)
    change = decide([fp32, nearer], DEMAND).change
    assert change is not None
    assert (change.demand, change.answer) == (Demand(0.95, 20.4), nearer)


def test_nothing_meets_both_and_the_nearest_demand() -> None:
    good = candidate("fp32", 4.0, low=0.97, p99_ns=25_000_000)  # 1.25 times the deadline
    quick = candidate("int8", 2.0, low=0.90, p99_ns=1_000_000)  # 0.95 / 0.9 = 1.056 times the floor
    decision = decide([good, quick], DEMAND)
    assert decision.recommendation is None
    assert decision.missed == (quick, good)
    assert decision.change is not None
    assert (decision.change.demand, decision.change.answer) == (Demand(0.9, 20.0), quick)
    both = decide([candidate("int8", 2.0, low=0.8567, p99_ns=20_501_000)], DEMAND).change
    assert both is not None
    assert both.demand == Demand(0.856, 20.6)
    assert both.factor == pytest.approx(0.95 / 0.856 * 20.6 / 20.0)


def test_shares_below_nothing_have_no_nearest_floor() -> None:
    decision = decide([candidate("int2", 1.0, low=-1.4), candidate("int3", 1.0, low=0.0004)], DEMAND)
    assert decision.recommendation is None
    assert decision.change is None


def test_an_interval_without_ends_meets_no_floor() -> None:
    single = candidate("int8", 1.0, quality=Estimate(1.0, None, None))
    decision = decide([single], Demand(0.5, 20.0))
    assert decision.recommendation is None
    assert decision.demand.short_of_floor(single) == math.inf


def test_what_it_would_be_without_its_runtime() -> None:
    litert, other = candidate("int8", 2.0), candidate("fp16", 5.0, runtime="onnxruntime")
    assert decide([litert, candidate("fp32", 3.0), other], DEMAND).elsewhere is other
    assert decide([litert, candidate("fp32", 3.0)], DEMAND).elsewhere is None


@pytest.mark.parametrize(
    ("low", "at_most", "above"),
    [(0.9342, 0.934, 0.935), (0.97, 0.97, 0.971), (0.9999, 0.999, 1.0), (1.0, 1.0, None), (1.02, 1.0, None)],
)
def test_floors_to_type(low: float, at_most: float, above: float | None) -> None:
    assert floor_at_most(low) == at_most
    assert at_most <= low
    assert floor_above(low) == above


def test_a_floor_of_whole_thousandths_is_its_own() -> None:
    assert [floor_at_most(steps / 1000) for steps in range(1, 1001)] == [steps / 1000 for steps in range(1, 1001)]
    assert [floor_above(steps / 1000) for steps in range(1, 1000)] == [steps / 1000 for steps in range(2, 1001)]


@pytest.mark.parametrize(
    ("p99_ns", "at_least", "below"),
    [(1712, 0.00172, 0.00171), (1710, 0.00171, 0.0017), (20_337_000, 20.4, 20.3), (1000, 0.001, 0.000999)],
)
def test_deadlines_to_type(p99_ns: float, at_least: float, below: float) -> None:
    assert deadline_at_least(p99_ns) == at_least
    assert deadline_below(p99_ns) == below
    assert Demand(0.9, at_least).deadline_ns >= p99_ns > Demand(0.9, below).deadline_ns


def test_episodes_until_a_share_reaches_its_floor() -> None:
    # n = 1.96² · 0.9 · 0.1 / 0.02² = 864.3, with two digits 870
    assert episodes_for_share(0.92, 0.90) == 870
    assert wilson_interval(0.92 * 870, 870)[0] > 0.90 > wilson_interval(0.92 * 860, 860)[0]  # type: ignore[arg-type]
    assert episodes_for_share(0.90, 0.90) is None
    assert episodes_for_share(1.0, 0.5) == 4  # 3.84


def test_episodes_until_a_mean_reaches_its_floor() -> None:
    # Half the way from 0.98 down to 0.95 is allowed, 0.06 is measured: four times the episodes.
    assert episodes_for_mean(Estimate(0.98, 0.92, 1.04), 0.95, 50) == 200
    assert episodes_for_mean(Estimate(0.94, 0.90, 0.98), 0.95, 50) is None
    assert episodes_for_mean(Estimate(0.98, None, None), 0.95, 1) is None


def test_episodes_are_named_only_where_they_may_show_something() -> None:
    nearly = Estimate(0.92, 0.89, 0.95)
    assert episodes_until_met(nearly, 0.90, 100, has_success=True) == 870
    assert episodes_until_met(nearly, 0.91, 100, has_success=False) == 900  # three times as narrow
    assert episodes_until_met(nearly, 0.88, 100, has_success=True) is None
    assert episodes_until_met(Estimate(0.92), 0.88, 1, has_success=True) is None


def test_the_fewest_bits_are_not_a_lucky_width() -> None:
    low = {"int8": 0.96, "int4": 0.96, "int3": 0.96, "int2": 0.94}

    def fewest(**lows: float) -> str | None:
        return fewest_bits([candidate(name, 1.0, each) for name, each in lows.items()], 0.95)

    assert fewest(**low) == "int3"
    assert fewest(int3=0.96, int4=0.94, int8=0.96) == "int8"
    assert fewest(int8=0.94, int4=0.96) is None
    assert fewest_bits([candidate("int8", 1.0, quality=Estimate(1.0))], 0.95) is None


def test_a_candidate_that_drops_out_may_change_the_answer_too() -> None:
    """The fastest may be what another one is as fast as: without it the answer is another one."""
    fastest = candidate("fp32", 2.0, low=0.96, turns_ns=(1900, 2100))
    small = candidate("int8", 2.2, low=0.99, turns_ns=(2000, 2300))
    light = candidate("fp16", 2.3, low=0.99, turns_ns=(2250, 2400), artifact_bytes=100)
    decision = decide([fastest, small, light], DEMAND)
    assert decision.recommendation is small
    assert decision.change is not None
    assert (decision.change.demand, decision.change.answer) == (Demand(0.961, 20.0), light)


@pytest.mark.parametrize(
    ("value", "typed"), [(0.95, "0.95"), (20.0, "20"), (0.00171, "0.00171"), (0.0000171, "0.0000171"), (1e3, "1000")]
)
def test_numbers_are_typed_as_they_are(value: float, typed: str) -> None:
    assert number(value) == typed
    assert float(typed) == value


@pytest.mark.parametrize(("count", "rounded"), [(864.3, 870), (870.0, 870), (3.84, 4), (1234.0, 1300), (99.5, 100)])
def test_two_digits_up(count: float, rounded: int) -> None:
    assert two_digits_up(count) == rounded
