"""One HTML file of everything that is stored: findings, this machine's own, every study, every bundle."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat
from quarl.policy.places import RESULTS

if TYPE_CHECKING:
    from markupsafe import Markup

    from quarl.bench.page.bundles import Page
    from quarl.bench.page.sections import Entry, Section
    from quarl.bench.page.sources import Sources
    from quarl.bench.tables import Table

WIDE_CHARACTERS = 120  # of a table's row, that fit beside the contents on a usual screen
TEMPLATES = Path(__file__).with_name("templates")
OUTPUT = RESULTS / "report.html"


@dataclass(frozen=True)
class Document:
    """What the template shows.

    Attributes:
        made: date and time, UTC.
        code: version of the code that made the report.
        machines: where the numbers come from, and which.
        findings: what a reader should know first.
        groups: the sections, by the heading in the navigation.
        index: all bundles.
        pages: one for each bundle.
    """

    made: str
    code: str
    machines: Mapping[str, str]
    findings: Sequence[str]
    groups: Mapping[str, Sequence[Section]]
    index: Table
    pages: Sequence[Page]

    @property
    def page_anchors(self) -> dict[str, str]:
        """Anchor of each bundle's page by its name."""
        return {page.row["policy"]: page.anchor for page in self.pages}

    @property
    def missing(self) -> list[Entry]:
        """Entries that were left out."""
        return [section.entry for group in self.groups.values() for section in group if section.missing]


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Printing):
    """Of what, and where it goes.

    Attributes:
        output: the file
        open: show it in the browser
        preset: of the arena
        results: folder of stored results (default: results/)
        zoo: folder of the bundles (default: zoo/)
    """

    output: Path = OUTPUT
    open: bool = False
    preset: Literal["easy", "medium", "shipped", "hard"] = "hard"
    results: Path | None = None
    zoo: Path | None = None


@heartbeat()
@cli.verb()
def page(options: Options) -> int:
    """One HTML file of everything that is stored: findings, this machine's own, every study, every bundle.

        quarl page                            results/report.html
        quarl page --open                     and show it in the browser
        quarl page --output /tmp/report.html

    It is self-contained: opened by a double click, it needs no network and no script. Tables and pictures are those of
    the commands that measured (make table, quarl study NAME), made from results/ and zoo/. Nothing is
    measured; what is not stored yet is left out with a line that says which command makes it.
    """
    from quarl.bench.page.sources import RESULTS, ZOO, Sources
    from quarl.policy.files import write_atomically

    began = time.monotonic()
    document = collect(Sources(options.results or RESULTS, options.zoo or ZOO, options.preset))
    text = render(document).encode()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output, text)
    seconds = time.monotonic() - began
    left_out = {entry.title: entry.command for entry in document.missing}
    if options.json:
        values = {"file": str(options.output), "bytes": len(text), "seconds": round(seconds, 1), "missing": left_out}
        print(json.dumps({"ok": True, **values}, ensure_ascii=False))
    else:
        for title, command in left_out.items():
            command_line.say(f"left out, for nothing is stored: {title} (type: {command})")
        command_line.say(f"{len(text) / 1e6:.1f} MB in {seconds:.0f} s")
        print(options.output)
    if options.open:
        import webbrowser

        webbrowser.open(options.output.resolve().as_uri())
    return cli.EXIT_OK


def collect(sources: Sources) -> Document:
    """Everything that is stored, drawn and tabulated."""
    from quarl.bench.page import bundles, sections
    from quarl.policy.locate import code_version

    entries = {"On a device": sections.DEVICE, "Studies": sections.study_entries(sources)}
    groups: dict[str, list[Section]] = {title: [] for title in entries}
    total = sum(map(len, entries.values())) + len(sources.bundles)
    given, done, pages = {"top", "policies", "contents"}, itertools.count(1), []
    with command_line.progress_bar("drawing") as progress:
        for title, group in entries.items():
            for entry in group:
                groups[title].append(sections.section(entry, sources, sections.anchor(entry.name, given)))
                progress(next(done), total)
        for name, bundle in sources.bundles.items():
            every = [section for group in groups.values() for section in group]
            pages.append(bundles.page(bundle, sections.anchor(f"policy {name}", given), every))
            progress(next(done), total)
    return Document(
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        code_version(),
        machines(sources),
        findings(sources),
        groups,
        bundles.INDEX.table(sources.bundles.values()),
        pages,
    )


def findings(sources: Sources) -> list[str]:
    """What a reader should know first: what the case study's rows say."""
    from quarl.bench import case_study
    from quarl.bench.page.sections import MISSING

    with suppress(*MISSING):
        return [case_study.finding(sources.kept.selection(case_study.CASE_STUDY), sources.preset)]
    return []


def machines(sources: Sources) -> dict[str, str]:
    """Each machine that numbers come from, and which numbers."""
    from quarl.bench.report.store import StoreError
    from quarl.bench.report.text import machine

    found: dict[str, dict[str, None]] = {}
    for table in ("case-study", "latency-flown", "virtual-pi"):
        with suppress(StoreError):  # its section says so
            for report in sources.kept.reports(table):
                emulated = " (emulated)" if report.device.get("emulated") else ""
                found.setdefault(machine(report.device) + emulated, {})[table] = None
    for kept in sources.own.values():
        for report in kept.selection("case-study").reports:
            found.setdefault(machine(report.device), {})["measured on this machine"] = None
    for name, (_, results) in sources.studies.items():
        for record in results.found if results is not None else ():
            found.setdefault(record["machine"], {})[name] = None
    return {machine: ", ".join(what) for machine, what in found.items()}


def render(document: Document) -> str:
    """The HTML; everything that is not the template's own is escaped."""
    import jinja2
    from markupsafe import Markup

    from quarl.bench.report import text

    environment = text.environment().overlay(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True)
    environment.filters = {**environment.filters, "marked": marked}
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        document=document,
        style=Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        table_bodies=table_bodies,
        is_wide=is_wide,
        page_of_row=lambda row, left: page_of_row(row, left, document.page_anchors),
    )


def marked(text: str) -> Markup:
    """Text with what stands between backticks as code; everything is escaped."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def table_bodies(table: Table) -> list[list[tuple[str, ...]]]:
    """Rows in groups: an empty row is a rule between two of them."""
    return [list(rows) for are_rows, rows in itertools.groupby(table.rows, bool) if are_rows]


def is_wide(table: Table) -> bool:
    """Whether its intervals should stand below their numbers, so that more of it is seen at once."""
    return sum(max(map(len, column)) + 2 for column in zip(*filter(None, table.rows), strict=True)) > WIDE_CHARACTERS


def page_of_row(row: Sequence[str], left: int, pages: dict[str, str]) -> tuple[int, str]:
    """Column and anchor of a row's policy: a leading cell is its name, or two of them are task and method.

    (−1, "") where the row is of no policy.
    """
    for index, cell in enumerate(row[:left]):
        if cell in pages:
            return index, pages[cell]
        if index and (name := f"{row[index - 1]}-{cell}") in pages:
            return index - 1, pages[name]
    return -1, ""


main = cli.of("page")

if __name__ == "__main__":
    raise SystemExit(main())
