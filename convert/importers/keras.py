"""Reads a policy that Keras saved, by Keras: ``model.save("policy.keras")`` of Keras 3 or 2, or a whole model's .h5.

A process of its own, with limits (keras_to_onnx.py), loads the file and writes it as ONNX, which is read as any ONNX
file is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from quarl.convert.importers.chain import ForeignError, ForeignPolicy, relabel
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.registry import Importer
from quarl.convert.importers.zip_members import read_untrusted

TIMEOUT_S = 600.0
HDF5 = b"\x89HDF\r\n\x1a\n"
"""The first bytes of every HDF5 file: a name without .h5 does not hide it."""
BACKENDS = ("tensorflow", "jax", "torch")
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT |= {"MALLOC_ARENA_MAX": "4", "OPENBLAS_NUM_THREADS": "1"}  # each thread would reserve addresses


def _convert_file(path: Path, output: str | None, folder: Path) -> dict[str, Any]:
    """Have a process of its own write a file's policy.onnx in a folder; its reply."""
    data = read_untrusted(path)
    copy = folder / ("policy.h5" if data.startswith(HDF5) else "policy.keras")
    copy.write_bytes(data)
    backend = os.environ.get("KERAS_BACKEND") or next(filter(importlib.util.find_spec, BACKENDS), BACKENDS[0])
    own = {"KERAS_HOME": str(folder), "TMPDIR": str(folder), "KERAS_BACKEND": backend}
    command = [sys.executable, "-m", "quarl.convert.importers.keras_to_onnx", str(copy), *([output] if output else [])]
    reply = {"error": ["Keras met its limits of time or memory, or crashed.", "Is its model that large, or damaged?"]}
    with contextlib.suppress(subprocess.TimeoutExpired):
        process = subprocess.run(
            command, capture_output=True, env={**os.environ, **ENVIRONMENT, **own}, timeout=TIMEOUT_S
        )
        reply = json.loads(process.stdout or json.dumps(reply))
    if "error" in reply:
        message, step = reply["error"]
        raise ForeignError(message.replace(copy.name, printable(path.name)), step)
    return reply


def read_keras(path: Path, output: str | None = None) -> ForeignPolicy:
    """Return the policy in a file that ``model.save`` wrote.

    Args:
        path: a .keras, .h5 or .hdf5 file.
        output: of a model with several: its key, or its layer's name.

    Raises:
        ForeignError: the file is damaged, hostile, weights alone, or holds what Keras does not load or no bundle can.
        ModuleNotFoundError: Keras is not installed.
    """
    if importlib.util.find_spec("keras") is None:
        raise ModuleNotFoundError("Keras is not installed.", name="keras")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        reply = _convert_file(path, output, folder)
        policy = read_onnx(folder / "policy.onnx", output)
    version, others = reply["keras"], reply["others"]
    assumed = (f"Layers compute in {', '.join(others)}; they are read as float32.",) if others else ()

    def label(policy: ForeignPolicy) -> ForeignPolicy:
        return replace(
            policy,
            source=f"a {path.suffix.lower()} file, by Keras {version}",
            assumed=(*assumed, *policy.assumed),
            provenance={**(policy.provenance or {}), "program": "Keras", "version": version},
        )

    return relabel(policy, label)


IMPORTER = Importer("Keras", (".keras", ".h5", ".hdf5"), read_keras, ("output",))
