"""Means against wide weights: what a means changes, the sign test over cells, tables of numbers made up by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.tables import ROOT, filled
from bench.report.text import arrow
from bench.study import command, records, running, trainings
from bench.study.experiment import Results, current, in_order
from bench.study.learning import wide
from policy.bundle import Bundle

Recorded = Callable[..., records.Record]
PLACE = {"scheme": wide.QUARL, "bits": 4}


def made(recorded: Recorded, variants: Mapping[str, tuple[Sequence[float], float]], subject: str) -> list[Any]:
    """Trainings that earn 500 in floats and so much with QuaRL's quantizer at 4 bits, of a range in deviations."""
    found = []
    for name, (returns, ratio) in variants.items():
        for seed, earned in enumerate(returns):
            measures = {"range": 2.0, "std": 0.25, "ratio": ratio + 0.01 * seed}
            found.append(recorded(wide.VARIANTS[name], [500.0, 500.0], subject, seed, **measures))
            for place in wide.PLACES.values():
                few = earned if place == PLACE else 500.0
                found.append(recorded({**wide.VARIANTS[name], **place}, [few, few], subject, seed))
    return found


@pytest.fixture
def several(recorded: Recorded) -> Results:
    """Six cells: clipping narrows and helps everywhere; decay helps in five and is no narrower in one."""
    found = []
    for index, subject in enumerate(wide.CELLS):
        found += made(
            recorded,
            {
                "plain": ((300.0, 290.0, 310.0), 8.0),
                "decay-1": ((310.0, 300.0, 260.0 if index == 0 else 320.0), 9.0 if index == 0 else 7.0),
                "clip-2": ((400.0, 380.0, 420.0), 4.0),
            },
            subject,
        )
    return Results(wide.EXPERIMENT, in_order(wide.EXPERIMENT, found))


def test_a_cell_counts_once_in_the_sign_test() -> None:
    """Eighteen pairs of six cells, all on one side, are six: 2 · 2⁻⁶ = 0.031; five of six are 14 / 64."""
    ones = [Estimate(1.0)] * 6
    above, below, is_significant, chance = wide.sign_test(ones)
    assert (above, below, is_significant) == (6, 0, True) and chance == pytest.approx(2 / 64)
    assert wide.sign_test([*ones[:5], Estimate(-1.0)])[:3] == (5, 1, False)
    assert wide.sign_test([*ones[:5], Estimate(0.0)]) == (5, 0, False, 0.0), "five alone cannot tell: 2 · 2⁻⁵ = 0.06"
    assert wide.sign_test([None, None]) == (0, 0, False, 0.0)


def test_a_means_is_compared_with_the_plain_training_of_its_seed(several: Results) -> None:
    subject = "cartpole-dqn"
    # gains of 100, 90, 110 in % of 500: 20, 18, 22; t of two degrees of freedom 4.3027 · 2 / √3
    found = wide.gain(several, subject, "clip-2", PLACE)
    assert found is not None and found.value == pytest.approx(20.0)
    assert found.high == pytest.approx(20.0 + 4.302653 * 2.0 / math.sqrt(3))
    assert wide.gain(several, subject, "plain", PLACE) is None
    assert wide.gain(several, subject, "clip-4", PLACE) is None, "not measured"
    narrower = wide.widening(several, subject, "clip-2")
    assert narrower is not None and narrower.value == pytest.approx(-4.0)
    assert wide.widening(several, subject, "clip-4") is None
    arrows = [arrow(each) for each in (found, Estimate(-2.0, -3.0, -1.0), Estimate(1.0, -1.0, 3.0), None)]
    assert arrows == [" ↑", " ↓", "", ""]


def test_the_tables_by_hand(several: Results, texts: Callable[[Figure], list[str]]) -> None:
    summary, weights, errors, orders = several.tables()
    rows = {row[0]: dict(zip(summary.headers[1:], row[1:], strict=True)) for row in summary.rows}
    assert rows["clip-2"] == {"narrower": "6 : 0†", "fp32": "0 : 0", "QuaRL's 4": "6 : 0†"} | dict.fromkeys(
        [header for header in summary.headers[3:] if header != "QuaRL's 4"], "0 : 0"
    )
    assert (rows["decay-1"]["narrower"], rows["decay-1"]["QuaRL's 4"]) == ("5 : 1", "5 : 1")
    # two means, narrower and QuaRL's at 4 bits, six cells that differ each: 4 · 2 / 64
    assert "about 0.1 of these 24 would be marked" in " ".join(summary.notes)
    plain, decayed, clipped, rule = weights.rows[:4]
    assert plain == ("acrobot-dqn", "plain", "2.00", "0.25", "8.01 [7.99, 8.03]", "–", "500.0", "–") and rule == ()
    assert decayed[5] == "+1.00 ↑"
    assert clipped[-1] == "0.00"
    assert errors.headers[2:5] == ("QuaRL's 4", "QuaRL's 3", "QuaRL's 2")
    assert errors.rows[2][2] == "20.0 [10.1, 29.9] ↑"  # 20, 24, 16: 4.3027 · 4 / √3
    assert "Median over cells, QuaRL's 4 bits: plain 40 %, decay-1 38 %, clip-2 20 %." in errors.notes
    assert orders.headers[3:5] == ("4 bits: range", "4 bits: range / std")
    assert orders.rows[0][3] == "–", "all ranges are alike"
    assert orders.rows[0][4].startswith("0.")
    found = texts(several.figures()["wide-weights"])
    assert {"decay-1", "clip-2", "2", "fp32", "QuaRL's quantizer", "not quantized"} <= set(found)


