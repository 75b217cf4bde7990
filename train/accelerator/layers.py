"""A multilayer perceptron with its gradient by hand, and optimisers, on vectors that hold all weights in one row.

A step of a small network costs as many microseconds as it has numpy calls. So the weights, the gradient and the
moments each lie in one vector (one call for all), and every intermediate result has its buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import INPUT
from quarl.train.networks.optimiser import ADAM_BETA_1, ADAM_BETA_2, ADAM_EPSILON
from quarl.train.networks.weights import Weights, count_hidden_layers
from quarl.train.quantization.fake import (
    LEVELS,
    QUANTIZER,
    FakeQuantization,
    fake_hidden,
    fake_input,
    fake_quantize_weights,
)
from quarl.train.quantization.weight_control import OFF, WeightControl

Floats = NDArray[np.float32]
State = Mapping[str, Mapping[str, NDArray[Any]]]
"""A learner's arrays by group and name."""
CLIP_EPSILON = np.float32(1e-8)  # as train.networks.optimiser


class Vector:
    """Named arrays as views of one float32 vector, in the order of their names.

    The order is fixed because floats added in another order give other bits: a resumed run has its weights in another.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Args: the arrays, which are copied."""
        self.names = sorted(arrays)
        self.all: Floats = np.concatenate([arrays[name].ravel() for name in self.names]).astype(np.float32, copy=False)
        self.views: Weights = {}
        start = 0
        for name in self.names:
            shape = arrays[name].shape
            size = int(np.prod(shape))
            self.views[name] = self.all[start : start + size].reshape(shape)
            start += size


class Perceptron:
    """h₀ = x;  hₗ₊₁ = relu(hₗ Wₗ + bₗ);  y = h W_head + b_head, and the gradient of a loss with respect to W, b and x.

    ``weights`` may hold further arrays (the Gaussian's log σ); their gradient is for the loss to fill in. With
    ``scales`` the kernels and the layers' outputs are rounded to levels first, and gradients pass that by: see
    ``train/quantization/fake.py``.
    """

    def __init__(
        self,
        weights: Mapping[str, NDArray[Any]],
        scales: Mapping[str, NDArray[Any]] | None = None,
        fake: FakeQuantization | None = None,
    ) -> None:
        self._scales, self._fake = scales or {}, fake
        self.weights = Vector(weights)
        self.gradient = Vector(weights)  # of the same layout; its numbers are not set yet
        names = [f"dense_{index}" for index in range(count_hidden_layers(weights))] + ["head"]
        self._kernels = [self.weights.views[f"{name}/kernel"] for name in names]
        self._biases = [self.weights.views[f"{name}/bias"] for name in names]
        self._kernel_gradients = [self.gradient.views[f"{name}/kernel"] for name in names]
        self._bias_gradients = [self.gradient.views[f"{name}/bias"] for name in names]
        self._names = names
        self._passes: list[NDArray[np.bool_]] = []  # where a hidden layer's slope is 1, by layer, if it is rounded
        self._rows = 0
        self._values: list[Floats] = []  # of every layer, the input's first
        self._slopes: list[Floats] = []  # of the loss with respect to these

    def _prepare(self, rows: int) -> None:
        if rows != self._rows:
            self._rows = rows
            widths = [self._kernels[0].shape[0], *(kernel.shape[1] for kernel in self._kernels)]
            self._values = [np.empty((rows, width), np.float32) for width in widths]
            self._slopes = [np.empty((rows, width), np.float32) for width in widths]

    def forward(self, inputs: Floats) -> Floats:
        """Return the outputs (rows, outputs), valid until the next call."""
        self._prepare(len(inputs))
        self._values[0] = inputs
        last = len(self._kernels) - 1
        if self._scales:
            return self._forward_rounded(inputs)
        for index, (kernel, bias) in enumerate(zip(self._kernels, self._biases, strict=True)):
            out = np.matmul(self._values[index], kernel, out=self._values[index + 1])
            out += bias
            if index < last:
                np.maximum(out, 0.0, out=out)
        return self._values[-1]

    def _forward_rounded(self, inputs: Floats) -> Floats:
        rounded = fake_quantize_weights(self.weights.views, self._scales, self._fake)
        self._kernels = [rounded[f"{name}/kernel"] for name in self._names]
        self._values[0] = fake_input(inputs, rounded[f"{INPUT}/{LEVELS}"])
        self._passes = []
        for index, name in enumerate(self._names):
            out = np.matmul(self._values[index], self._kernels[index], out=self._values[index + 1])
            out += rounded[f"{name}/bias"]
            if name != "head":
                levels = rounded[f"{name}/{LEVELS}"]
                self._passes.append((out > 0.0) & (out <= levels[0] * levels[1]))
                np.maximum(out, 0.0, out=out)
                out[:] = fake_hidden(out, levels)
        return self._values[-1]

    def backward(self, slopes: Floats, inputs_too: bool = False, weights_too: bool = True) -> Floats | None:
        """Set the gradient of the weights, given ∂L/∂y (rows, outputs) at the last :meth:`forward`.

        With ``inputs_too`` ∂L/∂x (rows, inputs) is returned, valid until the next call; without ``weights_too`` the
        network only passes the gradient on.
        """
        for index in reversed(range(len(self._kernels))):
            if weights_too:
                np.matmul(self._values[index].T, slopes, out=self._kernel_gradients[index])
                np.add.reduce(slopes, axis=0, out=self._bias_gradients[index])
            if index == 0 and not inputs_too:
                return None
            before = np.matmul(slopes, self._kernels[index].T, out=self._slopes[index])
            if index > 0:
                before *= self._passes[index - 1] if self._scales else self._values[index] > 0.0
            slopes = before
        return slopes


