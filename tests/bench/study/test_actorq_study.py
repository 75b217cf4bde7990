"""The study of quantized actors: what its tables make of measurements, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.study.actorq import curves as actorq_curves
from bench.study.actorq import store as actorq_store
from bench.study.actorq import table as actorq_table
from bench.study.actorq import training as actorq_training
from bench.study.actorq.command import main
from bench.study.actorq.energy import CORE_WATTS, GRAMS_PER_KWH, EnergyMeter, of_joules
from bench.study.actorq.figure import figure_of
from bench.study.actorq.measuring import PARTS, Breakdown, Setting
from bench.study.actorq.store import Measured
from bench.study.actorq.training import ACTOR_BOUND, CELLS, Cell, Training, as_typed_now, training_of
from bench.study.older import rounded

TASK = "dm_control,cartpole_balance"


def row(bits: int, inference: float, step: float = 100.0, repetition: int = 0, renewals: int = 10) -> Breakdown:
    parts = dict.fromkeys(PARTS, 0.0) | {"step": step, "inference": inference, "pull": 10.0, "load": bits / 8.0}
    return Breakdown(Setting(TASK, "8,8", bits, 30), 1000, 34, renewals, parts, bits * 100, 0.01, repetition)


MEASURED = Measured((row(32, 300.0), row(16, 300.0), row(8, 50.0)), "a machine", "abc")


def test_the_breakdown_adds_up() -> None:
    table = actorq_table.breakdown_table(MEASURED)
    assert [line[2] for line in table.rows] == ["fp32", "fp16", "int8"]
    fp32 = table.rows[0]
    assert fp32[3:] == ("100", "300", "10", "0", "4", "0", "0", "414", "0.00", "10")
    assert "a machine" in " ".join(table.notes)


def test_speed_ups_and_amdahl_by_hand() -> None:
    table = actorq_table.actor_speed_table(MEASURED)
    int8 = next(line for line in table.rows if line[2] == "int8")
    # 414 / 161 = 2.57; 300 / 50 = 6; of a renewal (10 / 34 + 4 / 10) / (10 / 34 + 1 / 10) = 1.76
    assert int8[3].startswith("2.57×")
    assert int8[4].startswith("6.00×")
    assert int8[5].startswith("1.76×")
    # p = 300 / 414, s = 6: 1 / (1 − p + p / 6) = 2.525
    assert int8[6] == "2.52×"
    assert int8[7] == "102 %"


def test_the_ratio_of_rounds_is_of_the_same_round() -> None:
    rows = (row(32, 300.0), row(8, 50.0), row(32, 200.0, repetition=1), row(8, 100.0, repetition=1))
    setting = Setting(TASK, "8,8", 8, 30)
    found = actorq_table.ratios(rows, setting, lambda each: each.microseconds["inference"])
    assert found == [6.0, 2.0]
    assert actorq_table.spread(found) == "4.00× [2.00, 6.00]"


def test_a_figure_has_a_bar_for_each_precision_and_part() -> None:
    figure = figure_of(MEASURED)
    (axes,) = figure.axes
    assert len(axes.patches) == 3 * len(PARTS)
    tops = [text.get_text() for text in axes.texts]
    assert tops[:3] == ["414", "412", "161"]


def provenance(**more: Any) -> dict[str, Any]:
    told = {
        "breakdown": {"microseconds_per_step": dict.fromkeys((*PARTS, "wait", "idle"), 1.0)},
        "learner_seconds": {"data": 1.0, "learn": 3.0},
        "parameters": {"bytes_served": 4000, "bytes_each": 400, "versions_built": 9, "versions_put": 10},
        "mismatch": {"disagreement": 0.25, "staleness_updates": 32.0},
        "staleness": {"refused": 0, "largest_updates": 64, "late_renewals": 0},
        "cpu_s": {"actors": 10.0},
    }
    judged = [{"preset": "", "episodes": 100, "mean_return": 480.0, "return_interval_95": [470.0, 490.0]}]
    settings = {"updates": 16}
    return {
        "steps": 40_000,
        "updates": 500,
        "judged": judged,
        "actorq": told,
        "cpu_s": 5.0,
        "settings": settings,
        **more,
    }


CURVE = """step,updates,greedy_return,wall_s
48,0,,8.0
4000,16,,9.0
5000,32,120,10.0
10000,112,430,13.5
14000,176,,15.0
15000,192,410,16.0
"""


def training(bits: int = 8, seed: int = 0, value: float = 480.0, **more: Any) -> Training:
    cell = next(cell for cell in CELLS if cell.name == "cartpole")
    made = training_of(cell, bits, seed, provenance(), CURVE, 40.0, 15.0, of_joules(105.0, "cpu-seconds"), "a machine")
    return replace(made, mean_return=value, **more)


def test_a_training_is_read_from_its_bundle() -> None:
    found = training()
    assert found.goal_s == 5.5  # the first judgement at 400 or above, since the first report
    assert (found.versions, found.bytes_sent) == ((9, 10), 4000)
    assert (found.steps_per_s, found.updates_per_s) == (9000 / 5.0, 144 / 5.0)  # from 5,000 steps to 14,000
    assert found.curve == [(5000, 2.0, 120.0), (10000, 5.5, 430.0), (15000, 8.0, 410.0)]
    assert "--quantize 8" in found.command


def test_what_was_kept_of_other_words_is_in_no_table_and_the_goal_is_todays() -> None:
    old = replace(training(32), command="python -m train.actorq --steps 7")
    unknown = replace(training(8, 3), cell="of yesterday")
    (kept,) = as_typed_now([replace(training(8), goal_s=99.0), old, unknown])
    assert (kept.key, kept.goal_s) == (("cartpole", 8, 0), 5.5)


def test_amdahl_counts_an_insertions_own_work() -> None:
    cell = next(cell for cell in CELLS if cell.purpose == ACTOR_BOUND)
    parts = {"step": 200.0, "inference": 600.0, "insert": 500.0, "wait": 900.0}
    one = replace(training(8), breakdown={**parts, "inference": 200.0})
    other = replace(training(32), breakdown=parts)
    assert actorq_table.ideal_of(cell, [(one, other)]) == pytest.approx(800 / 400)
    assert actorq_table.ideal_of(cell, [(one, other)], 100.0) == pytest.approx(900 / 500)
    assert actorq_table.ideal_of(cell, [(one, other)], 9e9) == pytest.approx(1300 / 900)
    cell = replace(cell, task=TASK, more=("--model", "8,8"))
    rows = [row(bits, 300.0) for bits in (32, 8)]
    alone = Measured(tuple(replace(each, microseconds={**each.microseconds, "insert": 90.0}) for each in rows), "", "")
    assert actorq_table.insertion_of(alone, cell) == 90.0
    assert actorq_table.insertion_of(alone, replace(cell, more=())) == 0.0
    assert actorq_table.insertion_of(None, cell) == 0.0


def test_trainings_are_compared_seed_by_seed() -> None:
    rows = [
        training(8, 0, 480.0, steps_per_s=100.0),
        training(32, 0, 470.0, steps_per_s=50.0),
        training(8, 1, 490.0, steps_per_s=100.0),
        training(32, 1, 500.0, steps_per_s=100.0, goal_s=None),
        training(8, 2, 490.0),  # nobody to compare it with
    ]
    (line,) = actorq_table.returns_table(rows).rows
    assert line[3].startswith("485")
    assert line[4].startswith("485")
    assert line[5].startswith("0") or line[5].startswith("+0")
    assert line[6] == "400 (2/1 of 2)"
    assert line[7] == "1.00× [1.00, 1.00]"  # of the one seed that both brought there
    assert line[8] == "1.50× [1.00, 2.00]"


def test_curves_are_drawn_seed_by_seed_with_the_goal() -> None:
    figure = actorq_curves.figure_of([training(8, 0), training(8, 1), training(32, 0)])
    (axes,) = figure.axes
    goal, *lines = axes.lines
    assert set(goal.get_ydata()) == {400.0}
    assert len(lines) == 3
    assert lines[0].get_xdata().tolist() == [2.0, 5.5, 8.0]
    assert lines[0].get_ydata().tolist() == [120.0, 430.0, 410.0]
    assert axes.get_legend_handles_labels()[1] == ["int8 actors", "fp32 actors"]


def test_what_was_trained_with_other_words_is_not_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actorq_store, "TRAININGS", tmp_path / "trainings.json")
    actorq_store.write_trainings([training(8), replace(training(32), command="python -m train.actorq --steps 7")])
    asked: list[tuple[str, int, int]] = []

    def recorded(cell: Cell, bits: int, seed: int, scratch: Path) -> Training:
        asked.append((cell.name, bits, seed))
        return training(bits, seed)

    monkeypatch.setattr(actorq_training, "train", recorded)
    assert main(["--only", "trainings", "--cells", "cartpole", "--seeds", "0", "--only-missing"]) == 0
    assert asked == [("cartpole", 32, 0)]


def test_what_is_kept_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actorq_store, "BREAKDOWN", tmp_path / "breakdown.json")
    monkeypatch.setattr(actorq_store, "TRAININGS", tmp_path / "trainings.json")
    actorq_store.write_breakdown(MEASURED)
    actorq_store.write_trainings([training(32), training(8)])
    assert actorq_store.read_breakdown() == MEASURED
    assert [each.key for each in actorq_store.read_trainings()] == [("cartpole", 8, 0), ("cartpole", 32, 0)]
    kept = training(8)
    assert actorq_store.read_trainings()[0] == replace(kept, energy=rounded(kept.energy))  # six digits


def test_nothing_kept_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(actorq_store, "BREAKDOWN", tmp_path / "breakdown.json")
    monkeypatch.setattr(actorq_store, "TRAININGS", tmp_path / "trainings.json")
    assert main(["--stored"]) == 1
    assert "python -m bench.study actorq --keep" in capsys.readouterr().err
    assert main(["--only", "trainings", "--cells", "pong"]) == 2
    assert "cartpole_balance" in capsys.readouterr().err


def test_energy_from_the_processors_counters(tmp_path: Path) -> None:
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "energy_uj").write_text("1000000")
    (package / "max_energy_range_uj").write_text("9000000")
    meter = EnergyMeter(tmp_path)
    (package / "energy_uj").write_text("4000000")
    assert meter.read(100.0) == of_joules(3.0, "rapl")
    (package / "energy_uj").write_text("500000")  # it began anew after 9 J: 8 and a half
    assert meter.read(100.0).joules == pytest.approx(8.5)


def test_energy_from_cpu_seconds_where_no_counter_can_be_read(tmp_path: Path) -> None:
    found = EnergyMeter(tmp_path).read(3600.0)
    assert found.source == "cpu-seconds"
    assert found.joules == 3600.0 * CORE_WATTS
    assert found.grams_co2 == pytest.approx(CORE_WATTS / 1000 * GRAMS_PER_KWH)
