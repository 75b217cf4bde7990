"""What ``quarl recommend`` measures: artifacts in a temporary copy, latency on the target, episodes here.

The bundle is not touched: it is converted in a copy, through the parity gate. The copy's artifacts are deployed to the
target, timed in turns, and the release that served before serves again afterwards. Then each artifact plays the same
greedy episodes on this machine, in the runtime that the target would use.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quarl.bench.command_line import BenchError, UsageError, progress_bar, say
from quarl.bench.recommending.deciding import Demand, DeployableArtifact, PlayedArtifact
from quarl.bench.recommending.timing import Pair, deploy_candidates, runtimes_of, time_in_turns
from quarl.device.agent.runtimes import PREFERENCE
from quarl.policy.spec import Precision, RuntimeName, executions
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from quarl.bench.report.document import Report
    from quarl.policy.bundle import Bundle
    from quarl.train.suites.task import Evaluation, Task

FULL = (Precision.FP32, Precision.FP16, Precision.INT8)
PACKED = (Precision.MIXED, Precision.INT4)  # of which the native engine gains
FEWER = (Precision.INT4, Precision.INT3, Precision.INT2)


@dataclass(frozen=True)
class Question:
    """What is asked: of which bundle, under which limits, on which target.

    Attributes:
        bundle, target: as typed.
        demand: floor and deadline.
        preset: on which the policy is evaluated; "" where the task has none.
        episodes, seed: greedy episodes of each artifact, the same for all.
        runs, path: decisions timed of each candidate, as in bench/latency.py.
        runtimes: to consider, in order of preference; in a verdict by name.
        options: as typed, for the commands in the answer.
    """

    bundle: str
    demand: Demand
    preset: str
    episodes: int
    seed: int
    runs: int
    path: str = "runtime"
    target: str = "local"
    runtimes: tuple[RuntimeName, ...] = PREFERENCE
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured for an answer.

    Attributes:
        candidates: the artifacts that may be chosen, each in a runtime.
        fewer: widths below 8 bits, which only played, in the first runtime.
        reference: has the return that the others keep a share of, in the first runtime: fp32, or int8 where no runtime
            executes that; or the width of the quantizers that the policy was trained with, for then its float weights
            alone are not what was trained.
        has_success: whether quality is the share of episodes that succeed; else of the reference's return.
        reports: the target's reports: memory of each candidate, then latency.
        excluded: runtimes that the target cannot have, with the reason.
        left: what stays on the target, in words.
    """

    candidates: Sequence[DeployableArtifact]
    fewer: Sequence[PlayedArtifact]
    reference: PlayedArtifact
    has_success: bool
    reports: Sequence[Report]
    excluded: Mapping[RuntimeName, str]
    left: str


def measure(bundle: Bundle, task: Task, question: Question) -> Measurements:
    """Convert, time and play.

    Raises:
        HostError: the target cannot be reached, or none of the runtimes runs there.
        BenchError: the target is emulated.
        PolicyError: an artifact fails the parity gate.
    """
    from quarl.bench.device_session.access import connect
    from quarl.device.deploy.probe import is_emulated, probe
    from quarl.policy.bundle import Bundle, copy_bundle

    name = bundle.spec.name
    with tempfile.TemporaryDirectory(prefix="recommend-") as folder:
        with connect(question.target) as device:
            facts = probe(device.connection)
            if is_emulated(device.connection, facts):  # before anything is converted or deployed
                raise BenchError(
                    f"{question.target} is emulated, so that decision times there do not predict those of a real "
                    "device.",
                    "type --target pi@raspberrypi, or --target local for this machine",
                    code="emulated_target",
                )
            runtimes, excluded = runtimes_of(facts, question.runtimes)
            say(f"{question.target}: {facts.summary()}; runtimes {', '.join(runtime.value for runtime in runtimes)}")
            copy = copy_bundle(bundle, Path(folder) / name, origin="zoo")
            pairs, playing = candidate_pairs(bundle, runtimes), select_played_pairs(bundle, runtimes)
            convert_copy(copy, [*select_release_pairs(pairs), *playing])
            copy = Bundle.load(copy.path)
            say(f"{name}: deploying {len(pairs)} candidates to {device.name}, timing {question.runs:,} runs of each …")
            with deploy_candidates(device, copy, pairs) as left, progress_bar(f"timing {name}") as progress:
                timed = time_in_turns(device, name, pairs, question.runs, question.path, progress)
            say(f"  {left}")
        played = {pair: play_episodes(copy, task, pair, question) for pair in playing}
        return summarise(copy, played, timed, excluded, left)


def summarise(
    copy: Bundle,
    played: Mapping[Pair, Evaluation],
    timed: Mapping[Pair, tuple[Report, Report]],
    excluded: Mapping[RuntimeName, str],
    left: str,
) -> Measurements:
    """Combine what the episodes and the target's reports (memory, latency) say of each artifact.

    Raises:
        BenchError: there is no success, and the reference's mean return is 0.
    """
    first = next(iter(played))[1]
    reference = reference_precision(copy), first
    artifacts = {pair: evaluate_artifact(copy, pair, result, played[reference]) for pair, result in played.items()}
    candidates = [
        DeployableArtifact(
            **vars(artifacts[pair]),
            p50_ns=latency.latency.percentiles_ns["p50"],
            p99_ns=latency.latency.percentiles_ns["p99"],
            turns_ns=tuple(latency.latency.block_p50_ns),
            resident_bytes=memory.memory.resident if memory.memory is not None else None,
            valid=latency.valid,
        )
        for pair, (memory, latency) in timed.items()
        if latency.latency is not None
    ]
    return Measurements(
        candidates,
        [result for pair, result in artifacts.items() if pair not in timed],
        artifacts[reference],
        played[reference].success is not None,
        [report for kind in zip(*timed.values(), strict=True) for report in kind],
        excluded,
        left,
    )


