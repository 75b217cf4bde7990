"""Which precision and which runtime should this policy be deployed with? Measured, not looked up.

    python -m bench.recommend II --preset shipped --success-floor 0.95 --deadline-ms 20
    python -m bench.recommend cartpole-dqn --target pi@raspberrypi
    python -m bench.recommend path/to/bundle --episodes 300 --json --output answer.json

Candidates are fp32, fp16 and int8 in every runtime that the target can have. Each is converted in a temporary copy,
deployed over SSH, timed in turns with the others, and plays the same greedy episodes here. The floor is held against
the lower end of a 95 % interval: of the share of episodes that succeed, or, where the task has no success, of the share
of fp32's return that is kept (of the trained width's, where the policy was trained with quantizers). The deadline is
held against p99. Of those that meet both the fastest p50 is recommended, and of those equally fast the smallest. What
becomes of 4, 3 and 2 bits is said, too; they run as int8. docs/recommend.md has the rule in full. Nothing is stored,
and the bundle is not changed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from bench import command_line

if TYPE_CHECKING:
    from bench.recommending.deciding import Verdict
    from bench.recommending.measuring import Measured
    from bench.recommending.timing import Asked
    from bench.recommending.words import Question
    from policy.bundle import Bundle
    from train.suites.task import Task

EXIT_NONE = 3
FLOOR, DEADLINE_MS, SEED = 0.95, 20.0, 7
RUNS, WARMUP = 2000, 200
FEWEST_RUNS = 662  # that support p99: device.agent.measure.required_runs, which loads numpy's neighbours
FLIGHTS, EPISODES, GAMES = 1000, 50, 10  # navigation is flown 128 drones at a time; a game of images takes seconds
EPILOG = (
    "exit status: 0 recommended, 1 failed (the message says what to do next), 2 wrong arguments, "
    "3 nothing meets both floor and deadline (the last line says what would), 130 interrupted"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, decide, explain."""
    parser = command_line.parser(__doc__, "bench/recommend.py")
    parser.epilog = EPILOG
    parser.add_argument("bundle", help="a folder, or a name such as II, cartpole-dqn")
    parser.add_argument(
        "--success-floor", type=read_share, default=FLOOR, metavar="SHARE", help="above 0, up to 1 (default: 0.95)"
    )
    parser.add_argument(
        "--deadline-ms", type=read_milliseconds, default=DEADLINE_MS, metavar="MS", help="of p99 (default: 20)"
    )
    parser.add_argument(
        "--target",
        default="local",
        metavar="user@host[:port]",
        help="device; local (default) is an SSH server on this machine that the command starts itself",
    )
    parser.add_argument("--preset", help="arena to judge on (default: the first that the task is judged on)")
    parser.add_argument(
        "--episodes",
        type=read_episodes,
        help=f"of each artifact (default: {FLIGHTS} of navigation, {GAMES} of images, else {EPISODES})",
    )
    parser.add_argument("--seed", type=command_line.not_negative, default=SEED, help="of the episodes (default: 7)")
    parser.add_argument(
        "--runtime",
        type=command_line.read_runtimes,
        metavar="litert,onnxruntime",
        help="consider these only (default: all that the target can have)",
    )
    parser.add_argument(
        "--runs", type=read_runs, default=RUNS, help=f"timed decisions of each, at least {FEWEST_RUNS} (default: 2000)"
    )
    parser.add_argument(
        "--path",
        choices=["runtime", "decide"],
        default="runtime",
        help="runtime (default): set input, invoke, read the action; decide: from request line to reply line",
    )
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write that JSON document to a file")
    return command_line.guarded(_run, parser.parse_args(argv))


def read_share(text: str) -> float:
    """``0.95``."""
    value = _number(text)
    if value is not None and 1.0 < value <= 100.0:
        raise argparse.ArgumentTypeError(f"{text!r} is above 1; as a share it is {value / 100:g}")
    if value is None or not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; allowed is above 0, up to 1; type 0.95")
    return value


