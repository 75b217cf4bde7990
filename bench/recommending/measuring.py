"""What ``python -m bench.recommend`` measures: artifacts in a temporary copy, latency on the target, episodes here.

The bundle is not touched: it is converted in a copy, through the parity gate. The copy's artifacts are deployed to the
target, timed in turns, and the release that served there before serves again afterwards. Then each artifact plays the
same greedy episodes on this machine, in the runtime that the target would use.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.command_line import BenchError, UsageError, progress_bar, say
from bench.recommending.deciding import Candidate, Quality
from bench.recommending.timing import Asked, Pair, refuse_emulated, runtimes_of, time_on_target
from bench.report.intervals import Estimate
from policy.spec import ArtifactFormat, Precision, RuntimeName

if TYPE_CHECKING:
    from bench.report.document import Report
    from policy.bundle import Bundle
    from policy.manifest import ArtifactEntry
    from train.suites.task import Evaluation, Task

FULL = (Precision.FP32, Precision.FP16, Precision.INT8)
FEWER = (Precision.INT4, Precision.INT3, Precision.INT2)


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        latency, memory: reports of each candidate on the target.
        played: of each artifact; fewer than 8 bits only in the first runtime, unless trained so.
        artifacts: as they stand in the copy's manifest.
        excluded: runtimes that the target cannot have, with the reason.
        groups: candidates were timed in so many groups, one after another; 1 where all fit into memory together.
        left: what stays on the target, in words.
        reference: whose return the others keep a share of: fp32 in the first runtime, or the width of the quantizers
            that the policy was trained with, for then its float weights alone are not what was trained.
    """

    latency: dict[Pair, Report]
    memory: dict[Pair, Report]
    played: dict[Pair, Evaluation]
    artifacts: dict[Pair, ArtifactEntry]
    excluded: dict[RuntimeName, str]
    groups: int
    left: str
    reference: Pair

    @property
    def has_success(self) -> bool:
        """Whether the task says that an episode succeeded; else quality is the share of the reference's return."""
        return self.played[self.reference].success is not None

    def quality(self, pair: Pair) -> Quality:
        """Of one artifact in one runtime.

        Raises:
            BenchError: the reference's mean return is 0, so that there is no share of it.
        """
        played, reference = self.played[pair], self.played[self.reference]
        if played.success is not None and played.interval is not None:
            return Quality(played.success, *played.interval)
        return return_kept(played.returns, reference.returns)

    def candidates(self) -> list[Candidate]:
        """What there is to choose from."""
        return [self._candidate(pair) for pair in self.latency]

    def _candidate(self, pair: Pair) -> Candidate:
        latency, memory = self.latency[pair].latency, self.memory[pair].memory
        assert latency is not None
        return Candidate(
            precision=pair[0].value,
            runtime=pair[1].value,
            quality=self.quality(pair),
            p50_ns=latency.percentiles_ns["p50"],
            p99_ns=latency.percentiles_ns["p99"],
            turns_ns=tuple(latency.block_p50_ns),
            artifact_bytes=self.artifacts[pair].record.size,
            resident_bytes=memory.resident if memory is not None else None,
        )


def return_kept(returns: Sequence[float], reference: Sequence[float]) -> Quality:
    """1 − E, with QuaRL's relative error E = (F − Q) / |F| of the mean returns on the same episodes.

    With negative returns too, more is better: −110 instead of −100 keeps 0.9.

    Raises:
        BenchError: F is 0.
    """
    error = Estimate.of_relative_error(returns, reference)
    if error is None:
        raise BenchError(
            f"the reference's mean return over {len(reference)} episodes is 0: there is no share of it to keep.",
            "another --seed, or more --episodes",
        )
    low, high = (None if end is None else 1.0 - end / 100.0 for end in (error.high, error.low))
    return Quality(1.0 - error.value / 100.0, low, high)


