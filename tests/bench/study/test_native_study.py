"""Packed bits and active rows: what is counted, by hand; the table; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from quarl.bench import command_line
from quarl.bench.cost.activity import activities, read_share
from quarl.bench.study import records
from quarl.bench.study.experiment import Results, in_order
from quarl.bench.study.learning import native
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
)

Recorded = Callable[..., records.Record]


def test_the_active_share_by_hand(tmp_path: Path) -> None:
    """One layer of 4 outputs: two are positive for a positive observation, one of them for a negative one."""
    spec = PolicySpec(
        "four",
        (ObservationField("x", (1,), "1"),),
        Normaliser((0.0,), (1.0,)),
        NetworkSpec((4, 2)),
        DiscreteHead(("a", "b", "c")),
        1.0,
        EnvironmentSpec("nowhere"),
    )
    weights = {
        "dense_0/kernel": np.array([[1.0, 1.0, -1.0, -1.0]], np.float32),
        "dense_0/bias": np.array([0.0, 0.0, 0.0, -2.0], np.float32),  # the last is never positive within ±1
        "dense_1/kernel": np.ones((4, 2), np.float32) * np.array([1.0, -1.0], np.float32),  # one of two
        "dense_1/bias": np.zeros(2, np.float32),
        "head/kernel": np.ones((2, 3), np.float32),
        "head/bias": np.array([0.0, 1.0, 2.0], np.float32),
    }
    observations = np.array([[1.0], [1.0], [-1.0], [-1.0]], np.float32)
    write_bundle(tmp_path / "four", spec, weights, observations, observations)
    # dense_1: 8 weights, of which (2 + 2 + 1 + 1) / 4 of 4 rows; head: 6 weights, of which one row of two.
    expected = (8 * 1.5 / 4 + 6 * 0.5) / 14
    found = activities(Bundle.load(tmp_path / "four"), Precision.INT8)
    assert [(layer.weights, layer.share) for layer in found] == [(4, 1.0), (8, 0.375), (6, 0.5)]
    assert read_share(found[1:]) == pytest.approx(expected)


@pytest.fixture
def measured(recorded: Recorded) -> Results:
    """Two artifacts of two bits beside fp32 and int8, of four episodes on one preset."""
    counts = {"active": 0.5, "bytes": 2000, "instructions": 500, "dram_lines": 10}
    cells = [
        ({}, (1, 1, 1, 0), {}),
        (native.LITERT, (1, 1, 1, 0), {**counts, "bytes": 4000, "instructions": 1000, "dram_lines": 200}),
        ({"bits": 8}, (1, 1, 1, 0), counts),
        ({"bits": 2, "penalty": 0.0}, (1, 1, 0, 0), counts),
        ({"bits": 2, "penalty": 0.3}, (1, 1, 1, 1), {**counts, "active": 0.2, "instructions": 250}),
    ]
    found = []
    for condition, successes, measures in cells:
        made = recorded(condition, [float(each) for each in successes], "I", 11, **measures)
        found.append({**made, "preset": "hard", "successes": [bool(each) for each in successes]})
    return Results(native.EXPERIMENT, in_order(native.EXPERIMENT, found))


def test_the_table_by_hand(measured: Results, texts: Callable[[Figure], list[str]]) -> None:
    (table,) = measured.tables()
    rows = [row for row in table.rows if row]  # the last is a rule
    artifacts = [row[1] for row in rows]
    assert artifacts == ["fp32", "int8, LiteRT", "int8", "int2, learned", "int2, learned, penalty 0.3"]
    by_name = {row[1]: dict(zip(table.headers, row, strict=True)) for row in rows}
    assert by_name["fp32"]["hard: minus fp32"] == "–" and by_name["fp32"]["active, %"] == "–"
    learned = by_name["int2, learned, penalty 0.3"]
    assert learned["hard: success, %"].startswith("100.0 [") and learned["hard: minus fp32"].startswith("+25.0 [")
    assert (learned["active, %"], learned["KB"], learned["A53"], learned["DRAM lines"]) == (
        "20", "2.00", "0.25×", "0.05×",
    )  # fmt: skip
    assert by_name["int2, learned"]["hard: minus fp32"].startswith("−25.0 [")
    (figure,) = measured.figures().values()
    assert "I, hard" in texts(figure)


def test_lines_of_a_policy_that_fits_the_cache_are_no_base() -> None:
    assert native.ratio(50, 99) is None and native.ratio(50, 100) == 0.5 and native.ratio(None, 200) is None


def test_another_policy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(command_line.UsageError, match="cartpole-ppo is none of I, II, III"):
        native.grid(native.Options(penalties=(0.0,)), "cartpole-ppo")
    with pytest.raises(SystemExit):
        native.main(["I", "--penalties", "much"])
    assert "--penalties" in capsys.readouterr().err
