"""The report's sections, in order, and which command makes the results of each: the device's, and one for each study.

A study that is declared as an experiment has its section by itself. While its results are missing, a section is left
out with a line that says what to type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from bench.command_line import BenchError
from bench.page.parts import Anchors, Block, Part, Picture, Section
from bench.page.sources import ROOT, Sources, joining
from bench.report.selection import Selection
from bench.report.store import StoreError, kept_answer
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN
from bench.study.__main__ import STUDIES
from bench.tables import agreement, case_study, flights, gate, plots, virtual_pi

MISSING = (StoreError, BenchError)
"""What a reader of stored results raises when there are none, or none that it can read."""
PICTURES = {
    "success": "Success of each policy at each precision with 95 % intervals, beside the blind baseline",
    "latency": "Latency of one decision, a row for each policy and precision: median, p5 to p95 and p99",
}


@dataclass(frozen=True)
class Entry:
    """A section that may be there.

    Attributes:
        anchor: what its anchor is made from.
        title: its heading.
        command: what makes its results.
        make: its blocks from the stored results; none, or one of MISSING raised, where they are missing.
    """

    anchor: str
    title: str
    command: str
    make: Callable[[Sources], Iterable[Block]]


def section(entry: Entry, sources: Sources, anchors: Anchors) -> Section:
    """One section; where its results are missing it says so."""
    missing = "Its results are not stored yet."
    try:
        blocks = tuple(entry.make(sources))
    except MISSING as error:  # without the folder of this checkout, and without the next step: the section names it
        blocks, missing = (), str(error).partition("\n")[0].replace(f"{ROOT}/", "")
    return Section(anchors.new(entry.anchor), entry.title, blocks, "" if blocks else missing, entry.command)


def study_entries(sources: Sources) -> list[Entry]:
    """One for each experiment, and for each study that joins what others measured."""

    def entry(name: str) -> Entry:
        title = STUDIES[name][1]
        measured = name if name in sources.studies else "cells"  # what joins others' rows measures nothing itself
        command = f"python -m bench.study {measured} --keep"
        return Entry(name, title[0].upper() + title[1:], command, lambda sources: study_blocks(sources, name))

    return [entry(name) for name in STUDIES if name in sources.studies or joining(name)]


def study_blocks(sources: Sources, name: str) -> Iterator[Block]:
    """Pictures and tables of a study, but for pictures of single bundles, which stand on their pages."""
    tables, figures = sources.made(name)
    for stem, figure in figures.items():
        if bundle_of(stem, sources) is None:
            yield Picture.of(figure, f"{tables[0].title}.", f"{tables[0].title}; the numbers are in the tables.")
    yield from tables


def bundle_of(stem: str, sources: Sources) -> str | None:
    """The bundle that a picture is of, by its file's name: the longest that it ends with."""
    return max((name for name in sources.bundles if stem.endswith(f"-{name}")), key=len, default=None)


# --- what devices answered --------------------------------------------------------------------------------------------


def case_study_blocks(sources: Sources) -> Iterator[Block]:
    """Latency, memory, size and success of policies I, II, III: this machine's own beside the committed ones."""
    committed = sources.selection(case_study.CASE_STUDY)
    for target, own in sources.own().items():
        with suppress(StoreError):
            theirs, mine = (case_study.summary(each, sources.preset) for each in (committed, own))
            yield beside(mine, theirs, target)
    table, used = case_study.case_study(committed, sources.preset)
    selection = Selection.of_target(used)
    with suppress(StoreError):
        for name, figure in plots.figures(selection, sources.preset).items():
            yield Picture.of(figure, f"{PICTURES[name]}.", f"{PICTURES[name]}; the numbers are in the table below.")
    yield table


def beside(own: Table, committed: Table, target: str) -> Table:
    """A table of what this machine measured, and in the column after it what is committed."""
    theirs = {row[:2]: row for row in committed.rows if row}
    measured = [place for place in range(2, len(own.headers)) if not own.headers[place].startswith("paper")]
    rows = []
    for row in filter(None, own.rows):
        other = theirs.get(row[:2], (NOT_KNOWN,) * len(own.headers))
        rows.append((*row[:2], *(cell for place in measured for cell in (row[place], other[place]))))
    headers = (*own.headers[:2], *(word for place in measured for word in (own.headers[place], "committed")))
    return Table(f"own-{target}", f"Measured on {target}, beside what is committed", headers, tuple(rows), own.notes, 2)


def latency_flown_blocks(sources: Sources) -> Iterator[Block]:
    """Tables of what late commands cost: measured by this machine, and committed."""
    for target, own in sources.own().items():
        with suppress(StoreError):
            yield Part(f"Measured on {target}", (flights.latency_flown(own, sources.preset)[0],))
    yield flights.latency_flown(sources.selection(flights.LATENCY_FLOWN), sources.preset)[0]


def agreement_blocks(sources: Sources) -> Iterator[Block]:
    """Whether runtimes, and a device and this machine, choose the same actions."""
    for pivot in (agreement.AGREEMENT, agreement.DEVICE_AGREEMENT):
        path = sources.results / f"{pivot.name}.json"
        if path.exists():
            yield pivot.table(kept_answer(path, ""))


DEVICE = (
    Entry("case-study", "The case study on a device", "make bench", case_study_blocks),
    Entry(
        "depth",
        "A policy of depth pictures",
        "python bench/success.py --policy II-depth",
        lambda sources: [case_study.depth(sources.selection(case_study.DEPTH), sources.preset)[0]],
    ),
    Entry("latency-flown", "Latency, flown", "python bench/success.py --policy I --late 50,100", latency_flown_blocks),
    Entry(
        "virtual-pi",
        "The Pi, emulated and modelled",
        "python bench/instructions.py --policy I,II,III",
        lambda sources: [virtual_pi.virtual_pi(sources.reports(virtual_pi.VIRTUAL_PI), sources.preset)[0]],
    ),
    Entry("agreement", "Agreement", "python bench/agreement.py --keep", agreement_blocks),
    Entry(
        "gate",
        "The gate",
        "python bench/gate.py --keep",
        lambda sources: [
            pivot.table(kept_answer(sources.results / f"{gate.GATE}.json", "")) for pivot in (gate.BUNDLES, gate.WRONGS)
        ],
    ),
    Entry(
        "origins",
        "Where the policies come from",
        "make train POLICY=I",
        lambda sources: [flights.zoo_table(sources.zoo, sources.selection(flights.ZOO))[0]],
    ),
)
