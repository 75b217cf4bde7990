"""What a policy's outputs mean, and where it was trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from quarl.policy.contract.checks import (
    LARGEST_FLOAT32,
    require,
    require_few_outputs,
    require_member,
    require_name,
    require_names,
)
from quarl.policy.contract.enums import Squash
from quarl.policy.json_values import OMITTED, shortened


@dataclass(frozen=True)
class DiscreteHead:
    """One output (logit or action value) per named action; the action is the first largest one."""

    KIND: ClassVar[str] = "discrete"
    action_names: tuple[str, ...]

    def __post_init__(self) -> None:
        require(len(self.action_names) >= 2, f"a discrete head needs two actions, got {len(self.action_names)}.")
        require_few_outputs(len(self.action_names))
        for name in self.action_names:
            require_name(name, "an action's name")
        repeated = sorted(name for name, count in Counter(self.action_names).items() if count > 1)
        require(not repeated, f"a discrete head names an action twice: {shortened(repeated)}.")

    @property
    def size(self) -> int:
        """Number of actions."""
        return len(self.action_names)


@dataclass(frozen=True)
class ContinuousHead:
    """a = low + (squash(clip(y, −limit, limit)) + 1) / 2 · (high − low), element by element, inside every graph.

    Attributes:
        low, high: what −1 and 1 stand for, in ``unit``: the bounds of a squashed action.
        squash: of the raw outputs.
        limit: largest |y| that is squashed; ``inf``, for all.
        names: of the action's elements, e.g. of joints; or none.
        unit: their physical unit, or ``"1"``.
    """

    KIND: ClassVar[str] = "continuous"
    low: tuple[float, ...]
    high: tuple[float, ...]
    squash: Squash
    limit: float = field(default=math.inf, metadata=OMITTED)
    names: tuple[str, ...] = field(default=(), metadata=OMITTED)
    unit: str = field(default="1", metadata=OMITTED)

    def __post_init__(self) -> None:
        require_member(Squash, self.squash, "head.squash")
        require(self.limit > 0, f"head.limit is {self.limit}; it must be positive.")
        require_names(self.names, len(self.low), "the head")
        require_name(self.unit, "the unit of the head's actions")
        require(len(self.low) == len(self.high) > 0, f"head has {len(self.low)} lows but {len(self.high)} highs.")
        require_few_outputs(len(self.low))
        finite = all(abs(v) <= LARGEST_FLOAT32 for v in (*self.low, *self.high))
        ordered = all(low < high for low, high in zip(self.low, self.high))
        require(
            finite and ordered,
            f"head bounds {shortened(self.low)} … {shortened(self.high)} must be finite with low < high.",
        )

    @property
    def size(self) -> int:
        """Number of action elements."""
        return len(self.low)


@dataclass(frozen=True)
class EnvironmentSpec:
    """Where the policy was trained: an environment id and the settings it was made with (JSON values)."""

    id: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name(self.id, "environment.id")
