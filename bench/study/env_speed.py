"""How many steps of the navigation task one core simulates in a second, resets and rewards included.

    python -m bench.study env-speed
    python -m bench.study env-speed hard --face core --envs 256 --at-least 100000

Uniformly random actions are flown; every ended episode is replaced by a fresh one, whose layout is drawn within the
measured time. The process is held on one core. Several rounds are measured and the median is the result: by wall
clock, and by the processor time that this process had, which a busy machine disturbs less.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from airlearning_envs.config import PRESETS
from airlearning_envs.rules.actions import ACTION_NAMES
from airlearning_envs.task import NavigationTask
from bench import command_line
from bench.report.pivot import Pivot
from bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult, known
from bench.study.records import Condition
from bench.study.speed import one_core

if TYPE_CHECKING:
    import argparse

FACES = ("core", "vector")
"""The simulator core stepped directly, and Gymnasium's vector environment on it."""
ENVS, STEPS, ROUNDS = 64, 1000, 3
WARM_UP_STEPS = 100
TABLE = """\
Environment steps a second
Medians of the rounds, one core, numpy {{ numpy }}, on {{ results.where }}.
"""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options --face, --envs, --steps and --at-least."""
    parser.add_argument("--face", choices=FACES, help="default: both")
    parser.add_argument("--envs", type=command_line.positive, default=ENVS, help="in the batch (default: %(default)s)")
    parser.add_argument("--steps", type=command_line.positive, default=STEPS, help="a round (default: %(default)s)")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="STEPS_PER_S", help="fail when slower")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """A condition for each face."""
    faces = (arguments.face,) if arguments.face else FACES
    return [{"face": face, "envs": arguments.envs, "steps": arguments.steps} for face in faces]


def core_stepper(preset: str, envs: int, seed: int) -> Callable[[Any], int]:
    """A function that steps the core once, resets what has ended, and returns how many that were."""
    core = NavigationTask(PRESETS[preset], envs)
    core.reset(np.arange(envs), seed=seed)
    next_id = envs

    def advance(actions: Any) -> int:
        nonlocal next_id
        step = core.step(actions)
        ended = step.terminated | step.truncated
        count = int(ended.sum())
        if count:
            step.observation[ended] = core.reset_where(ended, np.arange(next_id, next_id + count))
            next_id += count
        return count

    return advance


def vector_stepper(preset: str, envs: int, seed: int) -> Callable[[Any], int]:
    """Make a stepper as :func:`core_stepper` does, through Gymnasium's vector environment (next-step autoreset)."""
    from airlearning_envs.gym_env import NavigationVectorEnv

    env = NavigationVectorEnv(envs, preset=preset)
    env.reset(seed=seed)

    def advance(actions: Any) -> int:
        _, _, terminated, truncated, _ = env.step(actions)
        return int((terminated | truncated).sum())

    return advance


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """A value is a round's environment steps a second by wall clock."""
    stepper = core_stepper if condition["face"] == "core" else vector_stepper
    envs, steps = condition["envs"], condition["steps"]
    for seed in episodes.seeds:
        with one_core():
            advance = stepper(subject, envs, seed)
            drawn = np.random.default_rng(seed).integers(0, len(ACTION_NAMES), size=(max(steps, WARM_UP_STEPS), envs))
            for row in drawn[:WARM_UP_STEPS]:
                advance(row)
            wall, cpu, ended = [], [], 0
            for _ in range(episodes.count):
                wall_start, cpu_start = time.perf_counter(), time.process_time()
                ended += sum(advance(row) for row in drawn[:steps])
                cpu.append(steps * envs / (time.process_time() - cpu_start))
                wall.append(steps * envs / (time.perf_counter() - wall_start))
        yield SeedResult("", seed, wall, measures={"steps_per_cpu_s": cpu, "ended": ended, "numpy": np.__version__})


SPEEDS = Pivot(
    name="env-speed",
    words=TABLE,
    lead={"preset": "{{ subject }}", "face": "{{ condition.face }}"},
    columns=[
        {"environments": "{{ condition.envs | thousands }}", "steps": "{{ condition.steps | thousands }}"},
        {"rounds": "{{ returns | length | thousands }}", "steps/s": "{{ returns | median | fixed }}"},
        {"steps/CPU-s": "{{ measures.steps_per_cpu_s | median | fixed }}"},
        {"episodes that ended": "{{ measures.ended | thousands }}"},
    ],
    rows=lambda results: results.found,
    gathered=False,
    facts=lambda results: {"numpy": np.__version__},
)


def refused(arguments: argparse.Namespace, results: Results) -> str:
    """Which of them are slower than --at-least."""
    speeds = {f"{each['subject']}/{each['condition']['face']}": each["returns"] for each in results.found}
    slow = {name: found for name, values in speeds.items() if (found := statistics.median(values)) < arguments.at_least}
    return "; ".join(f"{name} makes {found:,.0f} steps/s" for name, found in slow.items())


EXPERIMENT = Experiment(
    name="env-speed",
    question="how fast are the environments?",
    factors=("face", "envs", "steps"),
    subjects=("shipped", "hard"),
    grid=grid,
    measure=measure,
    identity=lambda subject: hashlib.sha256(repr(known(subject, PRESETS, "preset")).encode()).hexdigest(),
    episodes=lambda arguments, subject: EpisodePlan(arguments.seeds or (0,), arguments.episodes or ROUNDS),
    tables=[SPEEDS],
    about=lambda subject: str(known(subject, {name: f"preset {name}" for name in PRESETS}, "preset")),
    options=options,
    samples="rounds",
    timed=True,
    refused=refused,
)
