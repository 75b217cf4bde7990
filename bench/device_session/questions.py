"""Questions put to a serving agent, and its answers as reports.

The agent speaks the protocol of :mod:`device.agent.protocol`; through which wire it is reached is not asked here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quarl.bench.command_line import Progress
from quarl.bench.device_session.host_flights import MEANS, Flights, fly_on_host
from quarl.bench.report.document import MAX_SAMPLES, Artifact, Kind, Latency, Memory, Report, Success, Transport, Where
from quarl.device.agent.measure import MAX_SAMPLES as BLOCK_RUNS
from quarl.device.agent.measure import Statistics, thin

if TYPE_CHECKING:
    from quarl.policy.spec import PolicySpec

BLOCKS = 4
"""Contestants take turns this often, so that a machine that changes its pace changes it for all of them."""


class Agent(Protocol):
    """An object that answers requests of the protocol."""

    def request(self, op: str, *, progress: Progress | None = None, **fields: Any) -> dict[str, Any]:
        """Return one request, one reply."""


@dataclass(frozen=True)
class Served:
    """An agent that has loaded and verified an artifact.

    Attributes:
        agent: to ask.
        target: as the user named the device.
        transport: how it is reached.
        device: as the agent describes it (DEVICE).
        loaded: what it serves (LOADED).
    """

    agent: Agent
    target: str
    transport: Transport
    device: Mapping[str, Any]
    loaded: Mapping[str, Any]

    @classmethod
    def load(cls, agent: Agent, target: str, transport: Transport, precision: str, runtime: str | None) -> Served:
        """Say hello and load; the agent verifies hash and golden vectors before it answers."""
        device = agent.request("hello")["device"]
        loaded = agent.request("load", precision=precision, runtime=runtime)["loaded"]
        return cls(agent, target, transport, device, loaded)

    @property
    def name(self) -> str:
        """Name for a progress bar: policy and precision."""
        return f"{self.loaded['policy']} {self.loaded['precision']}"

    def time_block(self, warmup: int, runs: int, path: str) -> dict[str, Any]:
        """Time some runs: the reply of ``latency``."""
        return self.agent.request("latency", warmup=warmup, runs=runs, path=path)

    def report(self, kind: Kind, run: str, **measured: Any) -> Report:
        """Return a report on what is served."""
        where = {"target": self.target, "transport": self.transport, "device": self.device}
        return report_on(self.loaded, kind=kind, run=run, **where, **measured)


def report_on(loaded: Mapping[str, Any], **measured: Any) -> Report:
    """Return a report on an artifact as the agent says what it has loaded (LOADED)."""
    named = {name: loaded[name] for name in ("policy", "precision", "runtime", "runtime_version", "threads")}
    artifact = Artifact(loaded["file"], loaded["sha256"], loaded["bytes"], loaded["execution"])
    return Report(**named, artifact=artifact, **measured)


class TimedInTurns(Protocol):
    """Something whose latency is measured in turn with others: an artifact on the device, or a framework's call."""

    def time_block(self, warmup: int, runs: int, path: str) -> dict[str, Any]:
        """Time some runs; the reply has the keys of the protocol's ``latency``."""

    def report(self, kind: Kind, run: str, **measured: Any) -> Report:
        """Return a report about what was timed."""


def ask_latency(
    contestants: Sequence[TimedInTurns],
    run: str,
    runs: int,
    warmup: int,
    path: str,
    progress: Progress = lambda done, total: None,
) -> list[Report]:
    """Time the contestants in turns, A B A B, and return a report of each.

    Every block is small enough that the agent sends all of its times, so that the percentiles are those of all runs.

    Args:
        contestants: at least one.
        run: id that the reports share.
        runs: timed runs of each contestant, over all blocks.
        warmup: untimed runs before each block.
        path: ``runtime`` or ``decide``.
        progress: called with (blocks done, blocks).
    """
    sizes = block_sizes(runs)
    replies: list[list[dict[str, Any]]] = [[] for _ in contestants]
    total = len(sizes) * len(contestants)
    for turn, size in enumerate(sizes):
        for index, contestant in enumerate(contestants):
            replies[index].append(contestant.time_block(warmup, size, path))
            progress(turn * len(contestants) + index + 1, total)
    return [
        contestant.report(Kind.LATENCY, run, **merge_latency(answers, warmup))
        for contestant, answers in zip(contestants, replies, strict=True)
    ]


