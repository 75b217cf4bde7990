"""The native engine's levels are those of policy.integer after every layer, to the bit, with every set of kernels."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from quarl.convert.native.writer import native_artifact
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, NativeError, kernels_here
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.reference import layer_names
from quarl.policy.simulate import quantize_network
from tests.convert.native.comparing import check
from tests.convert.native.networks import NETWORKS, made

# Gates of recurrent layers are float, in the engine in float32: tests/convert/test_recurrent_artifacts.py holds those.
BUNDLES = sorted(
    path.parent for path in ZOO.glob("**/policy.json") if "recurrences" not in json.loads(path.read_text())["network"]
)
KERNELS = kernels_here(library())


@pytest.mark.parametrize("bits", [8, "mixed"])  # every width by itself: test_every_kind_of_layer
@pytest.mark.parametrize("folder", BUNDLES, ids=lambda path: path.name)
def test_every_committed_bundle(folder: Path, bits: Any) -> None:
    bundle = Bundle.load(folder)
    if bits == "mixed":  # whatever the assignment is
        bits = dict(zip(layer_names(bundle.spec), itertools.cycle((8, 4, 2, 3))))
    rows = bundle.golden().observations
    few, calibration = (2, 16) if bundle.spec.network.convolutions else (24, 256)
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration()[:calibration], bits)
    for kernels in KERNELS:
        check(bundle.spec, network, rows[:: max(len(rows) // few, 1)], kernels)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_layer(name: str, kernels: str) -> None:
    spec, network, rows = made(name)
    check(spec, network, rows, kernels)


def test_another_policys_artifact_is_refused() -> None:
    spec, network, _ = made("tanh")
    with pytest.raises(NativeError, match="numbers and"):
        Engine(library(), native_artifact(spec, network), spec.observation_size + 1, spec.output_size)
    with pytest.raises(NativeError, match="has another size than it says"):
        Engine(library(), native_artifact(spec, network)[:-64], spec.observation_size, spec.output_size)
    engine = Engine(library(), native_artifact(spec, network), spec.observation_size, spec.output_size)
    with pytest.raises(NativeError, match="'sse9' do not"):
        engine.use("sse9")
