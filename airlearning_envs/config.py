"""NavigationConfig: every constant and option of the task, with its unit and where it comes from; the presets."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.latency import CommandLatency

CONTROL_PERIOD_S = 0.25
"""A command is held this long, in seconds."""

DYNAMICS = 2
"""Counted up when drones of the same settings fly otherwise than before: what they reached then is not of this task."""


class RewardStyle(Enum):
    """Which reward is paid."""

    SHAPED = "shaped"
    AIR_LEARNING = "air-learning"


def _within(low: float, high: float, default: Any) -> Any:
    """Return a setting with its default, whose number or numbers lie from ``low`` to ``high``."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True)
class NavigationConfig:
    """One navigation task. All lengths in metres, times in seconds, angles in radians unless the name says otherwise.

    The dynamics are those of AirSim's SimpleFlight; the actions, the success radius, the arenas and the obstacle counts
    are Air Learning's. What those leave open (obstacle sizes, goal distances, clearances) is chosen so that flying
    blindly to the goal succeeds in about 73 % of shipped's episodes and 35 % of hard's, as in an earlier trial of the
    task; almost all that is left to a trained policy are movers that come from outside the field of view.

    Attributes:
        arena_m: side of the square arena.
        arena_height_m: its height; obstacles reach from floor to ceiling.
        static_obstacles: fewest and most standing obstacles, alternately cylinders and square boxes.
        moving_obstacles: fewest and most moving cylinders.
        spacing_m: least distance between the centres of two standing obstacles.
        obstacle_radius_m: range of a cylinder's radius and of a box's half side.
        mover_radius_m: range of a mover's radius.
        mover_speed_m_s: range of a mover's speed; it flies straight, passes obstacles, bounces off walls.
        goal_distance_m: range of the distance from start to goal.
        wall_margin_m: start and goal keep this distance from the walls.
        start_clearance_m: least gap between the start and a standing obstacle's surface.
        mover_clearance_m: likewise for a mover.
        goal_clearance_m: least gap between the goal and a standing obstacle's surface.
        body_radius_m: radius of the drone.
        success_radius_m: the goal is reached at this distance in the plane.
        max_steps: the episode is cut after this many decisions.
        control_period_s: a command is held this long.
        substep_s: longest integration step; a control period is cut into equal ones.
        ray_count: number of range rays, evenly spread over the field of view, first one on the left.
        field_of_view_deg: angle between the first ray and the last.
        max_range_m: a ray that meets nothing nearer reads this.
        altitude_m: height above the floor; the higher, the more sluggish (simulators/embedded/dynamics.py).
        altitude_spread_m: in each episode the altitude is drawn from altitude_m +- this.
        velocity_gain_s_per_m: share of the greatest tilt for each m/s that the velocity is wrong.
        tilt_gain_per_s: rate of the tilt for each radian that it is wrong.
        drag_per_m: quadratic drag.
        yaw_time_constant_s: lag of the yaw rate behind its command.
        command_delay_s: from a call to the moment at which the flight controller follows it.
        gain_spread: in each episode each of those five is multiplied by a factor drawn from 1 +- this.
        wind_m_s: largest mean wind; speed and direction are drawn for each episode.
        gust_m_s: standard deviation of the gusts along each axis.
        gust_time_constant_s: correlation time of the gusts.
        range_noise_m: standard deviation of a ray's error.
        range_dropout: probability that a ray sees nothing (reads max_range_m).
        motion_noise: standard deviation of the errors of the observed velocity (m/s) and yaw rate (rad/s).
        latency: distribution of the command latency; None is no latency.
        reward_style: SHAPED, or AIR_LEARNING's original one.
        goal_reward: paid at the goal (shaped).
        collision_reward: paid on collision and on leaving the arena (shaped).
        progress_reward_per_m: paid for each metre come nearer to the goal (shaped).
        step_reward: paid for each step (shaped).
    """

    arena_m: float = _within(8.0, 200.0, 30.0)
    arena_height_m: float = _within(1.0, 100.0, 10.0)
    static_obstacles: tuple[int, int] = _within(0, 200, (10, 19))
    moving_obstacles: tuple[int, int] = _within(0, 200, (6, 9))
    spacing_m: float = _within(0.0, 50.0, 4.0)
    obstacle_radius_m: tuple[float, float] = _within(0.05, 5.0, (0.9, 1.6))
    mover_radius_m: tuple[float, float] = _within(0.05, 3.0, (0.5, 0.8))
    mover_speed_m_s: tuple[float, float] = _within(0.0, 5.0, (0.5, 2.0))
    goal_distance_m: tuple[float, float] = _within(0.0, 300.0, (6.0, 25.0))
    wall_margin_m: float = _within(0.5, 20.0, 2.0)
    start_clearance_m: float = _within(0.5, 20.0, 1.5)
    mover_clearance_m: float = _within(0.5, 20.0, 3.0)
    goal_clearance_m: float = _within(0.5, 20.0, 0.8)
    body_radius_m: float = _within(0.05, 1.0, 0.3)
    success_radius_m: float = _within(0.1, 20.0, 3.0)
    max_steps: int = _within(1, 1_000_000, 200)
    control_period_s: float = _within(0.01, 2.0, CONTROL_PERIOD_S)
    substep_s: float = _within(0.001, 0.125, 0.125)
    ray_count: int = _within(2, 1024, 24)
    field_of_view_deg: float = _within(1.0, 120.0, 90.0)
    max_range_m: float = _within(1.0, 200.0, 20.0)
    altitude_m: float = _within(0.5, 50.0, 4.0)
    altitude_spread_m: float = _within(0.0, 20.0, 0.0)
    velocity_gain_s_per_m: float = _within(0.01, 2.0, 0.2)
    tilt_gain_per_s: float = _within(0.5, 50.0, 6.25)
    drag_per_m: float = _within(0.0, 1.0, 0.0066)
    yaw_time_constant_s: float = _within(0.01, 2.0, 0.26)
    command_delay_s: float = _within(0.0, 0.2, 0.02)
    gain_spread: float = _within(0.0, 0.9, 0.0)
    wind_m_s: float = _within(0.0, 15.0, 0.0)
    gust_m_s: float = _within(0.0, 10.0, 0.0)
    gust_time_constant_s: float = _within(0.05, 60.0, 2.0)
    range_noise_m: float = _within(0.0, 10.0, 0.0)
    range_dropout: float = _within(0.0, 1.0, 0.0)
    motion_noise: float = _within(0.0, 5.0, 0.0)
    latency: CommandLatency | None = None
    reward_style: RewardStyle = RewardStyle.SHAPED
    goal_reward: float = _within(-1e6, 1e6, 5.0)
    collision_reward: float = _within(-1e6, 1e6, -3.0)
    progress_reward_per_m: float = _within(-1e6, 1e6, 0.1)
    step_reward: float = _within(-1e6, 1e6, -0.01)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if "range" not in field.metadata:
                continue
            value, (low, high) = getattr(self, field.name), field.metadata["range"]
            parts = value if isinstance(value, tuple) else (value,)
            if not all(isinstance(part, (int, float)) and low <= part <= high for part in parts):
                raise SettingsError(
                    f"{field.name} is {value!r}; allowed is {low:g} to {high:g}.",
                    code="setting_out_of_range",
                    name=field.name,
                    value=value,
                )
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and (len(value) != 2 or value[0] > value[1]):
                raise SettingsError(
                    f"{field.name} is {value!r}; it takes two numbers, the smaller one first.",
                    code="setting_not_a_range",
                    name=field.name,
                    value=value,
                )
        if not self.altitude_spread_m < self.altitude_m < self.arena_height_m - self.altitude_spread_m:
            raise SettingsError(
                f"altitude_m is {self.altitude_m:g} +- {self.altitude_spread_m:g}; allowed is more than 0 to less than "
                f"{self.arena_height_m:g} (arena_height_m).",
                code="altitude_outside_arena",
                altitude_m=self.altitude_m,
            )
        room = math.sqrt(2.0) * (self.arena_m - 2.0 * self.wall_margin_m)
        if self.goal_distance_m[1] > room or self.goal_distance_m[0] <= self.success_radius_m:
            raise SettingsError(
                f"goal_distance_m is {self.goal_distance_m}; in this arena allowed is more than "
                f"{self.success_radius_m:g} (success_radius_m) to {room:.1f}.",
                code="goal_outside_arena",
                goal_distance_m=self.goal_distance_m,
            )

    @property
    def substeps(self) -> int:
        """Integration steps in a control period."""
        return math.ceil(self.control_period_s / self.substep_s - 1e-9)

    @property
    def half_m(self) -> float:
        """Half the arena's side: the arena spans [-half, half] on both axes."""
        return self.arena_m / 2.0

    def with_settings(self, settings: Mapping[str, Any]) -> NavigationConfig:
        """Return this task with some settings changed, given as JSON values.

        Raises:
            SettingsError: names the setting that is unknown or out of bounds.
        """
        kinds = {field.name: type(field.default) for field in dataclasses.fields(NavigationConfig)}
        changes: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in kinds:
                raise SettingsError(
                    f"setting {name!r} is not known; allowed are preset, {', '.join(kinds)}.",
                    code="unknown_setting",
                    name=name,
                )
            changes[name] = _read(name, kinds[name], value)
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> NavigationConfig:
        """Return a task from JSON values: an optional ``preset`` (default hard) and any attributes to change in it."""
        rest = dict(settings)
        return preset(rest.pop("preset", "hard")).with_settings(rest)

    def to_settings(self) -> dict[str, Any]:
        """Return all attributes as JSON values; :meth:`from_settings` reads them back."""
        settings: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, CommandLatency):
                value = value.to_settings()
            elif isinstance(value, Enum):
                value = value.value
            elif isinstance(value, tuple):
                value = list(value)
            settings[field.name] = value
        return settings

    def digest(self) -> str:
        """12 hex digits that tell this task from any other: equal when episode k of a seed is the same episode, and is
        flown by the same dynamics.

        Of all settings but the command latency, which changes what becomes of an episode and not which it is. Numbers
        are taken as floats, so that 30 m are 30.0 m.
        """
        settings = {name: _as_floats(value) for name, value in self.to_settings().items() if name != "latency"}
        settings["dynamics"] = DYNAMICS
        text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_floats(part) for part in value]
    return float(value) if isinstance(value, (int, float)) else value


