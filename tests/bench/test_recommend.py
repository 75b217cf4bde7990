"""The recommender: its arguments, what it measures on, its table, and once for real on the embedded device."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quarl import cli
from quarl.bench import recommend
from quarl.bench.command_line import BenchError, UsageError
from quarl.bench.device_session import access
from quarl.bench.device_session.access import Device
from quarl.bench.device_session.questions import Served
from quarl.bench.recommending import measurements
from quarl.bench.recommending.answer import candidates_table, sentences
from quarl.bench.recommending.deciding import Demand
from quarl.bench.recommending.measurements import (
    Measurements,
    Question,
    candidate_pairs,
    choose_preset,
    compute_return_kept,
    reference_precision,
    select_played_pairs,
    select_release_pairs,
)
from quarl.bench.recommending.timing import runtimes_of, time_in_turns
from quarl.bench.recommending.verdict import Verdict
from quarl.bench.report.document import Report, Transport
from quarl.bench.tables import Table
from quarl.device.deploy.errors import UnsupportedDeviceError
from quarl.device.deploy.probe import PythonFacts, TargetFacts
from quarl.policy.bundle import Bundle
from quarl.policy.locate import working_bundle
from quarl.policy.reading import ArtifactEntry, FileRecord
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from quarl.train.suites.make import make_task
from quarl.train.suites.task import Evaluation
from tests.refusals import refused

FP32, FP16, INT8, INT4 = Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4
LITERT, TFLITE, ONNX = RuntimeName.LITERT, RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME
MIXED, NATIVE = Precision.MIXED, RuntimeName.NATIVE
QUESTION = Question("pole", Demand(0.7, 20.0), "", 3, 7, 700)
MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["I", "--success-floor", "95"], "95 % is 0.95"),
        (["I", "--success-floor", "0"], "allowed is above 0, up to 1"),
        (["I", "--success-floor", "nan"], "allowed is above 0, up to 1"),
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


def test_a_bundle_or_preset_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend.main(["absent", "--json"]) == 2
    printed = capsys.readouterr()
    assert "there is no policy 'absent'" in printed.err
    assert json.loads(printed.out)["ok"] is False
    navigation, cartpole = make_task("navigation"), make_task("CartPole-v1")
    assert choose_preset(navigation, None) == "hard"
    assert choose_preset(navigation, "easy") == "easy"
    assert choose_preset(cartpole, None) == ""
    with pytest.raises(UsageError, match="easy, medium, shipped"):
        choose_preset(navigation, "moon")
    with refused(UsageError, "task_has_no_presets"):
        choose_preset(cartpole, "hard")


def test_the_share_of_a_return_that_is_kept() -> None:
    # F = 100, Q = 95: E = 5 %. d = (4, 6), R = 0.05, d − R f = (4 − 4.9, 6 − 5.1) = ±0.9, s = 1.2728,
    # half = 12.7062 · 1.2728 / √2 = 11.436 %
    kept = compute_return_kept([94.0, 96.0], [98.0, 102.0])
    assert (kept.value, kept.low, kept.high) == pytest.approx((0.95, 0.95 - 0.1143558426, 0.95 + 0.1143558426))
    # More is better with negative returns, too: −110 instead of −100 keeps 90 %, −90 is 110 %.
    assert compute_return_kept([-110.0, -110.0], [-100.0, -100.0]).value == pytest.approx(0.90)
    better = compute_return_kept([-91.0, -89.0], [-100.0, -100.0])
    assert (better.value, better.low, better.high) == pytest.approx((1.1, 1.1 - 0.1270620474, 1.1 + 0.1270620474))
    with refused(BenchError, "zero_reference_return"):
        compute_return_kept([1.0, 1.0], [-1.0, 1.0])


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
    def too_late(*_: object) -> None:
        raise AssertionError

    @contextmanager
    def connected(target: str) -> Iterator[Device]:
        yield Device(target, None)  # type: ignore[arg-type]

    probe = import_module("quarl.device.deploy.probe")  # the package names its function by the same name
    monkeypatch.setattr(access, "connect", connected)
    monkeypatch.setattr(probe, "probe", lambda _: facts((3, 11, 2)))
    monkeypatch.setattr(probe, "is_emulated", lambda *_: True)
    monkeypatch.setattr(measurements, "convert_copy", too_late)
    monkeypatch.setattr(measurements, "deploy_candidates", too_late)
    bundle, task = balancing(tmp_path / "pole"), make_task("CartPole-v1")
    with refused(BenchError, "emulated_target"):
        measurements.measure(bundle, task, replace(QUESTION, target="pi@virtual"))
    monkeypatch.setattr(probe, "is_emulated", lambda *_: False)
    with pytest.raises(AssertionError):
        measurements.measure(bundle, task, QUESTION)


def test_what_plays_and_what_can_be_chosen(balancing: Callable[..., Bundle], tmp_path: Path) -> None:
    bundle = balancing(tmp_path / "pole")
    assert candidate_pairs(bundle, [LITERT, ONNX]) == [
        (FP32, LITERT), (FP32, ONNX), (FP16, LITERT), (FP16, ONNX), (INT8, LITERT), (INT8, ONNX),
    ]  # fmt: skip
    fewer = [(INT4, LITERT), (Precision.INT3, LITERT), (Precision.INT2, LITERT)]
    assert select_played_pairs(bundle, [LITERT, ONNX])[6:] == fewer
    packed = candidate_pairs(bundle, [LITERT, NATIVE])
    assert packed == [
        (FP32, LITERT), (FP32, NATIVE), (FP16, LITERT), (FP16, NATIVE), (INT8, LITERT), (INT8, NATIVE),
        (MIXED, NATIVE), (INT4, NATIVE),
    ]  # fmt: skip
    assert set(select_release_pairs(packed)) == {*packed, (MIXED, LITERT), (INT4, LITERT)}
    alone = select_played_pairs(bundle, [NATIVE])
    assert alone == [(each, NATIVE) for each in (FP32, FP16, INT8, MIXED, INT4, Precision.INT3, Precision.INT2)]
    assert reference_precision(bundle) is FP32


@pytest.fixture
def measured(
    balancing: Callable[..., Bundle],
    tmp_path: Path,
    latency_report: Callable[..., Report],
    memory_report: Callable[..., Report],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Measurements]:
    """fp32 at 2.0 µs and int8 at 1.5 µs, three episodes each, and int4, which only played."""

    def entry(precision: Precision, _: ArtifactFormat) -> ArtifactEntry:
        data = b"0" * 1000 * precision.bits
        return ArtifactEntry(
            f"{precision.value}.tflite", precision, ArtifactFormat.TFLITE, "", "float32 arithmetic",
            FileRecord.of(data), "golden", None, {},
        )  # fmt: skip

    def played(*returns: float) -> Evaluation:
        return Evaluation("", 3, None, None, sum(returns) / 3, (0.0, 1.0), 9.0, returns=returns)

    def make(**changes: Any) -> Measurements:
        copy = balancing(tmp_path / "pole")
        monkeypatch.setattr(Bundle, "artifact", lambda self, *asked: entry(*asked))
        returns = {FP32: (10.0, 10.0, 10.0), INT8: (9.0, 10.0, 11.0), INT4: (1.0, 1.0, 1.0)}
        timed = {
            (precision, LITERT): (
                memory_report("pole", precision.value), latency_report("pole", precision.value, p50, **changes),
            )
            for precision, p50 in ((FP32, 2000), (INT8, 1500))
        }  # fmt: skip
        episodes = {(precision, LITERT): played(*each) for precision, each in returns.items()}
        reason = "Python 3.13 on aarch64 lacks tflite-runtime"
        return measurements.summarise(copy, episodes, timed, {TFLITE: reason}, "")

    return make


@pytest.fixture
def answered(
    measured: Callable[..., Measurements], balancing: Callable[..., Bundle], tmp_path: Path
) -> Callable[..., tuple[Verdict, Table]]:
    def make(demand: Demand, presets: tuple[str, ...] = ("",), **changes: Any) -> tuple[Verdict, Table]:
        one = measured(**changes)
        question = replace(QUESTION, demand=demand, target=changes.get("target", "pi@raspberrypi"))
        task = replace(make_task("CartPole-v1"), presets=presets)
        verdict = Verdict.of(balancing(tmp_path / "asked"), task, question, one)
        table = candidates_table(verdict)
        return verdict, table

    return make


Answered = Callable[..., tuple[Verdict, Table]]


def test_the_table_has_the_verdict_the_bits_and_what_is_not_there(answered: Answered) -> None:
    _, made = answered(Demand(0.7, 20.0))
    # int8 keeps 1.0, s = 1, half = 4.3027 / √3 · 10 % = 24.8 %
    assert [row[:4] for row in made.rows] == [
        ("int8", "litert", "chosen", "100.0 [75.2, 124.8]"),
        ("fp32", "litert", "meets both", "100.0"),
        ("int4", "litert", "misses floor", "10.00"),
    ]
    assert made.rows[0][5:] == ("1.50 µs [1.50, 1.50]", made.rows[0][6], "8.00", "35.5")
    assert made.rows[2][5:] == ("as int8", "as int8", "4.00", "as int8")
    notes = "\n".join(made.notes)
    assert "Without brackets: all episodes are equal, which says nothing of other ones" in notes
    assert "How few bits: int8 is the narrowest at the floor." in notes
    assert "Fewer than 8 bits run as int8 does, unpacked in an int8 container" in notes
    assert "No tflite-runtime: Python 3.13 on aarch64 lacks tflite-runtime" in notes
    assert "pi@raspberrypi: Raspberry Pi 3 Model B" in notes
    assert "local is this machine" not in notes


def test_what_is_not_valid_is_said(answered: Answered) -> None:
    hot = {"valid": False, "invalid_reasons": ("it throttled",), "target": "local"}
    _, made = answered(Demand(0.7, 20.0), presets=("hard", "shipped"), **hot)
    notes = "\n".join(made.notes)
    assert "NOT VALID: fp32 litert: it throttled, int8 litert: it throttled" in notes
    assert "local is this machine" in notes
    assert "--preset hard, --preset shipped" in notes


def test_the_document_holds_everything(answered: Answered) -> None:
    verdict, table = answered(Demand(0.95, 0.001))
    made = json.loads(json.dumps(asdict(verdict), allow_nan=False))
    stored = Verdict.of_document({**made, "seconds": 1.0})
    assert sentences(stored) == sentences(verdict)
    assert candidates_table(stored) == table
    assert made["recommended"] is None
    assert made["quality"] == "return kept"
    by_precision = {each["precision"]: each for each in made["candidates"]}
    assert by_precision["fp32"]["verdict"] == "misses deadline"
    assert by_precision["int8"]["verdict"] == "misses both"
    assert by_precision["int8"]["points_short_of_floor"] == pytest.approx(95 - 75.159, abs=1e-3)
    assert by_precision["int8"]["artifact_bytes"] == 8000
    assert [each["precision"] for each in made["fewer_bits"]] == ["int4"]
    assert made["fewest_bits_at_the_floor"] is None
    # fp32 takes 2.2 times the deadline; int8 1.7 times, and 0.95 / 0.752 = 1.26 times the floor.
    assert made["change"]["would_be"]["name"] == "int8 with litert"
    assert [report["kind"] for report in made["reports"]] == ["memory", "memory", "latency", "latency"]


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

    assert convert(["--policy", str(bundle.path), "--bits", "8", "--format", "tflite"]) == 0
    assert cli.main(["deploy", "--policy", str(bundle.path), "--bits", "8", "--runtime", "litert"]) == 0
    before = {path.name: path.read_bytes() for path in bundle.path.iterdir()}
    capsys.readouterr()

    typed = [str(bundle.path), "--episodes", "3", "--runs", "662", "--output", "made/answer.json"]
    assert recommend.main([*typed, "--success-floor", "0.5", "--deadline-ms", "1000"]) == 0
    printed = capsys.readouterr()
    assert "reaching local" in printed.err
    answer = json.loads((tmp_path / "made" / "answer.json").read_text(encoding="utf-8"))
    names = [(each["precision"], each["runtime"]) for each in answer["candidates"]]
    wanted = [(p.value, r.value) for p in (FP32, FP16, INT8) for r in RuntimeName]
    wanted += [("mixed", "native"), ("int4", "native")]
    assert sorted(names) == sorted(wanted)
    assert names[0] == (answer["recommended"]["precision"], answer["recommended"]["runtime"])
    assert [each["precision"] for each in answer["fewer_bits"]] == ["int4", "int3", "int2"]
    assert printed.out.rstrip().splitlines()[-4:] == [*answer["explanation"], answer["what_would_change_it"]]
    assert answer["explanation"][0].startswith(f"Deploy {names[0][0]} with {names[0][1]}: return kept ")
    for each in answer["candidates"]:
        assert each["resident_bytes"] > 10 * MEGABYTE
        assert 0 < each["p50_ns"] <= each["p99_ns"]
        assert len(each["turns_ns"]) == 4
    fp32 = next(each for each in answer["candidates"] if (each["precision"], each["runtime"]) == ("fp32", "litert"))
    assert fp32["quality"]["value"] == 1.0
    assert {report["transport"] for report in answer["reports"]} == {"loopback"}

    assert {path.name: path.read_bytes() for path in bundle.path.iterdir()} == before
    assert cli.main(["releases"]) == 0
    listed = capsys.readouterr().out
    serving = [line for line in listed.splitlines() if line.lstrip().startswith("*")]
    assert len(serving) == 1
    assert "  int8 in litert  " in serving[0]

    four = next(each for each in answer["candidates"] if each["precision"] == "int4")
    assert (four["file"], four["runs_as_int8"]) == ("int4.native", False)

    assert recommend.main([*typed, "--runtime", "litert", "--deadline-ms", "1e-6", "--json"]) == recommend.EXIT_NONE
    missed = json.loads(capsys.readouterr().out)
    assert missed["ok"] is True
    assert missed["recommended"] is None
    assert {each["runtime"] for each in missed["candidates"]} == {"litert"}
    assert {each["verdict"] for each in missed["candidates"]} <= {"misses deadline", "misses both"}
    words = shlex.split(missed["what_would_change_it"].removeprefix("Nearest: "))
    assert words[:3] == ["quarl", "recommend", str(bundle.path)]
    assert float(words[words.index("--deadline-ms") + 1]) == missed["change"]["deadline_ms"] > 1e-6
    assert working_bundle(str(bundle.path)).manifest.artifacts.keys() == {"int8.tflite"}
