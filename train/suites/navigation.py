"""The navigation task: straight through the simulator's numpy core, on one arena or a mixture of arenas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import CONTROL_PERIOD_S, PRESETS, NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import Observe, as_it_is, blind_policy, depth_observation, fly
from quarl.airlearning_envs.rules import FALLBACK_ACTION, depth_bounds, depth_fields
from quarl.airlearning_envs.task import ACTION_NAMES, OBSERVATION_FIELDS, NavigationTask
from quarl.policy.spec import DiscreteHead, EnvironmentSpec
from quarl.train.suites.episodes import Decide, EpisodeResults, Floats, StepResult
from quarl.train.suites.errors import TaskError
from quarl.train.suites.names import NAVIGATION, NAVIGATION_DEPTH, NAVIGATION_DEPTH_ID, NAVIGATION_ID
from quarl.train.suites.task import Evaluation, Task
from quarl.train.suites.zones import Zones, read_zones, zones_of

JUDGED_ON = ("hard", "shipped")  # both bars of the case study
JUDGING_ENVIRONMENTS = 128


class NavigationEpisodes:
    """A batch of drones, the first of the shares (config, number of drones) in one arena, the next in another.

    An episode id is flown in one arena only, that of the drone it falls to. With a curriculum (``progression``) its
    goal is of the zones that were open when it began.
    """

    def __init__(self, shares: list[tuple[NavigationConfig, int]], seed: int, progression: Zones | None = None) -> None:
        self.environments = sum(count for _, count in shares)
        self.progression, self._seed = progression, seed
        ends = np.cumsum([count for _, count in shares])
        self._parts = [
            (slice(int(end) - count, int(end)), NavigationTask(config, count))
            for (config, count), end in zip(shares, ends, strict=True)
        ]
        self._zones = [zones_of(config, inclusive=True) for config, _ in shares if progression is not None]
        self.replayable = all(task.simulator.capabilities.replayable for _, task in self._parts)
        self._observation = np.zeros((self.environments, sum(part.size for part in OBSERVATION_FIELDS)), np.float32)
        self._begun = False

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Floats:
        """Begin the masked episodes; see ``train.suites.episodes.Episodes``."""
        observation = self._observation.copy()
        for index, (part, core) in enumerate(self._parts):
            if not self._begun:
                if self.progression is not None:
                    core.use(self._zones[index][0])
                observation[part] = core.reset(episode_ids[part], self._seed)
            elif self.progression is None:
                _begin(core, observation[part], mask[part], episode_ids[part])
            else:
                zone = self.progression.of(episode_ids[part])
                for zone_index in np.unique(zone[mask[part]]):  # several only where episodes are flown again
                    core.use(self._zones[index][zone_index])
                    _begin(core, observation[part], mask[part] & (zone == zone_index), episode_ids[part])
        self._begun = True
        self._observation = observation
        return observation

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Return one step; see ``train.suites.episodes.Episodes``."""
        steps = [core.step(actions[part]) for part, core in self._parts]
        observation, reward, terminated, truncated = (
            np.concatenate([getattr(step, name) for step in steps])
            for name in ("observation", "reward", "terminated", "truncated")
        )
        self._observation = observation
        success = np.concatenate([step.info["success"] for step in steps])
        return StepResult(observation, reward, terminated, truncated, success)


