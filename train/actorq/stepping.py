"""n-step returns at the actor: single steps in, transitions out, ready for the replay."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_CHOICE = -1
"""``following_greedy`` of a step at which the acting policy chose nothing: chance did, or there is no such step."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The action that an actor takes.

    Attributes:
        action: as the replay keeps it: an int, or floats (k,) in −1 … 1.
        physical: as the task takes it, for one environment: (1,) or (1, k).
        greedy: what the acting policy itself chose, in the layout of ``action``.
        chosen: whether the action is that choice, and not one of chance that happens to differ or to be held.
    """

    action: Any
    physical: NDArray[Any]
    greedy: Any
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one environment.

    Attributes:
        observation: raw, what was acted on (size,).
        choice: what was done.
        reward: as the task gave it.
        terminated: nothing that follows counts.
        cut: the return reaches no further than this step: terminated, or the time was over.
        next_observation: raw, before any reset (size,).
        updates: of the learner when it made the policy that acted; −1 where none did.
    """

    observation: NDArray[np.float32]
    choice: Choice
    reward: float
    terminated: bool
    cut: bool
    next_observation: NDArray[np.float32]
    updates: int


class Window:
    """The steps whose returns are not complete yet, and the transitions that are.

    R = Σₖ γᵏ rₖ over k = 0 … m − 1 with m ≤ n steps up to the first that is cut; the bootstrap's factor is γᵐ, or 0 if
    the last of these terminated. A time limit is bootstrapped.
    """

    def __init__(self, n_step: int, discount: float, follows: bool = False) -> None:
        """Args: n, γ, and whether a transition brings the later steps of its return along, for it to be cut there."""
        self._n, self._discount, self._follows = n_step, discount, follows
        self._steps: deque[Step] = deque()
        self._ready: list[tuple[Step, ...]] = []

    def __len__(self) -> int:
        """Transitions that are ready."""
        return len(self._ready)

    def add(self, step: Step) -> None:
        """Take one step; what it completes becomes ready."""
        self._steps.append(step)
        while self._steps and (step.cut or len(self._steps) == self._n):
            self._ready.append(tuple(self._steps))
            self._steps.popleft()

    def take(self) -> dict[str, NDArray[Any]]:
        """Return the transitions that are ready, as columns, rows first; they are forgotten here.

        observation, next_observation (rows, size) · action, greedy (rows,) int32 or (rows, k) · return, discount
        (rows,) · updates (rows,) int64; and with ``follows``, for the n − 1 later steps: following (rows, n − 1, size),
        what was acted on there; following_greedy (rows, n − 1) int32, what the acting policy chose and did there, or
        :data:`NO_CHOICE`; following_return (rows, n − 1), R of the steps before it.
        """
        ready, self._ready = self._ready, []
        powers = self._discount ** np.arange(self._n + 1)
        totals = [list(accumulate(f * s.reward for f, s in zip(powers, steps, strict=False))) for steps in ready]
        columns = {
            "observation": np.stack([steps[0].observation for steps in ready]).astype(np.float32),
            "action": as_actions([steps[0].choice.action for steps in ready]),
            "return": np.array([total[-1] for total in totals], np.float32),
            "discount": np.array([0.0 if s[-1].terminated else powers[len(s)] for s in ready], np.float32),
            "next_observation": np.stack([steps[-1].next_observation for steps in ready]).astype(np.float32),
            "updates": np.array([steps[0].updates for steps in ready], np.int64),
            "greedy": as_actions([steps[0].choice.greedy for steps in ready]),
        }
        if self._follows:
            shape = (len(ready), self._n - 1)
            following = np.zeros((*shape, columns["observation"].shape[1]), np.float32)
            greedy, returns = np.full(shape, NO_CHOICE, np.int32), np.zeros(shape, np.float32)
            for row, steps in enumerate(ready):
                returns[row, : len(steps) - 1] = totals[row][:-1]
                for place, step in enumerate(steps[1:]):
                    following[row, place] = step.observation
                    greedy[row, place] = step.choice.greedy if step.choice.chosen else NO_CHOICE
            columns |= {"following": following, "following_greedy": greedy, "following_return": returns}
        return columns


def as_actions(actions: list[Any]) -> NDArray[Any]:
    """Discrete actions as int32 (rows,), continuous ones as float32 (rows, k)."""
    kind = np.int32 if np.ndim(actions[0]) == 0 else np.float32
    return np.array(actions, kind)
