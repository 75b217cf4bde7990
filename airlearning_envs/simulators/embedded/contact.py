"""Contact of the drones with obstacles and movers within a control period."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.rules import causes
from quarl.airlearning_envs.simulators.obstacles import Obstacles

Floats = NDArray[np.float32]


class Contact:
    """Checks every piece of a control period, of E drones against their obstacles at once.

    Only pairs that can meet within the period are computed: those whose gap is smaller than what drone and mover
    can travel in it.

    Args:
        config: the drone's radius.
        obstacles: theirs.
        times_s: (pieces,) from a period's start to the end of each piece of a track.
    """

    def __init__(self, config: NavigationConfig, obstacles: Obstacles, times_s: Floats) -> None:
        self._obstacles = obstacles
        slots = obstacles.slots
        self._body = np.float32(config.body_radius_m)
        self._pieces = len(times_s)
        self._times = times_s
        columns = np.arange(slots.total)
        self._round = columns < slots.circles
        mover_travel = np.float32(config.mover_speed_m_s[1] * config.control_period_s)
        self._reach = np.where(columns < slots.movers, mover_travel, np.float32(0.0)) + self._body + np.float32(1e-3)

    def first(self, track: Floats, lengths: Floats, gap: Floats) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        """The first contact of each drone: (cause (E,) int8, piece (E,), the last one where there is none).

        Args:
            track: (pieces + 1, 2, E) positions, the first at the period's start.
            lengths: (pieces, E) of the track's pieces.
            gap: (E, N) lower bound of the distance to each obstacle at the period's start.
        """
        first_cause, when = np.zeros(track.shape[2], np.int8), np.full(track.shape[2], self._pieces - 1)
        if self._obstacles.slots.total:
            rows, columns = (gap < lengths.sum(axis=0)[:, None] + self._reach).nonzero()
            if len(rows):
                self._touch(first_cause, when, rows, columns, track)
        return first_cause, when

    def _touch(
        self,
        found: NDArray[np.int8],
        when: NDArray[np.int64],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        track: Floats,
    ) -> None:
        """Note the contacts among the pairs (rows, columns)."""
        obstacles = self._obstacles
        path = track[1:, :, rows]
        apart = path - obstacles.centre[:, rows, columns]
        moving = columns < obstacles.slots.movers
        if np.count_nonzero(moving):
            apart[:, :, moving] = path[:, :, moving] - obstacles.movers_at(self._times, rows[moving], columns[moving])
        extent, is_round = obstacles.size[rows, columns], self._round[columns]
        # A circle is a box without sides and a wide rim; a box has sides and a rim of the body's radius.
        side = np.where(is_round, np.float32(0.0), extent)
        rim = np.where(is_round, extent, np.float32(0.0)) + self._body
        np.abs(apart, apart)
        apart -= side
        np.maximum(apart, np.float32(0.0), out=apart)
        apart *= apart
        touched = apart[:, 0] + apart[:, 1] < rim * rim
        for pair in touched.any(axis=0).nonzero()[0]:
            row, piece = rows[pair], touched[:, pair].argmax()
            if found[row] == causes.NONE or piece < when[row]:
                found[row], when[row] = causes.COLLISION_MOVER if moving[pair] else causes.COLLISION, piece
