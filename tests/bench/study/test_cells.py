"""Judging the benchmark policies, taking them in, and the tables and the picture made of the rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from quarl import cli
from quarl.bench.command_line import BenchError
from quarl.bench.study import cells, running
from quarl.bench.study.cells import EXPERIMENT, JudgedBundle, describe_target, format_published, number, order
from quarl.bench.study.curves import Curve, average, curve_of, curves_figure, limits
from quarl.bench.study.experiment import RETURN, Results, in_order, load_stored
from quarl.bench.study.records import Record
from quarl.bench.tables import to_markdown
from quarl.policy.bundle import Bundle
from quarl.train.intervals import Estimate
from quarl.train.runs.logs import CURVE_FILE
from quarl.train.suites.cells import Cell, load_cells
from tests.refusals import refused

Balancing = Callable[..., Bundle]
Recorded = Callable[..., Record]
MEASURES = {
    "network": "64 × 64", "steps": 120_000, "training_cpu_s": 540.0, "bytes": 37_700, "executed_by": "litert 2.3.0",
    "length": 200.0,
}  # fmt: skip


@pytest.fixture
def judged(recorded: Recorded) -> Callable[..., list[Record]]:
    """A bundle's three records."""

    def make(name: str, task: str, *returns: Sequence[float], **more: Any) -> list[Record]:
        measures = {**MEASURES, "task": task, "method": name.rpartition("-")[2], **more}
        conditions: list[Mapping[str, str]] = [{}, {"precision": "fp16"}, {"precision": "int8"}]
        return [
            recorded(condition, values, name, 7, **measures)
            for condition, values in zip(conditions, returns, strict=True)
        ]

    return make


def test_the_table_from_rows(judged: Callable[..., list[Record]]) -> None:
    cheetah = judged(
        "halfcheetah-ddpg", "HalfCheetahBulletEnv-v0", [2600.0, 2624.0], [2600.5, 2624.5], [2560.0, 2600.0]
    )
    balanced = judged("cartpole-dqn", "CartPole-v1", [500.0, 500.0], [500.0, 500.0], [500.0, 490.0])
    found = Results(EXPERIMENT, in_order(EXPERIMENT, [*cheetah, *balanced]))
    full, free = found.tables()
    assert [row[:3] for row in full.rows] == [
        ("classic control", "cartpole", "dqn"),
        ("PyBullet", "halfcheetah", "ddpg"),
    ]
    shown = dict(zip(full.headers, full.rows[0], strict=True))
    assert (shown["paper's fp32"], shown["reached"], shown["fp32"]) == ("500", "yes", "500.0")
    # differences 0 and −10: s = 7.07, t of one degree of freedom 12.706: ± 12.706 · 5
    assert (shown["fp16 − fp32"], shown["int8 − fp32"]) == ("0", "−5.00 [−68.53, +58.53]")
    shown = dict(zip(full.headers, full.rows[1], strict=True))
    assert (shown["paper's int8"], shown["fp32"]) == ("2,473", "2,612 [2,460, 2,764]")
    assert (shown["fp16 − fp32"], shown["KB fp32"]) == ("+0.50", "37.7"), "every episode gained the same"
    assert (shown["environment steps"], shown["CPU-hours"]) == ("120,000", "0.15")
    assert "2,078 at 1 M (SB3 zoo)" in full.rows[1]
    text = to_markdown(full)
    assert "2 greedy episodes (seed 7)" in text
    assert "litert 2.3.0 on a machine; 2026-11-20; code v0.1" in text
    assert "Not evaluated yet: acrobot-dqn," in text
    assert "Atari" not in text
    assert "https://github.com/DLR-RM/rl-baselines3-zoo" in text
    open_cells = {row[1:3] for row in free.rows}
    assert ("breakout", "dqn") in open_cells
    assert not open_cells & {("cartpole", "dqn"), ("pong", "ppo"), ("halfcheetah", "ddpg")}


def test_equal_games_are_counted_once_and_it_is_said(judged: Callable[..., list[Record]]) -> None:
    # The first and the third begin after 4 frames: one game, whose returns are 20 in fp32 and 16 in int8.
    games = [20.0, 18.0, 20.0], [20.0, 18.0, 20.0], [16.0, 18.0, 16.0]
    found = Results(EXPERIMENT, judged("pong-ppo", "pong", *games, starts=[4, 9, 4]))
    fp32, _, int8 = found.summary
    assert fp32["episodes"] == 2 and fp32[RETURN].value == 19.0 and int8[RETURN].value == 17.0
    assert "games are counted" in to_markdown(found.tables()[0])
    assert "mean return of 3 greedy" in to_markdown(found.tables()[0])
    # a second seed has a game that is new, and one that was played
    more = [dict(each, seed=8, returns=[21.0, 20.0, 20.0], measures={**each["measures"], "starts": [1, 4, 4]})
            for each in found.found]  # fmt: skip
    assert Results(EXPERIMENT, [*found.found, *more]).collect_outcomes("returns", "pong-ppo", {}) == [20.0, 18.0, 21.0]