def evaluate_artifact(copy: Bundle, pair: Pair, played: Evaluation, reference: Evaluation) -> PlayedArtifact:
    """Return one artifact and its episodes."""
    entry = copy.artifact(pair[0], pair[1].artifact_format)
    if played.success is not None and played.interval is not None:
        quality = Estimate(played.success, *played.interval)
    else:
        quality = compute_return_kept(played.different, reference.different)
    return PlayedArtifact(
        precision=pair[0].value,
        runtime=pair[1].value,
        quality=quality,
        mean_return=Estimate.of_mean(played.different),
        artifact_bytes=entry.record.size,
        file=entry.file,
        sha256=entry.record.sha256,
        execution=entry.execution,
    )


def compute_return_kept(returns: Sequence[float], reference: Sequence[float]) -> Estimate:
    """1 − E, with QuaRL's relative error E = (F − Q) / |F| of the mean returns on the same episodes.

    With negative returns too, more is better: −110 instead of −100 keeps 0.9.

    Raises:
        BenchError: F is 0.
    """
    error = Estimate.of_relative_error(returns, reference)
    if error is None:
        raise BenchError(
            f"the reference's mean return over {len(reference)} episodes is 0, so that no fraction of it can be "
            "computed.",
            "type another --seed, or more --episodes",
            code="zero_reference_return",
        )
    low, high = (None if end is None else 1.0 - end / 100.0 for end in (error.high, error.low))
    return Estimate(1.0 - error.value / 100.0, low, high)


def reference_precision(bundle: Bundle) -> Precision:
    """Return the precision that computes what was trained: fp32, or the width of the quantizers in the training."""
    trained = bundle.spec.quantization
    return Precision.FP32 if trained is None else Precision.from_bits(trained.bits)


def candidate_pairs(bundle: Bundle, runtimes: Sequence[RuntimeName]) -> list[Pair]:
    """Return the pairs to choose from: fp32, fp16, int8 and the width that the policy was trained for, in every
    runtime.

    And fewer bits where they are packed.
    """
    from quarl.convert.opaque import impossible

    runtimes = [runtime for runtime in runtimes if not impossible(bundle.spec, runtime.artifact_format)]
    pairs = executions(dict.fromkeys((*FULL, reference_precision(bundle))), runtimes)
    if RuntimeName.NATIVE in runtimes:
        pairs += [(precision, RuntimeName.NATIVE) for precision in PACKED]
    return list(dict.fromkeys(pairs))


def select_release_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that the release has to hold for these: each of the precisions in each of the runtimes."""
    precisions, runtimes = (dict.fromkeys(column) for column in zip(*pairs, strict=True))
    return executions(precisions, runtimes)


def select_played_pairs(bundle: Bundle, runtimes: Sequence[RuntimeName]) -> list[Pair]:
    """Return the pairs that play: the candidates, and the other widths below 8 bits in the first runtime."""
    return list(dict.fromkeys((*candidate_pairs(bundle, runtimes), *((precision, runtimes[0]) for precision in FEWER))))


def convert_copy(copy: Bundle, pairs: Sequence[Pair]) -> None:
    """Make every artifact that is timed or played, each verified in every runtime of this machine."""
    from quarl.convert.pipeline import convert_each

    jobs = list(dict.fromkeys((precision, runtime.artifact_format) for precision, runtime in pairs))
    words = ", ".join(dict.fromkeys(precision.value for precision, _ in jobs))
    say(f"{copy.spec.name}: converting a copy to {words} …")
    began, done = time.monotonic(), itertools.count(1)
    with progress_bar("converting") as progress:
        convert_each([(copy, *job) for job in jobs], lambda _: progress(next(done), len(jobs)), accept=True)
    say(f"  {len(jobs)} artifacts passed the parity gate in {time.monotonic() - began:.1f} s")


def play_episodes(copy: Bundle, task: Task, pair: Pair, question: Question) -> Evaluation:
    """Return one artifact's greedy episodes, in a runtime's own process on this machine."""
    from quarl.train.runs.artifact import ArtifactPolicy, find_artifact

    precision, runtime = pair
    entry = find_artifact(copy, copy.spec.name, precision, runtime)
    began = time.monotonic()
    with ArtifactPolicy(copy.spec, copy.artifact_data(entry), runtime) as artifact:
        played = task.evaluate(artifact.decide, question.episodes, question.seed, question.preset)
    reached = f"return {played.mean_return:.2f}" if played.success is None else f"success {100 * played.success:.1f} %"
    seconds = time.monotonic() - began
    say(f"  {precision.value} with {runtime.value}: {reached}, {question.episodes} episodes in {seconds:.1f} s")
    return played


def choose_preset(task: Task, preset: str | None) -> str:
    """Return the requested preset, or the task's first.

    Raises:
        UsageError: the task has none, or not this one.
    """
    from quarl.airlearning_envs.config import PRESETS

    first = task.presets[0]
    if preset is None:
        return first
    if not first:
        raise UsageError(
            f"--preset {preset} is not available for the task {task.name}.",
            "leave --preset out",
            code="task_has_no_presets",
        )
    if preset not in PRESETS:
        raise UsageError(f"--preset must be one of {', '.join(PRESETS)}, got {preset}.", f"--preset {first}")
    return preset
