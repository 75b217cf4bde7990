"""Fields whose raw ranges differ a hundredfold: the normaliser has to come before the quantization, field by field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.convert.executor import RuntimeProcess
from quarl.convert.pipeline import INTEGERS
from quarl.policy.reference import forward_float, normaliser_constants
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    RuntimeName,
    weight_shapes,
)

# Pressure in hPa swings by 100, the angle by 1, the rate by 0.1: a thousandfold between the first and the last.
SPEC = PolicySpec(
    name="hundredfold",
    observation=(
        ObservationField("pressure", (2,), "hPa"),
        ObservationField("angle", (3,), "rad"),
        ObservationField("rate", (3,), "rad/s"),
    ),
    normaliser=Normaliser((1000.0,) * 2 + (0.5,) * 3 + (0.0,) * 3, (100.0,) * 2 + (1.0,) * 3 + (0.1,) * 3, 10.0),
    network=NetworkSpec((32, 32)),
    head=DiscreteHead(tuple(f"action {i}" for i in range(5))),
    control_period_s=0.05,
    environment=EnvironmentSpec("Test-v0"),
)


def weights_and_observations() -> tuple[dict[str, np.ndarray], np.ndarray]:
    random = np.random.default_rng(11)
    weights = {
        name: (random.normal(0.0, 1.0, shape) * (np.sqrt(2.0 / shape[0]) if len(shape) == 2 else 0.1)).astype(
            np.float32
        )
        for name, shape in weight_shapes(SPEC).items()
    }
    z = random.normal(0.0, 1.0, (1200, SPEC.observation_size))
    return weights, (z * SPEC.normaliser.scale + SPEC.normaliser.mean).astype(np.float32)


def with_the_normaliser_folded_into_the_first_layer(
    weights: dict[str, np.ndarray],
) -> tuple[PolicySpec, dict[str, np.ndarray]]:
    """The same function in floats, but the raw fields meet the quantizer, behind one scale: what must not be built."""
    mean, inverse_scale = normaliser_constants(SPEC.normaliser)
    identity = Normaliser((0.0,) * len(mean), (1.0,) * len(mean), float("inf"))
    # (x − mean) / scale @ W + b = x @ (W / scale) + (b − mean / scale @ W)
    kernel = weights["dense_0/kernel"] * inverse_scale[:, None]
    bias = weights["dense_0/bias"] - (mean * inverse_scale) @ weights["dense_0/kernel"]
    return replace(SPEC, normaliser=identity), {**weights, "dense_0/kernel": kernel, "dense_0/bias": bias}


def agreement(
    process: RuntimeProcess, spec: PolicySpec, weights: dict[str, np.ndarray], observations: np.ndarray
) -> float:
    """Fraction of observations on which the int8 artifact chooses the float policy's action."""
    network = quantize_network(spec, weights, observations[:800])
    fresh = observations[800:]
    chosen = process.execute(spec, INTEGERS[process.runtime.artifact_format](spec, network), fresh).actions
    return float(np.mean(chosen == forward_float(SPEC, weights_and_observations()[0], fresh).argmax(axis=1)))


@pytest.mark.parametrize("runtime", list(RuntimeName))
def test_the_int8_policy_acts_like_the_float_one(
    runtimes: dict[RuntimeName, RuntimeProcess], runtime: RuntimeName
) -> None:
    weights, observations = weights_and_observations()
    assert agreement(runtimes[runtime], SPEC, weights, observations) >= 0.96


@pytest.mark.parametrize("runtime", list(RuntimeName))
def test_behind_one_scale_shared_by_raw_fields_it_does_not(
    runtimes: dict[RuntimeName, RuntimeProcess], runtime: RuntimeName
) -> None:
    """The broken variant fails the bar of the test above by far, though in floats it is the same policy."""
    weights, observations = weights_and_observations()
    spec, folded = with_the_normaliser_folded_into_the_first_layer(weights)
    same = forward_float(spec, folded, observations).argmax(axis=1)
    assert np.mean(same == forward_float(SPEC, weights, observations).argmax(axis=1)) > 0.999
    assert agreement(runtimes[runtime], spec, folded, observations) < 0.6
