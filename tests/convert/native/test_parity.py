"""The native engine's levels are those of policy.integer after every layer, to the bit, with every set of kernels."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl.convert.native.writer import native_artifact
from quarl.device.engine.building import library
from quarl.device.engine.engine import Engine, NativeError, kernels_here
from quarl.policy.bundle import Bundle
from quarl.policy.places import ZOO
from quarl.policy.reference import layer_names
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import Activation, Convolution, NetworkSpec, ObservationField, PolicySpec
from tests.convert.native.networks import BASE, IMAGE, check, made, quantized
from tests.convert.native.random_networks import PLANS, Plan, built

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


def test_another_policys_artifact_is_refused() -> None:
    spec, network, _ = made("tanh")
    with pytest.raises(NativeError, match="numbers and"):
        Engine(library(), native_artifact(spec, network), spec.observation_size + 1, spec.output_size)
    with pytest.raises(NativeError, match="has another size than it says"):
        Engine(library(), native_artifact(spec, network)[:-64], spec.observation_size, spec.output_size)
    engine = Engine(library(), native_artifact(spec, network), spec.observation_size, spec.output_size)
    with pytest.raises(NativeError, match="'sse9' do not"):
        engine.use("sse9")


pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # ∞ is cut to a level
SETTINGS = settings(
    max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("kernels", KERNELS)
@settings(SETTINGS, max_examples=400)
@given(plan=PLANS)
def test_any_network_gives_the_same_levels_after_every_layer(kernels: str, plan: Plan) -> None:
    check(*built(plan), kernels)


@st.composite
def pictures(draw: st.DrawFn) -> PolicySpec:
    """A policy of an image of odd sides through one to three convolutions, with or without a vector behind them."""
    height, width = draw(st.integers(6, 15)), draw(st.integers(6, 15))
    shape = (height, width, draw(st.integers(1, 5)))
    convolutions = []
    for _ in range(draw(st.integers(1, 3))):
        side = draw(st.integers(1, min(height, width, 6)))
        stride = draw(st.integers(1, side))
        convolutions.append(Convolution(draw(st.integers(1, 70)), side, stride))
        height, width = (height - side) // stride + 1, (width - side) // stride + 1
    vector = draw(st.integers(0, 5))
    fields = [ObservationField("picture", shape, "grey level")]
    if vector:
        fields.append(ObservationField("goal", (vector,), "m"))
    kind = draw(st.sampled_from(list(Activation)))
    hidden = tuple(draw(st.lists(st.integers(1, 80), max_size=2)))
    network = NetworkSpec(hidden, kind, convolutions=tuple(convolutions))
    return replace(IMAGE, observation=tuple(fields), network=network)


@pytest.mark.parametrize("kernels", KERNELS)
@SETTINGS
@given(spec=pictures(), bits=st.integers(2, 8), seed=st.integers(0, 2**32 - 1))
def test_any_convolutions_give_the_same_levels_after_every_layer(
    kernels: str, spec: PolicySpec, bits: int, seed: int
) -> None:
    network, rows = quantized(spec, bits, np.random.default_rng(seed))
    check(spec, network, rows[::5], kernels)


@pytest.mark.parametrize("kernels", KERNELS)
@SETTINGS
@given(
    hidden=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    kind=st.sampled_from(list(Activation)),
    bits=st.integers(2, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_normalised_layers_give_the_same_levels_after_every_layer(
    kernels: str, hidden: list[int], kind: Activation, bits: int, seed: int
) -> None:
    spec = replace(BASE, network=NetworkSpec(tuple(hidden), kind, layer_norm=True))
    check(spec, *quantized(spec, bits, np.random.default_rng(seed)), kernels)
