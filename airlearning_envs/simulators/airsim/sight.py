"""What the drone sees in AirSim: ranges in the plane and level depth pictures, from its tilted camera's DepthPlanar."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.simulators.airsim.dialects import (
    DEPTH_PLANAR,
    CameraInfo,
    Dialect,
    ImageRequest,
    ImageResponse,
)
from quarl.airlearning_envs.simulators.airsim.links import Link
from quarl.airlearning_envs.simulators.airsim.rpc import AirSimError, RpcError
from quarl.airlearning_envs.simulators.embedded.sensing import RangeSensor
from quarl.airlearning_envs.simulators.simulator import Motion, Obstacles

Floats = NDArray[np.float64]

CAMERA = "0"
NARROW_DEG, WIDE_DEG = 90.0, 120.0
"""AirSim's default, and what is set: the camera sits ahead of the drone's centre, whose fan it has to cover."""
AHEAD_M, FARTHEST_M = 0.46, 2.0
"""Where the camera is, ahead of the drone's centre, where the picture does not say it credibly."""
_GROUND_M = 0.15
"""Height below which what is seen counts as the ground."""
_LOOKS = np.radians(np.linspace(-30.0, 30.0, 13))
_EDGE_M = 0.5
"""Neighbouring columns that differ by more than this see two things."""


