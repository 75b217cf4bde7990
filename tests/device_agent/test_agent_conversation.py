"""Conversations with an agent in a process of its own, on real artifacts in each of the runtimes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName

Start = Callable[..., Any]
LOADED_KEYS = {
    "policy", "file", "precision", "format", "scheme", "execution", "bytes", "sha256", "runtime", "runtime_version",
    "threads",
}  # fmt: skip


@pytest.fixture(scope="module")
def agent(pilot: Bundle, start_agent: Start) -> Any:
    """An agent that serves int8 in LiteRT, shared by this module's tests."""
    process = start_agent(pilot.path)
    process.ask("load", precision="int8", runtime="litert")
    return process


def numpy_outputs(bundle: Bundle, precision: str, observations: np.ndarray) -> np.ndarray:
    weights = bundle.weights()
    if precision == "fp32":
        return forward_float(bundle.spec, weights, observations)
    return forward_integer(bundle.spec, quantize_network(bundle.spec, weights, bundle.calibration()), observations)


@pytest.mark.parametrize("runtime", [name.value for name in RuntimeName])
def test_a_whole_conversation_in_each_runtime(
    runtime: str, pilot: Bundle, start_agent: Start, fresh_observations: np.ndarray
) -> None:
    agent = start_agent(pilot.path)
    hello = agent.ask("hello")
    assert hello["protocol"] == 1 and runtime in hello["runtimes"] and hello["loaded"] is None
    assert hello["bundle"]["policy"] == "pilot" and hello["bundle"]["precisions"] == ["fp32", "int8"]
    executed = [Precision.FP32.value, Precision.INT8.value]
    for precision in executed:
        loaded = agent.ask("load", precision=precision, runtime=runtime)
        entry = pilot.manifest.artifacts[loaded["loaded"]["file"]]
        assert set(loaded["loaded"]) == LOADED_KEYS and loaded["loaded"]["sha256"] == entry.record.sha256
        assert loaded["loaded"]["runtime"] == runtime
        assert loaded["loaded"]["runtime_version"] == hello["runtimes"][runtime]
        golden = loaded["golden"]
        assert golden["vectors"] == 48 and golden["max_error"] <= golden["tolerance"]
        tolerance = pilot.read_expected(entry).tolerance
        assert golden["tolerance"] in tolerance
        assert all(loaded["cold"][name] > 0 for name in ("verify_ns", "build_ns", "first_ns", "golden_ns"))
        reply = agent.ask("act", observations=fresh_observations.tolist())
        expected = numpy_outputs(pilot, precision, fresh_observations)
        assert (np.abs(np.array(reply["outputs"]) - expected) <= tolerance.max()).all()
        assert reply["actions"] == np.array(reply["outputs"], np.float32).argmax(axis=1).tolist()
        assert len(reply["inference_ns"]) == 32 and min(reply["inference_ns"]) > 0
    assert agent.ask("memory")["memory"]["clean"] is (len(executed) == 1)  # else fp32 was loaded before int8
    assert agent.ask("bye")["decisions"] == len(executed) * 32 + 100
    assert agent.end() == 0


def test_every_listed_conversion_is_served_in_every_runtime(copied: Path, start_agent: Start) -> None:
    from quarl.convert.pipeline import convert_all

    precisions = [Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4]
    convert_all([Bundle.load(copied)], precisions, list(ArtifactFormat), accept=True)
    manifest = Bundle.load(copied).manifest
    assert len(manifest.artifacts) == 12
    for runtime in RuntimeName:
        agent = start_agent(copied)
        for entry in manifest.artifacts.values():
            if runtime in entry.runtimes:
                reply = agent.ask("load", precision=entry.precision.value, runtime=runtime.value)
                assert reply["loaded"]["file"] == entry.file and reply["loaded"]["execution"] == entry.execution
                assert reply["golden"]["max_error"] <= entry.runtimes[runtime].max_error + 1e-6
                assert reply["golden"]["action_agreement"] == entry.runtimes[runtime].agreement


@pytest.mark.parametrize("runtime", [name.value for name in RuntimeName])
def test_a_continuous_policy_acts_in_physical_units(
    runtime: str, gliding: Bundle, start_agent: Start, fresh_observations: np.ndarray
) -> None:
    agent = start_agent(gliding.path)
    precision = Precision.FP32
    agent.ask("load", precision=precision.value, runtime=runtime)
    tolerance = gliding.read_expected(gliding.artifact(precision, RuntimeName(runtime).artifact_format)).tolerance.max()
    reply = agent.ask("act", observation=fresh_observations[0].tolist())
    assert reply["action"] == reply["outputs"]
    expected = numpy_outputs(gliding, precision.value, fresh_observations[:1])[0]
    assert (np.abs(np.array(reply["action"]) - expected) <= tolerance).all()


