"""Small quantized networks of every kind that the contract has, with random weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from quarl.policy.reference import IntegerNetwork
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    Activation,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
    weight_shapes,
)
from tests.recurrent_policies import recurrent_spec

ROWS = 12
BASE = PolicySpec(
    name="native",
    observation=(ObservationField("state", (7,), "1"),),
    normaliser=Normaliser((0.2,) * 7, tuple(np.linspace(0.5, 2.0, 7).tolist()), 4.0),
    network=NetworkSpec((33, 70)),
    head=DiscreteHead(("a", "b", "c", "d", "e")),
    control_period_s=0.02,
    environment=EnvironmentSpec("Test-v0"),
)
IMAGE = replace(
    BASE,
    observation=(ObservationField("picture", (13, 12, 3), "grey level"), ObservationField("goal", (2,), "m")),
    normaliser=Normaliser((0.0,), (255.0,), float("inf")),
    network=NetworkSpec((18,), convolutions=(Convolution(5, 4, 2), Convolution(9, 2, 1))),
)
HIDDEN = (Activation.TANH, Activation.NONE, Activation.SIGMOID, Activation.SILU, Activation.RELU)
NETWORKS: dict[str, tuple[PolicySpec, int]] = {
    **{kind.value: (replace(BASE, network=NetworkSpec((33, 70), kind)), 8) for kind in Activation},
    **{
        f"norm, {kind.value}": (replace(BASE, network=NetworkSpec((40, 17), kind, layer_norm=True)), 8)
        for kind in Activation
    },
    **{f"relu, {bits} bits": (BASE, bits) for bits in range(2, 8)},
    "each its own, 4 bits": (
        replace(BASE, network=NetworkSpec((5, 130, 64, 9, 31), Activation.TANH, activations=HIDDEN)),
        4,
    ),
    "no hidden layer": (replace(BASE, network=NetworkSpec(())), 8),
    "one output, tanh": (replace(BASE, head=ContinuousHead((-2.0,), (1.0,), Squash.TANH)), 8),
    "clipped": (replace(BASE, head=ContinuousHead((-1.0, 0.0), (2.0, 5.0), Squash.CLIP)), 8),
    "limited": (replace(BASE, head=ContinuousHead((-1.0, 0.0), (2.0, 5.0), Squash.NONE, 1.5)), 4),
    "wider than 4096": (replace(BASE, network=NetworkSpec((4500, 300))), 8),
    "wider than 4096, 2 bits": (replace(BASE, network=NetworkSpec((4500, 300))), 2),
    "picture and vector": (IMAGE, 8),
    "picture and vector, 2 bits": (IMAGE, 2),
    "picture, tanh": (replace(IMAGE, network=replace(IMAGE.network, activation=Activation.TANH)), 4),
}


RECURRENT = {name: (recurrent_spec(name, discrete=False), 8) for name in ("gru", "lstm", "three", "normalised")}
"""Their gates are float, in the engine in float32, so that levels behind them are the reference's up to a border."""


def made(name: str, seed: int = 0) -> tuple[PolicySpec, IntegerNetwork, np.ndarray]:
    """The spec, a network quantized from random weights, and raw observations near the calibration and far off."""
    spec, bits = {**NETWORKS, **RECURRENT}[name]
    return spec, *quantized(spec, bits, np.random.default_rng([seed, len(name)]))


def quantized(spec: PolicySpec, bits: int, random: np.random.Generator) -> tuple[IntegerNetwork, np.ndarray]:
    """A network from random weights, and raw observations near the calibration and far off."""
    weights = {
        part: random.normal(0.0, 1.5 / np.sqrt(np.prod(shape[:-1])) if len(shape) > 1 else 0.3, shape).astype("f4")
        for part, shape in weight_shapes(spec).items()
    }
    if spec.network.convolutions:
        rows = random.integers(0, 256, (60, spec.observation_size)).astype(np.float32)
        if spec.vector_size:
            rows[:, -spec.vector_size :] = random.normal(0.0, 90.0, (60, spec.vector_size))
    else:
        rows = random.normal(0.3, 1.5, (200, spec.observation_size)).astype(np.float32)
    network = quantize_network(spec, weights, rows[ROWS:], bits)
    rows[ROWS // 2 : ROWS] *= 9.0
    return network, rows[:ROWS]
