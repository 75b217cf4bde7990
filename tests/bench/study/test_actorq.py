"""The studies of quantized actors: what their tables and pictures make of measurements, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from quarl.bench.command_line import BenchError, UsageError
from quarl.bench.study import records
from quarl.bench.study.actorq import breakdown, runs, trainings
from quarl.bench.study.actorq.breakdown import PARTS
from quarl.bench.study.actorq.runs import CELLS, LEARNING, NATIVE, WIDTHS, Run, options_of, pairs, spread
from quarl.bench.study.experiment import EpisodePlan, Results, current, in_order
from quarl.bench.study.running import cells, missing
from quarl.train.runs.logs import read_curve
from tests.refusals import refused

Recorded = Callable[..., records.Record]
NO_OPTIONS = breakdown.Options()


# --- runs -------------------------------------------------------------------------------------------------------------


def test_rates_of_a_learning_curve_by_hand() -> None:
    rows = [
        {"step": 0, "updates": 0, "wall_s": 1.0},
        {"step": 900, "updates": 16, "wall_s": 9.0},  # the compiled round
        {"step": 1000, "updates": 32, "wall_s": 10.0},
        {"step": 1300, "updates": 64, "wall_s": 12.0},
        {"step": 1600, "updates": 72, "wall_s": 14.0},
        {"step": 1700, "updates": 80, "wall_s": 99.0},  # after it was judged
    ]
    made = {"settings": {"updates": 16}}
    found = Run(made, rows, 0.0, 0.0).rates
    assert found == pytest.approx({"steps_per_s": 600 / 4, "updates_per_s": 40 / 4, "seconds": 4.0})
    with pytest.raises(BenchError, match="rounds after warm-up"):
        _ = Run(made, rows[:4], 0.0, 0.0).rates


def test_a_run_that_fails_says_why() -> None:
    with refused(BenchError, "bench", shows=["--task", "--method"]):
        runs.run(["--task", "nowhere", "--method", "dqn"])


def test_a_plan_is_what_the_command_would_make() -> None:
    words = "--task cartpole --method dqn --steps 900 --n-actors 3 --quantize 16 --batch-size 32 --set updates=2"
    plan = runs.make_plan(words.split())
    assert (plan.request.task, plan.request.steps, plan.actorq.n_actors) == ("CartPole-v1", 900, 3)
    assert (plan.actorq.quantize, plan.actorq.quantize_communication) == (16, 16)
    assert (plan.settings.minibatch, plan.settings.updates) == (32, 2)


# --- an actor alone ---------------------------------------------------------------------------------------------------


@pytest.fixture
def actor(recorded: Recorded) -> Callable[..., records.Record]:
    """A round of an actor: 100 µs of steps, 10 µs of pulls, an eighth of a microsecond of load a bit."""

    def make(bits: int, inference: float, seed: int = 0) -> records.Record:
        parts = {
            **dict.fromkeys(PARTS, 0.0), "step": 100.0, "inference": inference, "pull": 10.0, "load": bits / 8.0
        }  # fmt: skip
        measures = {"microseconds": parts, "steps": 1000, "pulls": 34, "renewals": 10, "bytes_each": bits * 100}
        condition = {"period": 30} if bits == 32 else {"period": 30, "bits": bits}
        return recorded(condition, [sum(parts.values())], subject="8,8", seed=seed, build_s=0.01, **measures)

    return make


def results_of(found: Sequence[records.Record], module: Any = breakdown) -> Results:
    return Results(module.EXPERIMENT, in_order(module.EXPERIMENT, found))


def test_the_breakdown_adds_up(actor: Recorded) -> None:
    parts, _ = results_of([actor(8, 50.0), actor(16, 300.0), actor(32, 300.0)]).tables()
    assert [line[2] for line in parts.rows] == ["fp32", "fp16", "int8"]
    assert parts.rows[0][3:] == ("100", "300", "10", "0", "4", "0", "0", "414", "0.00", "10")
    assert "a machine" in " ".join(parts.notes)


def test_speed_ups_and_amdahl_by_hand(actor: Recorded) -> None:
    _, speeds = results_of([actor(32, 300.0), actor(16, 300.0), actor(8, 50.0)]).tables()
    int8 = next(line for line in speeds.rows if line[2] == "int8")
    # 414 / 161 = 2.57; 300 / 50 = 6; of a renewal (10 / 34 + 4 / 10) / (10 / 34 + 1 / 10) = 1.76
    assert int8[3].startswith("2.57×")
    assert int8[4].startswith("6.00×")
    assert int8[5].startswith("1.76×")
    # p = 300 / 414, s = 6: 1 / (1 − p + p / 6) = 2.525
    assert int8[6:] == ("2.52×", "102 %")
    # (10 + 1) / (10 + 4) of the time for parameters; fp16 loads for 2 µs
    assert "in 1 of 1 settings (79 % of fp32's time)" in speeds.notes[1] and "in 0 of 1" in speeds.notes[1]


def test_the_ratio_of_rounds_is_of_the_same_round(actor: Recorded) -> None:
    int8, fp32 = (
        [actor(bits, each, seed) for seed, each in enumerate(own)] for bits, own in ((8, (50, 100)), (32, (300, 200)))
    )
    found = breakdown.ratios(int8, fp32[::-1])["inference"]
    assert found == [6.0, 2.0]
    assert spread(found) == "4.00× [2.00, 6.00]"
    assert breakdown.ratios(int8, fp32[:1])["inference"] == [6.0], "a round that only one has"


def test_a_figure_has_a_bar_for_each_precision_and_part(actor: Recorded) -> None:
    drawn = results_of([actor(32, 300.0), actor(16, 300.0), actor(8, 50.0)]).figures()["actorq-breakdown"]
    (axes,) = drawn.axes
    assert len(axes.patches) == 3 * len(PARTS)
    assert [text.get_text() for text in axes.texts] == ["414", "412", "161", "pull every 30 steps"]
    assert axes.get_legend_handles_labels()[1] == ["environment step", *PARTS[1:-1], "Python"]


def test_a_round_of_all_settings_is_measured_before_the_next(actor: Recorded) -> None:
    requested = cells(breakdown.EXPERIMENT, NO_OPTIONS, ["8,8"])
    assert len(requested) == 3 * 8
    assert [cell.episodes.seeds for cell in requested] == [(seed,) for seed in (0, 1, 2) for _ in range(8)]
    assert requested[0].condition == {"period": 30} and requested[1].condition == {"period": 30, "bits": 16}
    left = missing(requested, [actor(32, 300.0, seed) for seed in (0, 2)])
    assert len(left) == 22 and left[7].condition == {"period": 30} and left[7].episodes.seeds == (1,)
    other = cells(breakdown.EXPERIMENT, breakdown.Options(seeds=(0,), steps=100), ["8,8"])
    assert len(missing(other, [actor(32, 300.0)])) == 8, "of other steps"


# --- trainings --------------------------------------------------------------------------------------------------------

PROVENANCE: dict[str, Any] = {
    "steps": 40_000,
    "updates": 500,
    "settings": {"updates": 16},
    "judged": [{"preset": "", "episodes": 100, "mean_return": 480.0}],
    "actorq": {
        "breakdown": {"microseconds_per_step": dict.fromkeys((*PARTS, "wait", "idle"), 1.0)},
        "learner_seconds": {"data": 1.0, "learn": 3.0},
        "parameters": {"bytes_served": 4000, "bytes_each": 400, "versions_built": 9, "versions_put": 10},
        "mismatch": {"disagreement": 0.25, "staleness_updates": 32.0},
        "staleness": {"refused": 0, "largest_updates": 64, "late_renewals": 0},
    },
}
CURVE = """step,updates,greedy_return,wall_s
48,0,,8.0
4000,16,,9.0
5000,32,120,10.0
10000,112,430,13.5
14000,176,,15.0
15000,192,410,16.0
"""
RUN = Run(PROVENANCE, read_curve(CURVE), wall_s=40.0, cpu_s=15.0)


@pytest.fixture
def training(recorded: Recorded) -> Callable[..., records.Record]:
    """A training of CartPole; measures by name take the place of :data:`RUN`'s."""

    def make(bits: int, seed: int = 0, value: float = 480.0, subject: str = "cartpole", **more: Any) -> records.Record:
        measures = {**trainings.measures_of(RUN), **more}
        found = recorded(WIDTHS[bits], [value], subject=subject, seed=seed, **measures)
        return {**found, "identity": trainings.identity(subject)}

    return make


