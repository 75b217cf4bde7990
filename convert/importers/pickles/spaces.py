"""The spaces of gymnasium (and of gym, its forerunner), and running means, from the tree of a pickle stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.pickles.arrays import array, dtype, mapping, refusal, shape_of, whole_number
from quarl.convert.importers.pickles.nodes import Call, Node, Symbol, describe_node, printable

MOST_CHOICES = 100_000
_RUNNING = ("stable_baselines3.common.running_mean_std",)


@dataclass(frozen=True)
class Box:
    """Numbers between two bounds, each of the box's shape; ±inf where there is none."""

    low: np.ndarray
    high: np.ndarray
    kind: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one element of the space."""
        return self.low.shape

    def is_bytes_image(self) -> bool:
        """Return whether it has three dimensions and the whole numbers 0 to 255, which programs take for an image."""
        return (
            len(self.shape) == 3 and self.kind == np.uint8 and bool((self.low == 0).all() and (self.high == 255).all())
        )


@dataclass(frozen=True)
class Discrete:
    """One of the numbers start, start + 1, …, start + n − 1."""

    n: int
    start: int


@dataclass(frozen=True)
class MultiDiscrete:
    """A number below each of ``choices``, which is (k,)."""

    choices: tuple[int, ...]


@dataclass(frozen=True)
class MultiBinary:
    """Zeros and ones of a shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """gymnasium's Dict: named spaces, in its order."""

    spaces: dict[str, Box | Discrete | MultiDiscrete | MultiBinary]


Space = Box | Discrete | MultiDiscrete | MultiBinary | Parts


def read_space(node: Node, what: str, inside: bool = False) -> Space:
    """Return a space of the tree.

    Args:
        node: the call that would make it, with its state.
        what: its name in messages, e.g. ``"the observation space"``.
        inside: whether it is a part of a Dict, which then may not be one itself.

    Raises:
        ForeignError: it is of another kind (Tuple, Text, an own class), or does not fit together.
    """
    function = node.function if isinstance(node, Call) else None
    # copyreg's way of older pickles: the class is the first argument
    if isinstance(function, Symbol) and function.among(("copyreg", "copy_reg"), "_reconstructor") and node.arguments:
        function = node.arguments[0]
    kind = function.name if isinstance(function, Symbol) and function.module.startswith(("gymnasium.", "gym.")) else ""
    if kind not in _KINDS or (inside and kind == "Dict"):
        raise ForeignError(
            f"{what} must be Box, Discrete, MultiDiscrete, MultiBinary, or one Dict of these, "
            f"got {describe_node(node if function is None else function)}.",
            "Train with one of these spaces, e.g. through a wrapper.",
        )
    return _KINDS[kind](_state(node, what), what)


def read_statistics(node: Node, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance, float64, of a RunningMeanStd; finite, and the variance not negative."""
    if not isinstance(node, Call) or not node.calls(_RUNNING, "RunningMeanStd"):
        raise refusal(what, f"must be a RunningMeanStd, got {describe_node(node)}")
    state = _state(node, what)
    mean, variance = (array(_of(state, name, what), f"{what}'s {name}").astype(np.float64) for name in ("mean", "var"))
    if mean.shape != variance.shape or not np.isfinite(mean).all() or not np.isfinite(variance).all():
        raise refusal(what, "must have as many finite means as finite variances")
    if (variance < 0).any():
        raise refusal(what, "has a negative variance")
    return mean, variance


def _state(node: Call, what: str) -> dict[str | int, Node]:
    state = node.state
    if isinstance(state, tuple) and len(state) == 2 and state[0] is None:  # an object with slots
        state = state[1]
    return mapping(state, what)


def _of(state: dict[str | int, Node], name: str, what: str) -> Node:
    if name not in state:
        raise refusal(what, f"has no {name}")
    return state[name]


def _box(state: dict[str | int, Node], what: str) -> Box:
    kind = dtype(_of(state, "dtype", what), what)
    low, high = (array(_of(state, name, what), what) for name in ("low", "high"))
    shape = shape_of(state.get("_shape", state.get("shape", low.shape)), what)
    if low.shape != shape or high.shape != shape:
        raise refusal(what, f"must have bounds of the shape {shape}, got {low.shape} and {high.shape}")
    if np.isnan(low).any() or np.isnan(high).any() or (low > high).any():
        raise refusal(what, "must have bounds with low ≤ high, none of them NaN")
    return Box(low, high, kind)


def _discrete(state: dict[str | int, Node], what: str) -> Discrete:
    n, start = whole_number(_of(state, "n", what), what), whole_number(state.get("start", 0), what)
    if not 1 <= n <= MOST_CHOICES:
        raise refusal(what, f"must be Discrete of 1 … {MOST_CHOICES}, got {n}")
    return Discrete(n, start)


def _multi_discrete(state: dict[str | int, Node], what: str) -> MultiDiscrete:
    choices = array(_of(state, "nvec", what), what)
    if choices.ndim != 1 or choices.dtype.kind not in "iu":
        raise refusal(what, f"must be a MultiDiscrete of one dimension, got the shape {choices.shape}")
    if not choices.size or choices.min() < 1 or int(choices.max()) * choices.size > MOST_CHOICES:
        raise refusal(what, "is a MultiDiscrete with too few or too many choices")
    if "start" in state and array(state["start"], what).any():
        raise refusal(what, "must be a MultiDiscrete that starts at 0")
    return MultiDiscrete(tuple(int(choice) for choice in choices))


def _multi_binary(state: dict[str | int, Node], what: str) -> MultiBinary:
    shape = state.get("_shape", state.get("shape"))
    return MultiBinary(shape_of((_of(state, "n", what),) if shape is None else shape, what))


def _dict(state: dict[str | int, Node], what: str) -> Parts:
    parts: dict[str, Any] = {}
    for name, node in mapping(_of(state, "spaces", what), what).items():
        if not isinstance(name, str):
            raise refusal(what, f"must have strings as names of its parts, got {name}")
        parts[name] = read_space(node, f"the part {printable(name)!r} of {what}", inside=True)
    if not parts:
        raise refusal(what, "must be a Dict with at least one part")
    return Parts(parts)


_KINDS: dict[str, Any] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
}
