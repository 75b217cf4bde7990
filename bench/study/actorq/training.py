"""Trainings with quantized and with full-precision actors: what both reach, how long it takes, what it costs.

Each is the command a user types, in a process of its own; everything is read from the bundle that it writes.
"""

from __future__ import annotations

import csv
import functools
import io
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.command_line import BenchError
from bench.measuring.children import run_to_end
from bench.study.actorq.energy import Energy, EnergyMeter
from policy.bundle import Bundle

BITS = (8, 32)
CURVE = "learning_curve.csv"
SKIPPED_ROUNDS = 2  # the first is compiled
ACTOR_BOUND, LEARNER_BOUND, LEARNING = "actor-bound", "learner-bound", "learning"


@dataclass(frozen=True)
class Cell:
    """One training that is done with actors in int8 and in fp32.

    Attributes:
        name: as it is asked for.
        task, method, steps: as they are typed.
        more: further words of the command.
        goal: greedy return that counts as learned; the time to it is compared. None: only the pace is.
        purpose: ``learning``, or what is to be waited for: actors or learner.
    """

    name: str
    task: str
    method: str
    steps: int
    more: tuple[str, ...] = ()
    goal: float | None = None
    purpose: str = LEARNING

    def command(self, bits: int, seed: int, output: Path) -> list[str]:
        """What is typed after ``python -m train.actorq``."""
        words = ["--task", self.task, "--method", self.method, "--steps", str(self.steps)]
        words += ["--quantize", str(bits), "--seed", str(seed), *self.more, "--output-path", str(output)]
        return words

    def typed(self, bits: int, seed: int) -> str:
        """The command as a reader would type it."""
        return f"python -m train.actorq {' '.join(self.command(bits, seed, Path('OUTPUT')))}"


def _d4pg(name: str, steps: int, every: int, goal: float, final_episodes: int = 10) -> Cell:
    words = ("--n-actors", "4", "--samples-per-insert", "64", "--evaluate-every", str(every))
    return Cell(name, f"dm_control,{name}", "d4pg", steps, (*words, "--final-episodes", str(final_episodes)), goal)


