"""The stand-in's world: one drone of the embedded dynamics among boxes and cylinders on flat ground.

A period flown here under the same commands gives the same bits as
:meth:`~airlearning_envs.simulators.embedded.simulator.EmbeddedSimulator.fly`, as long as time passes in whole steps of
the task (125 ms); what is left over is one shorter step. Simpler than in AirSim: when a move has run out the drone
holds the velocity zero, not the place; a move's new altitude is followed at once, its velocity after 20 ms; without API
control the drone stays where it is; a drone that flies into something stops there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.simulators.airsim.dialects import KinematicsState, Pose, Quaternionr, Vector3r
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator
from quarl.airlearning_envs.simulators.embedded.simulator import LONGEST_PIECE_S
from quarl.airlearning_envs.simulators.simulator import Call

Floats = NDArray[np.float64]

SKY_M = 65504.0
"""Where nothing is seen: the largest number of half precision."""
PICTURE = (144, 256)
"""Height and width in pixels, which are square."""
ASSETS = ("1M_Cube", "1M_Cube_Chamfer", "Cube", "Cylinder")
"""One metre high, wide and long; the pose is the centre's."""
GROUND_Z_M = -0.30
"""Where the drone's centre is as it stands on the ground."""
GOAL_TIMEOUT_S = 0.06
"""A move's goal stays for this long after the move has ended."""
_TINY = 1e-12
_AT_ONCE_S = 1e-9


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

    def gap(self, point: Floats) -> float:
        """Distance from its surface to a point (3,) of the world; 0 within it."""
        local = np.abs(self.pose.orientation.matrix().T @ (point - self.pose.position.array()))
        if self.is_round:
            beyond = np.array([np.hypot(local[0], local[1]) - self.half[0], local[2] - self.half[2]])
        else:
            beyond = local - self.half
        return float(np.linalg.norm(np.maximum(beyond, 0.0)))

    def hits(self, eye: Floats, rays: Floats) -> Floats:
        """Return how many of its own lengths each ray (3, N) from an eye (3,) goes until it enters: (N,), infinite for
        a miss.

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
        """Return the names that a regular expression matches as a whole, including what was there from the start."""
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
        self._things[name] = Thing(pose, scale.array() / 2.0, "cylinder" in asset.lower())
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
        """Return the pose of an object; nowhere if it is not there."""
        return self._things[name].pose if name in self._things else Pose.nowhere()

    def find_contact(self, place: Floats, radius_m: float) -> tuple[str, float] | None:
        """Name of what a ball at a place (3,) touches, and how deep the ball is in it, m; None: it touches nothing."""
        for name, thing in self._things.items():
            if (gap := thing.gap(place)) < radius_m:
                return name, radius_m - gap
        return None

    def depth_picture(self, eye: Floats, turned: Floats, reach: float = 1.0) -> NDArray[np.float32]:
        """Return what a camera sees along its optical axis: (height, width) of :data:`PICTURE`, m in half precision.

        Args:
            eye: (3,) where the camera is.
            turned: (3, 3) whose columns are its axes ahead, to the right and down.
            reach: tangent of half its width.
        """
        height, width = PICTURE
        right = reach * ((np.arange(width) + 0.5) / (width / 2.0) - 1.0)
        down = reach * ((np.arange(height) + 0.5) - height / 2.0) / (width / 2.0)
        across, below = np.meshgrid(right, down)
        rays = turned @ np.stack([np.ones(across.size), across.ravel(), below.ravel()])
        nearest = np.where(rays[2] > _TINY, -eye[2] / np.maximum(rays[2], _TINY), np.inf)
        nearest[nearest < 0.0] = np.inf
        for thing in self._things.values():
            np.minimum(nearest, thing.hits(eye, rays), out=nearest)
        return np.minimum(nearest, SKY_M).astype(np.float16).astype(np.float32).reshape(PICTURE)


class Drone:
    """One drone; time passes only in :meth:`advance`.

    Args:
        config: the task, of which it takes drone, dynamics and substeps.
        touched: (place (3,)) -> whether the drone touches something there; it keeps the record.
    """

    def __init__(self, config: NavigationConfig, touched: Callable[[Floats], bool]) -> None:
        self.flight = Flight.hovering(config, 1)
        self._touched = touched
        self._step_s = config.control_period_s / config.substeps
        self._integrator = Integrator(self.flight, self._step_s)
        self._in_force = CallsInForce(self._integrator, self._times(1, self._step_s))
        self.reset()

    def reset(self) -> None:
        """Put the drone on the ground at the start, without a goal."""
        flight = self.flight
        flight.position[:], flight.yaw[:], flight.altitude[:] = 0.0, 0.0, GROUND_Z_M
        flight.rest(slice(None))
        self._in_force.rest(np.array([0]))
        self._integrator.refresh_attitude()
        self.stand()

    def stand(self) -> None:
        """Stay in place: without API control nothing moves the drone."""
        self.powered, self._new = False, False
        self._runs_out_s = math.inf
        self.flight.velocity[:], self.flight.acceleration[:] = 0.0, 0.0

    def move(self, forward: float, right: float, yaw_rate: float, z: float, seconds: float) -> None:
        """Follow a velocity (m/s) of the yaw at the call and a yaw rate (rad/s) at an altitude (m) for some time."""
        self._command = np.array([[forward], [right], [yaw_rate]], np.float32)
        self.flight.altitude[:] = z
        self.powered, self._new, self._runs_out_s = True, True, seconds + GOAL_TIMEOUT_S

    def put(self, pose: Pose) -> None:
        """Put the drone elsewhere, turned as the pose is; its velocity stays."""
        flight, (yaw, pitch, roll) = self.flight, pose.orientation.angles()
        flight.position[:, 0] = pose.position.array()
        flight.yaw[0], flight.tilt[:, 0] = yaw, (-pitch, roll)
        self._integrator.refresh_attitude()

    def pose(self) -> Pose:
        """Return the drone's place, and how it is turned."""
        flight = self.flight
        attitude = Quaternionr.of(float(flight.yaw[0]), -float(flight.tilt[0, 0]), float(flight.tilt[1, 0]))
        return Pose(Vector3r.of(flight.position[:, 0]), attitude)

    def kinematics(self) -> KinematicsState:
        """Return how it moves; of its rates only the yaw's is known."""
        flight, pose = self.flight, self.pose()
        return KinematicsState(
            pose.position,
            pose.orientation,
            linear_velocity=Vector3r.of(flight.velocity[:, 0]),
            angular_velocity=Vector3r(0.0, 0.0, float(flight.yaw_rate[0])),
            linear_acceleration=Vector3r.of(flight.acceleration[:, 0]),
        )

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        while self.powered and seconds > _AT_ONCE_S:
            seconds -= self._follow(seconds)

    def _follow(self, seconds: float) -> float:
        """Fly the goal for whole steps, or for what is less than one; how long that took."""
        whole = int(seconds / self._step_s + _AT_ONCE_S)
        steps, step_s = (whole, self._step_s) if whole else (1, seconds)
        integrator = self._integrator if whole else Integrator(self.flight, step_s)
        times, took = self._times(steps, step_s), steps * step_s
        calls = [Call(self._command)] if self._new else []
        if runs_out := self._runs_out_s < took:
            at_s = max(self._runs_out_s, 0.0)
            calls.append(Call(np.zeros((3, 1), np.float32), np.array([at_s], np.float32)))
        self._in_force.begin(calls, times)
        for k in range(steps):
            before = self.flight.position[:, 0].copy()
            integrator.step(self._in_force.goal(k))
            self._stop(before, step_s)
        self._integrator.refresh_attitude()
        self._new, self._runs_out_s = False, math.inf if runs_out else self._runs_out_s - took
        return took

    def _stop(self, before: NDArray[np.float32], step_s: float) -> None:
        """Where something or the ground was touched since ``before`` (3,), the drone stands at the last free place."""
        flight, pieces = self.flight, math.ceil(step_s / LONGEST_PIECE_S)
        after, free = flight.position[:, 0].copy(), before
        for piece in range(1, pieces + 1):
            place = before + np.float32(piece / pieces) * (after - before)
            if self._touched(place.astype(np.float64)):
                flight.position[:, 0] = free
                flight.velocity[:], flight.acceleration[:] = 0.0, 0.0
                return
            free = place

    def _times(self, steps: int, step_s: float) -> NDArray[np.float32]:
        """Return (steps,), from now to the end of each, the same bits as the embedded simulator's."""
        cuts = math.ceil(step_s / LONGEST_PIECE_S)
        return (np.arange(1, steps * cuts + 1) * (step_s / cuts)).astype(np.float32)[cuts - 1 :: cuts]
