"""Reads a policy that Keras saved, by Keras: ``model.save("policy.keras")`` of Keras 3 or 2, or a whole model's .h5.

A process of its own, with limits (keras_to_onnx.py), loads the file and writes it as ONNX, which is read as any ONNX
file is. The process stays, and answers what Keras itself computes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quarl.convert.importers.chain import Floats, ForeignError, ForeignPolicy, Input
from quarl.convert.importers.onnx.original import Original
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.registry import Importer
from quarl.convert.importers.zip_members import read_untrusted

TIMEOUT_S = 600.0
HDF5 = b"\x89HDF\r\n\x1a\n"
"""Of a file that Keras would name .h5, whatever its name is."""
BACKENDS = ("tensorflow", "jax", "torch")
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT |= {"MALLOC_ARENA_MAX": "4", "OPENBLAS_NUM_THREADS": "1"}  # each thread would reserve addresses


class KerasProcess:
    """Keras with one file, ``reply`` to it, and its ONNX in ``folder``; the process ends with this object."""

    def __init__(self, data: bytes, name: str, output: str | None) -> None:
        folder, ending = tempfile.TemporaryDirectory(), ".h5" if data.startswith(HDF5) else ".keras"
        self.folder = Path(folder.name).resolve()
        (self.folder / f"policy{ending}").write_bytes(data)
        backend = os.environ.get("KERAS_BACKEND") or next(filter(importlib.util.find_spec, BACKENDS), BACKENDS[0])
        own = {"KERAS_HOME": str(self.folder), "TMPDIR": str(self.folder), "KERAS_BACKEND": backend}
        command = [sys.executable, "-m", "quarl.convert.importers.keras_to_onnx", str(self.folder / f"policy{ending}")]
        command += [] if output is None else [output]
        pipe, environment = subprocess.PIPE, {**os.environ, **ENVIRONMENT, **own}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)
        self._end = weakref.finalize(self, _end, self._process, folder)
        self._name, self._copy = printable(name), f"policy{ending}"
        self.reply = self._answered()

    def outputs(self, name: str, parts: dict[str, Floats]) -> Floats:
        """Keras's numbers (batch, m) of an output, or of what its softmax takes, for the inputs (batch, n)."""
        np.savez(self.folder / "rows.npz", **{f"in {part}": rows for part, rows in parts.items()})
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(name)}\n".encode())
        self._process.stdin.flush()
        self._answered()
        made: Floats = np.load(self.folder / "outputs.npy", allow_pickle=False)
        return made.reshape(len(made), -1)

    def _answered(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        line = out.readline() if select.select([out], [], [], TIMEOUT_S)[0] else b""
        reply: dict[str, Any] = json.loads(line or "{}")
        if not line or "error" in reply:
            self._end()
            message = (
                f"Keras ended without an answer (status {self._process.returncode}): it crashed, or met its limits."
            )
            message, step = reply.get("error", (message, "Is the file damaged, or its model that large?"))
            raise ForeignError(message.replace(self._copy, self._name), step)
        return reply


def _end(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    process.kill()
    process.communicate()
    folder.cleanup()


@dataclass(frozen=True)
class KerasOriginal:
    """Raw observations (batch, n), the inputs one behind the other, to the tensor that the chain computes, by Keras."""

    process: KerasProcess
    inputs: tuple[Input, ...]
    tensor: str

    def __call__(self, observations: Floats) -> Floats:
        """The model's output for each observation."""
        ends = np.cumsum([math.prod(part.shape) for part in self.inputs])
        parts = np.split(np.asarray(observations, np.float32), ends[:-1], axis=1)
        names = [part.name for part in self.inputs]
        return self.process.outputs(self.tensor, dict(zip(names, parts, strict=True)))


def read_keras(path: Path, output: str | None = None) -> ForeignPolicy:
    """The policy in a file that ``model.save`` wrote.

    Args:
        path: a .keras, .h5 or .hdf5 file.
        output: of a model with several: its key, or its layer's name.

    Raises:
        ForeignError: the file is damaged, hostile, weights alone, or holds what Keras does not load or no bundle can.
        ModuleNotFoundError: Keras is not installed.
    """
    data = read_untrusted(path)
    if importlib.util.find_spec("keras") is None:
        raise ModuleNotFoundError("Keras is not installed.", name="keras")
    process = KerasProcess(data, path.name, output)
    policy = read_onnx(process.folder / "policy.onnx", output)
    version, others, original = process.reply["keras"], process.reply["others"], policy.original
    # What remembers states is compared with its ONNX, and this was with Keras.
    if isinstance(original, Original) and original.outputs[0] in process.reply["outputs"]:
        original = KerasOriginal(process, policy.inputs, original.outputs[0])
    assumed = (f"Layers compute in {', '.join(others)}; they are read as float32.",) if others else ()
    provenance = {"program": "Keras", "version": version, "sha256": {"policy": hashlib.sha256(data).hexdigest()}}
    return replace(
        policy,
        source=f"a {path.suffix.lower()} file, by Keras {version}",
        assumed=(*assumed, *policy.assumed),
        original=original,
        provenance={**(policy.provenance or {}), **provenance},
    )


IMPORTER = Importer("Keras", (".keras", ".h5", ".hdf5"), read_keras, ("output",))
