"""Pinned wheels: which are chosen for which device, and that a cached one touches no network."""

import dataclasses
import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from quarl import cli
from quarl.device.deploy import wheels
from quarl.device.deploy.errors import UnsupportedDeviceError, WheelError
from quarl.device.deploy.probe import PythonFacts, TargetFacts
from quarl.device.deploy.wheels import Wheel, fetch, load_pins, parse_runtimes, select, unseen
from quarl.policy.places import cache_folder
from quarl.policy.reading import FileRecord
from quarl.policy.spec import RuntimeName

LITERT, TFLITE, ONNX = RuntimeName.LITERT, RuntimeName.TFLITE_RUNTIME, RuntimeName.ONNXRUNTIME
NATIVE = RuntimeName.NATIVE


def facts(machine: str, *pythons: str, glibc: tuple[int, int] | None = (2, 36), numpy: str = "") -> TargetFacts:
    bits = 32 if machine == "armv7l" else 64
    found = []
    for text in pythons:
        major, minor = (int(part) for part in text.split("."))
        found.append(PythonFacts(f"/usr/bin/python{text}", (major, minor, 1), bits, numpy))
    return TargetFacts(machine, "Linux", "/home/pi", glibc, 1 << 34, 1 << 30, 1 << 29, "", tuple(found))


def names(chosen: wheels.WheelSet) -> list[str]:
    return [str(wheel) for wheel in chosen.wheels]


def test_pins_agree_with_their_names_and_with_requirements() -> None:
    pins = load_pins()
    assert len({pin.folder for pin in pins}) == len(pins)
    for pin in pins:
        series = pin.python.replace(".", "")
        assert pin.file.startswith(f"{pin.distribution.replace('-', '_')}-{pin.version}-cp{series}-cp{series}-")
        assert all(tag.endswith(pin.machine) for tag in pin.platforms)
        assert re.fullmatch("[0-9a-f]{64}", pin.sha256)
        assert "/" not in pin.file
    # What a device executes is what conversion was checked with on the host.
    text = (Path(wheels.__file__).resolve().parents[2] / "requirements.txt").read_text()
    for pin in load_pins():
        if pin.python == "3.11":
            assert f"{pin.distribution}=={pin.version}" in text


@pytest.mark.parametrize(("described", "runtime", "message"), [
    (
        facts("aarch64", "3.13"),
        TFLITE,
        r"Python 3\.13 on aarch64 lacks tflite-runtime.*tflite-runtime on aarch64 for Python 3\.11",
    ),
    # Built for glibc 2.34; Debian bullseye has 2.31.
    (facts("aarch64", "3.11", glibc=(2, 31)), TFLITE, r"glibc 2\.31 \(it needs 2\.34\)"),
    (facts("aarch64", "3.11", glibc=None), LITERT, "must be glibc"),
    (facts("armv7l", "3.11"), TFLITE, "apt-get install python3-numpy"),
    (facts("armv7l", "3.11", numpy="1.24.2"), LITERT, "ai-edge-litert"),
    (facts("aarch64", "3.8"), NATIVE, r"Python 3\.8 is older than 3\.9"),
    (unseen("aarch64", "3.9"), LITERT, r"Python 3\.9 on aarch64 lacks numpy, ai-edge-litert.*Supported:"),
    (unseen("riscv64", "3.11"), LITERT, "on riscv64 lacks"),
    *(
        (facts(machine, "3.11"), LITERT, "Supported: ai-edge-litert on aarch64 for Python")
        for machine in ("riscv64", "i686", "armv6l")
    ),
])  # fmt: skip
def test_what_has_no_wheels_is_told_why(described: TargetFacts, runtime: RuntimeName, message: str) -> None:
    with pytest.raises(UnsupportedDeviceError, match=f"(?s){message}"):
        select(described, (runtime,))


