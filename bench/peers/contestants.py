"""Who is timed: this project's runtimes, other programs, and what is called from a loop in C."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from quarl.bench.command_line import BenchError
from quarl.bench.peers.loop import EMLEARN, compile_loop
from quarl.bench.peers.turns import TimedProgram, of_runtime
from quarl.convert.mixed import kernel_sizes
from quarl.convert.pipeline import build_graph
from quarl.device.engine.engine import kernels_here, library
from quarl.policy.bundle import Bundle
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName

PROGRAMS = ("ncnn", "MNN", "OpenVINO")
LARGEST_IN_C = 100_000
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
    for runtime in (RuntimeName.LITERT, RuntimeName.ONNXRUNTIME, RuntimeName.NATIVE):
        is_native = runtime is RuntimeName.NATIVE
        for precision in (Precision.INT8, Precision.MIXED if is_native else Precision.FP32):
            data = build_graph(spec, weights, calibration, precision, runtime.artifact_format)
            kernels = kernels_here(library())[0] if is_native else ""
            programs[runtime.value, precision.value] = of_runtime(folder, runtime, kernels, data)
    return programs


def others(folder: Path, python: Path) -> TimedPrograms:
    """Other programs, from the environment of ``make peers``."""
    command = (str(python), WORKER, str(folder))
    pairs = product(PROGRAMS, (Precision.FP32.value, Precision.INT8.value))
    return {(name, precision): TimedProgram(name, (*command, name, precision), WHERE) for name, precision in pairs}


def in_c(folder: Path, bundle: Bundle, python: Path) -> TimedPrograms:
    """emlearn's C and the native engine, from a loop in C; empty of a network that is too large to be source code.

    Raises:
        BenchError: emlearn writes nothing, or it cannot be compiled.
    """
    if sum(kernel_sizes(bundle.spec).values()) > LARGEST_IN_C:
        return {}
    write = [str(python), WORKER, str(folder), EMLEARN, ""]
    done = subprocess.run(write, env={**os.environ, **WHERE}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"emlearn failed: {done.stderr.strip()[-500:]}", "make peers")
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    artifact = folder / "int8.native"
    artifact.write_bytes(build_graph(spec, weights, calibration, Precision.INT8, ArtifactFormat.NATIVE))
    command = (sys.executable, "-m", "quarl.bench.peers.loop", str(compile_loop(folder)))
    return {
        (EMLEARN + IN_C, Precision.FP32.value): TimedProgram(EMLEARN, (*command, EMLEARN)),
        (RuntimeName.NATIVE.value + IN_C, Precision.INT8.value): TimedProgram("native", (*command, str(artifact))),
    }


def versions(python: Path) -> str:
    """Versions of the other programs, as text."""
    command = [str(python), WORKER, "", "versions", ""]
    return subprocess.check_output(command, env={**os.environ, **WHERE}, text=True).strip()
