"""bench/agreement.py: comparing what two executions made of one policy, by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bench import agreement, command_line
from bench.agreement import Comparison, Difference, compare, output_step
from bench.device_session.host_flights import flown_observations
from bench.report import store
from bench.tables.agreement import AGREEMENT, DEVICE_AGREEMENT
from convert.executor import ExecutionResult
from policy.locate import ZOO
from policy.spec import Precision

HERE = np.array([[1.0, 2.0, 3.0], [4.0, 4.5, 0.0]], np.float32)


def compared(precision: str, there: list[list[float]], tolerance: list[float] | None = [1e-4] * 3) -> Comparison:
    ours, theirs = (ExecutionResult("1", made, made.argmax(axis=1)) for made in (HERE, np.asarray(there, np.float32)))
    return compare(
        "I",
        Precision.parse(precision),
        "litert 1",
        "litert 1, pi@virtual",
        ours,
        theirs,
        None if tolerance is None else np.array([tolerance] * 2),
    )


def document(*found: Comparison, target: str | None = "pi@virtual") -> dict[str, object]:
    shared = {"machine": "this", "code": "1", "target": target, "device": {}, "episodes": 250}
    return {**shared, "comparisons": [asdict(each) for each in found]}


def test_the_step_is_the_smallest_distance_between_levels() -> None:
    assert output_step(HERE) == 0.5  # 0, 1, 2, 3, 4, 4.5
    assert abs(output_step(np.float32(0.1) * np.arange(-128, 128, dtype=np.float32)) - 0.1) < 1e-5


def test_equal_outputs_hold() -> None:
    found = compared("int8", HERE.tolist())
    assert (found.largest, found.differences, found.holds) == (0.0, (), True)


def test_one_step_of_an_integer_artifact_is_allowed_and_its_action_listed() -> None:
    found = compared("int8", [[1.0, 2.0, 3.0], [4.5, 4.0, 0.0]])
    assert found.holds  # half a unit is one step
    assert found.differences == (Difference(1, 1, 0, 0.5),)
    printed = " ".join(DEVICE_AGREEMENT.table(document(found)).notes)
    assert "I int8, observation 1: litert 1 chooses 1, litert 1, pi@virtual 0" in printed
    assert "1.00 steps apart" in printed


def test_two_steps_are_not() -> None:
    found = compared("int8", [[1.0, 2.0, 3.0], [4.0, 3.5, 0.0]])
    assert not found.holds
    assert DEVICE_AGREEMENT.table(document(found)).rows[0][-1] == "NO"


def test_a_float_artifact_is_held_to_its_tolerance() -> None:
    there = (HERE + np.float32(5e-5)).tolist()
    assert compared("fp32", there, [1e-4] * 3).holds
    assert not compared("fp32", there, [1e-4, 1e-5, 1e-4]).holds


def test_the_gap_is_the_widest_of_both_executions() -> None:
    # Here 4 and 4.5 are one step apart, there 6 and 4.5 are three.
    (only,) = compared("int8", [[1.0, 2.0, 3.0], [6.0, 4.5, 0.0]]).differences
    assert only.gap == 1.5


def test_runtimes_are_counted_and_not_held_to_anything() -> None:
    found = compared("int8", [[1.0, 2.0, 3.0], [6.0, 4.5, 0.0]], tolerance=None)
    made = AGREEMENT.table(document(found, target=None))
    assert made.rows == (("I", "int8", "litert 1, litert 1, pi@virtual", "1 of 2", "4.00 steps"),)
    assert found.holds


def test_asking_for_more_observations_than_were_seen_is_an_error() -> None:
    with pytest.raises(command_line.BenchError, match="ask for fewer"):
        flown_observations(lambda o: np.zeros(len(o), np.int64), 10_000, seed=1, episodes=2)


def test_a_stored_answer_gives_way_to_no_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("policy.locate.working_bundle.__defaults__", (tmp_path / "artifacts", ZOO))
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    typed = ["--policy", "I", "--precision", "int8", "--json", "--keep", "--observations"]
    assert agreement.main([*typed, "40"]) == command_line.EXIT_OK
    kept = tmp_path / "agreement.json"
    before = kept.read_bytes()
    assert [each["there"].split()[0] for each in json.loads(before)["comparisons"]] == ["litert", "onnxruntime"]
    capsys.readouterr()
    assert agreement.main([*typed, "20"]) == command_line.EXIT_FAILED
    printed = capsys.readouterr()
    assert "I int8" in printed.err and "20 instead of 40 observations" in printed.err
    assert kept.read_bytes() == before
