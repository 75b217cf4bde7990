"""``python -m train.evaluate``: judge a bundle on fresh greedy episodes: its float policy, or one of its artifacts.

    python -m train.evaluate --task navigation --input-path zoo/I --episodes 3000 --preset hard --seed 7
    python -m train.evaluate --input-path cartpole-dqn --precision int8 --runtime litert --compare
    python -m train.evaluate --input-path I --zones

Without --precision the float policy decides (numpy, the reference of the contract); with it, the artifact of that
precision in the runtime of a device. Same seed, same episodes, whoever decides: --compare flies the float policy too
and gives the difference, episode by episode. Exit codes: 0 judged; 2 wrong usage or a bundle that cannot be judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from quarl.policy import interruption
from quarl.policy.heartbeat import heartbeat
from quarl.policy.hints import Parser, as_typed, make_room
from quarl.train.__main__ import quiet_libraries
from quarl.train.intervals import Interval, brackets, mean_interval
from quarl.train.suites.names import Suite, resolve
from quarl.train.trials import Trial, trials

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import PolicySpec
    from quarl.train.suites.episodes import Decide
    from quarl.train.suites.task import Evaluation, Task

USAGE = 2
EPISODES, SEED, RUNTIME = 100, 7, "litert"
FLOAT = "float"
"""Precision that stands for the bundle's float32 weights themselves, executed by numpy, instead of for an artifact."""


