"""The layers between the normalised observation and the head."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from quarl.policy.contract.cells import STATE, Recurrence
from quarl.policy.contract.checks import LARGEST_SIDE, MOST_LAYERS, require, require_member
from quarl.policy.contract.enums import Activation
from quarl.policy.json_values import OMITTED, shortened


@dataclass(frozen=True)
class Convolution:
    """A square convolution without padding: ``filters`` outputs, ``kernel`` × ``kernel`` inputs, ``stride``."""

    filters: int
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        sizes = (self.filters, self.kernel, self.stride)
        require(
            all(0 < size <= LARGEST_SIDE for size in sizes),
            f"network.convolutions has {shortened(sizes)}; all three must be positive, {LARGEST_SIDE} at most.",
        )

    def output_side(self, side: int) -> int:
        """Height or width of the output for an input of ``side``: ⌊(side − kernel) / stride⌋ + 1."""
        return (side - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class NetworkSpec:
    """Convolutions, then fully connected layers, each with an activation; then a linear head.

    Attributes:
        hidden: widths of the fully connected layers; none for a linear policy.
        activation: after every convolution and every hidden layer.
        activations: one for each of these layers, where they are not alike; ``activation`` is the first of them.
        negative_slope: of a LeakyReLU, in 0 … 1.
        convolutions: none for a multilayer perceptron. Their input is the observation's first field, an image of
            shape (height, width, channels); their output is flattened in C order. Vector fields that follow the image
            pass them by: they stand behind the flattened output in the input of the first fully connected layer.
        layer_norm: whether the linear part of every *hidden* fully connected layer is normalised over its width before
            the activation: y = γ (x − mean x) / √(var x + 10⁻⁵) + β (Ba et al. 2016).
        recurrences: recurrent layers among the fully connected ones, in order; none for a policy that forgets.
    """

    hidden: tuple[int, ...]
    activation: Activation = Activation.RELU
    convolutions: tuple[Convolution, ...] = field(default=(), metadata=OMITTED)
    layer_norm: bool = field(default=False, metadata=OMITTED)
    activations: tuple[Activation, ...] = field(default=(), metadata=OMITTED)
    negative_slope: float = field(default=0.01, metadata=OMITTED)
    recurrences: tuple[Recurrence, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            all(0 < width <= LARGEST_SIDE for width in self.hidden),
            f"network.hidden is {shortened(self.hidden)}; widths must be positive, {LARGEST_SIDE} at most.",
        )
        layers = len(self.convolutions) + len(self.hidden)
        together = layers + 2 * len(self.recurrences)
        require(together <= MOST_LAYERS, f"network has {together} layers before the head; allowed are {MOST_LAYERS}.")
        require(not (self.recurrences and self.convolutions), "a network with convolutions has no recurrent layers.")
        places = [each.behind for each in self.recurrences]
        require(
            places == sorted(places) and all(0 <= place <= len(self.hidden) for place in places),
            f"network.recurrences stand behind {shortened(places)} hidden layers; allowed are ascending numbers up to "
            f"{len(self.hidden)}.",
        )
        require(layers <= MOST_LAYERS, f"network has {layers} layers before the head; allowed are {MOST_LAYERS}.")
        for kind in (self.activation, *self.activations):
            require_member(Activation, kind, "network.activation")
        require(
            not self.activations or (len(self.activations) == layers and self.activations[0] is self.activation),
            f"network.activations are {len(self.activations)}, from {shortened([a.value for a in self.activations])}; "
            f"allowed are none, or {layers} of which the first is network.activation, {self.activation.value!r}.",
        )
        require(
            0.0 <= self.negative_slope <= 1.0, f"network.negative_slope is {self.negative_slope}; allowed are 0 … 1."
        )

    @property
    def is_relu(self) -> bool:
        """Whether a ReLU follows every convolution and every hidden layer."""
        return set(self.activations or (self.activation,)) == {Activation.RELU}

    def activation_of(self, layer: str) -> Activation:
        """The activation of a layer before the head, by the layer's name; none of a recurrent layer's sums."""
        if layer.startswith(("recurrent_", STATE)):
            return Activation.NONE
        return self.activations[self._activated_names.index(layer)] if self.activations else self.activation

    @property
    def _activated_names(self) -> tuple[str, ...]:
        convolutions = (f"conv_{index}" for index in range(len(self.convolutions)))
        return (*convolutions, *(f"dense_{index}" for index in range(len(self.hidden))))

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """Names of all linear layers before the head, in order: ``conv_0``, …, ``dense_0``, …, and where they stand
        ``recurrent_<i>`` with ``state_<i>`` behind it."""
        names = list(self._activated_names)
        for index, each in reversed(list(enumerate(self.recurrences))):
            names[each.behind : each.behind] = [f"recurrent_{index}", f"{STATE}{index}"]
        return tuple(names)

    @property
    def states(self) -> dict[str, Recurrence]:
        """The recurrent layers by the name of their state's linear layer, in order."""
        return {f"{STATE}{index}": each for index, each in enumerate(self.recurrences)}

    @property
    def state_size(self) -> int:
        """Floats that all recurrent layers remember, one behind the other."""
        return sum(each.state_size for each in self.recurrences)

    def image_shapes(self, observation: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
        """(height, width, channels) of the observation and after each convolution.

        Raises:
            SpecError: the observation is no image, or too small for a kernel.
        """
        require(
            len(observation) == 3,
            f"the network's convolutions take an image (height, width, channels); the observation is {observation}.",
        )
        shapes = [(observation[0], observation[1], observation[2])]
        for layer in self.convolutions:
            height, width = layer.output_side(shapes[-1][0]), layer.output_side(shapes[-1][1])
            require(height > 0 and width > 0, f"an image of {shapes[-1]} is too small for {layer}.")
            shapes.append((height, width, layer.filters))
        return tuple(shapes)

    def dense_inputs(self, observation: tuple[int, ...], vector: int = 0) -> int:
        """Inputs of the first fully connected layer for an observation of that shape.

        Args:
            observation: its shape; of its image, where there are convolutions.
            vector: floats that follow the image and pass the convolutions by.
        """
        return math.prod(self.image_shapes(observation)[-1] if self.convolutions else observation) + vector


NATURE_CONVOLUTIONS = (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1))
"""The convolutions of the Nature DQN (Mnih et al. 2015, Methods); a hidden layer of 512 follows them."""


