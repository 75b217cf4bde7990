"""The trainings that are done with actors in int8 and in fp32, and what is the same of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.study.actorq.runs import CARTPOLE_BALANCE
from bench.study.experiment import Results
from bench.study.records import Condition, Record

ACTOR_BOUND, LEARNER_BOUND, LEARNING = "actor-bound", "learner-bound", "learning"
INT8: Condition = {"bits": 8}
"""Actors in fp32 are what they are compared with."""


@dataclass(frozen=True)
class Cell:
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
        """What is typed after ``python -m train.actorq``, but for the actors' bits and the seed."""
        return ["--task", self.task, "--method", self.method, "--steps", str(self.steps), *self.more.split()]


D4PG = "--n-actors 4 --samples-per-insert 64 --evaluate-every"
BIG = "--model 2048,2048,2048 --set learning_starts=1000 --set updates=1 --batch-size 64"
BOUND = f"{BIG} --evaluate-every 1000000 --evaluate-episodes 1 --final-episodes 1"
CELLS = {
    "cartpole_balance": Cell(CARTPOLE_BALANCE, "d4pg", 60_000, f"{D4PG} 5000 --final-episodes 10", 900.0),
    "walker_stand": Cell("dm_control,walker_stand", "d4pg", 200_000, f"{D4PG} 10000 --final-episodes 30", 900.0),
    "cheetah_run": Cell("dm_control,cheetah_run", "d4pg", 80_000, f"{D4PG} 5000 --final-episodes 10", 200.0),
    "cartpole": Cell("cartpole", "dqn", 50_000, "--samples-per-insert 32 --evaluate-every 5000", 400.0),
    "mountaincar": Cell("mountaincar", "dqn", 60_000, "--samples-per-insert 16 --evaluate-every 6000", -130.0),
    "acrobot": Cell("acrobot", "dqn", 60_000, "--samples-per-insert 32 --evaluate-every 6000", -110.0),
    **{
        name: Cell(CARTPOLE_BALANCE, "d4pg", steps, f"{BOUND} --samples-per-insert {ratio}", purpose=purpose)
        for name, steps, ratio, purpose in (
            ("big-actors", 30_000, "0.05", ACTOR_BOUND),
            ("big-actors-more", 40_000, "0.02", ACTOR_BOUND),
            ("big-learner", 2_000, "8", LEARNER_BOUND),
        )
    },
}


def pairs(results: Results, subject: str) -> list[tuple[Record, Record]]:
    """(int8, fp32) of each seed that both have."""
    fp32 = {each["seed"]: each for each in results.records_of(subject, {})}
    return [(each, fp32[each["seed"]]) for each in results.records_of(subject, INT8) if each["seed"] in fp32]


def rates(found: Sequence[tuple[Record, Record]]) -> list[float]:
    """Steps per second of int8 over fp32's, seed by seed."""
    return [one["measures"]["steps_per_s"] / other["measures"]["steps_per_s"] for one, other in found]
