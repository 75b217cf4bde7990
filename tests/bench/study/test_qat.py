"""Learning with quantizers against quantizing afterwards: what is trained, what is chosen on which seeds, the table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from quarl import cli
from quarl.bench.study import records, running, trainings
from quarl.bench.study.experiment import Results, in_order
from quarl.bench.study.learning import qat
from quarl.policy.bundle import Bundle
from quarl.train.intervals import Estimate
from quarl.train.runs.request import RunRequest

Recorded = Callable[..., records.Record]


def measured(
    recorded: Recorded, cells: Sequence[tuple[str, Mapping[str, Any], Sequence[float]]], **more: Any
) -> Results:
    """Cells whose trainings have these mean returns, of two episodes each."""
    found = []
    for subject, condition, means in cells:
        for seed, mean in zip(qat.SEEDS, means, strict=True):
            is_learned = condition.get("quantized") == qat.LEARNED
            measures = {"quant_delay": 0.5, "tried": {}, **more} if is_learned else {}
            found.append(recorded(condition, [mean - 1.0, mean + 1.0], subject, seed, **measures))
    return Results(qat.EXPERIMENT, in_order(qat.EXPERIMENT, found))


@pytest.fixture
def two_widths(recorded: Recorded) -> Results:
    """At 4 bits QAT wins; at 8 both are float's equal."""
    name = "cartpole-dqn"
    cells: list[tuple[str, Mapping[str, Any], Sequence[float]]] = [(name, {}, (500.0,) * 3)]
    cells += [(name, qat.condition_of(way, 8), (500.0,) * 3) for way in qat.WAYS]
    cells += [(name, qat.condition_of(qat.AFTERWARDS, 4), (398.0, 400.0, 402.0))]
    cells += [(name, qat.condition_of(qat.LEARNED, 4), (498.0, 499.0, 500.0))]
    return measured(recorded, cells, quant_delay=0.2, tried={"0.5": 499.0, "0.2": 500.0})


def test_the_table_by_hand(two_widths: Results, texts: Callable[[Figure], list[str]]) -> None:
    (table,) = two_widths.tables()
    assert table.headers[-1] == "QAT − PTQ, %", "no column of dashes"
    assert table.rows[0][1:] == ("8", "500.0", "500.0", "500.0", "0", "0", "0.00")
    # trainings, not episodes: s = 2 and 1, t of 2 degrees of freedom 4.3027, / √3; gains 100, 99, 98 of 500
    assert table.rows[1][1:5] == ("4", "500.0", "400.0 [395.0, 405.0]", "499.0 [496.5, 501.5]")
    assert table.rows[1][5:] == ("20.0 [19.0, 21.0]", "0.20 [−0.30, 0.70]", "+19.8 [+19.3, +20.3]")
    notes = " ".join(table.notes)
    assert table.rows[0][0] == "cartpole-dqn, n=3 × 2" and "trainings of the seeds 20, 21, 22, and episodes" in notes
    assert "QAT is equal at 8 bits, better than PTQ at 4 bits; its error is within 2 % at 8, 4 bits." in notes
    assert "learns in floats first: cartpole-dqn 0.2." in notes
    chosen = "chosen by the mean return at 4 bits (0.5: 499.0, 0.2: 500.0) on the seeds 10, 11, 12, 13, none of which"
    assert chosen in notes
    assert "Not measured: cartpole-ppo, cartpole-a2c, mountaincarcontinuous-ddpg, I and II." in notes
    assert "QAT at 8, 7, 6, 5, 4, 3, 2 bits and PTQ at 8, in an int8 container" in notes
    found = texts(two_widths.figures()["qat"])
    assert {"cartpole-dqn  n=3", "4", "8", *qat.WAYS.values()} <= set(found)


def test_a_cell_that_is_not_measured_wholly_is_left_out(two_widths: Results) -> None:
    fewer = [record for record in two_widths.found if record["condition"] != qat.condition_of(qat.LEARNED, 8)]
    (table,) = Results(qat.EXPERIMENT, fewer).tables()
    assert table.rows == () and Results(qat.EXPERIMENT, fewer).figures() == {}
    assert any("Not measured: cartpole-ppo, cartpole-a2c, cartpole-dqn," in note for note in table.notes)


def test_success_is_shown_where_a_task_has_it(recorded: Recorded) -> None:
    conditions: tuple[Mapping[str, Any], ...] = ({}, *(qat.condition_of(way, 4) for way in qat.WAYS))
    found = []
    for condition, wins in zip(conditions, ([1, 1], [0, 1], [1, 1]), strict=True):
        record = recorded(condition, [1.0, 2.0], "I", successes=wins, quant_delay=0.5, tried={})
        found += [record | {"preset": preset} for preset in ("hard", "shipped")]
    (table,) = Results(qat.EXPERIMENT, found).tables()
    assert [row[0] for row in table.rows if row] == ["I, hard, n=1 × 2", "I, shipped, n=1 × 2"]
    assert table.rows[0][-1] == "100.0 / 50.0 / 100.0"


