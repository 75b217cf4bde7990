"""Tables: lines of cells under headers, or a pandas pivot of rows; printed, written as Markdown, filled into pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quarl.bench.report.text import NOT_KNOWN
from quarl.bench.report.text import fill_sentences as sentences
from quarl.policy.console import as_typed
from quarl.policy.errors import QuarlError
from quarl.policy.places import PROJECT_ROOT

if TYPE_CHECKING:
    from rich.console import Console


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
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

    def __post_init__(self) -> None:
        for row in self.rows:
            if row and len(row) != len(self.headers):
                raise ValueError(f"each row of table {self.name!r} must have {len(self.headers)} cells, got {row}.")


def tabulate(
    name: str,
    words: str,
    lines: Iterable[Mapping[str, str]],
    left: int = 1,
    *,
    rules: Sequence[str] = (),
    once: bool = False,
    titled: Sequence[str] = (),
    exempt: str = "",
    **facts: Any,
) -> Table:
    """Build a table of lines.

    Args:
        name: of the markers in a page.
        words: template of the title and, on further lines, of the notes; it names the facts.
        lines: cells by header, all headers in one order; a line without a cell has a dash there, an empty line is a
            rule. A header that no line has is left out.
        left: number of leading columns that are words, not numbers.
        rules: headers; a rule stands before each line that differs there from the line above.
        once: the first cell stands only in the first of the lines that share it, with a rule between such groups.
        titled: columns that move to the title where all lines have the same there.
        exempt: first cell of lines that may have something else there.
    """
    title, *notes = sentences(words, **facts)
    line_list = [dict(line) for line in lines]
    headers = list(dict.fromkeys(header for line in line_list for header in line))
    for header in titled:
        alike = {line.get(header) or NOT_KNOWN for line in line_list if line and line.get(headers[0]) != exempt}
        if len(alike) == 1:
            title, left = f"{title} · {alike.pop()}", left - (headers.index(header) < left)
            headers.remove(header)
    grouping = [*rules, *headers[:once]]
    rows: list[tuple[str, ...]] = []
    above: Mapping[str, str] = {}
    for line in line_list:
        is_first = any(line.get(header) != above.get(header) for header in grouping)
        rows += [()] if is_first and line and above else []
        cells = [line.get(header) or NOT_KNOWN for header in headers]
        if once and not is_first:
            cells[0] = ""
        rows.append(tuple(cells) if line else ())
        above = line
    return Table(name, title, tuple(headers), tuple(rows), tuple(notes), left)


def pivot(
    rows: Sequence[Mapping[str, Any]], index: Sequence[str], columns: str, values: Mapping[str, str]
) -> list[dict[str, str]]:
    """Gather rows that are alike in the index on one line each, in the order of their first.

    Args:
        rows: cells by name.
        index: names that become the leading columns.
        columns: name of what differs between the rows of a line.
        values: header by name of a cell; ``{}`` in it stands for what differs.
    """
    import pandas

    if not rows:
        return []
    frame = pandas.DataFrame(rows)
    wide = frame.pivot_table(index=[*index], columns=columns, values=[*values], aggfunc="first", sort=False)
    order = [(name, of) for name in values for of in frame[columns].unique() if (name, of) in wide.columns]
    wide = wide.loc[frame.set_index([*index]).index.unique(), order].fillna(NOT_KNOWN)
    wide.columns = pandas.Index([values[name].format(of) for name, of in order])
    return [{str(header): str(cell) for header, cell in line.items()} for line in wide.reset_index().to_dict("records")]


def group_by(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Gather rows by what a function makes of each, in the order of the first of each."""
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


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
    """Return the indices of the columns of each part, so that each part fits into ``width`` characters where it can."""
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
    """Return the table as GitHub-flavoured Markdown, its notes beneath."""
    lines = [
        f"**{table.title}**",
        "",
        _markdown_row(table.headers),
        _markdown_row([":---" if index < table.left else "---:" for index in range(len(table.headers))]),
        *(_markdown_row(row) for row in table.rows if row),
        "",
        *(f"{_escape(note)}  " for note in table.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def fill_page(text: str, tables: Iterable[Table]) -> str:
    """Return a page's text with each ``<!-- table:NAME -->…<!-- /table:NAME -->`` of these tables filled again.

    Raises:
        PageError: a marker without its partner.
    """
    markers = re.findall(r"<!-- (/?)table:(\S+) -->", text)
    opened = [name for slash, name in markers[::2] if not slash]
    if markers != [(slash, name) for name in opened for slash in ("", "/")] or len(set(opened)) != len(opened):
        listed = ", ".join(f"{slash}table:{name}" for slash, name in markers)
        raise PageError(f"each <!-- table:NAME --> of the page must have a closing <!-- /table:NAME -->, got {listed}.")
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
    after = {path: fill_page(text, tables) for path, text in before.items()}
    changed = [path for path, text in after.items() if text != before[path]]
    for path in changed:
        write_atomically(path, after[path].encode())
    return changed


def _markdown_row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
