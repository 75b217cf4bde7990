"""What the recommender says, word for word, of candidates made up by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.recommending.deciding import Candidate, Demand, Quality, decide
from bench.recommending.words import Question, apart, fewest_bits, lines, number, percent, share, what_would_change_it

DEMAND = Demand(0.95, 20.0)
TRAINING = "python -m train --task cartpole --method dqn --precision 8"


def candidate(precision: str, p50_ns: float, low: float = 0.98, runtime: str = "litert", **changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "precision": precision,
        "runtime": runtime,
        "quality": Quality(low + 0.01, low, low + 0.02),
        "p50_ns": p50_ns,
        "p99_ns": 2 * p50_ns,
        "turns_ns": (0.99 * p50_ns, 1.01 * p50_ns),
        "artifact_bytes": {"fp32": 40_000, "fp16": 20_000}.get(precision, 12_300),
        "resident_bytes": 52_100_000,
        **changes,
    }
    return Candidate(**values)


def question(demand: Demand = DEMAND, **changes: Any) -> Question:
    return Question(**{"bundle": "II", "demand": demand, "episodes": 100, "has_success": True, **changes})


def test_the_fastest_is_explained_and_the_nearest_floor_named() -> None:
    verdict = decide([candidate("fp32", 4000, low=0.99), candidate("int8", 2000, low=0.96)], DEMAND)
    assert lines(verdict, question()) == (
        "Deploy int8 with litert: success 97.0 [96.0, 98.0] % (floor 95 %), p99 4.00 µs (deadline 20 ms), "
        "artifact 12.3 KB, 52.1 MB resident.",
        "Why: of 2 candidates 2 meet both, and its p50 of 2.00 µs is the fastest, by more than the measurement "
        "spreads.",
        "Not fp32 with litert: it meets both, but its p50 of 4.00 µs is 2.00 times as long.",
    )
    assert what_would_change_it(verdict, question()) == (
        "What would change it: with --success-floor 0.961, 1.16 % higher, it would be fp32 with litert."
    )


def test_those_as_fast_are_told_apart_by_size_and_memory() -> None:
    fp32 = candidate("fp32", 2000)
    litert, tflite = candidate("int8", 2010), candidate("int8", 2020, runtime="tflite-runtime", resident_bytes=45e6)
    verdict = decide([fp32, litert, tflite], DEMAND)
    what, why, why_not = lines(verdict, question())
    assert what.startswith("Deploy int8 with tflite-runtime: ")
    assert why == (
        "Why: of 3 candidates 3 meet both, and its p50 of 2.02 µs cannot be told from the fastest (fp32 with litert); "
        "of the 3 as fast it has the smallest artifact (12.3 KB) and, of 2 of that size, the least resident memory "
        "(45.0 MB)."
    )
    assert why_not == (
        "Not int8 with litert: as fast, 2.01 µs against 2.02 µs cannot be told apart, but with an artifact of the same "
        "size it takes more memory (52.1 against 45.0 MB)."
    )
    alone = decide([fp32, litert], DEMAND)
    assert lines(alone, question())[1].endswith("of the 2 as fast it has the smallest artifact (12.3 KB).")
    assert lines(alone, question())[2].endswith("but its artifact is larger (40.0 against 12.3 KB).")


def test_the_only_one_and_the_one_that_is_alone() -> None:
    verdict = decide([candidate("fp32", 4000), candidate("int8", 2000, low=0.93)], DEMAND)
    assert lines(verdict, question())[1:] == (
        "Why: it is the only one of 2 candidates that meets both.",
        "Not int8 with litert: its success of 94.0 [93.0, 95.0] % is 2.00 points short of the floor.",
    )
    single = decide([candidate("int8", 2000)], DEMAND)
    assert lines(single, question())[1:] == ("Why: it meets both.", "There is no other candidate.")


def test_a_lower_floor_comes_with_what_may_help_instead() -> None:
    worse = candidate("int8", 2000, quality=Quality(0.94, 0.93, 0.95))
    verdict = decide([candidate("fp32", 4000, low=0.999), worse], DEMAND)
    assert what_would_change_it(verdict, question(training=TRAINING)) == (
        "What would change it: with --success-floor 0.93, 2.11 % lower, it would be int8 with litert; to keep the "
        f"floor, train with quantizers (not measured here): {TRAINING}."
    )
    undecided = candidate("int8", 2000, quality=Quality(0.97, 0.93, 0.99))
    verdict = decide([candidate("fp32", 4000, low=0.999), undecided], DEMAND)
    # 1.96² · 0.95 · 0.05 / 0.02² = 456.2
    assert what_would_change_it(verdict, question(training=TRAINING)).endswith(
        "it would be int8 with litert; --episodes 460 may show that the floor is met as it is, for the mean is above "
        "it."
    )


def test_a_floor_that_episodes_cannot_show() -> None:
    perfect = candidate("int8", 2000, quality=Quality(1.0, 0.9963, 1.0))
    # 1.96² · 0.997 / 0.003 = 1276.7
    assert what_would_change_it(decide([perfect], DEMAND), question()) == (
        "What would change it: with --success-floor 0.997, 4.95 % higher, nothing would meet both (perhaps int8 with "
        "litert after --episodes 1300)."
    )


def test_where_no_number_is_near_the_other_runtimes_are_named() -> None:
    whole = {"quality": Quality(1.0, 1.0, 1.0)}
    int8, fp16 = candidate("int8", 2000, **whole), candidate("fp16", 5000, runtime="onnxruntime", **whole)
    verdict = decide([int8, fp16], DEMAND)
    assert what_would_change_it(verdict, question()) == (
        "What would change it: no number that is near (with --deadline-ms 0.00399, 5,013 times lower, nothing would "
        "meet both); without litert (--runtime onnxruntime) it would be fp16 with onnxruntime, p50 5.00 µs."
    )
    assert what_would_change_it(decide([int8], DEMAND), question()).endswith("; no other runtime was measured.")


def test_nothing_reaches_the_floor() -> None:
    asked = question(options=(("preset", "hard"), ("episodes", "100")), has_success=False)
    verdict = decide([candidate("fp32", 4000, low=0.90), candidate("int8", 2000, low=0.8999)], DEMAND)
    assert lines(verdict, asked) == (
        "None of 2 candidates meets both the floor and the deadline.",
        "Floor 95 %: missed by all; the highest lower bound of return kept is that of fp32 with litert, "
        "91.0 [90.0, 92.0] %, 5.00 points short; fp32 misses it, too: no precision mends that, training may.",
        "Deadline 20 ms: 2 of 2 keep it (shortest p99: 4.00 µs).",
    )
    assert what_would_change_it(verdict, asked) == (
        "Nearest: python -m bench.recommend II --success-floor 0.9 --deadline-ms 20 --preset hard --episodes 100 would "
        "give fp32 with litert."
    )
    # half of the interval is 0.04, 0.01 would do: 16 times the episodes
    nearly = candidate("int8", 2000, quality=Quality(0.96, 0.92, 1.0))
    assert "; --episodes 1600 may show" in what_would_change_it(decide([nearly], DEMAND), asked)


@pytest.mark.parametrize("wide", ["fp32", "int8"])
def test_training_is_not_advised_where_only_an_interval_is_too_wide(wide: str) -> None:
    """Else one line would say that no precision mends it, and the next that more episodes may."""
    qualities = dict.fromkeys(("fp32", "int8"), Quality(0.91, 0.90, 0.92)) | {wide: Quality(0.97, 0.93, 0.99)}
    verdict = decide([candidate(name, 2000, quality=quality) for name, quality in qualities.items()], DEMAND)
    assert lines(verdict, question())[1] == (
        f"Floor 95 %: missed by all; the highest lower bound of success is that of {wide} with litert, "
        "97.0 [93.0, 99.0] %, 2.00 points short; fp32 misses it, too."
    )
    assert "; --episodes 460 may show" in what_would_change_it(verdict, question())


def test_nothing_keeps_the_deadline() -> None:
    demand = Demand(0.95, 0.0032)
    verdict = decide([candidate("fp32", 4000), candidate("int8", 2000)], demand)
    assert lines(verdict, question(demand))[1:] == (
        "Floor 95 %: 2 of 2 reach it, none of them in time.",
        "Deadline 0.0032 ms: missed by all; the shortest p99 is that of int8 with litert, 4.00 µs, 1.25 times the "
        "deadline.",
    )
    assert what_would_change_it(verdict, question(demand)) == (
        "Nearest: python -m bench.recommend II --success-floor 0.95 --deadline-ms 0.004 would give int8 with litert."
    )


def test_each_constraint_is_met_by_another_candidate() -> None:
    demand = Demand(0.95, 0.005)
    verdict = decide([candidate("fp32", 4000), candidate("int8", 2000, low=0.93)], demand)
    assert lines(verdict, question(demand))[1:] == (
        "Floor 95 %: 1 of 2 reach it, none of them in time.",
        "Deadline 0.005 ms: 1 of 2 keep it, of which int8 with litert comes nearest to the floor, 2.00 points short; "
        "of those at the floor fp32 with litert is the quickest, p99 8.00 µs, 1.60 times the deadline.",
    )


def test_shares_that_no_floor_fits() -> None:
    verdict = decide([candidate("int8", 2000, low=-1.5)], DEMAND)
    assert what_would_change_it(verdict, question()) == "Nearest: none; no floor above 0 is reached by anything."
    assert share(Quality(-1.5, None, None)) == "−150.0 [–, –] %"


def test_the_fewest_bits_are_not_a_lucky_width() -> None:
    reaches, misses = Quality(0.97, 0.96, 0.98), Quality(0.95, 0.94, 0.96)
    assert fewest_bits({"int8": reaches, "int4": reaches, "int3": reaches, "int2": misses}, 0.95) == "int3"
    assert fewest_bits({"int3": reaches, "int4": misses, "int8": reaches}, 0.95) == "int8"
    assert fewest_bits({"int8": misses, "int4": reaches}, 0.95) is None
    assert fewest_bits({"int8": Quality(1.0, None, None)}, 0.95) is None


@pytest.mark.parametrize(
    ("value", "typed"), [(0.95, "0.95"), (20.0, "20"), (0.00171, "0.00171"), (0.0000171, "0.0000171"), (1e3, "1000")]
)
def test_numbers_are_typed_as_they_are(value: float, typed: str) -> None:
    assert number(value) == typed
    assert float(typed) == value


def test_shares_and_distances() -> None:
    assert percent(0.95) == "95 %"
    assert percent(0.9995) == "99.95 %"
    assert apart(0.95, 0.931) == "2.00 % lower"
    assert apart(20.0, 21.0) == "5.00 % higher"
    assert apart(20.0, 40.0) == "2.00 times higher"
