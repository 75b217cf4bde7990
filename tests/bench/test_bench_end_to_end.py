"""The commands on the embedded device: convert, deploy over SSH, ask, store, tabulate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quarl.airlearning_envs.config import CONTROL_PERIOD_S, preset
from quarl.airlearning_envs.flights import blind_policy
from quarl.airlearning_envs.rules import ACTION_NAMES, observation_fields
from quarl.airlearning_envs.task import NavigationTask
from quarl.bench import memory, success, table, timing
from quarl.bench.command_line import BenchError
from quarl.bench.device_session.baseline import framework_calls
from quarl.bench.device_session.questions import ask_latency
from quarl.bench.report import store
from quarl.bench.report.document import Kind, Transport
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, Normaliser, PolicySpec, weight_shapes


def recorded(rows: int, seed: int) -> np.ndarray:
    core = NavigationTask(preset("hard"), 32)
    observation = core.reset(np.arange(32), seed)
    seen = []
    for _ in range(-(-rows // 32)):
        seen.append(observation.copy())
        observation = core.step(blind_policy(observation)).observation
    return np.concatenate(seen)[:rows].astype(np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small policy of the navigation task with weights by chance, on real observations."""
    calibration = recorded(512, 1)
    spec = PolicySpec(
        name="tiny",
        observation=observation_fields(preset("hard")),
        normaliser=Normaliser(
            tuple(map(float, calibration.mean(0))), tuple(map(float, calibration.std(0) + 0.1)), 10.0
        ),
        network=NetworkSpec((16, 16)),
        head=DiscreteHead(ACTION_NAMES),
        control_period_s=CONTROL_PERIOD_S,
        environment=EnvironmentSpec("AirLearning/Navigation-v0", {"preset": "hard"}),
    )
    generator = np.random.default_rng(3)
    weights = {name: generator.normal(0, 0.3, s).astype(np.float32) for name, s in weight_shapes(spec).items()}
    return write_bundle(tmp_path_factory.mktemp("bundles") / "tiny", spec, weights, calibration, recorded(64, 2))


