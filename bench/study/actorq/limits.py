"""What sets the pace of many actors, each process on a machine of its own: bounds by the number of actors."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.report.figures import Line, Panel, facets
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, filled
from bench.study.actorq.bounds import Bound, Layout, Services, bound
from bench.study.actorq.runs import NAMES
from bench.study.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[tuple[str, int], tuple[Record, Services]]
"""By network and bits: a record of service times, and these."""
STYLES = {32: 0, 8: 1}
COUNTS = tuple(sorted({*(2**power for power in range(11)), *(3 * 2**power for power in range(6))}))
SHOWN = (1, 4, 16, 64, 1024)
SHARES = ("learner", "replay", "parameter process", "broadcast")
COUPLINGS: dict[str, dict[str, float]] = {
    "16 samples per insertion": {},
    "16 samples per insertion, learner 100×": {"learner_speed": 100.0},
    "no coupling": {"samples_per_insert": 0.0},
}


LIMIT_NOTES = """\
Pace: the server that is at work all the time with {{ most }} actors; from: the number of actors from which on it is \
not the actors themselves. The last four columns: share of the time at work with {{ most }} actors.
16 samples per insertion: whoever is ahead waits, the command's default. Learner 100×: as if its updates took a \
hundredth. No coupling: the learner learns as fast as it can whatever the actors do, and is no limit to them.
Network of {{ link }} Mbit/s from one parameter process; actors of a machine, which get one copy of a version: \
{{ layout.actors_per_machine }}; replay shards: {{ layout.replay_shards }}.
"""


def network(subject: str) -> str:
    """Without further words."""
    return subject.split()[0]


def layout_of(record: Record, typed: argparse.Namespace | None, **more: Any) -> Layout:
    """A machine for each process, as it is assumed or typed, of a command whose service times were measured."""
    if typed is not None:
        assumed = {"replay_shards": typed.replay_shards, "actors_per_machine": typed.actors_per_machine}
        more = {**assumed, "link_bytes_per_s": typed.link_mbit_s * 1e6 / 8, **more}
    own = {name: record["measures"][name] for name in ("rows", "insert_every", "actor_update_period")}
    return Layout(**{"n_actors": 1, **own, **more})


def curves(found: Found, typed: argparse.Namespace | None) -> Iterator[tuple[str, str, int, dict[int, Bound]]]:
    """Network, coupling, bits, and the bound by the number of actors."""
    for subject in dict.fromkeys(subject for subject, _ in found):
        for coupling, more in COUPLINGS.items():
            for bits in (bits for own, bits in found if own == subject):
                record, services = found[subject, bits]
                layout = layout_of(record, typed, **more)
                layouts = [dataclasses.replace(layout, n_actors=n) for n in COUNTS if n >= layout.replay_shards]
                yield network(subject), coupling, bits, {each.n_actors: bound(services, each) for each in layouts}


def limit_table(found: Found, typed: argparse.Namespace | None) -> Table:
    """Steps per second by the number of actors, and which server sets the pace."""
    rows = []
    for name, coupling, bits, reached in curves(found, typed):
        end = reached[max(reached)]
        since = next((f"{count:,}" for count, each in reached.items() if each.pace != "actors"), NOT_KNOWN)
        steps = (f"{reached[count].steps_per_s:,.0f}" if count in reached else NOT_KNOWN for count in SHOWN)
        busy = (f"{100 * end.busy[share]:.0f}" if share in end.busy else NOT_KNOWN for share in SHARES)
        rows.append((name, coupling, NAMES[bits], *steps, end.pace, since, *busy))
    layout = layout_of(next(iter(found.values()))[0], typed)
    link = f"{layout.link_bytes_per_s * 8 / 1e6:,.0f}"
    return Table(
        "actorq-scaling-limits",
        "The most steps per second by the number of actors, a machine for each process",
        (
            "model", "coupling", "broadcast in", *(f"{count:,} actor{'s' * (count > 1)}" for count in SHOWN), "pace",
            "from", *(f"{share}, %" for share in SHARES),
        ),
        tuple(rows),
        filled(LIMIT_NOTES, most=f"{max(COUNTS):,}", layout=layout, link=link),
        left=3,
    )  # fmt: skip


def figures(found: Found, typed: argparse.Namespace | None) -> dict[str, Figure]:
    """A panel for each network and coupling, a line for each precision of the broadcast."""
    lines: dict[str, list[Line]] = {}
    for name, coupling, bits, reached in curves(found, typed):
        points = {count: Estimate(each.steps_per_s) for count, each in reached.items()}
        style = STYLES[bits]
        lines.setdefault(f"{name}\n{coupling}", []).append(Line(NAMES[bits], points, style))
    drawn = facets(
        [Panel(title, each) for title, each in lines.items()],
        None,
        title="The most steps per second that 1 … 1,024 actors can make",
        said="by the service times of a run's parts; every process on a machine of its own,\n"
        "one parameter process sends fp32 or int8 to all actors",
        x_label="actors (logarithmic)",
        y_label="steps per second, all actors (logarithmic)",
        scale=scale,
        columns=len(COUPLINGS),
    )
    return {"actorq-scaling": drawn}


def scale(axes: Axes) -> None:
    """Both axes logarithmic."""
    from matplotlib.ticker import NullLocator

    actors, steps = tuple(4**power for power in range(6)), (100, 300, 1000, 3000, 10000)
    axes.set_xscale("log", base=2)
    axes.set_xticks(actors, [f"{tick:,}" for tick in actors])
    axes.set_yscale("log")
    axes.set_yticks(steps, [f"{tick:,}" for tick in steps])
    axes.yaxis.set_minor_locator(NullLocator())
