"""The page: the numbers of the rows stand on it, what is missing has its command, and nothing on it can act."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from quarl.bench import case_study, page, page_content, virtual_pi
from quarl.bench.paper import THEMES
from quarl.bench.report import store
from quarl.bench.report.document import Report
from quarl.bench.report.selection import Selection
from quarl.bench.report.text import kilobytes, megabytes, percent
from quarl.bench.tables import Table
from quarl.policy.places import PROJECT_ROOT, RESULTS

Make = Callable[..., Report]
HOSTILE = "<img src=x onerror=alert(1)>&\"'</style><script>alert(1)</script>"
FORBIDDEN = {"script", "link", "iframe", "object", "embed", "form", "base"}


class Seen(HTMLParser):
    """Tags, attributes, text, and the cells of each row of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words, self.rows = "", list[list[str]]()
        self.feed(re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))
        self.rows = [[cell.strip() for cell in row] for row in self.rows]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attributes]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.words += data
        if {"td", "th", "span"} & set(self.tags[-1:]):
            self.rows[-1][-1] += data

    def values(self, name: str) -> list[str]:
        return [value for found, value in self.attributes if found == name]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results; nothing is known of the paper, whose rows are slow to read."""
    monkeypatch.setattr(store, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(page_content, "make_tables", lambda names, preset, missing: {})
    return tmp_path / "results"


def cases(latency_report: Make, memory_report: Make, success_report: Make, **changes: Any) -> list[Report]:
    """Policy I, whose int8 is three times as fast as fp32."""
    found = [latency_report("I", "fp32", 3000, **changes), latency_report("I", "int8", 1000, **changes)]
    found += [make("I", each, **changes) for make in (memory_report, success_report) for each in ("fp32", "int8")]
    return found


def rendered() -> Seen:
    return Seen(page.render(page_content.collect("hard")))


# --- the committed results --------------------------------------------------------------------------------------------


def test_each_policy_and_precision_has_its_numbers(committed_page: Path) -> None:
    seen = Seen(committed_page.read_text(encoding="utf-8"))
    selection = Selection.of_target(page_content.read_reports(RESULTS / "case-study.jsonl"))
    rows = [row for row in case_study.rows_of(selection, "hard") if row["policy"] in page_content.POLICIES]
    assert {(row["policy"], row["precision"]) for row in rows} >= {
        (policy, precision) for policy in page_content.POLICIES for precision in ("fp32", "fp16", "int8")
    }
    for row in rows:
        lead = [row["policy"], row["precision"]]
        for numbers in (
            [row["p50"], row["p99"], row["over_fp32"]],
            [kilobytes(row["bytes"]), megabytes(row["memory"].resident)],
            [percent(row["success"][0])],
        ):
            assert any(found[: 2 + len(numbers)] == [*lead, *numbers] for found in seen.rows), (lead, numbers)
    assert case_study.finding(selection) in seen.words


def test_each_claim_of_the_paper_has_its_verdict(committed_page: Path) -> None:
    html = committed_page.read_text(encoding="utf-8")
    rows = {row[0]: row[1] for row in Seen(html).rows if len(row) == 4}
    claims = [finding.claim for _, findings in THEMES.values() for finding in findings]
    assert [claim for claim in claims if claim not in rows] == []
    pages = (PROJECT_ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    for claim in claims:
        assert re.search(rf"^\| {re.escape(claim)} \|.*\| {rows[claim]} \|$", pages, re.MULTILINE), claim


def test_instructions_and_the_recommendation_stand_there(committed_page: Path) -> None:
    rows = Seen(committed_page.read_text(encoding="utf-8")).rows
    counted = virtual_pi.rows_of(page_content.read_reports(RESULTS / "virtual-pi.jsonl"), "hard", virtual_pi.TARGET)
    for row in counted:
        if row["runtime"] == "litert" and row["precision"] in ("fp32", "int8"):
            assert [row["policy"], row["precision"], "litert", f"{row['warm']['instructions']:,}"] in [
                r[:4] for r in rows
            ]
    answer = json.loads((RESULTS / "recommend.json").read_text(encoding="utf-8"))
    chosen = answer["recommended"]
    assert [chosen["precision"], chosen["runtime"], "chosen"] in [row[:3] for row in rows]


def test_it_is_read_in_ten_minutes(committed_page: Path) -> None:
    html = committed_page.read_text(encoding="utf-8")
    assert len(Seen(html).words.split()) <= 2500
    assert len(html.encode()) <= 500_000


# --- what is missing, what is this machine's own ----------------------------------------------------------------------


def test_with_nothing_stored_each_measurement_has_its_command(results: Path) -> None:
    document = page_content.collect("hard")
    assert document["missing"]["Policy III, latency"] == "quarl bench latency --policy III"
    assert {document["missing"][f"Policy {each}, success"] for each in page_content.POLICIES} == {
        f"quarl bench success --policy {each}" for each in page_content.POLICIES
    }
    assert not document["questions"]
    seen = rendered()
    assert all(command in seen.words for command in document["missing"].values())
    assert "svg" not in seen.tags


def test_only_what_is_missing_is_listed(
    results: Path, latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    found = cases(latency_report, memory_report, success_report)
    store.write_lines(
        [each for each in found if not (each.memory and each.precision == "int8")], results / "case-study.jsonl"
    )
    missing = page_content.collect("hard")["missing"]
    assert missing["Policy I, memory"] == "quarl bench memory --policy I"
    assert not {"Policy I, latency", "Policy I, success", "Times on a Raspberry Pi"} & set(missing)
    assert "3.00× [3.00, 3.00] (I) as fast as fp32" in rendered().words


def test_a_table_that_cannot_be_made_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {"a": (Table("a", "A", ("x",), (("1",),)), [])}
    skipped = {"b": "b.json does not exist: nothing was asked yet.\n  next: quarl recommend II"}
    monkeypatch.setattr("quarl.bench.table.tables", lambda options: (made, skipped))
    missing: dict[str, str] = {}
    assert list(page_content.make_tables(("a", "b"), "hard", missing)) == ["a"]
    assert missing == {"Table b": "quarl recommend II"}


def test_own_measurements_stand_above_the_committed_ones(
    results: Path, latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    found = cases(latency_report, memory_report, success_report)
    store.write_lines(found, results / "case-study.jsonl")
    own = [latency_report("I", "fp32", 8000, target="my-pi"), latency_report("I", "int8", 2000, target="my-pi")]
    store.write_lines(own, results / "results.jsonl")
    (table,) = page_content.collect("hard")["own"]
    assert [row[:5] for row in table.rows if row[1] == "int8"] == [
        ("I", "int8", "my-pi", "2.00 µs", "4.00× [4.00, 4.00]"),
        ("I", "int8", "committed", "1.00 µs", "3.00× [3.00, 3.00]"),
    ]
    assert "my-pi" in rendered().words


def test_own_measurements_alone_answer_the_questions(
    results: Path, latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    store.write_lines(cases(latency_report, memory_report, success_report), results / "results.jsonl")
    document = page_content.collect("hard")
    assert len(document["questions"]) == 3 and not document["own"]
    assert "This machine's own measurements" not in document["missing"]


def test_times_of_an_emulator_are_not_drawn(
    results: Path, latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    device = {**latency_report().device, "emulated": True}
    store.write_lines(cases(latency_report, memory_report, success_report, device=device), results / "case-study.jsonl")
    speed, memory, _ = page_content.collect("hard")["questions"]
    assert not speed.picture and memory.picture
    assert speed.table.rows[1][2] == "0.333×"  # of fp32's p50 in the same run


# --- what a page may do -----------------------------------------------------------------------------------------------


def test_names_from_outside_are_text_and_nothing_else(
    results: Path, latency_report: Make, memory_report: Make, success_report: Make
) -> None:
    found = cases(latency_report, memory_report, success_report, device={**latency_report().device, "model": HOSTILE})
    store.write_lines([replace(each, policy=HOSTILE) for each in found], results / "case-study.jsonl")
    seen = rendered()
    assert HOSTILE in seen.words
    assert not FORBIDDEN - {"link"} & set(seen.tags) and "img" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name == "style"]


def test_nothing_can_be_fetched_and_the_style_is_the_one_that_is_allowed(committed_page: Path) -> None:
    html = committed_page.read_text(encoding="utf-8")
    seen = Seen(html)
    policy = next(value for value in seen.values("content") if "default-src" in value)
    style = re.search(r"<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'", "img-src data:", f"style-src 'sha256-{digest}'", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    assert "url(" not in style[1] and "@import" not in style[1]
    assert "style" not in [name for name, _ in seen.attributes]
    assert not seen.values("src")


def test_pictures_share_no_ids_and_refer_to_their_own(committed_page: Path) -> None:
    html = committed_page.read_text(encoding="utf-8")
    pictures = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    assert len(pictures) == 3
    ids = [set(re.findall(r' id="(.*?)"', picture)) for picture in pictures]
    assert not ids[0] & ids[1] and not ids[1] & ids[2] and not ids[0] & ids[2]
    for picture, own in zip(pictures, ids, strict=True):
        assert {*re.findall(r'href="#(.*?)"', picture), *re.findall(r"url\(#(.*?)\)", picture)} <= own
        assert "the paper's" in picture or "artifact" in picture


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_one_file_and_names_what_is_missing(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "report.html"
    assert page.main(["--output", str(output), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"ok", "file", "bytes", "seconds", "missing"}
    assert (answer["file"], answer["bytes"]) == (str(output), output.stat().st_size)
    assert page.main(["--output", str(output)]) == 0
    heard = capsys.readouterr()
    assert heard.out == f"{output}\n"
    assert all(title in heard.err and command in heard.err for title, command in answer["missing"].items())
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def test_a_damaged_result_is_named(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.mkdir()
    (results / "case-study.jsonl").write_text("{")
    assert page.main(["--output", str(tmp_path / "report.html"), "--json"]) == 1
    assert "case-study.jsonl" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()