def _dqn(name: str, steps: int, ratio: int, goal: float) -> Cell:
    words = ("--samples-per-insert", str(ratio), "--evaluate-every", str(steps // 10))
    return Cell(name, name, "dqn", steps, words, goal)


BIG = ("--model", "2048,2048,2048", "--set", "learning_starts=1000", "--set", "updates=1", "--batch-size", "64")
NO_JUDGING = ("--evaluate-every", "1000000", "--evaluate-episodes", "1", "--final-episodes", "1")
BOUND = (*BIG, *NO_JUDGING)
FEWER_RECORDED = (
    "import sys, train.runs.results as r; r.RECORDED_EPISODES = 4; from train.actorq.__main__ import main; "
)
"""The bundles of these trainings are read and thrown away: 4 recorded episodes do, in place of 64."""
CELLS = (
    _d4pg("cartpole_balance", 60_000, 5_000, 900.0),
    _d4pg("walker_stand", 200_000, 10_000, 900.0, final_episodes=30),
    _d4pg("cheetah_run", 80_000, 5_000, 200.0),
    _dqn("cartpole", 50_000, 32, 400.0),
    _dqn("mountaincar", 60_000, 16, -130.0),
    _dqn("acrobot", 60_000, 32, -110.0),
    Cell(
        "big-actors",
        "dm_control,cartpole_balance",
        "d4pg",
        30_000,
        (*BOUND, "--samples-per-insert", "0.05"),
        purpose=ACTOR_BOUND,
    ),
    Cell(
        "big-actors-more",
        "dm_control,cartpole_balance",
        "d4pg",
        40_000,
        (*BOUND, "--samples-per-insert", "0.02"),
        purpose=ACTOR_BOUND,
    ),
    Cell(
        "big-learner",
        "dm_control,cartpole_balance",
        "d4pg",
        2_000,
        (*BOUND, "--samples-per-insert", "8"),
        purpose=LEARNER_BOUND,
    ),
)


@dataclass(frozen=True)
class Training:
    """What came of one training.

    Attributes:
        cell, bits, seed: which; ``bits`` of the actors and of the weights on their way to them.
        steps, updates: made.
        mean_return, return_interval: of the last judgement, fp32 weights, in as many episodes as the bundle says.
        goal_s: seconds from the first report, of steps without a policy, to the first judgement at the goal, or None.
        steps_per_s, updates_per_s: of all actors and of the learner, after the rounds that compile.
        wall_s: of the whole command.
        cpu_s: of all its processes.
        bytes_sent, bytes_each: parameters to actors, all and one version.
        versions: built, of those handed over.
        breakdown: microseconds per step by part, all actors together.
        learner_seconds: by part.
        mismatch, staleness: as the bundle has them.
        energy: of the whole command.
        curve: (step, seconds, greedy return) of every judgement.
        command: what was typed.
    """

    cell: str
    bits: int
    seed: int
    steps: int
    updates: int
    mean_return: float
    return_interval: tuple[float, float] | None
    goal_s: float | None
    steps_per_s: float
    updates_per_s: float
    wall_s: float
    cpu_s: float
    bytes_sent: int
    bytes_each: int
    versions: tuple[int, int]
    breakdown: dict[str, float]
    learner_seconds: dict[str, float]
    mismatch: dict[str, float]
    staleness: dict[str, float]
    energy: dict[str, Any]
    curve: list[tuple[int, float, float]]
    command: str
    machine: str = ""
    code: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        """Which training it is."""
        return self.cell, self.bits, self.seed

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@functools.cache
def here() -> tuple[str, str]:
    """This machine, and the code when it was first asked."""
    from bench.report.document import code_version
    from bench.report.machine import describe_machine

    return describe_machine().sentence(), code_version()


def train(cell: Cell, bits: int, seed: int, scratch: Path) -> Training:
    """Do one training.

    Raises:
        BenchError: it failed; says its last words.
    """
    output = scratch / f"{cell.name}-{bits}-{seed}"
    words = cell.command(bits, seed, output)
    meter = EnergyMeter()
    began = time.monotonic()
    program = FEWER_RECORDED + "sys.exit(main(sys.argv[1:]))"
    done = run_to_end([sys.executable, "-c", program, *words, "--quiet"])
    wall_s = time.monotonic() - began
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing")[-600:]
        raise BenchError(f"python -m train.actorq {' '.join(words)} ended with {done.returncode}: {said}")
    bundle = Bundle.load(output)
    provenance = bundle.spec.provenance
    cpu_s = float(provenance["cpu_s"]) + sum(provenance["actorq"]["cpu_s"].values())
    machine, code = here()
    return training_of(
        cell, bits, seed, provenance, (output / CURVE).read_text(encoding="utf-8"), wall_s, cpu_s, meter.read(cpu_s),
        machine, code,
    )  # fmt: skip


def training_of(
    cell: Cell,
    bits: int,
    seed: int,
    provenance: Mapping[str, Any],
    curve: str,
    wall_s: float,
    cpu_s: float,
    energy: Energy,
    machine: str = "",
    code: str = "",
) -> Training:
    """What a bundle's provenance and curve say of a training; see :class:`Training`."""
    told, judged = provenance["actorq"], provenance["judged"][0]
    rows = list(csv.DictReader(io.StringIO(curve)))
    times = [float(row["wall_s"]) for row in rows]
    points = [
        (int(row["step"]), round(float(row["wall_s"]) - times[0], 2), float(row["greedy_return"]))
        for row in rows
        if row.get("greedy_return")
    ]
    rates = rates_of(rows, int(provenance["settings"]["updates"]), "give the cell more steps")
    parameters = told["parameters"]
    interval = judged.get("return_interval_95")
    return Training(
        cell=cell.name,
        bits=bits,
        seed=seed,
        steps=int(provenance["steps"]),
        updates=int(provenance["updates"]),
        mean_return=float(judged["mean_return"]),
        return_interval=None if interval is None else (interval[0], interval[1]),
        goal_s=time_to(cell.goal, points),
        steps_per_s=rates["steps_per_s"],
        updates_per_s=rates["updates_per_s"],
        wall_s=wall_s,
        cpu_s=cpu_s,
        bytes_sent=int(parameters["bytes_served"]),
        bytes_each=int(parameters["bytes_each"]),
        versions=(int(parameters["versions_built"]), int(parameters["versions_put"])),
        breakdown=dict(told["breakdown"]["microseconds_per_step"]),
        learner_seconds=dict(told["learner_seconds"]),
        mismatch=dict(told["mismatch"]),
        staleness=dict(told["staleness"]),
        energy=asdict(energy),
        curve=points,
        command=cell.typed(bits, seed),
        machine=machine,
        code=code,
    )


def time_to(goal: float | None, curve: Sequence[tuple[int, float, float]]) -> float | None:
    """Seconds to the first judgement at the goal or above, if there is one."""
    return next((seconds for _, seconds, value in curve if goal is not None and value >= goal), None)


def as_typed_now(trainings: Sequence[Training]) -> list[Training]:
    """Those whose command is their cell's of today, with the time to its goal: what was kept may be of other steps."""
    cells = {cell.name: cell for cell in CELLS}
    found = [each for each in trainings if each.cell in cells]
    return [
        replace(each, goal_s=time_to(cells[each.cell].goal, each.curve))
        for each in found
        if each.command == cells[each.cell].typed(each.bits, each.seed)
    ]


def rates_of(rows: Sequence[Mapping[str, Any]], updates: int, again: str) -> dict[str, float]:
    """Steps and updates per second of a learning curve, between the compiled rounds and the last row but one.

    The last row is written after the policy was judged, which belongs to no actor.

    Args:
        rows: of the curve's file: ``step``, ``updates`` and ``wall_s`` of each, as numbers or their digits.
        updates: of one of the learner's rounds.
        again: what to type if it was too short.

    Returns:
        ``steps_per_s``, ``updates_per_s`` and the ``seconds`` that they were counted over.

    Raises:
        BenchError: there are not two such rows.
    """
    numbers = [{name: float(row[name]) for name in ("step", "updates", "wall_s")} for row in rows[:-1]]
    counted = [row for row in numbers if row["updates"] >= SKIPPED_ROUNDS * updates]
    if len(counted) < 2:
        raise BenchError("a run was over too soon to be measured.", again)
    first, last = counted[0], counted[-1]
    passed = {name: last[name] - first[name] for name in first}
    seconds = passed["wall_s"]
    return {
        "steps_per_s": passed["step"] / seconds, "updates_per_s": passed["updates"] / seconds, "seconds": seconds
    }  # fmt: skip


def read_training(values: Mapping[str, Any]) -> Training:
    """The inverse of :meth:`Training.values`."""
    interval = values["return_interval"]
    return Training(
        **{
            **values,
            "return_interval": None if interval is None else (interval[0], interval[1]),
            "versions": (values["versions"][0], values["versions"][1]),
            "curve": [(int(step), float(seconds), float(value)) for step, seconds, value in values["curve"]],
        }
    )
