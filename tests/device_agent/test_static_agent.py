"""The static agent beside the one in Python: the same protocol and numbers, on three processors, under sanitizers."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl.convert.package import static_agent as command
from quarl.device.agent.building import agent as agent_for
from quarl.device.agent.constants import header
from quarl.device.agent.measure import PERCENTILES, Statistics, compute_required_runs
from quarl.device.agent.operations import OPERATIONS
from quarl.device.deploy.static_agent.release import STARTER_TEXT
from quarl.device.engine.building import HERE
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.spec import Precision
from tests.device_agent.conftest import AgentProcess
from tests.device_agent.test_agent_protocol import FIELD_NAMES, JSON_VALUES
from tests.device_agent.test_lines import ROWS

ONE_MORE = ("p99.95", 0.9995)  # nobody asks for that


class StaticAgent:
    """A running policy-agent."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def raw(self, line: bytes) -> dict[str, Any]:
        """The one reply to a line."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        while True:
            answer = self.process.stdout.readline()
            assert answer, self.process.stderr and self.process.stderr.read()[-3000:]
            reply: dict[str, Any] = json.loads(answer)
            if "progress" not in reply:
                return reply

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        reply = self.raw(json.dumps({"op": op, **fields}).encode())
        assert reply["ok"], reply
        return reply

    def end(self) -> int:
        """Its exit status at the end of its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Policy I with its native int8 artifact, and its pack beside it."""
    folder = tmp_path_factory.mktemp("static") / "I"
    shutil.copytree(ZOO / "I", folder)
    command.write_agent_and_pack(folder, Precision.INT8, "x86_64", folder.parent / "files")
    return Bundle.load(folder)


@pytest.fixture(scope="module")
def pack(bundle: Bundle) -> Path:
    return bundle.path.parent / "files" / command.PACK


@pytest.fixture
def agent(program: tuple[object, ...], pack: Path) -> Iterator[StaticAgent]:
    running = StaticAgent(*program, pack)
    yield running
    assert running.end() == 0


@pytest.fixture(scope="module")
def sanitized(sanitized_program: Path, pack: Path) -> Iterator[StaticAgent]:
    running = StaticAgent(sanitized_program, pack)
    yield running
    assert running.end() == 0


def test_floats_pass_their_golden_vectors(program: tuple[object, ...], tmp_path: Path) -> None:
    shutil.copytree(ZOO / "I", tmp_path / "I")
    command.write_agent_and_pack(tmp_path / "I", Precision.FP16, "x86_64", tmp_path)
    running = StaticAgent(*program, tmp_path / command.PACK)
    loaded = running.ask("load", precision="fp16")
    assert loaded["loaded"]["file"] == "fp16.native" and loaded["golden"]["max_error_steps"] is None
    assert 0.0 < loaded["golden"]["max_error"] <= loaded["golden"]["tolerance"]
    assert loaded["golden"]["action_agreement"] == 1.0
    assert running.end() == 0


def test_it_decides_as_the_agent_in_python_does(agent: StaticAgent, bundle: Bundle, pack: Path) -> None:
    usual = AgentProcess(bundle.path)
    rows = bundle.golden().observations[:40].tolist()
    try:
        described = usual.send(b'{"op": "hello"}')["device"]
        if agent.process.args == [str(agent_for(platform.machine())), str(pack)]:  # not in an emulator
            ours = agent.ask("hello")["device"]
            same = ("machine", "cpu_model", "memory_total_bytes", "kernel", "os", "emulated", "virtualised")
            assert {key: ours[key] for key in same} == {key: described[key] for key in same}
        for op, fields in (
            ("load", {"precision": "int8", "runtime": "native"}),
            ("act", {"observation": rows[0], "id": "é\n"}),
            ("act", {"observations": rows}),
            ("act", {"observation": [int(value) for value in rows[1]], "outputs": False, "id": -7}),
        ):
            ours, theirs = agent.ask(op, **fields), usual.send(json.dumps({"op": op, **fields}).encode())
            for key in theirs.keys() - {"memory", "cold", "inference_ns", "request_ns", "loaded"}:
                assert ours[key] == theirs[key], key
            if op == "load":
                version = {"runtime_version": f"{theirs['loaded']['runtime_version']}, without Python"}
                assert ours["loaded"] == {**theirs["loaded"], **version}
            assert ours.keys() == theirs.keys()
    finally:
        usual.process.kill()
        usual.process.wait()


def vectors_of(*words: object) -> int:
    """How many golden vectors a started agent checks in a load."""
    running = StaticAgent(*words)
    loaded = running.ask("load", precision="int8")
    assert loaded["golden"]["action_agreement"] == 1.0
    assert running.end() == 0
    return int(loaded["golden"]["vectors"])


def test_what_passed_all_golden_vectors_is_checked_with_fewer(
    program: tuple[object, ...], bundle: Bundle, pack: Path, tmp_path: Path
) -> None:
    passed, every = tmp_path / "golden-passed", len(bundle.golden().observations)
    knowing = (*program, pack, f"--passed={passed}")
    assert (vectors_of(*knowing), vectors_of(*knowing), vectors_of(*program, pack)) == (every, 32, every)
    record = passed.read_bytes()
    assert bytes.fromhex(bundle.manifest.artifacts["int8.native"].record.sha256) in record
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    assert record.count(boot) == 1, "a copy of the card proves nothing on another device"
    for other in (record[:-1], b"", record.replace(boot, boot[::-1]), bytes([record[0] ^ 1]) + record[1:]):
        passed.write_bytes(other)
        assert vectors_of(*knowing) == every
        assert passed.read_bytes() == record
    data = bytearray(pack.read_bytes())
    data[struct.unpack_from("<I", data, 16 + 8 * 12)[0]] ^= 1  # the first tolerance, by its last bit
    (tmp_path / command.PACK).write_bytes(data)
    assert vectors_of(*program, tmp_path / command.PACK, f"--passed={passed}") == every, "these are other vectors"
    passed.unlink()
    passed.symlink_to(tmp_path / "elsewhere")
    assert (vectors_of(*knowing), (tmp_path / "elsewhere").exists()) == (every, False)


def test_what_passed_before_is_refused_once_it_computes_wrongly(
    program: tuple[object, ...], pack: Path, tmp_path: Path
) -> None:
    passed, damaged, data = tmp_path / "golden-passed", tmp_path / command.PACK, bytearray(pack.read_bytes())
    vectors_of(*program, pack, f"--passed={passed}")
    (artifact,) = struct.unpack_from("<I", data, 16)
    data[artifact + 4096] ^= 1
    damaged.write_bytes(data)
    running = StaticAgent(*program, damaged, f"--passed={passed}")
    refused = running.raw(b'{"op": "load", "precision": "int8"}')
    assert refused["error"]["code"] == "bundle" and "its hash is another" in refused["error"]["message"]
    assert running.end() == 0


@pytest.mark.parametrize("place", ["releases", "incoming"])
def test_only_a_loop_of_a_release_is_told_what_passed(place: str, tmp_path: Path) -> None:
    folder = tmp_path / place / "0001-a"
    folder.mkdir(parents=True)
    (folder / "run-agent").write_text(STARTER_TEXT)
    words = []
    for arguments in (["loop", "--rate=20"], ["--threads=1"]):
        started = ["sh", str(folder / "run-agent"), *arguments]
        environment = {"PATH": os.environ["PATH"], "QUARL_AGENT": "echo", "QUARL_PACK": "PACK"}
        words.append(
            subprocess.run(started, env=environment, check=True, capture_output=True, text=True).stdout.split()
        )
    in_release = [f"--passed={tmp_path}/golden-passed", "loop", "--release=0001-a", "--rate=20"]
    wanted = in_release if place == "releases" else ["loop", "--release=", "--rate=20"]
    assert words == [["PACK", *wanted], ["PACK", "--threads=1"]]


def test_what_it_measures_is_what_the_protocol_says(agent: StaticAgent, bundle: Bundle, pack: Path) -> None:
    hello = agent.ask("hello")
    assert hello["bundle"]["policy"] == "I" and hello["loaded"] is None and hello["device"]["cores"] >= 1
    agent.ask("load", precision="int8")
    for runs, path in ((5, "runtime"), (1500, "runtime"), (700, "decide")):
        reply = agent.ask("latency", runs=runs, path=path, warmup=3)
        assert (reply["op"], reply["path"], reply["runs"], len(reply["samples_ns"])) == ("latency", path, runs, runs)
        expected = Statistics.of(reply["samples_ns"])
        for name, value in vars(expected).items():
            found = tuple(reply[name]) if isinstance(value, tuple) else reply[name]
            assert found == (pytest.approx(value) if isinstance(value, float) else value), name
    memory = agent.ask("memory", runs=10)
    assert memory["artifact_bytes"] == bundle.manifest.artifacts["int8.native"].record.size
    if agent.process.args == [str(agent_for("x86_64")), str(pack)]:
        assert memory["memory"]["after_load"] <= memory["artifact_bytes"] + 400_000, "resident: its weights and 0.4 MB"
    assert agent.ask("bye")["decisions"] == 3 + 5 + 3 + 1500 + 3 + 700 + 10


@pytest.mark.parametrize("runs", [*range(1, 40), 100, 1000, 4001])
def test_the_median_has_the_interval_that_python_gives_it(runs: int, median_rank: Callable[[int], int]) -> None:
    interval = Statistics.of(list(range(1, runs + 1))).p50_interval
    assert median_rank(runs) == (interval[0] if interval else 0)


def test_lines_of_the_table_harm_nothing_under_sanitizers(sanitized: StaticAgent) -> None:
    sanitized.ask("load", precision="int8")
    for row in ROWS.values():
        assert row.code is None or isinstance(sanitized.raw(row.line)["ok"], bool)


@settings(max_examples=400, deadline=None)
@given(line=st.binary(max_size=200).filter(lambda line: b"\n" not in line and bool(line.strip())))
def test_any_bytes_get_one_reply(sanitized: StaticAgent, line: bytes) -> None:
    reply = sanitized.raw(line)
    assert isinstance(reply["ok"], bool)


@settings(max_examples=400, deadline=None)
@given(
    operation=st.sampled_from(sorted(set(OPERATIONS) - {"bye"})),
    fields=st.dictionaries(st.sampled_from(FIELD_NAMES), JSON_VALUES, max_size=5),
)
def test_any_fields_get_one_reply_and_none_is_an_internal_error(
    sanitized: StaticAgent, operation: str, fields: dict[str, Any]
) -> None:
    fields = {key: value for key, value in fields.items() if key not in ("op", "runs", "warmup")}
    reply = sanitized.raw(json.dumps({"op": operation, **fields}).encode())
    assert reply["ok"] or reply["error"]["code"] not in ("internal", "bad_json"), reply


@settings(max_examples=300, deadline=None)
@given(values=st.lists(JSON_VALUES | st.floats(width=32), min_size=31, max_size=33), many=st.booleans())
def test_any_observation_gets_an_action_or_its_elements_name(
    sanitized: StaticAgent, values: list[Any], many: bool
) -> None:
    sanitized.ask("load", precision="int8")
    fields = {"observations": [values, values]} if many else {"observation": values}
    reply = sanitized.raw(json.dumps({"op": "act", **fields}).encode())
    good = [type(value) in (int, float) and abs(value) <= np.finfo(np.float32).max for value in values]
    assert reply["ok"] == (len(values) == 32 and all(good)), reply
    if not reply["ok"]:
        assert reply["error"]["code"] == "bad_observation"
        if len(values) == 32:
            assert f"[{good.index(False)}] (" in reply["error"]["message"]


def test_lines_that_are_cut_joined_or_too_long(sanitized: StaticAgent) -> None:
    assert sanitized.process.stdin is not None and sanitized.process.stdout is not None
    for part in (b'{"op": "he', b'lp"}\n\n  \n{"op": "help", "id": 1}\n{"op": ', b'"help", "id": 2}\n'):
        sanitized.process.stdin.write(part)
        sanitized.process.stdin.flush()
        time.sleep(0.01)
    assert [json.loads(sanitized.process.stdout.readline()).get("id") for _ in range(3)] == [None, 1, 2]
    assert sanitized.raw(b'{"op": "act", "observation": [' + b"1," * 1_500_000)["error"]["code"] == "line_too_long"
    assert sanitized.ask("help")["ops"].keys() == OPERATIONS.keys() - {"episodes"}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Its reader and writer of numbers, and its statistics with one percentile more than the agents have."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PERCENTILES, *ONE_MORE)
        (folder / "constants.h").write_text(header())
    (folder / "numbers.c").write_text(
        '#include "agent/number.h"\n#include "agent/measure.c"\n#include "loop/punctuality.c"\n'
        "double parse(const char *s, int *whole) { const char *end; return read_number(s, &end, whole); }\n"
        "size_t show(double x, char *to, size_t n)\n"
        "{ struct text t = text_of(to, n); put_double(&t, x); return text_size(&t); }\n"
        "int rank(int n) { return median_rank(n); }\n"
        "void statistics(uint32_t *x, int n, char *to, size_t room)\n"
        "{ struct text t = text_of(to, room); sort(x, n);\n"
        "  put_char(&t, '{'), put_statistics(&t, x, n), put_char(&t, '}'); }\n"
        "void histogram(const uint32_t *x, int n, char *to, size_t room)\n"
        "{ static struct histogram h; struct text t = text_of(to, room);\n"
        "  for (int i = 0; i < n; i++) add_duration(&h, x[i]); put_histogram(&t, &h); }\n"
    )
    options = ["-O2", "-shared", "-fPIC", "-w", "-D_GNU_SOURCE", f"-I{HERE}", f"-I{folder}"]
    sources = [folder / "numbers.c", *(HERE / "agent" / name for name in ("text.c", "number.c"))]
    subprocess.run(["gcc", *options, "-o", folder / "numbers.so", *sources, "-lm"], check=True)
    library = ctypes.CDLL(str(folder / "numbers.so"))
    library.parse.restype, library.parse.argtypes = ctypes.c_double, [ctypes.c_void_p] * 2
    library.show.restype, library.show.argtypes = ctypes.c_size_t, [ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t]
    return library


@pytest.fixture(scope="module")
def median_rank(numbers: ctypes.CDLL) -> Callable[[int], int]:
    return lambda runs: int(numbers.rank(runs))


def test_a_percentile_more_in_python_is_one_more_in_c(numbers: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PERCENTILES, *ONE_MORE)
    drawn = np.random.default_rng(5).lognormal(11, 1, compute_required_runs(ONE_MORE[1])).astype(np.uint32)
    text = [ctypes.create_string_buffer(100_000) for _ in range(2)]
    numbers.histogram(drawn.ctypes, len(drawn), text[0], ctypes.c_size_t(100_000))
    numbers.statistics(drawn.ctypes, len(drawn), text[1], ctypes.c_size_t(100_000))
    histogram, statistics = (json.loads(each.value) for each in text)
    expected = Statistics.of(sorted(drawn.tolist()))
    assert histogram["percentiles"].keys() == expected.percentiles.keys() and histogram["max"] == expected.max
    assert sum(count for _, count in histogram["buckets"]) == histogram["count"] == len(drawn)
    for name, exact in expected.percentiles.items():  # to the width of a bucket
        assert exact <= histogram["percentiles"][name] <= exact + exact // 32
    assert statistics["percentiles"] == expected.percentiles and ONE_MORE[0] in expected.percentiles
    assert statistics["percentiles_withheld"] == {}


DECIMALS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**40), 10**40).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,60})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


@settings(max_examples=3000, deadline=None)
@given(text=DECIMALS)
def test_a_number_is_read_as_python_reads_it_to_the_bit(numbers: ctypes.CDLL, text: str) -> None:
    buffer, whole = ctypes.create_string_buffer(text.encode()), ctypes.c_int()
    found = numbers.parse(buffer, ctypes.byref(whole))
    wanted = float(text)
    if wanted == 0.0 or 1e-271 < abs(wanted) < 1e288:
        assert struct.pack("d", found) == struct.pack("d", wanted)
    with np.errstate(over="ignore"):  # what is smaller or larger is the same float32
        assert struct.pack("f", np.float32(found)) == struct.pack("f", np.float32(wanted))
    assert bool(whole.value) == (text.lstrip("-").isdigit())


def digits_of(text: str) -> str:
    """The significant digits."""
    return text.lower().split("e")[0].replace("-", "").replace(".", "").strip("0")


@settings(max_examples=2000, deadline=None)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_is_written_is_read_as_the_same(numbers: ctypes.CDLL, value: float) -> None:
    buffer = ctypes.create_string_buffer(2000)
    size = numbers.show(value, buffer, 2000)
    text = buffer.raw[:size].decode()
    assert float(text) == json.loads(text) == value
    assert digits_of(text) == digits_of(repr(value))  # the fewest that do


@pytest.mark.parametrize("cut", [0, 7, 40, 200, 5000, -1])
def test_what_is_no_pack_is_refused(pack: Path, tmp_path: Path, cut: int) -> None:
    file = tmp_path / "cut.pack"
    file.write_bytes(pack.read_bytes()[:cut])
    done = subprocess.run([agent_for(platform.machine()), file], capture_output=True, check=False, input=b"")
    assert done.returncode == 1 and b"cut.pack: it " in done.stderr


@pytest.mark.parametrize("path", ["decide", "runtime"])
def test_a_pack_whose_timed_lines_are_others_harms_nothing(
    sanitized_program: Path, pack: Path, tmp_path: Path, path: str
) -> None:
    data, line = pack.read_bytes(), json.dumps({"op": "latency", "runs": 3, "warmup": 0, "path": path}).encode()
    begin = data.index(b'{"op": "act", "observation": [')
    (tmp_path / "other.pack").write_bytes(data[:begin] + line + b"\n" + data[begin + len(line) + 1 :])
    agent = StaticAgent(sanitized_program, tmp_path / "other.pack")
    agent.ask("load", precision="int8")
    assert agent.ask("latency", runs=4, warmup=1, path="decide")["runs"] == 4
    assert agent.end() == 0


def test_an_artifact_that_was_changed_is_not_loaded(pack: Path, tmp_path: Path) -> None:
    data = bytearray(pack.read_bytes())
    artifact = struct.unpack_from("<I", data, 16)[0]
    data[artifact + 3000] ^= 1
    (tmp_path / "changed.pack").write_bytes(data)
    agent = StaticAgent(agent_for(platform.machine()), tmp_path / "changed.pack")
    reply = agent.raw(b'{"op": "load", "precision": "int8"}')
    assert reply["error"]["code"] == "bundle" and "hash" in reply["error"]["message"]
    assert agent.raw(b'{"op": "act", "observation": [1]}')["error"]["code"] == "not_loaded"
    assert agent.end() == 0