def test_a_cell_that_misses_says_by_how_much_and_what_was_tried(judged: Callable[..., list[Record]]) -> None:
    cell = Cell("walker2d", "ddpg", {"fp32": 1890.0}, 1890, tried="three learning rates")
    missed = JudgedBundle("walker2d-ddpg", cell, {"fp32": {RETURN: Estimate(1500.4)}})
    assert describe_target(missed) == "no, 390 short"
    assert describe_target(dataclasses.replace(missed, cell=dataclasses.replace(cell, target=None))) == "–"
    almost = JudgedBundle("pong-ppo", Cell("pong", "ppo", target=20), {"fp32": {RETURN: Estimate(19.96)}})
    assert describe_target(almost) == "no, 0.04 short"
    walked = judged("walker2d-ddpg", "Walker2DBulletEnv-v0", *[[1.0, 2.0]] * 3)
    table, _ = Results(EXPERIMENT, walked).tables()
    assert table.notes[-1].startswith("walker2d × ddpg: HalfCheetah's settings")


def test_numbers_as_people_read_them() -> None:
    assert [number(value) for value in (None, 2553, 91.5, -21)] == ["–", "2,553", "91.5", "−21"]
    ordered = sorted([Cell("pong", "ppo"), Cell("cartpole", "a2c"), Cell("cartpole", "dqn")], key=order)
    assert [cell.bundle_name for cell in ordered] == ["cartpole-dqn", "cartpole-a2c", "pong-ppo"]


def test_published_figures_are_taken_at_the_nearest_step_count() -> None:
    curve = {"name": "X", "what": "", "source": "", "points": [[500_000, -19.1], [1_000_000, -16.6], [4_000_000, 2.6]]}
    cell = Cell("pong", "dqn", published=(curve,))
    assert format_published(cell, 400_000) == "−19.1 at 0.5 M (X)"
    assert format_published(cell) == "2.6 at 4 M (X)"
    assert format_published(Cell("pong", "dqn"), 1) == "–"


def test_every_cell_of_the_data_file_is_whole() -> None:
    found = load_cells()
    assert len({cell.bundle_name for cell in found}) == len(found) == 44
    for cell in found:
        assert cell.paper is None or cell.paper.keys() == {"fp32", "fp16", "int8"}
        for curve in cell.published:
            assert curve.keys() == {"name", "what", "source", "points"}
            assert curve["source"].startswith("https://")
            assert all(steps > 0 for steps, _ in curve["points"])


def test_a_bundle_is_judged_at_every_precision_and_only_once(
    tmp_path: Path, balancing: Balancing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = balancing(tmp_path / "cartpole-dqn")
    kept = tmp_path / "kept"
    words = [str(bundle.path), "--episodes", "4", "--jobs", "1", "--keep", "--results", str(kept)]
    assert cells.main([*words, "--json"]) == cli.EXIT_OK
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["precision"] for row in rows] == [None, "fp16", "int8"]
    fp32, fp16, int8 = rows
    assert (fp32["task"], fp32["method"], fp32["steps"], fp32["network"]) == ("CartPole-v1", "dqn", 1000, "2")
    assert fp32["return"]["value"] > 300 and fp32["executed_by"].startswith("litert ")
    assert fp16["bytes"] > 1000 and int8["episodes"] == 4
    assert [path for path in bundle.path.iterdir() if path.suffix == ".tflite"] == [], "a copy is converted"
    monkeypatch.setattr(running, "measure_cell", lambda *_: pytest.fail("it was judged again"))
    assert cells.main(words) == cli.EXIT_OK
    monkeypatch.setattr(running, "measure_cell", lambda module, cell: [])
    assert cells.main([*words, "--runtime", "onnxruntime"]) == cli.EXIT_OK
    (record, *_) = load_stored(dataclasses.replace(EXPERIMENT, folder=kept)).found
    assert record["identity"] == bundle.manifest.files["weights.safetensors"].sha256


def test_a_runtime_is_compared_with_its_own_fp32() -> None:
    arguments = cells.Options(runtime="onnxruntime")
    conditions = EXPERIMENT.grid(arguments, "cartpole-dqn")
    assert conditions[0] == {"runtime": "onnxruntime"}
    assert [EXPERIMENT.reference(condition) for condition in conditions] == [conditions[0]] * 3


