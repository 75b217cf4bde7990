"""What ends a flight within a control period: goal, contact with an obstacle or a mover, leaving the arena."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlearning_envs import causes
from airlearning_envs.config import NavigationConfig
from airlearning_envs.layout import Slots

Floats = NDArray[np.float32]


def reflected(position: Floats, limit: Floats) -> Floats:
    """Positions after bouncing off walls at +-limit; an excess beyond the wall is mirrored back."""
    return position - np.float32(2.0) * (position - np.clip(position, -limit, limit))


class Contact:
    """Checks every substep of a control period, of E drones against their obstacles at once.

    Only pairs that can meet within the period are computed: those whose gap is smaller than what drone and mover
    can travel in it.
    """

    def __init__(self, config: NavigationConfig) -> None:
        self._slots = slots = Slots.of(config)
        self._body = np.float32(config.body_radius_m)
        self._inside = np.float32(config.half_m - config.body_radius_m)
        self._success_square = np.float32(config.success_radius_m) * np.float32(config.success_radius_m)
        self._period = np.float32(config.control_period_s)
        self._substeps = config.substeps
        self._times = (np.arange(1, config.substeps + 1) * config.substep_s).astype(np.float32)
        columns = np.arange(slots.total)
        self._round = columns < slots.circles
        mover_travel = np.float32(config.mover_speed_m_s[1] * config.control_period_s)
        self._reach = np.where(columns < slots.movers, mover_travel, np.float32(0.0)) + self._body + np.float32(1e-3)

    def first(
        self,
        track: Floats,
        segments: Floats,
        goal: Floats,
        centre: Floats,
        size: Floats,
        gap: Floats,
        mover_velocity: Floats,
        mover_limit: Floats,
    ) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        """The first event of each drone: (cause (E,) int8, substep (E,), the last one where there is none).

        Within one substep contact counts before leaving, and leaving before the goal.

        Args:
            track: (substeps + 1, 2, E) positions, the first at the period's start.
            segments: (substeps, E) lengths of the track's pieces.
            goal: (2, E).
            centre, size: (2, E, N), (E, N) at the period's start.
            gap: (E, N) lower bound of the distance to each obstacle at the period's start.
            mover_velocity, mover_limit: (2, E, M), (E, M).
        """
        num_envs, last = track.shape[2], self._substeps - 1
        found = np.zeros(num_envs, np.int8)
        when = np.full(num_envs, last)
        offset = track[1:] - goal
        offset *= offset
        reached = offset[:, 0] + offset[:, 1] < self._success_square
        self._record(found, when, reached, causes.GOAL)
        self._record(found, when, (np.abs(track[1:]) > self._inside).any(axis=1), causes.LEFT_ARENA)
        if self._slots.total:
            near = gap < segments.sum(axis=0)[:, None] + self._reach
            rows, columns = np.nonzero(near)
            if len(rows):
                self._touch(found, when, rows, columns, track, centre, size, mover_velocity, mover_limit)
        return found, when

    @staticmethod
    def _record(found: NDArray[np.int8], when: NDArray[np.int64], events: NDArray[np.bool_], cause: int) -> None:
        """Note events (substeps, E) that come not later than what is noted; later calls win a tie."""
        if not events.any():
            return
        first = events.argmax(axis=0)
        wins = events.any(axis=0) & ((found == causes.NONE) | (first <= when))
        found[wins], when[wins] = cause, first[wins]

    def _touch(
        self,
        found: NDArray[np.int8],
        when: NDArray[np.int64],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        track: Floats,
        centre: Floats,
        size: Floats,
        mover_velocity: Floats,
        mover_limit: Floats,
    ) -> None:
        """Note the contacts among the pairs (rows, columns)."""
        place = np.repeat(centre[None, :, rows, columns], self._substeps, axis=0)
        moving = columns < self._slots.movers
        if moving.any():
            r, c = rows[moving], columns[moving]
            path = centre[:, r, c] + self._times[:, None, None] * mover_velocity[:, r, c]
            place[:, :, moving] = reflected(path, mover_limit[r, c])
        extent, is_round = size[rows, columns], self._round[columns]
        # A circle is a box without sides and a wide rim; a box has sides and a rim of the body's radius.
        side = np.where(is_round, np.float32(0.0), extent)
        rim = np.where(is_round, extent, np.float32(0.0)) + self._body
        apart = np.maximum(np.abs(track[1:, :, rows] - place) - side, np.float32(0.0))
        apart *= apart
        touched = apart[:, 0] + apart[:, 1] < rim * rim
        for pair in np.flatnonzero(touched.any(axis=0)):
            row, substep = rows[pair], touched[:, pair].argmax()
            cause = causes.COLLISION_MOVER if moving[pair] else causes.COLLISION
            contact = found[row] in (causes.COLLISION, causes.COLLISION_MOVER)
            if found[row] == causes.NONE or substep < when[row] or (substep == when[row] and not contact):
                found[row], when[row] = cause, substep

    def elapsed(self, when: NDArray[np.int64]) -> Floats:
        """Time from the period's start to the end of a substep, (E,) seconds."""
        return self._times[when]

    def advance_movers(self, centre: Floats, velocity: Floats, limit: Floats, elapsed: Floats) -> None:
        """Move the movers in place by ``elapsed`` (E,) seconds; a wall turns their velocity."""
        movers = self._slots.movers
        if not movers:
            return
        place = centre[:, :, :movers]
        place += velocity * elapsed[:, None]
        outside = np.abs(place) > limit
        if outside.any():
            place[...] = reflected(place, limit)
            np.negative(velocity, out=velocity, where=outside)
