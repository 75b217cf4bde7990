"""Flying many episodes with a policy and counting what came of them. Ships to the device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs import rng
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.rules import (
    ACTION_COMMANDS,
    IMAGE_SIDE,
    EndCause,
    depth_fields,
    observation_fields,
    vector_part,
)
from quarl.airlearning_envs.simulators.simulator import Simulator, SpoiledFlightError
from quarl.airlearning_envs.task import NavigationTask
from quarl.policy import pilot
from quarl.policy.spec import ObservationField

Floats = NDArray[np.float32]
Decide = Callable[[Floats], NDArray[Any]]
Observe = Callable[[NavigationTask, Floats], Floats]
"""The task and its observations (E, 32) as they are now -> what is decided on, (E, size)."""

Z_95 = 1.959964
"""The normal distribution's two-sided 95 % quantile."""


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a proportion (1927); honest near 0 and 1, where the plain one is not.

    (p + z^2/2n -+ z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n)
    """
    if trials == 0:
        return 0.0, 1.0
    p, zz = successes / trials, z * z / trials
    middle, spread = p + zz / 2.0, z * math.sqrt(p * (1.0 - p) / trials + zz / (4.0 * trials))
    low, high = max(0.0, (middle - spread) / (1.0 + zz)), min(1.0, (middle + spread) / (1.0 + zz))
    return min(low, p), max(high, p)  # at 0 and at 1 the end is the rate itself, which rounding may miss


@dataclass(frozen=True)
class FlightResults:
    """Outcome of episodes 0 to n - 1 of one seed; every array is (n,) by episode id.

    Attributes:
        success: bool.
        cause: int8, :class:`~airlearning_envs.rules.EndCause`.
        steps: int64, decisions taken.
        flight_time_s, distance_m, energy_j: float32.
        episode_return: float32, sum of the rewards.
        spoiled: why flights did not count that were begun again, one text for each.
    """

    success: NDArray[np.bool_]
    cause: NDArray[np.int8]
    steps: NDArray[np.int64]
    flight_time_s: Floats
    distance_m: Floats
    energy_j: Floats
    episode_return: Floats
    spoiled: tuple[str, ...] = ()

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.success)

    def success_rate(self) -> float:
        """Share of the episodes that reached the goal."""
        return float(self.success.mean())

    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate (Wilson)."""
        return wilson_interval(int(self.success.sum()), self.episodes)

    def first(self, episodes: int) -> FlightResults:
        """Return the results of episodes 0 to ``episodes`` - 1."""
        arrays: dict[str, Any] = {k: v[:episodes] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return dataclasses.replace(self, **arrays)

    def causes(self) -> dict[str, int]:
        """Return how many episodes ended for each cause, by the cause's name in lower case."""
        return {c.name.lower(): int((self.cause == c).sum()) for c in EndCause if c is not EndCause.NONE}


class CutShortError(SettingsError):
    """The simulator was lost, or somebody stopped it, after some episodes: they are in :attr:`finished`."""

    def __init__(self, finished: FlightResults, reason: BaseException) -> None:
        super().__init__(str(reason) or "interrupted")
        self.finished, self.reason = finished, reason


def as_it_is(core: NavigationTask, observation: Floats) -> Floats:
    """Return the 32 floats of the observation unchanged."""
    return observation


def depth_observation(core: NavigationTask, observation: Floats) -> Floats:
    """Return a depth picture, row by row, and the 8 floats that are no ranges behind it, (E, 7064); see
    ``depth_fields``.

    Raises:
        SettingsError: the simulator has no camera.
    """
    pictures = core.simulator.depth(IMAGE_SIDE, IMAGE_SIDE, core.config.max_range_m)
    return np.concatenate([pictures.reshape(len(pictures), -1), vector_part(observation)], axis=1)


def select_observation(
    observation: Sequence[ObservationField], config: NavigationConfig
) -> tuple[tuple[ObservationField, ...], Observe]:
    """Fields and values that the task shows to a policy of an observation: depth where the observation begins with it,
    else ranges. Whether the fields are the policy's is for the caller to check."""
    if observation[0].name == "depth":
        return depth_fields(config), depth_observation
    return observation_fields(config), as_it_is


MOST_SPOILED = 5
"""This many flights in a row that do not count are the simulator's fault, not chance."""


def fly(
    config: NavigationConfig,
    decide: Decide,
    episodes: int,
    seed: int,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
    simulator: Simulator | None = None,
    watch: Callable[[NavigationTask], None] | None = None,
    observe: Observe = as_it_is,
) -> FlightResults:
    """Fly episodes 0 to ``episodes`` - 1 of ``seed``.

    The episodes, and with a deterministic policy their outcomes, do not depend on ``batch``; so two policies flown
    with one seed are paired by episode.

    Args:
        config: the task.
        decide: what ``observe`` gives, observations (E, 32) float32 by default -> actions (E,) int or (E, 3) float. It
            is told where episodes begin and end (:mod:`policy.pilot`).
        episodes: how many.
        seed: which.
        batch: how many fly at once, E.
        progress: called with (episodes done, episodes) now and then.
        simulator: where; the embedded one by default. It is of as many drones as fly at once, or of its own batch.
        watch: called with the task as it is at first and after every step.
        observe: what is decided on; :func:`select_observation` gives it for a policy.

    Raises:
        CutShortError: a simulator of one drone was lost, or Ctrl-C was typed, after at least one episode.
    """
    width = max(1, min(batch, episodes))
    if simulator is not None:
        width = min(width, simulator.capabilities.batch or width)
    core = NavigationTask(config, width, simulator)
    results = FlightResults(
        success=np.zeros(episodes, bool),
        cause=np.zeros(episodes, np.int8),
        steps=np.zeros(episodes, np.int64),
        flight_time_s=np.zeros(episodes, np.float32),
        distance_m=np.zeros(episodes, np.float32),
        energy_j=np.zeros(episodes, np.float32),
        episode_return=np.zeros(episodes, np.float32),
    )
    if width == 1 and simulator is not None:
        return _fly_one_by_one(core, decide, observe, seed, results, progress, watch)
    observation = core.reset(np.arange(width), seed)
    pilot.begin(decide, np.ones(width, bool))
    total_return, next_id = np.zeros(width, np.float32), width
    flying, done = np.ones(width, bool), 0
    while done < episodes:
        step = core.step(decide(observe(core, observation)))
        observation = step.observation
        total_return += step.reward
        ended = flying & (step.terminated | step.truncated)
        if not ended.any():
            continue
        _note(results, core, np.flatnonzero(ended), total_return)
        done += int(ended.sum())
        rows = np.flatnonzero(ended)
        again, idle = np.split(rows, [min(len(rows), episodes - next_id)])
        mask = np.zeros(width, bool)
        mask[again] = True
        observation[again] = core.reset_where(mask, np.arange(next_id, next_id + len(again)))
        total_return[again] = 0.0
        flying[idle] = False
        pilot.begin(decide, mask)
        pilot.end(decide, ~flying)
        next_id += len(again)
        if progress is not None:
            progress(done, episodes)
    return results


def _note(results: FlightResults, core: NavigationTask, rows: NDArray[np.int64], total_return: Floats) -> None:
    """Keep what came of the episodes that ended in some rows."""
    ids = core.episode_id[rows]
    results.success[ids], results.cause[ids] = core.cause[rows] == EndCause.GOAL, core.cause[rows]
    results.flight_time_s[ids], results.distance_m[ids] = core.flight_time[rows], core.distance[rows]
    results.energy_j[ids], results.steps[ids] = core.energy[rows], core.steps[rows]
    results.episode_return[ids] = total_return[rows]


def _fly_one_by_one(
    core: NavigationTask,
    decide: Decide,
    observe: Observe,
    seed: int,
    results: FlightResults,
    progress: Callable[[int, int], None] | None,
    watch: Callable[[NavigationTask], None] | None,
) -> FlightResults:
    """Return one drone in a simulator that may spoil a flight, which is begun again, or be lost, which keeps what is
    done."""
    spoiled: list[str] = []
    done = in_a_row = 0
    try:
        while done < results.episodes:
            try:
                total_return = _fly_whole(core, decide, observe, seed, done, watch)
            except SpoiledFlightError as error:
                spoiled.append(str(error))
                in_a_row += 1
                if in_a_row >= MOST_SPOILED:
                    raise SettingsError(f"{in_a_row} flights in a row do not count; the last one: {error}") from error
                continue
            _note(results, core, np.zeros(1, np.int64), total_return)
            done, in_a_row = done + 1, 0
            if progress is not None:
                progress(done, results.episodes)
    except (SettingsError, KeyboardInterrupt) as error:
        if not done:
            raise
        raise CutShortError(dataclasses.replace(results.first(done), spoiled=tuple(spoiled)), error) from error
    return dataclasses.replace(results, spoiled=tuple(spoiled))


def _fly_whole(
    core: NavigationTask,
    decide: Decide,
    observe: Observe,
    seed: int,
    episode: int,
    watch: Callable[[NavigationTask], None] | None,
) -> Floats:
    """Return an episode from its beginning to its end; (1,) the sum of its rewards."""
    observation, total_return = core.reset(np.array([episode]), seed), np.zeros(1, np.float32)
    pilot.begin(decide, np.ones(1, bool))
    if watch is not None:
        watch(core)
    while not core.cause[0]:
        step = core.step(decide(observe(core, observation)))
        observation = step.observation
        total_return += step.reward
        if watch is not None:
            watch(core)
    return total_return


_TURNS = np.arange(15, 25)
_TURN_RATES = ACTION_COMMANDS[15:25, 2]


def blind_policy(observation: Floats) -> NDArray[np.int64]:
    """Fly to the goal at 5 m/s as if there were nothing in between: the baseline of every table.

    Where the goal is more than 5 degrees off, the yaw action that turns by the nearest angle is taken (a rate w held
    for a period turns by w times the period in the end; what the current yaw rate will still turn is taken off).

    Args:
        observation: (E, 32).

    Returns:
        (E,) actions.
    """
    bearing, yaw_rate = observation[:, -8], observation[:, -4]
    left_to_turn = bearing - np.float32(0.26) * yaw_rate
    turns = np.abs(_TURN_RATES * np.float32(0.25) - left_to_turn[:, None]).argmin(axis=1)
    return np.where(np.abs(left_to_turn) > np.radians(5.0), _TURNS[turns], 0)


def random_policy(seed: int) -> Decide:
    """Uniformly random actions; each call draws the next ones."""
    key = rng.episode_keys(seed, np.zeros(1, np.int64))
    calls = 0

    def decide(observation: Floats) -> NDArray[np.int64]:
        nonlocal calls
        counters = calls * 65536 + np.arange(len(observation))
        calls += 1
        return rng.integers(key, rng.Stream.ACTION, counters, 0, len(ACTION_COMMANDS) - 1)

    return decide
