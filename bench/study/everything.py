"""QuaRL's study of post-training quantization, run again from the committed policies: everything, in one command.

    make study                            all of it, in full (how long it took stands in docs/study.md)
    make study-quick                      the same tables from few episodes, in minutes, kept apart in artifacts/
    python -m bench.study --resume        goes on where an interrupted one stopped
    python -m bench.study --stored        the tables of what is kept
    python -m bench.study --stored --update-docs    and the pictures and tables of docs/ from them

It judges the fp32, fp16 and int8 artifacts of every benchmark policy, flies the navigation policies at each precision,
and sweeps the bit widths. It trains nothing: learning with quantizers is python -m bench.study qat --keep. Each step
is a command of its own, printed when it starts; --plan prints them all.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from bench.study.plan import Plan, Step, full_plan, quick_plan
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from bench.report.tables import Table

ROOT = PROJECT_ROOT
QUICK = Path("artifacts") / "study-quick"
DONE = ROOT / "artifacts" / "study-done.json"  # the steps that an interrupted study has made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps, print the tables."""
    parser = command_line.parser(__doc__, "-m bench.study")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", action="store_true", help="few episodes, answers kept in artifacts/study-quick")
    kind.add_argument("--resume", action="store_true", help="leave out the steps that the last one had made")
    kind.add_argument("--stored", action="store_true", help="run nothing; the tables of what is kept")
    parser.add_argument("--jobs", type=command_line.positive, default=os.cpu_count(), help="commands at a time (cores)")
    parser.add_argument("--plan", action="store_true", help="print the commands and run none")
    parser.add_argument("--update-docs", action="store_true", help="draw the pictures of docs/, and fill its tables")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.update_docs:
        parser.error("docs/study.md shows the whole study; leave out --quick or --update-docs")
    return command_line.guarded(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering

    plan = quick_plan(ROOT, QUICK) if arguments.quick else full_plan(ROOT, arguments.update_docs)
    if arguments.plan:
        print("\n".join(step.command for step in plan.steps))
        return command_line.EXIT_OK
    if arguments.stored:
        plan = Plan((), plan.drawn)
    remember = None if arguments.quick or arguments.stored else Remembered(DONE, arguments.resume, committed_weights())
    failures = run(plan, arguments.jobs, remember) if plan.steps else []
    made = quick_tables(ROOT / QUICK) if arguments.quick else kept_tables()
    if arguments.update_docs:
        command_line.update_docs(made)
    if arguments.json:
        named = [{"name": each.name, "headers": each.headers, "rows": each.rows, "notes": each.notes} for each in made]
        print(json.dumps({"ok": not failures, "failures": failures, "tables": named}, ensure_ascii=False))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table in made))
    else:
        for table in made:
            rendering.print_table(table, command_line.console())
    if failures:
        again = "--quick" if arguments.quick else "--resume"
        command_line.say("\n".join([*failures, f"  next: python -m bench.study {again}"]))
    return command_line.EXIT_FAILED if failures else command_line.EXIT_OK


def kept_tables() -> list[Table]:
    """The tables of what is stored in results/."""
    from bench.study.cells import ptq_table as study_table
    from bench.study.cells.command import read_answers
    from bench.study.sweep import store as study_store

    rows = study_table.judged(read_answers(), study_store.read_sweeps(), committed_weights())
    return list(study_table.tables(rows))


def quick_tables(folder: Path) -> list[Table]:
    """Those of the quick study's own answers."""
    from bench.study.cells import ptq_table as study_table
    from bench.study.cells.command import read_answers
    from bench.study.sweep import store as study_store

    answers, sweeps = read_answers(folder / "cells.json"), study_store.read_sweeps(folder)
    return study_table.tables(study_table.judged(answers, sweeps, committed_weights()))


def committed_weights() -> dict[str, str]:
    """SHA-256 of the weights of every bundle of zoo/benchmark, by name."""
    from bench.study.cells.command import BENCHMARK, bundle_names, weights_hash
    from policy.bundle import Bundle

    return {name: weights_hash(Bundle.load(BENCHMARK / name)) for name in bundle_names()}


class Remembered:
    """The commands that an interrupted study has made, in a file; gone when the study is whole."""

    def __init__(self, path: Path, resume: bool, weights: Mapping[str, str]) -> None:
        """Args: the file, whether what it names is to be left out, and the weights that the study is of: what was made
        of others is not left out."""
        self._path, self._lock, self._weights = path, threading.Lock(), dict(weights)
        self.commands: list[str] = []
        if resume and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.commands = kept["commands"] if kept["weights"] == self._weights else []

    def add(self, command: str) -> None:
        """This one is made."""
        from policy.files import write_atomically

        with self._lock:
            self.commands.append(command)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps({"weights": self._weights, "commands": self.commands}).encode())

    def forget(self) -> None:
        """All are made."""
        self._path.unlink(missing_ok=True)


def run(plan: Plan, jobs: int, remembered: Remembered | None = None) -> list[str]:
    """Run what is to be measured, ``jobs`` at a time, then what is drawn of it; a failure does not stop the others.

    Returns:
        What failed, in words.
    """
    from bench.study.speed.command import started

    began, made, failures = time.monotonic(), 0, []
    known = remembered.commands if remembered is not None else []
    measured = [step for step in plan.measured if step.command not in known]
    count = len(measured) + len(plan.drawn)

    def one(step: Step) -> str:
        command_line.say(f"[{time.monotonic() - began:.0f} s] {step.command}")
        try:
            started([sys.executable, *step.words])
        except command_line.BenchError as error:
            return str(error)
        if remembered is not None:
            remembered.add(step.command)
        return ""

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            for failure in itertools.chain(pool.map(one, measured), map(one, plan.drawn)):
                made += 1
                failures += [failure] if failure else []
                if failure:
                    command_line.say(failure)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    command_line.say(f"{made} of {count} commands in {time.monotonic() - began:.0f} s")
    if remembered is not None and not failures:
        remembered.forget()
    return failures


if __name__ == "__main__":
    raise SystemExit(main())
