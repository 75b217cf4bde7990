"""What stands around the stand-in's drone: boxes and cylinders of any pose on flat ground, felt and seen in space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlearning_envs.simulators.airsim.dialects import Pose, Vector3r

Floats = NDArray[np.float64]

SKY_M = 65504.0
"""Where nothing is seen: the largest number of half precision."""
PICTURE = (144, 256)
"""Height and width in pixels; 90 degrees wide, with square pixels."""
ASSETS = ("1M_Cube", "1M_Cube_Chamfer", "Cube", "Cylinder")
"""One metre high, wide and long; the pose is the centre's."""
_TINY = 1e-12


@dataclass
class Thing:
    """Something that stands there.

    Attributes:
        pose: of its centre.
        half: (3,) half its length, width and height, m; a cylinder's axis is its own z, its radius the length's half.
        is_round: a cylinder, not a box.
    """

    pose: Pose
    half: Floats
    is_round: bool

    @classmethod
    def spawned(cls, asset: str, pose: Pose, scale: Vector3r) -> Thing:
        """One of :data:`ASSETS`."""
        return cls(pose, scale.array() / 2.0, "cylinder" in asset.lower())

    def gap(self, point: Floats) -> float:
        """Distance from its surface to a point (3,) of the world; 0 within it."""
        local = np.abs(self.pose.orientation.matrix().T @ (point - self.pose.position.array()))
        if self.is_round:
            beyond = np.array([np.hypot(local[0], local[1]) - self.half[0], local[2] - self.half[2]])
        else:
            beyond = local - self.half
        return float(np.linalg.norm(np.maximum(beyond, 0.0)))

    def hits(self, eye: Floats, rays: Floats) -> Floats:
        """How many of its own lengths each ray (3, N) from an eye (3,) goes until it enters: (N,), infinite for a miss.

        Within a solid is within all its parts: the ray enters last where it enters the last of them (Kay and Kajiya
        1986), of a cylinder |x^2 + y^2| < r^2 and a slab, of a box three slabs.
        """
        turned = self.pose.orientation.matrix().T
        origin, along = turned @ (eye - self.pose.position.array()), turned @ rays
        enter, leave = np.full(rays.shape[1], -np.inf), np.full(rays.shape[1], np.inf)
        for axis in (2,) if self.is_round else (0, 1, 2):
            speed = np.where(np.abs(along[axis]) < _TINY, _TINY, along[axis])
            middle, reach = -origin[axis] / speed, np.abs(self.half[axis] / speed)
            np.maximum(enter, middle - reach, enter)
            np.minimum(leave, middle + reach, leave)
        if self.is_round:
            # a t^2 + 2 b t + c = 0
            a = np.maximum(along[0] ** 2 + along[1] ** 2, _TINY)
            b = origin[0] * along[0] + origin[1] * along[1]
            c = origin[0] ** 2 + origin[1] ** 2 - self.half[0] ** 2
            square = b * b - a * c
            root = np.sqrt(np.maximum(square, 0.0))
            np.maximum(enter, np.where(square < 0.0, np.inf, (-b - root) / a), enter)
            np.minimum(leave, (-b + root) / a, leave)
        return np.where((enter <= leave) & (leave > 0.0), np.maximum(enter, 0.0), np.inf)


def depth_picture(things: list[Thing], eye: Floats, turned: Floats, planar: bool = True) -> NDArray[np.float32]:
    """What a camera sees: (height, width) of :data:`PICTURE`, metres in half precision, :data:`SKY_M` for the sky.

    Args:
        things: what stands there; the ground is z = 0.
        eye: (3,) where the camera is.
        turned: (3, 3) whose columns are its axes ahead, to the right and down.
        planar: metres along the optical axis, else along each ray.
    """
    height, width = PICTURE
    right = (np.arange(width) + 0.5) / (width / 2.0) - 1.0
    down = ((np.arange(height) + 0.5) - height / 2.0) / (width / 2.0)
    across, below = np.meshgrid(right, down)
    own = np.stack([np.ones(across.size), across.ravel(), below.ravel()])
    rays = turned @ own
    nearest = np.where(rays[2] > _TINY, -eye[2] / np.maximum(rays[2], _TINY), np.inf)
    nearest[nearest < 0.0] = np.inf
    for thing in things:
        np.minimum(nearest, thing.hits(eye, rays), nearest)
    if not planar:
        nearest *= np.linalg.norm(own, axis=0)
    return np.minimum(nearest, SKY_M).astype(np.float16).astype(np.float32).reshape(PICTURE)
