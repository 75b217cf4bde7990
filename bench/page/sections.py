"""The report's sections, in order: what devices answered, then each study, of the tables and pictures they declare.

While its results are missing, a section is left out with a line that says what to type.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from quarl.bench.command_line import BenchError
from quarl.bench.page.pictures import Picture
from quarl.bench.page.sources import Sources
from quarl.bench.report.selection import Selection
from quarl.bench.report.store import StoreError
from quarl.bench.report.text import NOT_KNOWN
from quarl.bench.study.__main__ import STUDIES
from quarl.bench.tables import Table
from quarl.policy.places import PROJECT_ROOT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = (StoreError, BenchError)
"""What a reader of stored results raises when there are none, or none that it can read."""


@dataclass(frozen=True)
class Entry:
    """A section that may be there.

    Attributes:
        name: what its anchor is made from; a study's own.
        title: its heading.
        command: what makes its results.
        tables: names of tables in the registry; none: those that the study of this name declares.
        own: the table that shows this machine's own measurements, too. Where it is none of ``tables``, the committed
            ones stand in the columns beside it.
    """

    name: str
    title: str
    command: str
    tables: tuple[str, ...] = ()
    own: str = ""


@dataclass(frozen=True)
class Section:
    """What an entry shows.

    Attributes:
        anchor: unique in the report; letters, digits and hyphens.
        entry: its heading and its command.
        tables: in their order; none where its results are missing.
        pictures: by the bundle that they are of, "" of none, and by name.
        own: tables of what this machine measured itself, by device.
        missing: why there is no table.
    """

    anchor: str
    entry: Entry
    tables: Sequence[Table] = ()
    pictures: Mapping[str, Mapping[str, Picture]] = field(default_factory=dict)
    own: Mapping[str, Table] = field(default_factory=dict)
    missing: str = ""


def of_tables(name: str, title: str, *tables: str, own: str = "") -> Entry:
    """An entry of tables in the registry, with the command that measures for the first."""
    return Entry(name, title, TABLES[tables[0]].command, tables, own)


DEVICE = (
    of_tables("case-study", "The case study on a device", "case-study", own="summary"),
    of_tables("depth", "A policy of depth pictures", "depth"),
    of_tables("latency-flown", "Latency, flown", "latency-flown", own="latency-flown"),
    of_tables("virtual-pi", "The Pi, emulated and modelled", "virtual-pi"),
    of_tables("origins", "Where the policies come from", "zoo"),
)


def study_entries(sources: Sources) -> list[Entry]:
    """One for each study that measures, and for each that joins what others measured."""
    return [
        # what joins others' rows measures nothing itself
        Entry(name, asks[0].upper() + asks[1:], f"quarl study {'cells' if is_joined else name} --keep")
        for name, (_, asks) in STUDIES.items()
        if (is_joined := name in sources.joined) or name in sources.studies
    ]


def section(entry: Entry, sources: Sources, anchor: str) -> Section:
    """One section; where its results are missing it says so."""
    try:
        tables, figures = declared(entry, sources) if entry.tables else sources.made(entry.name)
    except MISSING as error:  # without the folder of this checkout, and without the next step: the section names it
        return Section(anchor, entry, missing=str(error).partition("\n")[0].replace(f"{PROJECT_ROOT}/", ""))
    pictures: dict[str, dict[str, Picture]] = {}
    for stem, figure in figures.items():
        pictures.setdefault(sources.bundle_of(stem), {})[stem] = Picture.of(figure)
    return Section(anchor, entry, tables, pictures, own_tables(entry, sources))


def declared(entry: Entry, sources: Sources) -> tuple[list[Table], dict[str, Figure]]:
    """An entry's tables that something is stored for, and their pictures.

    Raises:
        StoreError: nothing is stored for any of them.
    """
    tables: list[Table] = []
    figures: dict[str, Figure] = {}
    missing = None
    for each in (TABLES[name] for name in entry.tables):
        try:
            table, reports = each.make(sources.kept)
        except StoreError as error:
            missing = missing or error
            continue
        tables.append(table)
        with suppress(StoreError):
            figures |= each.figures(Selection.of_target(reports), sources.preset)
    if missing and not tables:
        raise missing
    return tables, figures


def own_tables(entry: Entry, sources: Sources) -> dict[str, Table]:
    """The tables of what this machine measured itself, by device; see :class:`Entry`."""
    found: dict[str, Table] = {}
    for target, kept in sources.own.items() if entry.own else ():
        with suppress(StoreError):
            own, _ = TABLES[entry.own].make(kept)
            is_shown = entry.own in entry.tables
            found[target] = own if is_shown else beside(own, TABLES[entry.own].make(sources.kept)[0])
    return found


def beside(own: Table, committed: Table) -> Table:
    """A table of what this machine measured, and in the column after it what is committed."""
    lead = own.left
    theirs = {row[:lead]: row for row in committed.rows if row}
    measured = [place for place in range(lead, len(own.headers)) if not own.headers[place].startswith("paper")]
    rows = []
    for row in filter(None, own.rows):
        other = theirs.get(row[:lead], (NOT_KNOWN,) * len(own.headers))
        rows.append((*row[:lead], *(cell for place in measured for cell in (row[place], other[place]))))
    headers = (*own.headers[:lead], *(word for place in measured for word in (own.headers[place], "committed")))
    return replace(own, title=f"{own.title}, beside what is committed", headers=headers, rows=tuple(rows))


def anchor(words: str, given: set[str]) -> str:
    """An anchor that is not given yet, and is from now on: two names may differ in nothing but other signs.

    ``policy pong-ppo`` is ``policy-pong-ppo``, and ``policy-pong-ppo-2`` when that is given.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "part"
    numbered = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    found = next(each for each in numbered if each not in given)
    given.add(found)
    return found
