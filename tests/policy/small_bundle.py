"""A small bundle and what it is made of, for the tests of bundles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from policy.bundle import Expected
from policy.manifest import ArtifactEntry, FileRecord, Parity
from policy.network import weight_shapes
from policy.spec import (
    ArtifactFormat,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    RuntimeName,
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
    )


OUTPUTS = np.zeros((5, 2), np.float32)
EXPECTED = Expected(OUTPUTS, np.full((5, 2), 0.25))
