"""The native engine's levels are those of policy.integer after every layer, to the bit, with every set of kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from convert.native.writer import native_artifact
from device.native.building import library
from device.native.engine import Engine, Mode, NativeError, kernels_here
from policy.bundle import Bundle
from policy.integer import IntegerNetwork, forward_layer, head_inputs, input_levels, quantize_network
from policy.locate import ZOO
from policy.network import apply_head, join
from policy.spec import PolicySpec
from tests.convert.native.networks import NETWORKS, made

BUNDLES = sorted(path.parent for path in ZOO.glob("**/policy.json"))
KERNELS = kernels_here(library())


def levels_of(spec: PolicySpec, network: IntegerNetwork, rows: np.ndarray) -> list[np.ndarray]:
    """What policy.integer computes: levels of the input and behind every layer, each (rows, elements)."""
    levels, vector = input_levels(spec, network, rows)
    found, input_map = [levels], network.input
    for layer in network.layers:
        levels = join(spec, layer.name, forward_layer(layer, input_map, levels), vector)
        input_map = layer.result
        found.append(levels)
    return [each.reshape(len(rows), -1) for each in found]


def check(spec: PolicySpec, network: IntegerNetwork, rows: np.ndarray, kernels: str) -> None:
    artifact = native_artifact(spec, network)
    engine = Engine(library(), artifact, spec.observation_size, spec.output_size)
    engine.use(kernels)
    wanted = levels_of(spec, network, rows)
    outputs = apply_head(spec, head_inputs(spec, network, rows), rows, exact=True)
    chosen = engine.modes
    for modes in (chosen, (Mode.DENSE,) * len(chosen), (Mode.SPARSE,) * len(chosen)):
        engine.modes = modes
        for index, row in enumerate(rows if modes is chosen else rows[:2]):
            for layers, levels in enumerate(wanted):
                np.testing.assert_array_equal(engine.levels(row, layers), levels[index], err_msg=f"layer {layers}")
            choice = engine.decide(row)
            np.testing.assert_array_equal(engine.outputs, outputs[index])
            assert choice == (outputs[index].argmax() if spec.is_discrete else 0)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("folder", BUNDLES, ids=lambda path: path.name)
def test_every_committed_bundle(folder: Path, bits: int, kernels: str) -> None:
    bundle = Bundle.load(folder)
    rows = bundle.golden().observations
    few = 2 if bundle.spec.network.convolutions else 24
    network = quantize_network(bundle.spec, bundle.weights(), bundle.calibration()[:256], bits)
    check(bundle.spec, network, rows[:: max(len(rows) // few, 1)], kernels)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_layer(name: str, kernels: str) -> None:
    spec, network, rows = made(name)
    check(spec, network, rows, kernels)


def test_another_policys_artifact_is_refused() -> None:
    spec, network, _ = made("tanh")
    with pytest.raises(NativeError, match="takes 7 numbers and gives 5; the policy 8 and 5"):
        Engine(library(), native_artifact(spec, network), spec.observation_size + 1, spec.output_size)
    with pytest.raises(NativeError, match="has another size than it says"):
        Engine(library(), native_artifact(spec, network)[:-64], spec.observation_size, spec.output_size)
    engine = Engine(library(), native_artifact(spec, network), spec.observation_size, spec.output_size)
    with pytest.raises(NativeError, match=r"'sse9' do not run here; .*plain do"):
        engine.use("sse9")
