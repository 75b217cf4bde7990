"""What is sent, and what never is."""

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from quarl.device.deploy.payload import STAYS_AT_HOME, build_payload, code_files, compile_module, starter
from quarl.device.deploy.probe import PythonFacts
from quarl.device.deploy.records import CODE_ARCHIVE
from quarl.device.deploy.wheels import WheelSet, load_pins
from quarl.policy.bundle import Bundle
from quarl.policy.errors import BundleError
from quarl.policy.places import IMPORTED_FROM
from quarl.policy.spec import Precision, RuntimeName

INT8, FP32 = Precision.INT8, Precision.FP32
LITERT, ONNX = RuntimeName.LITERT, RuntimeName.ONNXRUNTIME
WHEELS = WheelSet(PythonFacts("/usr/bin/python3", (3, 11, 2), 64), load_pins()[:2], "x86_64")


def names(bundle: Bundle, precisions: list[Precision], runtimes: list[RuntimeName]) -> set[str]:
    return {file.path for file in build_payload(bundle, precisions, runtimes, WHEELS).files}


def members(bundle: Bundle, wheels: WheelSet = WHEELS) -> set[str]:
    """The files in the archive of the code."""
    (file,) = (file for file in build_payload(bundle, [INT8], [LITERT], wheels).files if file.path == CODE_ARCHIVE)
    with zipfile.ZipFile(io.BytesIO(file.data)) as archive:
        assert archive.testzip() is None
        return set(archive.namelist())


def test_the_devices_part_of_a_bundle(bundle: Bundle) -> None:
    found = names(bundle, [INT8], [LITERT])
    assert found == {
        "run-agent", "lib/quarl.zip", "lib/quarl_loop.h", "bundle/policy.json", "bundle/manifest.json",
        "bundle/golden.npz", "bundle/int8.tflite", "bundle/int8.golden.npz",
    }  # fmt: skip
    both = names(bundle, [INT8, FP32], [LITERT, ONNX])
    assert {"bundle/fp32.onnx", "bundle/fp32.tflite", "bundle/int8.onnx", "bundle/fp32.golden.npz"} <= both
    assert not {path for path in both if "weights" in path or "calibration" in path}


def closure_of(module: str) -> set[str]:
    """The files of the checkout that a module imports, and what these import, packages included."""
    root, found, left = IMPORTED_FROM, set(), [module]
    while left:
        name = left.pop()
        path = root.joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in STAYS_AT_HOME or not file.is_file() or str(file.relative_to(root)) in found:
            continue
        found.add(str(file.relative_to(root)))
        left.append(name.rpartition(".")[0])
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def test_what_is_sent_is_what_the_agent_imports_and_no_more(bundle: Bundle) -> None:
    found = members(bundle)
    bytecode = {path for path in found if path.endswith(".pyc")}
    assert bytecode == {f"{path}c" for path in found - bytecode if path.endswith(".py")}
    found -= bytecode
    modules = ("quarl.device.agent.__main__", "quarl.device.agent.loop.__main__", "quarl.device.agent.loop.client")
    assert found == {"quarl/device/engine/libloop.so"}.union(*map(closure_of, modules))
    assert sorted(found) == Path(__file__).with_name("payload.txt").read_text().split()
    assert not {path for path in found if "writer" in path or "gym_env" in path or "device/deploy" in path}
    for file in code_files(IMPORTED_FROM):
        assert b"import gymnasium" not in file.data


def test_bytecode_is_for_the_hosts_series_and_always_the_same(bundle: Bundle) -> None:
    module = next(file for file in code_files(IMPORTED_FROM) if file.path.endswith("device/agent/server.py"))
    program = (
        "from pathlib import Path; from quarl.device.deploy.payload import PayloadFile, compile_module\n"
        "data = Path('device/agent/server.py').read_bytes()\n"
        "print(compile_module(PayloadFile('quarl/device/agent/server.py', data)).sha256)"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=IMPORTED_FROM,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == compile_module(module).sha256
    other = WheelSet(PythonFacts("python3", (sys.version_info[0], sys.version_info[1] + 1, 0), 64), ())
    assert not [path for path in members(bundle, other) if path.endswith(".pyc")]


def test_the_code_runs_alone(bundle: Bundle, tmp_path: Path) -> None:
    """Nothing but the sent files, numpy and one runtime on the path: every module of the agent can be imported."""
    payload = build_payload(bundle, [INT8], [LITERT], WHEELS)
    for file in payload.files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(file.data)
    packages = tmp_path / "packages"
    packages.mkdir()
    installed = Path(next(path for path in sys.path if path.endswith("site-packages")))
    for name in ("numpy", "numpy.libs", "ai_edge_litert"):
        (packages / name).symlink_to(installed / name)
    requests = [{"op": "hello"}, {"op": "load", "precision": "int8"}, {"op": "episodes", "episodes": 2, "batch": 2}]
    done = subprocess.run(
        [sys.executable, "-sS", "-m", "quarl.device.agent", "--bundle", "bundle"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}/{CODE_ARCHIVE}:{packages}", "PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    replies = [reply for reply in replies if "progress" not in reply]
    assert [reply["ok"] for reply in replies] == [True, True, True], (replies, done.stderr)
    assert replies[0]["bundle"]["policy"] == "tiny"


def test_the_digest_is_of_the_content(bundle: Bundle) -> None:
    once, again = (build_payload(bundle, [INT8], [LITERT], WHEELS) for _ in range(2))
    assert once.digest == again.digest
    assert once.digest != build_payload(bundle, [INT8, FP32], [LITERT], WHEELS).digest
    other_wheels = WheelSet(WHEELS.python, load_pins()[:1])
    assert once.digest != build_payload(bundle, [INT8], [LITERT], other_wheels).digest


def copy_of(bundle: Bundle, path: Path) -> Bundle:
    shutil.copytree(bundle.path, path)
    return Bundle.load(path)


def test_a_tampered_artifact_is_not_sent(bundle: Bundle, tmp_path: Path) -> None:
    """Tampered with after the bundle was loaded: what is read for sending is verified again."""
    copy = copy_of(bundle, tmp_path / "copy")
    file = copy.path / "int8.tflite"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match=r"int8\.tflite was tampered with.*Nothing was sent"):
        build_payload(copy, [INT8], [LITERT], WHEELS)
    file.unlink()
    with pytest.raises(BundleError, match=r"int8\.tflite is missing"):
        build_payload(copy, [INT8], [LITERT], WHEELS)


def test_what_was_never_converted_or_checked_in_a_runtime_is_not_sent(bundle: Bundle, tmp_path: Path) -> None:
    copy = copy_of(bundle, tmp_path / "copy")
    manifest = json.loads((copy.path / "manifest.json").read_text())
    for entry in manifest["artifacts"]:
        entry["runtimes"].pop("litert", None)
    (copy.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"int8\.tflite .* litert.*tflite-runtime"):
        build_payload(Bundle.load(copy.path), [INT8], [LITERT], WHEELS)
    with pytest.raises(BundleError, match="quarl convert --bits 16 --policy tiny"):
        build_payload(bundle, [Precision.FP16], [LITERT], WHEELS)


def test_the_starter_is_a_valid_script_and_quotes() -> None:
    text = starter("/opt/my python/bin/python3", ("numpy-1",), isolated=True)
    assert subprocess.run(["sh", "-n"], input=text, text=True).returncode == 0
    assert "'/opt/my python/bin/python3' -sS -c " in text
    assert "-s -c " in starter("python3", (), isolated=False)
