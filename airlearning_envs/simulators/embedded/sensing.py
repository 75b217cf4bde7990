"""Range rays: which obstacles can be seen at all, and how far each ray goes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.episode.layout import Slots
from quarl.airlearning_envs.simulators.embedded import geometry

Floats = NDArray[np.float32]

_ROOT_2 = np.float32(np.sqrt(2.0))


class RangeSensor:
    """Casts the same fan of R rays from many drones at once.

    Args:
        config: gives the arena.
        angles: (R,) ray angles in radians within +-60 degrees, positive to the right.
        range_m: a ray that meets nothing nearer reads this.
    """

    def __init__(self, config: NavigationConfig, angles: NDArray[np.float64], range_m: float) -> None:
        self._slots = Slots.of(config)
        self._half, self._range = config.half_m, np.float32(range_m)
        self._cosines, self._sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        # A ray's direction is cos(yaw) (cos a, sin a) + sin(yaw) (-sin a, cos a): (2, 1, R) each.
        self._along = np.stack([self._cosines, self._sines])[:, None]
        self._across = np.stack([-self._sines, self._cosines])[:, None]
        # The fan is the wedge |right| <= slope * forward.
        widest = max(float(np.abs(angles).max()), 1e-3)
        self._slope = np.float32(np.tan(widest))
        self._stretch = np.float32(1.0 / np.cos(widest))
        # A circle around the whole obstacle, for culling: a box reaches sqrt(2) half sides.
        columns = np.arange(self._slots.total)
        self._bound = np.where(columns < self._slots.circles, np.float32(1.0), _ROOT_2)

    def scan(
        self, position: Floats, cosine: Floats, sine: Floats, centre: Floats, size: Floats
    ) -> tuple[Floats, Floats]:
        """Measure the ranges of E drones.

        Args:
            position: (2, E).
            cosine, sine: (E,) of the yaw.
            centre: (2, E, N) obstacles in the columns of :class:`~airlearning_envs.episode.layout.Slots`.
            size: (E, N).

        Returns:
            ranges (E, R) in metres, at most the sensor's range; and gap (E, N), a lower bound of the distance from
            the drone's centre to each obstacle's surface.
        """
        # Ray directions in the world frame, (2, E, R).
        cosine, sine = cosine[:, None], sine[:, None]
        directions = self._along * cosine
        directions += self._across * sine
        inverse = geometry.inverse_directions(directions)
        ranges = geometry.wall_ranges(position, inverse, self._half)
        gap = np.empty_like(size)
        if self._slots.total:
            offset = centre - position[:, :, None]
            square = offset * offset
            bound = size * self._bound
            np.subtract(np.sqrt(square[0] + square[1]), bound, out=gap)
            (forward, right), by_sine = offset * cosine, offset * sine
            forward += by_sine[1]
            right -= by_sine[0]
            # A circle meets the wedge only if its distance from the wedge's edge is less than its radius:
            # |right| - slope forward < radius / cos(widest); and only what is near can be seen.
            seen = np.abs(right) - self._slope * forward < self._stretch * bound
            seen &= gap < self._range
            self._cast(ranges, seen, offset, forward, right, size, inverse)
        np.maximum(ranges, np.float32(0.0), out=ranges)
        np.minimum(ranges, self._range, out=ranges)
        return ranges, gap

    def _cast(
        self,
        ranges: Floats,
        seen: NDArray[np.bool_],
        offset: Floats,
        forward: Floats,
        right: Floats,
        size: Floats,
        inverse: Floats,
    ) -> None:
        """Lower ``ranges`` to the (drone, obstacle) pairs that are seen: typically a quarter of all."""
        rows, columns = seen.nonzero()
        if not len(rows):
            return
        hits = np.empty((len(rows), ranges.shape[1]), np.float32)
        is_round = columns < self._slots.circles
        (circles,), (boxes,) = is_round.nonzero(), (~is_round).nonzero()
        if len(circles):
            at = rows[circles], columns[circles]
            hits[circles] = geometry.circle_ranges(forward[at], right[at], size[at], self._cosines, self._sines)
        if len(boxes):
            at = rows[boxes], columns[boxes]
            hits[boxes] = geometry.box_ranges(offset[:, at[0], at[1]], size[at], inverse[:, at[0]])
        geometry.nearest_per_row(ranges, rows, hits)
