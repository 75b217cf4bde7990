"""A track out of the places where slices of time ended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.rules import causes
from quarl.airlearning_envs.simulators.simulator import Floats, Track


class Pieces:
    """A track in the making: each slice's straight line cut into equal pieces.

    Args:
        begin: (2,) where the drone is.
        cuts: pieces of a slice.
    """

    def __init__(self, begin: Floats, cuts: int) -> None:
        self._places, self._cuts = [begin.astype(np.float32)], cuts

    def add(self, place: Floats) -> None:
        """A slice ended at a place (2,)."""
        before = self._places[-1]
        shares = [np.float32((k + 1) / self._cuts) for k in range(self._cuts)]
        self._places += [before + share * (place - before) for share in shares[:-1]] + [place.copy()]

    def track(self, ends_s: NDArray[np.float64], slices: int, contact: int = causes.NONE) -> Track:
        """Slices that ended so many seconds (n,) after the period's begin; a contact was in the last one."""
        while len(self._places) < slices * self._cuts + 1:
            self.add(self._places[-1])
        position = np.stack(self._places)[:, :, None]
        begins = np.concatenate([[0.0], ends_s[:-1]])
        shares = np.arange(1, self._cuts + 1) / self._cuts
        times = (begins[:, None] + shares * (ends_s - begins)[:, None]).ravel()
        lengths = np.sqrt(((position[1:] - position[:-1]) ** 2).sum(axis=1))
        return Track(
            position.astype(np.float32),
            lengths.astype(np.float32),
            times.astype(np.float32),
            np.array([contact], np.int8),
            np.array([len(times) - 1]),
        )
