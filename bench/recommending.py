"""What ``quarl recommend`` measures: the ladder here; on the target the candidates' latency and memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl.bench.command_line import BenchError, progress_bar, say
from quarl.bench.device_session.questions import Served, ask_latency, ask_memory
from quarl.bench.report.document import Kind, Report, new_run
from quarl.policy.spec import Precision, RuntimeName, executions

if TYPE_CHECKING:
    from quarl.bench.command_line import Progress
    from quarl.bench.device_session.access import Device
    from quarl.convert.ladder import Question
    from quarl.device.deploy.probe import TargetFacts
    from quarl.policy.bundle import Bundle
    from quarl.policy.ladder import Ladder

WARMUP = 200
DEPLOYMENT_WAIT_S = 60.0
SAME_SIZE = 1.01  # a file format's overhead, or a page more of memory, decides nothing

Pair = tuple[Precision, RuntimeName]


def runtimes_of(facts: TargetFacts, wanted: Sequence[RuntimeName]) -> tuple[list[RuntimeName], dict[RuntimeName, str]]:
    """Split runtimes into those that this machine checks artifacts in and one interpreter of the target has wheels for,
    and the others with the reason.

    Raises:
        UnsupportedDeviceError: it has none for any.
    """
    from quarl.convert.executor import available
    from quarl.device.deploy.errors import UnsupportedDeviceError
    from quarl.device.deploy.wheels import select

    supported_runtimes: list[RuntimeName] = []
    refused: dict[RuntimeName, UnsupportedDeviceError] = {}
    for runtime in wanted:
        try:
            if runtime not in available():
                raise UnsupportedDeviceError(
                    f"{runtime.value} is not installed on this machine, which checks the artifacts in it. Type make "
                    "setup, or choose another --runtime."
                )
            select(facts, [*supported_runtimes, runtime])
            supported_runtimes.append(runtime)
        except UnsupportedDeviceError as error:
            refused[runtime] = error
    if not supported_runtimes:
        raise next(iter(refused.values()))
    return supported_runtimes, {runtime: error.message for runtime, error in refused.items()}


@dataclass
class TimedInFreshProcesses:
    """An artifact that every turn of a measurement asks of a process of its own.

    Where a process' memory happens to lie makes it some per cent faster or slower for as long as it lives: that belongs
    to the spread of the measurement. And only one at a time takes the device's memory.
    """

    device: Device
    policy: str
    pair: Pair
    run: str
    served: Served = field(init=False)
    memory: Report | None = None

    def time_block(self, warmup: int, runs: int, path: str) -> dict[str, Any]:
        """Time some runs; the first time the memory is asked before, of which only a fresh process tells."""
        with self.device.serving(self.policy, *self.pair) as self.served:
            self.memory = self.memory or ask_memory(self.served, self.run)
            return self.served.time_block(warmup, runs, path)

    def report(self, kind: Kind, run: str, **measured: Any) -> Report:
        """Return a report on what was served."""
        return self.served.report(kind, run, **measured)


def time_in_turns(
    device: Device, policy: str, pairs: Sequence[Pair], runs: int, path: str, progress: Progress
) -> dict[Pair, tuple[Report, Report]]:
    """Memory and latency of each deployed candidate, timed in turns, A B A B."""
    run = new_run()
    served = [TimedInFreshProcesses(device, policy, pair, run) for pair in pairs]
    latency = ask_latency(served, run, runs, WARMUP, path, progress)
    return {
        contestant.pair: (contestant.memory, times)
        for contestant, times in zip(served, latency, strict=True)
        if contestant.memory
    }


@contextmanager
def deploy_candidates(device: Device, copy: Bundle, pairs: Sequence[Pair]) -> Iterator[str]:
    """Make the candidates the current release of the policy; the one that served before serves again at the end.

    Yields:
        What stays on the target, in words.
    """
    from quarl.device.deploy.deploy import deploy
    from quarl.device.deploy.progress import progress_bars
    from quarl.device.deploy.releases import rollback

    policy = copy.spec.name
    precisions, runtimes = (list(dict.fromkeys(column)) for column in zip(*pairs, strict=True))
    with progress_bars() as tell:
        done = deploy(device.connection, copy, precisions, runtimes, wait_s=DEPLOYMENT_WAIT_S, progress=tell)
    if done.previous is None:
        yield f"release {done.release} of {policy} serves on {device.name}; none did before"
        return
    try:
        yield f"release {done.previous} of {policy} serves on {device.name}, as before"
    finally:
        if done.previous != done.release:
            rollback(device.connection, policy, done.previous, wait_s=DEPLOYMENT_WAIT_S)


@dataclass(frozen=True)
class Candidate:
    """A precision in a runtime that keeps the return, and how it served on the target.

    Attributes:
        precision, runtime: ``int8``, ``litert`` and the like.
        file, bytes, sha256, execution: of the artifact; how it executes, in words.
        p50_ns, p99_ns: of one decision.
        turns_ns: p50 of each turn of the measurement.
        resident_bytes: of the agent's process while serving; None where the device does not say.
        in_time: whether the p99 keeps the deadline.
        valid: whether the times may be relied on.
    """

    precision: str
    runtime: str
    file: str
    bytes: int
    sha256: str
    execution: str
    p50_ns: float
    p99_ns: float
    turns_ns: tuple[float, ...]
    resident_bytes: int | None
    in_time: bool
    valid: bool

    @property
    def name(self) -> str:
        """The artifact in words: ``int8 with litert``."""
        return f"{self.precision} with {self.runtime}"

    def as_fast_as(self, other: Candidate) -> bool:
        """Return whether the turns of the two overlap: the measurement cannot separate them."""
        return max(min(self.turns_ns), min(other.turns_ns)) <= min(max(self.turns_ns), max(other.turns_ns))


def candidate_pairs(ladder: Ladder, runtimes: Sequence[RuntimeName]) -> list[Pair]:
    """Return each precision that keeps the return in each runtime.

    Integers of fewer than 8 bits in the native engine alone: elsewhere they are as large and as fast as int8.
    """
    return [
        (rung.precision, runtime)
        for rung in ladder.rungs
        if ladder.keeps(rung)
        for runtime in runtimes
        if runtime.artifact_format in rung.bytes
        and (rung.precision.bits >= 8 or not rung.precision.is_integer or runtime is RuntimeName.NATIVE)
    ]


def measure(
    bundle: Bundle,
    question: Question,
    target: str,
    runtimes: Sequence[RuntimeName],
    runs: int,
    path: str,
    deadline_ms: float,
) -> tuple[Ladder, list[Candidate], list[Report], dict[str, str], str]:
    """Climb the ladder, and time what keeps the return on the target.

    The bundle is not touched: a temporary copy is converted. Its artifacts become a release of the target, and the one
    that served before serves again afterwards.

    Returns:
        The ladder, the candidates, the target's reports, runtimes that it cannot have with the reason, and what stays
        on it, in words.

    Raises:
        HostError: the target cannot be reached, or none of the runtimes runs there.
        BenchError: the target is emulated, or no runtime executes what keeps the return.
        PolicyError: an artifact fails the parity gate.
    """
    from quarl.bench.device_session.access import connect
    from quarl.convert.ladder import climb, find_ladder
    from quarl.convert.pipeline import convert_each
    from quarl.device.deploy.probe import is_emulated, probe
    from quarl.policy.bundle import Bundle, copy_bundle

    name = bundle.spec.name
    with tempfile.TemporaryDirectory(prefix="recommend-") as folder, connect(target) as device:
        facts = probe(device.connection)
        if is_emulated(device.connection, facts):  # before anything is converted or deployed
            raise BenchError(
                f"{target} is emulated, so that decision times there do not predict those of a real device.",
                "type --target pi@raspberrypi, or --target local for this machine",
                code="emulated_target",
            )
        possible, excluded = runtimes_of(facts, runtimes)
        say(f"{target}: {facts.summary()}; runtimes {', '.join(runtime.value for runtime in possible)}")
        copy = copy_bundle(bundle, Path(folder) / name, origin="zoo")
        ladder = find_ladder(bundle, question) or climb(copy, question, report=lambda doing: say(f"{name}, {doing}"))
        pairs = candidate_pairs(ladder, possible)
        if not pairs:
            raise BenchError(
                f"none of {', '.join(runtime.value for runtime in possible)} executes what keeps the return.",
                "type another --runtime, or a higher --max-loss",
                code="no_candidate",
            )
        # A release holds each of its precisions in each of its runtimes.
        released = executions(*(list(dict.fromkeys(column)) for column in zip(*pairs, strict=True)))
        convert_each([(copy, one, runtime.artifact_format) for one, runtime in dict.fromkeys(released)], accept=True)
        copy = Bundle.load(copy.path)
        say(f"{name}: deploying {len(pairs)} candidates to {device.name}, timing {runs:,} runs of each …")
        with deploy_candidates(device, copy, pairs) as left, progress_bar(f"timing {name}") as progress:
            timed = time_in_turns(device, name, pairs, runs, path, progress)
        candidates = []
        for (precision, runtime), (memory, latency) in timed.items():
            entry, times = copy.artifact(precision, runtime.artifact_format), latency.latency
            assert times is not None
            candidates.append(
                Candidate(
                    precision.value,
                    runtime.value,
                    entry.file,
                    entry.record.size,
                    entry.record.sha256,
                    entry.execution,
                    times.percentiles_ns["p50"],
                    times.percentiles_ns["p99"],
                    tuple(times.block_p50_ns),
                    None if memory.memory is None else memory.memory.resident,
                    times.percentiles_ns["p99"] <= round(deadline_ms * 1e6, 3),
                    latency.valid,
                )
            )
        reports = [report for kind in zip(*timed.values(), strict=True) for report in kind]
        return ladder, candidates, reports, {r.value: reason for r, reason in excluded.items()}, left


def rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, best first: those in time, in the order in which they would be chosen; then the others.

    Chosen is, of those as fast as the fastest, the smallest artifact, then the least memory; what is within 1 % counts
    as the same.
    """
    ranked, left = [], [candidate for candidate in candidates if candidate.in_time]
    while left:
        fastest = min(left, key=lambda one: one.p50_ns)
        as_fast = [one for one in left if one.as_fast_as(fastest)]
        for figure in ("bytes", "resident_bytes"):
            known = [value for one in as_fast if (value := getattr(one, figure)) is not None]
            if len(known) == len(as_fast):
                as_fast = [one for one in as_fast if getattr(one, figure) <= SAME_SIZE * min(known)]
        ranked.append(min(as_fast, key=lambda one: one.p50_ns))
        left.remove(ranked[-1])
    return [*ranked, *sorted((one for one in candidates if not one.in_time), key=lambda one: one.p99_ns)]
