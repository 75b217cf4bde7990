"""The native engine against policy.integer on networks that no quantizer made: every end of every range."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from device.native.building import library
from device.native.engine import kernels_here
from tests.convert.native.comparing import check
from tests.convert.native.random_networks import PLANS, WORST, Plan, built

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # ∞ is cut to a level
KERNELS = kernels_here(library())


@pytest.mark.parametrize("kernels", KERNELS)
@settings(max_examples=400, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plan=PLANS)
def test_any_network_gives_the_same_levels_after_every_layer(kernels: str, plan: Plan) -> None:
    check(*built(plan), kernels)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", WORST)
def test_the_largest_sums_multipliers_and_biases_give_the_same_levels(name: str, kernels: str) -> None:
    check(*built(WORST[name]), kernels)
