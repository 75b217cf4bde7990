"""The activations behind hidden layers: fast in float32, or with the same bits on every processor.

In integers an activation is a table of 256 levels (:mod:`policy.integer`), made by the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.policy import exact
from quarl.policy.errors import SpecError
from quarl.policy.quantization import INT8_MAX, INT8_MIN, Affine, affine_from_range
from quarl.policy.spec import Activation, NetworkSpec

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

LARGEST_SLOPES = {Activation.SIGMOID: 0.25, Activation.SILU: 1.1}
"""|f'| at most; of the others 1, or a LeakyReLU's slope if that is larger. SiLU's is 1.0998 at 2.4."""
RELU_LIKE = (Activation.RELU, Activation.LEAKY_RELU, Activation.NONE)
"""Activations that let a positive factor through: f(k x) = k f(x)."""


def activate(network: NetworkSpec, layer: str, x: Floats, same_bits: bool = False) -> Floats:
    """A layer's activation of float32 values of any shape; the head has none.

    Args:
        network, layer: which.
        x: what the layer's linear part, or its normalisation, gives.
        same_bits: with the same bits on every processor.
    """
    kind = Activation.NONE if layer == "head" else network.activation_of(layer)
    if kind is Activation.NONE:
        return x
    if kind is Activation.RELU:
        return np.maximum(x, np.float32(0.0))
    if same_bits:
        return exactly(kind, x.astype(np.float64), network.negative_slope).astype(np.float32)
    return _fast(kind, x, np.float32(network.negative_slope))


def _fast(kind: Activation, x: Floats, slope: np.float32) -> Floats:
    one = np.float32(1.0)
    if kind is Activation.TANH:
        return np.tanh(x)
    if kind is Activation.LEAKY_RELU:
        return np.where(x > 0, x, slope * x)
    if kind is Activation.ELU:
        return np.where(x > 0, x, np.expm1(np.minimum(x, np.float32(0.0))))
    with np.errstate(over="ignore"):  # e¹⁰⁰ is infinite, and 1 / (1 + ∞) is 0
        sigmoid: Floats = one / (one + np.exp(-x))
    return sigmoid if kind is Activation.SIGMOID else x * sigmoid


def exactly(kind: Activation, x: Doubles, negative_slope: float) -> Doubles:
    """An activation in double precision, with the same bits on every processor, same shape.

    All of tanh:  1 / (1 + e⁻ˣ) = (1 + tanh x/2) / 2,   eˣ − 1 = 2 t / (1 − t) with t = tanh x/2,  x ≤ 0.
    """
    if kind is Activation.TANH:
        return exact.tanh64(x)
    if kind is Activation.LEAKY_RELU:
        return np.where(x > 0, x, float(np.float32(negative_slope)) * x)
    if kind is Activation.RELU:
        return np.maximum(x, 0.0)
    if kind is Activation.NONE:
        return x
    if kind is Activation.ELU:
        half = exact.tanh64(np.minimum(x, 0.0) / 2.0)
        return np.where(x > 0, x, 2.0 * half / (1.0 - half))
    if kind not in (Activation.SIGMOID, Activation.SILU):
        raise SpecError(f"the activation {kind.value!r} is not known here.")
    sigmoid = (1.0 + exact.tanh64(x / 2.0)) / 2.0
    return sigmoid if kind is Activation.SIGMOID else x * sigmoid


def largest_slope(network: NetworkSpec, layer: str) -> float:
    """How much more an error can be behind a layer's activation than before it, at most."""
    kind = network.activation_of(layer)
    if kind is Activation.LEAKY_RELU:
        return max(1.0, network.negative_slope)
    return LARGEST_SLOPES.get(kind, 1.0)


# --- in integers --------------------------------------------------------------------------------------------------

FIXED_MAPS = {Activation.TANH: Affine(1 / 128, 0), Activation.SIGMOID: Affine(1 / 256, INT8_MIN)}
"""The output maps of TFLite's own int8 kernels; a table of ours can give any other."""
FIXED_FROM = 0.5  # of the largest |f|: below it, a map of its own has more than twice the levels
GRID = 1024


@dataclass(frozen=True)
class IntegerTable:
    """An activation as a table: the level of ``output`` for each int8 level of the layer's linear part.

    Attributes:
        activation: which.
        negative_slope: of a LeakyReLU.
        levels: int8 (256,), of the levels −128 … 127.
        output: map of the result.
    """

    activation: Activation
    negative_slope: float
    levels: NDArray[np.int8]
    output: Affine

    @classmethod
    def made(cls, network: NetworkSpec, layer: str, fed: Affine, output: Affine) -> IntegerTable:
        """round(f(s (q − z)) / s') + z' for all q of the map ``fed``, with s' and z' of ``output``."""
        kind, slope = network.activation_of(layer), network.negative_slope
        x = float(np.float32(fed.scale)) * (np.arange(INT8_MIN, INT8_MAX + 1) - fed.zero_point).astype(np.float64)
        levels = np.rint(exactly(kind, x, slope) / float(np.float32(output.scale))) + output.zero_point
        return cls(kind, slope, np.clip(levels, output.low, output.high).astype(np.int8), output)

    def __call__(self, levels: NDArray[np.int32]) -> NDArray[np.int32]:
        """Levels of the linear part to levels of the result, same shape."""
        return self.levels[levels - INT8_MIN].astype(np.int32)

    @property
    def has_kernel(self) -> bool:
        """Whether TFLite's int8 kernel of this activation gives just these levels; else they are looked up."""
        return self.activation is Activation.ELU or self.output == FIXED_MAPS.get(self.activation)


def activation_map(network: NetworkSpec, layer: str, low: float, high: float) -> Affine:
    """The 8-bit map of a layer's output, given the range that was seen."""
    kind = Activation.NONE if layer == "head" else network.activation_of(layer)
    fixed = FIXED_MAPS.get(Activation.TANH if layer in network.states else kind)  # a hidden state lies in −1 … 1
    if fixed is not None and FIXED_FROM < max(-low, high) <= 1.0:  # a vector that joins a convolution may reach farther
        return fixed
    return affine_from_range(low, high)


def linear_map(network: NetworkSpec, layer: str, low: float, high: float, output: Affine) -> Affine:
    """The 8-bit map of a layer's linear part, given the range that was seen and the map of its activation.

    Where a tanh is flat, levels would be spent on what comes out as one: the range is cut, at either end, to where the
    activation has moved by half a step of its output.
    """
    x = low + (high - low) / GRID * np.arange(GRID + 1)
    y = exactly(network.activation_of(layer), x, network.negative_slope)
    below = np.maximum.accumulate(y) - np.minimum.accumulate(y) <= output.scale / 2
    above = np.maximum.accumulate(y[::-1]) - np.minimum.accumulate(y[::-1]) <= output.scale / 2
    first, last = int(below.sum()) - 1, GRID + 1 - int(above.sum())
    if first < last:
        low, high = float(x[first]), float(x[last])
    return affine_from_range(low, high)
