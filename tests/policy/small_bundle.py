"""A small bundle and what it is made of, for the tests of bundles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quarl.policy import json_values
from quarl.policy.bundle import Expected
from quarl.policy.reading import MANIFEST_FILE, ArtifactEntry, FileRecord, Parity
from quarl.policy.spec import (
    ArtifactFormat,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
    weight_shapes,
)

SPEC = PolicySpec(
    name="T",
    observation=(ObservationField("state", (3,), "1"),),
    normaliser=Normaliser((0.0,) * 3, (1.0,) * 3),
    network=NetworkSpec((4,)),
    head=DiscreteHead(("stay", "go")),
    control_period_s=0.1,
    environment=EnvironmentSpec("Test-v0"),
)
RANDOM = np.random.default_rng(0)
WEIGHTS = {name: RANDOM.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(SPEC).items()}
CALIBRATION = RANDOM.normal(size=(20, 3)).astype(np.float32)
GOLDEN = RANDOM.normal(size=(5, 3)).astype(np.float32)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def entry_of(data: bytes, precision: Precision = Precision.INT8, suffix: str = "tflite") -> ArtifactEntry:
    return ArtifactEntry(
        file=f"{precision.value}.{suffix}",
        precision=precision,
        format=ArtifactFormat(suffix),
        scheme="weights symmetric per output channel, 8 bits",
        execution="int8 × int8",
        record=FileRecord.of(data),
        golden_file=f"{precision.value}.golden.npz",
        output_step=(0.125, 0.125),
        runtimes={RuntimeName.LITERT: Parity("2.3.0", 0.0, 0.0, 1.0)},
        layer_bits={"head": 8} if precision is Precision.MIXED else None,
    )


OUTPUTS = np.zeros((5, 2), np.float32)
EXPECTED = Expected(OUTPUTS, np.full((5, 2), 0.25))


def sign(folder: Path, name: str, data: bytes) -> None:
    """Replace a file of a bundle and mend the manifest: what an attacker writes, rather than an accident."""
    (folder / name).write_bytes(data)
    change(folder, MANIFEST_FILE, lambda m: m["files"].update({name: json_values.write(FileRecord.of(data))}))


def change(folder: Path, name: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON document of a bundle; one that the manifest lists is signed again."""
    document = json.loads((folder / name).read_text())
    edit(document)
    data = json.dumps(document).encode()
    if name == MANIFEST_FILE:
        (folder / name).write_bytes(data)
    else:
        sign(folder, name, data)
