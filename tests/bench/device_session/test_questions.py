"""Asking in turns, joining the answers: with an agent that answers from a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.flights import blind_policy
from quarl.bench.device_session import host_flights
from quarl.bench.device_session.host_flights import Flights, fly_on_host
from quarl.bench.device_session.questions import (
    Served,
    ask_latency,
    ask_memory,
    ask_success,
    ask_success_in_loop,
    block_sizes,
)
from quarl.bench.report.document import Report, Transport, Where
from quarl.device.agent.measure import percentile

Make = Callable[..., Report]
LOADED = {
    "policy": "I",
    "file": "int8.tflite",
    "precision": "int8",
    "bytes": 21_437,
    "sha256": "c" * 64,
    "execution": "int8",
    "runtime": "litert",
    "runtime_version": "2.3.0",
    "threads": 1,
}


@dataclasses.dataclass
class ScriptedAgent:
    """Answers like the agent of :mod:`device.agent.protocol`; ``heard`` is shared to see who was asked when."""

    device: Mapping[str, Any]
    heard: list[tuple[str, str]]
    name: str = "A"
    base_ns: int = 1000
    reasons: tuple[str, ...] = ()
    clean: bool = True
    thinned: bool = False

    def request(self, op: str, *, progress: Any = None, **fields: Any) -> dict[str, Any]:
        self.heard.append((self.name, op))
        return dict(getattr(self, op)(**fields))

    def hello(self) -> dict[str, Any]:
        return {"device": {**self.device, "transport": "ssh"}}

    def load(self, precision: str, runtime: str | None) -> dict[str, Any]:
        return {"loaded": {**LOADED, "precision": precision, "runtime": runtime}}

    def latency(self, warmup: int, runs: int, path: str) -> dict[str, Any]:
        block = len(self.heard)
        samples = sorted(self.base_ns + block * 10 + k % 7 for k in range(runs))
        return {
            "path": path,
            "runs": runs,
            "samples_ns": samples[:-1] if self.thinned else samples,
            "cold_first_ns": 50_000 + block,
            "load_ns": 9_000_000,
            "timer": {"overhead_ns": 40},
            "before": {"load_1min": block},
            "after": {"load_1min": block + 0.5},
            "invalid_reasons": list(self.reasons),
            "notes": ["busy"],
            "page_faults": {"major": 1, "minor": 0},
            "context_switches": {"voluntary": 0, "involuntary": 2},
        }

    def memory(self, runs: int) -> dict[str, Any]:
        sizes = {"baseline": 1, "before_load": 30, "after_load": 40, "now": 41, "running_peak": 45}
        return {"memory": {**sizes, "lifetime_peak": 50, "peak_reset": True, "clean": self.clean}}

    def act(self, observations: list[list[float]], outputs: bool) -> dict[str, Any]:
        actions = blind_policy(np.asarray(observations, np.float32)).tolist()
        return {"actions": actions, "inference_ns": [1500] * len(actions)}


@pytest.fixture
def agent(latency_report: Make) -> ScriptedAgent:
    return ScriptedAgent(latency_report().device, [])


def served(agent: ScriptedAgent, precision: str = "int8") -> Served:
    return Served.load(agent, "pi@raspberrypi", Transport.SSH, precision, "litert")


@pytest.mark.parametrize(
    ("runs", "sizes"),
    [(2000, [500] * 4), (10, [3, 3, 2, 2]), (2, [1, 1]), (10_000, [2000] * 5), (8001, [1601, *[1600] * 4])],
)
def test_blocks(runs: int, sizes: list[int]) -> None:
    assert block_sizes(runs) == sizes
    assert sum(block_sizes(runs)) == runs


def test_contestants_take_turns_and_every_run_counts(agent: ScriptedAgent) -> None:
    other = dataclasses.replace(agent, name="B", base_ns=5000)
    contestants = [served(agent, "fp32"), served(other)]
    agent.heard.clear()
    seen: list[tuple[int, int]] = []
    first, second = ask_latency(
        contestants, "a" * 32, 800, 10, "runtime", lambda done, total: seen.append((done, total))
    )
    assert [name for name, _ in agent.heard] == ["A", "B"] * 4
    assert seen[-1] == (8, 8)
    assert first.latency is not None and second.latency is not None
    assert (first.run, first.precision, second.precision) == ("a" * 32, "fp32", "int8")
    assert first.latency.runs == 800
    assert "p99" in first.latency.percentiles_ns  # 800 runs support it although no block of 200 does
    # blocks of A are asked as 1st, 3rd, 5th and 7th: base + 10, 30, 50, 70, each run plus 0 … 6
    every = sorted(1000 + block * 10 + k % 7 for block in (1, 3, 5, 7) for k in range(200))
    assert first.latency.percentiles_ns["p90"] == percentile(every, 0.9)
    assert first.latency.block_p50_ns == (1013, 1033, 1053, 1073)
    assert (first.latency.min_ns, first.latency.max_ns) == (1010, 1076)
    assert (first.latency.major_page_faults, first.latency.preempted) == (4, 8)
    assert first.conditions == {"before": {"load_1min": 1}, "after": {"load_1min": 7.5}}
    assert first.notes == ("busy",)
    assert Report.from_json(first.to_json()) == first


def test_one_throttled_block_makes_the_whole_invalid(agent: ScriptedAgent) -> None:
    throttled = dataclasses.replace(agent, reasons=("throttled",))
    (report,) = ask_latency([served(throttled)], "a" * 32, 40, 0, "runtime")
    assert not report.valid
    assert report.invalid_reasons == ("throttled",)


def test_a_block_without_all_of_its_times_is_refused(agent: ScriptedAgent) -> None:
    with pytest.raises(ValueError, match="block's reply lacks"):
        ask_latency([served(dataclasses.replace(agent, thinned=True))], "a" * 32, 40, 0, "runtime")


def test_memory(agent: ScriptedAgent) -> None:
    memory = ask_memory(served(agent), "a" * 32).memory
    assert memory is not None
    assert (memory.resident, memory.artifact_share) == (45, 10)
    unclean = ask_memory(served(dataclasses.replace(agent, clean=False)), "a" * 32)
    assert not unclean.valid


def test_in_the_loop_the_device_decides_and_the_episodes_are_the_same(agent: ScriptedAgent) -> None:
    flights = Flights("hard", 40, 7)
    looped = ask_success_in_loop(served(agent), "a" * 32, flights).success
    alone = fly_on_host(blind_policy, flights)
    assert looped is not None
    assert looped.where is Where.LOOP
    assert looped.outcomes == alone.outcomes
    assert looped.task == alone.task == PRESETS["hard"].digest()
    assert looped.decide_p50_ns == 1500
    assert 0 < alone.successes < 40
    assert sum(alone.causes.values()) == 40


def test_settings_of_the_task_reach_the_flight() -> None:
    calm, late = (
        fly_on_host(blind_policy, Flights("hard", 60)),
        fly_on_host(blind_policy, Flights("hard", 60, settings={"latency": 0.4})),
    )
    assert late.settings == {"latency": 0.4}
    assert late.task == calm.task, "late or not, they are the same episodes"
    windy = fly_on_host(blind_policy, Flights("hard", 1, settings={"wind_m_s": 2.0}))
    assert windy.task == PRESETS["hard"].with_settings({"wind_m_s": 2.0}).digest() != calm.task
    assert late.outcomes != calm.outcomes


@pytest.mark.parametrize("task", ["0123456789ab", None])
def test_a_success_has_the_task_that_the_device_says_it_flew(agent: ScriptedAgent, task: str | None) -> None:
    """The device's simulator may be older than the host's; before there were digests it said none."""
    episodes: dict[str, Any] = {
        "episodes": 8,
        "seed": 7,
        "success": {"count": 2, "rate": 0.25, "interval": [0.07, 0.59]},
        "mean_of_successes": {"flight_time_s": 7.0, "distance_m": 20.0, "energy_j": 900.0},
        "success_bits": "wA==",
        "causes": {"goal": 2, "collision": 6},
        "decision_ns": {"percentiles": {"p50": 1500}},
        "throttled_before": None,
        "throttled_after": None,
        "invalid_reasons": [],
        **({} if task is None else {"task": task}),
    }
    agent.episodes = lambda **fields: episodes  # type: ignore[attr-defined]
    report = ask_success(served(agent), "a" * 32, Flights("hard", 8))
    assert report.success is not None and report.success.task == task
    assert Report.from_json(report.to_json()) == report


def test_the_loop_batch_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fly_on_host(blind_policy, Flights("shipped", 30)).outcomes
    monkeypatch.setattr(host_flights, "LOOP_BATCH", 7)
    assert fly_on_host(blind_policy, Flights("shipped", 30)).outcomes == before
