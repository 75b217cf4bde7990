"""Each parameter of a policy as a quantizer sees it: its range, its n-bit step and the levels it can take.

Levels are those of policy.quantization. ``quarl`` has 2ⁿ levels δ (k − z) over a tensor's whole range, weights and
biases alike, as QuaRL's own pictures show them (a sweep leaves biases alone). ``symmetric`` has 2ⁿ − 1 levels s_c · k
for each output channel c of a weight, and none for biases, which are 32-bit integers on a device; there, a policy that
was trained with fake quantization of that width keeps its scales, whose last levels may lie inside the weights' range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policy import quantization
from policy.bundle import Bundle
from policy.errors import QuantizationError
from policy.integer import trained_with
from policy.network import layer_names
from policy.quantization import FLOAT_BITS, Scheme
from policy.quantization_aware import WeightRange, kernel_scales

SCHEMES = (Scheme.QUARL, Scheme.SYMMETRIC)
ALL_ZERO = "all 0: no levels needed"
KINDS = {"kernel": "weights", "bias": "biases", "gamma": "layer norm γ", "beta": "layer norm β"}


@dataclass(frozen=True)
class Levels:
    """What one parameter can be after quantization.

    Attributes:
        count: number of levels of a tensor or, where each channel has its own, of one channel; 0: stays float or int32.
        step: distance of two levels, of the channel with the widest range.
        smallest_step: of the channel with the narrowest range; equals ``step`` where one step serves the whole tensor.
        lowest, highest: the outermost levels, of the channel with the widest range.
        words: how many there are, or why there are none.
        step_words: how far apart they are.
    """

    count: int
    step: float
    smallest_step: float
    lowest: float
    highest: float
    words: str
    step_words: str = ""

    def positions(self) -> NDArray[np.float64]:
        """Every level, ascending, (count,)."""
        return self.lowest + self.step * np.arange(self.count)


@dataclass(frozen=True)
class Parameter:
    """One tensor of a policy.

    Attributes:
        name: as the bundle has it, e.g. ``dense_0/kernel``.
        values: float32, its own shape.
        levels: see :class:`Levels`.
    """

    name: str
    values: NDArray[np.float32]
    levels: Levels

    @property
    def layer(self) -> str:
        """``dense_0``."""
        return self.name.rpartition("/")[0]

    @property
    def kind(self) -> str:
        """``weights``, ``biases``, or a layer normalisation's γ or β."""
        return KINDS[self.name.rpartition("/")[2]]

    @property
    def low(self) -> float:
        """Smallest value."""
        return float(self.values.min())

    @property
    def high(self) -> float:
        """Largest value."""
        return float(self.values.max())

    @property
    def range(self) -> float:
        """Largest minus smallest value."""
        return self.high - self.low

    @property
    def deviation(self) -> float:
        """Standard deviation, over all elements."""
        return float(self.values.std(dtype=np.float64))


def parameters(bundle: Bundle, bits: int, scheme: Scheme) -> list[Parameter]:
    """Every parameter of a bundle in the order of its layers.

    Raises:
        QuantizationError: the scheme has no such bit width.
    """
    weights = bundle.weights()
    trained = trained_with(bundle.spec, bits)
    weight_range = WeightRange.LARGEST if trained is None else trained.weight_range
    names = [f"{layer}/{part}" for layer in layer_names(bundle.spec) for part in KINDS]
    return [
        Parameter(name, weights[name], levels_of(weights[name], bits, scheme, name.endswith("/kernel"), weight_range))
        for name in names
        if name in weights
    ]


def levels_of(
    values: np.ndarray, bits: int, scheme: Scheme, is_kernel: bool, weight_range: WeightRange = WeightRange.LARGEST
) -> Levels:
    """Levels of one tensor under a scheme at n bits.

    Args:
        values: float32 (…, out).
        bits: 2 … 31, and 32 for none, with ``quarl``; 2 … 8 with ``symmetric``.
        scheme: one of SCHEMES.
        is_kernel: whether these are weights of a layer, not its biases or normalisation.
        weight_range: what the symmetric scales are taken from.

    Raises:
        QuantizationError: the scheme is not known or has no such bit width.
    """
    if scheme not in SCHEMES:
        allowed = " and ".join(each.value for each in SCHEMES)
        raise QuantizationError(f"levels of scheme {scheme.value!r} are not drawn; those of {allowed} are.")
    if scheme is Scheme.SYMMETRIC:
        quantization.check_bits(bits)
        return _symmetric_levels(values, bits, weight_range) if is_kernel else _none("int32 on the device")
    if bits == FLOAT_BITS:
        return _none("float32: no levels")
    if not values.any():
        return _none(ALL_ZERO)
    affine = quantization.quantize_quarl(values, bits).affine
    lowest, highest = (affine.scale * (level - affine.zero_point) for level in (affine.low, affine.high))
    count = 2**bits
    words = f"{count:,} levels", f"step {affine.scale:.3g}"
    return Levels(count, affine.scale, affine.scale, lowest, highest, *words)


def _symmetric_levels(values: np.ndarray, bits: int, weight_range: WeightRange) -> Levels:
    used = values.reshape(-1, values.shape[-1]).any(axis=0)  # a channel of zeros has an arbitrary scale
    if not used.any():
        return _none(ALL_ZERO)
    scales = kernel_scales(values, bits, weight_range).astype(np.float64)[used]
    widest = float(scales.max())
    limit = 2 ** (bits - 1) - 1
    count = 2 * limit + 1
    words = f"{count:,} levels a channel", f"steps {scales.min():.2g} … {widest:.2g}"
    return Levels(count, widest, float(scales.min()), -limit * widest, limit * widest, *words)


def _none(words: str) -> Levels:
    return Levels(0, 0.0, 0.0, 0.0, 0.0, words)


def all_weights(bundle: Bundle) -> NDArray[np.float32]:
    """The weights of all layers in one row, (n,): what a product is made with, without biases and normalisations."""
    weights = bundle.weights()
    return np.concatenate([weights[f"{layer}/kernel"].ravel() for layer in layer_names(bundle.spec)])


def as_text(titled: Iterable[tuple[str, list[Parameter]]]) -> str:
    """``output.txt``: one line for each parameter of each (title, parameters), columns aligned by spaces."""
    headers = ("parameter", "n", "min", "max", "range", "std", "step", "smallest step", "levels")
    blocks = []
    for title, found in titled:
        rows = [headers, *(_row(parameter) for parameter in found)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(headers))]
        lines = [
            "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]  # fmt: skip
        blocks.append("\n".join([title, *(line.rstrip() for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def _row(parameter: Parameter) -> tuple[str, ...]:
    levels = parameter.levels
    numbers = (parameter.low, parameter.high, parameter.range, parameter.deviation)
    return (
        parameter.name,
        str(parameter.values.size),
        *(f"{number:.6g}" for number in numbers),
        *((f"{levels.step:.6g}", f"{levels.smallest_step:.6g}", str(levels.count)) if levels.count else ("-",) * 3),
    )