def _read(name: str, kind: type, value: Any) -> Any:
    """Return one setting from its JSON value."""
    if name == "latency":
        return CommandLatency.from_settings(value)
    if isinstance(value, kind):
        return value
    try:
        if kind is RewardStyle:
            return RewardStyle(value)
        if kind is tuple:
            if not isinstance(value, (list, tuple)):  # "19" would read as [1, 9]
                raise TypeError
            return tuple(_whole(v) if name.endswith("obstacles") else float(v) for v in value)
        return _whole(value) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = {RewardStyle: " or ".join(s.value for s in RewardStyle), tuple: "[low, high]"}.get(kind, kind.__name__)
        raise SettingsError(
            f"{name} is {value!r}; it takes {wanted}.", code="wrong_setting_type", name=name, value=value
        ) from error


def _whole(value: Any) -> int:
    if float(value) != int(value):
        raise ValueError
    return int(value)


PRESETS: dict[str, NavigationConfig] = {
    "easy": NavigationConfig(
        arena_m=50.0,
        arena_height_m=20.0,
        static_obstacles=(0, 0),
        moving_obstacles=(0, 0),
        goal_distance_m=(8.0, 40.0),
    ),
    "medium": NavigationConfig(
        arena_m=60.0,
        arena_height_m=20.0,
        static_obstacles=(0, 0),
        moving_obstacles=(0, 0),
        goal_distance_m=(8.0, 48.0),
    ),
    "shipped": NavigationConfig(
        arena_m=35.0,
        arena_height_m=5.0,
        static_obstacles=(7, 7),
        moving_obstacles=(0, 0),
        spacing_m=2.0,
        goal_distance_m=(10.0, 23.0),
    ),
    "hard": NavigationConfig(),
}
"""Air Learning's arenas by name."""


def preset(name: str) -> NavigationConfig:
    """Return the task with that name."""
    if name not in PRESETS:
        raise SettingsError(
            f"preset {name!r} is not known; allowed are {', '.join(PRESETS)}.", code="unknown_preset", name=name
        )
    return PRESETS[name]
