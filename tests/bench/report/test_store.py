"""The store keeps what it was given, whoever else writes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.report import store
from bench.report.document import Kind, Report
from bench.report.store import StoreError

Make = Callable[..., Report]


def test_round_trip_in_the_order_of_time(tmp_path: Path, latency_report: Make, success_report: Make) -> None:
    path = tmp_path / "new" / "results.sqlite"
    late = latency_report(time="2026-02-01T00:00:00.000+00:00")
    early = success_report(time="2026-01-01T00:00:00.000+00:00")
    assert store.add([late, early], path) == 2
    assert store.read_store(path) == [early, late]
    assert store.read_store(path, kind=Kind.LATENCY) == [late]
    assert store.read_store(path, policy="II") == []


def test_the_same_measurement_twice_is_one(tmp_path: Path, latency_report: Make) -> None:
    path, report = tmp_path / "results.sqlite", latency_report()
    assert store.add([report], path) == 1
    assert store.add([report, latency_report()], path) == 1
    assert len(store.read_store(path)) == 2


def test_nothing_is_changed_or_deleted(tmp_path: Path, latency_report: Make) -> None:
    path = tmp_path / "results.sqlite"
    store.add([latency_report()], path)
    with sqlite3.connect(path) as connection:
        for statement in ("UPDATE measurements SET policy = 'X'", "DELETE FROM measurements"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    assert store.read_store(path)[0].policy == "I"


def test_all_or_none(tmp_path: Path, latency_report: Make) -> None:
    path = tmp_path / "results.sqlite"
    with pytest.raises(ValueError, match="contradict"):
        store.add([latency_report(), latency_report(valid=False)], path)
    assert not path.exists()


WRITER = """
import json, sys
from pathlib import Path
from bench.report import store
from bench.report.document import Report
import dataclasses, uuid
base = Report.from_json(Path(sys.argv[1]).read_text())
for _ in range(40):
    store.add([dataclasses.replace(base, id=uuid.uuid4().hex)], Path(sys.argv[2]))
"""


def test_several_writers_at_once_lose_nothing(tmp_path: Path, latency_report: Make) -> None:
    path, base = tmp_path / "results.sqlite", tmp_path / "base.json"
    base.write_text(latency_report(runs=20).to_json())
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(base), str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(store.read_store(path)) == 120
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_of_another_version_is_refused(tmp_path: Path, latency_report: Make) -> None:
    path = tmp_path / "results.sqlite"
    store.add([latency_report()], path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="version 7; this program reads 1"):
        store.read_store(path)
    with pytest.raises(StoreError, match="version 7"):
        store.add([latency_report()], path)


def test_damage_and_absence_are_said(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with pytest.raises(StoreError, match=r"does not exist.*\n.*python bench/latency.py"):
        store.read_store(path)
    path.write_bytes(b"SQLite format 3\0" + b"rubbish" * 100)
    with pytest.raises(StoreError, match=r"results\.sqlite"):
        store.read_store(path)


def test_lines_carry_measurements_to_another_store(tmp_path: Path, latency_report: Make, success_report: Make) -> None:
    own, lines, other = tmp_path / "own.sqlite", tmp_path / "some.jsonl", tmp_path / "other.sqlite"
    reports = [latency_report(), success_report()]
    store.add(reports, own)
    assert store.write_lines(store.read_results(own), lines) == 2
    assert store.read_results(lines) == store.read_results(own)
    assert store.add(store.read_results(lines), other) == 2
    assert store.add(store.read_results(lines), other) == 0


def test_a_broken_line_is_named(tmp_path: Path, latency_report: Make) -> None:
    lines = tmp_path / "some.jsonl"
    store.write_lines([latency_report()], lines)
    lines.write_text(lines.read_text() + "\n" + lines.read_text()[:200] + "\n")
    with pytest.raises(StoreError, match="line 3: the report is not valid JSON"):
        store.read_results(lines)


def test_committed_results_go_before_this_machines_own(tmp_path: Path) -> None:
    (tmp_path / "case-study.jsonl").touch()
    assert store.results_for("case-study", tmp_path).name == "case-study.jsonl"
    assert store.results_for("latency-flown", tmp_path).name == "results.sqlite"
    (tmp_path / "results.sqlite").touch()
    assert store.results_for("case-study", tmp_path).name == "case-study.jsonl", "committed results win"
    assert store.results_for("case-study", tmp_path, own=True).name == "results.sqlite"


def test_lines_are_not_replaced_by_less(tmp_path: Path, latency_report: Make, success_report: Make) -> None:
    lines, other = tmp_path / "case-study.jsonl", tmp_path / "zoo.jsonl"
    store.write_lines([latency_report("I"), success_report("I", episodes=3000)], lines)
    before = lines.read_bytes()
    few = [latency_report("I"), success_report("I", episodes=300)]
    none, shipped = [latency_report("I")], [latency_report("I"), success_report("I", episodes=3000, preset="shipped")]
    for reports, words in ((few, "300 instead of 3,000 episodes"), (none, "none of that"), (shipped, "none of that")):
        with pytest.raises(StoreError, match=f"success I int8 litert hard, .* {words}"):
            store.replace_lines({other: few, lines: reports})
        assert lines.read_bytes() == before
        assert not other.exists(), "all or nothing"
    more = [latency_report("I"), latency_report("II"), success_report("I", episodes=5000)]
    store.replace_lines({other: few, lines: more})
    assert store.read_lines(lines) == more
    store.replace_lines({lines: more})
