"""The framework's model computes what the policy computes: else its timing means nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from quarl.policy.bundle import Golden
from quarl.policy.spec import (
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    weight_shapes,
)

CONVOLUTIONS = (Convolution(4, 8, 4), Convolution(5, 3, 1))
TWO = DiscreteHead(("left", "right"))


@dataclass(frozen=True)
class InMemory:
    """As much of a bundle as the baseline reads."""

    spec: PolicySpec
    values: dict[str, np.ndarray]
    recorded: Golden

    def weights(self) -> dict[str, np.ndarray]:
        return self.values

    def golden(self) -> Golden:
        return self.recorded


def in_memory(network: NetworkSpec, head: DiscreteHead, behind: tuple[ObservationField, ...] = ()) -> InMemory:
    random = np.random.default_rng(4)
    shape = (20, 20, 2) if network.convolutions else (5,)
    spec = PolicySpec(
        name="compared",
        observation=(ObservationField("seen", shape, "1"), *behind),
        normaliser=Normaliser((0.5,), (2.0,), 3.0),
        network=network,
        head=head,
        control_period_s=0.1,
        environment=EnvironmentSpec("Test-v0"),
    )
    weights = {name: random.normal(0.0, 0.4, part).astype(np.float32) for name, part in weight_shapes(spec).items()}
    observations = random.normal(0.0, 3.0, (8, spec.observation_size)).astype(np.float32)
    return InMemory(spec, weights, Golden.record(spec, weights, observations))


@pytest.mark.parametrize(
    ("network", "head", "behind"),
    [
        (NetworkSpec((8, 6)), TWO, ()),
        (NetworkSpec((16,), convolutions=CONVOLUTIONS, layer_norm=True), TWO, ()),
        (NetworkSpec((16,), convolutions=CONVOLUTIONS), TWO, (ObservationField("velocity", (3,), "m/s"),)),
        (NetworkSpec((8, 6), layer_norm=True), TWO, ()),
    ],
    ids=["dense", "image", "image and vector", "layer norm"],
)
def test_the_model_and_both_calls_are_the_policys(
    network: NetworkSpec, head: DiscreteHead, behind: tuple[ObservationField, ...]
) -> None:
    pytest.importorskip("keras")
    from quarl.bench.device_session import keras_baseline

    bundle = in_memory(network, head, behind)
    model = keras_baseline.build(bundle)
    keras_baseline.verify(bundle, model)
    for name, call in keras_baseline.deciders(model).items():
        np.testing.assert_allclose(
            call(bundle.recorded.observations[:1]), bundle.recorded.actions[0], atol=1e-5, err_msg=name
        )
