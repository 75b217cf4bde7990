"""The benchmark policies: every bundle of zoo/benchmark converted, judged in the runtime of a device, and tabulated.

    python -m bench.study cells                        judges what is new or has changed, prints the table
    python -m bench.study cells --only pong-ppo        judges one again
    python -m bench.study cells --update-docs          also fills docs/benchmark.md, and draws the curves
    python -m bench.study cells --place /tmp/x/pong-ppo  takes a new bundle into zoo/benchmark if it is no worse

A bundle is converted to fp32, fp16 and int8, TFLite and ONNX, through the parity gate, in a temporary copy; the TFLite
artifacts then play the same 100 episodes, so that a difference between precisions is one of pairs. The answers are kept
in results/cells.json; the tables are made from them and from train/suites/cells.json (the paper's figures).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import command_line
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    from policy.bundle import Bundle
    from policy.spec import PolicySpec, RuntimeName

EPISODES, SEED = 100, 7
PRECISIONS = ("fp32", "fp16", "int8")
ROOT = PROJECT_ROOT
BENCHMARK = ROOT / "zoo" / "benchmark"
ANSWERS = ROOT / "results" / "cells.json"


@dataclass(frozen=True)
class Played:
    """What one artifact reached.

    Attributes:
        mean_return: over the episodes, with its 95 % interval.
        return_interval: see there.
        mean_length: steps of an episode.
        bytes: size of the artifact.
        returns: of every episode, by number.
    """

    mean_return: float
    return_interval: tuple[float, float]
    mean_length: float
    bytes: int
    returns: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Answer:
    """One bundle, judged.

    Attributes:
        name: of the bundle, e.g. ``pong-ppo``.
        task, method: as its provenance says.
        weights_sha256: of the weights that were judged.
        network: in words.
        training_seed, steps, cpu_s: of the training.
        episodes, seed: of the judging.
        runtime, machine, code, date: what executed it, where, with which code, when.
        artifacts: files that passed the parity gate.
        played: by precision.
        differences: by precision, its return minus that of fp32 on the same episodes: mean, low, high (95 %).
    """

    name: str
    task: str
    method: str
    weights_sha256: str
    network: str
    training_seed: int
    steps: int
    cpu_s: float
    episodes: int
    seed: int
    runtime: str
    machine: str
    code: str
    date: str
    artifacts: tuple[str, ...]
    played: Mapping[str, Played]
    differences: Mapping[str, tuple[float, float, float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Judge, keep, print."""
    parser = command_line.parser(__doc__, "-m bench.study cells")
    parser.add_argument("--only", type=command_line.words, default=None, metavar="NAME", help="one, or several with ,")
    parser.add_argument("--again", action="store_true", help="judge all, also what is kept")
    parser.add_argument("--stored", action="store_true", help="judge nothing; make the tables of what is kept")
    parser.add_argument("--answers", type=Path, default=ANSWERS, metavar="FILE", help="default: results/cells.json")
    parser.add_argument("--episodes", type=command_line.positive, default=EPISODES, help="default: %(default)s")
    parser.add_argument("--seed", type=command_line.not_negative, default=SEED, help="default: %(default)s")
    parser.add_argument("--runtime", choices=["litert", "tflite-runtime", "onnxruntime"], default="litert")
    parser.add_argument("--place", type=Path, metavar="FOLDER", help="take this bundle into zoo/benchmark")
    parser.add_argument("--force", action="store_true", help="with --place: also if it is worse than the one there")
    parser.add_argument("--keep", action="store_true", help="answers are kept in any case")
    parser.add_argument("--jobs", type=command_line.positive, help="one bundle is judged at a time")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--update-docs", action="store_true", help="fill docs/benchmark.md, draw the curves")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    arguments = parser.parse_args(argv)
    if arguments.update_docs and arguments.answers != ANSWERS:
        parser.error("--update-docs shows the answers of results/cells.json; leave out --answers")
    # Before numpy loads: with another number of threads its sums end in other last bits, an int8 artifact's scales
    # follow them, and a walking robot's episode is another one. So the artifact is the same however this is started.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return command_line.guarded(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from train.__main__ import quiet_libraries

    quiet_libraries()
    only = list(arguments.only or [])
    if arguments.place is not None:
        from bench.study.cells.place import place

        only.append(place(arguments.place, BENCHMARK, arguments.episodes, arguments.seed, arguments.force))
    if not arguments.stored:
        judge_all(only, arguments)
    answers = read_answers(arguments.answers)
    from bench.report import tables as rendering
    from bench.study import sweep
    from bench.study.cells import ptq_table
    from bench.study.cells import table as cells_table
    from bench.study.experiment import stored
    from policy.bundle import Bundle

    weights = {name: weights_hash(Bundle.load(BENCHMARK / name)) for name in bundle_names()}
    tables = cells_table.tables(answers, bundle_names())
    tables += ptq_table.tables(ptq_table.judged(answers, stored(sweep.EXPERIMENT), weights))
    if arguments.update_docs:
        from bench.study.cells.curves import save_curves

        command_line.update_docs(tables)
        command_line.say(str(save_curves(BENCHMARK, answers)))
    if arguments.json:
        print(json.dumps({"ok": True, "cells": [asdict(answer) for answer in answers.values()]}, ensure_ascii=False))
    elif arguments.markdown:
        print("\n".join(rendering.to_markdown(table) for table in tables))
    else:
        for each in (tables[0], *tables[2:]):
            rendering.print_table(each, command_line.console())
    return command_line.EXIT_OK


