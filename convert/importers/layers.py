"""The layers of a chain with every affine map between them folded in, in float64, and the network that they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Convolution,
    Dense,
    Doubles,
    ForeignError,
    LayerNorm,
    Recurrent,
    Step,
)
from quarl.policy.exact import LAYER_NORM_EPSILON
from quarl.policy.quantize import Floats
from quarl.policy.spec import Activation, Cell, NetworkSpec, Recurrence
from quarl.policy.spec import Convolution as ConvolutionSpec

LEAKY = Activation.LEAKY_RELU


@dataclass
class Layer:
    """One convolution, dense or recurrent layer under construction, in float64.

    Attributes:
        kernel: (in, out), or (side, side, in, out) of a convolution.
        bias: (out,).
        stride: of a convolution.
        norm: (γ, β) of a layer normalisation behind it.
        activation: behind both; of the last layer, NONE.
        cell: of a recurrent layer; ``kernel`` and ``bias`` are those of what is fed to it.
        state: its kernel (units, gates) and bias (gates,) of the hidden state.
    """

    kernel: Doubles
    bias: Doubles
    stride: int = 0
    norm: tuple[Doubles, Doubles] | None = None
    activation: Activate = field(default_factory=lambda: Activate(Activation.NONE))
    cell: Cell | None = None
    state: tuple[Floats, Floats] | None = None

    @property
    def width(self) -> int:
        """Elements that the next layer is fed."""
        return len(self.bias if self.state is None else self.state[0])

    @property
    def is_linear(self) -> bool:
        """Whether its outputs are sums, with no function behind them."""
        return self.norm is None and self.activation.activation is Activation.NONE and self.cell is None


def layers_of(steps: list[Step]) -> tuple[list[Layer], list[Step]]:
    """Return the layers, with what stands between them folded in, and the steps behind the last one."""
    last = max((at for at, step in enumerate(steps) if isinstance(step, Dense)), default=None)
    if last is None:
        raise ForeignError("the policy must have a dense layer, got none.")
    layers: list[Layer] = []
    waiting: tuple[Doubles, Doubles] | None = None  # an affine map of the last activation, for the next layer
    for step in steps[: last + 1]:
        if isinstance(step, Dense | Convolution | Recurrent):
            layer = _fed(step, waiting)
            waiting = None
            if not _try_merge(layers, layer):
                layers.append(layer)
        elif not layers:
            raise ForeignError(f"{describe_step(step)} before the first layer cannot be part of a normaliser.")
        elif isinstance(step, Affine):
            waiting = behind(layers[-1], step, waiting)
        elif isinstance(step, LayerNorm):
            if not layers[-1].is_linear or waiting:
                raise ForeignError("a layer normalisation must stand before the activation, not after it.")
            _check_norm(step, layers[-1])
            layers[-1].norm = step.gamma.astype(np.float64), step.beta.astype(np.float64)
        elif isinstance(step, Activate):
            if step.activation is Activation.NONE:
                continue
            if layers[-1].cell is not None:
                raise ForeignError(f"only a dense layer may follow a recurrent layer, got {describe_step(step)}.")
            if layers[-1].activation.activation is not Activation.NONE or waiting is not None:
                raise ForeignError(f"{describe_step(step)} after another activation is not supported.")
            layers[-1].activation = step
        else:
            raise ForeignError("only the observation and the actions may be clipped, got a clip between layers.")
    return layers, steps[last + 1 :]


def _fed(step: Dense | Convolution | Recurrent, waiting: tuple[Doubles, Doubles] | None) -> Layer:
    """Return a layer that takes up the affine map of what it is fed: Σ (s x + o) W + b = Σ x (s W) + (o W + b)."""
    kernel, bias = step.kernel.astype(np.float64), step.bias.astype(np.float64)
    if waiting is not None:
        channels = kernel.shape[-2]
        scale, offset = (
            np.resize(values, channels) for values in waiting
        )  # repeated: images are flattened channels last
        rows = offset[:, None] * kernel
        bias = bias + rows.reshape(-1, kernel.shape[-1]).sum(axis=0)
        kernel = kernel * scale[:, None]
    if isinstance(step, Recurrent):
        return Layer(kernel, bias, cell=step.cell, state=(step.state_kernel, step.state_bias))
    return Layer(kernel, bias, step.stride if isinstance(step, Convolution) else 0)


def _try_merge(layers: list[Layer], layer: Layer) -> bool:
    """Return whether the layer went into the one before it: two without an activation are one, if that is no larger."""
    if not layers or layer.cell is not None:
        return False
    before = layers[-1]
    if not before.is_linear or before.kernel.ndim != 2 or layer.kernel.ndim != 2:
        return False
    merged = before.kernel @ layer.kernel
    if merged.size > before.kernel.size + layer.kernel.size:
        return False
    layers[-1] = Layer(merged, before.bias @ layer.kernel + layer.bias)
    return True


def behind(layer: Layer, step: Affine, waiting: tuple[Doubles, Doubles] | None) -> tuple[Doubles, Doubles] | None:
    """Fold an affine map into the layer before it, or keep it for the next one where an activation stands between."""
    scale, offset = (np.broadcast_to(values, layer.width) for values in (step.scale, step.offset))
    if layer.activation.activation is not Activation.NONE or layer.cell is not None:
        s, o = waiting if waiting is not None else (np.ones_like(scale), np.zeros_like(offset))
        return s * scale, o * scale + offset
    if layer.norm is not None:
        layer.norm = layer.norm[0] * scale, layer.norm[1] * scale + offset
    else:
        layer.kernel, layer.bias = layer.kernel * scale, layer.bias * scale + offset
    return None


def _check_norm(step: LayerNorm, layer: Layer) -> None:
    if layer.kernel.ndim != 2:
        raise ForeignError("a layer normalisation must follow a dense layer, got one after a convolution.")
    if not math.isclose(step.epsilon, LAYER_NORM_EPSILON, rel_tol=1e-3):
        raise ForeignError(
            f"the epsilon of a layer normalisation must be {LAYER_NORM_EPSILON:g}, got {step.epsilon:g}.",
            "Train with the epsilon of PyTorch's LayerNorm, 1e-5.",
        )


def network_of(layers: list[Layer]) -> tuple[NetworkSpec, dict[str, Floats]]:
    """Return the layers as the contract has them, and their weights by the bundle's names.

    Raises:
        ForeignError: an order of layers, or a mixture of kinds, that the contract does not have.
    """
    *every, head = layers
    hidden = [layer for layer in every if layer.cell is None]
    convolutions = [layer for layer in hidden if layer.kernel.ndim == 4]
    dense = hidden[len(convolutions) :]
    if any(layer.kernel.ndim == 4 for layer in dense) or head.kernel.ndim == 4:
        raise ForeignError("a convolution after a dense layer is not supported.")
    norms = [layer.norm is not None for layer in dense]
    if any(norms) and not all(norms):
        raise ForeignError("all hidden layers or none must be normalised, got some.")
    kinds = tuple(layer.activation.activation for layer in hidden)
    slopes = {layer.activation.negative_slope for layer in hidden if layer.activation.activation is LEAKY}
    if len(slopes) > 1:
        raise ForeignError(f"all LeakyReLUs must have the same slope, got {sorted(slopes)}.")
    network = NetworkSpec(
        hidden=tuple(len(layer.bias) for layer in dense),
        activation=kinds[0] if kinds else Activation.RELU,
        convolutions=tuple(ConvolutionSpec(len(c.bias), c.kernel.shape[0], c.stride) for c in convolutions),
        layer_norm=bool(norms) and all(norms),
        activations=kinds if len(set(kinds)) > 1 else (),
        negative_slope=float(next(iter(slopes), 0.01)),
        recurrences=tuple(
            Recurrence(layer.cell, len(layer.state[0]), sum(earlier.cell is None for earlier in every[:at]))
            for at, layer in enumerate(every)
            if layer.cell is not None and layer.state is not None
        ),
    )
    weights: dict[str, Floats] = {}
    names = iter((*network.hidden_names, "head"))
    for layer in layers:
        name = next(names)
        parts = {"kernel": layer.kernel, "bias": layer.bias}
        if layer.norm is not None:
            parts |= {"gamma": layer.norm[0], "beta": layer.norm[1]}
        weights |= {f"{name}/{part}": np.ascontiguousarray(value, np.float32) for part, value in parts.items()}
        if layer.state is not None:
            name = next(names)
            weights |= {f"{name}/kernel": layer.state[0], f"{name}/bias": layer.state[1]}
    return network, weights


def describe_step(step: Step) -> str:
    """Return a step in words."""
    if isinstance(step, Activate):
        return f"the activation {step.activation.value}"
    return {
        Affine: "an affine map",
        Clip: "a clip",
        LayerNorm: "a layer normalisation",
        Dense: "a dense layer",
        Convolution: "a convolution",
        Recurrent: "a recurrent layer",
    }[type(step)]
