"""Runs of ``quarl actorq`` as a user types them: which are compared, their plans, what their bundles say."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl import cli
from quarl.bench.command_line import BenchError
from quarl.bench.study.experiment import Results
from quarl.bench.study.measures.children import last_words, run_to_end
from quarl.bench.study.records import Condition, Record
from quarl.policy.places import PROJECT_ROOT

if TYPE_CHECKING:
    from quarl.train.actorq.plan import Plan

NAMES = {32: "fp32", 16: "fp16", 8: "int8"}
WIDTHS: dict[int, Condition] = {32: {}, 16: {"bits": 16}, 8: {"bits": 8}}
"""Conditions by the actors' bits; fp32, which sets none, is what the others are compared with."""
NATIVE: Condition = {"bits": 8, "runtime": "native"}
ACTORS: dict[str, Condition] = {**{NAMES[bits]: width for bits, width in WIDTHS.items()}, "int8, native": NATIVE}
"""Conditions by the names of their actors; those that name no runtime act by LiteRT."""
STYLES = {32: 0, 8: 1}
"""Style of a line, by the actors' bits."""
CARTPOLE_BALANCE = "dm_control,cartpole_balance"
SKIPPED_ROUNDS = 2  # the first is compiled
LONGEST_S = 1800.0
ACTOR_BOUND, LEARNER_BOUND, LEARNING = "actor-bound", "learner-bound", "learning"


@dataclass(frozen=True)
class ActorQCell:
    """One training that is done with actors in int8 and in fp32.

    Attributes:
        task, method, steps: as they are typed.
        more: further words of the command.
        goal: greedy return that counts as learned; the time to it is compared. None: only the pace is.
        purpose: ``learning``, or what is to be waited for: actors or learner.
    """

    task: str
    method: str
    steps: int
    more: str
    goal: float | None = None
    purpose: str = LEARNING

    @property
    def words(self) -> list[str]:
        """The options of ``quarl actorq``, but for the actors' bits and the seed."""
        return ["--task", self.task, "--method", self.method, "--steps", str(self.steps), *self.more.split()]


D4PG = "--n-actors 4 --samples-per-insert 64 --evaluate-every"
BIG = "--model 2048,2048,2048 --set learning_starts=1000 --set updates=1 --batch-size 64"
BOUND = f"{BIG} --evaluate-every 1000000 --evaluate-episodes 1 --final-episodes 1"
CELLS = {
    "cartpole_balance": ActorQCell(CARTPOLE_BALANCE, "d4pg", 60_000, f"{D4PG} 5000 --final-episodes 10", 900.0),
    "walker_stand": ActorQCell("dm_control,walker_stand", "d4pg", 200_000, f"{D4PG} 10000 --final-episodes 30", 900.0),
    "cheetah_run": ActorQCell("dm_control,cheetah_run", "d4pg", 80_000, f"{D4PG} 5000 --final-episodes 10", 200.0),
    "cartpole": ActorQCell("cartpole", "dqn", 50_000, "--samples-per-insert 32 --evaluate-every 5000", 400.0),
    "mountaincar": ActorQCell("mountaincar", "dqn", 60_000, "--samples-per-insert 16 --evaluate-every 6000", -130.0),
    "acrobot": ActorQCell("acrobot", "dqn", 60_000, "--samples-per-insert 32 --evaluate-every 6000", -110.0),
    **{
        name: ActorQCell(CARTPOLE_BALANCE, "d4pg", steps, f"{BOUND} --samples-per-insert {ratio}", purpose=purpose)
        for name, steps, ratio, purpose in (
            ("big-actors", 30_000, "0.05", ACTOR_BOUND),
            ("big-actors-more", 40_000, "0.02", ACTOR_BOUND),
            ("big-learner", 2_000, "8", LEARNER_BOUND),
        )
    },
}


