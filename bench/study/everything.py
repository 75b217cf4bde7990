"""The quantization study, run again from the committed policies: everything, in one command.

    make study                            measures what is not kept yet: after an interruption it goes on
    make study-quick                      the paper's tables of what is kept; few episodes of what is not, which are not
                                          kept; pictures in artifacts/study-quick
    python -m bench.study --stored        the tables of what is kept
    python -m bench.study --stored --update-docs    and the pictures and tables of docs/ from them

It judges the artifacts of every benchmark policy, flies the navigation policies at each precision, and sweeps the bit
widths. It trains and times nothing: what needs that is only shown. Each step
is a command of its own, printed when it starts; --plan prints them all. What was measured before is measured again
once its file in results/study/ is gone, or its policy another one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from quarl.bench import command_line
from quarl.policy.places import PROJECT_ROOT

MEASURED = ("cells", "sweep")
SHOWN = ("qat", "native", "speed", "mixed", "actorq-breakdown", "actorq-trainings", "actorq-scaling")
JOINED = ("ptq", "width")  # what several studies measured, in one table
SUCCESS = ["bench/success.py", "--policy", "I,II,III", "--precision", "fp32,fp16,int8"]
PAPERS_WIDTHS = ["--weights-only", "--bits", "2,4,8", "--seeds", "0", "--output-path", "artifacts/study-quick"]
QUICK = {"cells": [], "sweep": PAPERS_WIDTHS}
CARTPOLE = ["cartpole-dqn", "cartpole-ppo", "cartpole-a2c", "-b", "4", "--output-path", "docs/figures/weights"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps, each of which prints its tables."""
    parser = command_line.parser(__doc__, "-m bench.study")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--keep", action="store_true", help="measure and store what is not kept yet (the default)")
    kind.add_argument(
        "--quick", action="store_true", help="the paper's tables: few episodes of what is not kept, and keep nothing"
    )
    kind.add_argument("--stored", action="store_true", help="measure nothing; the tables of what is kept")
    parser.add_argument("--jobs", type=command_line.positive, default=os.cpu_count(), help="processes (default: cores)")
    parser.add_argument("--plan", action="store_true", help="print the commands and run none")
    parser.add_argument("--update-docs", action="store_true", help="draw the pictures of docs/, and fill its tables")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each study")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.update_docs:
        parser.error("docs/ shows the whole study; leave out --quick or --update-docs")
    return command_line.guarded(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    planned = steps(arguments)
    if arguments.plan:
        print("\n".join(shlex.join(["python", *words]) for words in planned))
        return command_line.EXIT_OK
    failed = []
    for words in planned:
        command_line.say(shlex.join(["python", *words]))
        if subprocess.run([sys.executable, *words], cwd=PROJECT_ROOT).returncode:
            failed.append(f"failed: {shlex.join(['python', *words])}")
    command_line.say("\n".join(failed) or f"{len(planned)} commands done")
    return command_line.EXIT_FAILED if failed else command_line.EXIT_OK


def steps(arguments: argparse.Namespace) -> list[list[str]]:
    """The arguments of ``python`` in each command."""
    shown = [f"--{name}" for name in ("markdown", "json") if getattr(arguments, name)]
    if arguments.quick:
        return [
            ["-m", "bench.study", name, "--missing", *words, "--episodes", "10", "--jobs", str(arguments.jobs), *shown]
            for name, words in QUICK.items()
        ]
    shown += ["--update-docs"] * arguments.update_docs
    how = ["--stored"] if arguments.stored else ["--keep", "--jobs", str(arguments.jobs)]
    planned = [["-m", "bench.study", name, *how, *shown] for name in MEASURED]
    planned += [["-m", "bench.study", name, "--stored", *shown] for name in SHOWN]
    planned += [["-m", "bench.study", name, *shown] for name in JOINED]
    if arguments.update_docs:
        planned.append(["-m", "bench.study", "weights", *CARTPOLE])
    return planned if arguments.stored else [SUCCESS, *planned]
