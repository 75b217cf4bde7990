"""Where an episode takes place: start, heading, goal, obstacles, movers and wind, for many episodes at once.

Every layout is a function of (config, seed, episode id) alone. Drawing one at a time is slow in numpy, so
:class:`LayoutPool` draws blocks of consecutive episodes ahead and hands them out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs import rng
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.rng import Stream, Words

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

FAR_AWAY_M = 1e6
"""Unused obstacle slots stand here, out of every ray's range."""

PASSAGE_M = 0.9
"""Least gap between a standing obstacle and the next one or a wall, wider than the drone (0.6 m): no part of the
arena is closed off, so every episode has a way from start to goal past all that stands."""

VARIATIONS = 6
"""What differs from one episode's drone to another's (:attr:`Layouts.variation`)."""

_ATTEMPTS = 4096  # candidates for each episode before the settings are called impossible
_BLOCK = 256  # episodes drawn at once


@dataclass(frozen=True)
class Slots:
    """Which obstacle stands in which column: movers first, then cylinders, then boxes.

    Attributes:
        movers: number of mover columns (the most the config allows).
        circles: number of mover and cylinder columns.
        total: number of columns, N.
    """

    movers: int
    circles: int
    total: int

    @classmethod
    def of(cls, config: NavigationConfig) -> Slots:
        """Return the columns that a config needs."""
        movers, standing = config.moving_obstacles[1], config.static_obstacles[1]
        return cls(movers, movers + (standing + 1) // 2, movers + standing)


@dataclass(frozen=True)
class Layouts:
    """Layouts of B episodes with N obstacle columns of which M are movers; metres, the arena's centre is the origin.

    Attributes:
        start, goal: (2, B).
        yaw: (B,) float64, radians.
        centre: (2, B, N).
        size: (B, N) radius of a cylinder, half side of a box.
        velocity: (2, B, M) of the movers in m/s.
        limit: (B, M) a mover's centre turns back at this distance from the arena's axes.
        variation: (V, B) in [-1, 1): by how much of their spread this episode's drone differs from the others in its
            constants (all rows but the last, in the simulator's order) and in its altitude (the last).
    """

    start: Floats
    goal: Floats
    yaw: NDArray[np.float64]
    centre: Floats
    size: Floats
    velocity: Floats
    limit: Floats
    variation: Floats

    def take(self, rows: Ids) -> Layouts:
        """Return the layouts of some of the episodes."""
        return Layouts(
            self.start[:, rows],
            self.goal[:, rows],
            self.yaw[rows],
            self.centre[:, rows],
            self.size[rows],
            self.velocity[:, rows],
            self.limit[rows],
            self.variation[:, rows],
        )


def build_layouts(config: NavigationConfig, seed: int, episode_ids: Ids) -> Layouts:
    """Draw the layouts of some episodes.

    Raises:
        SettingsError: the settings ask for more than fits into the arena.
    """
    keys = rng.episode_keys(seed, episode_ids)
    start, goal = _start_and_goal(config, keys)
    yaw = 2.0 * np.pi * (rng.uniforms(keys, Stream.HEADING, 0).astype(np.float64) - 0.5)
    standing, sizes = _standing(config, keys, start, goal)
    movers, mover_sizes, velocity = _movers(config, keys, start)
    # Standing obstacles are alternately cylinders and boxes, so that the columns of each kind are half as many.
    centre = np.concatenate([movers, standing[:, :, 0::2], standing[:, :, 1::2]], axis=2)
    size = np.concatenate([mover_sizes, sizes[:, 0::2], sizes[:, 1::2]], axis=1)
    active = movers[0] < FAR_AWAY_M / 2
    limit = np.where(active, np.float32(config.half_m) - mover_sizes, np.float32(2.0 * FAR_AWAY_M))
    variation = np.float32(2.0) * rng.uniforms(keys, Stream.GAINS, np.arange(VARIATIONS)[:, None]) - np.float32(1.0)
    return Layouts(start, goal, yaw, centre, size, velocity, limit, variation)


def _start_and_goal(config: NavigationConfig, keys: Words) -> tuple[Floats, Floats]:
    """Start uniform in the arena, goal in a uniform direction at a uniform distance; pairs outside are drawn again."""
    low, high = config.goal_distance_m
    distance = np.float32(low) + np.float32(high - low) * rng.uniforms(keys, Stream.GOAL_DISTANCE, 0)
    room = np.float32(config.half_m - config.wall_margin_m)
    start, goal = np.zeros((2, len(keys)), np.float32), np.zeros((2, len(keys)), np.float32)
    waiting = np.arange(len(keys))
    for attempt in range(_ATTEMPTS):
        draws = rng.uniforms(keys[waiting], Stream.START, np.arange(3)[:, None] + 3 * attempt)
        xy = room * (np.float32(2.0) * draws[:2] - np.float32(1.0))
        angle = 2.0 * np.pi * draws[2].astype(np.float64)
        target = xy + distance[waiting] * np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
        good = (np.abs(target) <= room).all(axis=0)
        start[:, waiting[good]], goal[:, waiting[good]] = xy[:, good], target[:, good]
        waiting = waiting[~good]
        if not len(waiting):
            return start, goal
    raise SettingsError(f"goal_distance_m {config.goal_distance_m} does not fit into the arena; make it shorter.")


def _standing(config: NavigationConfig, keys: Words, start: Floats, goal: Floats) -> tuple[Floats, Floats]:
    """Random sequential placing: the next uniform candidate that keeps all clearances is taken. (2, B, S), (B, S)."""
    fewest, most = config.static_obstacles
    episodes = len(keys)
    centre = np.full((2, episodes, most), FAR_AWAY_M, np.float32)
    low, high = config.obstacle_radius_m
    draws = rng.uniforms(keys[:, None], Stream.OBSTACLE_SIZE, np.arange(max(most, 1)))[:, :most]
    size = np.float32(low) + np.float32(high - low) * draws
    if not most:
        return centre, size
    count = rng.integers(keys, Stream.OBSTACLE_COUNT, 0, fewest, most)
    # Radius of the circle around each obstacle; a box reaches sqrt(2) half sides.
    bound = size * np.where(np.arange(most) % 2 == 1, np.float32(np.sqrt(2.0)), np.float32(1.0))
    placed = np.zeros(episodes, np.int64)
    waiting = np.flatnonzero(placed < count)
    for attempt in range(_ATTEMPTS):
        if not len(waiting):
            return centre, size
        slot = placed[waiting]
        radius = size[waiting, slot]
        reach = bound[waiting, slot]
        room = np.float32(config.half_m - PASSAGE_M) - radius
        draws = rng.uniforms(keys[waiting], Stream.OBSTACLE_PLACE, np.arange(2)[:, None] + 2 * attempt)
        xy = room * (np.float32(2.0) * draws - np.float32(1.0))
        good = _apart(xy, start[:, waiting], reach + np.float32(config.start_clearance_m))
        good &= _apart(xy, goal[:, waiting], reach + np.float32(config.goal_clearance_m))
        spacing = np.maximum(reach[:, None] + bound[waiting] + np.float32(PASSAGE_M), np.float32(config.spacing_m))
        good &= _apart(xy[:, :, None], centre[:, waiting], spacing).all(axis=1)
        chosen = waiting[good]
        centre[:, chosen, slot[good]] = xy[:, good]
        placed[chosen] += 1
        waiting = waiting[placed[waiting] < count[waiting]]
    raise SettingsError(
        f"{most} standing obstacles with spacing_m {config.spacing_m:g} do not fit into an arena of "
        f"{config.arena_m:g} m; lower static_obstacles or spacing_m."
    )


def _movers(config: NavigationConfig, keys: Words, start: Floats) -> tuple[Floats, Floats, Floats]:
    """Movers anywhere but near the start, with a uniform speed and direction. (2, B, M), (B, M), (2, B, M)."""
    fewest, most = config.moving_obstacles
    columns = np.arange(most)
    if not most:
        empty = np.zeros((2, len(keys), 0), np.float32)
        return empty, empty[0], empty
    draws = rng.uniforms(keys[:, None], Stream.OBSTACLE_SIZE, 1000 + columns)
    low, high = config.mover_radius_m
    size = np.float32(low) + np.float32(high - low) * draws
    low, high = config.mover_speed_m_s
    speed = np.float32(low) + np.float32(high - low) * rng.uniforms(keys[:, None], Stream.MOVER_VELOCITY, 2 * columns)
    angle = 2.0 * np.pi * rng.uniforms(keys[:, None], Stream.MOVER_VELOCITY, 2 * columns + 1).astype(np.float64)
    velocity = speed * np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    room = np.float32(config.half_m) - size
    clearance = size + np.float32(config.mover_clearance_m)
    centre = np.zeros((2, len(keys), most), np.float32)
    waiting = np.ones((len(keys), most), bool)
    for attempt in range(_ATTEMPTS):
        counters = (np.arange(2)[:, None, None] * most + columns) + 2 * most * attempt
        xy = room * (np.float32(2.0) * rng.uniforms(keys[:, None], Stream.MOVER_PLACE, counters) - np.float32(1.0))
        good = waiting & _apart(xy, start[:, :, None], clearance)
        centre[:, good] = xy[:, good]
        waiting &= ~good
        if not waiting.any():
            break
    else:
        raise SettingsError(f"mover_clearance_m {config.mover_clearance_m:g} leaves no room in the arena; lower it.")
    absent = columns >= rng.integers(keys, Stream.OBSTACLE_COUNT, 1, fewest, most)[:, None]
    centre[:, absent], velocity[:, absent] = FAR_AWAY_M, 0.0
    return centre, size, velocity


def _apart(a: Floats, b: Floats, distance: Floats | np.float32) -> NDArray[np.bool_]:
    """Return whether points (2, …) are at least ``distance`` apart."""
    gap = a - b
    return np.asarray(gap[0] * gap[0] + gap[1] * gap[1] >= distance * distance)


class LayoutPool:
    """Hands out layouts by episode id and keeps the last few blocks of consecutive episodes drawn."""

    def __init__(self, config: NavigationConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self._blocks: dict[int, Layouts] = {}

    def take(self, episode_ids: Ids) -> Layouts:
        """Layouts of the given episodes, in that order."""
        ids = np.asarray(episode_ids, dtype=np.int64)
        blocks = np.unique(ids // _BLOCK)
        if len(blocks) == 1:
            return self._block(int(blocks[0])).take(ids % _BLOCK)
        if len(blocks) * _BLOCK > 4 * len(ids):  # scattered ids: whole blocks would mostly be wasted
            return build_layouts(self._config, self._seed, ids)
        parts = [self._block(int(block)) for block in blocks]
        joined = Layouts(
            *(np.concatenate([getattr(p, n) for p in parts], axis=axis) for n, axis in _EPISODE_AXIS.items())
        )
        return joined.take(np.searchsorted(blocks, ids // _BLOCK) * _BLOCK + ids % _BLOCK)

    def _block(self, block: int) -> Layouts:
        if block not in self._blocks:
            while len(self._blocks) >= 4:
                self._blocks.pop(next(iter(self._blocks)))
            ids = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.int64)
            self._blocks[block] = build_layouts(self._config, self._seed, ids)
        return self._blocks[block]


_EPISODE_AXIS = {"start": 1, "goal": 1, "yaw": 0, "centre": 1, "size": 0, "velocity": 1, "limit": 0, "variation": 1}


def mean_wind(config: NavigationConfig, keys: Words) -> Floats:
    """Mean wind (2, E) in m/s of the episodes with these keys: speed uniform up to ``wind_m_s``, any direction."""
    draws = rng.uniforms(keys, Stream.WIND, np.arange(2)[:, None])
    angle = 2.0 * np.pi * draws[1].astype(np.float64)
    direction = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    return np.asarray(np.float32(config.wind_m_s) * draws[0] * direction)


def next_wind(config: NavigationConfig, keys: Words, steps: NDArray[np.int64], wind: Floats) -> Floats:
    """Wind (2, E) one control period later: an Ornstein-Uhlenbeck process around the mean m,

        w' = m + rho (w - m) + sigma sqrt(1 - rho^2) n,    rho = exp(-dt / T).

    Args:
        config: sigma is ``gust_m_s``, T ``gust_time_constant_s``.
        keys: (E,) of the episodes.
        steps: (E,) steps since each episode's start.
        wind: (2, E) now.
    """
    rho = math.exp(-config.control_period_s / config.gust_time_constant_s)
    mean = mean_wind(config, keys)
    noise = rng.normals(keys, Stream.GUST, 2 * steps + np.arange(2)[:, None])
    spread = np.float32(config.gust_m_s * math.sqrt(1.0 - rho * rho))
    return np.asarray(mean + np.float32(rho) * (wind - mean) + spread * noise)
