"""Each parameter of a policy as a quantizer sees it: its range, its n-bit step and the levels it can take.

``quarl`` has 2ⁿ levels δ (k − z) over a tensor's whole range, weights and biases alike, as QuaRL's own pictures show
them (a sweep leaves biases alone). ``symmetric`` has 2ⁿ − 1 levels s_c · k for each output channel c of a weight, and
none for biases, which are 32-bit integers on a device; there, a policy that was trained with fake quantization of that
width keeps its scales, whose last levels may lie inside the weights' range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.bench.tables import Table, tabulate
from quarl.policy import quantize
from quarl.policy.bundle import Bundle
from quarl.policy.errors import QuantizationError
from quarl.policy.quantize import FLOAT_BITS, Scheme, kernel_scales
from quarl.policy.reference import layer_names
from quarl.policy.simulate import find_trained_quantizers
from quarl.policy.spec import WeightRange

SCHEMES = (Scheme.QUARL, Scheme.SYMMETRIC)
KINDS = {"kernel": "weights", "bias": "biases", "gamma": "layer norm γ", "beta": "layer norm β"}
LONGEST_INITIALS = 4  # DDPG, D4PG; distill is a word


@dataclass(frozen=True)
class Levels:
    """The values that one parameter can have after quantization.

    Attributes:
        words: how many there are and how far apart, or why there are none.
        count: of a tensor or, where each channel has its own, of one channel; 0: stays float or int32.
        lowest: of the channel with the widest range.
        step: distance of two levels, of that channel.
        smallest_step: of the channel with the narrowest range; equals ``step`` where one step serves the whole tensor.
    """

    words: str
    count: int = 0
    lowest: float = 0.0
    step: float = 0.0
    smallest_step: float = 0.0

    def positions(self) -> NDArray[np.float64]:
        """Return every level, ascending, (count,)."""
        return self.lowest + self.step * np.arange(self.count)


@dataclass(frozen=True)
class Parameter:
    """One tensor of a policy, or the weights of all layers together.

    Attributes:
        layer, kind: ``dense_0`` and ``kernel``, ``bias``, ``gamma`` or ``beta``.
        values: float32, its own shape.
        levels: see :class:`Levels`.
    """

    layer: str
    kind: str
    values: NDArray[np.float32]
    levels: Levels

    @property
    def range(self) -> float:
        """Largest minus smallest value."""
        return float(self.values.max()) - float(self.values.min())

    @property
    def deviation(self) -> float:
        """Standard deviation, over all elements."""
        return float(self.values.std(dtype=np.float64))


def parameters(bundle: Bundle, bits: int, scheme: Scheme) -> list[Parameter]:
    """Return every parameter of a bundle in the order of its layers.

    Raises:
        QuantizationError: the scheme has no such bit width.
    """
    weights, trained = bundle.weights(), find_trained_quantizers(bundle.spec, bits)
    weight_range = WeightRange.LARGEST if trained is None else trained.weight_range
    return [
        Parameter(layer, kind, values, levels_of(values, bits, scheme, kind == "kernel", weight_range))
        for layer in layer_names(bundle.spec)
        for kind in KINDS
        if (values := weights.get(f"{layer}/{kind}")) is not None
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
        allowed = " and ".join(choice.value for choice in SCHEMES)
        raise QuantizationError(f"the levels of scheme {scheme.value!r} cannot be drawn; those of {allowed} can.")
    if scheme is Scheme.SYMMETRIC:
        quantize.check_bits(bits)
    if scheme is Scheme.SYMMETRIC and not is_kernel:
        return Levels("int32 on the device")
    if bits == FLOAT_BITS:
        return Levels("float32: no levels")
    if not values.any():
        return Levels("all 0: no levels needed")
    if scheme is Scheme.QUARL:
        affine = quantize.quantize_quarl(values, bits).affine
        words, lowest = f"{2**bits:,} levels\nstep {affine.scale:.3g}", affine.scale * (affine.low - affine.zero_point)
        return Levels(words, 2**bits, lowest, affine.scale, affine.scale)
    used = values.reshape(-1, values.shape[-1]).any(axis=0)  # a channel of zeros has an arbitrary scale
    scales = kernel_scales(values, bits, weight_range).astype(np.float64)[used]
    widest, limit = float(scales.max()), 2 ** (bits - 1) - 1
    words = f"{2 * limit + 1:,} levels a channel\nsteps {scales.min():.2g} … {widest:.2g}"
    return Levels(words, 2 * limit + 1, -limit * widest, widest, float(scales.min()))


def all_weights(bundle: Bundle) -> NDArray[np.float32]:
    """Return the weights of all layers in one row, (n,): what a product is made with, without biases and
    normalisations."""
    weights = bundle.weights()
    return np.concatenate([weights[f"{layer}/kernel"].ravel() for layer in layer_names(bundle.spec)])


def title_of(bundle: Bundle) -> str:
    """``cartpole-dqn``, or with the algorithm where the name does not say it: ``I (PPO)``."""
    method = str(bundle.spec.provenance.get("algorithm", ""))
    if not method or method in bundle.spec.name.lower():
        return bundle.spec.name
    return f"{bundle.spec.name} ({method.upper() if len(method) <= LONGEST_INITIALS else method})"


def table_of(bundle: Bundle, found: Iterable[Parameter], bits: int, scheme: Scheme) -> Table:
    """Return a line for each parameter."""
    lines = []
    for parameter in found:
        ends = {
            "min": parameter.values.min(),
            "max": parameter.values.max(),
            "range": parameter.range,
            "std": parameter.deviation,
        }
        levels = parameter.levels
        steps = {"step": f"{levels.step:.6g}", "smallest step": f"{levels.smallest_step:.6g}"}
        lines.append(
            {
                "parameter": f"{parameter.layer}/{parameter.kind}",
                "n": f"{parameter.values.size:,}",
                **{name: f"{value:.6g}".replace("-", "−") for name, value in ends.items()},
                **(steps if levels.count else dict.fromkeys(steps, "")),
                "levels": f"{levels.count:,}" if levels.count else "",
            }
        )
    return tabulate(f"weights-{bundle.spec.name}", f"{title_of(bundle)}: {bits} bits, {scheme.value}", lines)
