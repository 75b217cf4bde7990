"""The native engine against policy.integer on networks that no quantizer made: every end of every range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl.device.engine.building import library
from quarl.device.engine.engine import kernels_here
from quarl.policy.spec import Activation, Convolution, NetworkSpec, ObservationField, PolicySpec
from tests.convert.native.comparing import check
from tests.convert.native.networks import BASE, IMAGE, quantized
from tests.convert.native.random_networks import PLANS, WORST, Plan, built

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # ∞ is cut to a level
KERNELS = kernels_here(library())
SETTINGS = settings(
    max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("kernels", KERNELS)
@settings(SETTINGS, max_examples=400)
@given(plan=PLANS)
def test_any_network_gives_the_same_levels_after_every_layer(kernels: str, plan: Plan) -> None:
    check(*built(plan), kernels)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", WORST)
def test_the_largest_sums_multipliers_and_biases_give_the_same_levels(name: str, kernels: str) -> None:
    check(*built(WORST[name]), kernels)


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