def clip_by_norm(gradients: Sequence[Floats], largest: float) -> np.float32:
    """g ← g · min(1, largest / ‖g‖₂) over all vectors together, in place; the norm before.

    As ``train.networks.optimiser.clip_by_global_norm``.
    """
    norm = np.sqrt(sum((np.float32(gradient @ gradient) for gradient in gradients), np.float32(0.0)))
    scale = np.float32(largest) / (norm + CLIP_EPSILON)
    if scale < 1.0:
        for gradient in gradients:
            gradient *= scale
    return np.float32(norm)


class Adam:
    """Steps of Adam on a vector, in place; see ``train.networks.optimiser.adam_step`` for the equations."""

    def __init__(self, first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]) -> None:
        self.first, self.second = Vector(first), Vector(second)
        self.moments = {"first": self.first, "second": self.second}
        self._scratch = np.empty_like(self.first.all)

    def step(self, weights: Floats, gradients: Floats, count: float, learning_rate: float) -> None:
        """Step number ``count`` (1 for the first) with the step size ``learning_rate``."""
        m, v, scratch = self.first.all, self.second.all, self._scratch
        m *= np.float32(ADAM_BETA_1)
        m += np.multiply(gradients, np.float32(1.0 - ADAM_BETA_1), out=scratch)
        v *= np.float32(ADAM_BETA_2)
        np.multiply(gradients, gradients, out=scratch)
        scratch *= np.float32(1.0 - ADAM_BETA_2)
        v += scratch
        np.multiply(v, np.float32(1.0 / (1.0 - ADAM_BETA_2**count)), out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += np.float32(ADAM_EPSILON)
        np.divide(m, scratch, out=scratch)
        scratch *= np.float32(learning_rate / (1.0 - ADAM_BETA_1**count))
        weights -= scratch


class RMSProp:
    """Steps of RMSProp on a vector, in place; see ``train.algorithms.a2c.rmsprop_step`` for the equations."""

    def __init__(self, second: Mapping[str, NDArray[Any]], decay: float, epsilon: float) -> None:
        self.second = Vector(second)
        self.moments = {"second": self.second}
        self._decay, self._epsilon = decay, epsilon

    def step(self, weights: Floats, gradients: Floats, count: float, learning_rate: float) -> None:
        """One step with the step size ``learning_rate``; its number does not matter."""
        v = self.second.all
        v *= np.float32(self._decay)
        scratch = gradients * gradients
        scratch *= np.float32(1.0 - self._decay)
        v += scratch
        np.add(v, np.float32(self._epsilon), out=scratch)
        np.sqrt(scratch, out=scratch)
        np.divide(gradients, scratch, out=scratch)
        scratch *= np.float32(learning_rate)
        weights -= scratch


class Learning:
    """A network with its optimiser, taken from a learner's arrays by group and given back to them."""

    def __init__(
        self,
        state: State,
        group: str,
        prefix: str = "",
        rmsprop: tuple[float, float] | None = None,
        fake: FakeQuantization | None = None,
        control: WeightControl = OFF,
    ) -> None:
        """Args:
        state: the learner's arrays; the moments are in groups of their own, such as ``policy_first``.
        group: the network's.
        prefix: of its names, where a group holds several networks.
        rmsprop: its decay and ε; without them the optimiser is Adam.
        fake: on which grid the network computes, where the state has scales for it.
        control: what holds its kernels.
        """
        self._control, self._group, self.prefix, self._fake = control, group, prefix, fake
        self.network = self.perceptron(state, group)
        second = self._arrays(state, f"{group}_second")
        self.optimiser = (
            Adam(self._arrays(state, f"{group}_first"), second) if rmsprop is None else RMSProp(second, *rmsprop)
        )

    def _arrays(self, state: State, group: str) -> Weights:
        prefix = self.prefix
        return {name.removeprefix(prefix): value for name, value in state[group].items() if name.startswith(prefix)}

    def perceptron(self, state: State, group: str) -> Perceptron:
        """Return the network of a group, on this one's grid."""
        scales = state.get(QUANTIZER) if self._fake is not None else None
        return Perceptron(self._arrays(state, group), scales, self._fake)

    def step(self, largest_norm: float, count: float, rate: float) -> np.float32:
        """Clip the gradient and go step number ``count``; the gradient's norm before."""
        norm = clip_by_norm([self.network.gradient.all], largest_norm)
        self.descend(count, rate)
        return norm

    def descend(self, count: float, rate: float) -> None:
        """Go step number ``count`` along the gradient as it is."""
        self._control.decay_in_place(self.network.weights.views, rate)
        self.optimiser.step(self.network.weights.all, self.network.gradient.all, count, rate)
        self._control.clip_in_place(self.network.weights.views)

    def vectors(self) -> dict[str, Vector]:
        """Return the vectors that a learner keeps of it, by group."""
        moments = {f"{self._group}_{name}": vector for name, vector in self.optimiser.moments.items()}
        return {self._group: self.network.weights, **moments}


def arrays_of(*networks: Learning) -> dict[str, dict[str, Floats]]:
    """Return the arrays of a learner by group, under the names that they came with."""
    state: dict[str, dict[str, Floats]] = {}
    for network in networks:
        for group, vector in network.vectors().items():
            state.setdefault(group, {}).update({network.prefix + name: view for name, view in vector.views.items()})
    return state
