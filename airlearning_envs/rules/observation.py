"""What the 32 floats of an observation are: fields, bounds, sensor noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.episode import rng
from quarl.airlearning_envs.episode.rng import Stream, Words
from quarl.airlearning_envs.rules.actions import COMMAND_HIGH, COMMAND_LOW
from quarl.policy.spec import ObservationField

Floats = NDArray[np.float32]

VECTOR_SIZE = 8
"""Observation elements that follow the ranges."""

IMAGE_SIDE = 84
"""Pixels of each side of the depth picture."""


def ray_angles(config: NavigationConfig) -> NDArray[np.float64]:
    """(R,) angles of the range rays from straight ahead in radians, positive to the right, ascending."""
    half = np.radians(config.field_of_view_deg / 2.0)
    return np.linspace(-half, half, config.ray_count)


def observation_fields(config: NavigationConfig) -> tuple[ObservationField, ...]:
    """The observation's fields in order."""
    return (
        ObservationField("ranges", (config.ray_count,), "m"),
        ObservationField("goal_bearing", (1,), "rad"),
        ObservationField("goal_distance", (1,), "m"),
        ObservationField("velocity", (2,), "m/s"),
        ObservationField("yaw_rate", (1,), "rad/s"),
        ObservationField("last_command", (3,), "m/s, m/s, rad/s"),
    )


def depth_fields(config: NavigationConfig) -> tuple[ObservationField, ...]:
    """The fields in order where a depth picture takes the ranges' place."""
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
    """Whether the sensors err at all."""
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
    """The 8 elements of the observation (..., 32) that are no ranges."""
    return observation[..., -VECTOR_SIZE:]
