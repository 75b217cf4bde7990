"""Judging the benchmark policies, taking them in, and the tables and the picture made of the answers."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from bench.command_line import BenchError
from bench.report.tables import filled, pages, to_markdown
from bench.study.cells import command as cells
from bench.study.cells.command import Answer, Played, is_current, judge, keep, read_answers, weights_hash
from bench.study.cells.curves import Curve, averaged, curves_figure, limits, read_curves
from bench.study.cells.place import place
from bench.study.cells.table import amount, change, hours, measured_notes, number, published, reached, score, tables
from policy.bundle import Bundle
from policy.errors import SpecError
from policy.spec import RuntimeName
from train.runs.logs import CURVE_FILE
from train.suites.cells import Cell, load_cells

Balancing = Callable[..., Bundle]


def played(mean: float, low: float, high: float, size: int, *returns: float) -> Played:
    return Played(mean, (low, high), 200.0, size, returns)


def answer(name: str, task: str, method: str, **changes: object) -> Answer:
    made = Answer(
        name=name,
        task=task,
        method=method,
        weights_sha256="ab",
        network="64 × 64",
        training_seed=0,
        steps=120_000,
        cpu_s=540.0,
        episodes=100,
        seed=7,
        runtime="litert 2.3.0",
        machine="a machine",
        code="1234567",
        date="2026-11-20",
        artifacts=("fp16.onnx", "fp16.tflite"),
        played={
            "fp32": played(2612.04, 2600.0, 2624.08, 37_700, 2600.0, 2624.08),
            "fp16": played(2612.5, 2600.5, 2624.5, 20_100, 2600.5, 2624.5),
            "int8": played(2580.0, 2560.0, 2600.0, 17_300, 2560.0, 2600.0),
        },
        differences={"fp16": (0.46, 0.2, 0.72), "int8": (-32.04, -80.0, 15.92)},
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


CARTPOLE = {
    "played": {
        "fp32": played(500.0, 500.0, 500.0, 37_700),
        "fp16": played(500.0, 500.0, 500.0, 20_100),
        "int8": played(497.5, 492.6, 502.4, 17_300),
    },
    "differences": {"fp16": (0.0, 0.0, 0.0), "int8": (-2.5, -7.4, 2.4)},
}


def test_the_table_from_kept_answers() -> None:
    answers = {
        "halfcheetah-ddpg": answer("halfcheetah-ddpg", "HalfCheetahBulletEnv-v0", "ddpg"),
        "cartpole-dqn": answer("cartpole-dqn", "CartPole-v1", "dqn", **CARTPOLE),
        "walker2d-ddpg": answer("walker2d-ddpg", "Walker2DBulletEnv-v0", "ddpg"),  # whose bundle is gone
    }
    full, free = tables(answers, ["halfcheetah-ddpg", "cartpole-dqn", "pong-ppo"])
    assert [row[1:3] for row in full.rows] == [("cartpole", "dqn"), ("halfcheetah", "ddpg")]
    shown = dict(zip(full.headers, full.rows[0], strict=True))
    assert (shown["paper's fp32"], shown["reached"]) == ("500", "yes")
    assert (shown["int8"], shown["int8 − fp32"]) == ("497.5 [492.6, 502.4]", "−2.5 [−7.4, +2.4]")
    shown = dict(zip(full.headers, full.rows[1], strict=True))
    assert (shown["paper's int8"], shown["fp32"], shown["int8 − fp32"]) == (
        "2,473", "2,612 [2,600, 2,624]", "−32 [−80, +16]",
    )  # fmt: skip
    assert (shown["environment steps"], shown["CPU-hours"]) == ("120,000", "0.15")
    text = to_markdown(full)
    assert "100 greedy episodes (seed 7)" in text
    assert "litert 2.3.0 on a machine; 2026-11-20; code 1234567" in text
    assert "Not judged yet: pong-ppo" in text
    suites = [row[0] for row in full.rows]
    assert suites == ["classic control", "PyBullet"]
    assert "2,078 at 1 M (SB3 zoo)" in full.rows[1]
    assert "https://github.com/DLR-RM/rl-baselines3-zoo" in to_markdown(full)
    open_cells = {row[1:3] for row in free.rows}
    assert ("breakout", "dqn") in open_cells
    assert not open_cells & {("cartpole", "dqn"), ("pong", "ppo"), ("halfcheetah", "ddpg")}
    assert ("walker2d", "ddpg") in open_cells


def test_a_cell_that_misses_says_by_how_much_and_what_was_tried() -> None:
    cell = Cell("walker2d", "ddpg", {"fp32": 1890.0}, 1890, tried="three learning rates")
    missed = answer("walker2d-ddpg", "walker2d", "ddpg", played={"fp32": played(1500.4, 1400.0, 1600.0, 1)})
    assert reached(cell, missed) == "no, 390 short"
    assert reached(dataclasses.replace(cell, target=None), missed) == "–"
    almost = {"fp32": played(19.96, 19.9, 20.02, 1)}
    assert reached(Cell("pong", "ppo", target=20), answer("a", "pong", "ppo", played=almost)) == "no, 0.04 short"
    from bench.study.cells.table import cell_notes

    assert cell_notes([(cell, missed)]) == ["walker2d × ddpg: three learning rates"]


def test_numbers_as_people_read_them() -> None:
    assert [number(value) for value in (None, 2553, 91.5, -21)] == ["–", "2,553", "91.5", "−21"]
    assert [amount(-0.04, 1), amount(-0.04, 1, "+"), amount(0.06, 1, "+"), amount(-1234.6, 0)] == [
        "0.0", "0.0", "+0.1", "−1,235",
    ]  # fmt: skip
    assert [hours(seconds) for seconds in (10.0, 540.0, 4700.0, 90_000.0)] == ["0.0028", "0.15", "1.3", "25"]
    pong = answer("pong-ppo", "pong", "ppo", **CARTPOLE)
    assert (change(pong, "fp16"), change(pong, "int8")) == ("0", "−2.5 [−7.4, +2.4]")
    tiny = dataclasses.replace(pong, differences={"int8": (-0.0312, -0.04, -0.0224)})
    assert change(tiny, "int8") == "−0.031 [−0.040, −0.022]"
    assert score(pong, "int8") == "497.5 [492.6, 502.4]"


def test_published_figures_are_taken_at_the_nearest_step_count() -> None:
    curve = {"name": "X", "what": "", "source": "", "points": [[500_000, -19.1], [1_000_000, -16.6], [4_000_000, 2.6]]}
    cell = Cell("pong", "dqn", published=(curve,))
    assert published(cell, 400_000) == "−19.1 at 0.5 M (X)"
    assert published(cell) == "2.6 at 4 M (X)"
    assert published(Cell("pong", "dqn"), 1) == "–"


def test_every_cell_of_the_data_file_is_whole() -> None:
    found = load_cells()
    assert len({cell.bundle_name for cell in found}) == len(found) == 38
    for cell in found:
        assert cell.paper is None or cell.paper.keys() == {"fp32", "fp16", "int8"}
        for curve in cell.published:
            assert curve.keys() == {"name", "what", "source", "points"}
            assert curve["source"].startswith("https://")
            assert all(steps > 0 for steps, _ in curve["points"])


def test_answers_are_kept_in_place_of_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "results" / "cells.json"
    assert read_answers(path) == {}
    first = answer("pong-ppo", "pong", "ppo")
    keep(first, path)
    keep(answer("acrobot-dqn", "Acrobot-v1", "dqn"), path)
    keep(dataclasses.replace(first, steps=7), path)
    found = read_answers(path)
    assert list(found) == ["acrobot-dqn", "pong-ppo"]
    assert found["pong-ppo"] == dataclasses.replace(first, steps=7)
    path.write_text('{"cells": [{"name": "x"}]}')
    with pytest.raises(BenchError, match=r"cells.json is damaged"):
        read_answers(path)


def test_a_bundle_is_judged_at_every_precision_and_only_once(tmp_path: Path, balancing: Balancing) -> None:
    bundle = balancing(tmp_path / "cartpole-dqn")
    found = judge(bundle, 4, 7, RuntimeName.LITERT)
    assert found.artifacts == tuple(f"{p}.{f}" for p in ("fp16", "fp32", "int8") for f in ("onnx", "tflite"))
    assert (found.task, found.method, found.steps, found.network) == ("CartPole-v1", "dqn", 1000, "2")
    assert found.played["fp32"].mean_return > 300
    assert len(found.played["int8"].returns) == 4
    mean = np.mean(np.subtract(found.played["int8"].returns, found.played["fp32"].returns))
    assert found.differences["int8"][0] == pytest.approx(mean)
    assert sorted(path.name for path in bundle.path.iterdir() if path.suffix == ".tflite") == []
    asked = argparse.Namespace(episodes=4, seed=7, runtime="litert")
    assert found.weights_sha256 == weights_hash(bundle)
    assert is_current(found, bundle, asked)
    assert not is_current(found, bundle, argparse.Namespace(episodes=5, seed=7, runtime="litert"))
    assert not is_current(found, bundle, argparse.Namespace(episodes=4, seed=7, runtime="onnxruntime"))
    assert not is_current(None, bundle, asked)


def test_a_fresh_bundle_is_taken_in_under_its_cells_name_if_it_is_no_worse(
    tmp_path: Path, balancing: Balancing, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo = tmp_path / "zoo"
    fresh = balancing(tmp_path / "trial-17")
    assert place(fresh.path, zoo, 3, 7, force=False) == "cartpole-dqn"
    placed = Bundle.load(zoo / "cartpole-dqn")
    assert placed.spec.name == "cartpole-dqn"
    row = placed.spec.provenance["judged"][0]
    assert (row["episodes"], row["seed"], row["preset"]) == (3, 7, "")
    assert row["return_interval_95"][0] <= row["mean_return"] <= row["return_interval_95"][1]
    for name, value in fresh.weights().items():
        np.testing.assert_array_equal(placed.weights()[name], value)
    np.testing.assert_array_equal(placed.golden().outputs, fresh.golden().outputs)
    assert place(fresh.path, zoo, 3, 7, force=False) == "cartpole-dqn"  # the same again is no worse

    assert place(zoo / "cartpole-dqn", zoo, 5, 7, force=False) == "cartpole-dqn"  # itself: judged anew
    assert Bundle.load(zoo / "cartpole-dqn").spec.provenance["judged"][0]["episodes"] == 5

    worse = balancing(tmp_path / "trial-18", sign=-1.0)
    before = (zoo / "cartpole-dqn" / "manifest.json").read_bytes()
    with pytest.raises(BenchError, match=r"less than the .* Nothing was changed.(?s:.)*--force"):
        place(worse.path, zoo, 3, 7, force=False)
    assert (zoo / "cartpole-dqn" / "manifest.json").read_bytes() == before
    assert place(worse.path, zoo, 3, 7, force=True) == "cartpole-dqn"
    assert Bundle.load(zoo / "cartpole-dqn").spec.provenance["judged"][0]["mean_return"] < 20


def test_what_does_not_say_where_it_comes_from_is_not_taken_in(tmp_path: Path, balancing: Balancing) -> None:
    bundle = balancing(tmp_path / "x")
    nameless = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, provenance={"task": "CartPole-v1"}))
    from bench.study.cells.place import cell_name

    with pytest.raises(BenchError, match="lacks algorithm, seed, steps, cpu_s"):
        cell_name(nameless)
    other = balancing(tmp_path / "y", task="Acrobot-v1")
    with pytest.raises(SpecError, match="another observation"):
        place(other.path, tmp_path / "zoo", 2, 7, force=False)


def test_an_unknown_name_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cells, "ANSWERS", tmp_path / "cells.json")
    with pytest.raises(BenchError, match="has no bundle 'tetris-ppo'"):
        cells.judge_all(["tetris-ppo"], argparse.Namespace(answers=tmp_path / "cells.json"))


def curve(task: str, method: str, paper: float | None) -> Curve:
    steps = [float(step) for step in range(0, 1_000_000, 1000)]
    returns = [step / 10_000 for step in steps]
    kept = answer("x", task, method, played={"fp32": played(95.0, 94.0, 96.0, 1)}, steps=1_000_000)
    cell = Cell(task, method, None if paper is None else {"fp32": paper})
    return Curve(cell, (steps, returns), (steps[::100], returns[::100]), kept)


def test_the_curves_picture_cuts_nothing_off_and_names_every_panel() -> None:
    curves = [curve("cartpole", "dqn", 500.0), curve("dm_control,walker_stand", "d4pg", None), curve("pong", "ppo", 20)]
    figure = curves_figure([*curves, *curves])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ticks = {id(label) for axes in figure.axes for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]}
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and id(text) not in ticks]
    renderer = canvas.get_renderer()
    for text in texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= -1, text.get_text()
        assert box.x1 <= figure.bbox.width + 1, text.get_text()
    said = [text.get_text() for text in texts]
    assert {"cartpole · DQN", "walker_stand · D4PG", "pong · PPO", "500", "20", "the paper's (fp32)"} <= set(said)
    low, high = limits(curves[0], 500.0)
    assert low < 2.0  # the first training points may leave the panel, not the greedy ones
    assert high > 500
    assert averaged(([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 5.0, 7.0]), 2) == ([0.5, 2.5], [2.0, 6.0])


def test_curves_are_read_from_bundles_in_the_tables_order(tmp_path: Path, balancing: Balancing) -> None:
    from policy.bundle_writer import write_bundle

    rows = b"step,episodes,return,greedy_return\n10,1,5,\n20,1,7,9\n"
    for name, method in (("cartpole-ppo", "ppo"), ("cartpole-dqn", "dqn")):
        made = balancing(tmp_path / "made" / name, algorithm=method)
        observations = made.calibration(), made.golden().observations
        write_bundle(tmp_path / "zoo" / name, made.spec, made.weights(), *observations, {CURVE_FILE: rows})
    found = read_curves(tmp_path / "zoo", {})
    assert [item.cell.bundle_name for item in found] == ["cartpole-dqn", "cartpole-ppo"]
    assert found[0].training == ([10.0, 20.0], [5.0, 7.0])
    assert found[0].greedy == ([20.0], [9.0])


def test_the_committed_tables_are_those_of_the_committed_answers() -> None:
    answers = read_answers()
    assert set(answers) == set(cells.bundle_names()), "type: python -m bench.study cells --update-docs"
    made = tables(answers, cells.bundle_names())
    for path in pages():
        text = path.read_text(encoding="utf-8")
        assert filled(text, made) == text, "type: python -m bench.study cells --stored --update-docs"


def test_that_atari_games_repeat_is_said_where_there_are_some() -> None:
    words = "some of the 100 are the same game"
    pong = answer("pong-ppo", "pong", "ppo")
    assert any(words in note for note in measured_notes([pong], []))
    assert not any(words in note for note in measured_notes([answer("a", "CartPole-v1", "ppo")], []))
