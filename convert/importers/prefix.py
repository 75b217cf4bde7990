"""What a chain does to each element of the observation before its first layer, as the contract's normaliser.

However many scales, offsets and clips follow each other, element by element they are one: z = clip(a x + b, low, high).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.convert.importers.chain import Affine, Clip, Doubles, ForeignError
from quarl.policy.spec import LARGEST_FLOAT32, Normaliser


@dataclass(frozen=True)
class Prefix:
    """z = clip(a x + b, low, high), element by element; each (n,)."""

    scale: Doubles
    offset: Doubles
    low: Doubles
    high: Doubles

    @classmethod
    def of(cls, size: int, steps: list[Affine | Clip]) -> Prefix:
        """Return all of these steps as one, on ``size`` elements."""
        a, b = np.ones(size), np.zeros(size)
        low, high = np.full(size, -np.inf), np.full(size, np.inf)
        for step in steps:
            if isinstance(step, Clip):
                bounds = np.broadcast_to(step.low, size), np.broadcast_to(step.high, size)
                low, high = np.clip(low, *bounds), np.clip(high, *bounds)
            else:
                scale, offset = np.broadcast_to(step.scale, size), np.broadcast_to(step.offset, size)
                a, b = a * scale, b * scale + offset
                ends = [_scale_ends(end, scale, offset) for end in (low, high)]
                low, high = np.minimum(*ends), np.maximum(*ends)
        return cls(a, b, low, high)

    def __call__(self, x: Doubles) -> Doubles:
        """z (batch, n) of observations x (batch, n)."""
        return np.clip(x * self.scale + self.offset, self.low, self.high)

    @property
    def constants(self) -> Doubles:
        """Values of z that do not depend on the observation; NaN for the elements that do."""
        fixed = (self.scale == 0) | (self.low == self.high)
        return np.where(fixed, np.clip(self.offset, self.low, self.high), np.nan)

    @property
    def signs(self) -> Doubles:
        """−1 where z falls as x grows, else 1."""
        return np.where(self.scale < 0, -1.0, 1.0)

    def _means(self) -> tuple[Doubles, Doubles]:
        """(mean, a) of (x − mean) · a; 0 and 1 for elements that are constant."""
        fixed = np.isfinite(self.constants)
        a = np.where(fixed, 1.0, np.abs(self.scale))
        return np.where(fixed, 0.0, -self.offset * self.signs / a), a

    @property
    def rounding_excess(self) -> Doubles:
        """Excess of sign · z over the normaliser's z, whose mean is a float32: that of 10⁴ may be off by 10⁻³."""
        mean, a = self._means()
        return (np.float64(np.float32(mean)) - mean) * a

    def normaliser(self) -> Normaliser:
        """Return the normaliser of sign · z, to :attr:`rounding_excess`; scale 1 and mean 0 for constant elements."""
        fixed, sign = np.isfinite(self.constants), self.signs
        mean, a = self._means()
        turned = np.where(fixed, np.inf, self.low * sign), np.where(fixed, np.inf, self.high * sign)
        low = (
            (np.where(fixed, -np.inf, np.minimum(*turned)) - self.rounding_excess).astype(np.float32).astype(np.float64)
        )
        high = (np.maximum(*turned) - self.rounding_excess).astype(np.float32).astype(np.float64)
        scale = 1.0 / a
        alike = all(_is_one(values) for values in (mean, scale, low, high))
        selection = slice(0, 1) if alike else slice(None)
        if _is_one(high) and (low == -high).all():
            return Normaliser(_numbers(mean[selection]), _numbers(scale[selection]), float(high[0]))
        ends = (np.clip(values[selection], -LARGEST_FLOAT32, LARGEST_FLOAT32) for values in (low, high))
        return Normaliser(_numbers(mean[selection]), _numbers(scale[selection]), float("inf"), *map(_numbers, ends))


def _scale_ends(ends: Doubles, scale: Doubles, offset: Doubles) -> Doubles:
    with np.errstate(invalid="ignore"):  # 0 · ∞, of an element that becomes a constant
        return np.where(scale == 0, offset, ends * scale + offset)


def _numbers(values: Doubles) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


def _is_one(values: Doubles) -> bool:
    return bool((values == values[0]).all())


def refuse_odd_images(prefix: Prefix) -> None:
    """Refuse an image whose elements are not all treated alike, or are turned over: a kernel cannot take that up."""
    parts: tuple[Any, ...] = (prefix.scale, prefix.offset, prefix.low, prefix.high)
    if not all(_is_one(part) for part in parts) or prefix.scale[0] <= 0:
        raise ForeignError(
            "the image must be scaled by one positive number before the first convolution, "
            "got a scale per element or a negative one."
        )
