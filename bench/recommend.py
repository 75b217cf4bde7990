"""Which precision and which runtime should this policy be deployed with? Measured, not looked up.

    python -m bench.recommend II --preset shipped --success-floor 0.95 --deadline-ms 20
    python -m bench.recommend cartpole-dqn --target pi@raspberrypi
    python -m bench.recommend path/to/bundle --episodes 300 --json --output answer.json

Candidates are fp32, fp16 and int8 in every runtime that the target can have, and mixed and 4 bits in the native engine.
Each is converted in a temporary copy, deployed over SSH, timed in turns with the others, and plays the same greedy
episodes here. The floor is held against the lower end of a 95 % interval: of the share of episodes that succeed, or,
where the task has no success, of the share of fp32's return that is kept (of the trained width's, where the policy was
trained with quantizers). The deadline is held against p99. Of those that meet both the fastest p50 is recommended, and
of those equally fast the smallest. What becomes of 4, 3 and 2 bits in another runtime is said, too; there they run as
int8. docs/recommend.md has the rule in full. Nothing is stored, and the bundle is not changed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ is None:  # started as a script, by whatever Python: go on with the project's
    import project_python

    project_python.ensure()

from quarl import cli
from quarl.bench import command_line

if TYPE_CHECKING:
    from quarl.bench.recommending.measurements import Question
    from quarl.train.suites.task import Task

EXIT_NONE = 3
FLOOR, DEADLINE_MS, SEED = 0.95, 20.0, 7
RUNS = 2000
FEWEST_RUNS = 662  # that support p99: device.agent.measure.required_runs, which loads numpy's neighbours
FLIGHTS, EPISODES, GAMES = 1000, 50, 10  # navigation is flown 128 drones at a time; a game of images takes seconds
AS_TYPED = ("target", "preset", "episodes", "seed", "runtime", "runs", "path")  # what the answer's commands repeat
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
        "--success-floor",
        type=command_line.checked(
            float, lambda share: 0.0 < share <= 1.0, "is no share; allowed is above 0, up to 1: 95 % is 0.95"
        ),
        default=FLOOR,
        metavar="SHARE",
        help="above 0, up to 1 (default: 0.95)",
    )
    parser.add_argument(
        "--deadline-ms",
        type=command_line.checked(
            float, lambda time: 0.0 < time < math.inf, "is no time in milliseconds; type 20, or 0.5"
        ),
        default=DEADLINE_MS,
        metavar="MS",
        help="of p99 (default: 20)",
    )
    command_line.add_target(parser)
    parser.add_argument("--preset", help="arena to judge on (default: the first that the task is judged on)")
    parser.add_argument(
        "--episodes",
        type=command_line.checked(int, lambda n: n >= 2, "is too few: one episode has no interval; type 2 or more"),
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
        "--runs",
        type=command_line.checked(
            int, lambda n: n >= FEWEST_RUNS, f"is too few: they do not support a p99; type {FEWEST_RUNS} or more"
        ),
        default=RUNS,
        help=f"timed decisions of each, at least {FEWEST_RUNS} (default: 2000)",
    )
    command_line.add_path(parser)
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write that JSON document to a file")
    arguments = parser.parse_args(argv)
    given = {
        name: getattr(arguments, name) for name in AS_TYPED if getattr(arguments, name) != parser.get_default(name)
    }
    if arguments.runtime:
        given["runtime"] = ",".join(name.value for name in arguments.runtime)
    arguments.options = tuple(word for name, value in given.items() for word in (f"--{name}", str(value)))
    return command_line.guarded(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from quarl.bench.recommending import answer
    from quarl.bench.recommending.measurements import measure
    from quarl.bench.recommending.verdict import Verdict
    from quarl.bench.report import store
    from quarl.bench.report import tables as rendering
    from quarl.bench.study.bundles import task_of
    from quarl.policy.errors import PolicyError
    from quarl.policy.locate import working_bundle

    cli.set_environment(cli.LIBRARIES)
    began = time.monotonic()
    try:
        bundle = working_bundle(arguments.bundle)
    except PolicyError as error:
        raise command_line.UsageError(str(error)) from error
    task = task_of(bundle)
    question = question_of(arguments, task)
    command_line.say(f"{bundle.spec.name} on {task.name}: reaching {question.target} …")
    verdict = Verdict.of(bundle, task, question, measure(bundle, task, question))
    seconds = time.monotonic() - began
    document = {**asdict(verdict), **answer.sentences(verdict), "seconds": round(seconds, 1)}
    if arguments.output is not None:
        store.write_answer(arguments.output, document)
    if arguments.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        for table in answer.CANDIDATES(verdict):
            rendering.print_table(table, command_line.console())
        print("\n".join([*document["explanation"], document["what_would_change_it"]]))
    command_line.say(f"{seconds:.0f} s")
    return command_line.EXIT_OK if verdict.recommended else EXIT_NONE


def question_of(arguments: argparse.Namespace, task: Task) -> Question:
    """The question as it was typed; what was not typed is the task's."""
    from quarl.bench.recommending.deciding import Demand
    from quarl.bench.recommending.measurements import Question, chosen_preset
    from quarl.device.agent.runtimes import PREFERENCE
    from quarl.train.suites.names import NAVIGATION

    usual = FLIGHTS if task.name == NAVIGATION else GAMES if task.is_image else EPISODES
    return Question(
        bundle=arguments.bundle,
        demand=Demand(arguments.success_floor, arguments.deadline_ms),
        preset=chosen_preset(task, arguments.preset),
        episodes=arguments.episodes or usual,
        seed=arguments.seed,
        runs=arguments.runs,
        path=arguments.path,
        target=arguments.target,
        runtimes=tuple(name for name in PREFERENCE if name in (arguments.runtime or PREFERENCE)),
        options=arguments.options,
    )


if __name__ == "__main__":
    raise SystemExit(main())