def test_a_training_is_read_from_its_bundle(training: Recorded) -> None:
    found = trainings.measures_of(RUN)
    assert (found["versions_built"], found["versions_put"], found["bytes_served"]) == (9, 10, 4000)
    assert (found["steps_per_s"], found["updates_per_s"]) == (9000 / 5.0, 144 / 5.0)  # from 5,000 steps to 14,000
    assert found["curve"] == [[5000, 2.0, 120.0], [10000, 5.5, 430.0], [15000, 8.0, 410.0]]
    assert trainings.goal_s(CELLS["cartpole"], training(8)) == 5.5  # the first judgement at 400 or above
    assert trainings.goal_s(CELLS["big-learner"], training(8)) is None


def test_trainings_are_measured_a_seed_of_all_cells_first(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[list[str]] = []

    def run(words: list[str]) -> Any:
        typed.append(words)
        return RUN

    monkeypatch.setattr(trainings, "run", run)
    requested = cells(trainings.EXPERIMENT, NO_OPTIONS, ["cartpole", "big-learner"])
    assert [cell.episodes.seeds[0] for cell in requested] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 2 + [4] * 2
    played = list(trainings.measure("cartpole", WIDTHS[8], EpisodePlan((3,), 0)))
    assert [(each.seed, each.returns) for each in played] == [(3, [480.0])]
    assert " ".join(typed[0]) == (
        "--task cartpole --method dqn --steps 50000 --samples-per-insert 32 --evaluate-every 5000 --quantize 8 --seed 3"
    )


def test_what_was_trained_with_other_words_is_stale(training: Recorded) -> None:
    old = {**training(32), "identity": "quarl actorq --steps 7"}
    assert current(trainings.EXPERIMENT, [training(8), old]) == [training(8)]
    with refused(UsageError, "unknown_cell", shows=["'pong'"]):
        trainings.about("pong")


def test_trainings_are_compared_seed_by_seed(training: Recorded) -> None:
    rows = [
        training(8, 0, 480.0, steps_per_s=100.0),
        training(32, 0, 470.0, steps_per_s=50.0),
        training(8, 1, 490.0, steps_per_s=100.0),
        training(32, 1, 500.0, steps_per_s=100.0, curve=[[5000, 2.0, 120.0]]),  # never there
        training(8, 2, 490.0),  # nobody to compare it with
    ]
    results = results_of(rows, trainings)
    assert [one["seed"] for one, _ in pairs(results, "cartpole")] == [0, 1]
    table, _ = results.tables()
    (line,) = table.rows
    # means of 485 both; differences +10 and −10: ± 12.706 · 14.142 / √2 = 127.1, 26 % of 485
    assert line[3].startswith("485") and line[4].startswith("485")
    assert line[5] == "0.00 [−127.06, +127.06]"
    assert line[6] == "400 (2/1 of 2)"
    assert line[7] == "1.00× [1.00, 1.00]"  # of the one seed that both brought there
    assert line[8] == "1.50× [1.00, 2.00]"
    assert table.notes[0].startswith("The difference is shown not to be 0 in 0 of 1 tasks.")
    assert "cartpole 26." in table.notes[0]


def test_energy_is_cpu_seconds_at_stated_watts(training: Recorded) -> None:
    results = results_of([training(bits, cpu_s=3600.0) for bits in (8, 32)], trainings)
    (costs,) = trainings.costs_table(results)
    line = costs.rows[0]
    # an hour of a core at 7 W: 25.2 kJ, 0.007 kWh at 475 g
    assert line[7:10] == ("3,600", "25.20", "3.325")
    assert line[4] == "9 of 10"
    assert line[5] == "33 %"  # insert, wait and idle of nine equal parts


def test_amdahl_counts_an_insertions_own_work(training: Recorded) -> None:
    parts = {"step": 200.0, "inference": 600.0, "insert": 500.0, "wait": 900.0}
    one, other = training(8, breakdown={**parts, "inference": 200.0}), training(32, breakdown=parts)
    assert trainings.ideal_of(one, other, 0.0) == pytest.approx(800 / 400)
    assert trainings.ideal_of(one, other, 100.0) == pytest.approx(900 / 500)
    assert trainings.ideal_of(one, other, 9e9) == pytest.approx(1300 / 900)


def test_the_pace_of_a_run_that_waits_for_its_learner(training: Recorded) -> None:
    rows = [training(8, subject="big-learner", steps_per_s=46.0), training(32, subject="big-learner", steps_per_s=40.0)]
    (table,) = results_of(rows, trainings).tables()
    (line,) = table.rows
    assert line[:5] == ("learner-bound", "--steps 2000 --samples-per-insert 8", "int8", "46", "40")
    assert line[5] == "actors 33 %, learner 25 %"
    assert line[7:10] == ("1.15× [1.15, 1.15]", "1.00×", "115 %")


def test_the_native_engine_is_compared_with_the_same_fp32(training: Recorded) -> None:
    about = {"subject": "big-actors"}
    native = {**training(8, steps_per_s=120.0, **about), "condition": NATIVE}
    rows = [training(8, steps_per_s=80.0, **about), native, training(32, steps_per_s=40.0, **about)]
    (table,) = results_of(rows, trainings).tables()
    shown = [(line[2], line[3], line[4], line[7]) for line in table.rows]
    assert shown == [("int8", "80", "40", "2.00× [2.00, 2.00]"), ("int8, native", "120", "40", "3.00× [3.00, 3.00]")]
    assert options_of(NATIVE) == ["--quantize", "8", "--runtime", "native"]
    requested = cells(trainings.EXPERIMENT, NO_OPTIONS, ["big-actors", "big-learner"])
    assert {cell.subject for cell in requested if cell.condition == NATIVE} == {"big-actors"}


def test_curves_are_a_median_and_a_band_for_each_precision(training: Recorded) -> None:
    later = [[5000, 4.0, 100.0], [10000, 6.5, 330.0], [15000, 9.0, 500.0], [20000, 11.0, 500.0]]
    rows = [training(8, 0), training(8, 1, curve=later), training(32, 0), training(32, 1)]
    (axes,) = results_of(rows, trainings).figures()["actorq-curves"].axes
    goal, fp32, int8 = axes.lines
    assert set(np.asarray(goal.get_ydata())) == {400.0}
    assert [np.asarray(line.get_xdata()).tolist() for line in (fp32, int8)] == [[2.0, 5.5, 8.0], [3.0, 6.0, 8.5]]
    assert np.asarray(int8.get_ydata()).tolist() == [110.0, 380.0, 455.0]
    assert len(axes.collections) == 2, "bands"
    assert axes.get_legend_handles_labels()[1] == ["goal", "fp32 actors", "int8 actors"]


def test_what_is_kept_is_of_todays_commands() -> None:
    found = records.read(trainings.EXPERIMENT.path)
    assert current(trainings.EXPERIMENT, found) == found
    requested = cells(trainings.EXPERIMENT, NO_OPTIONS, trainings.EXPERIMENT.subjects)
    assert not missing(requested, found)
    assert {name for name, cell in CELLS.items() if cell.purpose == LEARNING} <= {each["subject"] for each in found}
