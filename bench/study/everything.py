"""The quantization study, run again from the committed policies: everything, in one command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.study.command import KEPT
from quarl.policy.places import PROJECT_ROOT

MEASURED = ("cells", "sweep")
SHOWN = ("qat", "speed", "mixed", "actorq-breakdown", "actorq-trainings")
JOINED = ("ptq", "width")  # what several studies measured, in one table
SUCCESS = ["bench", "success", "--policy", "I,II,III", "--precision", "fp32,fp16,int8"]
PAPERS_WIDTHS = ["--weights-only", "--bits", "2,4,8", "--seeds", "0", "--output-path", "artifacts/study-quick"]
QUICK = {"cells": [], "sweep": PAPERS_WIDTHS}
CARTPOLE = ["cartpole-dqn", "cartpole-ppo", "cartpole-a2c", "-b", "4", "--output-path", "docs/figures/weights"]


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Printing):
    """What to run.

    Attributes:
        keep: measure and store missing rows (the default)
        quick: the paper's tables: few episodes of missing rows; store nothing
        stored: measure nothing; the tables of the stored rows
        jobs: processes (default: cores)
        plan: print the commands and run none
        update_docs: draw the pictures of docs/, and fill its tables
        markdown: print Markdown
        json: print a line of JSON for each study
    """

    keep: Annotated[bool, KEPT] = False
    quick: Annotated[bool, KEPT] = False
    stored: Annotated[bool, KEPT] = False
    jobs: command_line.Positive | None = None
    plan: bool = False
    update_docs: bool = False
    markdown: bool = False


@cli.verb()
def everything(options: Options) -> int:
    """Repeat the whole quantization study from the committed policies.

    make study                            measures missing rows; resumes after an interruption
    make study-quick                      the paper's tables; few episodes of missing rows, which are not
                                              kept; pictures in artifacts/study-quick
        quarl study all --stored        the tables of the stored rows
        quarl study all --stored --update-docs    and the pictures and tables of docs/ from them

    It evaluates the artifacts of every benchmark policy, flies the navigation policies at each precision, and sweeps
    the bit widths. It trains and times nothing; of studies that need this, it prints the stored rows. Each step is a
    command of its own, printed when it starts; --plan prints them all. To measure rows again, delete their file in
    results/study/; a changed policy is measured again by itself.
    """
    if options.quick and options.update_docs:
        raise command_line.UsageError(
            "--update-docs requires the whole study, and --quick runs a part of it.",
            "Leave out --quick or --update-docs.",
        )
    planned = [["quarl", *words] for words in steps(options)]
    if options.plan:
        print("\n".join(map(shlex.join, planned)))
        return cli.EXIT_OK
    failed = []
    for words in planned:
        command_line.say(shlex.join(words))
        if subprocess.run([sys.executable, "-m", "quarl.cli", *words[1:]], cwd=PROJECT_ROOT).returncode:
            failed.append(f"failed: {shlex.join(words)}")
    command_line.say("\n".join(failed) or f"{len(planned)} commands done")
    return cli.EXIT_FAILED if failed else cli.EXIT_OK


def steps(options: Options) -> list[list[str]]:
    """Return the words after ``quarl`` of each command."""
    jobs = str(options.jobs or os.cpu_count())
    output_options = [f"--{name}" for name in ("markdown", "json") if getattr(options, name)]
    if options.quick:
        return [
            ["study", name, "--missing", *words, "--episodes", "10", "--jobs", jobs, *output_options]
            for name, words in QUICK.items()
        ]
    output_options += ["--update-docs"] * options.update_docs
    how = ["--stored"] if options.stored else ["--keep", "--jobs", jobs]
    planned = [["study", name, *how, *output_options] for name in MEASURED]
    planned += [["study", name, "--stored", *output_options] for name in SHOWN]
    planned += [["study", name, *output_options] for name in JOINED]
    if options.update_docs:
        planned.append(["study", "weights", *CARTPOLE])
    return planned if options.stored else [SUCCESS, *planned]


main = cli.of("study all")