def test_from_a_bundle_without_artifacts_to_the_table(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    results = str(tmp_path / "results.jsonl")
    common = ["--policy", str(bundle.path), "--results", results, "--json"]

    assert timing.main([*common, "--runs", "700", "--warmup", "20", "--no-baseline"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert "converting to fp32, int8" in printed.err
    timed = {r["precision"]: r for r in answer["reports"] if r["kind"] == "latency"}
    assert set(timed) == {"fp32", "int8"}
    for report in timed.values():
        assert report["transport"] == "loopback"
        assert report["runtime"] == "litert"
        assert set(report["latency"]["percentiles_ns"]) == {"p50", "p90", "p95", "p99"}
        assert 0 < report["latency"]["min_ns"] <= report["latency"]["percentiles_ns"]["p50"]
        assert len(report["latency"]["block_p50_ns"]) == 4
        assert report["device"]["cores"] >= 1
    assert timed["fp32"]["run"] == timed["int8"]["run"]
    assert timed["fp32"]["artifact"]["sha256"] != timed["int8"]["artifact"]["sha256"]

    assert success.main([*common, "--episodes", "12"]) == 0
    on_device = json.loads(capsys.readouterr().out)
    assert [d["precision"] for d in on_device["differences"]] == ["int8"]
    assert success.main([*common, "--episodes", "12", "--precision", "fp32", "--on", "loop"]) == 0
    in_loop = json.loads(capsys.readouterr().out)
    assert success.main([*common, "--episodes", "12", "--precision", "fp32", "--on", "host"]) == 0
    on_host = json.loads(capsys.readouterr().out)
    # One simulator, one policy: where each of the two runs changes no episode.
    outcomes = [reports["reports"][0]["success"]["outcomes"] for reports in (on_device, in_loop, on_host)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [r["success"]["where"] for r in on_device["reports"]] == ["device", "device", "host", "host"]
    assert [each["policy"] for each in on_device["reports"][-2:]] == ["blind", "random"]

    assert memory.main([*common, "--precision", "int8", "--runtime", "litert,tflite-runtime"]) == 0
    resident = json.loads(capsys.readouterr().out)["reports"]
    assert [r["runtime"] for r in resident] == ["litert", "tflite-runtime"]
    assert all(r["memory"]["after_load"] >= r["memory"]["before_load"] > 10e6 for r in resident)

    flown = [*common, "--precision", "int8", "--episodes", "6", "--late", "200"]
    assert success.main(flown) == 0
    late = json.loads(capsys.readouterr().out)["reports"]
    assert [r["success"]["settings"] for r in late] == [{}, {"latency": 0.2}]

    stored = store.read_results(Path(results))
    assert {r.kind for r in stored} == set(Kind) - {Kind.COUNTS}
    assert table.main(["case-study", "latency-flown", "--results", results]) == 0
    printed_table = capsys.readouterr().out
    assert "loopback" in printed_table
    assert "tiny" in printed_table


def test_the_agent_without_python_is_measured_by_the_same_commands(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    common = [
        "--policy",
        str(bundle.path),
        "--results",
        str(tmp_path / "results.jsonl"),
        "--json",
        "--precision",
        "int8",
    ]
    common += ["--agent", "native"]
    assert memory.main([*common, "--runtime", "litert,native"]) == 0
    usual, ours = json.loads(capsys.readouterr().out)["reports"]
    assert (usual["runtime"], ours["runtime_version"]) == ("litert", "1, without Python")
    assert ours["memory"]["after_load"] < usual["memory"]["after_load"] / 20
    assert timing.main([*common, "--runtime", "native", "--runs", "50", "--no-baseline", "--path", "decide"]) == 0
    times = {r["runtime"]: r for r in json.loads(capsys.readouterr().out)["reports"] if r["kind"] == "latency"}
    assert times["native"]["device"]["python"] is None and times["litert"]["device"]["python"]
    assert success.main([*common, "--runtime", "native", "--on", "loop", "--episodes", "20"]) == 0
    assert success.main([*common, "--runtime", "native", "--on", "device", "--episodes", "20"]) == 1
    assert "has no simulator" in capsys.readouterr().err
    assert memory.main([*common, "--runtime", "litert"]) == 1
    assert "--runtime native" in capsys.readouterr().err


def test_a_policy_of_depth_pictures_flies_alike_wherever_it_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    common = ["--policy", "II-depth", "--precision", "int8", "--results", str(tmp_path / "results.jsonl"), "--json"]
    flown = {}
    for where in ("device", "loop", "host"):
        assert success.main([*common, "--episodes", "8", "--on", where]) == 0
        flown[where] = json.loads(capsys.readouterr().out)["reports"][0]["success"]
    assert flown["device"]["outcomes"] == flown["loop"]["outcomes"] == flown["host"]["outcomes"]
    assert flown["device"]["successes"] > 4


def test_a_device_that_is_not_there_is_an_error_with_a_next_step(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert timing.main(["--policy", str(bundle.path), "--target", "pi@127.0.0.1:9"]) == 1
    assert "next:" in capsys.readouterr().err


def test_keras_takes_its_turns_and_computes_the_policy(bundle: Bundle) -> None:
    with framework_calls(bundle.path, "tiny", "local") as calls:
        reports = ask_latency(calls, "a" * 32, 12, 2, "runtime")
    assert [r.runtime for r in reports] == ["keras", "tf.function"]
    for report in reports:
        assert report.transport is Transport.LOCAL_PROCESS
        assert report.latency is not None and report.latency.path == "call"
        assert report.to_dict()["precision"] == "fp32"


def test_a_baseline_that_does_not_start_says_how_to_go_on_without(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="--no-baseline"), framework_calls(tmp_path / "none", "tiny", "local"):
        pass
