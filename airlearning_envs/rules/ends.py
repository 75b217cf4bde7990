"""What ends a flight within a control period: goal, contact, leaving the arena."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.rules import causes
from quarl.airlearning_envs.simulators.simulator import Floats, Track


class Ends:
    """Judges tracks.

    Args:
        config: the arena, the drone's radius, and how near the goal is reached.
    """

    def __init__(self, config: NavigationConfig) -> None:
        self._inside = np.float32(config.half_m - config.body_radius_m)
        self._success_square = np.float32(config.success_radius_m) * np.float32(config.success_radius_m)

    def first(self, track: Track, goal: Floats) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        """The first event of each drone: (cause (E,) int8, piece of the track (E,), the last one where there is none).

        Within one piece contact counts before leaving, and leaving before the goal.

        Args:
            track: of one period.
            goal: (2, E).
        """
        pieces, num_envs = len(track.times_s), goal.shape[1]
        first_cause, when = np.zeros(num_envs, np.int8), np.full(num_envs, pieces - 1)
        offset = track.position[1:] - goal
        offset *= offset
        reached = offset[:, 0] + offset[:, 1] < self._success_square
        outside = np.abs(track.position[1:])
        outside = np.maximum(outside[:, 0], outside[:, 1]) > self._inside
        for events, cause in ((reached, causes.GOAL), (outside, causes.LEFT_ARENA)):
            if np.count_nonzero(events):
                _note(first_cause, when, events.any(axis=0), events.argmax(axis=0), cause)
        touched = track.contact != causes.NONE
        if np.count_nonzero(touched):
            _note(first_cause, when, touched, track.when, track.contact)
        return first_cause, when


def _note(
    found: NDArray[np.int8],
    when: NDArray[np.int64],
    happened: NDArray[np.bool_],
    first: NDArray[np.int64],
    cause: NDArray[np.int8] | int,
) -> None:
    """Note events (E,) that come not later than what is noted; later calls win a tie."""
    wins = happened & ((found == causes.NONE) | (first <= when))
    found[wins], when[wins] = cause if isinstance(cause, int) else cause[wins], first[wins]