def measure(bundle: Bundle, task: Task, asked: Asked, target: str) -> Measured:
    """Convert, time and play.

    Raises:
        HostError: the target cannot be reached, or none of the runtimes runs there.
        BenchError: the target is emulated.
        PolicyError: an artifact fails the parity gate.
    """
    from bench.measuring.access import connected
    from device.host.probe import probe
    from policy.bundle import Bundle
    from policy.bundle_writer import copy_bundle

    name = bundle.spec.name
    with tempfile.TemporaryDirectory(prefix="recommend-") as folder:
        with connected(target) as device:
            facts = probe(device.connection)
            refuse_emulated(device, facts)
            runtimes, excluded = runtimes_of(facts, asked.runtimes)
            say(f"{target}: {facts.summary()}; runtimes {', '.join(runtime.value for runtime in runtimes)}")
            copy = copy_bundle(bundle, Path(folder) / name, origin="zoo")
            convert_copy(copy, runtimes)
            copy = Bundle.load(copy.path)
            timed = time_on_target(device, copy, facts, candidate_pairs(bundle, runtimes), asked)
        pairs = played_pairs(bundle, runtimes)
        played = {pair: play(copy, task, pair, asked) for pair in pairs}
        artifacts = {pair: copy.artifact(pair[0], pair[1].artifact_format) for pair in pairs}
    reference = reference_precision(bundle), runtimes[0]
    return Measured(timed.latency, timed.memory, played, artifacts, excluded, timed.groups, timed.left, reference)


def reference_precision(bundle: Bundle) -> Precision:
    """fp32, or the width of the quantizers that the policy was trained with: what computes what was trained."""
    trained = bundle.spec.quantization
    return Precision.FP32 if trained is None else Precision.from_bits(trained.bits)


def trained_width(bundle: Bundle) -> tuple[Precision, ...]:
    """The precision below 8 bits that the policy was trained for, if any."""
    reference = reference_precision(bundle)
    return (reference,) if reference.bits < Precision.INT8.bits else ()


def candidate_pairs(bundle: Bundle, runtimes: Sequence[RuntimeName]) -> list[Pair]:
    """What can be chosen: fp32, fp16, int8 and the trained width, in every runtime."""
    return [(precision, runtime) for precision in (*FULL, *trained_width(bundle)) for runtime in runtimes]


def played_pairs(bundle: Bundle, runtimes: Sequence[RuntimeName]) -> list[Pair]:
    """What plays: the candidates, and the other widths below 8 bits in the first runtime."""
    fewer = [precision for precision in FEWER if precision not in trained_width(bundle)]
    return [*candidate_pairs(bundle, runtimes), *((precision, runtimes[0]) for precision in fewer)]


def convert_copy(copy: Bundle, runtimes: Sequence[RuntimeName]) -> None:
    """Make every artifact that is timed or played, each verified in every runtime of this machine."""
    from convert.pipeline import convert_each

    pairs = played_pairs(copy, runtimes)
    jobs = list(dict.fromkeys((precision, runtime.artifact_format) for precision, runtime in pairs))
    words = ", ".join(dict.fromkeys(precision.value for precision, _ in jobs))
    say(f"{copy.spec.name}: converting a copy to {words} ({' and '.join(_formats(jobs))}) …")
    began, done = time.monotonic(), 0
    with progress_bar("converting") as progress:

        def advance(_: object) -> None:
            nonlocal done
            done += 1
            progress(done, len(jobs))

        convert_each([(copy, precision, kind) for precision, kind in jobs], advance)
    say(f"  {len(jobs)} artifacts passed the parity gate in {time.monotonic() - began:.1f} s")


def _formats(jobs: Sequence[tuple[Precision, ArtifactFormat]]) -> list[str]:
    return sorted({kind.value for _, kind in jobs})


def play(copy: Bundle, task: Task, pair: Pair, asked: Asked) -> Evaluation:
    """One artifact's greedy episodes, in a runtime's own process on this machine."""
    from train.runs.artifact import ArtifactPolicy, find_artifact

    precision, runtime = pair
    entry = find_artifact(copy, copy.spec.name, precision, runtime)
    began = time.monotonic()
    with ArtifactPolicy(copy.spec, copy.artifact_data(entry), runtime) as artifact:
        played = task.evaluate(artifact.decide, asked.episodes, asked.seed, asked.preset)
    reached = f"return {played.mean_return:.2f}" if played.success is None else f"success {100 * played.success:.1f} %"
    say(
        f"  {precision.value} with {runtime.value}: {reached}, {asked.episodes} episodes in "
        f"{time.monotonic() - began:.1f} s"
    )
    return played


def chosen_preset(task: Task, preset: str | None) -> str:
    """The preset asked for, or the task's first.

    Raises:
        UsageError: the task has none, or not this one.
    """
    if preset is None:
        return task.presets[0]
    if task.presets == ("",):
        raise UsageError(f"--preset {preset} means nothing to the task {task.name}.", "the command without --preset")
    from airlearning_envs.config import PRESETS

    if preset not in PRESETS:
        raise UsageError(
            f"--preset {preset} is not known; allowed are {', '.join(PRESETS)}.", f"--preset {task.presets[0]}"
        )
    return preset
