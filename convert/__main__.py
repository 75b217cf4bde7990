"""``quarl convert``: a policy's bundle to TFLite, ONNX and native artifacts, each verified in every runtime."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quarl import cli
from quarl.convert.calibration import CalibrationReport, inspect
from quarl.convert.executor import TFLITE_PYTHON
from quarl.convert.ladder import Question, climb, find_ladder
from quarl.convert.mixed import integers
from quarl.convert.opaque import require_possible
from quarl.convert.pipeline import Converted, Job, convert_each, missing, possible
from quarl.convert.rebuild import check_artifact
from quarl.device.agent.runtimes import way_to_install
from quarl.policy import json_values
from quarl.policy.bundle import Bundle, copy_bundle
from quarl.policy.console import columns, heartbeat, say
from quarl.policy.errors import BundleError, PolicyError
from quarl.policy.ladder import AUTO, FLOOR, Ladder, Prefer, choose_precisions, read_ladder
from quarl.policy.locate import working_bundle
from quarl.policy.places import ZOO
from quarl.policy.reading import MANIFEST_FILE, ArtifactEntry, entry_values
from quarl.policy.spec import ArtifactFormat, Precision, Ranges, RuntimeName

_percent = cli.number_reader(float, lambda percent: 0.0 < percent < 100.0, "must be above 0 and below 100")
_episodes = cli.number_reader(int, lambda count: count >= 2, "must be 2 or more")


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Convert policies.

    Attributes:
        policy: I, II, III or a bundle's folder; default: all of the zoo
        bits: 32, 16, 8, 7 … 2 (only native packs them), mixed (8, 4 or 2 by layer), w8 or w4 (weights alone), dynamic
            (native), or several: 32,8,mixed; auto takes for each format the smallest that keeps the return
        max_loss: percent of the return that --bits auto may lose
        prefer: take the smallest with --bits auto, or the fastest
        episodes: on which --bits auto compares returns at first (default: 500 of navigation, 10 of images, else 50)
        format: of the artifacts
        ranges: how activation ranges are chosen (default: as in the present artifact, else minmax)
        missing: make only artifacts that the bundle does not have yet
        calibration: also print the table of activation ranges
        verify: build the bundles' artifacts again and compare; write nothing
        accept: also write artifacts whose agreement with the policy is below three quarters
        json: print one JSON document instead of the table
    """

    policy: Annotated[tuple[str, ...], Parameter(metavar="NAME", consume_multiple=True)] = ()
    bits: Annotated[str, Parameter(alias="--precision")] = "8"
    max_loss: Annotated[float, cli.reads(_percent, "PERCENT")] = 1.0
    prefer: Literal["size", "speed"] = "size"
    episodes: Annotated[int | None, cli.reads(_episodes)] = None
    format: Literal["tflite", "onnx", "native", "all"] = "all"
    ranges: Literal["minmax", "percentile-99.99", "mse"] | None = None
    missing: bool = False
    calibration: bool = False
    verify: bool = False
    accept: bool = False
    json: bool = False


@cli.verb(left="what is finished is kept.")
def convert(options: Options) -> None:
    """Convert policies to TFLite, ONNX and native artifacts, each verified in every runtime.

    quarl convert --policy III --bits 8
    quarl convert --policy path/to/bundle --bits 32,16,4 --format tflite --json
    """
    started = time.perf_counter()
    done: list[Converted] = []
    try:
        # Bits that are none are refused before working copies are made.
        precisions = () if options.bits == AUTO else choose_precisions(None, options.bits, _formats(options))
        with heartbeat():
            bundles = _bundles(options)
            ladders = [_ladder(bundle, options) for bundle in bundles] if options.bits == AUTO else []
            jobs = _jobs(options, bundles, ladders, precisions)
            _refuse_unusable(options, jobs)
            if options.verify:
                _verify(jobs, options.json)
                return
            _convert(jobs, done, options)
    except PolicyError:
        if done and not options.json:
            print(_table(done), flush=True)
        raise
    except KeyboardInterrupt:
        if done and not options.json:
            print(_table(done), flush=True)
        outcome = f"the {len(done)} above are finished and kept" if done else "no artifact was finished"
        raise KeyboardInterrupt(f"{outcome}.") from None
    if options.json:
        artifacts = [_as_json(converted) for converted in done]
        found = {bundle.spec.name: json_values.write(ladder) for bundle, ladder in zip(bundles, ladders, strict=False)}
        print(json.dumps({"ladders": found, "artifacts": artifacts} if ladders else artifacts, indent=2))
        return
    if not done:
        print("nothing to convert: the artifacts are there.")
        return
    for bundle, ladder in zip(bundles, ladders, strict=False):
        print(ladder.describe(bundle.spec.name, _formats(options)), end="\n\n")
    print(_table(done))
    print(f"{len(done)} artifacts in {time.perf_counter() - started:.1f} s, each executed in every runtime it names.")
    for name in dict.fromkeys(name for result in done for name in result.entry.not_tried):
        print(f"not tried: {name.value}, which is not installed here. {_way_to_try(name)}")
    known = {bundle.spec.name: read_ladder(bundle) for bundle in bundles}
    for line in dict.fromkeys(line for result in done for line in _notes(result, known[result.policy])):
        print(line)
    if options.calibration:
        for bundle in (bundle for bundle in bundles if any(bundle is job[0] for job in jobs)):
            print(_calibration_table(bundle, _calibration(bundle)))


