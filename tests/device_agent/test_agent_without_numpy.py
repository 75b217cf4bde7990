"""The agent in the native engine on Pythons that have nothing but their standard library."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quarl.bench.qemu_counter.unpacking import STOCK_PYTHONS, StockPython
from quarl.device.agent.loop.client import Client
from quarl.device.deploy.payload import code_files, library_files
from quarl.policy.bundle import Bundle
from quarl.policy.reference import choose_actions
from quarl.policy.spec import ArtifactFormat, Precision
from tests.device_agent.loop.loops import LoopProcess, in_python
from tests.device_agent.test_static_agent import bundle

__all__ = ["bundle"]  # Policy I with its native int8 artifact

START = "import sys; sys.path[:0] = [{code!r}]; from quarl.device.agent.{module} import main; sys.exit(main())"
HERE = platform.machine()


def code(folder: Path, machine: str) -> str:
    """What a release brings of the agent's code, in a folder."""
    for file in (*code_files(), *library_files(machine, with_engine=True)):
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_bytes(file.data)
    return str(folder)


def decides_as_the_reference(replies: list[dict[str, Any]], bundle: Bundle, rows: int) -> None:
    failed = [reply["error"]["message"] for reply in replies if not reply["ok"]]
    assert len(failed) == 2, failed
    hello, loaded, acted, timed, memory, flown, refused, _ = replies
    assert hello["runtimes"] == {"native": "1"} and hello["simulator"] is False
    assert loaded["golden"]["vectors"] == 512 and loaded["golden"]["max_error"] == 0.0
    expected = bundle.read_expected(bundle.artifact(Precision.INT8, ArtifactFormat.NATIVE))
    assert acted["actions"] == choose_actions(bundle.spec, expected.outputs[:rows]).tolist()
    np.testing.assert_array_equal(np.array(acted["outputs"], np.float32), expected.outputs[:rows])
    assert timed["runs"] == 20 and timed["percentiles"]["p50"] > 0 and memory["memory"]["now"] > 0
    assert flown["error"]["code"] == "unavailable" and "need numpy" in flown["error"]["message"]
    assert refused["error"]["code"] == "bad_observation" and "ranges[2]" in refused["error"]["message"]


def conversation(bundle: Bundle, rows: int) -> list[dict[str, Any]]:
    observations = bundle.golden().observations[:rows].tolist()
    return [
        {"op": "hello"},
        {"op": "load", "precision": "int8"},
        {"op": "act", "observations": observations},
        {"op": "latency", "warmup": 2, "runs": 20, "path": "decide"},
        {"op": "memory", "runs": 5},
        {"op": "episodes", "episodes": 2},
        {"op": "act", "observation": [0.0, 1.0, "x", *observations[0][3:]]},
        {"op": "bye"},
    ]


def answered(command: list[str], place: str, bundle: Bundle, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*command, "-c", START.format(code=place, module="__main__"), "--bundle", str(bundle.path)],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [reply for reply in map(json.loads, done.stdout.splitlines()) if "progress" not in reply]


def test_this_python_without_its_packages(bundle: Bundle, tmp_path: Path) -> None:
    replies = answered([sys.executable, "-I", "-S"], code(tmp_path, HERE), bundle, conversation(bundle, 20))
    decides_as_the_reference(replies, bundle, 20)


def test_a_loop_and_its_client_without_packages(bundle: Bundle, tmp_path: Path) -> None:
    place, golden = code(tmp_path, HERE), bundle.golden()
    start = [sys.executable, "-I", "-S", "-c", START.format(code=place, module="loop.__main__")]
    arguments = ("--rate=50", "--priority=0", "--stale-ms=60000", "--pace=observation")
    loop = LoopProcess([*start, f"--bundle={bundle.path}"], tmp_path / "I.sock", *arguments)
    with loop.connect() as controller:
        for row in golden.observations[:3]:
            controller.send(row)
            action = controller.receive(60.0)
            assert action is not None and not action.flags
            assert action.index == int(np.argmax(action.outputs))
    program = (
        f"import sys; sys.path[:0] = [{place!r}]\n"
        "from quarl.device.agent.loop.client import Client\n"
        f"with Client.connect({str(loop.socket)!r}) as policy:\n"
        f"    policy.send({golden.observations[3].tolist()!r})\n"
        "    print(policy.receive(60.0).index, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[1:] == ["False"], done.stderr
    assert 0 <= int(done.stdout.split()[0]) < 25
    status, log = loop.end()
    assert status == 0, log


def test_a_client_takes_arrays_of_any_kind(bundle: Bundle, tmp_path: Path) -> None:
    row = bundle.golden().observations[0]
    loop = LoopProcess(in_python(bundle.path), tmp_path / "I.sock", "--rate=50", "--priority=0", "--pace=observation")
    found = []
    with loop.connect() as controller:
        assert isinstance(controller, Client)
        for each in (row, row[None], row.astype(np.float64), row.tolist(), tuple(row.tolist())):
            controller.send(each)
            action = controller.receive(60.0)
            assert action is not None
            found.append(action.outputs.tobytes())
    assert len(set(found)) == 1
    assert loop.end()[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("stock", STOCK_PYTHONS, ids=lambda stock: f"{stock.series}-{stock.machine}")
def test_pythons_as_systems_bring_them(stock: StockPython, bundle: Bundle, tmp_path: Path) -> None:
    """Debian's own, of both ends of what is supported, and on 32 bits: the emulated ones by QEMU."""
    if not stock.folder.is_dir():
        pytest.skip("needs Debian's Pythons unpacked: make test fetches them, with mmdebstrap")
    if stock.machine != HERE and shutil.which(stock.emulator[0]) is None:
        pytest.skip("needs QEMU: apt-get install qemu-user")
    replies = answered(stock.command(HERE), code(tmp_path, stock.machine), bundle, conversation(bundle, 20))
    decides_as_the_reference(replies, bundle, 20)
    assert replies[0]["device"]["python"].startswith(f"{stock.series}.")
