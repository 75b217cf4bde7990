"""ε-greedy actions, and random ones that are held for a while."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def exploration_rate(first: float, last: float, exploration: float, share: float) -> float:
    """ε when ``share`` of all steps are made: linear from first to last over the share ``exploration``, then last."""
    done = min(share / exploration, 1.0) if exploration > 0 else 1.0
    return first + (last - first) * done


class EpsilonGreedy:
    """With probability ε begin a random action, held for 1 … ``longest`` steps (uniform); else the best action.

    With ``longest`` 1 this is plain ε-greedy. Longer ones are temporally extended exploration (Dabney et al. 2021, with
    uniform instead of zeta-distributed durations): where single actions lead nowhere, as in MountainCar, uniformly
    random steps never meet a reward.
    """

    def __init__(self, environments: int, longest: int) -> None:
        self._longest = longest
        self._held = np.zeros(environments, np.int64)
        self._left = np.zeros(environments, np.int64)  # steps for which the held action is still taken

    @property
    def holding(self) -> NDArray[np.bool_]:
        """(environments,): whether the next action is decided already, whatever its values."""
        return self._left > 0

    def __call__(self, generator: np.random.Generator, values: Floats, epsilon: float) -> Integers:
        """Actions (environments,) for action values (environments, actions)."""
        count, actions = values.shape
        begins = (generator.random(count) < epsilon) & (self._left == 0)
        self._held = np.where(begins, generator.integers(actions, size=count), self._held)
        durations = 1 if self._longest == 1 else generator.integers(1, self._longest + 1, size=count)
        self._left = np.where(begins, durations, self._left)
        chosen = np.where(self._left > 0, self._held, values.argmax(axis=1))
        self._left = np.maximum(self._left - 1, 0)
        return chosen

    def begin(self, done: NDArray[np.bool_]) -> None:
        """New episodes begin with nothing held."""
        self._left[done] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        return {"held": self._held, "left": self._left}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._held, self._left = state["held"].copy(), state["left"].copy()
