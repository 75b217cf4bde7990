"""A table once, rendered for the terminal and for Markdown, and put between the markers of the pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quarl.bench.report.text import NOT_KNOWN
from quarl.policy.console import as_typed
from quarl.policy.errors import QuarlError
from quarl.policy.places import PROJECT_ROOT

if TYPE_CHECKING:
    from rich.console import Console


COLUMN_GAP = 3
ROOT = PROJECT_ROOT


class PageError(QuarlError, ValueError):
    """Markers of a page are missing or do not pair."""


@dataclass(frozen=True)
class Table:
    """Rows of text under headers.

    Attributes:
        name: for the pages' markers, e.g. ``"case-study"``.
        title: one line.
        headers: one for each column.
        rows: each as long as the headers; an empty row is a rule.
        notes: sentences under the table: the machine, the denominators, what is missing and why.
        left: number of leading columns that are words, not numbers.
    """

    name: str
    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = field(default=())
    left: int = 1

    def common_in_title(self, *headers: str, but: str = "") -> Table:
        """The table with each of these columns moved to the title when all rows but those of ``but`` have the same."""
        table = self
        for header in headers:
            index = table.headers.index(header)
            found = {row[index] for row in table.rows if row and row[0] != but}
            if len(found) == 1:
                table = replace(
                    table,
                    title=f"{table.title} · {found.pop()}",
                    headers=table.headers[:index] + table.headers[index + 1 :],
                    rows=tuple(row[:index] + row[index + 1 :] for row in table.rows),
                    left=table.left - (index < table.left),
                )
        return table

    def __post_init__(self) -> None:
        for row in self.rows:
            if row and len(row) != len(self.headers):
                raise ValueError(f"table {self.name!r}: the row {row} does not have {len(self.headers)} cells.")

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        rows: Iterable[Mapping[str, str]],
        notes: Iterable[str] = (),
        left: int = 1,
        grouped: bool = False,
    ) -> Table:
        """Make a table of rows that map each header to a cell.

        Args:
            name, title, notes, left: as above.
            rows: all with the same headers; an empty one is a rule.
            grouped: rows with the same first cell follow each other; it stands once, and a rule after the last of them.
        """
        made: list[tuple[str, ...]] = []
        headers: tuple[str, ...] = ()
        last = None
        for row in rows:
            headers, first = tuple(row) or headers, next(iter(row.values()), None)
            if grouped and last not in (None, first):
                made.append(())
            made.append(("", *list(row.values())[1:]) if grouped and first == last else tuple(row.values()))
            last = first
        return cls(name, title, headers, (*made, *[()] * (grouped and bool(made))), tuple(notes), left)


def print_table(table: Table, console: Console) -> None:
    """Print a table and its notes; one too wide for the terminal is cut into parts that repeat its leading columns."""
    from rich import box
    from rich.table import Table as Grid

    headers = [textwrap.fill(header, _widest_cell(table, index)) for index, header in enumerate(table.headers)]
    for number, columns in enumerate(column_groups(table, console.width)):
        title = table.title if number == 0 else None
        grid = Grid(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for index in columns:
            grid.add_column(headers[index], justify="left" if index < table.left else "right", no_wrap=True)
        for row in table.rows:
            numbers = columns[table.left :]
            if row and numbers and all(row[index] == NOT_KNOWN for index in numbers):
                continue  # in this part the row says nothing
            if row:
                grid.add_row(*(row[index].replace("[", "\\[") for index in columns))
            else:
                grid.add_section()
        console.print(grid)
    for note in table.notes:
        console.print(as_typed(note), markup=False, highlight=False, style="dim")
    console.print()


def column_groups(table: Table, width: int) -> list[list[int]]:
    """Indices of the columns of each part, so that each part fits into ``width`` characters where it can."""
    widths = [_widest_cell(table, index) + COLUMN_GAP for index in range(len(table.headers))]
    lead = list(range(table.left))
    start = sum(widths[index] for index in lead)
    groups, used = [list(lead)], start
    for index in range(table.left, len(widths)):
        if used + widths[index] > width and len(groups[-1]) > len(lead):
            groups.append(list(lead))
            used = start
        groups[-1].append(index)
        used += widths[index]
    return groups


def _widest_cell(table: Table, index: int) -> int:
    """Width of a column: its widest cell, or the longest word of its header."""
    return max(*map(len, table.headers[index].split()), *(len(row[index]) for row in table.rows if row), 1)


def to_markdown(table: Table) -> str:
    """The table as GitHub-flavoured Markdown, its notes beneath."""
    lines = [
        f"**{table.title}**",
        "",
        _markdown_row(table.headers),
        _markdown_row([":---" if index < table.left else "---:" for index in range(len(table.headers))]),
        *(_markdown_row(row) for row in table.rows if row),
        "",
        *(f"{_escaped(note)}  " for note in table.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def filled(text: str, tables: Iterable[Table]) -> str:
    """A page's text with each ``<!-- table:NAME -->…<!-- /table:NAME -->`` of these tables filled anew.

    Raises:
        PageError: a marker without its partner.
    """
    markers = re.findall(r"<!-- (/?)table:(\S+) -->", text)
    opened = [name for slash, name in markers[::2] if not slash]
    if markers != [(slash, name) for name in opened for slash in ("", "/")] or len(set(opened)) != len(opened):
        listed = ", ".join(f"{slash}table:{name}" for slash, name in markers)
        raise PageError(f"the page's table markers do not pair: {listed}.")
    for table in tables:
        section = f"<!-- table:{table.name} -->\n{to_markdown(table)}<!-- /table:{table.name} -->"
        pattern = rf"<!-- table:{re.escape(table.name)} -->.*?<!-- /table:{re.escape(table.name)} -->"
        text = re.sub(pattern, lambda _, section=section: section, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def pages(root: Path = ROOT) -> list[Path]:
    """README.md and every page of docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def update_pages(tables: Sequence[Table], root: Path = ROOT) -> list[Path]:
    """Fill these tables in wherever their markers stand, each page whole or not at all; returns the pages that changed.

    A table without markers is on no page: the command that makes it prints it.

    Raises:
        PageError: a marker without its partner; nothing is written.
    """
    from quarl.policy.files import write_atomically

    before = {path: path.read_text(encoding="utf-8") for path in pages(root)}
    after = {path: filled(text, tables) for path, text in before.items()}
    changed = [path for path, text in after.items() if text != before[path]]
    for path in changed:
        write_atomically(path, after[path].encode())
    return changed


def _markdown_row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
