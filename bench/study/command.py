"""``python -m bench.study NAME``: what is asked, measured, kept, printed and drawn, the same for every experiment."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl.bench import command_line
from quarl.bench.report.figures import FIGURES, save
from quarl.bench.study import records, running
from quarl.bench.study.experiment import Results, current, in_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quarl.bench.report.tables import Table
    from quarl.bench.study.experiment import Experiment
    from quarl.bench.study.joined import Joined
    from quarl.bench.study.records import Record

STUDY_FIGURES = FIGURES / "study"


def main(module: str, argv: Sequence[str]) -> int:
    """Run the experiment that a module declares; returns the exit status."""
    found = importlib.import_module(module)
    experiment: Experiment = found.EXPERIMENT
    parser = command_line.parser(found.__doc__, f"-m bench.study {experiment.name}")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="default: all committed ones")
    experiment.options(parser)
    parser.add_argument("--seeds", type=command_line.seeds, metavar="0,2,4", help="of the episodes")
    if experiment.samples:
        parser.add_argument(
            f"--{experiment.samples}", dest="episodes", metavar="N", type=command_line.positive, help="of each seed"
        )
    parser.set_defaults(episodes=None)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--keep", action="store_true", help="store the rows; what is stored already is not measured again"
    )
    what.add_argument("--stored", action="store_true", help="measure nothing; use what is kept")
    what.add_argument("--missing", action="store_true", help="use what is kept, measure the rest; store nothing")
    parser.add_argument("--again", action="store_true", help="with --keep: measure also what is stored")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="where rows are kept (default: results/study)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--jobs",
        type=command_line.positive,
        default=1 if experiment.timed else os.cpu_count(),
        help=f"processes (default: {'1, since times are measured' if experiment.timed else 'cores'})",
    )
    where.add_argument("--address", metavar="auto", help="measure on a Ray cluster: auto, or HOST:PORT")
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.update_docs and (arguments.results or not (arguments.stored or arguments.keep)):
        parser.error("docs/ shows what is kept; add --stored, or --keep to measure what is missing; no --results")
    experiment = dataclasses.replace(experiment, folder=arguments.results)
    return command_line.guarded(lambda parsed: _run(module, experiment, parsed), arguments)


def join(name: str, module: str, argv: Sequence[str]) -> int:
    """Run a study that measures nothing: the tables and pictures of what others kept; returns the exit status."""
    found = importlib.import_module(module)
    joined: Joined = found.JOINED
    parser = command_line.parser(found.__doc__, f"-m bench.study {name}")
    add_output(parser)

    def run(arguments: argparse.Namespace) -> int:
        made, drawn = joined.made()
        cells = [{"table": table.name, "headers": table.headers, "rows": table.rows} for table in made]
        return show(arguments, made, lambda: drawn, joined.plain(joined.kept(None)) if joined.plain else cells)

    return command_line.guarded(run, parser.parse_args(argv))


def add_output(parser: argparse.ArgumentParser) -> None:
    """--update-docs, --output-path, --markdown, --json: what :func:`show` does."""
    parser.add_argument("--update-docs", action="store_true", help="fill the tables of docs/, draw their pictures")
    parser.add_argument("--output-path", type=Path, metavar="FOLDER", help="draw the pictures into this folder")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")


def show(
    arguments: argparse.Namespace, made: Sequence[Table], drawn: Callable[[], Mapping[str, Figure]], values: Any
) -> int:
    """Print the tables, or with --json the values; fill docs/ with them and draw the pictures where that is asked."""
    from quarl.bench.report import tables

    if arguments.update_docs:
        command_line.update_docs(made)
    folders = [STUDY_FIGURES] * arguments.update_docs + [arguments.output_path] * bool(arguments.output_path)
    for stem, figure in drawn().items() if folders else ():
        for folder in folders:
            command_line.say("\n".join(map(str, save(figure, folder / stem))))
    if arguments.json:
        print(json.dumps({"ok": True, "rows": values}, ensure_ascii=False))
    elif arguments.markdown:
        print("\n".join(map(tables.to_markdown, made)))
    else:
        for table in made:
            tables.print_table(table, command_line.console())
    return command_line.EXIT_OK


def _run(module: str, experiment: Experiment, arguments: argparse.Namespace) -> int:
    subjects = list(dict.fromkeys(arguments.subjects or experiment.subjects))
    for subject in arguments.subjects:
        command_line.say(experiment.about(subject))
    if arguments.update_docs and arguments.subjects:
        raise command_line.UsageError(
            f"--update-docs fills the page with all that is kept, not with {', '.join(arguments.subjects)} alone.",
            f"python -m bench.study {experiment.name} --stored --update-docs",
        )
    found = _stored(experiment, arguments) if arguments.stored else _measured(module, experiment, arguments, subjects)
    if arguments.subjects or arguments.update_docs:  # the page is of the committed ones
        found = [record for record in found if record["subject"] in subjects]
    if not found:
        raise command_line.BenchError("nothing is stored.", f"python -m bench.study {experiment.name} --keep")
    results = Results(experiment, found, arguments)
    return show(arguments, results.tables(), results.figures, results.plain())


def _stored(experiment: Experiment, arguments: argparse.Namespace) -> list[Record]:
    kept = records.read(experiment.path)
    found = in_order(experiment, current(experiment, kept))
    if stale := list(dict.fromkeys(record["subject"] for record in kept if record not in found)):
        command_line.say(
            f"left out, measured of other weights: {', '.join(stale)}; "
            f"next: python -m bench.study {experiment.name} --keep"
        )
    return found


def _measured(module: str, experiment: Experiment, arguments: argparse.Namespace, subjects: list[str]) -> list[Record]:
    """Measure the requested cells that are not kept; with --keep store each as it ends, and return all that is kept."""
    requested = running.cells(experiment, arguments, subjects)
    kept = current(experiment, records.read(experiment.path)) if arguments.keep or arguments.missing else []
    todo = requested if arguments.again else running.missing(requested, kept)
    measured: list[Record] = []
    if arguments.missing:
        measured, todo = running.kept_or_requested(requested, kept)
    for subject in dict.fromkeys(cell.subject for cell in todo):  # before anything is measured
        experiment.about(subject)
        experiment.require(subject)
    if arguments.keep and todo and arguments.results is None:
        running.refuse_dirty()
    left = f"{len(todo)} cells" if todo else "all of it is stored, nothing to measure"
    with command_line.progress_bar(f"{experiment.name}: {left}") as progress:
        for number, new in enumerate(running.run(module, todo, arguments.jobs, arguments.address), 1):
            measured += new
            if arguments.keep:
                records.append(experiment.path, new)
            progress(number, len(todo))
    if not arguments.keep:
        return in_order(experiment, measured)

    def ordered(rows: list[Record]) -> list[Record]:
        return in_order(experiment, running.without_superseded(todo, current(experiment, rows)))

    return records.rewrite(experiment.path, ordered)
