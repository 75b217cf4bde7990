"""A forward depth camera of the arena, for many drones at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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
