"""A contestant whose decisions are made and timed in C: emlearn's network, ExecuTorch, or the native engine.

python -m bench.peers.loop FOLDER/emlearn.so
python -m bench.peers.loop FOLDER/int8.pte
python -m bench.peers.loop FOLDER/int8.native
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from quarl.bench.command_line import BenchError
from quarl.bench.peers.turns import serve, take_core
from quarl.device.engine.engine import Engine, library
from quarl.policy.spec import PolicySpec

HERE = Path(__file__).resolve().parent
EMLEARN, EXECUTORCH = "emlearn", "ExecuTorch"
PROGRAM = ".pte"
"""Suffix of ExecuTorch's files."""
FLAGS = ("-O3", "-march=native", "-ffast-math", "-std=gnu11", "-shared", "-fPIC")
ZIG = (sys.executable, "-m", "ziglang", "cc", *FLAGS)


def compile_loop(folder: Path) -> None:
    """Write ``loop.so``; raises as :func:`compile_source`."""
    compile_source([*ZIG, str(HERE / "loop.c")], folder / "loop.so")


def compile_emlearn(folder: Path, includes: str) -> Path:
    """Return emlearn's ``policy.c`` of a folder, compiled; raises as :func:`compile_source`."""
    command = [*ZIG, f"-I{folder}", f"-I{includes}", str(HERE / "emlearn.c"), "-lm"]
    return compile_source(command, folder / f"{EMLEARN}.so")


def compile_executorch(folder: Path, package: str) -> None:
    """Write ``executorch.so``, against the libraries of its package; raises as :func:`compile_source`.

    They are made by g++, which is asked for here, too: its C++ library's names are another than clang's.
    """
    flags = ["-O2", "-w", "-std=c++17", "-shared", "-fPIC", "-DC10_USING_CUSTOM_GENERATED_MACROS"]
    includes = [f"-I{package}/include", f"-I{package}/include/executorch/runtime/core/portable_type/c10"]
    parts = ("", "_backend_xnnpack", "_threadpool", "_kernels_optimized")
    libraries = [f"-L{package}/lib", f"-Wl,-rpath,{package}/lib", "-Wl,--no-as-needed"]
    libraries += [f"-lexecutorch{part}" for part in parts]
    compile_source(["g++", *flags, str(HERE / "executorch.cpp"), *includes, *libraries], folder / "executorch.so")


def compile_source(command: Sequence[str], output: Path) -> Path:
    """Return what a compiler writes.

    Raises:
        BenchError: with the compiler's words, or that it is missing.
    """
    try:
        done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BenchError(f"{command[0]} is not installed.", f"sudo apt-get install {command[0]}") from error
    if done.returncode:
        raise BenchError(f"{output.name} does not compile: {done.stderr.strip()[-500:]}")
    return output


@contextmanager
def without_messages() -> Iterator[None]:
    """Drop what is written to standard error from C."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def open_policy(file: Path, spec: PolicySpec) -> tuple[ctypes.c_void_p, Any, int, object]:
    """Return a policy's C function, what it is called with, its size in bytes, and what has to live meanwhile.

    Raises:
        BenchError: ExecuTorch refuses the file.
    """
    if file.suffix == ".so":
        network = np.load(file.parent / "network.npz", allow_pickle=False)
        size = sum(layer.nbytes for name, layer in network.items() if name[:4] in ("kern", "bias"))
        elements = ctypes.c_int(spec.observation_size)
        return _function(ctypes.CDLL(str(file)).emlearn_decide), ctypes.byref(elements), size, elements
    artifact = file.read_bytes()
    if file.suffix == PROGRAM:
        with without_messages():
            program = ctypes.CDLL(str(file.parent / "executorch.so"))
            program.executorch_open.restype = ctypes.c_void_p
            opened = program.executorch_open(str(file).encode(), spec.observation_size, spec.output_size)
        if opened is None:
            raise BenchError(f"ExecuTorch refuses {file.name}.")
        return _function(program.executorch_decide), ctypes.c_void_p(opened), len(artifact), program
    engine = Engine(library(), artifact, spec.observation_size, spec.output_size)
    function, _, owner = engine.in_c
    return function, owner, len(artifact), engine


def _function(named: Any) -> ctypes.c_void_p:
    return ctypes.cast(named, ctypes.c_void_p)


def main(file: Path) -> None:
    """Serve one."""
    take_core()
    folder = file.parent
    spec = PolicySpec.from_json((folder / "spec.json").read_bytes())
    rows = np.load(folder / "observations.npy", allow_pickle=False)
    loop = ctypes.CDLL(str(folder / "loop.so"))
    loop.loop_ns.restype = ctypes.c_double
    outputs = np.zeros(spec.output_size, np.float32)
    function, owner, size, _kept = open_policy(file, spec)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(function.value or 0)
    at = ctypes.c_long(0)

    def decide(row: np.ndarray) -> int:
        return int(call(owner, row.ctypes.data, outputs.ctypes.data))

    def time_part(count: int) -> float:
        sizes = (ctypes.c_long(argument) for argument in (len(rows), spec.observation_size, count))
        fed = (ctypes.c_void_p(argument.ctypes.data) for argument in (outputs, rows))
        return float(loop.loop_ns(function, owner, *fed, *sizes, ctypes.byref(at)))

    serve(decide, list(rows), size, time_part)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