def parser() -> argparse.ArgumentParser:
    """The options; the same names mean the same in every command of the project."""
    options = Parser(prog="python -m train.evaluate", description=__doc__)
    add = options.add_argument
    add("--task", help="default: the task that the bundle was trained on")
    add("--input-path", default="I", help="bundle: a folder, or a name such as I (default)")
    add("--precision", help="fp32, fp16, int8 … int2: judge this artifact (default: the float policy)")
    add("--runtime", help=f"with --precision: litert, tflite-runtime, onnxruntime (default {RUNTIME})")
    add("--compare", action="store_true", help="with --precision: the float policy on the same episodes")
    add("--episodes", type=int, default=EPISODES, help=f"episodes a preset, or a zone (default {EPISODES})")
    add("--preset", action="append", help="arena; may be repeated (default: those the task is judged on)")
    add("--zones", action="store_true", help="navigation: each preset's four zones of goal distance apart, near to far")
    add("--command-latency", metavar="SECONDS", help="navigation: commands take effect so late, as in python -m train")
    add("--seed", type=int, default=SEED, help=f"which episodes (default {SEED})")
    add("--workers", type=int, default=1, metavar="N", help="step the environments in so many processes (default 1)")
    add("--video", type=Path, metavar="FILE", help="film the first episode: a .mp4 or .gif")
    add("--json", action="store_true", help="print one JSON document")
    add("--output", type=Path, metavar="FILE", help="also write that JSON document to a file")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = parser().parse_args(argv)
    quiet_libraries()
    from quarl.airlearning_envs.errors import SettingsError
    from quarl.policy.errors import PolicyError
    from quarl.train.suites.errors import TaskError

    try:
        with interruption.interruptible(), heartbeat():
            check_usage(arguments)
            report = judge_bundle(arguments)
            text = json.dumps(report, indent=2, allow_nan=False)
            if arguments.output is not None:
                arguments.output.parent.mkdir(parents=True, exist_ok=True)
                arguments.output.write_text(text + "\n", encoding="utf-8")
    except (TaskError, PolicyError, SettingsError) as error:
        print(as_typed(f"error: {error}"), file=sys.stderr)
        return USAGE
    except OSError as error:
        where = error.filename or "the output"
        print(f"error: {where} cannot be written: {error.strerror}. {make_room(error)}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("interrupted; nothing was written.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    if arguments.json:
        print(text)
    else:
        print_report(report)
    return 0


def check_usage(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded.

    Raises:
        TaskError: says which.
    """
    from quarl.train.suites.errors import TaskError

    if arguments.episodes < 1:
        raise TaskError(f"--episodes {arguments.episodes} is too few; take at least 1.")
    if arguments.seed < 0:
        raise TaskError(f"--seed {arguments.seed} is negative; take 0 or more.")
    if arguments.precision is None:
        for option in ("runtime", "compare"):
            if getattr(arguments, option):
                raise TaskError(f"--{option} is about an artifact; say which one, for example --precision int8.")
    if arguments.video is not None and arguments.video.suffix.lower() not in (".mp4", ".gif"):
        raise TaskError(f"--video is {str(arguments.video)!r}; allowed are names that end in .mp4 or .gif.")
    if arguments.video is not None and arguments.zones:
        raise TaskError("--video films an episode of the whole preset, --zones has none. Leave one of them out.")


def judge_bundle(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fly the requested policy, and what it is compared with, on the same episodes; the report as JSON values."""
    from quarl.policy.locate import working_bundle
    from quarl.train.deciding import greedy
    from quarl.train.suites.command_latency import read_command_latency
    from quarl.train.suites.errors import TaskError
    from quarl.train.suites.make import make_task

    bundle = working_bundle(arguments.input_path)
    resolved = resolve(arguments.task or trained_on(bundle.spec))
    name, flies = resolved.canonical, resolved.suite is Suite.NAVIGATION
    options = task_options(bundle.spec, name)
    if arguments.command_latency is not None:
        if not flies:
            raise TaskError(f"--command-latency means nothing to the task {name}. Leave it out.")
        options["judged"] = {"latency": read_command_latency(arguments.command_latency).to_settings()}
    task = make_task(name, options=options, workers=arguments.workers)
    check_task(bundle.spec, task)
    for option, is_known in (("preset", task.presets != ("",)), ("zones", flies)):
        if getattr(arguments, option) and not is_known:
            raise TaskError(f"--{option} means nothing to the task {name}. Leave it out.")
    if arguments.compare and not task.paired:
        raise TaskError(
            f"--compare means nothing to the task {name}: its vectorised environment does not seed one episode at a "
            "time, so that two policies do not play the same ones. Leave it out, or, if the environment can also be "
            f"made alone, type --task {resolved.target}"
        )
    presets = tuple(arguments.preset or task.presets)
    rows: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []

    def judged(policy: str, decide: Decide, trial: Trial) -> Evaluation:
        result = trial.task.evaluate(decide, arguments.episodes, arguments.seed, trial.preset)
        rows.append({"policy": policy, **trial.marks, **without_nan(dataclasses.asdict(result))})
        return result

    with deciding(bundle, arguments.precision, arguments.runtime, arguments.input_path) as (decide, who):
        for trial in trials(task, options, presets, arguments.zones):
            result = judged(bundle.spec.name, decide, trial)
            if arguments.compare:
                float_result = judged(f"{bundle.spec.name}, {FLOAT}", greedy(bundle.spec, bundle.weights()), trial)
                marks = {"preset": trial.preset, **trial.marks}
                differences.append({**marks, **compared(result, float_result)})
            if task.baseline is not None:
                judged("blind", task.baseline, trial)
        if arguments.video is not None:
            from quarl.train.runs.film import film

            film(task, decide, arguments.seed, presets[0], bundle.spec.name, arguments.video)
    return {
        "task": name,
        "bundle": str(bundle.path),
        "policy": bundle.spec.name,
        "seed": arguments.seed,
        "settings": options.get("judged", {}),
        **who,
        "results": rows,
        "minus_float": differences,
    }


def trained_on(spec: PolicySpec) -> str:
    """The task as it was typed for training."""
    return str(spec.provenance.get("task", "navigation"))


def task_options(spec: PolicySpec, task: str) -> dict[str, Any]:
    """The options of the task that the policy was trained on; none for another one, nor for navigation's presets."""
    settings = spec.provenance.get("settings", {})
    if task in ("navigation", "") or resolve(task) != resolve(trained_on(spec)) or not isinstance(settings, dict):
        return {}
    return dict(settings.get("task") or {})


def check_task(spec: PolicySpec, task: Task) -> None:
    """Refuse to judge a policy on another task than it was trained for.

    Raises:
        SpecError: names the field that differs: observation, head, or environment.
    """
    from quarl.policy.errors import SpecError
    from quarl.policy.spec import DiscreteHead

    spec.check_observation(task.observation)
    mine, other = spec.head, task.head
    names: tuple[str, ...] = ("low", "high")  # the squash may differ
    if DiscreteHead in (type(mine), type(other)):
        names = ("action_names",)
    elif spec.is_imported:
        names = ("size",)  # its bounds are its own; the environment clips
    pairs = [(name, *(getattr(head, name, "continuous") for head in (mine, other))) for name in names]
    fields = [(f"head.{name}" if type(mine) is type(other) else "head", *values) for name, *values in pairs]
    # Pong's and Space Invaders' pictures and actions are alike: the environment's name tells them apart.
    for field, one, its in (*fields, ("environment.id", spec.environment.id, task.environment.id)):
        if one != its:
            trained = spec.provenance.get("task", spec.environment.id)
            raise SpecError(
                f"policy {spec.name!r} was trained on another task than {task.name}: its {field} is {one}, "
                f"that of the task is {its}.",
                f"Leave out --task, or take the task it was trained on: --task {trained}",
            )


@contextmanager
def deciding(
    bundle: Bundle, precision: str | None, runtime: str | None, name_or_path: str
) -> Iterator[tuple[Decide, dict[str, Any]]]:
    """The requested policy as a function of observations, and what executes it as JSON values.

    ``precision`` (None: the float policy), ``runtime`` (None: the default) and ``name_or_path`` are as typed.

    Raises:
        PolicyError: no such precision, runtime or artifact; says what there is.
    """
    if precision is None:
        from quarl.train.deciding import greedy

        # Pictures through the graph that training acts with: numpy's convolutions take ten times as long.
        package = "tensorflow-cpu" if bundle.spec.network.convolutions else "numpy"
        who = {"precision": FLOAT, "executed_by": f"{package} {metadata.version(package)}"}
        yield greedy(bundle.spec, bundle.weights()), who
        return
    from quarl.policy.spec import Precision, RuntimeName, parse_enum
    from quarl.train.runs.artifact import ArtifactPolicy, find_artifact

    named = parse_enum(RuntimeName, runtime or RUNTIME, "runtime")
    entry = find_artifact(bundle, name_or_path, Precision.parse(precision), named)
    with ArtifactPolicy(bundle.spec, bundle.artifact_data(entry), named) as artifact:
        who = {"precision": entry.precision.value, "artifact": entry.file}
        yield artifact.decide, {**who, "executed_by": f"{named.value} {artifact.version}"}


def without_nan(value: Any) -> Any:
    """JSON values: a number that is not finite is null."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compared(one: Evaluation, other: Evaluation) -> dict[str, Any]:
    """Mean of (one − other) over the same episodes with its 95 % interval, of the return and of the success."""
    mean, interval = difference(one.different, other.different)
    values: dict[str, Any] = {"mean_return": mean, "return_interval": interval}
    if one.successes:
        values["success"], values["interval"] = difference(one.successes, other.successes)
    return dict(without_nan(values))


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, Interval | None]:
    """Mean of the differences d of paired values, and its interval by Student's t.

    Episodes that are equal with both tell the interval that they are: that is why pairs are so much sharper.

    Raises:
        ValueError: they are not the same episodes.
    """
    if len(one) != len(other) or not len(one):
        raise ValueError(f"{len(one)} and {len(other)} episodes cannot be paired; judge the same ones with both.")
    differences = [float(mine) - float(its) for mine, its in zip(one, other, strict=True)]
    return fmean(differences), mean_interval(differences)


def print_report(report: dict[str, Any]) -> None:
    """The report as a table."""
    from rich.console import Console
    from rich.table import Table

    title = (
        f"{report['bundle']} on {report['task']}, greedy, {report['precision']} by {report['executed_by']}, "
        f"seed {report['seed']}" + "".join(f", {name} {value}" for name, value in report["settings"].items())
    )
    rows = [cells(row) for row in report["results"]]
    if "zone" in rows[0]:
        title += f", {report['results'][0]['episodes']} episodes a zone"
    table = Table(title=title)
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading in ("policy", "preset", "zone") else "right")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
    row_cells = [cell for row in rows for cell in row.values()]
    for change in report["minus_float"]:
        where = f" on {change['preset']}" if change["preset"] else ""
        where += f", zone {change['zone']}" if "zone" in change else ""
        success = ""
        if "success" in change:
            points = change["interval"] and tuple(100 * side for side in change["interval"])
            success = f", success {100 * change['success']:+.2f} points {brackets(points, '+.2f')}"
        row_cells.append(
            f"{report['precision']} minus float, the same episodes{where}: "
            f"return {change['mean_return']:+.3f} {brackets(change['return_interval'], '+.3f')}{success}"
        )
        print(row_cells[-1])
    if any(brackets(None, "") in each for each in row_cells):
        print("[–]: a single episode, or episodes with equal returns, give no interval.")


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of the table by heading; that of a zone is short, so that it fits a terminal of 80 columns."""
    row_cells = {"policy": row["policy"], "preset": row["preset"] or "–"}
    has_zone = "zone" in row
    if has_zone:
        row_cells["zone"] = "{}: {:g} – {:g} m".format(row["zone"], *row["goal_distance_m"])
    else:
        different = f", {len(set(row['starts']))} different" if row["starts"] else ""
        row_cells["episodes"] = f"{row['episodes']}{different}"
    if row["success"] is not None:
        low, high = row["interval"]
        row_cells |= {"success": f"{100 * row['success']:.1f} %", "95 %": f"{100 * low:.1f} – {100 * high:.1f}"}
    row_cells["return"] = f"{row['mean_return']:.2f}"
    if not has_zone:
        row_cells["return"] += f" {brackets(row['return_interval'], '.2f')}"
        row_cells["steps"] = f"{row['mean_length']:.1f}"
    return row_cells


if __name__ == "__main__":
    sys.exit(main())