def test_what_is_not_measured_wholly_is_left_out(several: Results) -> None:
    last = {**wide.VARIANTS["clip-2"], **wide.PLACES["symmetric 2"]}
    fewer = [each for each in several.found if (each["subject"], each["condition"]) != ("cartpole-a2c", last)]
    partial = Results(wide.EXPERIMENT, [each for each in fewer if each["subject"] != "pendulum-ppo"])
    summary, weights, *_ = partial.tables()
    assert summary.rows[-1][:2] == ("clip-2", "4 : 0")
    assert "Not measured: pendulum-ppo and cartpole-a2c." in summary.notes
    assert not {"pendulum-ppo", "cartpole-a2c"} & {row[0] for row in weights.rows if row}


def test_variants_are_settings_of_the_training() -> None:
    """Each row says by its condition what was changed, and that alone is changed."""

    def settings(*words: str) -> dict[str, Any]:
        return trainings.settings_of(trainings.requested(["--task", "Acrobot-v1", "--method", "dqn", *words]))

    plain = settings()
    assert {**plain, "weight_decay": 0.1} == settings("--set", "weight_decay=0.1")
    assert {**plain, "weight_clip": 2} == settings("--set", "weight_clip=2")
    normed = settings("--layer-norm")
    assert normed["network"] == {**plain["network"], "layer_norm": True}
    assert {**normed, "engine": "numpy", "network": plain["network"]} == plain, "numpy knows no layer normalisation"


def test_what_is_typed_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main("bench.study.learning.wide", ["--variants", "plain,clip"]) == command_line.EXIT_USAGE
    assert "there is no variant 'clip'; there are plain, layer-norm" in " ".join(capsys.readouterr().err.split())
    assert command.main("bench.study.learning.wide", ["pong-dqn", "--stored"]) == command_line.EXIT_USAGE
    assert "there is no cell 'pong-dqn'; there are acrobot-dqn" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_study_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = dataclasses.replace(wide.CELLS["cartpole-a2c"], steps=2048)
    monkeypatch.setitem(wide.CELLS, "cartpole-a2c", small)
    monkeypatch.setattr(trainings, "TRAINED", tmp_path / "trained")
    monkeypatch.setattr(records, "FOLDER", tmp_path / "study")
    monkeypatch.setattr(running, "refuse_dirty", lambda: None)
    words = ["cartpole-a2c", "--variants", "plain,clip-2", "--seeds", "5", "--episodes", "3", "--jobs", "1", "--json"]
    assert command.main("bench.study.learning.wide", words) == command_line.EXIT_OK
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2 * (1 + 2 * 5)
    plain, clipped = (row for row in rows if row["bits"] is None)
    assert (plain["weight_clip"], clipped["weight_clip"]) == (None, 2)
    assert (plain["settings"]["weight_clip"], clipped["settings"]["weight_clip"]) == (0, 2)
    (folder,) = (tmp_path / "trained").glob(f"*/{clipped['training']}")
    kernels = {name: values for name, values in Bundle.load(folder).weights().items() if name.endswith("/kernel")}
    for values in kernels.values():
        assert float(np.abs(values).max()) <= 2.0 / math.sqrt(values.shape[0]) * 1.000001
    every = np.concatenate([values.ravel() for values in kernels.values()])
    assert clipped["range"] == pytest.approx(float(np.ptp(every)), rel=1e-5) and clipped["ratio"] < plain["ratio"]


def test_the_page_shows_what_is_kept() -> None:
    """docs/wide-weights.md, to the letter, with no row of other settings than those that are committed."""
    kept = records.read(wide.EXPERIMENT.path)
    assert current(wide.EXPERIMENT, kept) == kept == in_order(wide.EXPERIMENT, kept)
    assert not any(record["code"].endswith("-dirty") for record in kept)
    page = (ROOT / "docs" / "wide-weights.md").read_text(encoding="utf-8")
    tables = Results(wide.EXPERIMENT, kept).tables()
    assert page.count("<!-- table:") == len(tables)
    assert filled(page, tables) == page