@dataclass(frozen=True)
class View:
    """A depth picture and how it was taken, in the vehicle's frame with the drone's centre as the origin.

    Attributes:
        depth: (H, W) m along the optical axis, the top row first.
        eye: (3,) the camera, m.
        turned: (3, 3) whose columns are the camera's axes ahead, to the right and down.
        reach: tangent of half its width.
        altitude_m: of the drone's centre above the ground.
    """

    depth: NDArray[np.float32]
    eye: Floats
    turned: Floats
    reach: float
    altitude_m: float

    def across(self) -> Floats:
        """Tangents of the picture's columns, (W,)."""
        width = self.depth.shape[1]
        return self.reach * ((np.arange(width) + 0.5) / (width / 2.0) - 1.0)

    def at(self, right: Floats, down: Floats) -> Floats:
        """Depth (…) where a ray of those tangents (…) passes, between the rows, at the nearest column.

        What lies outside the picture is read at its edge.
        """
        height, width = self.depth.shape
        column = np.clip(np.rint((right / self.reach + 1.0) * width / 2.0 - 0.5), 0, width - 1).astype(np.int64)
        row = np.clip(down / self.reach * width / 2.0 + height / 2.0 - 0.5, 0.0, height - 1.0)
        above = np.minimum(row.astype(np.int64), height - 2)
        first, second, share = self.depth[above, column], self.depth[above + 1, column], row - above
        mixed = first + share * (second - first.astype(np.float64))
        return np.where(np.abs(first - second) < _EDGE_M, mixed, np.minimum(first, second))

    def profile(self) -> Floats:
        """(2, W) of what stands at the height of the eye, column by column, from the drone's centre, m, world axes.

        A column's ray is the one that stays level; where that is outside the picture, the nearest one in it. Infinite
        where it sees nothing or the ground.
        """
        right, turned = self.across(), self.turned
        edge = self.reach * self.depth.shape[0] / self.depth.shape[1]
        upright = turned[2, 2] if abs(turned[2, 2]) > 1e-6 else 1e-6
        down = np.clip(-(turned[2, 0] + turned[2, 1] * right) / upright, -edge, edge)
        depth = self.at(right, down)
        points = self.eye[:, None] + depth * (turned @ np.stack([np.ones_like(right), right, down]))
        nothing = (depth <= 0.0) | ~np.isfinite(depth) | (points[2] > self.altitude_m - _GROUND_M)
        return np.where(nothing, points[:2] * 1e6, points[:2])

    def ranges(self, angles: Floats, yaw: float, furthest_m: float) -> NDArray[np.float32]:
        """(R,) m from the drone's centre along rays in the plane.

        A ray meets the line between two neighbouring columns' points; between two things it goes on to the farther
        one. Outside the view it reads what the view's edge reads.

        Args:
            angles: (R,) rad from straight ahead, positive to the right.
            yaw: rad.
            furthest_m: what a ray reads that meets nothing nearer.
        """
        points = self.profile()
        distance = np.hypot(*points)
        bearing = np.unwrap(np.arctan2(points[1], points[0]) - yaw)
        bearing -= 2.0 * np.pi * np.round(bearing[len(bearing) // 2] / (2.0 * np.pi))
        seen = np.clip(angles, bearing.min(), bearing.max())[:, None]
        low, high = np.minimum(bearing[:-1], bearing[1:]), np.maximum(bearing[:-1], bearing[1:])
        first, second = distance[:-1], distance[1:]
        share = (seen - bearing[:-1]) / np.where(high - low < 1e-9, 1e-9, bearing[1:] - bearing[:-1])
        with np.errstate(invalid="ignore"):
            # On a straight wall the inverse of the distance is linear in the tangent: for neighbours, in the angle.
            between = 1.0 / (1.0 / first + share * (1.0 / second - 1.0 / first))
        two_things = np.abs(first - second) > _EDGE_M
        met = np.where(two_things, np.where(share < 0.5, first, second), between)
        met = np.where((low - 1e-12 <= seen) & (seen <= high + 1e-12), met, np.inf)
        return np.clip(met.min(axis=1), 0.0, furthest_m).astype(np.float32)

    def level(self, height: int, width: int, yaw: float, furthest_m: float, ceiling_m: float) -> NDArray[np.float32]:
        """(height, width) m along a level optical axis, 90 degrees wide and high, from the drone's centre.

        Floor and ceiling are those of the task: AirSim's sky is open.
        """
        right, down = ((np.arange(count) + 0.5) / (count / 2) - 1.0 for count in (width, height))
        across, below = np.meshgrid(right, down)
        cosine, sine = math.cos(yaw), math.sin(yaw)
        rays = np.stack([cosine - sine * across, sine + cosine * across, below])
        ahead, aside, under = np.tensordot(self.turned.T, rays, axes=1)
        ahead = np.maximum(ahead, 1e-6)
        depth = self.at(aside / ahead, under / ahead) / ahead
        depth += cosine * self.eye[0] + sine * self.eye[1]
        room = np.where(down > 0, self.altitude_m, ceiling_m - self.altitude_m) / np.maximum(np.abs(down), 1e-9)
        return np.minimum(np.minimum(depth, room[:, None]), furthest_m).astype(np.float32)


def median_error_m(config: NavigationConfig, view: View, motion: Motion, obstacles: Obstacles) -> float:
    """Return how far a view's ranges are off, m, from those of a ray caster in the arena as it should be."""
    sensor = RangeSensor(config, _LOOKS, config.max_range_m)
    exact, _ = sensor.scan(motion.position, motion.cosine, motion.sine, obstacles.centre, obstacles.size)
    return float(np.median(np.abs(view.ranges(_LOOKS, float(motion.yaw[0]), config.max_range_m) - exact[0])))


class Camera:
    """The drone's own camera; it is widened where the server can, and put back when it is closed.

    Args:
        link: to the server.
        before_deg: how wide it was before an earlier connection; asked where None.

    Attributes:
        width_deg: how wide it sees.
        before_deg: how wide it was; None where the server does not say.
    """

    def __init__(self, link: Link, before_deg: float | None = None) -> None:
        self._link = link
        self._rest: tuple[object, ...] = ("",) if link.dialect is Dialect.COSYS else ("", False)
        now = self._width()
        self.before_deg = now if before_deg is None else before_deg
        self.width_deg = NARROW_DEG if now is None else now
        if now is not None and now < WIDE_DEG - 0.5:
            narrow = self._answer().picture()
            self._widen(WIDE_DEG)
            if np.array_equal(narrow, self._answer().picture(), equal_nan=True):  # it says so and does not
                self._widen(now)
            self.width_deg = self._width() or NARROW_DEG

    def view(self, drone: Floats, altitude_m: float) -> View:
        """Return the camera's view, around a drone's place (3,) in the vehicle's frame.

        Raises:
            AirSimError: what came is no depth picture.
        """
        answer = self._answer()
        turned, eye = answer.camera_orientation.matrix(), answer.camera_position.array() - drone
        if not np.linalg.norm(eye) < FARTHEST_M:  # in another frame than the vehicle's
            eye = AHEAD_M * turned[:, 0]
        return View(answer.picture(), eye, turned, math.tan(math.radians(self.width_deg / 2.0)), altitude_m)

    def _answer(self) -> ImageResponse:
        requests = [ImageRequest(CAMERA, DEPTH_PLANAR, True, False)]
        (answer,) = self._link.call(list[ImageResponse], "simGetImages", requests, *self._rest)
        if answer.height < 2 or answer.width < 2 or len(answer.image_data_float) != answer.height * answer.width:
            raise AirSimError(
                f"camera {CAMERA!r} sent a picture of {answer.width} x {answer.height} with "
                f"{len(answer.image_data_float)} values; give it DepthPlanar (ImageType 1) in CaptureSettings."
            )
        return answer

    def close(self) -> None:
        """Make the view as wide again as it was before."""
        if self.before_deg is not None and self.before_deg != self.width_deg:
            self._widen(self.before_deg)

    def _width(self) -> float | None:
        """Width of the view, degrees; None where the server does not report it."""
        try:
            width = self._link.call(CameraInfo, "simGetCameraInfo", CAMERA, *self._rest).fov
        except RpcError:
            return None
        return width if 1.0 < width < 179.0 else None

    def _widen(self, degrees: float) -> None:
        try:
            self._link.call(type(None), "simSetCameraFov", CAMERA, degrees, *self._rest)
        except RpcError:
            return
