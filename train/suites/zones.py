"""The curriculum's zones in training: near goals first, the next zone when enough episodes succeed.

Zones are those of ``airlearning_envs.curriculum``, counted from 1 wherever they are shown. Every arena of a
mixture has its own four, by its own goal distances; which of them are open is one number for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.curriculum import ADVANCE_AT, WINDOW_EPISODES, ZONES, Curriculum, zone_config
from quarl.train.suites.errors import TaskError

DEFAULTS = {"window_episodes": WINDOW_EPISODES, "advance_at": ADVANCE_AT}
"""Air Learning's defaults, as the options of a task name them."""


class Zones:
    """The zones of one batch of training episodes; a ``train.suites.episodes.Progression``.

    Episode numbers only grow and zones never close, so three numbers tell the zone of every episode: those at which the
    second, third and fourth opened.

    Args:
        arenas: the whole task of each arena.
        window, advance_at: see :class:`~airlearning_envs.curriculum.Curriculum`.
    """

    def __init__(self, arenas: Mapping[str, NavigationConfig], window: int, advance_at: float) -> None:
        self._arenas = dict(arenas)
        self._curriculum = Curriculum(next(iter(self._arenas.values())), window, advance_at)
        self._first_ids = np.zeros(1, np.int64)  # number of each open zone's first episode

    def of(self, episode_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the zone, 0 to 3, that was the last open one when each of the episodes began."""
        return np.searchsorted(self._first_ids, episode_ids, side="right") - 1

    def record_episodes(self, successes: NDArray[np.bool_], next_id: int) -> str:
        """Count episodes that ended; says so when this opens a zone, which is that of the episodes from ``next_id``."""
        if not self._curriculum.record(successes):
            return ""
        self._first_ids = np.append(self._first_ids, np.int64(next_id))
        zone = self._curriculum.zone
        ranges = [
            f"on {name} {low:g} to {high:g} m"
            for name, config in self._arenas.items()
            for low, high in [zones_of(config, inclusive=True)[zone].goal_distance_m]
        ]
        return f"zone {zone + 1} of {ZONES} opened: goals {', '.join(ranges)} away"

    def figures(self) -> dict[str, float]:
        """Return the last open zone, 1 to 4."""
        return {"zone": self._curriculum.zone + 1.0}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the curriculum's zone and window, and the number of each open zone's first episode."""
        return {**self._curriculum.state(), "first_ids": self._first_ids.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._first_ids = state["first_ids"].copy()
        self._curriculum.restore(state)


def zones_of(config: NavigationConfig, inclusive: bool = False) -> tuple[NavigationConfig, ...]:
    """Return the four tasks of goals in one zone each; ``inclusive``: and in all nearer ones."""
    return tuple(zone_config(config, zone, inclusive) for zone in range(ZONES))


def read_zones(arenas: Mapping[str, NavigationConfig], option: Any) -> Zones | None:
    """Return the zones that a task's option ``curriculum`` asks for; None without one.

    Args:
        arenas: the whole task of each arena.
        option: None, or a mapping of any of :data:`DEFAULTS`.

    Raises:
        TaskError: says what was received and what is allowed.
    """
    if option is None:
        return None
    allowed = '{"window_episodes": 1 or more, "advance_at": above 0, at most 1}'
    if not isinstance(option, Mapping) or set(option) - set(DEFAULTS):
        raise TaskError(f"navigation: curriculum must be {allowed}, got {option!r}; for example {DEFAULTS}.")
    chosen: dict[str, Any] = {**DEFAULTS, **option}
    window, advance_at = chosen["window_episodes"], chosen["advance_at"]
    if type(window) is not int or window < 1 or type(advance_at) not in (int, float) or not 0.0 < advance_at <= 1.0:
        raise TaskError(f"navigation: curriculum must be {allowed}, got {option!r}; for example {DEFAULTS}.")
    return Zones(arenas, window, advance_at)
