"""Running statistics of the observations, frozen into the spec's normaliser when training ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import Normaliser
from train.networks.forward import IMAGE_SCALE

CLIP = 5.0  # |z| in standard deviations; small, because an int8 input shares 256 levels among ±CLIP
SMALLEST_SCALE = 1e-3  # a field that never moves is centred, not blown up
WIDEST = 10.0  # a bound widens a scale so far at most: one that is hundreds of deviations away says little
UNBOUNDED_SHARE = 0.25
"""Share of all steps over which replay algorithms gather the statistics of observations without bounds: random steps
alone see little of what a policy that has learned sees, and exploration takes about a fifth."""

Bounds = tuple[NDArray[Any], NDArray[Any]]
"""Smallest and largest value of each element (size,), infinite where there is none."""


def gathering_steps(bounds: Bounds | None, learning_starts: int, steps: int) -> int:
    """Steps of a run with a replay over which the statistics of its observations are gathered.

    Bounds see to it that nothing is cut, so the first steps are enough where every element has them.
    """
    if bounds is not None and all(np.isfinite(side).all() for side in bounds):
        return learning_starts
    return max(learning_starts, int(UNBOUNDED_SHARE * steps))


class RunningNormaliser:
    """z = clip((x − mean) / scale, ±CLIP) with the mean of all observations so far.

    The scale is their standard deviation σ; where an element has bounds, it is wide enough for these not to be cut
    (though at most ten times as wide):

        scale = min(max(σ, max(high − mean, mean − low) / CLIP), WIDEST · σ)

    Batches are merged exactly (Chan, Golub & LeVeque 1979). After ``until`` observations the statistics stand still, so
    that the networks learn on a fixed scale from then on.
    """

    def __init__(self, size: int, until: int, bounds: Bounds | None = None) -> None:
        """Args: elements of an observation; observations to gather; the elements' bounds, None where they have none."""
        self.until = until
        self.count = 0
        self._mean = np.zeros(size)
        self._squares = np.zeros(size)  # Σ (x − mean)²
        self._low, self._high = bounds or (np.full(size, -np.inf), np.full(size, np.inf))
        self._seen, self._clipped = 0, 0  # since the last take_clipped
        self._refresh()

    def update(self, observations: NDArray[np.float32]) -> None:
        """Merge a batch (rows, size), unless the statistics stand still already; count what is cut of it."""
        if self.count or self.settled:
            end = np.float32(CLIP * (1.0 + 1e-5)) * self.scale  # a value on a bound is not cut, whatever float32 says
            beyond = np.abs(observations - self.mean) > end
            self._seen, self._clipped = self._seen + len(beyond), self._clipped + int(beyond.any(axis=1).sum())
        if self.settled:
            return
        rows = np.asarray(observations, np.float64)
        mean = rows.mean(axis=0)
        delta = mean - self._mean
        total = self.count + len(rows)
        self._squares += ((rows - mean) ** 2).sum(axis=0) + delta**2 * (self.count * len(rows) / total)
        self._mean += delta * (len(rows) / total)
        self.count = total
        self._refresh()

    def _refresh(self) -> None:
        """``mean`` and ``scale`` (size,) float32, of the statistics as they are; 0 and 1 before the first batch."""
        self.mean = self._mean.astype(np.float32)
        if self.count == 0:
            self.scale = np.ones(len(self._mean), np.float32)
            return
        deviation = np.sqrt(self._squares / self.count)
        reach = np.maximum(self._high - self._mean, self._mean - self._low) / CLIP
        widest = np.where(deviation < SMALLEST_SCALE, np.inf, WIDEST * deviation)  # what never moved says nothing
        wanted = np.where(np.isfinite(reach), np.minimum(reach, widest), 0.0)
        self.scale = np.maximum(np.maximum(deviation, wanted), SMALLEST_SCALE).astype(np.float32)

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise (rows, size) exactly as the exported graphs do, in float32."""
        normalised = (observations - self.mean) * (np.float32(1.0) / self.scale)
        return np.minimum(np.maximum(normalised, np.float32(-CLIP)), np.float32(CLIP))

    @property
    def settled(self) -> bool:
        """Whether the statistics stand still from now on."""
        return self.count >= self.until

    def take_clipped(self) -> float:
        """Share of the observations given to :meth:`update` since the last call of which an element is cut; or NaN."""
        share = self._clipped / self._seen if self._seen else float("nan")
        self._seen, self._clipped = 0, 0
        return share

    def frozen(self) -> Normaliser:
        """The statistics as the spec carries them."""
        return Normaliser(tuple(map(float, self.mean)), tuple(map(float, self.scale)), CLIP)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Everything that :meth:`restore` needs; take the clipped share first, it is not part of the state."""
        return {"count": np.array([self.count], np.float64), "mean": self._mean, "squares": self._squares}

    def restore(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self.count = int(state["count"][0])
        self._mean, self._squares = state["mean"].copy(), state["squares"].copy()
        self._refresh()


class ImageScaling:
    """Images stay uint8 until the network divides them by 255; nothing is estimated. Used like the class above."""

    settled = True

    def update(self, observations: NDArray[Any]) -> None:
        """Nothing to gather."""

    def take_clipped(self) -> float:
        """NaN: no image is ever cut."""
        return float("nan")

    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """The images themselves."""
        return observations

    def frozen(self) -> Normaliser:
        """Mean 0 and scale 255 for every element: z = x / 255, never clipped."""
        return Normaliser((0.0,), (IMAGE_SCALE,), float("inf"))

    def state(self) -> dict[str, NDArray[Any]]:
        """Nothing changes."""
        return {}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Nothing to restore."""
