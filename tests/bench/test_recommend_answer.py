"""What the recommender says of candidates made up by hand: whole answers, and the facts that they are filled from."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.bench.recommending.answer import apart, sentences
from quarl.bench.recommending.deciding import Demand, DeployableArtifact
from quarl.bench.recommending.measurements import Measurements, Question
from quarl.bench.recommending.verdict import Verdict, training_command
from quarl.policy.bundle import Bundle
from quarl.train.intervals import Estimate
from quarl.train.suites.make import make_task

Answer = Callable[..., Verdict]


def explanation(verdict: Verdict) -> tuple[str, ...]:
    return tuple(sentences(verdict)["explanation"])


def what_would_change_it(verdict: Verdict) -> str:
    return str(sentences(verdict)["what_would_change_it"])


def change(verdict: Verdict) -> dict[str, Any]:
    assert verdict.change is not None
    return verdict.change


def candidate(
    precision: str, p50_ns: float, low: float = 0.98, runtime: str = "litert", **changes: Any
) -> DeployableArtifact:
    values: dict[str, Any] = {
        "precision": precision,
        "runtime": runtime,
        "quality": Estimate(low + 0.01, low, low + 0.02),
        "p50_ns": p50_ns,
        "p99_ns": 2 * p50_ns,
        "turns_ns": (0.99 * p50_ns, 1.01 * p50_ns),
        "artifact_bytes": {"fp32": 40_000, "fp16": 20_000}.get(precision, 12_300),
        "resident_bytes": 52_100_000,
        **changes,
    }
    return DeployableArtifact(**values)


@pytest.fixture
def answer(balancing: Callable[..., Bundle], tmp_path: Path) -> Answer:
    bundle, task = balancing(tmp_path / "pole"), make_task("CartPole-v1")

    def made(
        *candidates: DeployableArtifact,
        floor: float = 0.95,
        deadline: float = 20.0,
        success: bool = True,
        **options: Any,
    ) -> Verdict:
        typed = Question("II", Demand(floor, deadline), "", **{"episodes": 100, "seed": 7, "runs": 700, **options})
        measurements = Measurements(candidates, (), candidates[0], success, (), {}, "")
        return Verdict.of(bundle, task, typed, measurements)

    return made


def test_the_fastest_is_explained_and_the_nearest_floor_named(answer: Answer) -> None:
    made = answer(candidate("fp32", 4000, low=0.99), candidate("int8", 2000, low=0.96))
    assert explanation(made) == (
        "Deploy int8 with litert: success 97.0 [96.0, 98.0] % (floor 95 %), p99 4.00 µs (deadline 20 ms), "
        "artifact 12.3 KB, 52.1 MB resident.",
        "Why: 2 of 2 candidates meet both, and its p50 of 2.00 µs is the shortest, by more than the measurement "
        "spreads.",
        "Not fp32 with litert: its p50 of 4.00 µs is 2.00 times the shortest, by more than the measurement spreads.",
    )
    assert what_would_change_it(made) == (
        "What would change it: with --success-floor 0.961, 1.16 % higher, it would be fp32 with litert."
    )
    assert change(made)["would_be"] == {"name": "fp32 with litert", "precision": "fp32", "runtime": "litert"}


def test_those_as_fast_are_told_apart_by_size_and_memory(answer: Answer) -> None:
    litert, tflite = candidate("int8", 2010), candidate("int8", 2020, runtime="tflite-runtime", resident_bytes=45e6)
    what, why, why_not = explanation(answer(candidate("fp32", 2000), litert, tflite))
    assert what.startswith("Deploy int8 with tflite-runtime: ")
    assert what.endswith("artifact 12.3 KB, 45.0 MB resident.")
    assert why == (
        "Why: 3 of 3 candidates meet both, and 3 are as fast as the fastest (fp32 with litert, p50 2.00 µs), for all "
        "that was measured; of these it has the least memory, no artifact being smaller."
    )
    assert why_not == "Not int8 with litert: as fast (p50 2.01 µs), but 12.3 KB and 52.1 MB resident."
    assert "it has the smallest artifact." in explanation(answer(candidate("fp32", 2000), litert))[1]
    twin = candidate("int8", 2020, runtime="tflite-runtime")
    assert "it has the shortest p50, none being smaller or lighter." in explanation(answer(litert, twin))[1]


def test_the_only_one_and_what_the_next_one_misses(answer: Answer) -> None:
    made = answer(candidate("fp32", 4000), candidate("int8", 2000, low=0.93))
    assert explanation(made)[1:] == (
        "Why: of 2 candidates it alone meets both.",
        "Not int8 with litert: success 94.0 [93.0, 95.0] %, 2.00 points short of the floor; p99 4.00 µs.",
    )
    late = candidate("int8", 5000, p99_ns=30_000_000)
    assert explanation(answer(candidate("fp32", 4000), late))[2] == (
        "Not int8 with litert: success 99.0 [98.0, 100.0] %; p99 30.0 ms, 1.50 times the deadline."
    )


def test_fewer_than_8_bits_run_as_int8_does(answer: Answer) -> None:
    assert explanation(answer(candidate("int8", 2000), candidate("int4", 1500)))[2] == (
        "Not int4 with litert: it runs as int8 does, in an int8 container, so it is neither smaller nor faster."
    )
    made = answer(candidate("int8", 2000, low=0.9), candidate("int4", 2000))
    assert explanation(made)[0].startswith("Deploy int4 with litert (in an int8 container, run as int8 is): success ")


def test_a_lower_floor_comes_with_what_may_help_instead(answer: Answer) -> None:
    sure = candidate("fp32", 4000, low=0.999)
    made = answer(sure, candidate("int8", 2000, quality=Estimate(0.94, 0.93, 0.95)))
    assert change(made)["training"].startswith("quarl train --task CartPole-v1 --method dqn ")
    assert what_would_change_it(made) == (
        "What would change it: with --success-floor 0.93, 2.11 % lower, it would be int8 with litert; to keep the "
        f"floor, train with quantizers (not measured here): {change(made)['training']}."
    )
    made = answer(sure, candidate("int8", 2000, quality=Estimate(0.97, 0.93, 0.99)))
    assert change(made)["training"] is None
    # 1.96² · 0.95 · 0.05 / 0.02² = 456.2
    assert what_would_change_it(made).endswith(
        "it would be int8 with litert; --episodes 460 may show that the floor is met as it is, for the mean is above "
        "it."
    )


def test_a_floor_that_episodes_cannot_show(answer: Answer) -> None:
    perfect: dict[str, Any] = {"quality": Estimate(1.0, 0.9963, 1.0)}
    # 1.96² · 0.997 / 0.003 = 1276.7
    assert what_would_change_it(answer(*(candidate(name, 2000, **perfect) for name in ("int8", "fp32")))) == (
        "What would change it: with --success-floor 0.997, 4.95 % higher, nothing would meet both (perhaps int8 with "
        "litert after --episodes 1300)."
    )


def test_where_no_number_is_near_the_other_runtimes_are_named(answer: Answer) -> None:
    whole: dict[str, Any] = {"quality": Estimate(1.0, 1.0, 1.0)}
    int8, fp32 = candidate("int8", 2000, **whole), candidate("fp32", 3000, **whole)
    elsewhere = candidate("fp16", 5000, runtime="onnxruntime", **whole)
    made = answer(int8, fp32, elsewhere)
    assert explanation(made)[0].startswith("Deploy int8 with litert: success 100.0 % (floor 95 %)")
    assert made.without_its_runtime is not None
    assert made.without_its_runtime["would_be"]["name"] == "fp16 with onnxruntime"
    assert what_would_change_it(made) == (
        "What would change it: no number that is near (with --deadline-ms 0.00399, 5,013 times lower, nothing would "
        "meet both); without litert (--runtime onnxruntime) it would be fp16 with onnxruntime."
    )
    assert what_would_change_it(answer(int8, fp32)).endswith("; no other runtime was measured.")


def test_nothing_reaches_the_floor(answer: Answer) -> None:
    options: dict[str, Any] = {"success": False, "options": ("--preset", "hard", "--episodes", "100")}
    made = answer(candidate("fp32", 4000, low=0.90), candidate("int8", 2000, low=0.8999), **options)
    assert made.recommended is None
    assert explanation(made) == (
        "None of 2 candidates meets both the floor and the deadline.",
        "Floor 95 %: reached by none, not by fp32 with litert either; fp32 with litert comes nearest, return kept "
        "91.0 [90.0, 92.0] %, 5.00 points short of the floor: no precision mends that, training may.",
        "Deadline 20 ms: kept by 2; the quickest is int8 with litert, p99 4.00 µs.",
    )
    assert what_would_change_it(made) == (
        "Nearest: quarl recommend II --success-floor 0.9 --deadline-ms 20 --preset hard --episodes 100 would "
        "give fp32 with litert."
    )
    # half of the interval is 0.04, 0.01 would do: 16 times the episodes
    nearly = candidate("int8", 2000, quality=Estimate(0.96, 0.92, 1.0))
    assert "; --episodes 1600 may show" in what_would_change_it(answer(nearly, **options))


@pytest.mark.parametrize("wide", ["fp32", "int8"])
def test_training_is_not_advised_where_only_an_interval_is_too_wide(wide: str, answer: Answer) -> None:
    """Else one line would say that no precision mends it, and the next that more episodes may."""
    qualities = dict.fromkeys(("fp32", "int8"), Estimate(0.91, 0.90, 0.92)) | {wide: Estimate(0.97, 0.93, 0.99)}
    made = answer(*(candidate(name, 2000, quality=quality) for name, quality in qualities.items()))
    assert explanation(made)[1] == (
        f"Floor 95 %: reached by none, not by fp32 with litert either; {wide} with litert comes nearest, success "
        "97.0 [93.0, 99.0] %, 2.00 points short of the floor."
    )
    assert "; --episodes 460 may show" in what_would_change_it(made)


def test_nothing_keeps_the_deadline(answer: Answer) -> None:
    made = answer(candidate("fp32", 4000), candidate("int8", 2000), deadline=0.0032)
    assert explanation(made)[1:] == (
        "Floor 95 %: reached by 2.",
        "Deadline 0.0032 ms: kept by none; the quickest at the floor is int8 with litert, p99 4.00 µs, 1.25 times the "
        "deadline.",
    )
    assert what_would_change_it(made) == (
        "Nearest: quarl recommend II --success-floor 0.95 --deadline-ms 0.004 would give int8 with litert."
    )


def test_each_constraint_is_met_by_another_candidate(answer: Answer) -> None:
    made = answer(candidate("fp32", 4000), candidate("int8", 2000, low=0.93), deadline=0.005)
    assert explanation(made)[1:] == (
        "Floor 95 %: reached by 1; of those in time int8 with litert comes nearest, success 94.0 [93.0, 95.0] %, 2.00 "
        "points short of the floor.",
        "Deadline 0.005 ms: kept by 1; the quickest at the floor is fp32 with litert, p99 8.00 µs, 1.60 times the "
        "deadline.",
    )


def test_shares_that_no_floor_fits(answer: Answer) -> None:
    made = answer(candidate("int8", 2000, low=-1.5))
    assert made.change is None
    assert what_would_change_it(made) == "Nearest: none; no floor above 0 is reached by anything."


def test_the_training_command_is_one(balancing: Callable[..., Bundle], tmp_path: Path) -> None:
    command = shlex.split(training_command(balancing(tmp_path / "pole")))
    assert command[:2] == ["quarl", "train"]
    read = cli.options("train", command[2:])
    assert (read.task, read.method, read.model, read.precision) == ("CartPole-v1", "dqn", "2", 8)
    assert read.quantization_method == "quantization-aware"
    assert training_command(balancing(tmp_path / "other", algorithm="distill")) == ""


def test_shares_and_distances(answer: Answer) -> None:
    sure = answer(candidate("int8", 2000, low=1.0), candidate("fp32", 3000), floor=0.9995)
    assert "(floor 99.95 %)" in explanation(sure)[0]
    assert apart(0.95, 0.931) == "2.00 % lower"
    assert apart(20.0, 21.0) == "5.00 % higher"
    assert apart(20.0, 40.0) == "2.00 times higher"