def bundle_names(folder: Path = BENCHMARK) -> list[str]:
    """Names of the bundles that are there."""
    return sorted(path.parent.name for path in folder.glob("[!.]*/manifest.json"))


def judge_all(only: Sequence[str], arguments: argparse.Namespace) -> None:
    """Judge the named bundles, or all whose answer is missing or of other weights; each answer is kept at once."""
    from policy.bundle import Bundle
    from policy.spec import RuntimeName

    names, answers = bundle_names(), read_answers(arguments.answers)
    if unknown := [name for name in only if name not in names]:
        raise command_line.BenchError(
            f"zoo/benchmark has no bundle {unknown[0]!r}; it has {', '.join(names) or 'none'}.",
            f"python -m bench.study cells --place FOLDER/{unknown[0]}",
        )
    failed = []
    for name in only or names:
        bundle = Bundle.load(BENCHMARK / name)
        if not only and not arguments.again and is_current(answers.get(name), bundle, arguments):
            continue
        command_line.say(f"{name}: converting and playing {arguments.episodes} episodes at each precision …")
        try:
            answer = judge(bundle, arguments.episodes, arguments.seed, RuntimeName(arguments.runtime))
        except ValueError as error:  # one bundle that cannot be judged does not keep the others from it
            failed.append(f"{name}: {error}")
            command_line.say(failed[-1])
            continue
        keep(answer, arguments.answers)
        command_line.say("; ".join(f"{p} {played.mean_return:.2f}" for p, played in answer.played.items()))
    if failed:
        raise command_line.BenchError("\n".join(failed), "mend these and type the command again; the others are kept")


def is_current(answer: Answer | None, bundle: Bundle, arguments: argparse.Namespace) -> bool:
    """Whether the kept answer is of these weights and asked the same."""
    return answer is not None and (
        (answer.weights_sha256, answer.episodes, answer.seed)
        == (weights_hash(bundle), arguments.episodes, arguments.seed)
        and answer.runtime.startswith(arguments.runtime)
    )


def weights_hash(bundle: Bundle) -> str:
    """SHA-256 of the weights as the manifest has it."""
    return bundle.manifest.files["weights.safetensors"].sha256


