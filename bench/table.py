"""The tables that join what was measured: case study, latency flown, virtual Pi, where the policies come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.report.document import Report
    from quarl.bench.report.selection import Kept
    from quarl.bench.tables import Table

PAPER = "paper"
"""Stands for all tables of docs/paper.md."""
MEASURED = ("summary", "case-study", "latency-flown", "virtual-pi", "zoo")
"""By devices, into the store; the others' answers are files of their own."""
Made: TypeAlias = "tuple[Table, list[Report]]"
"""A table, and the measurements that it stands on."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Reading):
    """Which tables, of what, and where they go.

    Attributes:
        name: of tables (default: all); paper: those of docs/paper.md
        target: device (default: the real one measured last)
        preset: of the arena
        markdown: print Markdown
        output_path: draw the case study's pictures into this folder
        update_docs: fill the tables of README.md and docs/
    """

    name: tuple[str, ...] = field(default=(), kw_only=False)
    target: str | None = None
    preset: Literal["easy", "medium", "shipped", "hard"] = "hard"
    markdown: bool = False
    output_path: Path | None = None
    update_docs: bool = False


@heartbeat()
@cli.verb()
def table(options: Options) -> int:
    """Print tables of stored measurements: case study, late commands, virtual Pi, origin of the policies.

        quarl bench table                       on the terminal, of the committed measurements
        quarl bench table --local               of this machine's own measurements
        quarl bench table --markdown            as Markdown
        quarl bench table paper                 QuaRL's claims, and the stored rows that test them
        quarl bench table case-study --output-path /tmp/pictures

    --update-docs fills README.md and docs/, draws the case study's two pictures there, and with --local or --results
    takes the measurements over into results/NAME.jsonl, to be committed with them: never fewer than there are.
    """
    from quarl.bench import tables as rendering

    tables_by_name, skipped = tables(options)
    if not tables_by_name:
        raise command_line.BenchError("\n".join(f"{name}: {why}" for name, why in skipped.items()))
    table_list = [table for table, _ in tables_by_name.values()]
    if options.update_docs:
        _update_docs(options, tables_by_name)
    files = _draw(tables_by_name, options.output_path, options.preset)
    if options.json:
        tables_too = [_as_json(table) for table in table_list]
        print(json.dumps({"ok": True, "tables": tables_too, "files": list(map(str, files))}, ensure_ascii=False))
    elif options.markdown:
        print("\n".join(rendering.to_markdown(table) for table in table_list))
    else:
        for table in table_list:
            rendering.print_table(table, command_line.console())
        if files:
            print(f"Pictures: {', '.join(str(file) for file in files if file.suffix == '.png')}")
    for name, why in skipped.items():
        command_line.say(f"{name}: {why}")
    _say_what_else_there_is(options)
    return cli.EXIT_OK


def tables(options: Options) -> tuple[dict[str, Made], dict[str, str]]:
    """Return the tables there is data for, with the measurements each stands on; and why the others are not there.

    Raises:
        UsageError: there is no table of that name.
    """
    from quarl.bench.paper import THEMES
    from quarl.bench.report import store
    from quarl.bench.report.selection import Kept
    from quarl.policy.places import ZOO

    measurements = Kept(options.source, zoo=ZOO, preset=options.preset, target=options.target, say=command_line.say)
    makers = _makers()
    requested_names = [table_name for name in options.name for table_name in (THEMES if name == PAPER else (name,))]
    if unknown := [name for name in requested_names if name not in makers]:
        raise command_line.UsageError(f"there is no table {unknown[0]!r}; choose from {', '.join((PAPER, *makers))}.")
    tables_by_name: dict[str, Made] = {}
    skipped: dict[str, str] = {}
    for name in requested_names or (MEASURED if options.local or options.results else makers):
        try:
            tables_by_name[name] = makers[name](measurements)
        except store.StoreError as error:
            skipped[name] = str(error)
    return tables_by_name, skipped


def _makers() -> dict[str, Callable[[Kept], Made]]:
    """Return what makes each table of what is kept, by the table's name."""
    from quarl.bench import case_study, flights, native, paper, pressure, recommend, virtual_pi
    from quarl.bench.imports import imports_table
    from quarl.bench.ladder import LADDER, ladder_table
    from quarl.bench.loop_timing.tables import punctuality_table, round_trip_table
    from quarl.bench.memory_pressure.cases import pressure_table
    from quarl.bench.peers.__main__ import peers_table
    from quarl.bench.report.selection import Selection

    def of_answer(table: Callable[[dict[str, Any]], Table], name: str, command: str) -> Callable[[Kept], Made]:
        return lambda kept: (table(kept.answer(name, f"{command} --keep")), [])

    def dynamics(name: str, kept: Kept) -> Made:
        now = kept.answer(flights.DYNAMICS, flights.COMPARE)
        before = kept.answer(f"{flights.DYNAMICS}-before", "git checkout results")
        return flights.dynamics_tables(now, before)[name], []

    def zoo(kept: Kept) -> Made:
        flown = kept.selection(flights.ZOO) if kept.source(flights.ZOO).exists() else Selection(())
        return flights.zoo_table(kept.zoo, flown)

    def make_trained_table(method: str, kept: Kept) -> Made:
        return flights.tabulate_trained_bundles(method, kept.zoo), []

    return {
        case_study.SUMMARY: lambda kept: (case_study.summary(kept.selection("case-study"), kept.preset), []),
        case_study.CASE_STUDY: lambda kept: case_study.case_study(kept.selection("case-study"), kept.preset),
        flights.LATENCY_FLOWN: lambda kept: flights.latency_flown(kept.selection("latency-flown"), kept.preset),
        virtual_pi.VIRTUAL_PI: lambda kept: virtual_pi.virtual_pi(kept.reports("virtual-pi"), kept.preset),
        flights.ZOO: zoo,
        "recommend": lambda kept: (recommend.load_kept_table(), []),
        flights.DYNAMICS: partial(dynamics, flights.DYNAMICS),
        flights.RISES: partial(dynamics, flights.RISES),
        flights.AIRSIM_FLIGHTS: lambda kept: flights.airsim_flights(kept.reports("airsim-flights"), kept.preset),
        case_study.DEPTH: lambda kept: case_study.depth(kept.selection("depth"), kept.preset),
        "memory-pressure": of_answer(pressure_table, "pressure", pressure.COMMAND),
        "imports": of_answer(imports_table, "imports", "quarl bench imports"),
        "native": of_answer(native.native_table, "native", "quarl bench native"),
        LADDER: of_answer(ladder_table, LADDER, "quarl bench ladder"),
        "peers": of_answer(peers_table, "peers", "quarl peers"),
        "loop-round-trips": of_answer(round_trip_table, "loop", "quarl bench loop"),
        "loop-punctuality": of_answer(punctuality_table, "loop", "quarl bench loop"),
        "loop-punctuality-emulated": of_answer(
            punctuality_table, "device-loop", "quarl bench loop --target pi@virtual"
        ),
        **{f"trained-{method}": partial(make_trained_table, method) for method in flights.METHODS},
        **{theme: partial(paper.theme_table, theme) for theme in paper.THEMES},
    }


