"""How many steps of the navigation task one core simulates in a second, resets and rewards included.

Uniformly random actions are flown; every ended episode is replaced by a fresh one, whose layout is drawn within the
measured time. The process is held on one core. Several rounds are measured and the median is the result: by wall
clock, and by the processor time that this process had, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from airlearning_envs.actions import ACTION_NAMES
from airlearning_envs.config import PRESETS
from airlearning_envs.core import NavigationCore
from airlearning_envs.errors import SettingsError
from bench.report.machine import describe_machine
from policy import interruption
from policy.hints import Parser

FACES = ("core", "vector")
"""The simulator core stepped directly, and Gymnasium's vector environment on it."""

DEFAULT_ENVS = 64
DEFAULT_STEPS = 1000
WARM_UP_STEPS = 100
ROUNDS = 3


@dataclass(frozen=True)
class Speed:
    """One measurement.

    Attributes:
        preset: which task.
        face: one of :data:`FACES`.
        envs: batch size.
        steps: batched steps in each round.
        rounds: how many rounds.
        steps_per_s: environment steps a second by wall clock, median of the rounds.
        steps_per_cpu_s: likewise by processor time.
        episodes: episodes that ended in all rounds together.
    """

    preset: str
    face: str
    envs: int
    steps: int
    rounds: int
    steps_per_s: float
    steps_per_cpu_s: float
    episodes: int


def core_stepper(preset: str, envs: int) -> Callable[[Any], int]:
    """A function that steps the core once, resets what has ended, and returns how many that were."""
    core = NavigationCore(PRESETS[preset], envs)
    core.reset(np.arange(envs), seed=0)
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


def vector_stepper(preset: str, envs: int) -> Callable[[Any], int]:
    """As :func:`core_stepper`, through Gymnasium's vector environment (next-step autoreset)."""
    from airlearning_envs.gym_env import NavigationVectorEnv

    env = NavigationVectorEnv(envs, preset=preset)
    env.reset(seed=0)

    def advance(actions: Any) -> int:
        _, _, terminated, truncated, _ = env.step(actions)
        return int((terminated | truncated).sum())

    return advance


def measure(
    preset: str,
    face: str = "core",
    envs: int = DEFAULT_ENVS,
    steps: int = DEFAULT_STEPS,
    rounds: int = ROUNDS,
    warm_up: int = WARM_UP_STEPS,
) -> Speed:
    """Measure one task; see the module."""
    advance = (core_stepper if face == "core" else vector_stepper)(preset, envs)
    actions = np.random.default_rng(0).integers(0, len(ACTION_NAMES), size=(max(steps, warm_up), envs))
    for row in actions[:warm_up]:
        advance(row)
    wall, cpu, episodes = [], [], 0
    for _ in range(rounds):
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        for row in actions[:steps]:
            episodes += advance(row)
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    count = steps * envs
    return Speed(
        preset, face, envs, steps, rounds, count / statistics.median(wall), count / statistics.median(cpu), episodes
    )


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this process on one of its cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = Parser(
        prog="python -m bench.study env-speed",
        description=__doc__,
        epilog="exit status: 0 done, 1 slower than --at-least, 2 wrong arguments",
    )
    parser.add_argument("--preset", default="shipped,hard", help="one or several with commas (default: %(default)s)")
    parser.add_argument("--face", default=",".join(FACES), help="core, vector, or both (default: %(default)s)")
    parser.add_argument(
        "--envs", type=int, default=DEFAULT_ENVS, help="environments in the batch (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="batched steps a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (default: %(default)s)")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="STEPS_PER_S", help="fail when slower")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    interruption.loaded()
    arguments = build_parser().parse_args(argv)
    try:
        presets = _chosen("--preset", arguments.preset, tuple(PRESETS))
        faces = _chosen("--face", arguments.face, FACES)
        for name in ("envs", "steps", "rounds"):
            if getattr(arguments, name) < 1:
                raise SettingsError(f"--{name} is {getattr(arguments, name)}; it must be at least 1.")
    except SettingsError as error:
        print(f"env_speed: {error}", file=sys.stderr)
        return 2
    machine = describe_machine()
    with one_core():
        speeds = [
            measure(preset, face, arguments.envs, arguments.steps, arguments.rounds)
            for preset in presets
            for face in faces
        ]
    if arguments.json:
        print(json.dumps({"machine": asdict(machine), "numpy": np.__version__, "speeds": [asdict(s) for s in speeds]}))
    else:
        print(f"{machine.sentence()}; one core, Python {machine.python}, numpy {np.__version__}")
        print(f"{'preset':10}{'face':8}{'envs':>6}{'steps/s':>12}{'steps/CPU-s':>14}{'episodes':>10}")
        for s in speeds:
            figures = f"{s.envs:6}{s.steps_per_s:12,.0f}{s.steps_per_cpu_s:14,.0f}{s.episodes:10,}"
            print(f"{s.preset:10}{s.face:8}{figures}")
    slow = [s for s in speeds if s.steps_per_s < arguments.at_least]
    for s in slow:
        print(f"env_speed: {s.preset}/{s.face} makes {s.steps_per_s:,.0f} steps/s", file=sys.stderr)
    return 1 if slow else 0


def _chosen(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise SettingsError(f"{option} is {text!r}; allowed are {', '.join(known)}.")
    return names


if __name__ == "__main__":
    sys.exit(main())