def _formats(options: Options) -> list[ArtifactFormat]:
    return [f for f in ArtifactFormat if options.format in (f.value, "all")]


def _bundles(options: Options) -> list[Bundle]:
    # What is missing is made for a command behind this one, which says which policy it works on.
    return [working_bundle(name, quiet=options.missing) for name in options.policy or _all_names()]


def _ladder(bundle: Bundle, options: Options) -> Ladder:
    """Return the ladder that was asked for: climbed now, unless the one that is there answers the question."""
    question = Question(options.max_loss, Prefer(options.prefer), options.episodes)
    return find_ladder(bundle, question) or climb_for(bundle, question, _formats(options))


def climb_for(bundle: Bundle, question: Question, formats: Sequence[ArtifactFormat] = tuple(ArtifactFormat)) -> Ladder:
    """Return a policy's ladder; where the fastest is wanted, instructions are counted."""
    count = partial(_count_instructions, formats) if question.prefer is Prefer.SPEED else None
    return climb(bundle, question, formats, count, lambda doing: say(f"{bundle.spec.name}, {doing}"))


def _count_instructions(
    formats: Sequence[ArtifactFormat], bundle: Bundle, precision: Precision
) -> dict[RuntimeName, int]:
    """Return the instructions of a decision on a Cortex-A53, counted in QEMU, in a runtime of each of these formats."""
    from quarl.bench.qemu_counter.counting import count

    usual = RuntimeName.NATIVE, RuntimeName.LITERT, RuntimeName.ONNXRUNTIME
    runtimes = [runtime for runtime in usual if runtime.artifact_format in formats]
    jobs = possible((bundle, precision, runtime.artifact_format) for runtime in runtimes)
    with tempfile.TemporaryDirectory(prefix="ladder-") as folder:
        copy = copy_bundle(bundle, Path(folder) / bundle.spec.name, origin="zoo")
        convert_each([(copy, *job[1:]) for job in jobs], accept=True)
        return {
            runtime: count(copy.path, precision, runtime).paths["runtime_warm"].instructions
            for runtime in runtimes
            if any(job[2] is runtime.artifact_format for job in jobs)
        }


def _jobs(
    options: Options, bundles: Sequence[Bundle], ladders: Sequence[Ladder], precisions: Sequence[Precision]
) -> list[Job]:
    """Return what is to be made of the bundles."""
    formats = _formats(options)
    if ladders:
        chosen = [
            (bundle, ladder.choose([form]), form)
            for bundle, ladder in zip(bundles, ladders, strict=True)
            for form in formats
            if options.format != "all" or ladder.has_choice(form)
        ]
        return missing(chosen) if options.missing else chosen
    jobs = list(product(bundles, precisions, formats))
    if options.format == "all":
        for bundle, precision in product(bundles, precisions):
            require_possible(bundle.spec, precision)
        jobs = possible(jobs)
    if options.missing:
        jobs = missing(jobs)
    return jobs


def _refuse_unusable(options: Options, jobs: Sequence[Job]) -> None:
    """Refuse options that mean nothing together, and ranges that would leave other formats without their artifact.

    Raises:
        BundleError: says which.
    """
    changes = ("missing", "ranges", "accept", "calibration")
    if options.verify and (typed := [f"--{name}" for name in changes if getattr(options, name)]):
        raise BundleError("--verify writes nothing.", f"Leave {', '.join(typed)} out.")
    others = {
        f"{bundle.spec.name}/{entry.file}"
        for bundle, precision, _ in jobs
        for entry in bundle.manifest.artifacts.values()
        if entry.precision is precision and entry.format.value not in (options.format, "all")
    }
    if options.ranges and options.format != "all" and others:
        raise BundleError(
            f"all formats of a precision must share ranges; {', '.join(sorted(others))} would keep the old ones.",
            "Leave --format out.",
        )


