"""Networks with GRUs, as functions of plain arrays or tensors: one step to act, many to learn from.

Dense layers have a ReLU; the equations of a GRU are in ``policy/spec.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import Cell, NetworkSpec
from quarl.train.lazily import tf
from quarl.train.networks.forward import head, relu

Floats = NDArray[np.float32]


def unroll_network(
    network: NetworkSpec, weights: Mapping[str, Any], inputs: Any, state: Any, begins: Any
) -> tuple[Any, list[Any]]:
    """Return the outputs of every step, (steps × batch, outputs), and the states behind each, (batch, state_size).

    Args:
        network, weights: dense layers and GRUs.
        inputs: normalised observations, (steps, batch, inputs).
        state: before the first step, (batch, state_size).
        begins: 1 where a step is an episode's first, else 0, float32 (steps, batch): its state is zero.
    """
    steps, rows = inputs.shape[0], inputs.shape[1]
    values, start, following = reshape_array(inputs, (steps * rows, inputs.shape[2])), 0, []
    masks = [1.0 - begins[step][:, None] for step in range(steps)]
    sums: Any = None
    for name in network.hidden_names:
        kernel, bias = weights[f"{name}/kernel"], weights[f"{name}/bias"]
        if name in network.states:
            units = network.states[name].units
            hidden, hidden_states = state[:, start : start + units], []
            parts = reshape_array(sums, (steps, rows, sums.shape[1]))
            for step in range(steps):
                hidden = masks[step] * hidden
                hidden = gru(parts[step], hidden @ kernel + bias, hidden)
                hidden_states.append(hidden)
            following.append(hidden_states)
            values, start = join_arrays(hidden_states, 0), start + units
        elif name.startswith("recurrent_"):
            sums = values @ kernel + bias
        else:
            values = relu(values @ kernel + bias)
    return head(weights, values), [join_arrays(list(states), 1) for states in zip(*following, strict=True)]


def gru(fed: Any, sums: Any, hidden: Any) -> Any:
    """h' = n + z (h − n), (batch, units), given both linear layers' sums (batch, 3 · units) and h."""
    units = hidden.shape[1]
    gates = sigmoid(fed[:, : 2 * units] + sums[:, : 2 * units])
    candidate = tanh(fed[:, 2 * units :] + gates[:, :units] * sums[:, 2 * units :])
    return candidate + gates[:, units:] * (hidden - candidate)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e⁻ˣ), of an array in the form that cannot overflow."""
    return np.float32(0.5) * (np.float32(1.0) + np.tanh(np.float32(0.5) * x)) if is_array(x) else tf.sigmoid(x)


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    return np.tanh(x) if is_array(x) else tf.tanh(x)


def join_arrays(parts: list[Any], axis: int) -> Any:
    """Arrays or tensors, one behind the other."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts, axis=axis) if is_array(parts[0]) else tf.concat(parts, axis=axis)


def reshape_array(x: Any, shape: tuple[int, ...]) -> Any:
    """Return an array or a tensor in another shape."""
    return x.reshape(shape) if is_array(x) else tf.reshape(x, shape)


def is_array(x: Any) -> bool:
    """Return whether it is numpy's, not a tensor."""
    return isinstance(x, np.ndarray)


def are_trainable(network: NetworkSpec) -> bool:
    """Return whether a network's recurrent layers are all GRUs, which is what is trained here."""
    return all(layer.cell is Cell.GRU for layer in network.recurrences)


class Memory:
    """The states of a batch of episodes in training, (environments, state_size); a checkpoint keeps them.

    Attributes:
        states: before the next step.
        begins: (environments,) whether that step is an episode's first.
    """

    def __init__(self, environments: int, size: int) -> None:
        self.states: Floats = np.zeros((environments, size), np.float32)
        self.begins: NDArray[np.bool_] = np.ones(environments, np.bool_)

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Episodes begin where the mask (n,) says; another batch size makes room for it."""
        if len(mask) != len(self.states):
            self.states = np.zeros((len(mask), self.states.shape[1]), np.float32)
        self.begins = mask.copy()

    def step(self, network: NetworkSpec, weights: Mapping[str, Any], inputs: Floats) -> Floats:
        """Return the outputs (n, outputs) for normalised observations (n, inputs); the states go on."""
        begins = self.begins.astype(np.float32)
        outputs, (self.states,) = unroll_network(network, weights, inputs[None], self.states, begins[None])
        self.begins = np.zeros_like(self.begins)
        result: Floats = outputs
        return result

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        return {"states": self.states.copy(), "begins": self.begins.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self.states, self.begins = state["states"].copy(), state["begins"].copy()
