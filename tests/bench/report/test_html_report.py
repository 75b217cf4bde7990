"""The HTML report's parts: what is missing is said, what comes from outside is escaped, nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from matplotlib.figure import Figure
from quarl.bench.registry_tmp import Declared, Kept, Made

from quarl.bench.page import command as html_report
from quarl.bench.page.bundles import tables_about
from quarl.bench.page.pictures import Picture, data_uri, small
from quarl.bench.page.sections import DEVICE, TABLES, Entry, anchor, beside, section, study_entries
from quarl.bench.page.sources import Sources
from quarl.bench.report.document import Report
from quarl.bench.report.store import StoreError, write_lines
from quarl.bench.report.text import figure_words
from quarl.bench.study import records
from quarl.bench.tables import Table
from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT as ROOT

Write = Callable[..., Bundle]
Make = Callable[..., Report]
HOSTILE = "<img src=x onerror=alert(1)>&\"'`</style>"


@pytest.fixture
def empty(tmp_path: Path) -> Sources:
    return Sources(tmp_path / "results", tmp_path / "zoo")


class Seen(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        self.words += data

    def values(self, name: str) -> list[str]:
        return [value for _, found, value in self.attributes if found == name]


# --- sections --------------------------------------------------------------------------------------------------------


def test_with_nothing_stored_every_section_says_which_command_makes_it(empty: Sources) -> None:
    document = html_report.collect(empty)
    assert document.pages == []
    entries = (*DEVICE, *study_entries(empty))
    assert len(entries) > 7 and document.findings == []
    assert [each.title for each in document.missing] == [entry.title for entry in entries]
    seen = Seen(html_report.render(document))
    for entry in entries:
        assert f"Type: {entry.command}" in seen.words
    assert str(ROOT) not in seen.words
    assert "img" not in seen.tags


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Table:
    """What the table ``there`` of the registry is; ``missing`` has no results, and ``broken`` has a fault."""
    table = Table("there", "T", ("a",), (("1",),))

    def missing(kept: Kept) -> Made:
        raise StoreError(f"{ROOT}/results/x.json does not exist.\n  next: something")

    def broken(kept: Kept) -> Made:
        raise ZeroDivisionError

    monkeypatch.setitem(TABLES, "there", Declared("make a", lambda kept: (table, [])))
    monkeypatch.setitem(TABLES, "missing", Declared("make b", missing))
    monkeypatch.setitem(TABLES, "broken", Declared("make c", broken))
    return table


def test_a_section_with_results_is_there_and_one_without_is_said_to_be_missing(empty: Sources, there: Table) -> None:
    found = section(Entry("a b", "A", "make a", ("missing", "there")), empty, "a-b")
    assert (found.anchor, found.tables, found.missing) == ("a-b", [there], "")
    left_out = section(Entry("a b", "A", "make b", ("missing",)), empty, "a-b-2")
    assert (left_out.anchor, left_out.tables) == ("a-b-2", ())
    assert left_out.missing == "results/x.json does not exist."
    nothing = section(next(entry for entry in study_entries(empty) if entry.name == "qat"), empty, "c")
    assert nothing.missing == "Its results are not stored yet."


def test_a_fault_in_a_section_is_not_taken_for_missing_results(empty: Sources, there: Table) -> None:
    with pytest.raises(ZeroDivisionError):
        section(Entry("a", "A", "make a", ("broken",)), empty, "a")


def test_a_damaged_result_is_said_to_be_damaged(empty: Sources) -> None:
    empty.results.mkdir()
    (empty.results / "case-study.jsonl").write_text("{")
    entry = next(entry for entry in DEVICE if entry.name == "case-study")
    assert "case-study.jsonl, line 1" in section(entry, empty, "case-study").missing


# --- sources ---------------------------------------------------------------------------------------------------------


def kept(sources: Sources, study: str, subjects: dict[str, str], machine: str = "this one") -> None:
    """Copy what the repository keeps of a study about these subjects, with the identities that are given."""
    path = f"study/{study}.jsonl"
    found = [
        {**record, "identity": subjects[record["subject"]] or record["identity"], "machine": machine}
        for record in records.read(ROOT / "results" / path)
        if record["subject"] in subjects
    ]
    assert found
    records.append(sources.results / path, found)


def test_what_is_of_other_weights_than_the_bundles_is_left_out(empty: Sources) -> None:
    kept(empty, "sweep", {"cartpole-dqn": "of other weights", "pendulum-ppo": ""})
    _, results = empty.studies["sweep"]
    assert results is not None
    assert results.subjects == ["pendulum-ppo"]
    assert empty.studies["qat"][1] is None, "nothing is stored of it"


def test_what_this_machine_measured_stands_beside_the_committed_results(
    empty: Sources, latency_report: Make, success_report: Make
) -> None:
    from quarl.bench.report import store

    entry = next(entry for entry in DEVICE if entry.name == "case-study")
    committed = [latency_report("I", "fp32", 4000), latency_report("I", "int8", 1000)]
    write_lines(
        [*committed, *(success_report("I", each) for each in ("fp32", "int8"))], empty.results / "case-study.jsonl"
    )
    store.add([latency_report("I", "fp32", 4000), latency_report("I", "int8", 2000)], empty.results / "results.jsonl")
    (first,) = section(entry, empty, "case-study").own.values()
    assert first.headers[:3] == ("policy", "speed", "committed")
    assert [cell.partition("×")[0] for cell in first.rows[0][:3]] == ["I", "2.00", "4.00"]
    assert any("measured on this machine" in what for what in html_report.machines(empty).values())


def test_a_policy_that_is_not_committed_has_dashes_beside_it() -> None:
    own = Table("summary", "T", ("policy", "precision", "p50", "paper's p50"), (("I", "fp32", "1", "9"), ()), ("n",), 2)
    made = beside(own, replace(own, rows=(("II", "fp32", "2", "9"),)))
    assert made.headers == ("policy", "precision", "p50", "committed")
    assert made.rows == (("I", "fp32", "1", "–"),)


def test_each_machine_that_a_number_comes_from_is_named(empty: Sources) -> None:
    assert html_report.machines(empty) == {}
    for name, machine in (("sweep", "first"), ("cells", "second"), ("qat", "first")):
        kept(empty, name, {"cartpole-dqn": ""}, machine)
    assert html_report.machines(Sources(empty.results, empty.zoo)) == {
        "first": "sweep, qat",
        "second": "cells",
    }


def test_the_report_begins_with_findings_from_the_rows(
    empty: Sources, latency_report: Make, success_report: Make
) -> None:
    made = [latency_report("I", "fp32", 3000), latency_report("I", "int8", 1000)]
    flown = [success_report("I", "fp32"), success_report("I", "int8")]
    write_lines([*made, *flown], empty.results / "case-study.jsonl")
    (case,) = html_report.findings(empty)
    assert "int8 decides up to 3.00× [3.00, 3.00] as fast as fp32" in case


# --- pages -----------------------------------------------------------------------------------------------------------


def test_a_page_holds_what_its_bundle_says(empty: Sources, balancing: Write) -> None:
    bundle = balancing(
        empty.zoo / "benchmark" / "cartpole-dqn", training={"greedy_return": 499.5}, settings={"learning_rate": 0.0007}
    )
    kept(empty, "sweep", {"cartpole-dqn": "", "pendulum-ppo": ""})
    document = html_report.collect(empty)
    assert document.page_anchors == {"cartpole-dqn": "policy-cartpole-dqn"}
    (page,) = document.pages
    ((asked, tables),) = page.tables
    assert asked.entry.title == "How few bits does a policy take?"
    assert {row[0] for table in tables for row in table.rows if row} == {"cartpole-dqn"}
    words = Seen(html_report.render(document)).words
    for answer in (
        "dqn", "1,000", "7.2", "499.5", "learning_rate", "0.0007",
        bundle.manifest.files["weights.safetensors"].sha256[:16],
        "2, relu; 16 weights and biases",  # 4 · 2 + 2 of the layer and 2 · 2 + 2 of the head
    ):  # fmt: skip
        assert answer in words, answer


def test_rows_about_a_bundle() -> None:
    rows = (("I, n=9", "a"), ("", "b"), (), ("II, n=9", "c"), ("", "d"))
    table = Table("t", "T", ("policy", "x"), rows, ("note",), left=2)
    (found,) = tables_about([table], "II")
    assert (found.rows, found.notes) == (rows[3:], ())
    assert tables_about([table], "III") == []
    by_cell = replace(table, rows=(("cartpole", "dqn"),))
    assert tables_about([table, by_cell], "cartpole-dqn") == [replace(by_cell, notes=())]


def test_a_picture_is_of_the_bundle_that_its_name_ends_with(empty: Sources, balancing: Write) -> None:
    for name in ("cartpole-dqn", "dqn"):
        balancing(empty.zoo / name)
    assert empty.bundle_of("sweetspot-cartpole-dqn") == "cartpole-dqn"
    assert empty.bundle_of("width-and-error") == ""


def test_names_from_outside_are_text_and_nothing_else(empty: Sources, balancing: Write) -> None:
    # A policy's own name cannot be hostile: policy/json_values.py.
    balancing(empty.zoo / "hostile", algorithm=HOSTILE, task="<script>alert(1)</script>", how="javascript:alert(1)")
    document = html_report.collect(empty)
    html = html_report.render(document)
    seen = Seen(html)
    assert "script" not in seen.tags
    assert not [name for _, name, _ in seen.attributes if name.startswith("on") or name == "style"]
    assert HOSTILE in seen.words
    assert "<script>alert(1)</script>" in seen.words
    assert all(value.startswith("data:image/svg+xml,") for value in seen.values("src"))
    assert all(value.startswith("#") or value == "data:," for value in seen.values("href"))
    (page,) = document.pages
    assert re.fullmatch(r"[a-z0-9-]+", page.anchor)


def test_nothing_can_be_fetched_and_the_style_is_the_one_that_is_allowed(empty: Sources) -> None:
    html = html_report.render(html_report.collect(empty))
    policy = next(value for value in Seen(html).values("content") if "default-src" in value)
    style = re.search(r"<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'", "img-src data:", f"style-src 'sha256-{digest}'", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def said(empty: Sources, write: Write, name: str, **provenance: object) -> dict[str, str]:
    """What the page of a bundle with this provenance says, by name."""
    write(empty.zoo / name, **provenance)
    html = html_report.render(html_report.collect(Sources(empty.results, empty.zoo)))
    page = html[html.index(f'id="policy-{name}"') :]
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page[: page.index("</section>")], re.DOTALL)
    return {name: words.replace("&#39;", "'") for name, words in facts}


@pytest.mark.parametrize(
    ("provenance", "words"),
    [
        ({"training": {"greedy_return_hard": 5.28245, "greedy_return_shipped": 6.0}}, "hard 5.282, shipped 6"),
        ({"training": {"loss": 1.0}, "best_evaluation": -2565.46}, "−2,565"),
        ({"training": {"return": 20.0}}, "20"),
        ({"training": None}, "–"),
    ],
)
def test_the_return_in_training(empty: Sources, balancing: Write, provenance: dict[str, object], words: str) -> None:
    assert said(empty, balancing, "mine", **provenance)["return in training"] == words


def test_what_provenance_says_in_words(empty: Sources, balancing: Write) -> None:
    judged = [
        {"preset": "hard", "episodes": 3000, "mean_return": 5.2, "success": 0.9127, "interval_95": [0.9, 0.92]},
        {"preset": "", "episodes": 100, "mean_return": 499.5, "return_interval_t_95": [499.0, 500.0]},
        {"preset": "", "episodes": 4, "mean_return": 0.0, "return_interval_95": [-1.96, 1.96]},
        {"preset": "", "episodes": 100, "mean_return": 500.0, "return_interval_95": [500.0, 500.0]},
    ]
    assert said(empty, balancing, "mine", judged=judged)["judged after training"] == (
        "hard: 5.2, success 91.3 % [90.0, 92.0] (3,000 episodes); 499.5 [499, 500] (100 episodes); "
        "0 [−3.182, 3.182] (4 episodes); 500 (100 episodes)"
    )
    assert [figure_words(value) for value in (8003584, 132.44, -0.00012345, None, "x", True)] == [
        "8,003,584", "132.4", "−0.0001234", "–", "x", "True",
    ]  # fmt: skip


# --- tables and pictures ---------------------------------------------------------------------------------------------


def test_rows_of_a_table_in_groups_and_with_their_pages() -> None:
    table = Table("t", "T", ("a", "b"), ((), ("1", "2"), ("3", "4"), (), (), ("5", "6"), ()))
    assert html_report.table_bodies(table) == [[("1", "2"), ("3", "4")], [("5", "6")]]
    pages = {"I": "policy-i", "cartpole-dqn": "policy-cartpole-dqn"}
    assert html_report.page_of_row(("I", "fp32", "I"), 2, pages) == (0, "policy-i")
    assert html_report.page_of_row(("classic", "cartpole", "dqn", "500"), 3, pages) == (1, "policy-cartpole-dqn")
    assert html_report.page_of_row(("x", "I"), 1, pages) == (-1, "")  # a number that looks like a name
    narrow = Table("t", "T", ("a", "b"), (("x" * 56, "y"), ("x", "y" * 60)))
    assert not html_report.is_wide(narrow)  # 56 + 2 + 60 + 2 = 120 characters
    assert html_report.is_wide(replace(narrow, rows=(*narrow.rows, ("x" * 57, "y"))))
    assert not html_report.is_wide(replace(narrow, rows=()))


def test_backticks_are_code_and_all_is_escaped() -> None:
    assert html_report.marked("type `make <x>` & go") == "type <code>make &lt;x&gt;</code> &amp; go"
    assert html_report.marked("one ` alone") == "one ` alone"
    assert html_report.marked("`a` and ` alone") == "<code>a</code> and ` alone"


def test_a_picture_is_made_smaller_without_being_another() -> None:
    svg = b"""<?xml version="1.0"?><!-- made by --><svg xmlns="http://www.w3.org/2000/svg"
      xmlns:xlink="http://www.w3.org/1999/xlink" width="460.8pt"><metadata>who</metadata>
      <defs><path id="a" d="M 1.23456 2.5 \n L 3.0 -7.126" transform="scale(0.015625)"/></defs>
      <use xlink:href="#a" x="10.999" y="4"/><text> kept </text></svg>"""
    assert small(svg) == (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="460.8pt"><defs>'
        '<path id="a" d="M 1.23 2.5 L 3 -7.13" transform="scale(0.015625)" /></defs>'
        '<use xlink:href="#a" x="11" y="4" /><text> kept </text></svg>'
    )


def test_a_picture_is_its_own_address() -> None:
    figure = Figure(figsize=(6.0, 3.0))
    figure.subplots().plot([0, 1], [1, 0])
    picture = Picture.of(figure)
    assert (picture.width, picture.height, picture.size) == (576, 288, "medium")
    head, _, rest = picture.data.partition(",")
    assert head == "data:image/svg+xml"
    assert not set('<>"#') & set(rest)
    svg = unquote(rest)
    assert svg.startswith("<svg ")
    assert data_uri(svg) == picture.data
    assert Picture.of(figure) == picture  # and the same again


def test_anchors_are_given_once() -> None:
    given = {"top"}
    names = ["policy I", "policy i", "Top", "…", "—", "pong_ppo"]
    assert [anchor(name, given) for name in names] == ["policy-i", "policy-i-2", "top-2", "part", "part-2", "pong-ppo"]


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_one_file_and_says_what_is_missing(
    tmp_path: Path, balancing: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    balancing(tmp_path / "zoo" / "mine")
    output = tmp_path / "new" / "report.html"
    arguments = ["--results", str(tmp_path / "results"), "--zoo", str(tmp_path / "zoo"), "--output", str(output)]
    assert html_report.main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["bytes"] == output.stat().st_size
    assert answer["missing"]["How few bits does a policy take?"] == "quarl study sweep --keep"
    assert html_report.main(arguments) == 0
    heard = capsys.readouterr()
    assert heard.out == f"{output}\n"
    assert (
        "left out, for nothing is stored: How few bits does a policy take? (type: quarl study sweep --keep)"
        in heard.err
    )
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def test_a_damaged_bundle_is_named(tmp_path: Path, balancing: Write, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = balancing(tmp_path / "zoo" / "mine")
    (bundle.path / "weights.safetensors").write_bytes(b"cut off")
    output = tmp_path / "report.html"
    assert html_report.main(["--zoo", str(tmp_path / "zoo"), "--output", str(output)]) == 1
    assert "weights.safetensors" in capsys.readouterr().err
    assert not output.exists()
