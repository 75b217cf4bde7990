"""What all experiments share: rows, what is missing or stale, summaries worked by hand, and what --keep does."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.store import StoreError
from quarl.bench.study import command, mixed, records, running, sweep
from quarl.bench.study.experiment import EpisodePlan, Results, current, in_order
from quarl.bench.study.running import StudyCell, drop_superseded, missing
from quarl.bench.study.sweep import EXPERIMENT
from quarl.policy import locate
from quarl.policy.bundle import Bundle
from quarl.train.intervals import Estimate
from tests.refusals import refused

FEW = EpisodePlan((0, 2), 2)
NARROW = {"scheme": "symmetric", "bits": 3}


def test_a_number_is_the_same_cell_as_asked_and_as_kept() -> None:
    requested = {"subject": "I", "condition": {"bits": 2, "penalty": 1.0}}
    assert records.cell(requested) == records.cell(json.loads(records.as_line(requested)))
    assert records.cell(requested) != records.cell({"subject": "I", "condition": {"bits": 2, "penalty": 0.1}})


def test_rows_are_one_for_each_episode(recorded: Callable[..., records.Record]) -> None:
    found = [
        recorded({}, [5.0, 6.0], seed=2, successes=[1, 0]),
        recorded(NARROW, [7.0, 8.0], **{"other action": 0.25}),
    ]
    rows = records.rows(found, EXPERIMENT.factors)
    played = [tuple(row[name] for name in ("seed", "episode", "return", "success")) for row in rows]
    assert played[:2] == [(2, 0, 5.0, 1), (2, 1, 6.0, 0)]
    assert [row["scheme"] for row in rows] == [None, None, "symmetric", "symmetric"]
    assert [row["other action"] for row in rows] == [None, None, 0.25, 0.25]
    assert rows[0].keys() >= {"subject", "preset", "identity", "machine", "code", "date"}


def test_the_summary_by_hand(recorded: Callable[..., records.Record]) -> None:
    cells = [
        recorded({}, [10.0, 20.0], successes=[1, 1]),
        recorded({}, [30.0, 40.0], seed=2, successes=[1, 0]),
        recorded(NARROW, [9.0, 18.0], successes=[0, 1]),
        recorded(NARROW, [27.0, 38.0], seed=2, successes=[1, 0]),
        recorded({"scheme": "quarl", "bits": 3}, [1.0], successes=[1]),  # of other episodes than fp32's
    ]
    fp32, narrow, other = Results(EXPERIMENT, cells).summary
    assert fp32["episodes"] == 4 and fp32["return"].value == 25.0
    assert fp32["difference"] == Estimate(0.0, 0.0, 0.0)
    # differences 1, 2, 3, 2: mean 2 of 25; s = √(2/3), t of 3 degrees of freedom 3.1824
    assert narrow["error"].value == pytest.approx(8.0)
    half = 3.1824463 * (2.0 / 3.0) ** 0.5 / 2.0
    assert (narrow["difference"].low, narrow["difference"].high) == pytest.approx((-2.0 - half, -2.0 + half))
    assert narrow["success"].value == 0.5 and narrow["success_difference"].value == -0.25
    assert other["error"] is None and other["difference"] is None


def test_a_contrast_by_hand(recorded: Callable[..., records.Record]) -> None:
    # fp32 earns 100 and 300, mean 200; one earns 20 and 10 less than the other: 10 % and 5 % of the mean
    one, other = ({"scheme": scheme, "bits": 3} for scheme in ("quarl-released", "symmetric"))
    found = Results(
        EXPERIMENT, [recorded({}, [100.0, 300.0]), recorded(one, [60.0, 280.0]), recorded(other, [80.0, 290.0])]
    )
    contrast = found.contrast("cartpole-dqn", one, other)
    assert contrast is not None and contrast.value == pytest.approx(7.5)
    # s = 3.5355, t of one degree of freedom 12.706: ± 12.706 · s / √2
    assert contrast.low == pytest.approx(7.5 - 12.706205 * 2.5)
    assert found.contrast("cartpole-dqn", one, {"scheme": "quarl", "bits": 3}) is None


def test_a_training_is_one_value(recorded: Callable[..., records.Record]) -> None:
    """Ten episodes that are alike in each of three trainings are three values, not thirty."""
    found = []
    for seed, (earned, wins) in enumerate(((10.0, [1, 0]), (12.0, [1, 1]), (14.0, [1, 0]))):
        found.append(recorded({}, [19.0, 21.0], seed=seed, successes=[1, 1]))
        found.append(recorded(NARROW, [earned - 1.0, earned + 1.0], seed=seed, successes=wins))
    results = Results(dataclasses.replace(EXPERIMENT, of_trainings=True), found)
    row = results.row("cartpole-dqn", NARROW)
    assert row["episodes"] == 6
    half = 4.302653 / 3.0**0.5  # of a deviation of 1: t of two degrees of freedom
    for name, value, deviation in (
        ("return", 12.0, 2.0),
        ("difference", -8.0, 2.0),
        ("error", 40.0, 10.0),
        ("success", 2 / 3, (1 / 12) ** 0.5),
        ("success_difference", -1 / 3, (1 / 12) ** 0.5),
    ):
        expected = (value, value - half * deviation, value + half * deviation)
        assert (row[name].value, row[name].low, row[name].high) == pytest.approx(expected, rel=1e-6), name
    contrast = results.contrast("cartpole-dqn", {}, NARROW)
    assert contrast is not None and contrast.value == pytest.approx(-40.0)
    assert contrast.high == pytest.approx(-40.0 + 10.0 * half)
    assert results.row("cartpole-dqn", {"scheme": "quarl", "bits": 3}) == {}


def test_what_is_missing_and_what_is_stale(
    recorded: Callable[..., records.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [recorded({}, [1.0, 2.0]), recorded({}, [1.0, 2.0], seed=2), recorded(NARROW, [1.0, 2.0])]
    requested = [StudyCell("cartpole-dqn", {}, FEW), StudyCell("cartpole-dqn", NARROW, FEW)]
    assert missing(requested, kept) == requested[1:], "a seed is missing"
    longer = [dataclasses.replace(cell, episodes=EpisodePlan((0, 2), 3)) for cell in requested]
    assert missing(longer, kept) == longer, "of other episodes"
    named = dataclasses.replace(EXPERIMENT, identity=lambda subject: "0" * 64)
    assert current(named, kept) == kept
    assert current(dataclasses.replace(named, identity=lambda subject: "1" * 64), kept) == [], "trained again"
    assert current(dataclasses.replace(named, version=2), kept) == []

    def gone(subject: str) -> str:
        raise command_line.UsageError("there is no such bundle")

    assert current(dataclasses.replace(named, identity=gone), kept) == kept


def test_the_last_measurement_counts_and_the_order_is_the_subjects(recorded: Callable[..., records.Record]) -> None:
    found = [
        recorded({"scheme": "quarl", "bits": 3}, [1.0], subject="own"),
        recorded({"scheme": "quarl", "bits": 2}, [1.0]),
        recorded({}, [1.0]),
        recorded({"scheme": "quarl", "bits": 2}, [2.0]),
    ]
    ordered = in_order(EXPERIMENT, found)
    assert [(each["subject"], each["condition"].get("bits"), each["returns"]) for each in ordered] == [
        ("cartpole-dqn", None, [1.0]),
        ("cartpole-dqn", 2, [2.0]),
        ("own", 3, [1.0]),
    ]


def test_lines_are_read_as_they_were_written_or_refused(
    recorded: Callable[..., records.Record], tmp_path: Path
) -> None:
    path = tmp_path / "study" / "sweep.jsonl"
    assert records.read(path) == []
    records.append(path, [recorded({}, [1.0, 2.123456789])])
    records.append(path, [recorded({}, [3.0], seed=2)])
    assert [each["returns"] for each in records.read(path)] == [[1, 2.12346], [3]]
    whole = path.read_text()
    path.write_text(whole + '{"subject": "of a process that was ki')
    assert len(records.read(path)) == 2
    path.write_text(whole + '{"subject": 1}\n')
    with refused(StoreError, "store", shows=["sweep.jsonl"]):
        records.read(path)


def test_what_another_process_added_is_kept_when_the_file_is_put_in_order(
    recorded: Callable[..., records.Record], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.jsonl"
    records.append(path, [recorded({"scheme": "quarl", "bits": 2}, [1.0])])
    records.append(path, [recorded({}, [1.0])])  # by another process, meanwhile
    found = records.rewrite(path, lambda rows: in_order(EXPERIMENT, rows))
    assert [each["condition"] for each in found] == [{}, {"scheme": "quarl", "bits": 2}]
    assert records.read(path) == found


def test_what_a_cell_had_of_other_seeds_goes_when_it_is_measured_again(recorded: Callable[..., records.Record]) -> None:
    old = [recorded({}, [1.0, 2.0], seed=seed) for seed in (0, 1)]
    new, other = recorded({}, [3.0, 4.0], seed=2), recorded({"scheme": "quarl", "bits": 8}, [5.0], seed=1)
    again = StudyCell("cartpole-dqn", {}, EpisodePlan((0, 2), 2))
    assert drop_superseded([again], [*old, other, new]) == [old[0], other, new]
    as_made = dataclasses.replace(again, episodes=EpisodePlan((2,), 0))  # a seed of it: the others stay
    assert drop_superseded([as_made], [*old, new]) == [*old, new]


def test_where_the_measure_knows_how_much_it_makes_seeds_are_missing(
    recorded: Callable[..., records.Record],
) -> None:
    kept = [recorded({}, [1.0, 2.0, 3.0]), recorded({}, [1.0], seed=2)]
    assert missing([StudyCell("cartpole-dqn", {}, EpisodePlan((0, 2), 0))], kept) == []
    more = [StudyCell("cartpole-dqn", {}, EpisodePlan((0, 2, 4), 0))]
    assert missing(more, kept) == more


def test_times_are_measured_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested: list[int] = []

    def run(module: object, cells: object, jobs: int, address: object) -> list[object]:
        requested.append(jobs)
        return []

    monkeypatch.setattr(running, "run", run)
    mixed.main([])
    sweep.main(["cartpole-dqn"])
    assert requested[0] == 1 and requested[1] == command.os.cpu_count()
    with pytest.raises(SystemExit):
        mixed.main(["--episodes", "3"])  # its values are times


def typed(*words: str) -> int:
    return sweep.main([*words])


def test_a_bundle_of_ones_own_is_measured_kept_and_not_measured_again(
    balancing: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = str(balancing(tmp_path / "by-hand").path)
    monkeypatch.setattr(records, "FOLDER", tmp_path / "study")
    monkeypatch.setattr(running, "refuse_dirty", lambda: None)
    words = [own, "--scheme", "quarl", "--bits", "3,2", "--seeds", "1,3", "--episodes", "4", "--jobs", "1"]
    assert typed(*words, "--keep", "--json") == cli.EXIT_OK
    printed = json.loads(capsys.readouterr().out)["rows"]
    assert len(printed) == 1 + 2, "fp32, and two widths"
    # 1 and 0 in the head are levels of every width; pushes of 0.1, 0.5, 10 and 3 are not
    error = {row["bits"]: row["error"]["value"] for row in printed}
    assert error[2] > 5.0 and error[None] == 0.0
    monkeypatch.setattr(running, "measure_cell", lambda *_: pytest.fail("it was measured again"))
    assert typed(*words, "--keep") == cli.EXIT_OK
    assert typed(own, "--stored", "--output-path", str(tmp_path / "drawn")) == cli.EXIT_OK
    assert "Means over 8 greedy episodes" in capsys.readouterr().out
    assert (tmp_path / "drawn" / "sweetspot-by-hand.svg").exists()
    capsys.readouterr()
    monkeypatch.undo()
    monkeypatch.setattr(records, "FOLDER", tmp_path / "study")
    monkeypatch.setattr(running, "refuse_dirty", lambda: None)
    fewer = ["--scheme", "quarl", "--bits", "2", "--seeds", "3", "--episodes", "2", "--jobs", "1", "--keep", "--json"]
    assert typed(own, *fewer) == cli.EXIT_OK
    counts = {row["bits"]: row["episodes"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert counts[2] == 2 and counts[3] == 8, "no episodes of the last time among them"
    balancing(tmp_path / "by-hand", sign=-1.0)  # trained again
    assert typed(own, "--stored") == cli.EXIT_FAILED
    message = capsys.readouterr().err
    assert f"left out, measured of other weights: {own}" in message and "--keep" in message


def test_what_cannot_be_measured_is_refused_before_anything_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "measure_cell", lambda *_: pytest.fail("it flew"))
    for words, message in (
        (("cartpole-dqn", "--scheme", "quarl-released", "--activation-bits", "3"), "quantizes weights only"),
        (("XLII",), "XLII"),
        (("II", "--stored", "--update-docs"), "II alone"),
        (("--update-docs",), "--stored"),
    ):
        assert typed(*words) == cli.EXIT_USAGE
        assert message in capsys.readouterr().err
    for wrong, message in (
        (["--bits", "1"], "2 … 32"),
        (["--seeds", "0,0"], "twice"),
    ):
        with pytest.raises(SystemExit) as stopped:
            typed(*wrong)
        assert stopped.value.code == cli.EXIT_USAGE
        assert message in capsys.readouterr().err


def test_what_is_kept_names_code_that_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "CODE", tmp_path)

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    for name in ("code.py", "results/rows.jsonl", "docs/page.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("first")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    (tmp_path / "results" / "rows.jsonl").write_text("more rows")
    (tmp_path / "docs" / "page.md").write_text("their table")
    (tmp_path / "untracked").write_text("")
    running.refuse_dirty()
    git("tag", "v0.1")
    assert locate.code_version.__wrapped__() == "v0.1", "a row that was appended is no change of the code"
    (tmp_path / "code.py").write_text("changed")
    assert locate.code_version.__wrapped__() == "v0.1-dirty"
    with pytest.raises(command_line.BenchError, match=r"code\.py differ"):
        running.refuse_dirty()


def test_cells_in_processes_are_the_same_as_here(balancing: Callable[..., Bundle], tmp_path: Path) -> None:
    own = str(balancing(tmp_path / "by-hand").path)
    arguments = sweep.Options(bits=(3,), seeds=(1,), episodes=3)
    requested = running.cells(EXPERIMENT, arguments, [own])
    here, there = (
        {
            json.dumps(record["condition"]): record["returns"]
            for found in running.run("quarl.bench.study.sweep", requested, jobs, None)
            for record in found
        }
        for jobs in (1, 2)
    )
    assert here == there and len(here) == 5
