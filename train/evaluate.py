"""``quarl evaluate``: judge a bundle on fresh greedy episodes: its float policy, or one of its artifacts.

Without --precision the float policy decides (numpy, the reference of the contract); with it, the artifact of that
precision in the runtime of a device. Same seed, same episodes, whoever decides: --compare flies the float policy too
and gives the difference, episode by episode.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from quarl import cli
from quarl.policy.console import heartbeat
from quarl.train.intervals import Interval, brackets, difference_interval, mean_interval
from quarl.train.suites.names import MAX_EPISODE_STEPS, Suite, resolve
from quarl.train.trials import Trial, trials

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import PolicySpec
    from quarl.train.suites.episodes import Decide
    from quarl.train.suites.task import Evaluation, Task

RUNTIME = "litert"
FLOAT = "float"
"""Precision that stands for the bundle's float32 weights themselves, executed by numpy, instead of for an artifact."""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Evaluate a bundle.

    Attributes:
        task: default: the task that the bundle was trained on
        input_path: bundle: a folder, or a name
        precision: fp32, fp16, int8 … int2, mixed, w8, w4, dynamic: evaluate this artifact (default: the float policy)
        runtime: with --precision: litert (default), tflite-runtime, onnxruntime (of an opaque policy), native
        compare: with --precision: the float policy on the same episodes
        episodes: a preset, or a zone
        preset: arena; may be repeated (default: all that the task is evaluated on)
        zones: navigation: each preset's four zones of goal distance apart, near to far
        command_latency: navigation: delay until commands take effect, as in quarl train
        seed: of the episodes
        max_episode_steps: truncate longer episodes (default: as in training)
        workers: step the environments in N processes
        video: film the first episode: a .mp4 or .gif
        json: print one JSON document
        output: also write that JSON document to a file
    """

    task: str | None = None
    input_path: str = "I"
    precision: str | None = None
    runtime: str | None = None
    compare: bool = False
    episodes: int = 100
    preset: tuple[str, ...] = ()
    zones: bool = False
    command_latency: Annotated[str | None, Parameter(metavar="SECONDS")] = None
    seed: int = 7
    max_episode_steps: PositiveInt | None = None
    workers: Annotated[int, Parameter(metavar="N")] = 1
    video: Annotated[Path | None, Parameter(metavar="FILE")] = None
    json: bool = False
    output: Annotated[Path | None, Parameter(metavar="FILE")] = None


@cli.verb(left="nothing was written.")
def run(options: Options) -> tuple[dict[str, Any], str]:
    """Evaluate a bundle on fresh greedy episodes: its float policy, or one of its artifacts.

    quarl evaluate --task navigation --input-path zoo/I --episodes 3000 --preset hard --seed 7
    quarl evaluate --input-path cartpole-dqn --precision int8 --runtime litert --compare
    """
    with heartbeat():
        check_usage(options)
        report = judge_bundle(options)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if not options.json:
        print_report(report)
    return report, ""


def check_usage(options: Options) -> None:
    """Refuse options that do not go together, before anything is loaded.

    Raises:
        TaskError: says which.
    """
    from quarl.train.suites.errors import TaskError

    if options.episodes < 1:
        raise TaskError(f"--episodes must be at least 1, got {options.episodes}.")
    if options.seed < 0:
        raise TaskError(f"--seed must be 0 or more, got {options.seed}.")
    if options.precision is None:
        for name in ("runtime", "compare"):
            if getattr(options, name):
                raise TaskError(
                    f"--{name} requires --precision, which chooses the artifact. Type --precision int8, for example."
                )
    if options.video is not None and options.video.suffix.lower() not in (".mp4", ".gif"):
        raise TaskError(f"--video must name a file that ends in .mp4 or .gif, got {str(options.video)!r}.")
    if options.video is not None and options.zones:
        raise TaskError(
            "--video and --zones exclude each other: a film shows an episode of the whole preset. Leave one of them "
            "out."
        )


def judge_bundle(arguments: Options) -> dict[str, Any]:
    """Fly the requested policy, and what it is compared with, on the same episodes; the report as JSON values."""
    from quarl.policy.locate import working_bundle
    from quarl.train.deciding import greedy
    from quarl.train.suites.command_latency import read_command_latency
    from quarl.train.suites.errors import TaskError
    from quarl.train.suites.make import make_task
    from quarl.train.suites.task import unpair_if_unseeded

    bundle = working_bundle(arguments.input_path)
    resolved = resolve(arguments.task or read_training_task(bundle.spec))
    name, flies = resolved.canonical, resolved.suite is Suite.NAVIGATION
    options = task_options(bundle.spec, name)
    if arguments.command_latency is not None:
        if not flies:
            raise TaskError(f"--command-latency is not available for the task {name}. Leave it out.")
        options["judged"] = {"latency": read_command_latency(arguments.command_latency).to_settings()}
    if arguments.max_episode_steps is not None:
        options[MAX_EPISODE_STEPS] = arguments.max_episode_steps
    task = make_task(name, options=options, workers=arguments.workers)
    check_task(bundle.spec, task)
    if arguments.compare:
        task = unpair_if_unseeded(task, arguments.seed)
    for option, is_known in (("preset", task.presets != ("",)), ("zones", flies)):
        if getattr(arguments, option) and not is_known:
            raise TaskError(f"--{option} is not available for the task {name}. Leave it out.")
    presets = tuple(arguments.preset or task.presets)
    rows: list[dict[str, Any]] = []
    differences: list[dict[str, Any]] = []

    def evaluate_and_record(policy: str, decide: Decide, trial: Trial) -> Evaluation:
        result = trial.task.evaluate(decide, arguments.episodes, arguments.seed, trial.preset)
        rows.append({"policy": policy, **trial.marks, **without_nan(dataclasses.asdict(result))})
        return result

    with deciding(bundle, arguments.precision, arguments.runtime, arguments.input_path) as (decide, who):
        for trial in trials(task, options, presets, arguments.zones):
            result = evaluate_and_record(bundle.spec.name, decide, trial)
            if arguments.compare:
                float_result = evaluate_and_record(
                    f"{bundle.spec.name}, {FLOAT}", greedy(bundle.spec, bundle.weights()), trial
                )
                marks = {"preset": trial.preset, **trial.marks}
                differences.append({**marks, **compare_evaluations(result, float_result, task.paired)})
            if task.baseline is not None:
                evaluate_and_record("blind", task.baseline, trial)
        if arguments.video is not None:
            from quarl.train.runs.film import film

            film(task, decide, arguments.seed, presets[0], bundle.spec.name, arguments.video)
    return {
        "task": name,
        "bundle": str(bundle.path),
        "policy": bundle.spec.name,
        "seed": arguments.seed,
        "settings": options.get("judged", {}),
        "notes": task.notes,
        **who,
        "results": rows,
        "minus_float": differences,
    }


def read_training_task(spec: PolicySpec) -> str:
    """Return the task as it was typed for training."""
    return str(spec.provenance.get("task", "navigation"))


def task_options(spec: PolicySpec, task: str) -> dict[str, Any]:
    """Return the options of the task that the policy was trained on; none for another one, nor for navigation's
    presets."""
    settings = spec.provenance.get("settings", {})
    if (
        task in ("navigation", "")
        or resolve(task) != resolve(read_training_task(spec))
        or not isinstance(settings, dict)
    ):
        return {}
    return dict(settings.get("task") or {})


def check_task(spec: PolicySpec, task: Task) -> None:
    """Refuse to judge a policy on another task than it was trained for.

    Raises:
        SpecError: names the field that differs: observation, head, or environment.
    """
    from quarl.policy.errors import SpecError
    from quarl.policy.spec import DiscreteHead, MultiDiscreteHead

    spec.check_observation(task.observation)
    mine, other = spec.head, task.head
    names: tuple[str, ...] = ("low", "high")  # the squash may differ
    if isinstance(mine, DiscreteHead):
        names = ("action_names", "start")
    elif isinstance(mine, MultiDiscreteHead):
        names = ("counts", "starts")
    elif spec.is_imported:
        names = ("size",)  # its bounds are its own; the environment clips
    fields: list[tuple[str, Any, Any]] = [("head", mine.describe(), other.describe())]
    if type(mine) is type(other):
        fields = [(f"head.{name}", *(getattr(head, name) for head in (mine, other))) for name in names]
    # Pong's and Space Invaders' pictures and actions are alike: the environment's name tells them apart.
    for field, one, its in (*fields, ("environment.id", spec.environment.id, task.environment.id)):
        if one != its:
            trained = spec.provenance.get("task", spec.environment.id)
            raise SpecError(
                f"policy {spec.name!r} was not trained on {task.name}: its {field} is {one}, the task's is {its}.",
                f"Leave --task out, or type the task that it was trained on: --task {trained}",
            )


@contextmanager
def deciding(
    bundle: Bundle, precision: str | None, runtime: str | None, name_or_path: str
) -> Iterator[tuple[Decide, dict[str, Any]]]:
    """Yield the requested policy as a function of observations, and what executes it as JSON values.

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

    usual = RuntimeName.ONNXRUNTIME.value if bundle.spec.network.opaque else RUNTIME
    named = parse_enum(RuntimeName, runtime or usual, "runtime")
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


