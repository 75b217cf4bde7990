"""The store keeps what it was given, whoever else writes."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quarl.bench.report import store
from quarl.bench.report.document import Report
from quarl.bench.report.store import StoreError
from tests.refusals import refused

Make = Callable[..., Report]


def test_round_trip_in_the_order_of_time(tmp_path: Path, latency_report: Make, success_report: Make) -> None:
    path = tmp_path / "new" / "results.jsonl"
    late = latency_report(time="2026-02-01T00:00:00.000+00:00")
    early = success_report(time="2026-01-01T00:00:00.000+00:00")
    store.add([late, early], path)
    assert store.read_results(path) == [early, late]


def test_the_same_measurement_twice_is_one(tmp_path: Path, latency_report: Make) -> None:
    path, report = tmp_path / "results.jsonl", latency_report()
    store.add([report], path)
    store.add([report, latency_report()], path)
    assert len(store.read_results(path)) == 2


def test_all_or_none(tmp_path: Path, latency_report: Make) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(ValueError, match="be true exactly"):
        store.add([latency_report(), latency_report(valid=False)], path)
    assert not path.exists()


WRITER = """
import json, sys
from pathlib import Path
from quarl.bench.report import store
from quarl.bench.report.document import Report
import dataclasses, uuid
base = Report.from_json(Path(sys.argv[1]).read_text())
for _ in range(40):
    store.add([dataclasses.replace(base, id=uuid.uuid4().hex)], Path(sys.argv[2]))
"""


def test_several_writers_at_once_lose_nothing(tmp_path: Path, latency_report: Make) -> None:
    path, base = tmp_path / "results.jsonl", tmp_path / "base.json"
    base.write_text(latency_report(runs=20).to_json())
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(base), str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(store.read_results(path)) == 120


def test_damage_and_absence_are_said(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with refused(StoreError, "nothing_measured"):
        store.read_results(path)
    path.write_bytes(b"\x80rubbish")
    with refused(StoreError, "unreadable_results"):
        store.prepare(path)


def test_a_disk_that_is_full_takes_nothing_of_what_is_stored(tmp_path: Path, latency_report: Make) -> None:
    path = tmp_path / "results.jsonl"
    limit, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    kept = b""
    try:
        for _ in range(2):  # into a new file, and into one that has a measurement
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) + 500, limit[1]))
            with pytest.raises(OSError, match=r"large|space"):
                store.add([latency_report()], path)
            assert (path.read_bytes() if path.exists() else b"") == kept
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            store.add([latency_report()], path)
            kept = path.read_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert len(store.read_results(path)) == 2


@pytest.mark.parametrize(("cut", "left"), [(200, 1), (1, 2)])
def test_half_a_last_line_is_left_out_and_a_whole_one_kept(
    cut: int, left: int, tmp_path: Path, latency_report: Make
) -> None:
    path = tmp_path / "results.jsonl"
    store.add([latency_report(), latency_report()], path)
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(store.read_results(path)) == left
    store.add([latency_report(target="pi@a\u2028b")], path)
    assert len(store.read_results(path)) == left + 1


def test_a_broken_line_is_named(tmp_path: Path, latency_report: Make) -> None:
    lines = tmp_path / "some.jsonl"
    store.write_lines([latency_report()], lines)
    lines.write_text(lines.read_text() + "\n" + lines.read_text()[:200] + "\n")
    with pytest.raises(StoreError, match="line 3: the report is not valid JSON"):
        store.read_results(lines)


def test_committed_results_go_before_this_machines_own(tmp_path: Path) -> None:
    (tmp_path / "case-study.jsonl").touch()
    assert store.results_for("case-study", tmp_path).name == "case-study.jsonl"
    assert store.results_for("latency-flown", tmp_path).name == "results.jsonl"
    assert store.results_for("case-study", tmp_path).name == "case-study.jsonl", "committed results win"
    assert store.results_for("case-study", tmp_path, own=True).name == "results.jsonl"


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
    assert store.read_results(lines) == sorted(more, key=lambda report: report.time)
    store.replace_lines({lines: more})
