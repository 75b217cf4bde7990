"""The recommender: its arguments, what it measures on, its table, and once for real on the embedded device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.bench import recommend
from quarl.bench.command_line import BenchError
from quarl.bench.device_session import access
from quarl.bench.device_session.access import Device
from quarl.bench.device_session.questions import Served
from quarl.bench.recommending import Candidate, candidate_pairs, measure, rank, runtimes_of, time_in_turns
from quarl.bench.report.document import Report, Transport
from quarl.convert import ladder
from quarl.convert.ladder import Question
from quarl.device.deploy.errors import UnsupportedDeviceError
from quarl.device.deploy.probe import PythonFacts, TargetFacts
from quarl.policy import json_values
from quarl.policy.bundle import Bundle
from quarl.policy.ladder import Ladder, Loss, Prefer, Rung
from quarl.policy.locate import working_bundle
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.refusals import refused

FP32, INT8, INT4 = Precision.FP32, Precision.INT8, Precision.INT4
TFLITE, LITERT, ONNX, NATIVE = RuntimeName
MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["I", "--max-loss", "100"], "above 0 and below 100"),
        (["I", "--max-loss", "nan"], "above 0 and below 100"),
        (["I", "--deadline-ms", "-1"], "type 20, or 0.5"),
        (["I", "--deadline-ms", "2,5"], "type 20, or 0.5"),
        (["I", "--episodes", "1"], "one episode has no interval"),
        (["I", "--runs", "661"], "type 662 or more"),
        (["I", "--runtime", "torch"], "tflite-runtime"),
        ([], "bundle"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        recommend.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_p99_has_as_many_runs_as_it_needs() -> None:
    from quarl.device.agent.measure import compute_required_runs

    assert compute_required_runs(0.99) == recommend.FEWEST_RUNS


def test_a_bundle_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend.main(["absent", "--json"]) == 2
    printed = capsys.readouterr()
    assert "there is no policy 'absent'" in printed.err and json.loads(printed.out)["ok"] is False


def facts(*versions: tuple[int, int, int], glibc: tuple[int, int] = (2, 36), available: int = 1 << 29) -> TargetFacts:
    pythons = tuple(PythonFacts("/usr/bin/python3", version, 64) for version in versions)
    return TargetFacts("aarch64", "Linux", "/home/pi", glibc, 1 << 34, 1 << 30, available, "", pythons)


def test_the_runtimes_are_those_that_the_target_has_wheels_for() -> None:
    wanted = (LITERT, TFLITE, ONNX)
    assert runtimes_of(facts((3, 11, 2)), wanted) == ([LITERT, TFLITE, ONNX], {})
    kept, excluded = runtimes_of(facts((3, 13, 1)), wanted)
    assert kept == [LITERT, ONNX]
    assert list(excluded) == [TFLITE]
    assert "Python 3.13 on aarch64 lacks tflite-runtime" in excluded[TFLITE]
    with pytest.raises(UnsupportedDeviceError):
        runtimes_of(facts((3, 9, 2)), wanted)


def test_every_turn_is_timed_in_a_process_of_its_own() -> None:
    requests: list[str] = []
    stations = ("baseline", "before_load", "after_load", "now", "running_peak", "lifetime_peak")
    memory = {**dict.fromkeys(stations, MEGABYTE), "clean": True, "peak_reset": True}
    circumstances: dict[str, Any] = {
        "path": "runtime", "cold_first_ns": 1, "load_ns": 1, "timer": {"overhead_ns": 1}, "page_faults": {"major": 0},
        "context_switches": {"involuntary": 0}, "invalid_reasons": [], "notes": [], "before": {}, "after": {},
    }  # fmt: skip

    class Agent:
        def request(self, op: str, **fields: Any) -> dict[str, Any]:
            requests.append(op)
            samples = list(range(100, 100 + fields["runs"]))
            return {"memory": memory, "runs": len(samples), "samples_ns": samples, **circumstances}

    class Fake(Device):
        @contextmanager
        def serving(self, policy: str, precision: Precision, runtime: RuntimeName) -> Iterator[Served]:
            requests.append(f"{precision.value} {runtime.value}")
            names = (
                "policy",
                "precision",
                "runtime",
                "runtime_version",
                "threads",
                "file",
                "sha256",
                "bytes",
                "execution",
            )
            loaded = {**dict.fromkeys(names, ""), "policy": policy, "precision": precision.value}
            yield Served(Agent(), "pi", Transport.SSH, {}, loaded)

    device = Fake("pi", None)  # type: ignore[arg-type]
    timed = time_in_turns(device, "pole", [(FP32, LITERT), (INT8, ONNX)], 700, "runtime", lambda done, total: None)
    turn = ["fp32 litert", "latency", "int8 onnxruntime", "latency"]
    assert requests == ["fp32 litert", "memory", "latency", "int8 onnxruntime", "memory", "latency", *3 * turn]
    for resident, latency in timed.values():
        assert resident.memory is not None
        assert latency.latency is not None
        assert (latency.latency.runs, len(latency.latency.block_p50_ns)) == (700, 4)


def test_an_emulator_is_refused_before_anything_is_converted_or_deployed(
    balancing: Callable[..., Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(*_: object, **__: object) -> None:
        raise AssertionError

    @contextmanager
    def connected(target: str) -> Iterator[Device]:
        yield Device(target, None)  # type: ignore[arg-type]

    probe = import_module("quarl.device.deploy.probe")  # the package names its function by the same name
    monkeypatch.setattr(access, "connect", connected)
    monkeypatch.setattr(probe, "probe", lambda _: facts((3, 11, 2)))
    monkeypatch.setattr(probe, "is_emulated", lambda *_: True)
    monkeypatch.setattr(ladder, "climb", too_late)
    asked: tuple[Any, ...] = Question(), "pi@virtual", [LITERT], 700, "runtime", 20.0
    with refused(BenchError, "emulated_target"):
        measure(balancing(tmp_path / "pole"), *asked)
    monkeypatch.setattr(probe, "is_emulated", lambda *_: False)
    with pytest.raises(AssertionError):
        measure(balancing(tmp_path / "pole"), *asked)


TFLITE_FILE, NATIVE_FILE = ArtifactFormat.TFLITE, ArtifactFormat.NATIVE
KEPT, LOST = Loss(0.2, -0.4, 0.8, 400), Loss(9.0, 7.0, 11.0, 50)
LADDER = Ladder("0" * 64, FP32, "CartPole-v1", "", 7, 1.0, Prefer.SIZE, (
    Rung(INT4, 0.8, {TFLITE_FILE: 100, NATIVE_FILE: 50}, KEPT),
    Rung(INT8, 0.9, {TFLITE_FILE: 100, NATIVE_FILE: 90}, LOST),
    Rung(FP32, 1.0, {TFLITE_FILE: 400}),
), ("int8: head is to blame.",))  # fmt: skip


def test_what_keeps_the_return_is_a_candidate_where_it_is_packed() -> None:
    assert candidate_pairs(LADDER, [LITERT, NATIVE]) == [(INT4, NATIVE), (FP32, LITERT)]
    assert candidate_pairs(LADDER, [NATIVE]) == [(INT4, NATIVE)]


def candidate(name: str, p50: float, turns: tuple[float, ...] = (), **changes: Any) -> Candidate:
    precision, runtime = name.split()
    own = Candidate(precision, runtime, "", 1000, "", "", p50, 2 * p50, turns or (p50,), 5000, True, True)
    return replace(own, **changes)


FAST = candidate("int8 litert", 100.0, (90.0, 110.0))
RANKED = {
    "the fastest": ([candidate("fp32 litert", 200.0), FAST], ["int8 litert", "fp32 litert"]),
    "of those as fast the smallest": (
        [FAST, candidate("int4 native", 105.0, (95.0, 120.0), bytes=500)], ["int4 native", "int8 litert"],
    ),
    "then the least memory": (
        [FAST, candidate("int8 native", 105.0, (95.0, 120.0), bytes=995, resident_bytes=9)],
        ["int8 native", "int8 litert"],
    ),
    "a page more decides nothing": (
        [candidate("int8 native", 105.0, (95.0, 120.0), resident_bytes=4990), FAST], ["int8 litert", "int8 native"],
    ),
    "memory that is not known decides nothing": (
        [FAST, candidate("int8 native", 105.0, (95.0, 120.0), resident_bytes=None)], ["int8 litert", "int8 native"],
    ),
    "what is late comes last": (
        [replace(FAST, in_time=False), candidate("fp32 litert", 300.0)], ["fp32 litert", "int8 litert"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RANKED)
def test_the_order_of_candidates(case: str) -> None:
    candidates, order = RANKED[case]
    assert [f"{one.precision} {one.runtime}" for one in rank(candidates)] == order


def test_the_table_and_the_sentences(latency_report: Callable[..., Report]) -> None:
    def answered(*candidates: Candidate, **changes: Any) -> tuple[list[tuple[str, ...]], str, list[str]]:
        report = latency_report("pole", "int4", 1500, **changes)
        document = {
            "bundle": "pole", "policy": "pole", "target": report.target, "deadline_ms": 0.0002, "path": "runtime",
            "ladder": json_values.write(LADDER), "candidates": [asdict(one) for one in candidates], "played_on": "here",
            "excluded_runtimes": {"tflite-runtime": "no wheel"}, "reports": [report.to_dict()],
        }  # fmt: skip
        table, sentences = recommend.make_table(json.loads(json.dumps(document)))
        return list(table.rows), "\n".join(table.notes), sentences

    best, late = candidate("int4 native", 100.0), candidate("fp32 litert", 500.0, in_time=False)
    rows, notes, sentences = answered(best, late)
    assert [row[:5] for row in rows] == [
        ("int4", "native", "chosen", "80.0", "0.20 [-0.40, 0.80]"),
        ("fp32", "litert", "too late", "100.0", "–"),
        ("int8", "any", "loses more", "90.0", "9.00 [7.00, 11.00]"),
    ]
    assert "No tflite-runtime: no wheel" in notes and "NOT VALID" not in notes
    assert sentences[0].endswith("quarl deploy --policy pole --bits 4 --runtime native --target pi@raspberrypi")
    assert "1 of 2 candidates" in sentences[1] and sentences[2] == LADDER.hints[0]
    _, notes, sentences = answered(late, valid=False, invalid_reasons=("it throttled",), target="local")
    assert "NOT VALID: int4 litert: it throttled" in notes and "local is this machine" in notes
    assert "Nearest: fp32 with litert, by --deadline-ms 0.001" in sentences[1]


@pytest.mark.slow
def test_for_real_on_the_embedded_device(
    balancing: Callable[..., Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QUARL_LOCAL_DEVICE", str(tmp_path / "device"))
    monkeypatch.chdir(tmp_path)
    bundle = balancing(tmp_path / "artifacts" / "pole")
    # What the user has made and deployed before is there and serves afterwards.
    from quarl.convert.__main__ import main as convert

    assert convert(["--policy", str(bundle.path), "--bits", "8", "--format", "native"]) == 0
    assert cli.main(["deploy", "--policy", str(bundle.path), "--bits", "8", "--runtime", "native"]) == 0
    before = {path.name: path.read_bytes() for path in bundle.path.iterdir()}
    capsys.readouterr()

    typed = [str(bundle.path), "--episodes", "2", "--runs", "662", "--max-loss", "99", "--output", "made/answer.json"]
    assert recommend.main([*typed, "--runtime", "native", "--deadline-ms", "1000"]) == 0
    printed = capsys.readouterr()
    answer = json.loads((tmp_path / "made" / "answer.json").read_text(encoding="utf-8"))
    names = [(each["precision"], each["runtime"]) for each in answer["candidates"]]
    assert {(FP32.value, NATIVE.value), (INT8.value, NATIVE.value)} <= set(names)
    assert answer["recommended"] == answer["candidates"][0]
    assert f"Deploy {names[0][0]} with {names[0][1]}: quarl deploy --policy {bundle.path}" in printed.out
    for each in answer["candidates"]:
        assert each["resident_bytes"] > 10 * MEGABYTE and 0 < each["p50_ns"] <= each["p99_ns"]
        assert len(each["turns_ns"]) == 4
    assert {report["transport"] for report in answer["reports"]} == {"loopback"}

    assert {path.name: path.read_bytes() for path in bundle.path.iterdir()} == before
    assert cli.main(["releases"]) == 0
    serving = [line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("*")]
    assert len(serving) == 1 and "  int8 in native  " in serving[0]

    assert recommend.main([*typed, "--runtime", "native", "--deadline-ms", "1e-6", "--json"]) == recommend.EXIT_NONE
    missed = json.loads(capsys.readouterr().out)
    assert missed["ok"] is True and missed["recommended"] is None
    assert {each["runtime"] for each in missed["candidates"]} == {"native"}
    assert working_bundle(str(bundle.path)).manifest.artifacts.keys() == {"int8.native"}
