"""The rules of the task: what can be commanded, what is seen, what ends a flight, what it is worth and what it costs.

Body frame: x forward, y to the right, yaw rate positive to the right (clockwise seen from above), as in AirSim.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs import rng
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.rng import Stream, Words
from quarl.airlearning_envs.simulators.simulator import Floats, Track
from quarl.policy.spec import ObservationField

SPEEDS_M_S = (5.0, 4.0, 3.0, 2.0, 1.0)
YAW_RIGHT_DEG_S = (108.0, 54.0, 27.0, 13.5, 6.75)
YAW_LEFT_DEG_S = (-216.0, -108.0, -54.0, -27.0, -13.5)


def _table() -> tuple[tuple[tuple[str, float, float, float], ...], ...]:
    half = math.sqrt(0.5)
    forward = tuple((f"forward {v:g} m/s", v, 0.0, 0.0) for v in SPEEDS_M_S)
    # Air Learning gives forward and rightward the same speed; here the ground speed is the one in the table.
    diagonal = tuple((f"diagonal right {v:g} m/s", v * half, v * half, 0.0) for v in SPEEDS_M_S)
    # Half speed and really backwards: the original negated twice and so flew forward.
    backup = tuple((f"backup {v / 2:g} m/s", -v / 2, 0.0, 0.0) for v in SPEEDS_M_S)
    yaw_right = tuple((f"yaw {rate:+g} deg/s", 0.0, 0.0, math.radians(rate)) for rate in YAW_RIGHT_DEG_S)
    yaw_left = tuple((f"yaw {rate:+g} deg/s", 0.0, 0.0, math.radians(rate)) for rate in YAW_LEFT_DEG_S)
    return forward, diagonal, backup, yaw_right, yaw_left


_ROWS = tuple(row for group in _table() for row in group)

ACTION_NAMES: tuple[str, ...] = tuple(row[0] for row in _ROWS)
"""Name of each discrete action."""

ACTION_COMMANDS = np.array([row[1:] for row in _ROWS], dtype=np.float32)
"""(25, 3): forward speed in m/s, rightward speed in m/s, yaw rate in rad/s. A yaw turns on the spot."""
ACTION_COMMANDS.setflags(write=False)

FALLBACK_ACTION = len(ACTION_NAMES) // 5 * 4 - 1
"""The slowest turn on the spot, 6.75 deg/s: what moves the drone least, where no action can be decided."""

COMMAND_LOW = np.array([-2.5, -2.5, -math.radians(216.0)], dtype=np.float32)
COMMAND_HIGH = np.array([5.0, 5.0 * math.sqrt(0.5), math.radians(216.0)], dtype=np.float32)
"""Bounds of a continuous command (3,): forward m/s, rightward m/s, yaw rate rad/s; they enclose the table's."""
COMMAND_LOW.setflags(write=False)
COMMAND_HIGH.setflags(write=False)


VECTOR_SIZE = 8
"""Observation elements that follow the ranges."""

IMAGE_SIDE = 84
"""Pixels of each side of the depth picture."""


def ray_angles(config: NavigationConfig) -> NDArray[np.float64]:
    """(R,) angles of the range rays from straight ahead in radians, positive to the right, ascending."""
    half = np.radians(config.field_of_view_deg / 2.0)
    return np.linspace(-half, half, config.ray_count)


def observation_fields(config: NavigationConfig) -> tuple[ObservationField, ...]:
    """Return the observation's fields in order."""
    return (
        ObservationField("ranges", (config.ray_count,), "m"),
        ObservationField("goal_bearing", (1,), "rad"),
        ObservationField("goal_distance", (1,), "m"),
        ObservationField("velocity", (2,), "m/s"),
        ObservationField("yaw_rate", (1,), "rad/s"),
        ObservationField("last_command", (3,), "m/s, m/s, rad/s"),
    )


def depth_fields(config: NavigationConfig) -> tuple[ObservationField, ...]:
    """Return the fields in order where a depth picture takes the ranges' place."""
    return (ObservationField("depth", (IMAGE_SIDE, IMAGE_SIDE, 1), "m"), *observation_fields(config)[1:])