def block_sizes(runs: int) -> list[int]:
    """Return ``runs`` in blocks of nearly equal size: BLOCKS of them, or as many as keep a block below BLOCK_RUNS."""
    blocks = min(runs, max(BLOCKS, -(-runs // BLOCK_RUNS)))
    return [runs // blocks + (index < runs % blocks) for index in range(blocks)]


def merge_latency(replies: Sequence[Mapping[str, Any]], warmup: int) -> dict[str, Any]:
    """Return the report's part that blocks of one contestant make together."""
    samples = sorted(value for reply in replies for value in reply["samples_ns"])
    if len(samples) != sum(reply["runs"] for reply in replies):
        raise ValueError("a block's reply lacks some of its samples; the blocks cannot be joined.")
    statistics = Statistics.of(samples)
    reasons = dict.fromkeys(reason for reply in replies for reason in reply["invalid_reasons"])
    latency = Latency(
        path=replies[0]["path"],
        warmup=warmup,
        runs=statistics.runs,
        cold_first_ns=replies[0]["cold_first_ns"],
        load_ns=replies[0]["load_ns"],
        percentiles_ns=statistics.percentiles,
        withheld=statistics.percentiles_withheld,
        p50_interval_ns=statistics.p50_interval,
        mean_ns=round(statistics.mean, 1),
        std_ns=round(statistics.std, 1),
        min_ns=statistics.min,
        max_ns=statistics.max,
        block_p50_ns=tuple(Statistics.of(sorted(reply["samples_ns"])).percentiles.get("p50", 0) for reply in replies),
        samples_ns=tuple(thin(samples, MAX_SAMPLES)),
        timer_overhead_ns=replies[0]["timer"]["overhead_ns"],
        major_page_faults=sum(reply["page_faults"]["major"] for reply in replies),
        preempted=sum(reply["context_switches"]["involuntary"] for reply in replies),
    )
    return {
        "latency": latency,
        "conditions": {"before": replies[0]["before"], "after": replies[-1]["after"]},
        "valid": not reasons,
        "invalid_reasons": tuple(reasons),
        "notes": tuple(dict.fromkeys(note for reply in replies for note in reply["notes"])),
    }


def ask_memory(served: Served, run: str, runs: int = 100) -> Report:
    """Resident memory; to be asked of a fresh agent, before anything else was loaded in its process."""
    reply = served.agent.request("memory", runs=runs)["memory"]
    stations = ("baseline", "before_load", "after_load", "running_peak", "lifetime_peak", "clean")
    memory = Memory(running=reply["now"], **{name: reply[name] for name in stations})
    notes = () if reply["peak_reset"] else ("this kernel does not reset the peak, so that it includes loading",)
    reasons = () if reply["clean"] else ("another artifact was loaded before in the same process",)
    return served.report(
        Kind.MEMORY, run, memory=memory, notes=notes, valid=not reasons, invalid_reasons=tuple(reasons)
    )


def ask_success(served: Served, run: str, flights: Flights, progress: Progress = lambda done, total: None) -> Report:
    """Fly on the device: simulator and policy both run there."""
    fields = {
        "preset": flights.preset,
        "episodes": flights.episodes,
        "seed": flights.seed,
        "settings": flights.settings_dict,
    }
    reply = served.agent.request("episodes", progress=progress, **fields)
    low, high = reply["success"]["interval"]
    success = Success(
        where=Where.DEVICE,
        preset=flights.preset,
        settings=flights.settings_dict,
        task=reply.get("task"),  # the device's own: its simulator may be of another version than this one
        episodes=reply["episodes"],
        seed=reply["seed"],
        successes=reply["success"]["count"],
        rate=reply["success"]["rate"],
        low=low,
        high=high,
        outcomes=reply["success_bits"],
        causes=reply["causes"],
        decide_p50_ns=reply["decision_ns"]["percentiles"].get("p50"),
        **{name: reply["mean_of_successes"][name] for name in MEANS},
    )
    # Throttling changes how fast the episodes are flown, not how they end: it is said, and the success stays valid.
    conditions = {stage: {"throttled": reply[f"throttled_{stage}"]} for stage in ("before", "after")}
    notes = tuple(reply["invalid_reasons"])
    return served.report(Kind.SUCCESS, run, success=success, conditions=conditions, notes=notes)


def ask_success_in_loop(
    served: Served,
    run: str,
    flights: Flights,
    progress: Progress = lambda done, total: None,
    spec: PolicySpec | None = None,
) -> Report:
    """Hardware in the loop: the host simulates, the device decides on each observation and times it.

    ``spec``: of the policy that is served, which says what it is shown; None: range rays. What it remembers of each
    drone is kept here, and goes to the device with every observation.
    """
    import numpy as np

    from quarl.policy.history import remembers
    from quarl.policy.pilot import Pilot

    times: list[int] = []

    def decide(observations: Any) -> Any:
        reply = served.agent.request("act", observations=observations.tolist(), outputs=False)
        times.extend(reply["inference_ns"])
        return np.asarray(reply["actions"])

    pilot = Pilot(spec, results_of(served, times)) if spec is not None and remembers(spec.observation) else decide
    success = fly_on_host(pilot, flights, Where.LOOP, progress, spec)
    median = Statistics.of(sorted(times)).percentiles.get("p50")
    return served.report(Kind.SUCCESS, run, success=dataclasses.replace(success, decide_p50_ns=median))


def results_of(served: Served, times: list[int]) -> Callable[[Any], Any]:
    """Return what is served, as a function of raw observations (n, size) to its outputs and next states, float32 (n,
    …).

    ``times``: is extended by the device's own time of each decision, in nanoseconds.
    """
    import numpy as np

    def results(observations: Any) -> Any:
        reply = served.agent.request("act", observations=observations.tolist())
        times.extend(reply["inference_ns"])
        states = reply.get("states") or np.zeros((len(observations), 0))
        return np.concatenate([np.asarray(reply["outputs"]), np.asarray(states)], axis=1).astype(np.float32)

    return results
