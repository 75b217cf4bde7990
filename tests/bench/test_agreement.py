"""bench/agreement.py: what counts as a disagreement, and how it is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import agreement, command_line
from convert.executor import Execution
from policy.locate import ZOO
from policy.spec import RuntimeName


def executions(*outputs: list[list[float]]) -> dict[RuntimeName, Execution]:
    made = {}
    for name, rows in zip(RuntimeName, outputs, strict=True):
        array = np.array(rows, np.float32)
        made[name] = Execution("1", array, array.argmax(axis=1))
    return made


def test_a_disagreement_has_the_gap_between_the_chosen_outputs_in_steps() -> None:
    # Observation 0: all choose 1. Observation 1: 0, 1, 1, whose outputs are at most 0.5 apart, two steps of 0.25.
    found = agreement.disagreements(
        executions([[0, 1], [1.0, 0.75]], [[0, 1], [1.0, 1.5]], [[0, 2], [1.25, 1.5]]), step=0.25
    )
    (only,) = found
    assert only.observation == 1
    assert list(only.actions.values()) == [0, 1, 1]
    assert (only.gap, only.gap_steps) == pytest.approx((0.5, 2.0))
    assert "observation 1: tflite-runtime 0, litert 1, onnxruntime 1" in only.sentence()
    assert "2.00 steps" in only.sentence()


def test_the_table_counts_and_lists_them() -> None:
    answer = {
        "policy": "I",
        "precision": "int8",
        "observations": 1000,
        "actions_chosen": 9,
        "runtimes": {"tflite-runtime": "2.14.0", "litert": "2.3.0", "onnxruntime": "1.31.1"},
        "disagreements": [{"observation": 4, "actions": {"litert": 1}, "gap": 0.1, "gap_steps": 1.0}],
    }
    made = agreement.table({"machine": "this machine", "answers": [answer]})
    assert made.rows == (("I", "int8", "999 of 1,000", "1.00 steps"),)
    assert "tflite-runtime 2.14.0" in made.title
    assert any("observation 4" in note for note in made.notes)


def test_asking_for_more_observations_than_were_seen_is_an_error() -> None:
    with pytest.raises(agreement.command_line.BenchError, match="ask for fewer"):
        agreement.flown_observations(lambda o: np.zeros(len(o), np.int64), 10_000, seed=1, episodes=2)


def test_a_stored_answer_gives_way_to_no_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"policy": name, "precision": "int8", "observations": 5000} for name in ("I", "II")]
    kept = tmp_path / "agreement.json"
    kept.write_text(json.dumps({"machine": "m", "answers": asked}))
    before = kept.read_bytes()
    monkeypatch.setattr(agreement, "kept_file", lambda: kept)
    monkeypatch.setattr("policy.locate.working_bundle.__defaults__", (tmp_path / "artifacts", ZOO))
    typed = ["--policy", "I", "--precision", "int8", "--observations", "20", "--json", "--keep"]
    assert agreement.main(typed) == command_line.EXIT_FAILED
    said = capsys.readouterr()
    assert "I int8" in said.err and "20 instead of 5,000 observations" in said.err
    assert kept.read_bytes() == before