MOTION_BOUNDS = np.array([25.0, 25.0, 10.0], np.float32)
"""Observed velocity (m/s) and yaw rate (rad/s) stay within these, whatever wind, gains and noise do."""


def observation_bounds(config: NavigationConfig) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the observation, each (32,)."""
    tail = np.concatenate([[np.pi, math.sqrt(2.0) * config.arena_m], MOTION_BOUNDS, COMMAND_HIGH])
    high = np.concatenate([np.full(config.ray_count, config.max_range_m), tail]).astype(np.float32)
    low = -high
    low[: config.ray_count], low[config.ray_count + 1] = 0.0, 0.0
    low[-3:] = COMMAND_LOW
    return low, high


def depth_bounds(config: NavigationConfig) -> tuple[Floats, Floats]:
    """Lower and upper bounds of an observation of :func:`depth_fields`, each (7064,)."""
    low, high = observation_bounds(config)
    pixels = IMAGE_SIDE * IMAGE_SIDE
    lowest, highest = np.zeros(pixels, np.float32), np.full(pixels, config.max_range_m, np.float32)
    return np.concatenate([lowest, vector_part(low)]), np.concatenate([highest, vector_part(high)])


OBSERVATION_FIELDS = observation_fields(NavigationConfig())
"""Fields of the standard observation of 32 floats."""


def is_noisy(config: NavigationConfig) -> bool:
    """Return whether the sensors err at all."""
    return bool(config.range_noise_m or config.range_dropout or config.motion_noise)


def add_noise(config: NavigationConfig, observation: Floats, keys: Words, steps: NDArray[np.int64]) -> None:
    """Add sensor noise and dropout, in place.

    Args:
        config: how much.
        observation: (E, 32).
        keys: (E,) of the episodes.
        steps: (E,) steps since each episode's start.
    """
    count = config.ray_count
    keys, steps = keys[:, None], steps[:, None]
    rays = observation[:, :count]
    if config.range_noise_m:
        noise = rng.normals(keys, Stream.RANGE_NOISE, steps * count + np.arange(count))
        rays += np.float32(config.range_noise_m) * noise
        np.clip(rays, np.float32(0.0), np.float32(config.max_range_m), out=rays)
    if config.range_dropout:
        lost = rng.uniforms(keys, Stream.RANGE_DROPOUT, steps * count + np.arange(count))
        rays[lost < np.float32(config.range_dropout)] = config.max_range_m
    if config.motion_noise:
        motion = observation[:, count + 2 : count + 5]
        motion += np.float32(config.motion_noise) * rng.normals(keys, Stream.MOTION_NOISE, steps * 3 + np.arange(3))
        np.clip(motion, -MOTION_BOUNDS, MOTION_BOUNDS, out=motion)


def vector_part(observation: Floats) -> Floats:
    """Return the 8 elements of the observation (..., 32) that are no ranges."""
    return observation[..., -VECTOR_SIZE:]


class EndCause(IntEnum):
    """Why an episode ended."""

    NONE = 0
    GOAL = 1
    COLLISION = 2
    COLLISION_MOVER = 3
    LEFT_ARENA = 4
    TIME = 5


# Plain numbers for the inner loop: Python 3.11 looks an enum's member up slowly.
NONE, GOAL, COLLISION, COLLISION_MOVER, LEFT_ARENA, TIME = (int(cause) for cause in EndCause)


class Ends:
    """Judges tracks.

    Args:
        config: the arena, the drone's radius, and how near the goal is reached.
    """

    def __init__(self, config: NavigationConfig) -> None:
        self._inside = np.float32(config.half_m - config.body_radius_m)
        self._success_square = np.float32(config.success_radius_m) * np.float32(config.success_radius_m)

    def first(self, track: Track, goal: Floats) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        """Return the first event of each drone: (cause (E,) int8, piece of the track (E,), the last one where there is
        none).

        Within one piece contact counts before leaving, and leaving before the goal.

        Args:
            track: of one period.
            goal: (2, E).
        """
        pieces, num_envs = len(track.times_s), goal.shape[1]
        first_cause, when = np.zeros(num_envs, np.int8), np.full(num_envs, pieces - 1)
        offset = track.position[1:] - goal
        offset *= offset
        reached = offset[:, 0] + offset[:, 1] < self._success_square
        outside = np.abs(track.position[1:])
        outside = np.maximum(outside[:, 0], outside[:, 1]) > self._inside
        for events, cause in ((reached, GOAL), (outside, LEFT_ARENA)):
            if np.count_nonzero(events):
                _note(first_cause, when, events.any(axis=0), events.argmax(axis=0), cause)
        touched = track.contact != NONE
        if np.count_nonzero(touched):
            _note(first_cause, when, touched, track.when, track.contact)
        return first_cause, when


def _note(
    found: NDArray[np.int8],
    when: NDArray[np.int64],
    happened: NDArray[np.bool_],
    first: NDArray[np.int64],
    cause: NDArray[np.int8] | int,
) -> None:
    """Note events (E,) that come not later than what is noted; later calls win a tie."""
    wins = happened & ((found == NONE) | (first <= when))
    found[wins], when[wins] = cause if isinstance(cause, int) else cause[wins], first[wins]


BRAKING_RADIUS_M = 6.0
BRAKING_SPEED_M_S = 4.0
BRAKING_FACTOR = 0.01875
"""Air Learning pays for flying slower than 4 m/s within 6 m of the goal; the factor is its time step in seconds."""


def _has_crashed(cause: NDArray[np.int8]) -> NDArray[np.bool_]:
    return (cause >= COLLISION) & (cause <= LEFT_ARENA)


def compute_reward(config: NavigationConfig, cause: NDArray[np.int8], progress: Floats) -> Floats:
    """r = p (d_before - d_now) + s, and g more at the goal, c more on collision and on leaving; (E,).

    By default p = 0.1 /m, s = -0.01, g = 5, c = -3.

    Args:
        config: the coefficients.
        cause: (E,) :class:`~airlearning_envs.EndCause`.
        progress: (E,) d_before - d_now, metres come nearer to the goal.
    """
    reward = np.float32(config.progress_reward_per_m) * progress
    reward += np.float32(config.step_reward)
    reward[cause == GOAL] += np.float32(config.goal_reward)
    reward[_has_crashed(cause)] += np.float32(config.collision_reward)
    return reward


def air_learning_reward(cause: NDArray[np.int8], progress: Floats, goal_distance: Floats, speed: Floats) -> Floats:
    """r = -1 + (d_before - d_now) + (4 - |v|) 0.01875 within 6 m; 1000 at the goal; -100 at any other end; (E,)."""
    near = goal_distance < BRAKING_RADIUS_M
    reward = progress - np.float32(1.0)
    reward[near] += np.float32(BRAKING_FACTOR) * (np.float32(BRAKING_SPEED_M_S) - speed[near])
    reward[cause == GOAL] = 1000.0
    reward[_has_crashed(cause) | (cause == TIME)] = -100.0
    return reward


_HOVER, _BY_SPEED, _BY_FORCE, _BY_BOTH = (np.float32(value) for value in (433.9, 1.526, 3.934, 0.968))


def power_w(velocity: Floats, acceleration: Floats) -> Floats:
    """Electric power in level flight in W, (E,), from velocity and acceleration (2, E).

    P = -1.526 |v| + 3.934 |a| + 0.968 |v| |a| + 433.9: the regression of Tseng et al. 2017 (arXiv:1703.10049) for a
    3DR Solo, which MAVBench and Air Learning use, without payload and wind.
    """
    speed, force = velocity * velocity, acceleration * acceleration
    speed, force = np.sqrt(speed[0] + speed[1]), np.sqrt(force[0] + force[1])
    return _HOVER - _BY_SPEED * speed + force * (_BY_FORCE + _BY_BOTH * speed)
