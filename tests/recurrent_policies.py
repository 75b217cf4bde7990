"""Small recurrent policies for the tests, and what they make of an episode, step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.policy.history import History
from quarl.policy.reference import Weights, forward_float
from quarl.policy.spec import (
    Cell,
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    Memory,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Recurrence,
    Remembered,
    Squash,
    weight_shapes,
)

SENSED = 7
NETWORKS = {
    "gru": NetworkSpec((24, 20), recurrences=(Recurrence(Cell.GRU, 16, 1),)),
    "lstm": NetworkSpec((20,), recurrences=(Recurrence(Cell.LSTM, 12),)),
    "three": NetworkSpec(
        (9, 11), recurrences=(Recurrence(Cell.GRU, 8), Recurrence(Cell.LSTM, 6), Recurrence(Cell.GRU, 10, 2))
    ),
    "normalised": NetworkSpec((16, 12), layer_norm=True, recurrences=(Recurrence(Cell.GRU, 8, 1),)),
}


def state_fields(network: NetworkSpec, initial: float = 0.0) -> tuple[ObservationField, ...]:
    sizes = [(name, each.state_size) for name, each in network.states.items()]
    return tuple(
        ObservationField(name, (1, size), "1", memory=Memory(Remembered.STATE, (initial,) * size))
        for name, size in sizes
    )


def recurrent_spec(name: str, discrete: bool = True) -> PolicySpec:
    network = NETWORKS[name]
    head = DiscreteHead(("left", "right", "on")) if discrete else ContinuousHead((-1.0, -2.0), (1.0, 3.0), Squash.TANH)
    return PolicySpec(
        name=name,
        observation=(ObservationField("sensed", (SENSED,), "1"), *state_fields(network)),
        normaliser=Normaliser((0.1,) * SENSED, (0.9,) * SENSED),
        network=network,
        head=head,
        control_period_s=0.1,
        environment=EnvironmentSpec("Test-v0"),
    )


def weights_of(spec: PolicySpec, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) * (1.2 / np.sqrt(shape[0]) if len(shape) == 2 else 0.1)).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }


def episodes(spec: PolicySpec, weights: Weights, rows: int, every: int = 40, seed: int = 1) -> NDArray[np.float32]:
    """Observations (rows, observation_size) of random episodes, with the states that the float policy had there."""
    history, rng, made = History(spec.observation), np.random.default_rng(seed), []
    for step in range(rows):
        if step % every == 0:
            history.reset()
        row = np.array(history.observe(rng.standard_normal(spec.input_size)), np.float32)
        made.append(row)
        result = forward_float(spec, weights, row)[0]
        history.record_action(result[: spec.output_size], result[spec.output_size :])
    return np.array(made)