def judge(bundle: Bundle, episodes: int, seed: int, runtime: RuntimeName) -> Answer:
    """Convert a bundle in a temporary copy and play its artifacts, the same episodes with each.

    Raises:
        PolicyError: an artifact fails the parity gate, or the bundle is of another task than it says.
        TaskError: its task is not known or not installed here.
    """
    from bench.report.document import code_version
    from bench.report.machine import describe_machine
    from convert.pipeline import convert_all
    from policy.bundle import Bundle
    from policy.bundle_writer import copy_bundle
    from policy.spec import ArtifactFormat, Precision
    from train.evaluate import check_task, difference, task_options, trained_on
    from train.runs.artifact import ArtifactPolicy, find_artifact
    from train.suites.make import make_task

    spec = bundle.spec
    task = make_task(trained_on(spec), options=task_options(spec, trained_on(spec)))
    check_task(spec, task)
    played: dict[str, Played] = {}
    version = ""
    with tempfile.TemporaryDirectory(prefix="cells-") as folder:
        copy = copy_bundle(bundle, Path(folder) / spec.name, origin="zoo")
        precisions = [Precision(name) for name in PRECISIONS]
        convert_all([copy], precisions, list(ArtifactFormat))
        copy = Bundle.load(copy.path)
        for precision in precisions:
            entry = find_artifact(copy, spec.name, precision, runtime)
            with ArtifactPolicy(spec, copy.artifact_data(entry), runtime) as artifact:
                result = task.evaluate(artifact.decide, episodes, seed, task.presets[0])
                version = artifact.version
            played[precision.value] = Played(
                result.mean_return, result.return_interval, result.mean_length, entry.record.size, result.returns
            )
        artifacts = tuple(sorted(copy.manifest.artifacts))
    differences = {}
    for name in PRECISIONS[1:]:
        mean, (low, high) = difference(played[name].returns, played[PRECISIONS[0]].returns)
        differences[name] = (mean, low, high)
    origin = spec.provenance
    return Answer(
        name=spec.name,
        task=str(origin["task"]),
        method=str(origin["algorithm"]),
        weights_sha256=weights_hash(bundle),
        network=network_words(spec),
        training_seed=int(origin["seed"]),
        steps=int(origin["steps"]),
        cpu_s=float(origin["cpu_s"]),
        episodes=episodes,
        seed=seed,
        runtime=f"{runtime.value} {version}",
        machine=describe_machine().sentence(),
        code=code_version(),
        date=datetime.now(UTC).date().isoformat(),
        artifacts=artifacts,
        played=played,
        differences=differences,
    )


def network_words(spec: PolicySpec) -> str:
    """``3 conv, 512`` or ``256 × 256, layer norm``."""
    parts = [f"{len(spec.network.convolutions)} conv"] if spec.network.convolutions else []
    parts.append(" × ".join(str(width) for width in spec.network.hidden) or "linear")
    return ", ".join([*parts, "layer norm"] if spec.network.layer_norm else parts)


def read_answers(path: Path | None = None) -> dict[str, Answer]:
    """The kept answers by bundle name; none where nothing was judged yet.

    Raises:
        BenchError: the file is damaged.
    """
    path = path or ANSWERS
    if not path.exists():
        return {}
    try:
        documents = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return {document["name"]: answer_from(document) for document in documents}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise command_line.BenchError(
            f"{path} is damaged: {error!r}",
            f"move it away, then: python -m bench.study cells  ({path.name} is made anew)",
        ) from None


def answer_from(document: Mapping[str, Any]) -> Answer:
    """An answer from its JSON values."""
    played = {
        name: Played(
            values["mean_return"],
            (values["return_interval"][0], values["return_interval"][1]),
            values["mean_length"],
            values["bytes"],
            tuple(values["returns"]),
        )
        for name, values in document["played"].items()
    }
    differences = {name: (values[0], values[1], values[2]) for name, values in document["differences"].items()}
    return Answer(**{
        **document, "artifacts": tuple(document["artifacts"]), "played": played, "differences": differences
    })  # fmt: skip


def keep(answer: Answer, path: Path | None = None) -> None:
    """Add an answer to the file, in place of that of the same bundle; answers of bundles that are gone are dropped."""
    from policy.files import locked, write_atomically

    path = path or ANSWERS
    there = set(bundle_names()) | {answer.name} if path == ANSWERS else None
    with locked(path.parent):  # two cells may be judged at once
        answers = {**read_answers(path), answer.name: answer}
        documents = [asdict(answers[name]) for name in sorted(answers) if there is None or name in there]
        for document in documents:
            for played in document["played"].values():
                played["returns"] = [round(value, 4) for value in played["returns"]]
        text = ",\n".join(json.dumps(document, ensure_ascii=False) for document in documents)
        write_atomically(path, f'{{"cells": [\n{text}\n]}}\n'.encode())


if __name__ == "__main__":
    raise SystemExit(main())
