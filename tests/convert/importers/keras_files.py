"""Files of Keras for the tests: those that make_keras.py wrote, as they are and changed, and what becomes of them."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx

from quarl.convert.importers import keras_to_onnx

FILES = Path(__file__).resolve().parent / "files"
NAMES = [*(f"keras/{path.name}" for path in sorted(FILES.glob("keras/*.keras"))), "keras2/dqn.keras", "keras2/actor.h5"]
OUTPUTS = {"keras/swish_two_outputs.keras": "loc"}
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


def recorded(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load((FILES / name).with_suffix(".npz")) as arrays:
        return arrays["observations"], arrays["outputs"]


def members(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(FILES / name) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def saved(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def with_config(path: Path, change: Callable[[Any], object], name: str = "keras/normalised_tanh.keras") -> Path:
    parts = members(name)
    config = json.loads(parts[CONFIG])
    change(config)
    return saved(path, {**parts, CONFIG: json.dumps(config).encode()})


def with_weights(path: Path, change: Callable[[h5py.File], object], name: str = "keras/normalised_tanh.keras") -> Path:
    parts = members(name)
    held = io.BytesIO(parts[WEIGHTS])
    with h5py.File(held, "r+") as file:
        change(file)
    return saved(path, {**parts, WEIGHTS: held.getvalue()})


def built(path: Path, model: Any) -> Path:
    model.save(path)
    return path


def converted(path: Path, folder: Path, output: str | None = None) -> onnx.ModelProto:
    """The ONNX of a copy in the folder, as in the reader's process but in this one."""
    copy = folder / f"copy{path.suffix}"
    shutil.copyfile(path, copy)
    keras_to_onnx.write_onnx(copy, output)
    return onnx.load(folder / "policy.onnx")