@dataclass(frozen=True)
class Run:
    """The results of one run.

    Attributes:
        provenance: of its bundle.
        curve: rows of its learning curve, as numbers; an empty field is left out.
        wall_s, cpu_s: of the whole command, and of all its processes but Ray's own.
    """

    provenance: Mapping[str, Any]
    curve: Sequence[Mapping[str, float]]
    wall_s: float
    cpu_s: float

    @property
    def rates(self) -> dict[str, float]:
        """``steps_per_s``, ``updates_per_s`` and the ``seconds`` that they were counted over.

        From the rounds that compile to the last row but one: the last is written after the policy was evaluated, which
        belongs to no actor.

        Raises:
            BenchError: there are not two such rows.
        """
        first = SKIPPED_ROUNDS * self.provenance["settings"]["updates"]
        counted = [row for row in self.curve[:-1] if row["updates"] >= first]
        if len(counted) < 2:
            raise BenchError(
                "a run ended before its speed could be measured: it logged fewer than two rounds after warm-up."
            )
        steps, updates, seconds = (counted[-1][name] - counted[0][name] for name in ("step", "updates", "wall_s"))
        return {"steps_per_s": steps / seconds, "updates_per_s": updates / seconds, "seconds": seconds}


def run(words: Sequence[str]) -> Run:
    """Do one run; its bundle is read and thrown away.

    Args:
        words: what is typed after ``quarl actorq``, without ``--output-path``.

    Raises:
        BenchError: it failed, with its last words, or took too long.
    """
    from quarl.policy.bundle import Bundle
    from quarl.train.actorq import VARIABLES
    from quarl.train.runs.logs import CURVE_FILE, read_curve

    typed = f"quarl actorq {' '.join(words)}"
    with tempfile.TemporaryDirectory() as temporary:
        bundle = Path(temporary) / "bundle"
        command = [sys.executable, "-m", "quarl.train.actorq", *words, "--quiet", "--output-path", str(bundle)]
        began = time.monotonic()
        try:
            done = run_to_end(
                command, folder=PROJECT_ROOT, environment={**os.environ, **VARIABLES}, timeout_s=LONGEST_S
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{typed} took more than {LONGEST_S:g} s.") from None
        wall_s = time.monotonic() - began
        if done.returncode:
            raise BenchError(f"{typed} exited with status {done.returncode}:\n{last_words(done)}")
        provenance = Bundle.load(bundle).spec.provenance
        curve = read_curve((bundle / CURVE_FILE).read_text(encoding="utf-8"))
    cpu_s = float(provenance["cpu_s"]) + sum(provenance["actorq"]["cpu_s"].values())
    return Run(provenance, curve, wall_s, cpu_s)


def make_plan(words: Sequence[str]) -> Plan:
    """Return the plan that a command would make, for measuring its parts without it."""
    from quarl.train.actorq.plan import make_plan

    with redirect_stdout(StringIO()):
        return make_plan(cli.options("actorq", [*words, "--quiet"]))


# --- what follows -----------------------------------------------------------------------------------------------------


def options_of(condition: Condition) -> list[str]:
    """Return the options to type for a condition."""
    return [
        "--quantize",
        str(condition.get("bits", 32)),
        *(["--runtime", condition["runtime"]] if "runtime" in condition else []),
    ]


def pairs(results: Results, subject: str, own: Condition = WIDTHS[8]) -> list[tuple[Record, Record]]:
    """(int8, fp32) of each seed that both have."""
    fp32 = {record["seed"]: record for record in results.records_of(subject, WIDTHS[32])}
    return [(record, fp32[record["seed"]]) for record in results.records_of(subject, own) if record["seed"] in fp32]


def rates(found: Sequence[tuple[Record, Record]]) -> list[float]:
    """Return the steps per second of int8 over fp32's, seed by seed."""
    return [one["measures"]["steps_per_s"] / other["measures"]["steps_per_s"] for one, other in found]


def amdahl(share: float, faster: float) -> float:
    """Return how many times as fast the whole becomes if a share of it becomes ``faster`` times as fast."""
    return 1.0 / (1.0 - share + share / faster)


def spread(values: Sequence[float]) -> str:
    """Median, smallest and largest of ratios: ``2.10× [2.02, 2.31]``."""
    return f"{statistics.median(values):.2f}× [{min(values):.2f}, {max(values):.2f}]"
