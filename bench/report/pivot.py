"""A table declared: which rows stand on one line, under which headers their numbers stand, and how a number reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from quarl.bench.report.tables import Table
from quarl.bench.report.text import NOT_KNOWN, environment, filled

Row = Mapping[str, Any]
"""A row of a summary: names of factors, measures and estimates, and their values."""

summary: Callable[[Any], Iterable[Row]] = attrgetter("summary")
"""The rows that results have of themselves."""


def alike(rows: Iterable[Row], template: str) -> dict[str, list[Row]]:
    """Rows gathered by what a template over their names makes of each, in the order of the first of each."""
    render, found = environment().from_string(template).render, dict[str, list[Row]]()
    for row in rows:
        found.setdefault(render(row), []).append(row)
    return found


@dataclass(frozen=True)
class Pivot:
    """A table of rows that are gathered on lines: those alike in all leading cells make one.

    Headers and cells are templates over a row's names, with the filters of :func:`bench.report.text.environment`:
    ``"{{ subject }}, n={{ episodes | thousands }}"``, ``"{{ error | lost }}"``.

    Attributes:
        name: template of the table's name, for the pages' markers; it names the same as ``words``.
        words: template of the title, and in further lines of the notes; it names ``results``, ``rows`` and ``facts``.
        lead: leading columns: cell by header.
        columns: groups of columns from left to right: cell by header. A header that names what differs between the rows
            of a line (``"error at {{ bits }} bits, %"``) stands for several columns, in the order in which the rows
            have them; a row whose cell is empty has nothing there. One that names nothing always stands.
        rows: what is gathered, in the order of the lines.
        facts: what the template of the words names beside these, a function of the results.
        grouped: lines with the same first cell follow each other; it stands once, and a rule after the last of them.
        ruled: template; a rule stands before each line for which it is another one than for the line before.
        each: template; rows for which it is alike make a table of their own.
        gathered: whether rows alike in all leading cells make one line; else each row is a line of its own.
        left: number of the leading columns that are words, not numbers; None: all.
        optional: whether there is no table where there are no rows.
        titled: columns that stand in the title instead where all lines have the same there.
        exempt: first cell of lines that may have something else there.
    """

    name: str
    words: str
    lead: Mapping[str, str]
    columns: Sequence[Mapping[str, str]]
    rows: Callable[[Any], Iterable[Row]] = summary
    facts: Callable[[Any], Mapping[str, Any]] = field(default=lambda results: {})
    grouped: bool = False
    ruled: str = ""
    each: str = ""
    gathered: bool = True
    left: int | None = None
    optional: bool = False
    titled: Sequence[str] = ()
    exempt: str = ""

    def __call__(self, results: Any) -> list[Table]:
        """The tables of these results."""
        found = list(self.rows(results))
        groups = alike(found, self.each).values() if found or self.optional else [[]]
        return [self._table(rows, results) for rows in groups]

    def table(self, results: Any) -> Table:
        """The only table of these results."""
        (made,) = self(results)
        return made

    def _table(self, rows: Sequence[Row], results: Any) -> Table:
        compiled = environment().from_string
        lead, ruled = [compiled(cell) for cell in self.lead.values()], compiled(self.ruled)
        apart = ["" if self.gathered else str(number) for number in range(len(rows))]
        places = [
            (each, ruled.render(row), *(cell.render(row) for cell in lead))
            for each, row in zip(apart, rows, strict=True)
        ]
        lines: dict[tuple[str, ...], dict[str, str]] = {place: {} for place in places}
        headers: dict[str, str] = {}  # by group and header: two groups may have one alike
        for number, group in enumerate(self.columns):
            headers |= {f"{number} {header}": header for header in group if "{{" not in header}
            templates = [(compiled(header), compiled(cell)) for header, cell in group.items()]
            for place, row in zip(places, rows, strict=True):
                for header, cell in templates:
                    if text := cell.render(row):
                        at = header.render(row)
                        headers[f"{number} {at}"], lines[place][f"{number} {at}"] = at, text
        shown, last = list[dict[str, str]](), places[0][1] if places else ""
        for (_, part, *leading), line in lines.items():
            shown += [{}] if part != last else []
            shown.append(
                {**dict(zip(self.lead, leading, strict=True)), **{at: line.get(at, NOT_KNOWN) for at in headers}}
            )
            last = part
        facts = {"results": results, "rows": rows, **self.facts(results)}
        title, *notes = filled(self.words, **facts)
        left = len(self.lead) if self.left is None else self.left
        table = Table.of(compiled(self.name).render(facts), title, shown, tuple(notes), left, self.grouped)
        table = replace(table, headers=(*self.lead, *headers.values()))
        return table.common_in_title(*self.titled, but=self.exempt)
