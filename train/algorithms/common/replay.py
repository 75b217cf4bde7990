"""A replay of transitions in plain arrays, and n-step returns computed when they are drawn.

Observations are kept once, not twice: what a step leads to is the next step's observation. Each environment has a
tape of frames. An episode writes its first observation and then what every step leads to, so the last observation
of an episode is on the tape as well, and ``position`` says where on it a step's observation lies. Of images that
are stacks of the newest frames (Atari: 4 of 84 × 84) the tape holds single frames: 100,000 steps take 0.75 GB
instead of the 5.6 GB of both stacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.suites.episodes import Actions, Observations, Transition

Floats = NDArray[np.float32]

SPARE = (
    16  # a tape has one frame in this many more than there are steps, for the starts of episodes; it grows if need be
)


@dataclass(frozen=True)
class Drawn:
    """Drawn transitions and the n − 1 steps that follow each.

    Attributes:
        observations: (batch, …), raw.
        actions: (batch,) int16, or (batch, size) float32.
        rewards, cut, terminated: (n, batch), of the step itself and the following ones; see
            :class:`train.suites.episodes.Transition`.
        next_observations: (batch, …): what the first step of the n that is cut led to, or else the last one.
        rows: (batch,), where each was drawn; what priorities go by.
    """

    observations: Observations
    actions: Actions
    rewards: Floats
    cut: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    next_observations: Observations
    rows: NDArray[np.int64]


def n_step_returns(
    rewards: Floats, cut: NDArray[np.bool_], terminated: NDArray[np.bool_], discount: float
) -> tuple[Floats, Floats]:
    """Discounted rewards up to the end of the return, and the factor of the bootstrap; both (batch,).

    R = Σₖ γᵏ rₖ over k = 0 … m − 1, where m ≤ n is the number of steps before or at the first that is ``cut`` (by the
    episode's end or a lost life); factor = γᵐ, or 0 if the last of these terminated. Arrays are (n, batch).
    """
    returns, factors = np.zeros_like(rewards[0]), np.ones_like(rewards[0])
    alive = np.ones(rewards.shape[1], np.bool_)
    for reward, end, terminal in zip(rewards, cut, terminated, strict=True):
        returns += np.where(alive, factors * reward, 0.0).astype(np.float32)
        factors = np.where(alive, factors * np.float32(discount) * ~terminal, factors).astype(np.float32)
        alive &= ~end
    return returns, factors


def check_stacked(images: Observations, following: Observations) -> None:
    """Images (batch, height, width, frames) must lose their oldest frame and gain one behind the others.

    Raises:
        ValueError: they do not.
    """
    if not np.array_equal(images[..., 1:], following[..., :-1]):
        raise ValueError(
            "the last axis of an image must hold its newest frames: each step drops the oldest and appends one. This "
            "task's images do not do so. Stack frames, or give the image a last axis of 1."
        )


class Replay:
    """The newest ``capacity`` transitions of a batch of environments, as rings over time: (slots, environments, …)."""

    def __init__(
        self,
        capacity: int,
        environments: int,
        observation: tuple[int, ...],
        *,
        frames: int = 0,
        action_size: int | None = None,
    ) -> None:
        """Args:
        capacity: transitions; rounded down to a multiple of the environments.
        environments: stepped together.
        observation: shape of one observation.
        frames: of an image, uint8: that many are stacked in its last axis, the newest last; with 1 the image is one
            frame, whatever its channels are. 0 for vectors, float32.
        action_size: elements of a continuous action; None for discrete ones.
        """
        self.slots, self.environments = capacity // environments, environments
        self._stack = max(frames, 1)
        frame = observation[:-1] if frames > 1 else observation
        length = self.slots + self.slots // SPARE + 2 * self._stack + 1
        self._tape = np.zeros((length, environments, *frame), np.uint8 if frames else np.float32)
        self._head = np.zeros(environments, np.int64)  # frames ever written
        steps = self.slots, environments
        self._arrays: dict[str, NDArray[Any]] = {
            "position": np.zeros(steps, np.int64),  # of the newest frame, counted as _head does
            "action": np.zeros(steps, np.int16) if action_size is None else np.zeros((*steps, action_size), np.float32),
            "reward": np.zeros(steps, np.float32),
            "done": np.zeros(steps, np.bool_),  # the return is cut; named as checkpoints have it
            "terminated": np.zeros(steps, np.bool_),
        }
        self._written = 0  # steps ever added
        self._began = np.ones(environments, np.bool_)  # whether the next step is an episode's first
        self._all = np.arange(environments)

    def __len__(self) -> int:
        """Return the number of transitions held."""
        return min(self._written, self.slots) * self.environments

    @property
    def steps_written(self) -> int:
        """Steps of every environment ever added; step k lies in slot k modulo ``slots``."""
        return self._written

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._tape.nbytes + sum(array.nbytes for array in self._arrays.values())

    def add(self, observation: Observations, actions: Actions, transition: Transition) -> None:
        """Remember one step of all environments, overwriting the oldest.

        Args:
            observation: what was acted on (environments, …); after the first step of an episode it must be what the
                step before led to.
            actions: (environments,) or (environments, size), of which came the ``transition``.

        Raises:
            ValueError: an episode's first images are no stacks of successive frames.
        """
        if self._began.any():
            where = np.flatnonzero(self._began)
            if self._stack > 1:
                check_stacked(observation[where], transition.last_observation[where])
            for frame in self._frames(observation[where]):
                self._write(where, frame)
        slot = self._written % self.slots
        row = self._head - 1, actions, transition.reward, transition.cut, transition.terminated
        for array, value in zip(self._arrays.values(), row, strict=True):
            array[slot] = value
        self._write(self._all, self._frames(transition.last_observation)[-1])
        self._began = transition.done.copy()  # not after a lost life: its frames flow on
        self._written += 1

    def _frames(self, observations: Observations) -> list[Observations]:
        """Single frames of observations (batch, …), oldest first."""
        return [observations[..., index] for index in range(self._stack)] if self._stack > 1 else [observations]

    def _write(self, where: NDArray[np.int64], frame: Observations) -> None:
        """Put one frame on the tapes of some environments, which grow before they would lose one still needed."""
        oldest = max(self._written - self.slots + 1, 0) % self.slots  # the slot after the one that is overwritten now
        needed = self._arrays["position"][oldest, where] - self._stack + 1 if self._written else 0
        if (self._head[where] - len(self._tape) >= needed).any():
            self._grow()
        self._tape[self._head[where] % len(self._tape), where] = frame
        self._head[where] += 1

    def _grow(self) -> None:
        """Half as much tape again; only tasks with very short episodes come here."""
        old, new = len(self._tape), len(self._tape) * 3 // 2 + 1
        tape = np.zeros((new, *self._tape.shape[1:]), self._tape.dtype)
        steps = self._head + np.arange(-old, 0)[:, None]  # (old, environments), counted as _head does
        tape[steps % new, self._all] = self._tape[steps % old, self._all]
        self._tape = tape

    def _observations(self, positions: NDArray[np.int64], where: NDArray[np.int64]) -> Observations:
        if self._stack == 1:
            rows: Observations = self._tape[positions % len(self._tape), where]
            return rows
        stack = [self._tape[(positions + back) % len(self._tape), where] for back in range(1 - self._stack, 1)]
        return np.stack(stack, axis=-1)

    def sample(self, generator: np.random.Generator, rows: int, n_step: int) -> Drawn:
        """Draw uniformly, with replacement, among the steps that have n − 1 followers."""
        held = min(self._written, self.slots)
        times = generator.integers(self._written - held, self._written - n_step + 1, size=rows)
        where = generator.integers(self.environments, size=rows)
        return self.take(times % self.slots * self.environments + where, n_step)

    def take(self, rows: NDArray[np.int64], n_step: int) -> Drawn:
        """Return the transitions of these rows: slot · environments + environment. Each must have n − 1 followers."""
        arrays = self._arrays
        first, where = np.divmod(rows, self.environments)
        slots = (first + np.arange(n_step)[:, None]) % self.slots
        cut = arrays["done"][slots, where]
        # The last step of the n that still belongs to the return: the first that is cut, else the last one.
        last = np.where(cut.any(axis=0), cut.argmax(axis=0), n_step - 1)
        positions = arrays["position"][first, where]
        return Drawn(
            self._observations(positions, where),
            arrays["action"][first, where],
            arrays["reward"][slots, where],
            cut,
            arrays["terminated"][slots, where],
            self._observations(positions + last + 1, where),
            rows,
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the filled part of every array."""
        held = min(self._written, self.slots)
        filled = {name: array[:held] for name, array in self._arrays.items()}
        tape = self._tape[: min(int(self._head.max()), len(self._tape))]
        facts = {"written": np.array([self._written, len(self._tape)], np.int64), "head": self._head.copy()}
        return {**filled, **facts, "tape": tape, "began": self._began.copy()}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._written, length = map(int, state["written"])
        held = min(self._written, self.slots)
        for name, array in self._arrays.items():
            array[:held] = state[name]
        self._tape = np.zeros((length, *self._tape.shape[1:]), self._tape.dtype)
        self._tape[: len(state["tape"])] = state["tape"]
        self._head, self._began = state["head"].copy(), state["began"].copy()
