"""What the benchmark's policies reach in each precision, as the artifact that a device's runtime executes."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import Pictures
from quarl.bench.report.text import NOT_KNOWN, estimate, format_loss, kilobytes, three_digits
from quarl.bench.study import command
from quarl.bench.study.bundles import bundle_identity, fly, folder_of, load, open_bundle, task_of
from quarl.bench.study.curves import curve_of, curves_figure
from quarl.bench.study.experiment import ERROR, LOST, RETURN, EpisodePlan, Experiment, Results, SeedResult
from quarl.bench.study.records import Condition
from quarl.bench.tables import Table, tabulate
from quarl.policy.console import heartbeat
from quarl.policy.locate import describe_source
from quarl.policy.places import ZOO
from quarl.train.intervals import RETURN_INTERVAL, Estimate, brackets
from quarl.train.suites.cells import Cell, load_cells

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import PolicySpec
    from quarl.train.suites.task import Evaluation

EPISODES, SEED, CHOOSING_SEED = 100, 8, 7
LARGEST_BYTES = 16e6
"""A committed bundle stays small: the largest networks here (Nature's, 6.8 MB) and their recordings fit."""
RUNTIMES = ("litert", "tflite-runtime", "onnxruntime")
PRECISIONS = ("fp32", "fp16", "int8")
BENCHMARK = ZOO / "benchmark"
SUITES = {
    "classic": "classic control", "box2d": "Box2D", "pybullet": "PyBullet", "mujoco": "MuJoCo",
    "dm_control": "DeepMind Control", "atari": "Atari", "gym": "Gymnasium", "navigation": "navigation",
}  # fmt: skip
"""Suites in the tables' order, and their names there."""
METHODS = ("dqn", "ppo", "a2c", "ddpg", "d4pg", "td3", "sac")

TABLE = """\
Trained cells
The paper's: single figures without intervals, of its own networks and training; asked for: the mean return that this \
project set itself.
Ours: mean return of {{ rows | map(attribute="played") | map("thousands") | joined }} greedy episodes \
(seed {{ results.seeds }}) with its 95 % interval (Student's t), each precision's artifact on the same episodes; \
differences are paired. 0: less than 0.005 in all three numbers; without brackets: all episodes are equal, so that \
they give no interval.
Executed by {{ rows | map(attribute="executed_by") | joined }} on {{ results.where }}. Steps and CPU-hours are those \
of the run that made the policy, not of those before it, from each bundle's policy.json.
{{ results.games }}
{% if not_evaluated %}
Not evaluated yet: {{ not_evaluated | join(", ") }} (quarl study cells --keep).
{% endif %}
{{ sources }}
{% for cell in rows | map(attribute="cell") if cell.tried %}
{{ cell.name.short_name }} × {{ cell.method }}: {{ cell.tried }}
{% endfor %}
"""
OPEN = """\
Cells without a committed policy
Each trains with its command; the steps are those of its settings file or of its method (--help).
{{ sources }}
"""


def bundle_names() -> list[str]:
    """Names of the bundles that are there."""
    return sorted(path.parent.name for path in BENCHMARK.glob("[!.]*/manifest.json"))


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.EpisodesOptions):
    """What to measure.

    Attributes:
        runtime: that executes the artifacts
        take: add this folder's bundle to zoo/benchmark, evaluated on --episodes
        force: with --take: also if it is worse than the one there
    """

    runtime: Literal["litert", "tflite-runtime", "onnxruntime"] = "litert"
    take: Path | None = None
    force: bool = False


def grid(options: Options, subject: str) -> list[Condition]:
    """Return the conditions: fp32, fp16 and int8 in one runtime."""
    runtime = {} if options.runtime == RUNTIMES[0] else {"runtime": options.runtime}
    return [runtime, *({**runtime, "precision": name} for name in PRECISIONS[1:])]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Convert a copy of the bundle to one precision, in every format, and play the runtime's artifact."""
    from quarl.convert.pipeline import convert_all
    from quarl.policy.bundle import Bundle, copy_bundle
    from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
    from quarl.train.runs.artifact import ArtifactPolicy, find_artifact

    bundle, task = open_bundle(subject)
    spec, origin = bundle.spec, bundle.spec.provenance
    precision = Precision(condition.get("precision", PRECISIONS[0]))
    runtime = RuntimeName(condition.get("runtime", RUNTIMES[0]))
    with tempfile.TemporaryDirectory(prefix="cells-") as folder:
        copy = copy_bundle(bundle, Path(folder) / spec.name, origin="zoo")
        convert_all([copy], [precision], [ArtifactFormat.TFLITE, ArtifactFormat.ONNX], accept=True)
        copy = Bundle.load(copy.path)
        entry = find_artifact(copy, spec.name, precision, runtime)
        with ArtifactPolicy(spec, copy.artifact_data(entry), runtime) as artifact:
            measures = {
                "task": str(origin["task"]),
                "method": str(origin["algorithm"]),
                "network": network_words(spec),
                "steps": int(origin["steps"]),
                "training_cpu_s": float(origin["cpu_s"]),
                "bytes": entry.record.size,
                "executed_by": f"{runtime.value} {artifact.version}",
            }
            yield from fly(task, artifact.decide, episodes, measures)


