"""What the bundles named on the command line become on this processor: JSON lines of SHA-256. Run by test_same_bytes.

``normalised`` and ``trained`` are random policies, no bundles of the zoo: one with layer normalisation and squashed
actions, one whose scales come from the mean of the weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np

from convert.pipeline import build, build_graph
from policy.bundle import Bundle, Golden
from policy.contract.network import network_shapes
from policy.contract.quantization import TrainedQuantization, WeightRange
from policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    Squash,
)

PRECISIONS = (Precision.INT8, Precision.INT4, Precision.FP16, Precision.FP32)
NORMALISED, TRAINED, GOLDEN = "normalised", "trained", "golden"


def made(name: str) -> Bundle:
    """A random policy, as a bundle that lies nowhere."""
    trained = TrainedQuantization(4, {"input": (-3.0, 3.0), "dense_0": (0.0, 4.0)}, WeightRange.MEAN)
    spec = PolicySpec(
        name=name,
        observation=(ObservationField("ranges", (37,), "m"),),
        normaliser=Normaliser((1.0,) * 37, (3.0,) * 37, 3.0),
        network=NetworkSpec((100,), layer_norm=name == NORMALISED),
        head=ContinuousHead((-1.0,) * 3, (2.0,) * 3, Squash.TANH),
        control_period_s=0.1,
        environment=EnvironmentSpec("Test-v0"),
        quantization=trained if name == TRAINED else None,
    )
    random = np.random.default_rng(7)
    shapes = network_shapes(spec.network, (37,), 3)
    weights = {weight: random.normal(0.0, 0.2, shape).astype(np.float32) for weight, shape in shapes.items()}
    seen = random.normal(1.0, 3.0, (3000, 37)).astype(np.float32)
    golden = Golden.record(spec, weights, seen[:500])
    bundle = Mock(weights=lambda: weights, calibration=lambda: seen, golden=lambda: golden)
    bundle.spec = spec
    return bundle


def hashes(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """(what, SHA-256) of all that is written for a bundle: golden outputs, artifacts, what they have to compute."""
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    yield GOLDEN, sha256(Golden.record(spec, weights, bundle.golden().observations).outputs)
    for precision in PRECISIONS:
        candidate = build(bundle, precision, ArtifactFormat.TFLITE)
        reference = candidate.reference
        yield candidate.file, hashlib.sha256(candidate.data).hexdigest()
        yield f"{precision.value}.{GOLDEN}", sha256(reference.outputs, reference.tolerance.astype(np.float32))
        yield f"{precision.value} warnings", "; ".join(candidate.warnings)
        onnx = build_graph(spec, weights, calibration, precision, ArtifactFormat.ONNX)
        yield f"{precision.value}.onnx", hashlib.sha256(onnx).hexdigest()


def sha256(*arrays: np.ndarray) -> str:
    """Of the arrays' bytes."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        opened = made(name) if name in (NORMALISED, TRAINED) else Bundle.load(Path(name))
        for what, digest in hashes(opened):
            print(json.dumps([name, what, digest]), flush=True)
