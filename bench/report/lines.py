"""A picture declared: small panels of estimates over one factor, a line for each value of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from quarl.bench.report.figures import COLUMNS, Line, Panel, facets
from quarl.bench.report.pivot import Row, alike, summary
from quarl.bench.report.text import environment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Labels: TypeAlias = Mapping[Any, tuple[str, int]]
"""Label and style of each line, by the value that it stands for."""


def as_they_come(rows: Sequence[Row], x: str) -> list[Any]:
    """The places of the horizontal axis in the order in which the rows have them."""
    return list(dict.fromkeys(row[x] for row in rows))


def in_order(rows: Sequence[Row], x: str) -> list[Any]:
    """The places from the smallest number to the largest, then words; rows without one are nowhere."""
    return sorted({row[x] for row in rows if row[x] is not None}, key=lambda place: (isinstance(place, str), place))


@dataclass(frozen=True)
class Lines:
    """Panels of estimates.

    Titles and stems are templates over a row's names.

    Attributes:
        stem: of the picture's files; rows for which it is alike make a picture.
        title: one line.
        below: in grey under the title; it names ``rows`` too.
        x, x_label: the factor of the horizontal axis, and its label.
        line, labels: the factor that lines differ in, and what each line is called, or a function of the rows for that.
        y, y_label: name of the estimates, which some rows may lack, and the axis' label.
        rows: the rows that are drawn; of none there is no picture.
        panel: title of a panel, which the rows for which it is alike make.
        reference, reference_label: name of an estimate that is drawn across the panel, and its label.
        singles: name of the values that a point is of, drawn as small dots.
        scale: sets the vertical axis of all panels; None: each has its own.
        places: of the horizontal axis, a function of rows and ``x``; None: they are numbers, with bands for intervals.
        joined: whether the points of a line are, or which lines' are, by the value that they stand for.
        columns: most panels beside each other.
        turned: the places' names stand upright.
        shared: whether the vertical axis that ``scale`` sets has the same ends in all panels.
    """

    stem: str
    title: str
    below: str
    x: str
    x_label: str
    line: str
    labels: Labels | Callable[[Sequence[Row]], Labels]
    y: str
    y_label: str = ""
    rows: Callable[[Any], Iterable[Row]] = summary
    panel: str = "{{ subject }}"
    reference: str = ""
    reference_label: str = "fp32"
    singles: str = ""
    scale: Callable[[Axes], None] | None = None
    places: Callable[[Sequence[Row], str], Sequence[Any]] | None = as_they_come
    joined: bool | Callable[[Any], bool] = True
    columns: int = COLUMNS
    turned: bool = False
    shared: bool = True

    def __call__(self, results: Any) -> dict[str, Figure]:
        """The pictures of these results, by the stem of their files."""
        return {stem: self._figure(rows) for stem, rows in alike(self.rows(results), self.stem).items()}

    def _figure(self, rows: Sequence[Row]) -> Figure:
        labels = self.labels(rows) if callable(self.labels) else self.labels
        panels = [self._panel(title, mine, labels) for title, mine in alike(rows, self.panel).items()]
        title, below = (
            environment().from_string(each).render({**rows[0], "rows": rows}) for each in (self.title, self.below)
        )
        return facets(
            panels, self.places and self.places(rows, self.x), title=title, subtitle=below, x_label=self.x_label,
            y_label=self.y_label, scale=self.scale, columns=self.columns, turned=self.turned,
            shared=self.shared,
        )  # fmt: skip

    def _panel(self, title: str, rows: Sequence[Row], labels: Labels) -> Panel:
        lines = []
        for value, (label, style) in labels.items():
            mine = [row for row in rows if row[self.line] == value and row[self.y] is not None]
            singles = {row[self.x]: row[self.singles] for row in mine} if self.singles else {}
            points = {row[self.x]: row[self.y] for row in mine}
            joined = self.joined(value) if callable(self.joined) else self.joined
            lines += [Line(label, points, style, joined, singles)] if points else []
        references = (row[self.reference] for row in rows if self.reference)
        return Panel(title, lines, next(references, None), self.reference_label)
