"""What a policy observes: named fields, and the normaliser of their elements."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Optional

from quarl.policy.contract.checks import (
    LARGEST_DIVISOR,
    LARGEST_FLOAT32,
    LARGEST_SIDE,
    MOST_SIDES,
    SMALLEST_DIVISOR,
    require,
    require_member,
    require_name,
    require_names,
)
from quarl.policy.json_values import OMITTED, null_is, shortened


class Remembered(Enum):
    """What a field of earlier periods holds."""

    OBSERVATION = "observation"
    """The field's own values; the last row is this period's."""
    ACTION = "action"
    """The policy's actions; the last row is that of the period before."""
    STATE = "state"
    """What a recurrent layer of the policy made of the period before, one row."""


@dataclass(frozen=True)
class Memory:
    """A field's rows are successive control periods, the oldest first.

    Attributes:
        of: what they hold.
        initial: one row, which stands in for the periods before the first, in the field's unit.
    """

    of: Remembered
    initial: tuple[float, ...]

    def __post_init__(self) -> None:
        require_member(Remembered, self.of, "observation.memory.of")
        finite = all(abs(value) <= LARGEST_FLOAT32 for value in self.initial)
        require(finite, f"observation.memory.initial is {shortened(self.initial)}; allowed are finite numbers.")


@dataclass(frozen=True)
class ObservationField:
    """One named part of the observation vector.

    Attributes:
        name: what it is, e.g. ``"goal_distance"``.
        shape: its shape; the field is flattened in C order into the observation vector.
        unit: its physical unit, e.g. ``"m"``, or ``"1"`` when it has none.
        element_names: one for each element of a row in C order, e.g. of joints; or none.
        memory: of a field that holds earlier periods, too: ``shape`` is then (periods, …). Of any other, None, and it
            is a single row.
    """

    name: str
    shape: tuple[int, ...]
    unit: str
    element_names: tuple[str, ...] = field(default=(), metadata=OMITTED)
    memory: Optional[Memory] = field(default=None, metadata=OMITTED)

    def __post_init__(self) -> None:
        require(bool(self.name), "an observation field has no name.")
        require_name(self.name, "an observation field's name")
        require_name(self.unit, f"the unit of observation field {self.name!r}")
        require(
            all(0 < side <= LARGEST_SIDE for side in self.shape) and len(self.shape) <= MOST_SIDES,
            f"observation field {self.name!r} has the shape {shortened(self.shape)}; "
            f"allowed are up to {MOST_SIDES} sides of 1 … {LARGEST_SIDE}.",
        )
        if self.memory is not None:
            found = len(self.memory.initial)
            require(
                bool(self.shape) and found * self.shape[0] == self.size,
                f"observation field {self.name!r} of shape {self.shape} remembers rows of {found} elements.",
            )
            require(
                self.shape[0] == 1 or self.memory.of is not Remembered.STATE,
                f"observation field {self.name!r} has {self.shape[0]} rows of state; allowed is one.",
            )
        require_names(self.element_names, self.row_size, f"observation field {self.name!r}")

    @property
    def size(self) -> int:
        """Number of floats of this field."""
        return math.prod(self.shape)

    @property
    def row_size(self) -> int:
        """Number of floats of one period."""
        return self.size if self.memory is None else self.size // self.shape[0]

    @property
    def row(self) -> ObservationField:
        """The field as one period brings it."""
        if self.memory is None:
            return self
        return ObservationField(self.name, self.shape[1:], self.unit, self.element_names)

    @property
    def is_state(self) -> bool:
        """Whether it is what a recurrent layer remembers."""
        return self.memory is not None and self.memory.of is Remembered.STATE

    @property
    def is_brought(self) -> bool:
        """Whether each period brings a row of it from outside the policy."""
        return self.memory is None or self.memory.of is Remembered.OBSERVATION


@dataclass(frozen=True)
class Normaliser:
    """z = clip((x − mean) / scale, low, high), element by element, in float32, inside every exported graph.

    Attributes:
        mean: one value per observation element, in the element's unit; or a single one for all elements alike (images).
        scale: likewise, positive.
        clip: the largest |z|, dimensionless and positive: low = −clip, high = clip; ``inf`` switches clipping off.
        low, high: bounds of z one by one, in place of ``clip``, which is then ``inf``; or none.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    clip: float = field(default=10.0, metadata=null_is(math.inf))
    low: tuple[float, ...] = field(default=(), metadata=OMITTED)
    high: tuple[float, ...] = field(default=(), metadata=OMITTED)

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.scale), f"normaliser has {len(self.mean)} means but {len(self.scale)} scales."
        )
        require(all(abs(m) <= LARGEST_FLOAT32 for m in self.mean), "normaliser.mean must be finite in float32.")
        require(
            all(SMALLEST_DIVISOR <= s <= LARGEST_DIVISOR for s in self.scale),
            f"normaliser.scale must be positive and between {SMALLEST_DIVISOR:g} and {LARGEST_DIVISOR:g}, "
            "so that it and its reciprocal are float32 numbers.",
        )
        require(self.clip > 0, f"normaliser.clip is {self.clip}; it must be positive.")
        if self.low or self.high:
            require(self.clip == math.inf, "normaliser has both a clip and bounds; allowed is one of them.")
            found = len(self.low), len(self.high)
            require(
                found == (len(self.mean), len(self.mean)),
                f"normaliser has {found[0]} lows and {found[1]} highs for {len(self.mean)} means.",
            )
            pairs = zip(self.low, self.high)
            require(
                all(-LARGEST_FLOAT32 <= low < high <= LARGEST_FLOAT32 for low, high in pairs),
                "normaliser.low and normaliser.high must be finite in float32, with low < high.",
            )