def network_words(spec: PolicySpec) -> str:
    """``3 conv, 512`` or ``256 × 256, layer norm``."""
    parts = [f"{len(spec.network.convolutions)} conv"] if spec.network.convolutions else []
    parts.append(" × ".join(str(width) for width in spec.network.hidden) or "linear")
    return ", ".join([*parts, "layer norm"] if spec.network.layer_norm else parts)


@dataclass(frozen=True)
class JudgedBundle:
    """A subject in one runtime.

    Attributes:
        subject: the bundle.
        cell: of the paper's tables, or one that they lack.
        rows: of the summary, by precision.
    """

    subject: str
    cell: Cell
    rows: Mapping[str, Mapping[str, Any]]

    def value(self, name: str, precision: str) -> Any:
        """Return a value of a precision's row; None where that precision was not evaluated."""
        return self.rows.get(precision, {}).get(name)

    def error(self, precision: str) -> Estimate | None:
        """Relative error of an artifact's mean return, percent; None where fp32's is 0."""
        relative_error: Estimate | None = self.value(ERROR, precision)
        return relative_error

    @property
    def fp32(self) -> Mapping[str, Any]:
        """The row of fp32, or of the first evaluated precision without one: for what is the same in all."""
        return self.rows.get(PRECISIONS[0]) or next(iter(self.rows.values()))


def collect_bundles(results: Results) -> list[JudgedBundle]:
    """Return the bundles that were evaluated, in the tables' order."""
    cells = {(cell.name.canonical, cell.method): cell for cell in load_cells()}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in results.summary:
        groups.setdefault((row["subject"], row["runtime"], row["preset"]), {})[row["precision"] or PRECISIONS[0]] = row
    bundles = []
    for (subject, *_), rows in groups.items():
        cell = Cell(*(next(iter(rows.values()))[name] for name in ("task", "method")))
        bundles.append(JudgedBundle(subject, cells.get((cell.name.canonical, cell.method), cell), rows))
    return sorted(bundles, key=lambda each: order(each.cell))


