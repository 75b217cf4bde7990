"""A curriculum over the goal's distance, as in Air Learning: four zones, near ones first."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig

ZONES = 4
WINDOW_EPISODES = 1000
ADVANCE_AT = 0.30
"""Air Learning goes to the next zone when 30 % of the last 1000 episodes succeeded."""


def zone_bounds(config: NavigationConfig) -> tuple[tuple[float, float], ...]:
    """Return the goal-distance range of each zone in metres: the config's range cut into four equal parts."""
    low, high = config.goal_distance_m
    edges = [low + (high - low) * k / ZONES for k in range(ZONES + 1)]
    return tuple(itertools.pairwise(edges))


def zone_config(config: NavigationConfig, zone: int, inclusive: bool = False) -> NavigationConfig:
    """Return the task with goals of one zone (0 to 3) only, as in Air Learning's test of 100 episodes a zone.

    Args:
        config: the whole task.
        zone: which.
        inclusive: goals of all nearer zones too, as in training.
    """
    bounds = zone_bounds(config)
    low = bounds[0][0] if inclusive else bounds[zone][0]
    return dataclasses.replace(config, goal_distance_m=(low, bounds[zone][1]))


class Curriculum:
    """Which zone training is in; starts in zone 0 and never goes back.

    Args:
        config: the whole task.
        window: number of latest episodes that count.
        advance_at: share of successes in a full window that opens the next zone.
    """

    def __init__(self, config: NavigationConfig, window: int = WINDOW_EPISODES, advance_at: float = ADVANCE_AT) -> None:
        self._whole, self._advance_at = config, advance_at
        self._latest: deque[bool] = deque(maxlen=window)
        self.zone = 0

    @property
    def config(self) -> NavigationConfig:
        """The task as it is to be flown now: goals of this zone and the nearer ones."""
        return zone_config(self._whole, self.zone, inclusive=True)

    def record(self, successes: Iterable[bool]) -> bool:
        """Count finished episodes; True when the next zone has just opened (the window starts again)."""
        self._latest.extend(bool(success) for success in successes)
        full = len(self._latest) == self._latest.maxlen
        if self.zone == ZONES - 1 or not full or sum(self._latest) < self._advance_at * len(self._latest):
            return False
        self.zone += 1
        self._latest.clear()
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the zone, and which of the latest episodes succeeded, the oldest first."""
        return {"zone": np.array([self.zone], np.int64), "latest": np.array(self._latest, np.bool_)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self.zone = int(state["zone"][0])
        self._latest.clear()
        self._latest.extend(state["latest"].tolist())
