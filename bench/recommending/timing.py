"""Timing the recommender's candidates on a target: which runtimes it can have, one deployment, turns, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quarl.bench.device_session.questions import Served, ask_latency, ask_memory
from quarl.bench.report.document import Kind, Report, new_run
from quarl.policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from quarl.bench.command_line import Progress
    from quarl.bench.device_session.access import Device
    from quarl.device.deploy.probe import TargetFacts
    from quarl.policy.bundle import Bundle

WARMUP = 200
DEPLOYMENT_WAIT_S = 60.0

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
