"""How actions explore: noise of deterministic policies, ε-greedy choices; and actions in −1 … 1 in physical units."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import ContinuousHead, Head
from quarl.train.algorithms.common.settings import linear

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class ExplorationNoise:
    """An Ornstein–Uhlenbeck process per environment and action element, in units of half the action's range.

    x ← x − θ x + σ ε,  ε ~ N(0, 1)                                   (Lillicrap et al. 2016, supplement 7; Δt = 1)

    θ = 1 forgets at once: independent Gaussian noise of deviation σ (Fujimoto et al. 2018). A small θ gives noise that
    keeps its direction for about 1/θ draws with the deviation σ / √(θ (2 − θ)): what a task needs in which single
    actions lead nowhere. Every draw is held for ``repeat`` steps. The process starts at 0 with every episode.
    """

    def __init__(self, environments: int, size: int, reversion: float, repeat: int) -> None:
        self._value = np.zeros((environments, size), np.float32)
        self._age = np.zeros(environments, np.int64)  # steps since the episode began
        self._reversion, self._repeat = np.float32(reversion), repeat

    def __call__(self, generator: np.random.Generator, scale: float) -> Floats:
        """Return the noise (environments, size) of the next step, σ = ``scale``; always the same number of draws."""
        draws = generator.standard_normal(self._value.shape, dtype=np.float32)
        moved = self._value - self._reversion * self._value + np.float32(scale) * draws
        self._value = np.where((self._age % self._repeat == 0)[:, None], moved, self._value)
        self._age += 1
        return self._value

    def begin(self, done: NDArray[np.bool_]) -> None:
        """Start again at 0 where an episode ended."""
        self._value[done] = 0.0
        self._age[done] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        return {"value": self._value.copy(), "age": self._age.copy()}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._value, self._age = state["value"].copy(), state["age"].copy()


def noise_scale(first: float, last: float, share: float) -> float:
    """σ when ``share`` of all steps are made: linear from first to last."""
    return linear(first, last, share)


class ActionRange:
    """a = low + (u + 1) / 2 · (high − low), element by element: u in −1 … 1 as networks see it, a in physical units."""

    def __init__(self, head: Head, method: str) -> None:
        """Args: the task's head, and the method's name for the message.

        Raises:
            ValueError: the task's actions are not continuous.
        """
        if not isinstance(head, ContinuousHead):
            raise ValueError(
                f"--method {method} requires continuous actions, but this task takes {head.describe()}. Type "
                "--method ppo or --method a2c (or --method dqn for a single discrete action), or choose a continuous "
                "task such as --task Pendulum-v1."
            )
        self._low = np.asarray(head.low, np.float32)
        self._half = (np.asarray(head.high, np.float32) - self._low) * np.float32(0.5)

    def physical(self, unit: Floats) -> Floats:
        """Actions (n, size) in the task's units for actions in −1 … 1."""
        return self._low + (unit + np.float32(1.0)) * self._half

    def unit(self, physical: Floats) -> Floats:
        """Actions (n, size) in −1 … 1 for actions in the task's units: the inverse of :meth:`physical`."""
        return (physical - self._low) / self._half - np.float32(1.0)


def exploration_rate(first: float, last: float, exploration: float, share: float) -> float:
    """ε when ``share`` of all steps are made: linear from first to last over the share ``exploration``, then last."""
    return linear(first, last, share / exploration if exploration > 0 else 1.0)


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
        """Hold nothing in episodes that begin."""
        self._left[done] = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        return {"held": self._held, "left": self._left}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._held, self._left = state["held"].copy(), state["left"].copy()
