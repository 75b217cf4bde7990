"""What the benchmark's policies reach in each precision, as the artifact that a device's runtime executes.

    python -m bench.study cells pong-ppo                   one bundle of zoo/benchmark, or a folder of one's own
    python -m bench.study cells --keep                     judges what is new or has changed
    python -m bench.study cells --stored --update-docs     fills docs/benchmark.md, draws the learning curves
    python -m bench.study place /tmp/x/pong-ppo            takes a new bundle into zoo/benchmark if it is no worse

A bundle is converted to fp32, fp16 and int8, TFLite and ONNX, through the parity gate, in a temporary copy; the
artifacts of one runtime then play the same episodes, so that a difference between precisions is one of pairs. The
paper's figures are those of train/suites/cells.json.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, filled, joined, kilobytes, lost, three_digits
from bench.study.experiment import LOST, RETURN, Episodes, Experiment, Played, Results
from bench.study.flying import fly, open_bundle, weights_hash
from bench.study.records import Condition
from bench.study.tables.paper_cells import (
    PRECISIONS,
    number,
    open_table,
    order,
    papers,
    published,
    published_notes,
    words,
)
from policy.locate import ZOO, meant
from train.suites.cells import Cell, load_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from policy.spec import PolicySpec

EPISODES, SEED = 100, 7
RUNTIMES = ("litert", "tflite-runtime", "onnxruntime")
BENCHMARK = ZOO / "benchmark"
NOTES = """\
The paper's: single figures without intervals, of its own networks and training; asked for: the mean return that this \
project set itself.
Ours: mean return of {{ episodes }} greedy episodes (seed {{ seeds }}) with its 95 % interval (Student's t), each \
precision's artifact on the same episodes; differences are paired. 0: less than 0.005 in all three numbers; without \
brackets: all episodes are equal, so that they give no interval.
Executed by {{ runtimes }} on {{ where }}. Steps and CPU-hours are those of the run that made the policy, not of those \
before it, from each bundle's policy.json.
{% for count in games %}
Games of Atari differ in nothing but how many frames pass before the first action: of {{ count.played }} of \
{{ count.subjects }} {{ count.different }} are different ones, and equal games are counted once.
{% endfor %}
{% if unjudged %}
Not judged yet: {{ unjudged }} (python -m bench.study cells --keep).
{% endif %}
"""


def bundle_names(folder: Path = BENCHMARK) -> list[str]:
    """Names of the bundles that are there."""
    return sorted(path.parent.name for path in folder.glob("[!.]*/manifest.json"))


def options(parser: argparse.ArgumentParser) -> None:
    """--runtime."""
    parser.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help="default: %(default)s")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, fp16 and int8 in one runtime."""
    runtime = {} if arguments.runtime == RUNTIMES[0] else {"runtime": arguments.runtime}
    return [runtime, *({**runtime, "precision": name} for name in PRECISIONS[1:])]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """Convert a copy of the bundle to one precision, in every format, and play the runtime's artifact."""
    from convert.pipeline import convert_all
    from policy.bundle import Bundle
    from policy.bundle_writer import copy_bundle
    from policy.spec import ArtifactFormat, Precision, RuntimeName
    from train.runs.artifact import ArtifactPolicy, find_artifact

    bundle, task = open_bundle(subject)
    spec, origin = bundle.spec, bundle.spec.provenance
    precision = Precision(asked.get("precision", PRECISIONS[0]))
    runtime = RuntimeName(asked.get("runtime", RUNTIMES[0]))
    with tempfile.TemporaryDirectory(prefix="cells-") as folder:
        copy = copy_bundle(bundle, Path(folder) / spec.name, origin="zoo")
        convert_all([copy], [precision], list(ArtifactFormat))
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
class Judged:
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
        """Of a precision's row; None where it was not judged."""
        return self.rows.get(precision, {}).get(name)

    @property
    def fp32(self) -> Mapping[str, Any]:
        """Its own, or where that was not judged the first that was: what is the same in all."""
        return self.rows.get(PRECISIONS[0]) or next(iter(self.rows.values()))


def judged(results: Results) -> list[Judged]:
    """What was measured, in the tables' order."""
    cells = {(cell.name.canonical, cell.method): cell for cell in load_cells()}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in results.summary.to_dict("records"):
        groups.setdefault((row["subject"], row["runtime"], row["preset"]), {})[row["precision"] or PRECISIONS[0]] = row
    found = []
    for (subject, *_), rows in groups.items():
        cell = Cell(*(next(iter(rows.values()))[name] for name in ("task", "method")))
        found.append(Judged(subject, cells.get((cell.name.canonical, cell.method), cell), rows))
    return sorted(found, key=lambda each: order(each.cell))


def tables(results: Results) -> list[Table]:
    """Every figure of every trained cell; and the paper's cells that have no committed policy."""
    found = judged(results)
    headers = (
        "suite", "task", "method", "paper's fp32", "paper's fp16", "paper's int8", "published", "asked for", "fp32",
        "reached", "fp16", "int8", "fp16 − fp32", "int8 − fp32", "network", "KB fp32", "KB int8", "environment steps",
        "CPU-hours",
    )  # fmt: skip
    rows = tuple(
        (
            *words(each.cell), *papers(each.cell), published(each.cell, each.fp32["steps"]), number(each.cell.target),
            estimate(each.value(RETURN, "fp32")), reached(each),
            *(estimate(each.value(RETURN, name)) for name in PRECISIONS[1:]),
            *(lost(each.value(LOST, name), "+") for name in PRECISIONS[1:]),
            each.fp32["network"], *(kilobytes(each.value("bytes", name)) for name in ("fp32", "int8")),
            f"{each.fp32['steps']:,}", three_digits(each.fp32["training_cpu_s"] / 3600),
        )
        for each in found
    )  # fmt: skip
    cells = [each.cell for each in found]
    tried = [f"{cell.name.short_name} × {cell.method}: {cell.tried}" for cell in cells if cell.tried]
    notes = (*notes_of(results, found), *published_notes(cells), *tried)
    return [
        Table("cells", "Trained cells", headers, rows, notes, left=3),
        open_table(cell for cell in load_cells() if cell.bundle_name not in bundle_names()),
    ]


def notes_of(results: Results, found: Sequence[Judged]) -> tuple[str, ...]:
    """What must stand beside the numbers."""
    played = {each.subject: len(each.fp32.get("starts") or ()) or each.fp32["episodes"] for each in found}
    games: dict[tuple[int, int], list[str]] = {}
    for each in found:
        if each.fp32.get("starts"):
            games.setdefault((played[each.subject], each.fp32["episodes"]), []).append(each.subject)
    return filled(
        NOTES,
        episodes=joined(f"{count:,}" for count in played.values()),
        seeds=joined(str(record["seed"]) for record in results.found),
        runtimes=joined(each.fp32["executed_by"] for each in found),
        where=results.where,
        games=[
            {"played": count, "different": different, "subjects": joined(subjects)}
            for (count, different), subjects in games.items()
        ],
        unjudged=", ".join(name for name in bundle_names() if name not in played),
    )


def reached(each: Judged) -> str:
    """Whether the fp32 mean reaches what is asked for, or by how much it misses it."""
    if each.cell.target is None or each.value(RETURN, "fp32") is None:
        return NOT_KNOWN
    missing = each.cell.target - each.value(RETURN, "fp32").value
    return "yes" if missing <= 0 else f"no, {three_digits(missing)} short"


def figures(results: Results) -> dict[str, Figure]:
    """How the policies learned, and what they reach."""
    from bench.study.tables.curves import curves_figure, read_curves

    return {"learning-curves": curves_figure(read_curves(judged(results)))}


EXPERIMENT = Experiment(
    name="cells",
    question="what do the benchmark's policies reach in each precision?",
    factors=("runtime", "precision"),
    subjects=tuple(bundle_names()),
    grid=grid,
    measure=measure,
    identity=weights_hash,
    episodes=lambda arguments, subject: Episodes(arguments.seeds or (SEED,), arguments.episodes or EPISODES),
    tables=tables,
    figures=figures,
    about=lambda subject: meant(open_bundle(subject)[0]),
    options=options,
    within=("runtime",),
)
