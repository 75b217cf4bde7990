"""Running statistics of the observations, frozen into the spec's normaliser when training ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import Normaliser
from train.networks.forward import IMAGE_SCALE

CLIP = 5.0  # |z| in standard deviations; small, because an int8 input shares 256 levels among ±CLIP
SMALLEST_SCALE = 1e-3  # a field that never moves is centred, not blown up


class RunningNormaliser:
    """z = clip((x − mean) / scale, ±CLIP) with mean and scale of all observations so far.

    Batches are merged exactly (Chan, Golub & LeVeque 1979). After ``until`` observations the statistics stand
    still, so that the networks learn on a fixed scale from then on.
    """

    def __init__(self, size: int, until: int) -> None:
        self.until = until
        self.count = 0
        self._mean = np.zeros(size)
        self._squares = np.zeros(size)  # Σ (x − mean)²

    def update(self, observations: NDArray[np.float32]) -> None:
        """Merge a batch (rows, size), unless the statistics stand still already."""
        if self.count >= self.until:
            return
        rows = np.asarray(observations, np.float64)
        mean = rows.mean(axis=0)
        delta = mean - self._mean
        total = self.count + len(rows)
        self._squares += ((rows - mean) ** 2).sum(axis=0) + delta**2 * (self.count * len(rows) / total)
        self._mean += delta * (len(rows) / total)
        self.count = total

    @property
    def mean(self) -> NDArray[np.float32]:
        """Mean of each observation element, float32 (size,)."""
        return self._mean.astype(np.float32)

    @property
    def scale(self) -> NDArray[np.float32]:
        """Standard deviation of each element, 1 before the first batch, float32 (size,)."""
        if self.count == 0:
            return np.ones(len(self._mean), np.float32)
        return np.maximum(np.sqrt(self._squares / self.count), SMALLEST_SCALE).astype(np.float32)

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalise (rows, size) exactly as the exported graphs do, in float32."""
        normalised = (observations - self.mean) * (np.float32(1.0) / self.scale)
        return np.minimum(np.maximum(normalised, np.float32(-CLIP)), np.float32(CLIP))

    @property
    def settled(self) -> bool:
        """Whether the statistics stand still from now on."""
        return self.count >= self.until

    def frozen(self) -> Normaliser:
        """The statistics as the spec carries them."""
        return Normaliser(tuple(map(float, self.mean)), tuple(map(float, self.scale)), CLIP)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Everything that :meth:`restore` needs."""
        return {"count": np.array([self.count], np.float64), "mean": self._mean, "squares": self._squares}

    def restore(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self.count = int(state["count"][0])
        self._mean, self._squares = state["mean"].copy(), state["squares"].copy()


class ImageScaling:
    """Images stay uint8 until the network divides them by 255; nothing is estimated. Used like the class above."""

    settled = True

    def update(self, observations: NDArray[Any]) -> None:
        """Nothing to gather."""

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