def test_runtimes_are_read() -> None:
    assert parse_runtimes("all") == tuple(RuntimeName)
    assert parse_runtimes("litert,onnxruntime,litert") == (LITERT, ONNX)
    with pytest.raises(WheelError, match="tflite-runtime, litert, onnxruntime, native, all"):
        parse_runtimes("tensorrt")
    with pytest.raises(WheelError, match="'eleven'"):
        unseen("aarch64", "eleven")


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "AARCH64"])
@pytest.mark.parametrize("python", ["3.11", "3.11.2"])
def test_wheels_of_a_device_that_is_not_there(machine: str, python: str) -> None:
    chosen = select(unseen(machine, python), (LITERT, ONNX)).wheels
    assert chosen == select(facts("aarch64", "3.11"), (LITERT, ONNX)).wheels


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel cache of a user with neither network nor device: whoever asks for one fails the test."""

    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError("a device or the network was asked")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("quarl.device.deploy.connection.connect", forbidden)
    monkeypatch.setattr(subprocess, "run", forbidden)
    return cache_folder() / "wheels"


def test_prefetching_for_a_device_that_is_not_there(
    away: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[str] = []

    def download(wheel: Wheel, path: Path) -> None:
        requests.append(wheel.file)
        path.write_bytes(b"wheel")

    monkeypatch.setattr(wheels, "_download", download)
    command = ["prefetch", "--platform", "aarch64", "--python", "3.11", "--runtime", "litert"]
    assert cli.main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expected = select(facts("aarch64", "3.11"), (LITERT,)).wheels
    assert requests == [wheel.file for wheel in expected]
    assert answer["files"] == [str(away / wheel.file) for wheel in expected]
    assert answer["downloaded"] == ["numpy 1.26.4", "ai-edge-litert 2.3.0"]
    # What the cache has is not fetched, and Python 3.11 is what is meant when none is named.
    pinned = {wheel.file: FileRecord(0, wheel.sha256) for wheel in expected}
    monkeypatch.setattr(FileRecord, "of_file", staticmethod(lambda path: pinned[path.name]))
    assert cli.main(["prefetch", "--platform", "arm64", "--runtime", "litert"]) == 0
    assert "2 wheels for Python 3.11 on aarch64 are in the cache, 0 of them new" in capsys.readouterr().out
    assert len(requests) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["--python", "3.11"], "--platform aarch64 --python 3.11"),
    (["--platform", "aarch64", "--python", "3"], "--python must"),
    (["--platform", "riscv64"], "Supported: ai-edge-litert on aarch64"),
    (["--platform", "aarch64", "--runtime", "torch"], "tflite-runtime"),
])  # fmt: skip
def test_prefetching_says_what_is_wrong_and_fetches_nothing(
    away: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["prefetch", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not away.exists()


def a_wheel(content: bytes) -> Wheel:
    return dataclasses.replace(load_pins()[0], sha256=hashlib.sha256(content).hexdigest())


def test_a_cached_wheel_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = a_wheel(b"wheel")
    (tmp_path / wheel.file).write_bytes(b"wheel")

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", forbidden)
    assert fetch([wheel], tmp_path) == {wheel: tmp_path / wheel.file}


def pip_that_writes(content: bytes, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / a_wheel(b"wheel").file).write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_damaged_cached_wheel_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = a_wheel(b"wheel")
    (tmp_path / wheel.file).write_bytes(b"whe")
    calls = pip_that_writes(b"wheel", monkeypatch)
    assert fetch([wheel], tmp_path)[wheel].read_bytes() == b"wheel"
    assert [path.name for path in tmp_path.iterdir()] == [wheel.file]
    (command,) = calls
    assert command[command.index("--platform") + 1] == wheel.platforms[0]
    assert "--only-binary=:all:" in command and "--no-deps" in command


def test_a_wheel_with_another_hash_than_the_pin_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that_writes(b"evil!", monkeypatch)
    with pytest.raises(WheelError, match="It was not used"):
        fetch([a_wheel(b"wheel")], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_offline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(WheelError, match="machine is online"):
        fetch([a_wheel(b"wheel")], tmp_path)


LITERT_311 = ["numpy 1.26.4", "ai-edge-litert 2.3.0"]
CHOSEN: list[tuple[TargetFacts, tuple[RuntimeName, ...], str, list[str]]] = [
    (facts("aarch64", "3.11"), (LITERT,), "3.11", LITERT_311),
    (facts("aarch64", "3.11"), tuple(RuntimeName), "3.11",
     ["numpy 1.26.4", "tflite-runtime 2.14.0", "ai-edge-litert 2.3.0", "onnxruntime 1.31.1"]),
    (facts("aarch64", "3.11", glibc=(2, 31)), (LITERT,), "3.11", LITERT_311),
    (facts("aarch64", "3.13"), (LITERT, ONNX), "3.13", ["numpy 2.2.6", "ai-edge-litert 2.3.0", "onnxruntime 1.31.1"]),
    # The first interpreter that has all wheels is taken.
    (facts("x86_64", "3.9", "3.13", "3.11"), (TFLITE,), "3.11", ["numpy 1.26.4", "tflite-runtime 2.14.0"]),
    (facts("armv7l", "3.11", numpy="1.24.2"), (TFLITE,), "3.11", ["tflite-runtime 2.14.0"]),
    (unseen("armv7l", "3.11"), (TFLITE,), "3.11", ["tflite-runtime 2.14.0"]),
    # Numpy is for flights on the device alone; the native agent decides without it, on any C library.
    (facts("armv7l", "3.11"), (NATIVE,), "3.11", []),
    (facts("aarch64", "3.9"), (NATIVE,), "3.9", []),
    (facts("aarch64", "3.11", glibc=None), (NATIVE,), "3.11", []),
    (facts("aarch64", "3.11"), (NATIVE,), "3.11", ["numpy 1.26.4"]),
    (facts("x86_64", "3.8", "3.10"), (NATIVE,), "3.10", []),
]  # fmt: skip


@pytest.mark.parametrize(("described", "runtimes", "series", "wanted"), CHOSEN)
def test_which_wheels_are_chosen(
    described: TargetFacts, runtimes: tuple[RuntimeName, ...], series: str, wanted: list[str]
) -> None:
    chosen = select(described, runtimes)
    assert (chosen.python.series, names(chosen)) == (series, wanted)
    assert all(wheel.machine == described.machine for wheel in chosen.wheels)
