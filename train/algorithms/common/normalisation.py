"""Running statistics of the observations, frozen into the spec's normaliser when training ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import STILL_SCALE, STILL_SHARE, Normaliser
from quarl.train.algorithms.common.settings import ReplaySettings
from quarl.train.networks.forward import IMAGE_SCALE
from quarl.train.suites.task import Task

CLIP = 5.0  # |z| in standard deviations; small, because an int8 input shares 256 levels among ±CLIP
SMALLEST_SCALE = 1e-3  # of an element that has not moved yet
WIDEST = 10.0  # a bound widens a scale so far at most: one that is hundreds of deviations away says little
UNBOUNDED_SHARE = 0.25
"""Share of all steps in which replay algorithms still learn about elements without bounds: random steps alone see
little of what a policy that has learned sees, and exploration takes about a fifth."""

Bounds = tuple[NDArray[Any], NDArray[Any]]
"""Smallest and largest value of each element (size,), infinite where there is none."""


def widening_steps(bounds: Bounds | None, learning_starts: int, steps: int) -> int:
    """Return steps of a run with a replay in which it still learns about its observations; 0 where all have bounds.

    DQN's mean and σ go on for so long, with which it learns CartPole a little sooner than without. In a trial D4PG
    balanced a pole later on statistics that move: its, and DDPG's, stand still, and only what would be cut widens.
    """
    if bounds is not None and all(np.isfinite(side).all() for side in bounds):
        return 0
    return max(learning_starts, int(UNBOUNDED_SHARE * steps))


class RunningMoments:
    """Mean and variance of all rows so far, in float64; batches are merged exactly (Chan, Golub & LeVeque 1979).

    Attributes:
        count: rows merged.
        mean: (size,), 0 before the first batch.
        squares: (size,), Σ (x − mean)².
    """

    def __init__(self, size: int) -> None:
        """Args: elements of a row."""
        self.count, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)

    def merge(self, rows: NDArray[np.float64]) -> None:
        """Count a batch (rows, size)."""
        mean = rows.mean(axis=0)
        delta = mean - self.mean
        total = self.count + len(rows)
        self.squares += ((rows - mean) ** 2).sum(axis=0) + delta**2 * (self.count * len(rows) / total)
        self.mean += delta * (len(rows) / total)
        self.count = total

    @property
    def variance(self) -> NDArray[np.float64]:
        """(size,), with the divisor n; 1 before the first batch."""
        return self.squares / self.count if self.count else np.ones_like(self.squares)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Everything that :meth:`restore` needs."""
        return {"count": np.array([self.count], np.float64), "mean": self.mean, "squares": self.squares}

    def restore(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self.count = int(state["count"][0])
        self.mean, self.squares = state["mean"].copy(), state["squares"].copy()


class RunningNormaliser:
    """z = clip((x − mean) / scale, ±CLIP) with the mean of all observations so far.

    The scale is their standard deviation σ, made wide enough for an element's bounds not to be cut, though at most ten
    times as wide; where there is no bound, what was seen stands for it:

        scale = min(max(σ, max(high − mean, mean − low) / CLIP), WIDEST · σ)

    An element that never moved has a scale in :meth:`frozen` that makes z 0 wherever it is: nothing trained the weights
    behind it.

    After ``until`` observations mean and σ stand still, so that the networks learn on a fixed scale from then on; it
    grows where one of the first ``widen_until`` would be cut.
    """

    def __init__(self, size: int, until: int, bounds: Bounds | None = None, widen_until: int = 0) -> None:
        """Args: elements of an observation; observations of mean and σ; bounds; observations that may widen."""
        self.until, self.widen_until = until, widen_until
        self.watched, self._moments = 0, RunningMoments(size)
        self._low, self._high = bounds or (np.full(size, -np.inf), np.full(size, np.inf))
        self._smallest, self._largest = np.full(size, np.inf), np.full(size, -np.inf)  # of the first widen_until
        self._first: NDArray[np.float32] | None = None  # the first observation seen
        self._moved = np.zeros(size, np.bool_)
        self._seen, self._clipped = 0, 0  # since the last take_clipped
        self._refresh()

    def update(self, observations: NDArray[np.float32]) -> None:
        """Merge a batch (rows, size), unless all stands still already; count what is cut of it."""
        self._note_movement(observations)
        if self.count or self.is_settled:
            end = np.float32(CLIP * (1.0 + 1e-5)) * self.scale  # a value on a bound is not cut, whatever float32 says
            beyond = np.abs(observations - self.mean) > end
            self._seen, self._clipped = self._seen + len(beyond), self._clipped + int(beyond.any(axis=1).sum())
        if self.is_settled:
            return
        rows = np.asarray(observations, np.float64)
        if self.watched < self.widen_until:
            self._smallest = np.minimum(self._smallest, rows.min(axis=0))
            self._largest = np.maximum(self._largest, rows.max(axis=0))
            self.watched += len(rows)
        if self.count < self.until:
            self._moments.merge(rows)
        self._refresh()

    @property
    def count(self) -> int:
        """Observations in mean and σ."""
        return self._moments.count

    def _refresh(self) -> None:
        """``mean`` and ``scale`` (size,) float32, of the statistics as they are; 0 and 1 before the first batch."""
        mean, deviation = self._moments.mean, np.sqrt(self._moments.variance)
        self.mean = mean.astype(np.float32)
        if self.count == 0:
            self.scale = np.ones(len(mean), np.float32)
            return
        low = np.where(np.isfinite(self._low), self._low, self._smallest)
        high = np.where(np.isfinite(self._high), self._high, self._largest)
        reach = np.maximum(high - mean, mean - low) / CLIP
        is_still = deviation <= STILL_SHARE * np.abs(mean)  # so far: its deviation says nothing
        widest = np.where(is_still, np.inf, WIDEST * deviation)
        wanted = np.where(np.isfinite(reach), np.minimum(reach, widest), 0.0)
        self.scale = np.maximum(np.where(is_still, SMALLEST_SCALE, deviation), wanted).astype(np.float32)

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise (…, size) exactly as the exported graphs do, in float32."""
        self._note_movement(observations)
        normalised = (observations - self.mean) * (np.float32(1.0) / self.scale)
        return np.minimum(np.maximum(normalised, np.float32(-CLIP)), np.float32(CLIP))

    def _note_movement(self, observations: NDArray[np.float32]) -> None:
        if self._moved.all() or not observations.size:
            return
        rows = observations.reshape(-1, observations.shape[-1])
        self._first = rows[0].copy() if self._first is None else self._first
        step = np.float32(STILL_SHARE) * np.abs(self._first)
        self._moved |= (np.abs(rows - self._first) > step).any(axis=0)

    @property
    def is_settled(self) -> bool:
        """Whether mean and scale stand still from now on."""
        return self.count >= self.until and self.watched >= self.widen_until

    def take_clipped(self) -> float:
        """Share of the observations given to :meth:`update` since the last call of which an element is cut; or NaN."""
        share = self._clipped / self._seen if self._seen else float("nan")
        self._seen, self._clipped = 0, 0
        return share

    def frozen(self) -> Normaliser:
        """Return the statistics as the spec carries them."""
        scale = np.where(self._moved | (self.count == 0), self.scale, np.float32(STILL_SCALE))
        return Normaliser(tuple(map(float, self.mean)), tuple(map(float, scale)), CLIP)

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs; take the clipped share first, it is not part of the state."""
        watched = np.array([self.watched], np.float64)
        first = np.zeros(0, np.float32) if self._first is None else self._first
        moved: dict[str, NDArray[Any]] = {"first": first, "moved": self._moved.astype(np.uint8)}
        ends = {"smallest": self._smallest, "largest": self._largest}
        return {**self._moments.state(), "watched": watched, **ends, **moved}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._moments.restore(state)
        self.watched = int(state["watched"][0])
        self._smallest, self._largest = state["smallest"].copy(), state["largest"].copy()
        if "first" in state:
            self._first, self._moved = state["first"] if len(state["first"]) else None, state["moved"] != 0
        else:  # an older checkpoint: which elements moved was not recorded
            self._moved[:] = True
        self._refresh()


def normaliser_of_replay(task: Task, settings: ReplaySettings, steps: int) -> RunningNormaliser:
    """Return the normaliser of an algorithm with a replay; for DQN mean and σ go on for the :func:`widening_steps`,
    too.

    Where ``normalise`` is set to False mean 0 and scale 1 stand in the place of the statistics.
    """
    size, bounds, starts = task.observation_size, task.bounds, settings.learning_starts
    if not getattr(settings, "normalise", True):
        return RunningNormaliser(size, 0)
    longer = widening_steps(bounds, starts, steps)
    until, widen = (max(starts, longer), 0) if task.is_discrete else (starts, longer)
    return RunningNormaliser(size, until, bounds, widen)


class ImageScaling:
    """Images stay uint8 until the network divides them by 255; nothing is estimated. Used like the class above."""

    is_settled = True

    def update(self, observations: NDArray[Any]) -> None:
        """Do nothing: there is nothing to gather."""

    def take_clipped(self) -> float:
        """Return NaN: no image is ever cut."""
        return float("nan")

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return the images themselves."""
        return observations

    def frozen(self) -> Normaliser:
        """Mean 0 and scale 255 for every element: z = x / 255, never clipped."""
        return Normaliser((0.0,), (IMAGE_SCALE,), float("inf"))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return nothing: no state changes."""
        return {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Do nothing: there is nothing to restore."""
