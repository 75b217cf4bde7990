"""What stands around the stand-in's drone: boxes and cylinders of any pose on flat ground, felt and seen in space."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.simulators.airsim.dialects import Pose, Vector3r

Floats = NDArray[np.float64]

SKY_M = 65504.0
"""Where nothing is seen: the largest number of half precision."""
PICTURE = (144, 256)
"""Height and width in pixels, which are square."""
ASSETS = ("1M_Cube", "1M_Cube_Chamfer", "Cube", "Cylinder")
"""One metre high, wide and long; the pose is the centre's."""
_TINY = 1e-12


@dataclass
class Thing:
    """An object that stands in the scene.

    Attributes:
        pose: of its centre.
        half: (3,) half its length, width and height, m; a cylinder's axis is its own z, its radius the length's half.
        is_round: a cylinder, not a box.
    """

    pose: Pose
    half: Floats
    is_round: bool

    @classmethod
    def from_asset(cls, asset: str, pose: Pose, scale: Vector3r) -> Thing:
        """Make an object of one of :data:`ASSETS`."""
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
            np.maximum(enter, middle - reach, out=enter)
            np.minimum(leave, middle + reach, out=leave)
        if self.is_round:
            # a t^2 + 2 b t + c = 0
            a = np.maximum(along[0] ** 2 + along[1] ** 2, _TINY)
            b = origin[0] * along[0] + origin[1] * along[1]
            c = origin[0] ** 2 + origin[1] ** 2 - self.half[0] ** 2
            square = b * b - a * c
            root = np.sqrt(np.maximum(square, 0.0))
            np.maximum(enter, np.where(square < 0.0, np.inf, (-b - root) / a), out=enter)
            np.minimum(leave, (-b + root) / a, out=leave)
        return np.where((enter <= leave) & (leave > 0.0), np.maximum(enter, 0.0), np.inf)


class Scene:
    """All that stands there, by name, on the ground z = 0.

    Args:
        taken: names that nothing spawned may have.
    """

    def __init__(self, taken: tuple[str, ...]) -> None:
        self._taken, self._things = taken, dict[str, Thing]()

    def names(self, pattern: str) -> list[str]:
        """The names that a regular expression matches as a whole, including what was there from the start."""
        return [name for name in (*self._taken, *self._things) if re.fullmatch(pattern, name)]

    def spawn(self, name: str, asset: str, pose: Pose, scale: Vector3r) -> str:
        """Put one of :data:`ASSETS` there; its actual name: "wall", "wall1", "wall2" …

        Raises:
            ValueError: there is no such asset; in AirSim's words.
        """
        if asset not in ASSETS:
            raise ValueError(f"There were no objects with name {asset} found in the Registry")
        wanted, number = name, 0
        while name in (*self._taken, *self._things):
            number += 1
            name = f"{wanted}{number}"
        self._things[name] = Thing.from_asset(asset, pose, scale)
        return name

    def destroy(self, name: str) -> bool:
        """Remove an object; returns whether it was there."""
        return self._things.pop(name, None) is not None

    def place(self, name: str, pose: Pose) -> bool:
        """Put an object somewhere else; returns whether it is there."""
        if name in self._things:
            self._things[name].pose = pose
        return name in self._things

    def pose(self, name: str) -> Pose:
        """The pose of an object; nowhere if it is not there."""
        return self._things[name].pose if name in self._things else Pose.nowhere()

    def find_contact(self, place: Floats, radius_m: float) -> tuple[str, float] | None:
        """Name of what a ball at a place (3,) touches, and how deep the ball is in it, m; None: it touches nothing."""
        for name, thing in self._things.items():
            if (gap := thing.gap(place)) < radius_m:
                return name, radius_m - gap
        return None

    def depth_picture(
        self, eye: Floats, turned: Floats, planar: bool = True, reach: float = 1.0
    ) -> NDArray[np.float32]:
        """What a camera sees: (height, width) of :data:`PICTURE`, m in half precision, :data:`SKY_M` for the sky.

        Args:
            eye: (3,) where the camera is.
            turned: (3, 3) whose columns are its axes ahead, to the right and down.
            planar: metres along the optical axis, else along each ray.
            reach: tangent of half its width.
        """
        height, width = PICTURE
        right = reach * ((np.arange(width) + 0.5) / (width / 2.0) - 1.0)
        down = reach * ((np.arange(height) + 0.5) - height / 2.0) / (width / 2.0)
        across, below = np.meshgrid(right, down)
        own = np.stack([np.ones(across.size), across.ravel(), below.ravel()])
        rays = turned @ own
        nearest = np.where(rays[2] > _TINY, -eye[2] / np.maximum(rays[2], _TINY), np.inf)
        nearest[nearest < 0.0] = np.inf
        for thing in self._things.values():
            np.minimum(nearest, thing.hits(eye, rays), out=nearest)
        if not planar:
            nearest *= np.linalg.norm(own, axis=0)
        return np.minimum(nearest, SKY_M).astype(np.float16).astype(np.float32).reshape(PICTURE)
