"""A replay of transitions in plain arrays, and n-step returns computed when they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.episodes import Transition

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Drawn:
    """Drawn transitions and the n − 1 steps that follow each.

    Attributes:
        observations: (batch, size), raw.
        actions: (batch,).
        rewards, done, terminated: (n, batch), of the step itself and the following ones.
        next_observations: (batch, size): what the last step of the same episode among the n led to.
    """

    observations: Floats
    actions: NDArray[np.int16]
    rewards: Floats
    done: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    next_observations: Floats


def n_step_returns(
    rewards: Floats, done: NDArray[np.bool_], terminated: NDArray[np.bool_], discount: float
) -> tuple[Floats, Floats]:
    """Discounted rewards up to the end of the episode, and the factor of the bootstrap; both (batch,).

    R = Σₖ γᵏ rₖ over k = 0 … m − 1, where m ≤ n is the number of steps before or at the end of the episode;
    factor = γᵐ, or 0 if the last of these terminated.

    Args:
        rewards, done, terminated: (n, batch).
        discount: γ.
    """
    returns, factors = np.zeros_like(rewards[0]), np.ones_like(rewards[0])
    alive = np.ones(rewards.shape[1], np.bool_)
    for reward, end, terminal in zip(rewards, done, terminated, strict=True):
        returns += np.where(alive, factors * reward, 0.0).astype(np.float32)
        factors = np.where(alive, factors * np.float32(discount) * ~terminal, factors).astype(np.float32)
        alive &= ~end
    return returns, factors


class Replay:
    """The newest ``capacity`` transitions of a batch of environments, as rings over time: (slots, environments, …)."""

    def __init__(self, capacity: int, environments: int, size: int) -> None:
        self.slots = capacity // environments
        self._arrays: dict[str, NDArray[Any]] = {
            "observation": np.zeros((self.slots, environments, size), np.float32),
            "next_observation": np.zeros((self.slots, environments, size), np.float32),
            "action": np.zeros((self.slots, environments), np.int16),
            "reward": np.zeros((self.slots, environments), np.float32),
            "done": np.zeros((self.slots, environments), np.bool_),
            "terminated": np.zeros((self.slots, environments), np.bool_),
        }
        self._written = 0  # steps ever added

    def __len__(self) -> int:
        """Transitions held."""
        return min(self._written, self.slots) * self._arrays["reward"].shape[1]

    def add(self, observation: Floats, actions: NDArray[np.int64], transition: Transition) -> None:
        """Remember one step of all environments, overwriting the oldest."""
        slot = self._written % self.slots
        row = {
            "observation": observation,
            "next_observation": transition.last_observation,
            "action": actions,
            "reward": transition.reward,
            "done": transition.done,
            "terminated": transition.terminated,
        }
        for name, value in row.items():
            self._arrays[name][slot] = value
        self._written += 1

    def sample(self, generator: np.random.Generator, rows: int, n_step: int) -> Drawn:
        """Draw uniformly, with replacement, among the steps that have n − 1 followers."""
        arrays = self._arrays
        held = min(self._written, self.slots)
        oldest = self._written - held
        times = generator.integers(oldest, self._written - n_step + 1, size=rows)
        where = generator.integers(arrays["reward"].shape[1], size=rows)
        slots = (times + np.arange(n_step)[:, None]) % self.slots
        done = arrays["done"][slots, where]
        # The last step of the n that still belongs to the episode: the first that ended, else the last one.
        last = np.where(done.any(axis=0), done.argmax(axis=0), n_step - 1)
        return Drawn(
            arrays["observation"][slots[0], where],
            arrays["action"][slots[0], where],
            arrays["reward"][slots, where],
            done,
            arrays["terminated"][slots, where],
            arrays["next_observation"][slots[last, np.arange(rows)], where],
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """The filled part of every array."""
        held = min(self._written, self.slots)
        filled = {name: array[:held] for name, array in self._arrays.items()}
        return {**filled, "written": np.array([self._written], np.int64)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._written = int(state["written"][0])
        held = min(self._written, self.slots)
        for name, array in self._arrays.items():
            array[:held] = state[name]
