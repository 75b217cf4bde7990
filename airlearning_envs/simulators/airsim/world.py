"""The stand-in's world: one drone of the embedded dynamics among boxes and cylinders on flat ground."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.simulators.airsim.dialects import KinematicsState, Pose, Quaternionr, Vector3r
from quarl.airlearning_envs.simulators.embedded.dynamics import (
    CLIMB_GAIN_PER_S,
    GRAVITY_M_S2,
    CallsInForce,
    Flight,
    Integrator,
)
from quarl.airlearning_envs.simulators.embedded.simulator import LONGEST_PIECE_S
from quarl.airlearning_envs.simulators.simulator import Call

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


GROUND_Z_M = -0.30
"""Where the drone's centre is as it stands on the ground."""
TAKEOFF_M, TAKEOFF_S = 1.54, 3.4
GOAL_TIMEOUT_S = 0.06
"""A move's goal stays for this long after the move has ended."""
_AT_ONCE_S = 1e-9
_MOST_INTEGRATORS = 64


@dataclass(frozen=True)
class Goal:
    """What a move asks for.

    Attributes:
        forward, right: of the yaw at the call, m/s.
        yaw_rate: rad/s.
        z: altitude to hold, m; or None.
        down: speed downwards, m/s, where there is no altitude.
        seconds: how long; None until the next one.
    """

    forward: float = 0.0
    right: float = 0.0
    yaw_rate: float = 0.0
    z: float | None = None
    down: float = 0.0
    seconds: float | None = None


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
        self._integrators: dict[float, Integrator] = {}
        self._main = self._integrator(self._step_s)
        times = self._times(1, self._step_s)
        self._in_force = CallsInForce(self._main, times)
        self.reset()

    def reset(self) -> None:
        """Put the drone on the ground at the start, without a goal."""
        flight = self.flight
        flight.position[:], flight.yaw[:], flight.altitude[:] = 0.0, 0.0, GROUND_Z_M
        flight.rest(slice(None))
        self._in_force.rest(np.array([0]))
        self.powered = False
        self._goal, self._new, self._runs_out_s = Goal(), False, math.inf
        self._rising: tuple[float, float] | None = None  # since when, from which z
        self._refresh_attitude()

    def move(self, goal: Goal) -> None:
        """Follow a goal from now on."""
        self.powered, self._goal, self._new, self._rising = True, goal, True, None
        self._runs_out_s = math.inf if goal.seconds is None else goal.seconds + GOAL_TIMEOUT_S

    def take_off(self) -> None:
        """Begin to climb."""
        self.powered, self._rising = True, (0.0, float(self.flight.position[2, 0]))

    def drop(self) -> None:
        """Let the drone go: without API control nothing holds it."""
        self.powered, self._rising, self._new, self._goal = False, None, False, Goal()

    @property
    def is_aloft(self) -> bool:
        """Whether it is above the ground."""
        return float(self.flight.position[2, 0]) < GROUND_Z_M - 0.01

    @property
    def speed(self) -> float:
        """The drone's speed, m/s."""
        return float(np.linalg.norm(self.flight.velocity))

    def heading(self) -> tuple[float, float]:
        """Cosine and sine of the yaw."""
        return math.cos(self.flight.yaw[0]), math.sin(self.flight.yaw[0])

    def put(self, pose: Pose) -> None:
        """Put the drone elsewhere, turned as the pose is; its velocity stays."""
        flight, (yaw, pitch, roll) = self.flight, pose.orientation.angles()
        flight.position[:, 0] = pose.position.array()
        flight.yaw[0], flight.tilt[:, 0] = yaw, (-pitch, roll)
        self._refresh_attitude()

    def pose(self) -> Pose:
        """The drone's place, and how it is turned."""
        flight = self.flight
        attitude = Quaternionr.of(float(flight.yaw[0]), -float(flight.tilt[0, 0]), float(flight.tilt[1, 0]))
        return Pose(Vector3r.of(flight.position[:, 0]), attitude)

    def kinematics(self) -> KinematicsState:
        """How it moves; of its rates only the yaw's is known."""
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
        while seconds > _AT_ONCE_S:
            if self._rising is not None:
                seconds -= self._rise(seconds, *self._rising)
            elif self.powered:
                seconds -= self._follow(seconds)
            else:
                seconds -= self._fall(seconds)

    def _follow(self, seconds: float) -> float:
        """Fly the goal for whole steps, or for what is less than one; how long that took."""
        steps = int(seconds / self._step_s + _AT_ONCE_S)
        step_s = self._step_s if steps else seconds
        times = self._times(max(steps, 1), step_s)
        took = max(steps, 1) * step_s
        calls = []
        if self._new:
            command = np.array([[self._goal.forward], [self._goal.right], [self._goal.yaw_rate]], np.float32)
            calls.append(Call(command))
            self._new = False
        if runs_out := self._runs_out_s < took:
            at_s = max(self._runs_out_s, 0.0)
            calls.append(Call(np.zeros((3, 1), np.float32), np.array([at_s], np.float32)))
        integrator, flight, goal = self._integrator(step_s), self.flight, self._goal
        self._refresh_attitude()
        self._in_force.begin(calls, times)
        for k in range(len(times)):
            if runs_out and goal.z is None and self._runs_out_s <= k * step_s:
                self._goal = goal = Goal(z=float(flight.position[2, 0]))
            # moveByVelocityZ's goal is an altitude, moveByVelocity's a speed, and SimpleFlight turns either into the
            # tilted body as a speed; the altitude held is the one that asks for that speed as the step begins.
            flight.altitude[:] = goal.down if goal.z is None else goal.z
            mean = self._in_force.goal(k)
            if goal.z is None:
                ahead = goal.down / CLIMB_GAIN_PER_S
                flight.altitude[:] = flight.position[2] + np.float32(ahead)
            before = flight.position[:, 0].copy()
            integrator.step(mean)
            self._stop(before, step_s)
        self._main.refresh_attitude()
        self._runs_out_s = math.inf if runs_out else self._runs_out_s - took
        if runs_out and goal.z is None:
            self._goal = Goal(z=float(flight.position[2, 0]))
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

    def _rise(self, seconds: float, since_s: float, from_z: float) -> float:
        """Take off for some time: z goes down smoothly, at rest at both ends; how long that took."""
        flight = self.flight
        took = min(seconds, TAKEOFF_S - since_s)
        share = min((since_s + took) / TAKEOFF_S, 1.0)
        flight.position[2] = from_z - TAKEOFF_M * share * share * (3.0 - 2.0 * share)
        flight.velocity[2] = -TAKEOFF_M / TAKEOFF_S * 6.0 * share * (1.0 - share)
        self._rising = since_s + took, from_z
        if TAKEOFF_S - since_s - took < _AT_ONCE_S:
            self.hover()
            flight.altitude[:] = flight.position[2]
            flight.rest(slice(None))
            self._in_force.rest(np.array([0]))
            self._refresh_attitude()
        return took

    def hover(self) -> None:
        """Hold the velocity zero at this altitude."""
        self.move(Goal(z=float(self.flight.position[2, 0])))

    def _fall(self, seconds: float) -> float:
        """Fall to the ground, or stand on it."""
        flight = self.flight
        if not self.is_aloft:
            flight.velocity[:], flight.acceleration[:] = 0.0, 0.0
            return seconds
        took = min(seconds, self._step_s)
        before = flight.position[:, 0].copy()
        flight.acceleration[:, 0] = (0.0, 0.0, GRAVITY_M_S2)
        flight.position += flight.velocity * np.float32(took)
        flight.position[2] += np.float32(GRAVITY_M_S2 * took * took / 2.0)
        flight.velocity[2] += np.float32(GRAVITY_M_S2 * took)
        self._stop(before, took)
        return took

    def _times(self, steps: int, step_s: float) -> NDArray[np.float32]:
        """(steps,) from now to the end of each, the same bits as the embedded simulator's."""
        cuts = math.ceil(step_s / LONGEST_PIECE_S)
        return (np.arange(1, steps * cuts + 1) * (step_s / cuts)).astype(np.float32)[cuts - 1 :: cuts]

    def _integrator(self, step_s: float) -> Integrator:
        if step_s not in self._integrators:
            if len(self._integrators) >= _MOST_INTEGRATORS:
                self._integrators = {self._step_s: self._main}
            self._integrators[step_s] = Integrator(self.flight, step_s)
        return self._integrators[step_s]

    def _refresh_attitude(self) -> None:
        """Note that yaw or tilt have changed."""
        for integrator in self._integrators.values():
            integrator.refresh_attitude()
