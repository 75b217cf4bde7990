"""Draw quantization-aware training against quantization after training: return against bits, as PNG and SVG.

    python -m bench.study qat-plot
    python -m bench.study qat-plot --only cartpole-dqn --output /tmp/pictures

One picture of all cells, and one for each cell. Large marks are means over trainings with 95 % intervals, small dots
single trainings; line and band are the float policies'. Colours are Okabe and Ito's, and marks differ too, for print
without colour. Drawn is what python -m bench.study qat --keep stored in results/study/qat.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import GREY, headed, save
from bench.study.command import STUDY_FIGURES
from bench.study.older import STYLES, band, marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bench.study.qat.statistics import Row

WAYS = (("PTQ", "quantized after training (PTQ)", STYLES[1]), ("QAT", "trained with quantizers (QAT)", STYLES[0]))
DODGE = 0.14  # of one width's room, either side
COLUMNS = 3
PANEL_INCHES = (3.9, 2.9)
SMALLEST_SPAN = 0.1  # of a panel's axis, as a share of float's return


def main(argv: Sequence[str] | None = None) -> int:
    """Draw, write, say where."""
    parser = command_line.parser(__doc__, "-m bench.study qat-plot")
    parser.add_argument("--only", metavar="CELL", default=None, help="this cell's picture alone")
    parser.add_argument("--stored", type=Path, metavar="FILE", default=None, help="default: results/study/qat.json")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", default=STUDY_FIGURES, help="default: docs/figures/study"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.study.qat import store as qat_store
    from bench.study.qat.statistics import rows_of

    answers = qat_store.read(arguments.stored or qat_store.FILE)
    if not answers:
        raise command_line.BenchError("nothing is kept to draw.", qat_store.AGAIN)
    known = list(dict.fromkeys(answer.cell for answer in answers))
    if arguments.only is not None and arguments.only not in known:
        raise command_line.UsageError(
            f"nothing of {arguments.only!r} is kept; there are {', '.join(known)}.",
            f"python -m bench.study qat --cells {arguments.only} --keep",
        )
    files = save_figures(rows_of(answers), arguments.output, arguments.only)
    if arguments.json:
        print(json.dumps({"ok": True, "files": [str(file) for file in files]}))
    else:
        print("\n".join(str(file) for file in files))
    return command_line.EXIT_OK


def save_figures(rows: Sequence[Row], folder: Path, only: str | None = None) -> list[Path]:
    """Draw each cell (or one of them), and all in one picture; returns the files."""
    files = []
    if only is None:
        files += save(figure_of(rows), folder / "qat")
    for cell in dict.fromkeys(row.cell for row in rows):
        if only in (None, cell):
            files += save(figure_of([row for row in rows if row.cell == cell]), folder / f"qat-{cell}")
    return files


def figure_of(rows: Sequence[Row]) -> Figure:
    """A panel for each cell and preset."""
    from matplotlib.figure import Figure

    from bench.study.qat.table import place

    places = list(dict.fromkeys(place(row) for row in rows))
    columns = min(COLUMNS, len(places))
    lines = -(-len(places) // columns)
    width, height = PANEL_INCHES
    size = max(columns * width, 6.4), lines * height + 1.5  # with room for title and legend
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, name in zip(panels, places, strict=False):
        _panel(axes, [row for row in rows if place(row) == name], name)
    for axes in panels[len(places) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    cells = list(dict.fromkeys(row.cell for row in rows))
    title = f"Learning with few bits, or quantizing afterwards{f': {cells[0]}' if len(cells) == 1 else ''}"
    said = (
        "large marks and bars: means over trainings, 95 % intervals (cut at the panel's edge)\n"
        "dots: single trainings; line and band: float"
    )
    headed(figure, title, said, 3)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """One cell on one preset, from few bits to many; widths stand at equal distances."""
    rows = sorted(rows, key=lambda row: row.bits)
    band(axes, max(rows, key=lambda row: len(row.seeds)).reference, GREY, True)
    for sign, (way, label, (colour, marker)) in zip((-1, 1), WAYS, strict=True):
        estimates = [row.ptq if way == "PTQ" else row.qat for row in rows]
        singles = [row.ptq_by_seed if way == "PTQ" else row.qat_by_seed for row in rows]
        middle = [where + sign * DODGE for where in range(len(rows))]
        for x, values in zip(middle, singles, strict=True):
            axes.plot([x + sign * DODGE] * len(values), values, ".", color=colour, markersize=4, alpha=0.6)
        points = [(x, str(row.bits), each) for x, row, each in zip(middle, rows, estimates, strict=True)]
        marks(axes, points, colour, marker, label, "-")
    axes.set_xticks(range(len(rows)), [str(row.bits) for row in rows], fontsize=8)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_ylim(*_room(rows))
    axes.set_xlabel("bits of weights and activations")
    axes.set_ylabel("return")
    axes.set_title(f"{name}\n{counts(rows)}", fontsize=9)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _room(rows: Sequence[Row]) -> tuple[float, float]:
    """Ends of the axis: all trainings and some more, and no less than a tenth of float's return, so that trifles look
    like trifles. Bars may reach beyond: an interval of three trainings is wide, and an axis that held it would hide the
    differences."""
    values = [value for row in rows for value in (*row.ptq_by_seed, *row.qat_by_seed, row.reference.value)]
    span = max(max(values) - min(values), SMALLEST_SPAN * max(abs(row.reference.value) for row in rows)) or 1.0
    low = min(min(values), max(values) - span)
    return low - span / 12, max(values) + span / 12


def counts(rows: Sequence[Row]) -> str:
    """``3 trainings a point, 100 episodes each``."""
    trainings = sorted({len(row.seeds) for row in rows})
    several = " … ".join(dict.fromkeys(map(str, (trainings[0], trainings[-1]))))
    return f"{several} training{'s' * (trainings[-1] > 1)} a point, {rows[0].episodes:,} episodes each"


if __name__ == "__main__":
    raise SystemExit(main())
