"""Timing the recommender's candidates on a target: which runtimes it can have, one deployment, turns, and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.command_line import BenchError, Progress, progress_bar, say
from bench.measuring.questions import ask_memory, block_sizes, merged_latency
from bench.report.document import Kind
from device.agent.runtimes import PREFERENCE
from policy.spec import Precision, RuntimeName

if TYPE_CHECKING:
    from bench.measuring.access import Device
    from bench.report.document import Report
    from device.host.probe import TargetFacts
    from policy.bundle import Bundle

AGENT_BYTES = 64_000_000  # resident of an agent with the largest runtime (onnxruntime, 57 MB), rounded up
COPIES_OF_ARTIFACT = 3  # file, weights repacked by the runtime, and what fp16 is widened to
SHARE_OF_MEMORY = 0.5  # of what the target has available is taken for agents that are timed in turns
DEPLOYMENT_WAIT_S = 60.0
PROCESSES = 2
"""The turns are shared out over so many agents of a candidate, one after the other: where a process' memory happens to
lie makes it some per cent faster or slower for as long as it lives, which belongs to the spread of the measurement."""

Pair = tuple[Precision, RuntimeName]


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        preset: on which the policy is judged; "" where the task has none.
        episodes, seed: greedy episodes of each artifact, the same for all.
        runs, warmup: decisions timed of each candidate, and before each turn.
        path: ``runtime`` or ``decide``, as in bench/latency.py.
        runtimes: to consider, in order of preference.
    """

    preset: str
    episodes: int
    seed: int
    runs: int
    warmup: int
    path: str
    runtimes: tuple[RuntimeName, ...] = PREFERENCE


@dataclass
class Timed:
    """What the target answered."""

    latency: dict[Pair, Report] = field(default_factory=dict)
    memory: dict[Pair, Report] = field(default_factory=dict)
    groups: int = 0
    left: str = ""


def runtimes_of(facts: TargetFacts, wanted: Sequence[RuntimeName]) -> tuple[list[RuntimeName], dict[RuntimeName, str]]:
    """Those of the runtimes that one interpreter of the target has wheels for, and why not the others.

    Raises:
        UnsupportedDeviceError: it has none for any.
    """
    from device.host.errors import UnsupportedDeviceError
    from device.host.wheels import select

    kept: list[RuntimeName] = []
    refused: dict[RuntimeName, UnsupportedDeviceError] = {}
    for runtime in wanted:
        try:
            select(facts, [*kept, runtime])
            kept.append(runtime)
        except UnsupportedDeviceError as error:
            refused[runtime] = error
    if not kept:
        raise next(iter(refused.values()))
    return kept, {runtime: error.message for runtime, error in refused.items()}


def time_on_target(device: Device, copy: Bundle, facts: TargetFacts, pairs: Sequence[Pair], asked: Asked) -> Timed:
    """Deploy the candidates, time them in turns, and let serve again what served before."""
    from bench.measuring.measurements import new_run

    run, timed = new_run(), Timed()
    began = time.monotonic()
    say(f"{copy.spec.name}: deploying {len(pairs)} candidates to {device.name}, timing {asked.runs:,} runs of each …")
    with deployed(device, copy, pairs, timed):
        groups = grouped(pairs, {p: copy.artifact(p[0], p[1].artifact_format).record.size for p in pairs}, facts)
        timed.groups = len(groups)
        for group in groups:
            with progress_bar(f"timing {copy.spec.name}") as progress:
                time_group(device, copy.spec.name, group, run, asked, timed, progress)
    say(f"  {time.monotonic() - began:.1f} s; {timed.left}")
    return timed


def time_group(
    device: Device, policy: str, group: Sequence[Pair], run: str, asked: Asked, timed: Timed, progress: Progress
) -> None:
    """Time candidates in turns, A B A B, each turn's runs being a part of all; see :data:`PROCESSES`."""
    sizes = block_sizes(asked.runs)
    replies: dict[Pair, list[dict[str, Any]]] = {pair: [] for pair in group}
    for process in range(PROCESSES):
        with ExitStack() as stack:
            serving = [stack.enter_context(device.serving(policy, *pair)) for pair in group]
            if process == 0:  # memory first: an agent's is clean only before its first timing
                timed.memory.update(
                    (pair, ask_memory(served, run)) for pair, served in zip(group, serving, strict=True)
                )
            for size in sizes[process::PROCESSES]:
                for pair, served in zip(group, serving, strict=True):
                    replies[pair].append(served.time_block(asked.warmup, size, asked.path))
                    progress(sum(map(len, replies.values())), len(sizes) * len(group))
            if process == PROCESSES - 1:
                for pair, served in zip(group, serving, strict=True):
                    merged = merged_latency(replies[pair], asked.warmup)
                    timed.latency[pair] = served.report(Kind.LATENCY, run, **merged)


@contextmanager
def deployed(device: Device, copy: Bundle, pairs: Sequence[Pair], timed: Timed) -> Iterator[None]:
    """The candidates as the current release of the policy; the one that served before serves again at the end."""
    from device.host.deploy import deploy
    from device.host.progress import progress_bars
    from device.host.releases import rollback

    precisions = list(dict.fromkeys(precision for precision, _ in pairs))
    runtimes = list(dict.fromkeys(runtime for _, runtime in pairs))
    with progress_bars() as tell:
        done = deploy(device.connection, copy, precisions, runtimes, wait_s=DEPLOYMENT_WAIT_S, progress=tell)
    timed.left = f"release {done.release} of {copy.spec.name} serves on {device.name}; none did before"
    try:
        yield
    finally:
        if done.previous is not None and done.previous != done.release:
            rollback(device.connection, copy.spec.name, done.previous, wait_s=DEPLOYMENT_WAIT_S)
        if done.previous is not None:
            timed.left = f"release {done.previous} of {copy.spec.name} serves on {device.name}, as before"


def refuse_emulated(device: Device, facts: TargetFacts) -> None:
    """A deadline cannot be judged by an emulator's times; asked before anything is converted or deployed.

    Raises:
        BenchError: the target is one.
    """
    from device.host.probe import is_emulated

    if is_emulated(device.connection, facts):
        raise BenchError(
            f"{device.name} is emulated: how long a decision takes there says nothing about a real device.",
            "--target pi@raspberrypi, or --target local for this machine",
        )


def grouped(pairs: Sequence[Pair], sizes: dict[Pair, int], facts: TargetFacts) -> list[list[Pair]]:
    """The candidates in groups whose agents fit together into half of the target's available memory.

    All are in one group wherever they fit: what is timed in turns meets the same machine.
    """
    room = SHARE_OF_MEMORY * facts.memory_available_bytes
    groups: list[list[Pair]] = []
    used = 0.0
    for pair in pairs:
        need = AGENT_BYTES + COPIES_OF_ARTIFACT * sizes[pair]
        if not groups or used + need > room:
            groups.append([])
            used = 0.0
        groups[-1].append(pair)
        used += need
    return groups
