"""Quantized actors: where their time goes, what they learn, and what they cost, against actors in full precision.

    python -m bench.study actorq --keep                       all of it; a training takes one to four minutes
    python -m bench.study actorq --only breakdown --keep      one actor alone: fp32, fp16 and int8 at periods 30 and 300
    python -m bench.study actorq --only trainings --cells cartpole_balance --seeds 0 --keep
    python -m bench.study actorq --only bound --keep          where actors are waited for, and where the learner is
    python -m bench.study actorq --stored --update-docs       fills docs/actorq.md and its pictures

--keep stores the answers in results/actorq; --only-missing does what is not kept there yet.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from policy.hints import Parser

if TYPE_CHECKING:
    from bench.study.actorq.store import Measured
    from bench.study.actorq.training import Training

PARTS = ("breakdown", "trainings", "bound")
MODELS = (("dm_control,cartpole_balance", "512,512"), ("dm_control,cartpole_balance", "2048,2048,2048"))
STEPS, ROUNDS = 3_000, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = Parser(
        prog="python -m bench.study actorq",
        description=__doc__,
        epilog=command_line.EPILOG,
    )
    options.add_argument("--only", choices=PARTS, help="a part of it (default: all three)")
    options.add_argument("--cells", type=command_line.words, metavar="NAMES", help="of the trainings, with commas")
    options.add_argument("--seeds", type=_seeds, default=(0, 1, 2), metavar="0,1,2", help="of the trainings")
    options.add_argument("--steps", type=command_line.positive, default=STEPS, help="of a breakdown (%(default)s)")
    options.add_argument("--rounds", type=command_line.positive, default=ROUNDS, help="of a breakdown (%(default)s)")
    options.add_argument("--scratch", type=Path, help="where bundles are written (default: a temporary folder)")
    options.add_argument("--keep", action="store_true", help="store the answers in results/actorq")
    options.add_argument("--only-missing", action="store_true", help="leave out trainings that are kept")
    options.add_argument("--stored", action="store_true", help="measure nothing: print what is kept")
    options.add_argument("--update-docs", action="store_true", help="with --stored: write docs/actorq.md's tables")
    options.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    options.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = options.parse_args(argv)
    if arguments.update_docs and not arguments.stored:
        options.error("--update-docs fills the page from what is kept; type it with --stored")
    return command_line.guarded(_run, arguments)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in command_line.words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of seeds; type 0,1,2") from None


def _run(arguments: argparse.Namespace) -> int:
    from bench.study.actorq import store as actorq_store
    from bench.study.actorq.training import as_typed_now
    from train.__main__ import quiet_libraries

    quiet_libraries()
    if not arguments.stored:
        _measure(arguments)
        if not arguments.keep:
            return command_line.EXIT_OK
    measured, trainings = actorq_store.read_breakdown(), as_typed_now(actorq_store.read_trainings())
    if measured is None and not trainings:
        raise command_line.BenchError("nothing is kept yet.", actorq_store.AGAIN)
    _show(arguments, measured, trainings)
    return command_line.EXIT_OK


def _show(arguments: argparse.Namespace, measured: Measured | None, trainings: Sequence[Training]) -> None:
    from bench.report import tables as rendering
    from bench.report.figures import FIGURES
    from bench.study.actorq import curves as actorq_curves
    from bench.study.actorq import figure as actorq_figure
    from bench.study.actorq import table as actorq_table

    tables = actorq_table.tables(measured, trainings)
    if arguments.update_docs:
        command_line.update_docs(tables)
        if measured is not None:
            command_line.say("\n".join(map(str, actorq_figure.save_figure(measured, FIGURES))))
        if actorq_table.learned_cells(trainings):
            command_line.say("\n".join(map(str, actorq_curves.save_figure(trainings, FIGURES))))
    if arguments.json:
        rows = [] if measured is None else [row.values() for row in measured.rows]
        print(json.dumps({"ok": True, "breakdown": rows, "trainings": [each.values() for each in trainings]}))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table in tables))
    else:
        for table in tables:
            rendering.print_table(table, command_line.console())


def _measure(arguments: argparse.Namespace) -> None:
    """Measure what is asked for, and keep it if that is asked for."""
    from bench.study.actorq import measuring as actorq_measuring
    from bench.study.actorq import store as actorq_store
    from bench.study.actorq.training import CELLS, LEARNING, here

    names = {cell.name for cell in CELLS}
    if unknown := [name for name in arguments.cells or () if name not in names]:
        raise command_line.UsageError(f"there is no cell {unknown[0]!r}.", f"take some of {', '.join(sorted(names))}")
    if arguments.only in (None, "breakdown"):
        settings = actorq_measuring.settings_of(MODELS)
        rows = actorq_measuring.measure(settings, arguments.steps, arguments.rounds, command_line.say)
        if arguments.keep:
            actorq_store.write_breakdown(actorq_store.Measured(tuple(rows), *here()))
    wanted = [
        cell
        for cell in CELLS
        if (not arguments.cells or cell.name in arguments.cells)
        and arguments.only in (None, "trainings" if cell.purpose == LEARNING else "bound")
    ]
    with tempfile.TemporaryDirectory() as temporary:
        _train(arguments, wanted, arguments.scratch or Path(temporary))


def _train(arguments: argparse.Namespace, cells: Sequence[object], scratch: Path) -> None:
    """Both kinds of actors after each other, a seed of all cells first."""
    from bench.study.actorq import store as actorq_store
    from bench.study.actorq.training import BITS, Cell, train

    for seed in arguments.seeds:
        for cell in cells:
            assert isinstance(cell, Cell)
            for bits in BITS if seed % 2 == 0 else BITS[::-1]:  # what else the machine does falls on both alike
                kept = actorq_store.read_trainings()
                if arguments.only_missing and any(each.command == cell.typed(bits, seed) for each in kept):
                    continue
                done = train(cell, bits, seed, scratch)
                goal = "" if cell.goal is None else f", at {cell.goal:g} after {_seconds(done.goal_s)}"
                command_line.say(
                    f"{cell.name}, {bits} bits, seed {seed}: return {done.mean_return:.1f}{goal}; "
                    f"{done.steps_per_s:.0f} steps/s, {done.wall_s:.0f} s in all, {done.cpu_s:.0f} CPU-s"
                )
                if arguments.keep:
                    others = [each for each in kept if each.key != done.key]
                    actorq_store.write_trainings([*others, done])


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f} s"


if __name__ == "__main__":
    raise SystemExit(main())
