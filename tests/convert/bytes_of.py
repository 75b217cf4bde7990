"""The SHA-256 of every artifact of every committed bundle, and of two random policies that have what no bundle has.

    python -m tests.convert.bytes_of            bytes.json is written again
    python -m tests.convert.bytes_of zoo/I …    these are printed as JSON

A line of bytes.json changes only for a reason that stands in the note of the change.
``normalised`` has layer normalisation and squashed actions, ``trained`` scales that come from the mean of the weights.
"""

from __future__ import annotations

import hashlib
import json
import sys
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from unittest.mock import Mock

import numpy as np

from quarl.convert.mixed import weight_bits
from quarl.convert.pipeline import FLOATS, INTEGERS, possible, quantize
from quarl.policy.bundle import Bundle, Golden
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ArtifactFormat,
    ContinuousHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Precision,
    Recipe,
    Squash,
    TrainedQuantization,
    WeightRange,
    network_shapes,
)

NORMALISED, TRAINED = "normalised", "trained"
PINNED = Path(__file__).with_name("bytes.json")
LARGE = {"pong-dqn", "pong-ppo"}
"""Their bytes take long, and nothing in them is of another kind than in the others."""
BUNDLES = sorted(
    str(path.parent.relative_to(PROJECT_ROOT))
    for path in (PROJECT_ROOT / "zoo").rglob("policy.json")
    if path.parent.name not in LARGE
)
NAMES = (NORMALISED, TRAINED, *BUNDLES)


def make_policy(name: str) -> Bundle:
    """Return a random policy as a bundle that lies nowhere."""
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


def hashes(name: str) -> dict[str, str]:
    """Return the SHA-256 of every artifact by its file name, and of what int8 and the policy have to compute."""
    bundle = make_policy(name) if name in (NORMALISED, TRAINED) else Bundle.load(PROJECT_ROOT / name)
    weights, calibration = bundle.weights(), bundle.calibration()
    golden = Golden.record(bundle.spec, weights, bundle.golden().observations)
    found = {"golden": sha256(golden.outputs.tobytes())}
    int8 = quantize(bundle, Precision.INT8, Recipe(8))
    reference = int8.reference
    found["int8.golden"] = sha256(reference.outputs.tobytes(), reference.tolerance.astype(np.float32).tobytes())
    found["int8 warnings"] = sha256("; ".join(int8.warnings).encode())
    for precision, jobs in groupby(possible(product([bundle], Precision, ArtifactFormat)), key=itemgetter(1)):
        network = None
        if precision.is_integer:
            bits = weight_bits(bundle.spec, weights, calibration, precision)
            network = quantize_network(bundle.spec, weights, calibration, bits)
        for *_, made in jobs:
            data = INTEGERS[made](bundle.spec, network) if network else FLOATS[made](bundle.spec, weights, precision)
            found[f"{precision.value}.{made.value}"] = sha256(data)
    return found


def sha256(*data: bytes) -> str:
    return hashlib.sha256(b"".join(data)).hexdigest()


if __name__ == "__main__":
    every = {name: hashes(name) for name in sys.argv[1:] or NAMES}
    text = json.dumps(every, indent=1) + "\n"
    if sys.argv[1:]:
        print(text)
    else:
        PINNED.write_text(text, encoding="utf-8")