def test_a_new_bundle_replaces_its_cell_if_no_worse(
    tmp_path: Path, balancing: Balancing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = tmp_path / "zoo"
    monkeypatch.setattr(cells, "BENCHMARK", zoo)
    fresh = balancing(tmp_path / "trial-17")
    assert cells.main(["--take", str(fresh.path), "--episodes", "3"]) == cli.EXIT_OK
    assert "next: quarl study cells cartpole-dqn --keep" in capsys.readouterr().err
    placed = Bundle.load(zoo / "cartpole-dqn")
    assert placed.spec.name == "cartpole-dqn"
    row = placed.spec.provenance["judged"][0]
    assert (row["episodes"], row["seed"], row["preset"]) == (3, 7, "")
    assert row["mean_return"] == 500.0 and "return_interval_t_95" not in row, "equal episodes have none"
    for name, value in fresh.weights().items():
        np.testing.assert_array_equal(placed.weights()[name], value)
    np.testing.assert_array_equal(placed.golden().outputs, fresh.golden().outputs)
    assert cells.take(fresh.path, zoo, 3, force=False) == "cartpole-dqn"  # the same again is no worse

    assert cells.take(zoo / "cartpole-dqn", zoo, 5, force=False) == "cartpole-dqn"  # itself: evaluated again
    assert Bundle.load(zoo / "cartpole-dqn").spec.provenance["judged"][0]["episodes"] == 5

    worse = balancing(tmp_path / "trial-18", sign=-1.0)
    before = (zoo / "cartpole-dqn" / "manifest.json").read_bytes()
    with refused(BenchError, "worse_than_committed"):
        cells.take(worse.path, zoo, 3, force=False)
    assert (zoo / "cartpole-dqn" / "manifest.json").read_bytes() == before
    assert cells.take(worse.path, zoo, 3, force=True) == "cartpole-dqn"
    assert Bundle.load(zoo / "cartpole-dqn").spec.provenance["judged"][0]["mean_return"] < 20


def test_what_does_not_say_where_it_comes_from_is_not_taken_in(tmp_path: Path, balancing: Balancing) -> None:
    bundle = balancing(tmp_path / "x")
    nameless = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, provenance={"task": "CartPole-v1"}))
    with pytest.raises(BenchError, match="lacks algorithm, seed, steps, cpu_s"):
        cells.cell_name(nameless)
    other = balancing(tmp_path / "y", task="Acrobot-v1")
    with pytest.raises(BenchError, match="another observation"):
        cells.take(other.path, tmp_path / "zoo", 2, force=False)


def curve(task: str, method: str, paper: float | None) -> Curve:
    steps = [float(step) for step in range(0, 1_000_000, 1000)]
    returns = [step / 10_000 for step in steps]
    cell = Cell(task, method, None if paper is None else {"fp32": paper})
    return Curve(cell, (steps, returns), (steps[::100], returns[::100]), 1_000_000, Estimate(95.0, 94.0, 96.0))


def test_the_curves_picture_cuts_nothing_off_and_names_every_panel(texts: Callable[[Figure], list[str]]) -> None:
    curves = [curve("cartpole", "dqn", 500.0), curve("dm_control,walker_stand", "d4pg", None), curve("pong", "ppo", 20)]
    labels = texts(curves_figure([*curves, *curves]))
    assert {"cartpole · DQN", "walker_stand · D4PG", "pong · PPO", "500", "20", "the paper's (fp32)"} <= set(labels)
    low, high = limits(curves[0], 500.0)
    assert low < 2.0  # the first training points may leave the panel, not the greedy ones
    assert high > 500
    assert average(([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 5.0, 7.0]), 2) == ([0.5, 2.5], [2.0, 6.0])


def test_a_curve_is_read_from_its_bundle(tmp_path: Path, balancing: Balancing) -> None:
    made = balancing(tmp_path / "cartpole-dqn")
    cell = Cell("CartPole-v1", "dqn")
    assert curve_of(made.path, cell) is None
    (made.path / CURVE_FILE).write_bytes(b"step,episodes,return,greedy_return\n10,1,5,\n20,1,7,9\n")
    found = curve_of(made.path, cell)
    assert found is not None and found.training == ([10.0, 20.0], [5.0, 7.0]) and found.greedy == ([20.0], [9.0])


def test_every_committed_policy_is_kept() -> None:
    subjects = {record["subject"] for record in load_stored(EXPERIMENT).found}
    assert subjects == set(cells.bundle_names()), "type: quarl study cells --keep"
