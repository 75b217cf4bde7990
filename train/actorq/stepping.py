"""n-step returns at the actor: single steps in, transitions out, ready for the replay."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNCOUNTED = -1.0
"""``epsilon`` of a step of which no importance ratio is taken."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one environment.

    Attributes:
        observation: raw, what was acted on (size,).
        action: an int, or floats (k,) in −1 … 1.
        reward: as the task gave it.
        terminated: nothing that follows counts.
        cut: the return reaches no further than this step: terminated, or the time was over.
        next_observation: raw, before any reset (size,).
        updates: of the learner when it made the policy that acted; −1 where none did.
        greedy: what that policy itself chose, in the layout of ``action``.
        probability: b(a|s) of the acting policy.
        epsilon: ε of the draw, or :data:`UNCOUNTED`.
    """

    observation: NDArray[np.float32]
    action: Any
    reward: float
    terminated: bool
    cut: bool
    next_observation: NDArray[np.float32]
    updates: int
    greedy: Any
    probability: float = 1.0
    epsilon: float = UNCOUNTED


class Window:
    """The steps whose returns are not complete yet, and the transitions that are.

    R = Σₖ γᵏ rₖ over k = 0 … m − 1 with m ≤ n steps up to the first that is cut; the bootstrap's factor is γᵐ, or 0 if
    the last of these terminated. A time limit is bootstrapped.
    """

    def __init__(self, n_step: int, discount: float, follows: bool = False) -> None:
        """Args: n, γ, and whether a transition brings the later steps of its return along (importance ratios)."""
        self._n, self._discount, self._follows = n_step, discount, follows
        self._steps: deque[Step] = deque()
        self._ready: list[tuple[Step, float, float, Step, tuple[Step, ...]]] = []

    def __len__(self) -> int:
        """Transitions that are ready."""
        return len(self._ready)

    def add(self, step: Step) -> None:
        """Take one step; what it completes becomes ready."""
        self._steps.append(step)
        if step.cut:
            while self._steps:
                self._complete()
        elif len(self._steps) == self._n:
            self._complete()

    def _complete(self) -> None:
        total, factor = 0.0, 1.0
        for step in self._steps:
            total += factor * step.reward
            factor *= self._discount
        last = self._steps[-1]
        first = self._steps.popleft()
        later = tuple(self._steps) if self._follows else ()
        self._ready.append((first, total, 0.0 if last.terminated else factor, last, later))

    def take(self) -> dict[str, NDArray[Any]]:
        """The transitions that are ready, as columns, rows first; they are forgotten here.

        observation, next_observation (rows, size) · action, greedy (rows,) int32 or (rows, k) · return, discount
        (rows,) · updates (rows,) int64; and with ``follows``, for the n − 1 later steps: following (rows, n − 1, size),
        following_action, following_probability, following_epsilon (rows, n − 1), ε −1 where there is none.
        """
        ready, self._ready = self._ready, []
        first = [row[0] for row in ready]
        columns = {
            "observation": np.stack([step.observation for step in first]).astype(np.float32),
            "action": as_actions([step.action for step in first]),
            "return": np.array([row[1] for row in ready], np.float32),
            "discount": np.array([row[2] for row in ready], np.float32),
            "next_observation": np.stack([row[3].next_observation for row in ready]).astype(np.float32),
            "updates": np.array([step.updates for step in first], np.int64),
            "greedy": as_actions([step.greedy for step in first]),
        }
        return {**columns, **self._following([row[4] for row in ready], columns)} if self._follows else columns

    def _following(self, rows: list[tuple[Step, ...]], columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        shape = (len(rows), self._n - 1)
        following = np.zeros((*shape, columns["observation"].shape[1]), np.float32)
        action, probability = np.zeros(shape, np.int32), np.ones(shape, np.float32)
        epsilon = np.full(shape, UNCOUNTED, np.float32)
        for row, steps in enumerate(rows):
            for place, step in enumerate(steps):
                following[row, place] = step.observation
                action[row, place], probability[row, place] = step.action, step.probability
                epsilon[row, place] = step.epsilon
        return {
            "following": following,
            "following_action": action,
            "following_probability": probability,
            "following_epsilon": epsilon,
        }


def as_actions(actions: list[Any]) -> NDArray[Any]:
    """Discrete actions as int32 (rows,), continuous ones as float32 (rows, k)."""
    kind = np.int32 if np.ndim(actions[0]) == 0 else np.float32
    return np.array(actions, kind)
