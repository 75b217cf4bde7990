"""The study's tables worked by hand, its plan, and how it is run."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path

import pytest

from bench.report.intervals import Estimate
from bench.study import everything as study
from bench.study.cells import ptq_table as study_table
from bench.study.cells.command import Answer, Played
from bench.study.cells.ptq_table import Judged, algorithms_table, cells_table, judged, mean_error, papers_error, verdict
from bench.study.plan import PICTURES, Plan, Step, benchmark_bundles, full_plan, module, quick_plan
from train.suites.cells import Cell, load_cells

ROOT = Path(__file__).resolve().parents[3]


def answer(method: str = "ppo", task: str = "PongNoFrameskip-v4", int8: tuple[float, ...] = (20.0, 16.0)) -> Answer:
    full = (20.0, 20.0)

    def played(returns: tuple[float, ...]) -> Played:
        return Played(sum(returns) / len(returns), (returns[0], returns[-1]), 1.0, 1000, returns)

    return Answer(
        name=f"pong-{method}", task=task, method=method, weights_sha256="ab", network="3 conv", training_seed=0,
        steps=1, cpu_s=1.0, episodes=2, seed=7, runtime="litert 2", machine="m", code="c", date="2026-11-20",
        artifacts=(),
        played={"fp32": played(full), "fp16": played(full), "int8": played(int8)}, differences={},
    )  # fmt: skip


PONG = Cell("pong", "ppo", {"fp32": 20, "fp16": 20, "int8": 19})


def test_the_papers_means_follow_from_its_returns() -> None:
    """REFERENCE: A2C 2.31 %, DQN 8.60 %, PPO 0.54 %, DDPG 4.93 %."""
    means = {
        method: round(study_table.mean([e for cell in load_cells() if cell.method == method
                                        for e in study_table.errors_of(cell)]) or 0.0, 2)
        for method in ("a2c", "dqn", "ppo", "ddpg")
    }  # fmt: skip
    assert means == {"a2c": 2.31, "dqn": 8.6, "ppo": 0.54, "ddpg": 4.93}
    assert papers_error(PONG, "int8") == 5.0
    assert papers_error(Cell("pong", "ppo"), "int8") is None


def test_relative_error_of_a_cell() -> None:
    # F = 20, Q = 18: 10 %; residuals d − R f of (0, 4) with R = 0.1 are (−2, +2): s = 2.83, ± 12.706 · 2 / 20 · 100 %
    error = Judged(PONG, answer()).error("int8")
    assert error is not None and error.value == pytest.approx(10.0)
    assert error.high == pytest.approx(10.0 + 127.06204736)


def test_mean_error_joins_the_cells_intervals() -> None:
    rows = [Judged(PONG, answer()), Judged(PONG, answer(int8=(20.0, 20.0)))]
    found = mean_error(rows)
    assert found is not None and found.value == pytest.approx(5.0)
    assert found.high == pytest.approx(5.0 + 63.53102368)  # √(127.06² + 0²) / 2
    assert mean_error([]) is None


@pytest.mark.parametrize(
    ("ours", "papers", "said"),
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
def test_verdicts(ours: Estimate | None, papers: float | None, said: str) -> None:
    assert verdict(ours, papers) == said


def test_the_tables_show_what_was_judged() -> None:
    rows = [Judged(PONG, answer())]
    line = dict(zip(cells_table(rows).headers, cells_table(rows).rows[0], strict=True))
    assert (line["int8 error, %"], line["paper's int8 error, %"]) == ("+10.0 [−117.1, +137.1]", "+5.00")
    assert (line["fp16 error, %"], line["quarl 8 bits error, %"]) == ("0", "–")
    ppo = algorithms_table(rows).rows[1]
    assert ppo[:4] == ("ppo", "pong", "+10.0 [−117.1, +137.1]", "+5.00")
    assert ppo[4:7] == ("above, inside the noise", "+0.54", "above, inside the noise")


def test_what_is_of_other_weights_is_left_out() -> None:
    from bench.study.sweep.store import read_sweeps

    sweep = next(each for each in read_sweeps() if (each.bundle, each.variant) == ("cartpole-ppo", "weights"))
    mine = dataclasses.replace(answer("ppo", "CartPole-v1"), name="cartpole-ppo", weights_sha256=sweep.weights_sha256)
    other = dataclasses.replace(mine, weights_sha256="else")
    for found, weights, expected in (
        (mine, mine.weights_sha256, [sweep]),
        (other, "else", [None]),  # judged; its sweep is of other weights
        (mine, "else", []),  # neither is of the weights that are there
    ):
        rows = judged({"cartpole-ppo": found, "gone-ppo": found}, [sweep], {"cartpole-ppo": weights, "not-judged": "x"})
        assert [row.sweep for row in rows] == expected


def test_the_plan_has_every_bundle_and_known_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of both plans is accepted by the parser of its module."""
    import importlib

    bundles = benchmark_bundles(ROOT)
    plans = (full_plan(ROOT, update_docs=True), quick_plan(ROOT, study.QUICK))
    assert full_plan(ROOT).drawn == (), "docs/ is written where that is asked for"
    for plan in plans:
        text = "\n".join(step.command for step in plan.steps)
        assert [name for name in bundles if f"--only {name}" not in text] == []
    words = {step.words[2] for plan in plans for step in plan.steps if step.words[:2] == ("-m", "bench.study")}
    assert words >= {pictures[1] for pictures in PICTURES}
    for name in sorted(words):
        with pytest.raises(SystemExit) as left:
            importlib.import_module("bench.study.__main__").main([name, "--help"])
        assert left.value.code == 0
        known = capsys.readouterr().out
        options = {
            word
            for plan in plans
            for step in plan.steps
            if name in step.words
            for word in step.words
            if word[:2] == "--"
        }
        assert [option for option in options if option not in known] == []