def _update_docs(options: Options, found: dict[str, Made]) -> None:
    """Take the measurements over where they are not the committed ones; then fill the pages from them."""
    from quarl.bench.report import figures as drawing
    from quarl.bench.report import store

    store.replace_lines({store.RESULTS / f"{name}.jsonl": reports for name, (_, reports) in found.items() if reports})
    command_line.update_docs([table for table, _ in found.values()])
    _draw(found, drawing.FIGURES, options.preset)


def _draw(found: dict[str, Made], folder: Path | None, preset: str) -> list[Path]:
    """Return the case study's two pictures; returns their files."""
    from quarl.bench import case_study_plots as plots
    from quarl.bench.report.selection import Selection

    if folder is None or "case-study" not in found:
        return []
    return plots.save_figures(Selection(tuple(found["case-study"][1])), folder, preset)


def _say_what_else_there_is(options: Options) -> None:
    """Say that this machine has measurements of its own, where others are shown."""
    from quarl.bench.report import store

    if not options.local and not options.results and store.DEFAULT_STORE.exists():
        command_line.say(
            f"These are the committed measurements. This machine's own are in {store.DEFAULT_STORE}; "
            "type: quarl bench table --local"
        )


def _as_json(table: Table) -> dict[str, object]:
    rows = [dict(zip(table.headers, row, strict=True)) for row in table.rows if row]
    return {"name": table.name, "title": table.title, "rows": rows, "notes": list(table.notes)}


main = cli.of("bench table")

if __name__ == "__main__":
    raise SystemExit(main())
