"""A contestant whose decisions are made and timed in C: emlearn's network, or the native engine.

python -m bench.peers.loop FOLDER/policy.so emlearn
python -m bench.peers.loop FOLDER/policy.so FOLDER/int8.native
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np

from quarl.bench.command_line import BenchError
from quarl.bench.peers.turns import serve, take_core
from quarl.device.engine.engine import Engine, library
from quarl.policy.spec import PolicySpec

HERE = Path(__file__).resolve().parent
EMLEARN = "emlearn"
FLAGS = ("-O3", "-march=native", "-ffast-math", "-std=gnu11", "-shared", "-fPIC")


def compile_loop(folder: Path) -> Path:
    """Return the loop with emlearn's ``policy.c`` of that folder in it.

    Raises:
        BenchError: with the compiler's words.
    """
    library_path, includes = folder / "policy.so", (folder / "includes").read_text()
    command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, f"-I{folder}", f"-I{includes}", str(HERE / "loop.c")]
    done = subprocess.run([*command, "-lm", "-o", str(library_path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the C code that emlearn generated does not compile: {done.stderr.strip()[-500:]}")
    return library_path


def main(compiled_loop: Path, what: str) -> None:
    """Serve one."""
    take_core()
    folder = compiled_loop.parent
    spec = PolicySpec.from_json((folder / "spec.json").read_bytes())
    rows = np.load(folder / "observations.npy", allow_pickle=False)
    loop = ctypes.CDLL(str(compiled_loop))
    loop.loop_ns.restype = ctypes.c_double
    outputs = np.zeros(spec.output_size, np.float32)
    if what == EMLEARN:
        size = ctypes.c_int(spec.observation_size)
        function, owner = (
            ctypes.cast(loop.emlearn_decide, ctypes.c_void_p),
            ctypes.cast(ctypes.byref(size), ctypes.c_void_p),
        )
        size_bytes = sum(
            layer.nbytes for name, layer in np.load(folder / "network.npz").items() if name[:4] in ("kern", "bias")
        )
    else:
        artifact = Path(what).read_bytes()
        engine = Engine(library(), artifact, spec.observation_size, spec.output_size)
        function, _, owner = engine.in_c
        size_bytes = len(artifact)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(function.value or 0)
    at = ctypes.c_long(0)

    def decide(row: np.ndarray) -> int:
        return int(call(owner, row.ctypes.data, outputs.ctypes.data))

    def time_part(count: int) -> float:
        sizes = (ctypes.c_long(argument) for argument in (len(rows), spec.observation_size, count))
        fed = (ctypes.c_void_p(argument.ctypes.data) for argument in (outputs, rows))
        return float(loop.loop_ns(function, owner, *fed, *sizes, ctypes.byref(at)))

    serve(decide, list(rows), size_bytes, time_part)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