def _verify(jobs: Sequence[Job], as_json: bool) -> None:
    """Build the artifacts that there are once more, and compare; nothing is executed.

    Raises:
        BundleError: an artifact differs from what weights and calibration make, or there are no artifacts.
    """
    there = [(job[0], job[0].artifact(*job[1:])) for job in jobs if job[0].has_artifact(*job[1:])]
    if not there:
        raise BundleError("no such artifact exists to verify.", "Make it first: leave --verify out.")
    for bundle, entry in there:
        check_artifact(bundle, entry)
    names = [f"{bundle.spec.name}/{entry.file}" for bundle, entry in there]
    print(json.dumps(names) if as_json else f"as weights and calibration make them: {', '.join(names)}")


def _all_names() -> list[str]:
    names = sorted(path.parent.name for path in ZOO.glob(f"*/{MANIFEST_FILE}"))
    if not names:
        raise BundleError(
            "the zoo is empty and no policy was named.", "Train one: quarl train --task navigation --policy I"
        )
    return names


def _convert(jobs: Sequence[Job], done: list[Converted], options: Options) -> None:
    """Make these artifacts; each is in ``done`` as soon as it is finished."""
    if not jobs:
        return
    console = Console(stderr=True)
    columns = TextColumn("converting {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs))

        def advance(converted: Converted) -> None:
            done.append(converted)
            progress.update(task, advance=1, description=f"{converted.policy}/{converted.entry.file}")

        ranges = None if options.ranges is None else Ranges(options.ranges)
        # What keeps the return is accepted, however often it acts otherwise.
        convert_each(jobs, advance, accept=options.accept or options.bits == AUTO, ranges=ranges)


def _as_json(converted: Converted) -> dict[str, object]:
    return {
        "policy": converted.policy,
        **entry_values(converted.entry),
        "ratio_to_fp32": converted.entry.record.size / converted.fp32_bytes,
    }


def _table(done: list[Converted]) -> str:
    """Artifact, size and parity, one line each, then the schemes as footnotes."""
    head = ["policy", "artifact", "bytes", "of fp32", "agreement", "largest error in each runtime"]
    rows = []
    for converted in done:
        entry = converted.entry
        agreement, ratio = f"{entry.fp32_agreement:.1%}", f"{entry.record.size / converted.fp32_bytes:.3f}"
        errors = ", ".join(f"{name.value} {_error(entry, name)}" for name in entry.runtimes)
        rows.append([converted.policy, entry.file, f"{entry.record.size:,}", ratio, agreement, errors])
    lines = columns([head, *rows], right={2, 3, 4})
    notes: dict[str, None] = {}
    for entry in (converted.entry for converted in done):
        notes[f"{entry.precision.value}: {entry.scheme}."] = None
        notes[f"  {entry.format.value}: {entry.execution}."] = None
    return "\n".join([*lines, "", *notes])


def _notes(converted: Converted, ladder: Ladder | None) -> Iterator[str]:
    """Return what is suspicious about an artifact, a line each; and what is known of the return that it loses."""
    entry, policy = converted.entry, converted.policy
    for warning in entry.warnings:
        yield f"warning: {policy}: {warning}"
    rung = None if ladder is None else ladder.rung(entry.precision)
    if rung is not None and (loss := rung.fresh or rung.loss) is not None:
        yield f"{policy}: {entry.precision.value} loses {loss} of the return."
    if entry.fp32_agreement < FLOOR:
        yield f"warning: {policy}/{entry.file}: only {entry.fp32_agreement:.1%} agreement with the policy; accepted."


def _way_to_try(name: RuntimeName) -> str:
    if name is RuntimeName.TFLITE_RUNTIME:
        return f"It needs Python 3.11: install it in another environment and name that one's Python in {TFLITE_PYTHON}."
    return way_to_install(name)


def _error(entry: ArtifactEntry, name: RuntimeName) -> str:
    parity = entry.runtimes[name]
    if parity.max_error_steps is None:
        return f"{parity.max_error:.1e}"
    return f"{parity.max_error_steps:g} steps"


def _calibration(bundle: Bundle) -> CalibrationReport:
    network = integers(bundle, Precision.INT8)
    return inspect(bundle.spec, bundle.weights(), network, bundle.calibration(), bundle.golden().observations)


def _calibration_table(bundle: Bundle, report: CalibrationReport) -> str:
    head = ["tensor", "lowest", "highest", "int8 step", "golden values cut", "idle units"]
    rows = [
        [
            item.name,
            f"{item.low:.4g}",
            f"{item.high:.4g}",
            f"{item.step:.3g}",
            f"{item.clipped:.3%}",
            f"{item.idle:.1%}",
        ]
        for item in report.ranges
    ]
    title = f"policy {bundle.spec.name}: activation ranges over {report.rows} recorded observations"
    return "\n".join(["", title, *columns([head, *rows], right={1, 2, 3, 4, 5})])


main = cli.of("convert")

if __name__ == "__main__":
    raise SystemExit(main())