def compare_evaluations(one: Evaluation, other: Evaluation, paired: bool) -> dict[str, Any]:
    """Mean of one minus the other with its 95 % interval, of the return and of the success."""
    mean, interval = difference(one.different, other.different, paired)
    values: dict[str, Any] = {"paired": paired, "mean_return": mean, "return_interval": interval}
    if one.successes:
        values["success"], values["interval"] = difference(one.successes, other.successes, paired)
    return dict(without_nan(values))


def difference(one: Sequence[float], other: Sequence[float], paired: bool) -> tuple[float, Interval | None]:
    """Mean of one minus that of the other, and its interval by Student's t.

    Of paired values it is that of their differences, which equal episodes make so much sharper; of others Welch's.

    Raises:
        ValueError: paired values are not the same episodes.
    """
    if not paired:
        return difference_interval(one, other)
    if len(one) != len(other) or not len(one):
        raise ValueError(
            f"{len(one)} and {len(other)} episodes cannot be paired. Evaluate both policies on the same episodes."
        )
    differences = [float(mine) - float(its) for mine, its in zip(one, other, strict=True)]
    return fmean(differences), mean_interval(differences)


def print_report(report: dict[str, Any]) -> None:
    """Print the report as a table."""
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
            f"{report['precision']} minus float, {'the same' if change['paired'] else 'unpaired'} episodes{where}: "
            f"return {change['mean_return']:+.3f} {brackets(change['return_interval'], '+.3f')}{success}"
        )
        print(row_cells[-1])
    for sentence in report["notes"]:
        print(f"Note: {sentence}")
    if any(brackets(None, "") in text for text in row_cells):
        print("[–]: a single episode, or episodes with equal returns, give no interval.")


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the table by heading; that of a zone is short, so that it fits a terminal of 80 columns."""
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


main = cli.of("evaluate")

if __name__ == "__main__":
    raise SystemExit(main())