def collect_trained_cells(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for every trained cell: the paper's figures, and ours in each precision."""
    repeated = {
        subject: played for (played, _), subjects in results.subjects_by_episode_counts.items() for subject in subjects
    }
    for bundle in collect_bundles(results):
        values = {
            quantity: {name: bundle.value(quantity, name) for name in PRECISIONS}
            for quantity in (RETURN, LOST, "bytes")
        }
        steps = bundle.fp32["steps"]
        played = repeated.get(bundle.subject, bundle.fp32["episodes"])
        yield {
            **bundle.fp32,
            **facts(bundle.cell, steps),
            **values,
            "reached": describe_target(bundle),
            "played": played,
        }


def open_cells(results: Results) -> list[dict[str, Any]]:
    """Return a row for each cell that has no committed policy."""
    trained = bundle_names()
    missing = sorted((cell for cell in load_cells() if cell.bundle_name not in trained), key=order)
    return [facts(cell) for cell in missing]


def facts(cell: Cell, steps: int | None = None) -> dict[str, Any]:
    """Return what is known of a cell before it is trained: the suite in words, the paper's and other people's
    figures."""
    words = {"suite": SUITES[cell.name.suite.value], "target": number(cell.target)}
    return {"cell": cell, **words, "papers": papers(cell), "published": format_published(cell, steps)}


def describe_target(each: JudgedBundle) -> str:
    """Return whether the fp32 mean reaches its target, or by how much it misses it."""
    if each.cell.target is None or each.value(RETURN, "fp32") is None:
        return NOT_KNOWN
    missing = each.cell.target - each.value(RETURN, "fp32").value
    return "yes" if missing <= 0 else f"no, {three_digits(missing)} short"


def order(cell: Cell) -> tuple[int, int, str, int, str]:
    """Place of a cell among others: by suite, by the data file's order of tasks, by method."""
    tasks = list(dict.fromkeys(known.name.canonical for known in load_cells()))
    task, method = cell.name.canonical, cell.method
    return (
        list(SUITES).index(cell.name.suite.value),
        tasks.index(task) if task in tasks else len(tasks),
        task,
        METHODS.index(method) if method in METHODS else len(METHODS),
        method,
    )


def papers(cell: Cell) -> dict[str, str]:
    """Return the paper's figures."""
    return {f"paper's {precision}": number((cell.paper or {}).get(precision)) for precision in PRECISIONS}


def number(value: float | None) -> str:
    """Return a figure of the paper or a target as it is: ``2,553``."""
    return NOT_KNOWN if value is None else f"{value:,.10g}".replace("-", "−")


def format_published(cell: Cell, steps: int | None = None) -> str:
    """Other people's figures, each at the step count nearest to ours (or its last): ``2,078 at 1 M (SB3 zoo)``."""
    entries = []
    for curve in cell.published:
        points = curve["points"]
        at, value = points[-1] if steps is None else min(points, key=lambda point: abs(point[0] - steps))
        value_text = f"{value:,.{0 if abs(value) >= 1000 else 1}f}".replace("-", "−")
        entries.append(f"{value_text} at {at / 1e6:.10g} M ({curve['name']})")
    return "; ".join(entries) or NOT_KNOWN


def format_sources(cells: Iterable[Cell]) -> str:
    """Return a note on whose the published figures are, and where they stand; "" where there are none."""
    curves = [curve for cell in cells for curve in cell.published]
    sources = dict.fromkeys(f"{curve['name']}: {curve['what']}, {curve['source']}" for curve in curves)
    return f"Published: environment steps in millions. {'; '.join(sources)}." if sources else ""


def learning_curves(results: Results) -> Pictures:
    """Return how the policies learned, and what they reach."""
    curves = (
        curve_of(folder_of(bundle.subject), bundle.cell, bundle.fp32["steps"], bundle.value(RETURN, "fp32"))
        for bundle in collect_bundles(results)
    )
    return {"learning-curves": curves_figure([curve for curve in curves if curve is not None])}


def tabulate_trained_cells(results: Results) -> list[Table]:
    """Return every trained cell: the paper's figures, other people's, and ours in each precision."""
    rows = list(collect_trained_cells(results))
    lines = [
        {
            **_lead_cells(row),
            **row["papers"],
            "published": row["published"],
            "asked for": row["target"],
            "fp32": estimate(row[RETURN]["fp32"]),
            "reached": row["reached"],
            **{name: estimate(row[RETURN][name]) for name in PRECISIONS[1:]},
            **{f"{name} − fp32": format_loss(row[LOST][name], "+") for name in PRECISIONS[1:]},
            "network": row["network"],
            **{f"KB {name}": kilobytes(row["bytes"][name]) for name in ("fp32", "int8")},
            "environment steps": f"{row['steps']:,}",
            "CPU-hours": three_digits(row["training_cpu_s"] / 3600),
        }
        for row in rows
    ]
    not_evaluated = [name for name in bundle_names() if name not in results.subjects]
    sources = format_sources(bundle.cell for bundle in collect_bundles(results))
    return [
        tabulate(
            "cells", TABLE, lines, left=3, results=results, rows=rows, not_evaluated=not_evaluated, sources=sources
        )
    ]


def open_table(results: Results) -> list[Table]:
    """Return the cells that have no committed policy, and the command that trains each."""
    rows = open_cells(results)
    lines = [
        {
            **_lead_cells(row),
            "command": f"`{row['cell'].command}`",
            **row["papers"],
            "published": row["published"],
        }
        for row in rows
    ]
    sources = format_sources(row["cell"] for row in rows)
    return [tabulate("cells-open", OPEN, lines, left=4, results=results, rows=rows, sources=sources)]


def _lead_cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {"suite": row["suite"], "task": row["cell"].name.short_name, "method": row["cell"].method}


EXPERIMENT = Experiment(
    name="cells",
    factors=("runtime", "precision"),
    within=("runtime",),
    subjects=tuple(bundle_names()),
    grid=grid,
    measure=measure,
    identity=bundle_identity,
    about=lambda subject: describe_source(load(subject)),
    require=open_bundle,
    episodes=lambda options, subject: EpisodePlan(options.seeds or (SEED,), options.episodes or EPISODES),
    tables=[tabulate_trained_cells, open_table],
    figures=[learning_curves],
)


def take(source: Path, zoo: Path, episodes: int, force: bool) -> str:
    """Copy a bundle to ``zoo/TASK-METHOD`` without artifacts, its policy renamed to that; returns the name.

    Its provenance gets the judgement of these episodes, with interval, in place of a shorter one.

    Args:
        source: the bundle's folder.
        zoo: where it shall go.
        episodes: on which the float policy, and that of the bundle there, are evaluated; of ``CHOOSING_SEED``.
        force: also if it is worse.

    Raises:
        BenchError: its mean return is lower than that of the bundle there, or it is too large for a repository.
        PolicyError: it is no readable bundle, or of another task than it says.
    """
    from quarl.policy.bundle import HOST_FILES, Bundle, write_bundle

    fresh = Bundle.load(source)
    name = cell_name(fresh)
    goldens = {entry.golden_file for entry in fresh.manifest.artifacts.values()}
    kept_files = {file: record for file, record in fresh.manifest.files.items() if file not in goldens}  # no artifact's
    size = sum(record.size for record in kept_files.values())
    if size > LARGEST_BYTES:
        raise command_line.BenchError(
            f"{source} must have at most 16 MB without artifacts to be committed, got {size / 1e6:.1f} MB."
        )
    result = evaluate_bundle(fresh, episodes)
    interval = result.return_interval
    command_line.say(f"{source}: {result.mean_return:.2f} {brackets(interval, '.2f')} over {episodes} episodes")
    target = zoo / name
    if target.exists() and target.resolve() != source.resolve():  # of itself only the judgement is renewed
        before = evaluate_bundle(Bundle.load(target), episodes)
        command_line.say(f"{target}: {before.mean_return:.2f} on the same episodes")
        if result.mean_return < before.mean_return and not force:
            raise command_line.BenchError(
                f"{source} has a mean return of {result.mean_return:.2f}, below the {before.mean_return:.2f} of "
                f"{target}. Nothing was changed.",
                f"to replace it anyway: quarl study cells --take {source} --force",
                code="worse_than_committed",
            )
    row: dict[str, Any] = {
        "preset": result.preset,
        "episodes": result.episodes,
        "seed": CHOOSING_SEED,
        "mean_return": round(result.mean_return, 4),
    }
    if interval is not None:
        row[RETURN_INTERVAL] = [round(side, 4) for side in interval]
    spec = dataclasses.replace(fresh.spec, name=name, provenance={**fresh.spec.provenance, "judged": [row]})
    extra = {file: (source / file).read_bytes() for file in kept_files if file not in HOST_FILES}
    write_bundle(target, spec, fresh.weights(), fresh.calibration(), fresh.golden().observations, extra)
    command_line.say(f"{target}: written; commit it with: git add {target}")
    return name


def cell_name(bundle: Bundle) -> str:
    """``pong-ppo``: the task's word and the method, as the provenance has them.

    Raises:
        BenchError: the provenance does not say them.
    """
    from quarl.train.suites.names import resolve

    origin = bundle.spec.provenance
    missing = [key for key in ("task", "algorithm", "seed", "steps", "cpu_s") if key not in origin]
    if missing:
        raise command_line.BenchError(
            f"the provenance in {bundle.path}/policy.json lacks {', '.join(missing)}.",
            "train the policy with quarl train, which records them",
        )
    return f"{resolve(str(origin['task'])).short_name}-{origin['algorithm']}"


def evaluate_bundle(bundle: Bundle, episodes: int) -> Evaluation:
    """Return the float policy on the episodes of its own task on which bundles are chosen."""
    from quarl.train.deciding import greedy

    task = task_of(bundle)
    return task.evaluate(greedy(bundle.spec, bundle.weights()), episodes, CHOOSING_SEED, task.presets[0])


@cli.verb()
def cells(options: Options) -> int:
    """Measure the benchmark's policies in each precision, as artifacts that a device's runtime executes.

        quarl study cells pong-ppo                   one bundle of zoo/benchmark, or your own folder
        quarl study cells --keep                     evaluates new and changed bundles
        quarl study cells --stored --update-docs     fills docs/benchmark.md, draws the learning curves
        quarl study cells --take /tmp/x/pong-ppo     takes a new bundle into zoo/benchmark if it is no worse

    A bundle is converted to fp32, fp16 and int8, TFLite and ONNX, through the parity gate, in a temporary copy; the
    artifacts of one runtime then play the same episodes, so that differences between precisions are paired. The
    paper's figures are those of train/suites/cells.json.

    --take evaluates the float policies of the new and of the present bundle on episodes of another seed than that of
    the tables; the provenance of the bundle that is kept has the result.
    """
    if options.take is None:
        return command.run(__name__, options)
    with heartbeat():
        name = take(options.take, BENCHMARK, options.episodes or EPISODES, options.force)
    command_line.say(f"next: quarl study cells {name} --keep")
    return cli.EXIT_OK


main = cli.of("study cells")
