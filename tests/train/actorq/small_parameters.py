"""A small policy of each kind as the learner hands it over, for the tests of what travels to the actors."""

import numpy as np

from quarl.policy.spec import (
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
    weight_shapes,
)
from quarl.train.actorq.wire import Pushed

ROWS = 200
HEADS: dict[str, DiscreteHead | ContinuousHead] = {
    "discrete": DiscreteHead(("left", "stay", "right")),
    "continuous": ContinuousHead((-2.0, -1.0), (2.0, 3.0), Squash.TANH),
}


def make_spec(head: str = "discrete", hidden: tuple[int, ...] = (16, 12), size: int = 4) -> PolicySpec:
    return PolicySpec(
        name="small", observation=(ObservationField("state", (size,), "1"),),
        normaliser=Normaliser((0.5,) * size, (2.0,) * size, 5.0), network=NetworkSpec(hidden), head=HEADS[head],
        control_period_s=0.02, environment=EnvironmentSpec("Test-v0"),
    )  # fmt: skip


def make_weights(spec: PolicySpec, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: (random.normal(0.0, 1.0, shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }


def make_observations(spec: PolicySpec, seed: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 2.0, (rows, spec.observation_size)).astype(np.float32)


def push(spec: PolicySpec, weights: dict[str, np.ndarray], updates: int = 7) -> Pushed:
    return Pushed(updates, spec, weights, make_observations(spec, 1))