def test_a_failure_is_reported_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, remembered = tmp_path / "made", study.Remembered(tmp_path / "done.json", False, {"I": "a"})
    write = Step(("-c", f"open({str(made)!r}, 'a').write('x')"))
    wrong = Step(("-c", "import sys; sys.exit('no such bundle')"))
    plan = Plan((wrong, write), (write,))
    failures = study.run(plan, 2, remembered)
    assert len(failures) == 1 and "no such bundle" in failures[0]
    assert made.read_text() == "xx"
    assert json.loads((tmp_path / "done.json").read_text())["commands"] == [write.command, write.command]
    assert study.Remembered(tmp_path / "done.json", True, {"I": "other"}).commands == []
    # resumed: what was measured is left out; what failed is made again; pictures are always drawn anew
    mended = Plan((Step(("-c", "pass")), write), (write,))
    assert study.run(mended, 1, study.Remembered(tmp_path / "done.json", True, {"I": "a"})) == []
    assert made.read_text() == "xxx"
    assert not (tmp_path / "done.json").exists()
    assert "of 2 commands" in capsys.readouterr().err


def test_commands_are_typed_as_they_are_run() -> None:
    step = module("bench.study", "sweep", Path("zoo/I"), "--bits", "2,4")
    assert shlex.split(step.command) == ["python", "-m", "bench.study", "sweep", "zoo/I", "--bits", "2,4"]
    assert sys.executable


def test_arguments_that_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--quick", "--update-docs"], ["--quick", "--stored"], ["--jobs", "0"]):
        with pytest.raises(SystemExit) as left:
            study.main(wrong)
        assert left.value.code == 2
    assert "docs/study.md" in capsys.readouterr().err


def test_the_stored_tables_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/study.md shows what is stored, to the letter."""
    assert study.main(["--stored", "--markdown"]) == 0
    printed, page = capsys.readouterr().out, (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    tables = [part for part in printed.split("\n**") if part.strip()]
    assert len(tables) >= 2
    assert [part[:60] for part in tables if part.strip().removeprefix("**") not in page] == []
