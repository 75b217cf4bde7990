"""The agent as a process: what it imports, what reaches its output, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarl import policy
from quarl.policy.bundle import Bundle
from quarl.policy.spec import RuntimeName

Converse = Callable[..., tuple[list[dict[str, Any]], bytes]]

OWN = {"quarl", "policy", "airlearning_envs", "device", "numpy"}
FORBIDDEN = {"tensorflow", "keras", "gymnasium", "safetensors", "paramiko", "rich", "onnx", "convert", "train", "bench"}
PACKAGES = {"litert": "ai_edge_litert", "tflite-runtime": "tflite_runtime", "onnxruntime": "onnxruntime"}
NATIVE = "device"


def run_script(script: str, bundle: Path, lines: list[bytes]) -> subprocess.CompletedProcess[bytes]:
    """Run the agent's main from a script."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(bundle)],
        input=b"\n".join(lines) + b"\n",
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("runtime", [name.value for name in RuntimeName])
def test_the_agent_imports_only_numpy_the_contract_and_one_runtime(runtime: str, pilot: Bundle) -> None:
    script = """
        import sys
        before = set(sys.modules)
        from quarl.device.agent.__main__ import main
        code = main(["--bundle", sys.argv[1]])
        loaded = {n for n, module in sys.modules.items() if n not in before and getattr(module, "__file__", None)}
        print("MODULES", *sorted({n.removeprefix("quarl.").split(".")[0] for n in loaded}), file=sys.stderr)
        sys.exit(code)
    """
    row = json.dumps([1.0] * 32).encode()
    done = run_script(
        script,
        pilot.path,
        [
            b'{"op": "hello"}',
            json.dumps({"op": "load", "precision": "int8", "runtime": runtime}).encode(),
            b'{"op": "latency", "runs": 20}',
            b'{"op": "latency", "runs": 20, "path": "decide"}',
            b'{"op": "memory"}',
            b'{"op": "act", "observation": ' + row + b"}",
            b'{"op": "episodes", "episodes": 2}',
        ],
    )
    assert done.returncode == 0, done.stderr.decode()
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["ok"] for r in replies if "progress" not in r] == [True] * 7, replies
    listed = next(line for line in done.stderr.decode().splitlines() if line.startswith("MODULES"))
    modules = set(listed.split()[1:])
    assert not modules & FORBIDDEN
    assert {"policy", "airlearning_envs", "device", PACKAGES.get(runtime, NATIVE)} <= modules
    own = {PACKAGES.get(runtime, NATIVE)}
    assert not modules & (set(PACKAGES.values()) - own)
    assert modules - OWN - set(sys.stdlib_module_names) - own == set()


def test_no_runtime_or_simulator_is_imported_before_loading(pilot: Bundle) -> None:
    script = """
        import sys
        from quarl.device.agent.__main__ import main
        main(["--bundle", sys.argv[1]])
        print("MODULES", *sorted(sys.modules), file=sys.stderr)
    """
    done = run_script(script, pilot.path, [b'{"op": "hello"}', b'{"op": "help"}'])
    listed = next(line for line in done.stderr.decode().splitlines() if line.startswith("MODULES"))
    modules = set(listed.split()[1:])
    assert not modules & set(PACKAGES.values()) and "quarl.airlearning_envs.task" not in modules


def test_what_a_runtime_prints_never_reaches_the_replies(pilot: Bundle) -> None:
    script = """
        import os, subprocess, sys
        from quarl.device.agent import runtimes
        from quarl.device.agent.__main__ import main
        real = runtimes.open_artifact
        def noisy(*arguments):
            print("NOISE from Python")
            os.write(1, b'{"ok": true, "noise": "from C"}\\n')
            subprocess.run(["echo", "NOISE from a child"], check=True)
            return real(*arguments)
        import quarl.device.agent.serving
        quarl.device.agent.serving.open_artifact = noisy
        code = main(["--bundle", sys.argv[1]])
        print("NOISE at the end")
        sys.exit(code)
    """
    done = run_script(script, pilot.path, [b'{"op": "load", "precision": "int8"}', b'{"op": "bye"}'])
    assert done.returncode == 0
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reply["op"] for reply in replies] == ["load", "bye"]
    log = done.stderr.decode()
    for noise in ("NOISE from Python", "from C", "NOISE from a child", "NOISE at the end"):
        assert noise in log


def test_what_follows_bye_is_not_answered(pilot: Bundle, converse: Converse) -> None:
    replies, _ = converse(pilot.path, [b'{"op": "bye"}', b'{"op": "help"}'])
    assert [reply["op"] for reply in replies] == ["bye"]


def test_an_overlong_line_is_refused_whole_and_the_next_one_is_answered(pilot: Bundle, converse: Converse) -> None:
    replies, _ = converse(
        pilot.path, [b'{"op": "act", "observation": [' + b"0," * 9_000_000 + b"0]}", b'{"op": "help"}']
    )
    assert [reply["ok"] for reply in replies] == [False, True]
    assert replies[0]["error"]["code"] == "line_too_long"


def test_an_overlong_last_line_ends_it_too(pilot: Bundle, converse: Converse) -> None:
    replies, _ = converse(pilot.path, [b"x" * (17 * 2**20)])
    assert [reply["error"]["code"] for reply in replies] == ["line_too_long"]


def test_it_ends_quietly_when_whoever_asked_is_gone(pilot: Bundle) -> None:
    read, write = os.pipe()
    agent = subprocess.Popen(
        [sys.executable, "-m", "quarl.device.agent", "--bundle", str(pilot.path)],
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    os.close(read)
    _, log = agent.communicate(b'{"op": "help"}\n' * 3, timeout=30)
    assert agent.returncode == 0 and b"Traceback" not in log


def test_a_closed_input_is_an_ended_one(pilot: Bundle) -> None:
    script = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", script, "-m", "quarl.device.agent", "--bundle", str(pilot.path)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_it_runs_with_an_empty_environment_from_a_folder_of_its_own(pilot: Bundle, tmp_path: Path) -> None:
    # As a release on a device: nothing but the code, on a PYTHONPATH of that folder.
    root, place = Path(policy.__file__).parents[1], tmp_path / "quarl"
    (place / "device").mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "device" / "__init__.py").write_text("")
    for package in ("policy", "airlearning_envs", "device/agent", "device/engine"):
        (place / package).symlink_to(root / package)
    done = subprocess.run(
        [sys.executable, "-B", "-m", "quarl.device.agent", "--bundle", str(pilot.path)],
        input=b'{"op": "load", "precision": "int8"}\n{"op": "episodes", "episodes": 1}\n',
        capture_output=True,
        timeout=60,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [reply["ok"] for reply in replies if "progress" not in reply] == [True, True]


@pytest.mark.parametrize("arguments", [[], ["--bundle", "x", "--threads", "0"], ["--bundle", "x", "--threads", "many"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quarl.device.agent", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 2 and b"usage:" in done.stderr and done.stdout == b""
