"""What the drones meet in the plane: range rays, depth pictures, and contact with obstacles and movers.

A ray starts at the drone. Distances are in metres along the (unit) direction; a miss is infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs import rules
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import Slots
from quarl.airlearning_envs.simulators.simulator import Obstacles

Floats = NDArray[np.float32]

_FIRST = np.ones(1, bool)
_TINY = np.float32(1e-20)


def inverse_directions(directions: Floats) -> Floats:
    """1 / d for each component of unit directions, huge but finite where a ray runs along an axis.

    A component is either 0 or, by float32's spacing, far larger than the 1e-20 that is added.
    """
    return np.reciprocal(directions + _TINY)


def wall_ranges(position: Floats, inverse: Floats, half: float) -> Floats:
    """Distance to the walls of the square [-half, half]^2 from inside it.

    Args:
        position: (2, E).
        inverse: (2, E, R) inverse ray directions.
        half: half the side.

    Returns:
        (E, R). Per axis the wall ahead is at sign(d) half, so t = |half / d| - p / d.
    """
    t = np.abs(inverse)
    t *= np.float32(half)
    t -= position[:, :, None] * inverse
    return np.minimum(t[0], t[1])


def circle_ranges(forward: Floats, right: Floats, radius: Floats, cosines: Floats, sines: Floats) -> Floats:
    """Distance to circles given in the body frame, each with each of the R rays.

    With c the centre and d the direction: b = c.d, t = b - sqrt(b^2 - (c.c - r^2)); a miss where the root is
    imaginary or the circle lies behind.

    Args:
        forward, right: (P,) centre.
        radius: (P,).
        cosines, sines: (R,) of the rays' angles from straight ahead, positive to the right.

    Returns:
        (P, R).
    """
    along = np.multiply.outer(forward, cosines)
    along += np.multiply.outer(right, sines)
    root = along * along
    root -= (forward * forward + right * right - radius * radius)[:, None]
    miss = np.minimum(root, along) < 0
    np.maximum(root, np.float32(0.0), out=root)
    np.sqrt(root, out=root)
    along -= root
    along[miss] = np.inf
    return along


def box_ranges(offset: Floats, half_side: Floats, inverse: Floats) -> Floats:
    """Distance to axis-aligned square boxes (slab method, Kay and Kajiya 1986).

    Per axis the ray is between the box's planes from c/d - h/|d| to c/d + h/|d|; it hits where the last entry
    comes before the first exit.

    Args:
        offset: (2, P) from the ray's origin to the centre.
        half_side: (P,).
        inverse: (2, P, R) inverse ray directions.

    Returns:
        (P, R).
    """
    middle = offset[:, :, None] * inverse
    depth = np.abs(inverse)
    depth *= half_side[:, None]
    near, far = middle - depth, middle
    far += depth
    enter = np.maximum(near[0], near[1], out=near[0])
    leave = np.minimum(far[0], far[1], out=far[0])
    enter[(leave < enter) | (leave < 0)] = np.inf
    return enter


def nearest_per_row(ranges: Floats, rows: NDArray[np.integer], hits: Floats) -> None:
    """Lower ``ranges`` (E, R) in place to the ``hits`` (P, R) of its rows; ``rows`` (P,) is ascending."""
    if not len(rows):
        return
    # Where a new row begins.
    (first,) = np.concatenate([_FIRST, rows[1:] != rows[:-1]]).nonzero()
    touched = rows[first]
    ranges[touched] = np.minimum(ranges[touched], np.minimum.reduceat(hits, first, axis=0))


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
            centre: (2, E, N) obstacles in the columns of :class:`~airlearning_envs.layout.Slots`.
            size: (E, N).

        Returns:
            ranges (E, R) in metres, at most the sensor's range; and gap (E, N), a lower bound of the distance from
            the drone's centre to each obstacle's surface.
        """
        # Ray directions in the world frame, (2, E, R).
        cosine, sine = cosine[:, None], sine[:, None]
        directions = self._along * cosine
        directions += self._across * sine
        inverse = inverse_directions(directions)
        ranges = wall_ranges(position, inverse, self._half)
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
            hits[circles] = circle_ranges(forward[at], right[at], size[at], self._cosines, self._sines)
        if len(boxes):
            at = rows[boxes], columns[boxes]
            hits[boxes] = box_ranges(offset[:, at[0], at[1]], size[at], inverse[:, at[0]])
        nearest_per_row(ranges, rows, hits)


class DepthCamera:
    """A pinhole camera on the drone that looks ahead, 90 degrees wide and high.

    A pixel is the distance along the optical axis (AirSim's DepthPlanar), in metres, cut at ``furthest_m``. Row 0 is
    the top, column 0 the left. Obstacles and walls reach from floor to ceiling, so the picture is the smaller of a row
    of ranges and the depth of floor and ceiling. The camera keeps level, whatever the drone's tilt:

        depth(v, u) = min(range(u) cos(angle(u)), h / |tan(elevation(v))|),   h = down to the floor, up to the ceiling.

    Args:
        height, width: pixels.
        furthest_m: the cut.
        altitude_m, ceiling_m: where the drone and the ceiling are above the floor.
    """

    def __init__(self, height: int, width: int, furthest_m: float, altitude_m: float, ceiling_m: float) -> None:
        # Pixel centres on the image plane at unit depth: -1 + 1/n ... 1 - 1/n.
        across, down = ((np.arange(count) + 0.5) / (count / 2) - 1.0 for count in (width, height))
        self._angles = np.arctan(across)
        self._cosines = np.cos(self._angles).astype(np.float32)
        # The cut is made along the optical axis, so an oblique ray has to reach farther.
        self._furthest, self._reach = np.float32(furthest_m), furthest_m / float(np.cos(self._angles).min())
        room = np.where(down > 0, altitude_m, ceiling_m - altitude_m)
        self._floor = np.minimum(room / np.maximum(np.abs(down), 1e-9), furthest_m).astype(np.float32)

    def capture(self, ranges: Callable[[NDArray[np.float64], float], Floats]) -> Floats:
        """Pictures (E, height, width) of what a function (angles, longest range) -> (E, width) sees."""
        planar = np.minimum(ranges(self._angles, self._reach) * self._cosines, self._furthest)
        return np.minimum(planar[:, None, :], self._floor[None, :, None])


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
        """Return the first contact of each drone: (cause (E,) int8, piece (E,), the last one where there is none).

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
            if found[row] == rules.NONE or piece < when[row]:
                found[row], when[row] = rules.COLLISION_MOVER if moving[pair] else rules.COLLISION, piece