def network_shapes(
    network: NetworkSpec, observation: tuple[int, ...], outputs: int, vector: int = 0
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a network, in the order of its layers.

    ``conv_<i>/kernel`` is (height, width, in, out), ``dense_<i>/kernel`` and ``head/kernel`` are (in, out),
    ``<layer>/bias`` is (out,), and with layer normalisation ``dense_<i>/gamma`` and ``dense_<i>/beta`` are (out,). Of a
    recurrent layer ``recurrent_<i>/kernel`` is (in, gates) and ``state_<i>/kernel`` (units, gates).

    Args:
        network: the layers.
        observation: shape of what the first layer takes, as :func:`observation_shape` gives it.
        outputs: of the head.
        vector: floats that follow the image; the last ``vector`` rows of the first dense kernel are theirs.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    images = network.image_shapes(observation) if network.convolutions else ()
    for index, layer in enumerate(network.convolutions):
        shapes[f"conv_{index}/kernel"] = (layer.kernel, layer.kernel, images[index][2], layer.filters)
        shapes[f"conv_{index}/bias"] = (layer.filters,)
    width = network.dense_inputs(observation, vector)
    recurrences, states = iter(network.recurrences), network.states
    hidden = iter(network.hidden)
    for name in network.hidden_names[len(network.convolutions) :]:
        if name in states:  # its input is the hidden state
            recurrence = states[name]
            given, outputs_of_it, width = recurrence.units, recurrence.gate_size, recurrence.units
        elif name.startswith("dense_"):
            given, outputs_of_it = width, next(hidden)
            width = outputs_of_it
        else:
            given, outputs_of_it = width, next(recurrences).gate_size
        shapes[f"{name}/kernel"] = (given, outputs_of_it)
        shapes[f"{name}/bias"] = (outputs_of_it,)
        if network.layer_norm and name.startswith("dense_"):
            shapes[f"{name}/gamma"] = (outputs_of_it,)
            shapes[f"{name}/beta"] = (outputs_of_it,)
    shapes["head/kernel"] = (width, outputs)
    shapes["head/bias"] = (outputs,)
    return shapes