def read_milliseconds(text: str) -> float:
    """``20``, ``0.5``."""
    value = _number(text)
    if value is None or value <= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in milliseconds; type 20, or 0.5")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_episodes(text: str) -> int:
    """A whole number of at least two: one episode has no interval."""
    value = command_line.positive(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is too few: one episode has no interval; type 2 or more")
    return value


def read_runs(text: str) -> int:
    """A whole number that supports p99."""
    value = command_line.positive(text)
    if value < FEWEST_RUNS:
        raise argparse.ArgumentTypeError(f"{text!r} is too few for a p99; type {FEWEST_RUNS} or more")
    return value


def _run(arguments: argparse.Namespace) -> int:
    from bench.recommending.deciding import decide
    from bench.recommending.measuring import measure
    from bench.study.flying import task_of
    from policy.errors import PolicyError
    from policy.locate import working_bundle
    from train.__main__ import quiet_libraries

    quiet_libraries()
    began = time.monotonic()
    try:
        bundle = working_bundle(arguments.bundle)
    except PolicyError as error:
        raise command_line.UsageError(str(error)) from error
    task = task_of(bundle)
    asked = asked_for(arguments, task)
    command_line.say(f"{bundle.spec.name} on {task.name}: reaching {arguments.target} …")
    measured = measure(bundle, task, asked, arguments.target)
    question = question_of(arguments, bundle, asked, measured)
    verdict = decide(measured.candidates(), question.demand)
    return _answer(arguments, bundle, task, asked, measured, question, verdict, time.monotonic() - began)


def asked_for(arguments: argparse.Namespace, task: Task) -> Asked:
    """What is to be measured."""
    from bench.recommending.measuring import chosen_preset
    from bench.recommending.timing import Asked
    from device.agent.runtimes import PREFERENCE
    from train.suites.names import NAVIGATION

    usual = FLIGHTS if task.name == NAVIGATION else GAMES if task.is_image else EPISODES
    return Asked(
        preset=chosen_preset(task, arguments.preset),
        episodes=arguments.episodes or usual,
        seed=arguments.seed,
        runs=arguments.runs,
        warmup=WARMUP,
        path=arguments.path,
        runtimes=tuple(name for name in PREFERENCE if name in (arguments.runtime or PREFERENCE)),
    )


def question_of(arguments: argparse.Namespace, bundle: Bundle, asked: Asked, measured: Measured) -> Question:
    """The question in the words of the answer."""
    from bench.recommending.deciding import Demand
    from bench.recommending.table import training_command
    from bench.recommending.words import Question

    runtimes = None if arguments.runtime is None else ",".join(name.value for name in asked.runtimes)
    options = {
        "target": arguments.target if arguments.target != "local" else None,
        "preset": arguments.preset,
        "episodes": arguments.episodes,
        "seed": arguments.seed if arguments.seed != SEED else None,
        "runtime": runtimes,
        "runs": arguments.runs if arguments.runs != RUNS else None,
        "path": arguments.path if arguments.path != "runtime" else None,
    }
    return Question(
        bundle=arguments.bundle,
        demand=Demand(arguments.success_floor, arguments.deadline_ms),
        episodes=asked.episodes,
        has_success=measured.has_success,
        reference=measured.reference[0].value,
        options=tuple((name, str(value)) for name, value in options.items() if value is not None),
        training=training_command(bundle),
    )


def _answer(
    arguments: argparse.Namespace,
    bundle: Bundle,
    task: Task,
    asked: Asked,
    measured: Measured,
    question: Question,
    verdict: Verdict,
    seconds: float,
) -> int:
    from bench.recommending import table as recommend_table
    from bench.recommending import words as recommend_words
    from bench.report import tables as rendering
    from policy.files import write_atomically

    explained = recommend_words.lines(verdict, question)
    change = recommend_words.what_would_change_it(verdict, question)
    said = {"explanation": explained, "what_would_change_it": change, "seconds": round(seconds, 1)}
    document = recommend_table.document(bundle, task.name, verdict, question, measured, asked, said)
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.output, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    if arguments.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        rendering.print_table(
            recommend_table.table(verdict, question, measured, asked, task.presets), command_line.console()
        )
        print("\n".join([*explained, change]))
    command_line.say(f"{seconds:.0f} s")
    return command_line.EXIT_OK if verdict.ranked else EXIT_NONE


if __name__ == "__main__":
    raise SystemExit(main())
