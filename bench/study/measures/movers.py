"""What a flight's policy could know of the mover that it hit, and a task that tells it more than any sensor would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airlearning_envs.episode.layout import Slots
from airlearning_envs.rules.causes import EndCause
from airlearning_envs.rules.observation import ray_angles
from airlearning_envs.simulators.embedded.simulator import EmbeddedSimulator
from airlearning_envs.task import OBSERVATION_FIELDS, NavigationTask
from policy.spec import ObservationField
from train.suites.episodes import StepResult
from train.suites.navigation import NavigationEpisodes, evaluate, navigation_task
from train.suites.task import Task

if TYPE_CHECKING:
    from airlearning_envs.flights import FlightResults

Floats = NDArray[np.float32]
TOLD = 8
"""Obstacles that are told."""
REACH_M = 40.0
"""Beyond the arena: where there are fewer obstacles, the rest stands there."""
SPACING = np.radians(2.0)
"""Half the angle between two rays: an edge between two is seen by the next."""
NEAR_M = 0.6
"""A ray that reads so nearly an obstacle's distance met it."""
RECENT = 4
"""Looks, one second."""
NEVER = 10_000
TOLD_FIELDS = (
    ObservationField("obstacles_ahead", (TOLD,), "m"),
    ObservationField("obstacles_right", (TOLD,), "m"),
    ObservationField("velocities_ahead", (TOLD,), "m/s"),
    ObservationField("velocities_right", (TOLD,), "m/s"),
    ObservationField("radii", (TOLD,), "m"),
)


def surroundings(core: NavigationTask) -> tuple[Floats, Floats, Floats, Slots]:
    """Every obstacle from the drones: place (2, E, N) ahead and to the right, m; velocity likewise; size (E, N).

    Places of unused columns are not finite, or far away.
    """
    simulator = core.simulator
    assert isinstance(simulator, EmbeddedSimulator)
    obstacles, (cosine, sine) = simulator.obstacles, simulator.heading

    def turned(vector: Floats) -> Floats:
        ahead = cosine[:, None] * vector[0] + sine[:, None] * vector[1]
        return np.stack([ahead, cosine[:, None] * vector[1] - sine[:, None] * vector[0]])

    velocity = np.zeros_like(obstacles.centre)
    velocity[:, :, : obstacles.slots.movers] = obstacles.velocity
    offset = obstacles.centre - simulator.motion.position[:, :, None]
    return turned(offset), turned(velocity), obstacles.size, obstacles.slots


def told(core: NavigationTask, observation: Floats) -> Floats:
    """The observation (E, 32) with the true places and velocities of the nearest obstacles all around, (E, 72)."""
    place, velocity, size, _ = surroundings(core)
    nearest = np.argsort(np.nan_to_num(np.hypot(*place) - size, nan=np.inf), axis=1)[:, :TOLD]
    rows = np.arange(len(nearest))[:, None]
    known = [*place[:, rows, nearest], *velocity[:, rows, nearest], size[rows, nearest]]
    parts = [np.clip(np.nan_to_num(each, nan=REACH_M), -REACH_M, REACH_M) for each in known]
    return np.concatenate([observation, *parts], axis=1).astype(np.float32)


class ToldEpisodes(NavigationEpisodes):
    """:class:`NavigationEpisodes` whose drones are told where everything is and flies to."""

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Floats:
        """Reset as the base does, and tell."""
        return self._with_truth(super().reset(mask, episode_ids))

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Step as the base does, and tell."""
        result = super().step(actions)
        return replace(result, observation=self._with_truth(result.observation))

    def _with_truth(self, observation: Floats) -> Floats:
        return np.concatenate([told(core, observation[part]) for part, core in self._parts])


def told_task() -> Task:
    """The navigation task on hard, told: what no memory can beat."""
    from airlearning_envs.config import PRESETS

    task = navigation_task("hard", {})

    def flown(decide: Any, episodes: int, seed: int, preset: str) -> Any:
        return evaluate(decide, episodes, seed, preset, observe=told)

    return replace(
        task,
        name="navigation-told",
        observation=OBSERVATION_FIELDS + TOLD_FIELDS,
        make=lambda count, seed: ToldEpisodes([(PRESETS["hard"], count)], seed),
        evaluate=flown,
        baseline=None,
        presets=("hard",),
    )


@dataclass
class Sightings:
    """How long before its last decision each flight had last seen the mover that was nearest then.

    Pass :meth:`look` to ``fly`` as what observes.

    Args:
        episodes: number of flights.
    """

    episodes: int

    def __post_init__(self) -> None:
        self._ages: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.looks_ago: NDArray[np.int64] = np.full(self.episodes, NEVER)

    def look(self, core: NavigationTask, observation: Floats) -> Floats:
        """Note what is in view; returns the observation unchanged."""
        place, _, size, slots = surroundings(core)
        place, size = place[:, :, : slots.movers], size[:, : slots.movers]
        distance = np.hypot(*place)
        bearing, rays = np.arctan2(place[1], place[0]), ray_angles(core.config)
        half = np.arcsin(np.clip(size / np.maximum(distance, size + 1e-3), 0.0, 1.0)) + SPACING
        towards = np.abs(bearing[:, :, None] - rays) <= half[:, :, None]
        ranges = observation[:, None, : len(rays)]
        met = np.abs(ranges - (distance - size)[:, :, None]) < NEAR_M
        if self._ages.shape != distance.shape:
            self._ages = np.full(distance.shape, NEVER)
        self._ages += 1
        self._ages[core.steps == 0] = NEVER
        self._ages[(towards & met).any(axis=2)] = 0
        nearest, counted = np.nan_to_num(distance - size, nan=np.inf).argmin(axis=1), core.episode_id < self.episodes
        found = self._ages[np.arange(len(nearest)), nearest]
        self.looks_ago[core.episode_id[counted]] = found[counted]
        return observation

    def measures(self, flown: FlightResults) -> Mapping[str, float]:
        """Flights by how they ended, and those that hit a mover by when they had seen it last."""
        hit = flown.cause == EndCause.COLLISION_MOVER
        ages = self.looks_ago[hit]
        causes = flown.causes()
        return {
            "standing": causes["collision"],
            "movers": causes["collision_mover"],
            "otherwise": causes["left_arena"] + causes["time"],
            "in_view": int((ages == 0).sum()),
            "recent": int(((ages > 0) & (ages <= RECENT)).sum()),
            "unseen": int((ages > RECENT).sum()),
            "flight_time_s": float(flown.flight_time_s[flown.success].mean()),
        }
