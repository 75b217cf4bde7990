"""The tables of what was measured on devices and of kept answers, by name, each with the command that measures for it.

bench/table.py prints them and fills docs/ with them; quarl page shows some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl.bench.report import store
from quarl.bench.report.document import Report
from quarl.bench.report.pivot import Pivot
from quarl.bench.report.selection import Selection, flown_today
from quarl.bench.report.tables import Table
from quarl.bench.tables import (
    case_study,
    flight_dynamics,
    flights,
    imports,
    loop,
    plots,
    simulators,
    trained,
    virtual_pi,
)
from quarl.policy.places import ZOO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEFT_OUT = "{}: {} flights of another task than today's are left out"
Made = tuple[Table, list[Report]]
"""A table, and the measurements that it stands on."""


@dataclass(frozen=True)
class Kept:
    """What is stored, as tables read it.

    Attributes:
        source: (name of a table) → file of the measurements that it stands on.
        folder: of the answers that commands kept; None: results/.
        zoo: folder of the committed bundles.
        preset: of the navigation task.
        target: device; None: the real one measured last.
        say: takes a sentence on what is left out.
    """

    source: Callable[[str], Path] = store.results_for
    folder: Path | None = None
    zoo: Path = ZOO
    preset: str = "hard"
    target: str | None = None
    say: Callable[[str], None] = lambda sentence: None

    def reports(self, name: str) -> list[Report]:
        """The measurements that a table stands on, flights of today's task among them.

        Raises:
            StoreError: there are none.
        """
        reports = store.read_results(self.source(name))
        today = flown_today(reports)
        if len(today) < len(reports):
            self.say(LEFT_OUT.format(name, len(reports) - len(today)))
        return today

    def selection(self, name: str) -> Selection:
        """The same of one device."""
        return Selection.of_target(self.reports(name), self.target)

    def answer(self, name: str, command: str) -> dict[str, Any]:
        """The answer that a command kept.

        Raises:
            StoreError: there is none; says which command keeps one.
        """
        return store.kept_answer((self.folder or store.RESULTS) / f"{name}.json", command)


@dataclass(frozen=True)
class Declared:
    """A table that is made of what is stored.

    Attributes:
        command: what measures for it.
        make: the table and the measurements that it stands on. Raises StoreError where there are none.
        figures: pictures by name, of these measurements and of a preset.
    """

    command: str
    make: Callable[[Kept], Made]
    figures: Callable[[Selection, str], Mapping[str, Figure]] = lambda selection, preset: {}


def answered(name: str, make: Callable[[dict[str, Any]], Table], command: str) -> Declared:
    """A table of the answer that a command keeps under a name."""
    return Declared(f"python {command} --keep", lambda kept: (make(kept.answer(name, f"python {command} --keep")), []))


def _origins(kept: Kept) -> Made:
    flown = kept.selection(flights.ZOO) if kept.source(flights.ZOO).exists() else Selection(())
    return flights.zoo_table(kept.zoo, flown)


def _trained(method: str, kept: Kept) -> Made:
    return trained.trained_table(method, kept.zoo), []


def _dynamics(pivot: Pivot, kept: Kept) -> Made:
    return pivot.table(flight_dynamics.documents(kept.answer)), []


TABLES: dict[str, Declared] = {
    case_study.SUMMARY: Declared(
        "make bench", lambda kept: (case_study.summary(kept.selection(case_study.CASE_STUDY), kept.preset), [])
    ),
    case_study.CASE_STUDY: Declared(
        "make bench",
        lambda kept: case_study.case_study(kept.selection(case_study.CASE_STUDY), kept.preset),
        plots.figures,
    ),
    flights.LATENCY_FLOWN: Declared(
        "quarl bench success --policy I --late 50,100",
        lambda kept: flights.latency_flown(kept.selection(flights.LATENCY_FLOWN), kept.preset),
    ),
    virtual_pi.VIRTUAL_PI: Declared(
        "quarl bench instructions --policy I,II,III",
        lambda kept: virtual_pi.virtual_pi(kept.reports(virtual_pi.VIRTUAL_PI), kept.preset),
    ),
    flights.ZOO: Declared("quarl train --task navigation --policy I", _origins),
    flight_dynamics.DYNAMICS: Declared(flight_dynamics.COMMAND, partial(_dynamics, flight_dynamics.OF_RECORDINGS)),
    flight_dynamics.RISES: Declared(flight_dynamics.COMMAND, partial(_dynamics, flight_dynamics.OF_RISES)),
    simulators.AIRSIM_FLIGHTS: Declared(
        "quarl bench success --policy I --on host --simulator airsim --episodes 200",
        lambda kept: simulators.airsim_flights(kept.reports(simulators.AIRSIM_FLIGHTS), kept.preset),
    ),
    case_study.DEPTH: Declared(
        "quarl bench success --policy II-depth",
        lambda kept: case_study.depth(kept.selection(case_study.DEPTH), kept.preset),
    ),
    imports.IMPORTS.name: answered("imports", imports.IMPORTS.table, "bench/imports.py"),
    "loop-round-trips": answered("loop", loop.ROUND_TRIPS.table, "bench/loop.py"),
    "loop-punctuality": answered("loop", loop.PUNCTUALITY.table, "bench/loop.py"),
    "loop-punctuality-emulated": answered("device-loop", loop.PUNCTUALITY.table, "bench/loop.py --target pi@virtual"),
    **{
        f"trained-{each}": Declared(f"quarl train --method {each}", partial(_trained, each)) for each in trained.METHODS
    },
}
