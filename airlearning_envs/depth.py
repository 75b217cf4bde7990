"""A forward depth camera: 84 x 84 planar depth of the arena, for many drones at once, with numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlearning_envs.core import NavigationCore
from airlearning_envs.observation import VECTOR_SIZE
from airlearning_envs.sensing import RangeSensor

Floats = NDArray[np.float32]

IMAGE_SIDE = 84
"""Pixels of each side of the picture."""


class DepthCamera:
    """A pinhole camera on the drone that looks ahead, 90 degrees wide and high.

    A pixel is the distance along the optical axis (AirSim's DepthPlanar), in metres, cut at the config's
    ``max_range_m``. Row 0 is the top, column 0 the left. Obstacles and walls reach from floor to ceiling, so the
    picture is the smaller of a row of ranges and the depth of floor and ceiling:

        depth(v, u) = min(range(u) cos(angle(u)), h / |tan(elevation(v))|),   h = half the arena's height.

    Args:
        core: the simulator whose drones carry the camera.
    """

    def __init__(self, core: NavigationCore) -> None:
        self._core = core
        # Pixel centres on the image plane at unit depth: -1 + 1/84 ... 1 - 1/84.
        plane = (np.arange(IMAGE_SIDE) + 0.5) / (IMAGE_SIDE / 2) - 1.0
        angles = np.arctan(plane)
        # The cut at max_range_m is made along the optical axis, so an oblique ray has to reach farther.
        self._sensor = RangeSensor(core.config, angles, core.config.max_range_m / float(np.cos(angles).min()))
        self._cosines = np.cos(angles).astype(np.float32)
        height = core.config.arena_height_m / 2.0
        self._floor = np.minimum(height / np.abs(plane), core.config.max_range_m).astype(np.float32)

    def capture(self) -> Floats:
        """Depth pictures (E, 84, 84) float32 of what the drones see now."""
        core = self._core
        yaw = core.flight.yaw
        cosine, sine = np.cos(yaw).astype(np.float32), np.sin(yaw).astype(np.float32)
        ranges, _ = self._sensor.scan(core.flight.position, cosine, sine, core.centre, core.size)
        planar = np.minimum(ranges * self._cosines, np.float32(core.config.max_range_m))
        return np.minimum(planar[:, None, :], self._floor[None, :, None])


def vector_part(observation: Floats) -> Floats:
    """The 8 elements of the observation (..., 32) that are no ranges."""
    return observation[..., -VECTOR_SIZE:]