def test_words_for_intervals() -> None:
    assert qat.gain_words(Estimate(1.0, -0.5, 2.5)) == qat.gain_words(Estimate(9.0)) == "inside the noise"
    assert qat.gain_words(Estimate(2.0, 0.5, 3.5)) == "better than PTQ"
    assert qat.gain_words(Estimate(-2.0, -3.5, -0.5)) == "worse"
    assert qat.error_words(Estimate(1.5, 0.5, 2.5)) == "undecided" and qat.error_words(None) == "not defined"
    assert qat.error_words(Estimate(9.0, 8.0, 10.0)) == "above 2 %"


def test_seeds_that_choose_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(qat.CHOOSING_SEEDS) & set(qat.SEEDS)
    words = ["cartpole-dqn", "--seeds", "9,10", "--jobs", "1"]
    assert qat.main(words) == cli.EXIT_USAGE
    assert "seed 10" in capsys.readouterr().err


def test_the_share_in_floats_is_chosen_on_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def earned(subject: str, seed: int, delay: float) -> float:
        calls.append((seed, delay))
        return {0.5: 496.0, 0.2: 500.0 if subject == "cartpole-dqn" else 496.0}[delay]

    monkeypatch.setattr(qat, "evaluate_delay", earned)
    monkeypatch.setattr(qat, "choose_delay", qat.choose_delay.__wrapped__)
    assert qat.choose_delay("cartpole-ppo") == (0.5, {}) and calls == [], "there is nothing to choose"
    assert qat.choose_delay("cartpole-dqn") == (0.2, {"0.5": 496.0, "0.2": 500.0})
    assert {seed for seed, _ in calls} == set(qat.CHOOSING_SEEDS)
    monkeypatch.setitem(qat.DELAYS, "cartpole-a2c", (0.5, 0.2))
    assert qat.choose_delay("cartpole-a2c")[0] == 0.5, "of equal ones QuaRL's"


@pytest.mark.slow
def test_a_small_study_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = dataclasses.replace(qat.CELLS["cartpole-ppo"], steps=2048)
    monkeypatch.setitem(qat.CELLS, "cartpole-ppo", small)
    monkeypatch.setattr(trainings, "TRAINED", tmp_path / "trained")
    monkeypatch.setattr(records, "FOLDER", tmp_path / "study")
    monkeypatch.setattr(running, "refuse_dirty", lambda: None)
    words = ["cartpole-ppo", "--bits", "3", "--seeds", "5", "--episodes", "3", "--jobs", "1", "--keep", "--json"]
    assert qat.main(words) == cli.EXIT_OK
    rows = {row["quantized"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    learned = rows[qat.LEARNED]
    assert learned["quantized_updates"] > 0 and learned["settings"]["quantization_bits"] == 3
    assert rows[None]["settings"]["quantization_bits"] == 32 and rows[None]["steps"] == learned["steps"]
    assert rows[qat.AFTERWARDS]["training"] == rows[None]["training"] != learned["training"]
    (made,) = (tmp_path / "trained").glob(f"*/{learned['training']}")
    bundle = Bundle.load(made)
    assert bundle.spec.quantization is not None and bundle.spec.quantization.bits == 3
    monkeypatch.setattr(trainings, "run_child", lambda *_: pytest.fail("it trained again"))
    (tmp_path / "study" / "qat.jsonl").unlink()
    assert qat.main(words) == cli.EXIT_OK, "both bundles are there"
    again = {row["quantized"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {way: row["return"] for way, row in again.items()} == {way: row["return"] for way, row in rows.items()}


def requested(subject: str, *words: str) -> RunRequest:
    cell = qat.CELLS[subject]
    typed = ["--task", cell.task, "--method", cell.method, "--steps", str(cell.steps or 4096), *words]
    return trainings.make_request([*typed, *(["--policy", cell.policy] if cell.policy else [])])


def test_trainings_of_a_cell_share_their_settings() -> None:
    words = ("--quantization-method", "quantization-aware", "--precision")
    in_floats, eight, three = (
        trainings.settings_of(requested("II", *more)) for more in ((), (*words, "8"), (*words, "3"))
    )
    assert (in_floats["steps"], in_floats["learning_rate"]) == (2_000_000, 0.0005)
    assert {**eight, "quantization_bits": 3} == three and {**eight, "quantization_bits": 32} == in_floats
