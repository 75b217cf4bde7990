"""Who is timed: this project's runtimes, other programs, and what is called from a loop in C."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from quarl.bench.command_line import BenchError
from quarl.bench.peers.loop import EMLEARN, EXECUTORCH, PROGRAM, compile_emlearn, compile_executorch, compile_loop
from quarl.bench.peers.turns import TimedProgram, of_runtime
from quarl.convert.mixed import kernel_sizes
from quarl.convert.pipeline import build_graph
from quarl.device.engine.engine import kernels_here, library
from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName

PROGRAMS = ("ncnn", "MNN", "OpenVINO")
FLOATS_AND_INT8 = (Precision.FP32, Precision.INT8)
OURS = {
    RuntimeName.LITERT: FLOATS_AND_INT8,
    RuntimeName.TFLITE_RUNTIME: FLOATS_AND_INT8,
    RuntimeName.ONNXRUNTIME: FLOATS_AND_INT8,
    RuntimeName.NATIVE: (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4),
}
LARGEST_SOURCE = 100_000
"""Weights; as source code more take minutes to compile."""
IN_C = " in C"
WORKER = str(PROJECT_ROOT / "bench" / "peers" / "worker.py")
"""The worker's path, by which it is started: a command that is named as a module is handed to the project's Python."""
WHERE = {"PYTHONPATH": str(PROJECT_ROOT)}

TimedPrograms = dict[tuple[str, str], TimedProgram]
"""Contestants by the names of program and precision."""


def ours(folder: Path, bundle: Bundle) -> TimedPrograms:
    """Return the runtimes of this project's environment."""
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    programs: TimedPrograms = {}
    for runtime, precisions in OURS.items():
        kernels = kernels_here(library())[0] if runtime is RuntimeName.NATIVE else ""
        for precision in precisions:
            data = build_graph(spec, weights, calibration, precision, runtime.artifact_format)
            programs[runtime.value, precision.value] = of_runtime(folder, runtime, kernels, data)
    return programs


def others(folder: Path, python: Path) -> TimedPrograms:
    """Other programs, from the environment of ``make peers``."""
    command = (str(python), WORKER, str(folder))
    pairs = product(PROGRAMS, (Precision.FP32.value, Precision.INT8.value))
    return {(name, precision): TimedProgram(name, (*command, name, precision), WHERE) for name, precision in pairs}


def in_c(folder: Path, bundle: Bundle, python: Path) -> TimedPrograms:
    """ExecuTorch, the native engine and emlearn's C from a loop in C; the last of a network that is small enough.

    Raises:
        BenchError: a program writes nothing, or it cannot be compiled.
    """
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    compile_loop(folder)
    compile_executorch(folder, _written(folder, python, EXECUTORCH))
    files = {(EXECUTORCH + IN_C, file.stem): file for file in sorted(folder.glob(f"*{PROGRAM}"))}
    for precision in (Precision.INT8, Precision.FP16):
        files[RuntimeName.NATIVE.value + IN_C, precision.value] = artifact = folder / f"{precision.value}.native"
        artifact.write_bytes(build_graph(spec, weights, calibration, precision, ArtifactFormat.NATIVE))
    if sum(kernel_sizes(spec).values()) <= LARGEST_SOURCE:
        files[EMLEARN + IN_C, Precision.FP32.value] = compile_emlearn(folder, _written(folder, python, EMLEARN))
    command = (sys.executable, "-m", "quarl.bench.peers.loop")
    return {names: TimedProgram(names[0], (*command, str(file))) for names, file in files.items()}


def _written(folder: Path, python: Path, program: str) -> str:
    """Have a program write its files of the network; return the folder that it is compiled with."""
    command = [str(python), WORKER, str(folder), program, ""]
    done = subprocess.run(command, env={**os.environ, **WHERE}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{program} failed: {done.stderr.strip()[-500:]}", "make peers")
    return done.stdout.splitlines()[-1]


def versions(python: Path) -> str:
    """Versions of the other programs, as text."""
    command = [str(python), WORKER, "", "versions", ""]
    return subprocess.check_output(command, env={**os.environ, **WHERE}, text=True).strip()
