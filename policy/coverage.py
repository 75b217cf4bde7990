"""Which units of a network observations excite: a unit that no golden vector excites is checked by none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.policy.exact import COARSE
from quarl.policy.network import Floats, Weights, hidden_activations
from quarl.policy.spec import Activation, PolicySpec


def excited(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> NDArray[np.bool_]:
    """Whether each hidden unit or filter is above zero, (n, units), layer after layer; a filter: anywhere."""
    return units_above_zero(spec, hidden_activations(spec, weights, observations, exact=COARSE))


def units_above_zero(spec: PolicySpec, activations: list[Floats]) -> NDArray[np.bool_]:
    """:func:`excited`, given :func:`policy.network.hidden_activations`."""
    _, *hidden, _ = activations
    vector = spec.vector_size
    found = []
    for index, values in enumerate(hidden):
        if vector and index == len(spec.network.convolutions) - 1:
            # flattened, and behind it the vector that joins there, which is no unit
            values = values[:, :-vector].reshape(len(values), -1, spec.network.convolutions[index].filters)
        if spec.network.activation_of(spec.network.hidden_names[index]) is not Activation.RELU:
            values = np.ones_like(values)  # all but a ReLU pass on what lies below zero, too
        positions = tuple(range(1, values.ndim - 1))
        found.append((values > 0).any(axis=positions) if positions else values > 0)
    return np.concatenate([np.zeros((len(activations[0]), 0), bool), *found], axis=1)  # a linear policy has none


def covering(spec: PolicySpec, weights: Weights, golden: np.ndarray, calibration: np.ndarray) -> np.ndarray:
    """The golden observations, and behind them those of the calibration's that excite units which none of them does.

    Chosen greedily: always the row that excites most of what is left.
    """
    left = ~excited(spec, weights, golden).any(axis=0)
    candidates = excited(spec, weights, calibration) if len(calibration) else np.zeros((0, len(left)), bool)
    chosen: list[int] = []
    while left.any() and len(candidates) and (gain := (candidates & left).sum(axis=1)).max() > 0:
        chosen.append(int(gain.argmax()))
        left &= ~candidates[chosen[-1]]
    return golden if not chosen else np.concatenate([golden, calibration[chosen]])
