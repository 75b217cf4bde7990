"""Reads a policy that Keras saved, by Keras: ``model.save("policy.keras")`` of Keras 3 or 2, or a whole model's .h5.

A process of its own, with limits (keras_to_onnx.py), loads the file and writes it as ONNX, which is read as any ONNX
file is. The process stays, and answers what Keras itself computes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
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

from quarl.convert.importers.chain import Floats, ForeignError, ForeignPolicy
from quarl.convert.importers.onnx.original import Original
from quarl.convert.importers.onnx.reader import read_onnx
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.zip_members import read_untrusted

BACKENDS = ("tensorflow", "jax", "torch")
TIMEOUT_S = 600.0
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT |= {"MALLOC_ARENA_MAX": "4", "OPENBLAS_NUM_THREADS": "1"}  # each thread would reserve addresses


class KerasProcess:
    """Keras with one file, in a process that ends with this object.

    Args:
        data: the file.
        name: its name, for messages; its ending says its format.
        output: the output that it is loaded for; None: all.

    Raises:
        ForeignError: Keras does not load it, or a layer has no ONNX operator.
    """

    def __init__(self, data: bytes, name: str, output: str | None) -> None:
        folder = tempfile.TemporaryDirectory()
        self.folder = Path(folder.name).resolve()
        path = self.folder / f"{Path(printable(name)).stem[:100] or 'policy'}{Path(name).suffix.lower()}"
        path.write_bytes(data)
        backend = os.environ.get("KERAS_BACKEND") or next(filter(importlib.util.find_spec, BACKENDS), BACKENDS[0])
        places = {"KERAS_HOME": str(self.folder), "TMPDIR": str(self.folder), "KERAS_BACKEND": backend}
        command = [sys.executable, "-m", "quarl.convert.importers.keras_to_onnx", str(path)]
        self._process = subprocess.Popen(
            [*command, *([] if output is None else [output])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **ENVIRONMENT, **places},
        )
        self._end = weakref.finalize(self, _ended, self._process, folder)
        self.reply = self._answered(name)

    def outputs(self, rows: Floats, inputs: list[str], output: str) -> Floats:
        """Keras's numbers (batch, m) for rows (batch, n): the inputs' parts, one behind the other."""
        np.save(self.folder / "rows.npy", np.asarray(rows, np.float32))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"inputs": inputs, "output": output}) + "\n")
        self._process.stdin.flush()
        self._answered("the observations")
        return np.asarray(np.load(self.folder / "outputs.npy", allow_pickle=False), np.float32)

    def _answered(self, what: str) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        line = out.readline() if select.select([out], [], [], TIMEOUT_S)[0] else ""
        if not line:
            self._end()
            message = f"Keras ended, or had no answer, on {printable(what)} (status {self._process.returncode})."
            raise ForeignError(message, "Is the file damaged, or too large for this machine? Save it again.")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            self._end()
            raise ForeignError(*reply["error"])
        return reply


def _ended(process: subprocess.Popen[str], folder: tempfile.TemporaryDirectory[str]) -> None:
    process.kill()
    process.communicate()
    folder.cleanup()


@dataclass(frozen=True)
class KerasOriginal:
    """Raw observations (batch, n) to what the chain computes (batch, m), by Keras.

    Attributes:
        process: that has the model.
        inputs: their names, in the observation's order.
        output: the output, or what its softmax takes.
    """

    process: KerasProcess
    inputs: list[str]
    output: str

    def __call__(self, observations: Floats) -> Floats:
        """The model's output for each observation."""
        return self.process.outputs(observations, self.inputs, self.output)


def read_keras(path: Path, output: str | None = None) -> ForeignPolicy:
    """The policy in a file of Keras.

    Args:
        path: what ``model.save`` wrote: .keras, .h5 or .hdf5.
        output: of a model with several: its key, or its layer's name.

    Raises:
        ForeignError: the file is damaged, hostile, weights alone, or holds what Keras does not load or no bundle can.
        ModuleNotFoundError: Keras is not installed.
    """
    data = read_untrusted(path)
    if importlib.util.find_spec("keras") is None:
        raise ModuleNotFoundError("Keras files are read by Keras.", name="keras")
    process = KerasProcess(data, path.name, output)
    policy = read_onnx(process.folder / "policy.onnx", output)
    version, halved = process.reply["keras"], process.reply["halved"]
    assumed = (f"Layers compute in {', '.join(halved)}; they are read as float32.",) if halved else ()
    names, original = [part.name for part in policy.inputs], policy.original
    # A policy with states is compared with its ONNX, which was compared with Keras before.
    if isinstance(original, Original) and original.outputs[0] in process.reply["outputs"]:
        original = KerasOriginal(process, names, original.outputs[0])
    provenance = {"program": "Keras", "version": version, "sha256": {"policy": hashlib.sha256(data).hexdigest()}}
    return replace(
        policy,
        source=f"a {path.suffix.lower()} file by Keras {version}",
        assumed=(*assumed, *policy.assumed),
        original=original,
        provenance={**(policy.provenance or {}), **provenance},
    )
