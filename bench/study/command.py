"""``quarl study NAME``: what is asked, measured, kept, printed and drawn, the same for every experiment."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter, validators

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import FIGURES, save
from quarl.bench.study import records, running
from quarl.bench.study.experiment import Results, current, in_order
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quarl.bench.study.experiment import Experiment
    from quarl.bench.study.joined import Joined
    from quarl.bench.study.records import Record
    from quarl.bench.tables import Table

STUDY_FIGURES = FIGURES / "study"
KEPT = Parameter(group=Group("What is kept", validator=validators.MutuallyExclusive()))
WHERE = Parameter(group=Group("Where it is measured", validator=validators.MutuallyExclusive()))


@Parameter(name="*")
@dataclass(kw_only=True)
class Drawing(command_line.Printing):
    """Where tables and pictures go.

    Attributes:
        output_path: draw the pictures into this folder
        markdown: print Markdown
    """

    output_path: Path | None = None
    markdown: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class JoinedOptions(Drawing):
    """Where tables and pictures go.

    Attributes:
        update_docs: fill the tables of docs/, draw their pictures
    """

    update_docs: bool = False


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(JoinedOptions):
    """What to measure, and where.

    Attributes:
        subjects: default: all committed ones
        seeds: of the episodes
        keep: store the rows; rows that are stored already are not measured again
        stored: measure nothing; use the stored rows
        missing: use the stored rows, measure the rest; store nothing
        again: with --keep: measure the stored rows again, too
        results: folder that rows are kept in (default: results/study)
        jobs: processes (default: cores; 1 where times are measured)
        address: measure on a Ray cluster: auto, or HOST:PORT
    """

    subjects: tuple[str, ...] = field(default=(), kw_only=False)
    seeds: Annotated[tuple[int, ...], cli.reads(command_line.read_seeds, "0,2,4")] = ()
    keep: Annotated[bool, KEPT] = False
    stored: Annotated[bool, KEPT] = False
    missing: Annotated[bool, KEPT] = False
    again: bool = False
    results: Path | None = None
    jobs: Annotated[command_line.Positive | None, WHERE] = None
    address: Annotated[str | None, WHERE] = None


@Parameter(name="*")
@dataclass(kw_only=True)
class EpisodesOptions(Options):
    """What to measure, and where.

    Attributes:
        episodes: of each seed
    """

    episodes: command_line.Positive | None = None


@heartbeat()
def run(module: str, options: Options) -> int:
    """Run the experiment that a module declares; returns the exit status."""
    if options.update_docs and (options.results or not (options.stored or options.keep)):
        raise command_line.UsageError(
            "--update-docs shows stored results only.",
            "Add --stored, or --keep to measure what is missing; leave --results out.",
        )
    return _run(module, replace(importlib.import_module(module).EXPERIMENT, folder=options.results), options)


@heartbeat()
def join(joined: Joined, options: JoinedOptions) -> int:
    """Run a study that measures nothing: the tables and pictures of what others kept; returns the exit status."""
    tables, drawn = joined.build_output()
    cells = [{"table": table.name, "headers": table.headers, "rows": table.rows} for table in tables]
    values = joined.plain(joined.kept(None)) if joined.plain else cells
    return show(options, tables, lambda: drawn, values, options.update_docs)


def show(
    options: Drawing,
    made: Sequence[Table],
    drawn: Callable[[], Mapping[str, Figure]],
    values: Any,
    update_docs: bool = False,
) -> int:
    """Print the tables, or with --json the values; fill docs/ with them and draw the pictures where that is asked."""
    from quarl.bench import tables

    if update_docs:
        command_line.update_docs(made)
    folders = [STUDY_FIGURES] * update_docs + ([options.output_path] if options.output_path else [])
    for stem, figure in drawn().items() if folders else ():
        for folder in folders:
            command_line.say("\n".join(map(str, save(figure, folder / stem))))
    if options.json:
        print(json.dumps({"ok": True, "rows": values}, ensure_ascii=False))
    elif options.markdown:
        print("\n".join(map(tables.to_markdown, made)))
    else:
        for table in made:
            tables.print_table(table, command_line.console())
    return cli.EXIT_OK


def _run(module: str, experiment: Experiment, options: Options) -> int:
    subjects = list(dict.fromkeys(options.subjects or experiment.subjects))
    for subject in options.subjects:
        command_line.say(experiment.about(subject))
    if options.update_docs and options.subjects:
        raise command_line.UsageError(
            f"--update-docs writes the page from all stored results, not from {', '.join(options.subjects)} alone.",
            f"quarl study {experiment.name} --stored --update-docs",
        )
    run_records = (
        _read_stored(experiment, options) if options.stored else _measure(module, experiment, options, subjects)
    )
    if options.subjects or options.update_docs:  # the page is of the committed ones
        run_records = [record for record in run_records if record["subject"] in subjects]
    if not run_records:
        raise command_line.BenchError("no results are stored.", f"quarl study {experiment.name} --keep")
    results = Results(experiment, run_records)
    return show(options, results.tables(), results.figures, results.plain(), options.update_docs)


def _read_stored(experiment: Experiment, options: Options) -> list[Record]:
    stored_records = records.read(experiment.path)
    current_records = in_order(experiment, current(experiment, stored_records))
    if stale := list(dict.fromkeys(record["subject"] for record in stored_records if record not in current_records)):
        command_line.say(
            f"left out, measured of other weights: {', '.join(stale)}; next: quarl study {experiment.name} --keep"
        )
    return current_records


def _measure(module: str, experiment: Experiment, options: Options, subjects: list[str]) -> list[Record]:
    """Measure the requested cells that are not kept; with --keep store each as it ends, and return all that is kept."""
    requested = running.cells(experiment, options, subjects)
    stored_records = current(experiment, records.read(experiment.path)) if options.keep or options.missing else []
    todo = requested if options.again else running.missing(requested, stored_records)
    measured: list[Record] = []
    if options.missing:
        measured, todo = running.select_cells(requested, stored_records)
    for subject in dict.fromkeys(cell.subject for cell in todo):  # before anything is measured
        experiment.about(subject)
        experiment.require(subject)
    if options.keep and todo and options.results is None:
        running.refuse_dirty()
    jobs = options.jobs or (1 if experiment.timed else os.cpu_count() or 1)
    left = f"{len(todo)} cells" if todo else "all of it is stored, nothing to measure"
    with command_line.progress_bar(f"{experiment.name}: {left}") as progress:
        for number, new in enumerate(running.run(module, todo, jobs, options.address), 1):
            measured += new
            if options.keep:
                records.append(experiment.path, new)
            progress(number, len(todo))
    if not options.keep:
        return in_order(experiment, measured)

    def order_records(rows: list[Record]) -> list[Record]:
        return in_order(experiment, running.drop_superseded(todo, current(experiment, rows)))

    return records.rewrite(experiment.path, order_records)
