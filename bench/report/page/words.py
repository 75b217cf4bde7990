"""Tables and descriptions that only the HTML report has, made of stored sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.report.page.parts import Picture
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bench.study.sweep.store import Sweep

SHOWN_WIDTHS = ("2", "3", "4", "6", "8")


def by_width_table(sweeps: Sequence[Sweep]) -> Table:
    """Relative error at the widths that decide, a row for each policy, scheme and preset."""
    from bench.study.ptq_table import percent
    from bench.study.sweep.command import scheme_words

    rows: list[tuple[str, ...]] = []
    for number, sweep in enumerate(sweeps):
        if number and sweep.bundle != sweeps[number - 1].bundle:
            rows.append(())
        for index, preset in enumerate(sweep.presets):
            cells = []
            for name in SHOWN_WIDTHS:
                width = sweep.width(name)
                cells.append(NOT_KNOWN if width is None else percent(width.changes[index].relative_error))
            rows.append((sweep.bundle, scheme_words(sweep), preset or NOT_KNOWN, *cells))
    episodes = joined(f"{len(sweep.seeds) * sweep.episodes:,}" for sweep in sweeps)
    return Table(
        "by-width",
        "Relative error of the return in percent, by bits of the weights",
        ("policy", "scheme", "preset", *(f"{name} bits" for name in SHOWN_WIDTHS)),
        tuple(rows),
        (
            "Error: (fp32 − width) / |fp32| of the mean returns over the same episodes, 95 % intervals of paired "
            f"means; negative: better than fp32; 0: every return is the same. Episodes of each: {episodes}.",
            f"Simulated in floats; how each width executes on a device stands on each policy's page. {NOT_KNOWN}: not "
            "flown.",
        ),
        left=3,
    )


def picture_of_sweeps(figure: Figure, title: str, sweeps: Sequence[Sweep]) -> Picture:
    """A sweet-spot plot with what it shows in words."""
    names = joined(sweep.bundle for sweep in sweeps)
    return Picture.of(
        figure,
        title,
        f"{title} Points with 95 % intervals for {names}, the band is fp32's; the numbers are in the tables.",
    )
