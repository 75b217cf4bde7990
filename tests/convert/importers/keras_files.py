"""Files of Keras for the tests: those that make_keras.py wrote, as they are and changed."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FILES = Path(__file__).resolve().parent / "files/keras"
NAMES = sorted(path.stem for path in FILES.glob("*.keras"))
OUTPUTS = {"swish_two_outputs": "loc"}
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
Change = Callable[..., object]  # (config); mypy infers no lambda that has a default


def recorded(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(FILES / f"{name}.npz") as arrays:
        return arrays["observations"], arrays["outputs"]


def members(name: str) -> dict[str, bytes]:
    with zipfile.ZipFile(FILES / f"{name}.keras") as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def saved(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def changed(tmp_path: Path, change: Change, name: str = "normalised_tanh") -> Path:
    parts = members(name)
    config = json.loads(parts[CONFIG])
    change(config)
    return saved(tmp_path / "changed.keras", {**parts, CONFIG: json.dumps(config).encode()})


def layer(config: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in config["config"]["layers"] if each["class_name"] == kind)
    return found


def setting(kind: str, **values: Any) -> Change:
    return lambda config: layer(config, kind)["config"].update(values)


def become(kind: str, **values: Any) -> Change:
    return lambda config: layer(config, kind).update(values)


def built(tmp_path: Path, model: Any) -> Path:
    path = tmp_path / "built.keras"
    model.save(path)
    return path
