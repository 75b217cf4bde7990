"""Which precision and which runtime should this policy be deployed with? Measured, not looked up."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.policy.console import heartbeat

if TYPE_CHECKING:
    from quarl.bench.recommending.measurements import Question
    from quarl.train.suites.task import Task

EXIT_NONE = 3
FLOOR, DEADLINE_MS, SEED = 0.95, 20.0, 7
RUNS = 2000
FEWEST_RUNS = 662  # that support p99: device.agent.measure.required_runs, which loads numpy's neighbours
FLIGHTS, EPISODES, GAMES = 1000, 50, 10  # navigation is flown 128 drones at a time; a game of images takes seconds
AS_TYPED = ("target", "preset", "episodes", "seed", "runtime", "runs", "path")  # what the answer's commands repeat


_share = cli.number_reader(
    float, lambda share: 0.0 < share <= 1.0, "is no share; allowed is above 0, up to 1: 95 % is 0.95"
)
_deadline = cli.number_reader(float, lambda time: 0.0 < time < math.inf, "is no time in milliseconds; type 20, or 0.5")
_episodes = cli.number_reader(int, lambda n: n >= 2, "is too few: one episode has no interval; type 2 or more")
_runs = cli.number_reader(
    int, lambda n: n >= FEWEST_RUNS, f"is too few: they do not support a p99; type {FEWEST_RUNS} or more"
)


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command_line.Timing, command_line.Targeting, command_line.Printing):
    """What to measure.

    Attributes:
        bundle: a folder, or a name such as II, cartpole-dqn
        success_floor: above 0, up to 1
        deadline_ms: of p99
        preset: arena of the episodes (default: the task's first)
        episodes: of each artifact (default: 1000 of navigation, 10 of images, else 50)
        seed: of the episodes
        runtime: consider these only (default: all that the target can have)
        runs: timed decisions of each, at least 662
        output: also write the JSON document to this file
    """

    bundle: str = field(kw_only=False)
    success_floor: Annotated[float, cli.reads(_share, "SHARE")] = FLOOR
    deadline_ms: Annotated[float, cli.reads(_deadline, "MS")] = DEADLINE_MS
    preset: str | None = None
    episodes: Annotated[int | None, cli.reads(_episodes)] = None
    seed: command_line.NotNegative = SEED
    runtime: command_line.Runtimes = ()
    runs: Annotated[int, cli.reads(_runs)] = RUNS
    output: Path | None = None

    @property
    def command_options(self) -> tuple[str, ...]:
        """The options that the answer's commands repeat, where they are not the defaults."""
        usual = {option.name: option.default for option in fields(self)}
        changed_options = {name: getattr(self, name) for name in AS_TYPED if getattr(self, name) != usual[name]}
        if self.runtime:
            changed_options["runtime"] = ",".join(name.value for name in self.runtime)
        return tuple(word for name, value in changed_options.items() for word in (f"--{name}", str(value)))


@heartbeat()
@cli.verb()
def recommend(options: Options) -> int:
    """Recommend a precision and a runtime for a policy, from measurements.

        quarl recommend II --preset shipped --success-floor 0.95 --deadline-ms 20
        quarl recommend cartpole-dqn --target pi@raspberrypi
        quarl recommend path/to/bundle --episodes 300 --json --output answer.json

    Candidates are fp32, fp16 and int8 in every runtime that the target can have, and mixed and 4 bits in the native
    engine. Each is converted in a temporary copy, deployed over SSH, timed in turns with the others, and plays the same
    greedy episodes here. The floor applies to the lower end of a 95 % interval: of the success rate, or, if the task
    has no success, of the share of fp32's return that is kept (of the trained width's return, if the policy was trained
    with quantizers). The deadline applies to p99. Of the candidates that meet both, the fastest p50 is recommended, and
    of equally fast ones the smallest. The quality of 4, 3 and 2 bits in other runtimes is printed, too; there they run
    as int8. docs/recommend.md has the complete rule. Nothing is stored, and the bundle is not changed.


    Exit status 3: nothing meets both floor and deadline; the last line names a floor or deadline that would be met.
    """
    from quarl.bench import tables as rendering
    from quarl.bench.recommending import answer
    from quarl.bench.recommending.measurements import measure
    from quarl.bench.recommending.verdict import Verdict
    from quarl.bench.report import store
    from quarl.bench.study.bundles import task_of
    from quarl.policy.errors import PolicyError
    from quarl.policy.locate import working_bundle

    cli.set_environment(cli.LIBRARIES)
    began = time.monotonic()
    try:
        bundle = working_bundle(options.bundle)
    except PolicyError as error:
        raise command_line.UsageError(str(error)) from error
    task = task_of(bundle)
    question = question_of(options, task)
    command_line.say(f"{bundle.spec.name} on {task.name}: reaching {question.target} …")
    verdict = Verdict.of(bundle, task, question, measure(bundle, task, question))
    seconds = time.monotonic() - began
    document = {**asdict(verdict), **answer.sentences(verdict), "seconds": round(seconds, 1)}
    if options.output is not None:
        store.write_answer(options.output, document)
    if options.json:
        print(json.dumps({"ok": True, **document}, ensure_ascii=False))
    else:
        for table in (answer.candidates_table(verdict),):
            rendering.print_table(table, command_line.console())
        print("\n".join([*document["explanation"], document["what_would_change_it"]]))
    command_line.say(f"{seconds:.0f} s")
    return cli.EXIT_OK if verdict.recommended else EXIT_NONE


def question_of(options: Options, task: Task) -> Question:
    """Return the question as it was typed; what was not typed is the task's."""
    from quarl.bench.recommending.deciding import Demand
    from quarl.bench.recommending.measurements import Question, choose_preset
    from quarl.device.agent.runtimes import PREFERENCE
    from quarl.train.suites.names import NAVIGATION

    usual = FLIGHTS if task.name == NAVIGATION else GAMES if task.is_image else EPISODES
    return Question(
        bundle=options.bundle,
        demand=Demand(options.success_floor, options.deadline_ms),
        preset=choose_preset(task, options.preset),
        episodes=options.episodes or usual,
        seed=options.seed,
        runs=options.runs,
        path=options.path,
        target=options.target,
        runtimes=tuple(name for name in PREFERENCE if name in (options.runtime or PREFERENCE)),
        options=options.command_options,
    )


main = cli.of("recommend")

if __name__ == "__main__":
    raise SystemExit(main())
