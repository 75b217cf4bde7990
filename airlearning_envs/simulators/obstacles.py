"""What stands and moves around the drones: an episode's obstacles as time passes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.episode.layout import Layouts, Slots

Floats = NDArray[np.float32]


class Obstacles:
    """The obstacles of E drones in N columns (:class:`~airlearning_envs.episode.layout.Slots`), of which M move.

    Movers fly straight, pass obstacles, and bounce off walls.

    Attributes:
        slots: which column is what.
        centre: (2, E, N) m.
        size: (E, N) radius of a cylinder, half side of a box, m.
        velocity: (2, E, M) of the movers, m/s.
        limit: (E, M) a mover's centre turns back at this distance from the arena's axes, m.
    """

    def __init__(self, slots: Slots, num_envs: int) -> None:
        self.slots = slots
        self.centre = np.zeros((2, num_envs, slots.total), np.float32)
        self.size = np.zeros((num_envs, slots.total), np.float32)
        self.velocity = np.zeros((2, num_envs, slots.movers), np.float32)
        self.limit = np.zeros((num_envs, slots.movers), np.float32)

    def begin(self, rows: NDArray[np.int64], arenas: Layouts) -> None:
        """Replace the obstacles of some rows by those of new episodes."""
        self.centre[:, rows], self.size[rows] = arenas.centre, arenas.size
        self.velocity[:, rows], self.limit[rows] = arenas.velocity, arenas.limit

    def movers_at(self, seconds: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
        """Where P movers (rows, columns) will be after ``seconds`` (n,): (n, 2, P)."""
        path = self.centre[:, rows, columns] + seconds[:, None, None] * self.velocity[:, rows, columns]
        return reflect(path, self.limit[rows, columns])

    def advance(self, seconds: float) -> None:
        """Let time pass; a wall turns a mover's velocity."""
        if not self.slots.movers:
            return
        place = self.centre[:, :, : self.slots.movers]
        place += self.velocity * np.float32(seconds)
        outside = np.abs(place) > self.limit
        if np.count_nonzero(outside):
            place[...] = reflect(place, self.limit)
            self.velocity = np.where(outside, -self.velocity, self.velocity)

    def rewind(self, rows: NDArray[np.int64], before: tuple[Floats, Floats], seconds: Floats) -> None:
        """Let no more than ``seconds`` (k,) have passed for some rows since ``before``: the movers' centre and velocity
        of then."""
        movers = self.slots.movers
        if movers:
            velocity, limit = before[1][:, rows], self.limit[rows]
            place = before[0][:, rows] + velocity * seconds[:, None]
            outside = np.abs(place) > limit
            if np.count_nonzero(outside):
                place, velocity = reflect(place, limit), np.where(outside, -velocity, velocity)
            self.centre[:, rows, :movers], self.velocity[:, rows] = place, velocity


def reflect(position: Floats, limit: Floats) -> Floats:
    """Positions after bouncing off walls at +-limit; an excess beyond the wall is mirrored back."""
    return position - np.float32(2.0) * (position - np.clip(position, -limit, limit))