class DepthEpisodes(NavigationEpisodes):
    """:class:`NavigationEpisodes` seen through a depth camera, (environments, 7064).

    Attributes:
        teacher_observation: (environments, 32), the same states with ranges in place of the picture.
    """

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Floats:
        """Reset as the base does; the observations have pictures."""
        return self._with_pictures(super().reset(mask, episode_ids))

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Step as the base does; the observations have pictures."""
        result = super().step(actions)
        return replace(result, observation=self._with_pictures(result.observation))

    def _with_pictures(self, observation: Floats) -> Floats:
        self.teacher_observation = observation
        return np.concatenate([depth_observation(core, observation[part]) for part, core in self._parts])


OPTIONS = {"arenas", "settings", "judged", "curriculum"}


def _begin(core: NavigationTask, observation: Floats, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> None:
    """Begin the masked episodes and put their observations into their rows."""
    if mask.any():
        observation[mask] = core.reset_where(mask, episode_ids)


def navigation_task(preset: str | None, options: Mapping[str, Any], depth: bool = False) -> Task:
    """Return the navigation task.

    Args:
        preset: arena to train on; None for the mixture of the options, or hard.
        options: ``arenas``, share of the drones in each preset, e.g. ``{"hard": 0.75, "shipped": 0.25}``;
            ``settings``, changes to the task's settings in training; ``judged``, those in judging, which is done on the
            presets as they are by default; and ``curriculum``, see :func:`train.suites.zones.read_zones`.
        depth: a depth picture takes the ranges' place; a teacher still sees the ranges.

    Raises:
        TaskError: a preset or a setting is not known.
    """
    if unknown := set(options) - OPTIONS:
        raise TaskError(f"navigation has no options {sorted(unknown)}; its options are {', '.join(sorted(OPTIONS))}.")
    arenas: dict[str, float] = {preset: 1.0} if preset else dict(options.get("arenas", {"hard": 1.0}))
    changes = dict(options.get("settings", {}))
    configs: dict[str, NavigationConfig] = {}
    for name in arenas:
        try:
            configs[name] = arena(name).with_settings(changes)
        except SettingsError as error:
            raise TaskError(f"navigation: {error}") from error
    main = max(arenas, key=lambda name: arenas[name])
    curriculum = options.get("curriculum")
    read_zones(configs, curriculum)  # what is wrong with it is said now

    def make(environments: int, seed: int) -> NavigationEpisodes:
        shares = [(configs[name], count) for name, count in portions(arenas, environments)]
        kind = DepthEpisodes if depth else NavigationEpisodes
        return kind(shares, seed, read_zones(configs, curriculum))

    return Task(
        name=NAVIGATION_DEPTH if depth else NAVIGATION,
        environment=EnvironmentSpec(NAVIGATION_DEPTH_ID if depth else NAVIGATION_ID, {"preset": main, **changes}),
        observation=depth_fields(configs[main]) if depth else OBSERVATION_FIELDS,
        head=DiscreteHead(ACTION_NAMES),
        control_period_s=CONTROL_PERIOD_S,
        fallback=(float(FALLBACK_ACTION),),
        presets=(main, *(name for name in JUDGED_ON if name != main)),
        make=make,
        evaluate=partial(
            evaluate, changes=dict(options.get("judged", {})), observe=depth_observation if depth else as_it_is
        ),
        baseline=blind_policy,
        teacher_observation=OBSERVATION_FIELDS if depth else None,
        bounds=depth_bounds(configs[main]) if depth else None,
    )


def arena(preset: str) -> NavigationConfig:
    """Return the arena of a preset.

    Raises:
        TaskError: the preset is not known.
    """
    if preset not in PRESETS:
        raise TaskError(f"--preset must be one of {', '.join(PRESETS)}, got {preset}.")
    return PRESETS[preset]


def portions(arenas: Mapping[str, float], environments: int) -> list[tuple[str, int]]:
    """Whole numbers of drones in proportion to the shares, at least one each; the largest share takes the rest."""
    total = sum(arenas.values())
    counts = {name: max(1, int(environments * share / total)) for name, share in arenas.items()}
    largest = max(arenas, key=lambda name: arenas[name])
    counts[largest] += environments - sum(counts.values())
    if counts[largest] < 1:
        raise TaskError(f"environments must be at least one per arena ({', '.join(arenas)}), got {environments}.")
    return list(counts.items())


def evaluate(
    decide: Decide,
    episodes: int,
    seed: int,
    preset: str,
    changes: Mapping[str, Any] | None = None,
    observe: Observe = as_it_is,
) -> Evaluation:
    """Fly greedy episodes in an arena as it is, but for changes to its settings; ``observe`` is what is decided on.

    Raises:
        TaskError: the preset is not known.
    """
    config = arena(preset).with_settings(changes or {})
    flights = fly(config, decide, episodes, seed, batch=JUDGING_ENVIRONMENTS, observe=observe)
    details: dict[str, float] = {f"ended_{cause}": float(count) for cause, count in flights.causes().items()}
    if flights.success.any():
        won = flights.success
        details["flight_time_s"] = float(flights.flight_time_s[won].mean())
        details["distance_m"] = float(flights.distance_m[won].mean())
        details["energy_j"] = float(flights.energy_j[won].mean())
    results = EpisodeResults(flights.episode_return.astype(np.float64), flights.steps, flights.success)
    return replace(Evaluation.of(results, preset), details=details)