def test_latency_is_in_nanoseconds_with_what_the_runs_support(agent: Any) -> None:
    reply = agent.ask("latency", warmup=10, runs=700)
    assert reply["runs"] == 700 and reply["path"] == "runtime" and reply["warmup"] == 10
    assert list(reply["percentiles"]) == ["p50", "p90", "p95", "p99"]
    assert reply["percentiles_withheld"] == {"p99.9": "needs 6636 runs, there are 700"}
    samples = reply["samples_ns"]
    assert len(samples) == 700 and samples == sorted(samples)
    assert samples[349] == reply["percentiles"]["p50"] and samples[0] == reply["min"] and samples[-1] == reply["max"]
    assert reply["mean"] == pytest.approx(np.mean(samples), abs=0.1)
    low, high = reply["p50_interval"]
    assert low <= reply["percentiles"]["p50"] <= high
    assert reply["cold_first_ns"] > 0 and reply["load_ns"] > reply["cold_first_ns"]
    assert reply["timer"]["overhead_ns"] < reply["min"]
    assert isinstance(reply["valid"], bool) and reply["valid"] == (not reply["invalid_reasons"])
    assert set(reply["before"]) == set(reply["after"]) >= {"mhz_now", "temperature_c", "throttled", "governor"}


def test_the_decide_path_contains_the_runtime_path(agent: Any) -> None:
    runtime = agent.ask("latency", runs=200, path="runtime")
    decide = agent.ask("latency", runs=200, path="decide")
    # Not a limit on speed: the one is a part of the other.
    assert decide["percentiles"]["p50"] > runtime["percentiles"]["p50"]


def test_long_measurements_return_at_most_2000_samples(agent: Any) -> None:
    reply = agent.ask("latency", warmup=0, runs=7000)
    assert len(reply["samples_ns"]) == 2000 and "p99.9" in reply["percentiles"]
    assert (reply["samples_ns"][0], reply["samples_ns"][-1]) == (reply["min"], reply["max"])


def test_memory_stations_are_in_order(pilot: Bundle, start_agent: Start) -> None:
    agent = start_agent(pilot.path)
    loaded = agent.ask("load", precision="fp32", runtime="litert")["memory"]
    assert loaded["running_peak"] is None and loaded["clean"] is True
    # importing a runtime costs memory, and loading a policy more
    assert 2**20 < loaded["baseline"] < loaded["before_load"] < loaded["after_load"]
    reply = agent.ask("memory", runs=50)
    sizes = reply["memory"]
    assert reply["runs"] == 50 and reply["artifact_bytes"] == pilot.manifest.artifacts["fp32.tflite"].record.size
    assert (sizes["baseline"], sizes["after_load"]) == (loaded["baseline"], loaded["after_load"])
    assert sizes["running_peak"] <= sizes["lifetime_peak"]
    assert sizes["running_peak"] > 0.95 * sizes["now"]
    assert sizes["anonymous"] + sizes["file_backed"] == pytest.approx(sizes["now"], rel=0.05)


def test_one_observation_and_rows_of_them_are_decided_alike(agent: Any, fresh_observations: np.ndarray) -> None:
    rows = agent.ask("act", observations=fresh_observations[:4].tolist(), outputs=False)
    assert "outputs" not in rows
    single = [agent.ask("act", observation=row.tolist())["action"] for row in fresh_observations[:4]]
    assert rows["actions"] == single and all(isinstance(action, int) for action in single)


def test_a_wrong_row_is_refused_by_number(agent: Any, fresh_observations: np.ndarray) -> None:
    rows = fresh_observations[:3].tolist()
    rows[1][26] = math.inf
    reply = agent.request("act", observations=rows)
    assert "observations[1][26] (velocity[0]) is inf" in reply["error"]["message"]
    reply = agent.request("act", observations=[rows[0], 5])
    assert "observations[1] is 5" in reply["error"]["message"]


NUMBERS = st.integers() | st.floats() | st.none() | st.booleans() | st.text(max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(NUMBERS, min_size=32, max_size=32))
def test_any_observation_gets_an_action_or_its_elements_name(agent: Any, values: list[Any]) -> None:
    reply = agent.send(json.dumps({"op": "act", "observation": values}).encode())
    good = [type(value) in (int, float) and abs(value) <= np.finfo(np.float32).max for value in values]
    assert reply["ok"] == all(good), reply
    if not reply["ok"]:
        assert reply["error"]["code"] == "bad_observation"
        assert f"[{good.index(False)}] (" in reply["error"]["message"]
