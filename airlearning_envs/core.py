"""NavigationCore: the navigation task for a batch of drones, with numpy only. Ships to the device.

Observation: 32 raw float32 in physical units (a policy carries its own normaliser).

| index | field | unit | meaning |
| --- | --- | --- | --- |
| 0-23 | ranges | m | range rays over the front 90 degrees, leftmost (-45) first; 20 where nothing is nearer |
| 24 | goal_bearing | rad | direction to the goal from straight ahead in [-pi, pi], positive to the right |
| 25 | goal_distance | m | distance to the goal in the plane |
| 26-27 | velocity | m/s | forward and rightward, in the body frame |
| 28 | yaw_rate | rad/s | positive to the right |
| 29-31 | last_command | m/s, m/s, rad/s | the last command given: forward, rightward, yaw rate (zero at the start) |

Actions: integers 0 to 24 (:data:`~airlearning_envs.actions.ACTION_NAMES`), or commands (E, 3) float32 (forward m/s,
rightward m/s, yaw rate rad/s), which are clipped to :data:`~airlearning_envs.actions.COMMAND_LOW` and ``COMMAND_HIGH``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlearning_envs import causes, dynamics, rng
from airlearning_envs.actions import ACTION_COMMANDS, ACTION_NAMES, COMMAND_HIGH, COMMAND_LOW
from airlearning_envs.causes import EndCause
from airlearning_envs.config import CONTROL_PERIOD_S, PRESETS, NavigationConfig, RewardStyle
from airlearning_envs.contact import Contact
from airlearning_envs.errors import SettingsError
from airlearning_envs.latency import CommandQueue
from airlearning_envs.layout import LayoutPool, Layouts, Slots
from airlearning_envs.observation import OBSERVATION_FIELDS, VECTOR_SIZE, add_noise, is_noisy
from airlearning_envs.rewards import air_learning_reward, shaped_reward
from airlearning_envs.rng import Stream
from airlearning_envs.sensing import RangeSensor, ray_angles
from airlearning_envs.wind import mean_wind, next_wind

__all__ = [
    "ACTION_NAMES",
    "CONTROL_PERIOD_S",
    "OBSERVATION_FIELDS",
    "PRESETS",
    "EndCause",
    "NavigationConfig",
    "NavigationCore",
    "Step",
]

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """What a step returns; arrays over the E drones, all of them copies.

    Attributes:
        observation: (E, 32) float32; of the final state where the episode ended.
        reward: (E,) float32.
        terminated: (E,) bool: goal, collision or left the arena; under Air Learning's reward also the step limit,
            for which it takes 100 away as for a crash.
        truncated: (E,) bool: the step limit; under Air Learning's reward never.
        info: arrays of the episode so far: ``success`` bool, ``cause`` int8 (:class:`EndCause`),
            ``flight_time_s``, ``distance_m``, ``energy_j``, ``goal_distance_m`` float32, ``episode_id`` int64.
    """

    observation: Floats
    reward: Floats
    terminated: Bools
    truncated: Bools
    info: dict[str, NDArray[Any]]


class NavigationCore:
    """E independent drones that step together; a single environment is the batch of one.

    Everything random is a function of (seed, episode id, step), so an episode is the same in any batch. There is no
    automatic reset: a drone whose episode has ended stays where it is until :meth:`reset_where` gives it a new
    episode; until then its reward is 0 and its flags stay as they were.

    Args:
        config: the task.
        num_envs: batch size E.
    """

    def __init__(self, config: NavigationConfig, num_envs: int) -> None:
        if num_envs < 1:
            raise SettingsError(f"num_envs is {num_envs}; it must be at least 1.")
        self.config, self.num_envs = config, num_envs
        self.slots = Slots.of(config)
        self.flight = dynamics.Flight.hovering(config, num_envs)
        self._integrator = dynamics.Integrator(self.flight, config.substep_s)
        self._sensor = RangeSensor(config, ray_angles(config))
        self._contact = Contact(config)
        self._queue = None
        if config.latency is not None:
            longest = config.latency.longest_s
            self._queue = CommandQueue(num_envs, longest, config.control_period_s, config.substep_s)
        n, m = self.slots.total, self.slots.movers
        self.goal = np.zeros((2, num_envs), np.float32)
        self.centre = np.zeros((2, num_envs, n), np.float32)
        self.size = np.zeros((num_envs, n), np.float32)
        self.mover_velocity = np.zeros((2, num_envs, m), np.float32)
        self._mover_limit = np.zeros((num_envs, m), np.float32)
        self.command = np.zeros((3, num_envs), np.float32)
        self.episode_id = np.full(num_envs, -1, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.cause = np.zeros(num_envs, np.int8)
        self.goal_distance = np.zeros(num_envs, np.float32)
        self.flight_time = np.zeros(num_envs, np.float32)
        self.distance = np.zeros(num_envs, np.float32)
        self.energy = np.zeros(num_envs, np.float32)
        self._gap = np.zeros((num_envs, n), np.float32)
        self._track = np.zeros((config.substeps + 1, 2, num_envs), np.float32)
        self._keys = np.zeros(num_envs, np.uint64)
        self._seed = 0
        self._pool: LayoutPool | None = None

    @property
    def seed(self) -> int:
        """The seed given to the last :meth:`reset`."""
        return self._seed

    def reset(self, episode_ids: NDArray[np.integer] | None = None, seed: int = 0) -> Floats:
        """Begin an episode in every drone and return the observations (E, 32).

        Args:
            episode_ids: (E,) non-negative; 0 to E - 1 by default.
            seed: episodes of different seeds are independent.
        """
        ids = np.arange(self.num_envs) if episode_ids is None else episode_ids
        if self._pool is None or seed != self._seed:
            self._pool, self._seed = LayoutPool(self.config, seed), seed
        return self.reset_where(np.ones(self.num_envs, bool), ids)

    def use(self, config: NavigationConfig) -> None:
        """Draw all further episodes from another task with the same observation, obstacle slots and dynamics.

        Meant for a curriculum, which changes ``goal_distance_m``; episodes under way go on as they are.
        """
        names = [field.name for field in dataclasses.fields(config) if field.name != "goal_distance_m"]
        other = [name for name in names if getattr(config, name) != getattr(self.config, name)]
        if other:
            raise SettingsError(f"use() may change goal_distance_m only; received another {', '.join(other)}.")
        if config != self.config:
            self.config = config
            if self._pool is not None:
                self._pool = LayoutPool(config, self._seed)

    def observe(self) -> Floats:
        """Observations (E, 32) of what the drones see now."""
        return self._observe(None)

    def reset_where(self, mask: Bools, episode_ids: NDArray[np.integer]) -> Floats:
        """Begin new episodes where ``mask`` (E,) is set.

        Args:
            mask: which drones.
            episode_ids: (E,), read where the mask is set; or one for each drone that is reset.

        Returns:
            Observations (k, 32) of the k drones that were reset, in order.
        """
        rows = np.flatnonzero(mask)
        ids = np.asarray(episode_ids, dtype=np.int64)
        if ids.shape != rows.shape:
            if ids.shape != (self.num_envs,):
                raise SettingsError(
                    f"episode_ids have the shape {ids.shape}; allowed is ({self.num_envs},) or ({len(rows)},)."
                )
            ids = ids[rows]
        if self._pool is None:
            raise SettingsError("reset_where was called before reset; call reset first.")
        if len(ids) and ids.min() < 0:
            raise SettingsError(f"episode ids must not be negative; received {ids.min()}.")
        if not len(rows):
            return np.zeros((0, self.config.ray_count + VECTOR_SIZE), np.float32)
        self._place(rows, ids, self._pool.take(ids))
        return self._observe(rows)

    def _place(self, rows: Ids, ids: Ids, layouts: Layouts) -> None:
        """Put new episodes into some rows."""
        flight, config = self.flight, self.config
        self.episode_id[rows] = ids
        self._keys[rows] = rng.episode_keys(self._seed, ids)
        flight.position[:, rows], flight.yaw[rows] = layouts.start, layouts.yaw
        for state in (flight.velocity, flight.acceleration, flight.wind, self.command):
            state[:, rows] = 0.0
        flight.yaw_rate[rows] = 0.0
        self.goal[:, rows] = layouts.goal
        self.centre[:, rows], self.size[rows] = layouts.centre, layouts.size
        self.mover_velocity[:, rows], self._mover_limit[rows] = layouts.velocity, layouts.limit
        for tally in (self.steps, self.cause, self.flight_time, self.distance, self.energy):
            tally[rows] = 0
        offset = layouts.goal - layouts.start
        self.goal_distance[rows] = np.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
        if self._queue is not None:
            self._queue.clear(rows)
        if config.gain_spread:
            flight.gains[:, rows] = dynamics.drawn_gains(config, self._keys[rows])
            self._integrator.refresh()
        if config.wind_m_s or config.gust_m_s:
            flight.wind[:, rows] = mean_wind(config, self._keys[rows])

    def step(self, actions: NDArray[Any]) -> Step:
        """Hold a command for one control period.

        Args:
            actions: (E,) integers 0 to 24, or (E, 3) float commands.

        Raises:
            SettingsError: the actions' shape or values are not allowed.
        """
        if self._pool is None:
            raise SettingsError("step was called before reset; call reset first.")
        commands = self._commands(actions)
        ended = self.cause != causes.NONE
        if ended.any():
            return self._step_some(commands, ended)
        return self._step_all(commands)

    def _commands(self, actions: NDArray[Any]) -> Floats:
        """(3, E) float32 commands from actions of either kind."""
        actions = np.asarray(actions)
        if np.issubdtype(actions.dtype, np.integer) and actions.shape == (self.num_envs,):
            if actions.min() < 0 or actions.max() >= len(ACTION_NAMES):
                wrong = actions[(actions < 0) | (actions >= len(ACTION_NAMES))][0]
                raise SettingsError(f"action {wrong} is not known; allowed are 0 to {len(ACTION_NAMES) - 1}.")
            return ACTION_COMMANDS[actions].T
        if np.issubdtype(actions.dtype, np.floating) and actions.shape == (self.num_envs, 3):
            if not np.isfinite(actions).all():
                raise SettingsError("a continuous action is not finite.")
            return np.clip(actions, COMMAND_LOW, COMMAND_HIGH).T.astype(np.float32)
        raise SettingsError(
            f"actions are {actions.dtype}{list(actions.shape)}; allowed are integers of shape ({self.num_envs},) "
            f"or floats of shape ({self.num_envs}, 3)."
        )

    def _step_some(self, commands: Floats, ended: Bools) -> Step:
        """A step in which the drones whose episode has ended stay as they are."""
        flight = self.flight
        columns: tuple[Floats, ...] = (
            flight.position, flight.velocity, flight.acceleration, flight.wind, self.command, self.centre,
            self.mover_velocity,
        )  # fmt: skip
        rows: tuple[NDArray[Any], ...] = (
            flight.yaw, flight.yaw_rate, self.steps, self.cause, self.goal_distance, self.flight_time,
            self.distance, self.energy, self._gap,
        )  # fmt: skip
        kept_columns = [array[:, ended] for array in columns]
        kept_rows = [array[ended] for array in rows]
        observation = self._observe(np.flatnonzero(ended))
        step = self._step_all(commands)
        for array, kept in zip(columns, kept_columns, strict=True):
            array[:, ended] = kept
        for array, kept in zip(rows, kept_rows, strict=True):
            array[ended] = kept
        step.observation[ended] = observation
        step.reward[ended] = 0.0
        step.terminated[:], step.truncated[:] = self._ends()
        step.info.update(self.info())
        return step

    def _step_all(self, commands: Floats) -> Step:
        before = self.goal_distance.copy()
        self._advance(commands)
        observation = self._observe(None)
        return self._finish(observation, before)

    def step_or_reset(self, actions: NDArray[Any], mask: Bools, episode_ids: NDArray[np.integer]) -> Step:
        """As :meth:`step`, but the drones of ``mask`` (E,) begin a new episode instead (their action is ignored).

        That is Gymnasium's next-step autoreset, at the price of one observation of the whole batch.

        Args:
            actions: as in :meth:`step`.
            mask: the drones to reset; every drone whose episode has ended has to be among them.
            episode_ids: one for each drone that is reset.
        """
        rows = np.flatnonzero(mask)
        if self._pool is None or ((self.cause != causes.NONE) & ~mask).any():
            raise SettingsError("step_or_reset needs a reset before it, and every ended episode in its mask.")
        if not len(rows):
            return self.step(actions)
        before = self.goal_distance.copy()
        self._advance(self._commands(actions))
        ids = np.asarray(episode_ids, dtype=np.int64)
        self._place(rows, ids, self._pool.take(ids))
        step = self._finish(self._observe(None), before)
        step.reward[rows] = 0.0
        return step

    def _advance(self, commands: Floats) -> None:
        """One control period of physics: fly, move the movers, find what ends the flight, keep the tallies."""
        config, flight = self.config, self.flight
        self.command[:] = commands
        if config.gust_m_s:
            flight.wind[:] = next_wind(config, self._keys, self.steps, flight.wind)
        segments = self._fly()
        cause, when = self._contact.first(
            self._track, segments, self.goal, self.centre, self.size, self._gap, self.mover_velocity, self._mover_limit
        )
        elapsed = self._contact.elapsed(when)
        ended = np.flatnonzero(cause)
        if len(ended):  # the flight ends where the event happened, not at the end of the period
            flight.position[:, ended] = self._track[when[ended] + 1, :, ended].T
            segments[np.arange(config.substeps)[:, None] > when] = 0.0
        self._contact.advance_movers(self.centre, self.mover_velocity, self._mover_limit, elapsed)
        self.steps += 1
        self.flight_time += elapsed
        self.distance += segments.sum(axis=0)
        self.energy += dynamics.power_w(flight.velocity, flight.acceleration) * elapsed
        cause[(cause == causes.NONE) & (self.steps >= config.max_steps)] = causes.TIME
        self.cause[:] = cause

    def _finish(self, observation: Floats, before: Floats) -> Step:
        """The step's result; ``before`` (E,) is the goal's distance before it."""
        return Step(observation, self._reward(before), *self._ends(), self.info())

    def _ends(self) -> tuple[Bools, Bools]:
        """Terminated and truncated (E,): a learner looks beyond an end that is not paid for, and not beyond one that
        is."""
        over = self.cause != causes.NONE
        if self.config.reward_style is RewardStyle.AIR_LEARNING:
            return over, np.zeros_like(over)
        truncated = self.cause == causes.TIME
        return over & ~truncated, truncated

    def _fly(self) -> Floats:
        """Integrate one control period; fills the track and returns the segments' lengths (substeps, E)."""
        track, queue = self._track, self._queue
        track[0] = self.flight.position
        if queue is not None:
            assert self.config.latency is not None
            counters = self.steps
            uniform = rng.uniforms(self._keys, Stream.LATENCY, 2 * counters)
            normal = rng.normals(self._keys, Stream.LATENCY, 2 * counters + 1)
            queue.push(self.command, self.config.latency.draw(uniform, normal))
        for k in range(self.config.substeps):
            self._integrator.substep(self.command if queue is None else queue.in_force(k))
            track[k + 1] = self.flight.position
        segments = track[1:] - track[:-1]
        segments *= segments
        return np.sqrt(segments[:, 0] + segments[:, 1])

    def _reward(self, before: Floats) -> Floats:
        progress = before - self.goal_distance
        if self.config.reward_style is RewardStyle.SHAPED:
            return shaped_reward(self.config, self.cause, progress)
        vx, vy = self.flight.velocity
        return air_learning_reward(self.cause, progress, self.goal_distance, np.sqrt(vx * vx + vy * vy))

    def _observe(self, rows: Ids | None) -> Floats:
        """Observations of some rows (all where None); also refreshes their goal distance and obstacle gaps."""
        flight, config = self.flight, self.config
        at: Any = slice(None) if rows is None else rows
        position, velocity, command = flight.position, flight.velocity, self.command
        yaw: NDArray[Any] = flight.yaw
        yaw_rate, goal, centre, size = flight.yaw_rate, self.goal, self.centre, self.size
        if rows is not None:
            position, velocity, command, goal = position[:, rows], velocity[:, rows], command[:, rows], goal[:, rows]
            yaw, yaw_rate, centre, size = yaw[rows], yaw_rate[rows], centre[:, rows], size[rows]
        cosine64, sine64 = np.cos(yaw), np.sin(yaw)
        cosine, sine = cosine64.astype(np.float32), sine64.astype(np.float32)
        ranges, gap = self._sensor.scan(position, cosine, sine, centre, size)
        offset = goal - position
        distance = np.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
        bearing = np.arctan2(cosine64 * offset[1] - sine64 * offset[0], cosine64 * offset[0] + sine64 * offset[1])
        self.goal_distance[at], self._gap[at] = distance, gap
        count = config.ray_count
        observation = np.empty((len(yaw), count + VECTOR_SIZE), np.float32)
        observation[:, :count] = ranges
        observation[:, count] = bearing
        observation[:, count + 1] = distance
        observation[:, count + 2] = cosine * velocity[0] + sine * velocity[1]
        observation[:, count + 3] = cosine * velocity[1] - sine * velocity[0]
        observation[:, count + 4] = yaw_rate
        observation[:, count + 5 :] = command.T
        if is_noisy(config):
            add_noise(config, observation, self._keys[at], self.steps[at])
        return observation

    def info(self) -> dict[str, NDArray[Any]]:
        """The info of :class:`Step`, as it stands now."""
        return {
            "success": self.cause == causes.GOAL,
            "cause": self.cause.copy(),
            "flight_time_s": self.flight_time.copy(),
            "distance_m": self.distance.copy(),
            "energy_j": self.energy.copy(),
            "goal_distance_m": self.goal_distance.copy(),
            "episode_id": self.episode_id.copy(),
        }
