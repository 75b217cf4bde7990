"""The study's tables worked by hand, and the command that runs everything."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from quarl import cli
from quarl.bench.study import cells, everything, ptq_table, sweep
from quarl.bench.study.cells import JudgedBundle
from quarl.bench.study.experiment import Results
from quarl.bench.study.ptq_table import Kept, compute_published_error, mean_error, papers_mean, verdict
from quarl.bench.study.records import Record
from quarl.train.intervals import Estimate
from quarl.train.suites.cells import Cell, load_cells


def results(
    recorded: Callable[..., Record], name: str = "pong-ppo", task: str = "PongNoFrameskip-v4",
    int8: tuple[float, ...] = (20.0, 16.0),
) -> Results:  # fmt: skip
    """What was judged of one bundle."""
    measures = {
        "task": task, "method": name.rpartition("-")[2], "network": "3 conv", "steps": 1, "training_cpu_s": 1.0,
        "bytes": 1000, "executed_by": "litert 2", "length": 1.0,
    }  # fmt: skip
    played = {None: (20.0, 20.0), "fp16": (20.0, 20.0), "int8": int8}
    return Results(
        cells.EXPERIMENT,
        [
            recorded({"precision": precision} if precision else {}, returns, name, 7, **measures)
            for precision, returns in played.items()
        ],
    )


@pytest.fixture
def pong(recorded: Callable[..., Record]) -> Callable[..., JudgedBundle]:
    return lambda *int8: cells.collect_bundles(results(recorded, int8=int8 or (20.0, 16.0)))[0]


PONG = Cell("pong", "ppo", {"fp32": 20, "fp16": 20, "int8": 19})


def test_the_papers_means_follow_from_its_returns() -> None:
    """REFERENCE: A2C 2.31 %, DQN 8.60 %, PPO 0.54 %, DDPG 4.93 %."""
    means = {
        method: round(papers_mean([cell for cell in load_cells() if cell.method == method]) or 0.0, 2)
        for method in ("a2c", "dqn", "ppo", "ddpg")
    }  # fmt: skip
    assert means == {"a2c": 2.31, "dqn": 8.6, "ppo": 0.54, "ddpg": 4.93}
    assert compute_published_error(PONG, "int8") == 5.0
    assert compute_published_error(Cell("pong", "ppo"), "int8") is None


def test_relative_error_of_a_cell(pong: Callable[..., JudgedBundle]) -> None:
    # F = 20, Q = 18: 10 %; residuals d − R f of (0, 4) with R = 0.1 are (−2, +2): s = 2.83, ± 12.706 · 2 / 20 · 100 %
    error = pong().error("int8")
    assert error is not None and error.value == pytest.approx(10.0)
    assert error.high == pytest.approx(10.0 + 127.06204736)


def test_mean_error_joins_the_cells_intervals(pong: Callable[..., JudgedBundle]) -> None:
    rows = [pong(), pong(20.0, 20.0)]
    found = mean_error(rows)
    assert found is not None and found.value == pytest.approx(5.0)
    assert found.high == pytest.approx(5.0 + 63.53102368)  # √(127.06² + 0²) / 2
    assert mean_error([]) is None


@pytest.mark.parametrize(
    ("ours", "papers", "message"),
    [
        (Estimate(0.0, 0.0, 0.0), 0.0, "equal"),
        (Estimate(0.0, 0.0, 0.0), 2.31, "below"),
        (Estimate(1.0, 0.5, 1.5), 2.31, "below"),
        (Estimate(1.0, 0.5, 2.5), 2.31, "below, inside the noise"),
        (Estimate(3.0, 0.5, 5.5), 2.31, "above, inside the noise"),
        (Estimate(3.0, 2.5, 3.5), 2.31, "above"),
        (Estimate(3.0, None, None), 2.31, "above, no interval"),
        (None, 2.31, "–"),
        (Estimate(1.0, 0.5, 1.5), None, "–"),
    ],
)
def test_verdicts(ours: Estimate | None, papers: float | None, message: str) -> None:
    assert verdict(ours, papers) == message


def test_the_tables_show_what_was_judged(recorded: Callable[..., Record]) -> None:
    found = Kept(results(recorded), Results(sweep.EXPERIMENT, []))
    table, methods = (made for declared in ptq_table.JOINED.tables for made in declared(found))
    line = dict(zip(table.headers, table.rows[0], strict=True))
    assert (line["int8 error, %"], line["paper's int8 error, %"]) == ("+10.0 [−117.1, +137.1]", "0")
    assert (line["fp16 error, %"], line["quarl 8 bits error, %"]) == ("0", "–")
    ppo = methods.rows[1]
    assert ppo[:4] == ("ppo", "pong", "+10.0 [−117.1, +137.1]", "0")
    assert ppo[4:7] == ("above, inside the noise", "+0.54", "above, inside the noise")


def test_the_papers_own_quantizer_stands_beside_it(
    swept: Callable[..., list[Record]], recorded: Callable[..., Record]
) -> None:
    conditions = [({}, 500.0), ({"scheme": "quarl", "activations": "float", "bits": 8}, 450.0)]
    for name, expected in (("pong-ppo", "+10.0 [+7.5, +12.5]"), ("pong-dqn", "–")):
        found = Kept(results(recorded), Results(sweep.EXPERIMENT, swept(name, conditions=conditions)))
        (table,) = ptq_table.cells_table(found)
        assert dict(zip(table.headers, table.rows[0], strict=True))["quarl 8 bits error, %"] == expected


def test_every_step_is_a_command_that_its_parser_takes(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--plan"], ["--plan", "--quick"], ["--plan", "--stored", "--update-docs", "--markdown"]):
        assert everything.main(words) == 0
        planned = [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()]
        for step in planned:
            options = [word for word in step if word.startswith("--")]
            assert cli.main([*step[:2], "--help"]) == 0
            known = capsys.readouterr().out
            assert [option for option in options if option not in known] == []
        if "--stored" not in words and "--quick" not in words:
            assert planned[0] == everything.SUCCESS
            assert {step[1] for step in planned[1:]} >= {"cells", "sweep", "ptq", "width"}


def test_a_failure_is_reported_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    planned = [["bench", "absent"], ["page", "--output", str(made)]]
    monkeypatch.setattr(everything, "steps", lambda options: planned)
    called: list[list[str]] = []

    def ran(words: list[str], cwd: Path) -> SimpleNamespace:
        called.append(words[3:])
        return SimpleNamespace(returncode=int("absent" in words))

    monkeypatch.setattr(everything.subprocess, "run", ran)
    assert everything.main(["--stored"]) == 1
    assert called == planned
    assert "failed: quarl bench absent" in capsys.readouterr().err


def test_arguments_that_contradict_each_other() -> None:
    assert everything.main(["--quick", "--update-docs"]) == 2
    for wrong in (["--quick", "--stored"], ["--jobs", "0"]):
        with pytest.raises(SystemExit) as left:
            everything.main(wrong)
        assert left.value.code == 2
