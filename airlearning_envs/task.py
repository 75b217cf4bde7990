"""NavigationTask: the navigation task for a batch of drones, in any simulator. Ships to the device.

Observation: 32 raw float32 in physical units (a policy carries its own normaliser).

| index | field | unit | meaning |
| --- | --- | --- | --- |
| 0-23 | ranges | m | range rays over the front 90 degrees, leftmost (-45) first; 20 where nothing is nearer |
| 24 | goal_bearing | rad | direction to the goal from straight ahead in [-pi, pi], positive to the right |
| 25 | goal_distance | m | distance to the goal in the plane |
| 26-27 | velocity | m/s | forward and rightward, in the body frame |
| 28 | yaw_rate | rad/s | positive to the right |
| 29-31 | last_command | m/s, m/s, rad/s | the last command given: forward, rightward, yaw rate (zero at the start) |

Actions: integers 0 to 24 (:data:`~airlearning_envs.rules.ACTION_NAMES`), or commands (E, 3) float32 (forward
m/s, rightward m/s, yaw rate rad/s), which are clipped to :data:`~airlearning_envs.rules.COMMAND_LOW` and
``COMMAND_HIGH``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs import rng, rules
from quarl.airlearning_envs.config import CONTROL_PERIOD_S, PRESETS, NavigationConfig, RewardStyle
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.latency import CommandQueue, DrawnFor
from quarl.airlearning_envs.layout import LayoutPool, Layouts, mean_wind, next_wind
from quarl.airlearning_envs.rng import Stream
from quarl.airlearning_envs.rules import (
    ACTION_COMMANDS,
    ACTION_NAMES,
    COMMAND_HIGH,
    COMMAND_LOW,
    OBSERVATION_FIELDS,
    VECTOR_SIZE,
    EndCause,
    Ends,
    add_noise,
    air_learning_reward,
    compute_reward,
    is_noisy,
    power_w,
    ray_angles,
)
from quarl.airlearning_envs.simulators.embedded.simulator import EmbeddedSimulator
from quarl.airlearning_envs.simulators.simulator import Bools, Call, Floats, Simulator
from quarl.airlearning_envs.simulators.simulator import Rows as Ids

__all__ = [
    "ACTION_NAMES",
    "CONTROL_PERIOD_S",
    "OBSERVATION_FIELDS",
    "PRESETS",
    "EndCause",
    "NavigationConfig",
    "NavigationTask",
    "Step",
]


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


class NavigationTask:
    """E independent drones that step together; a single environment is the batch of one.

    Everything random is a function of (seed, episode id, step), so an episode is the same in any batch. There is no
    automatic reset: a drone whose episode has ended stays where it is until :meth:`reset_where` gives it a new
    episode; until then its reward is 0 and its flags stay as they were.

    Args:
        config: the task.
        num_envs: batch size E.
        simulator: where it is flown; the embedded one by default.

    Attributes:
        simulator: its ``motion`` and ``obstacles`` are how things are now.
        goal: (2, E) m.
        command: (3, E) given last: forward m/s, rightward m/s, yaw rate rad/s.
        episode_id, steps: (E,) int64.
        cause: (E,) int8, :class:`EndCause`.
        goal_distance, distance: (E,) m; to the goal, and flown.
        flight_time: (E,) s.
        energy: (E,) J.
    """

    def __init__(self, config: NavigationConfig, num_envs: int, simulator: Simulator | None = None) -> None:
        if num_envs < 1:
            raise SettingsError(f"num_envs is {num_envs}; it must be at least 1.")
        self.config, self.num_envs = config, num_envs
        self.simulator = EmbeddedSimulator(config, num_envs) if simulator is None else simulator
        can = self.simulator.capabilities
        if can.batch is not None and num_envs > can.batch:
            raise SettingsError(f"num_envs is {num_envs}; {type(self.simulator).__name__} flies at most {can.batch}.")
        self._windy = bool(config.wind_m_s or config.gust_m_s)
        if self._windy and not can.wind:
            raise SettingsError(f"no wind blows in {type(self.simulator).__name__}; set wind_m_s and gust_m_s to 0.")
        self._angles = ray_angles(config)
        self._ends_of = Ends(config)
        self._queue = None
        if config.latency is not None:
            self._queue = CommandQueue(num_envs, config.latency.longest_s, config.control_period_s)
        self._wind = np.zeros((2, num_envs), np.float32)
        self.goal = np.zeros((2, num_envs), np.float32)
        self.command = np.zeros((3, num_envs), np.float32)
        self.episode_id = np.full(num_envs, -1, np.int64)
        self.steps = np.zeros(num_envs, np.int64)
        self.cause = np.zeros(num_envs, np.int8)
        self.goal_distance = np.zeros(num_envs, np.float32)
        self.flight_time = np.zeros(num_envs, np.float32)
        self.distance = np.zeros(num_envs, np.float32)
        self.energy = np.zeros(num_envs, np.float32)
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
        self.simulator.begin(rows, layouts)
        self.episode_id[rows] = ids
        self._keys[rows] = rng.episode_keys(self._seed, ids)
        self.command[:, rows] = 0.0
        self.goal[:, rows] = layouts.goal
        for tally in (self.steps, self.cause, self.flight_time, self.distance, self.energy):
            tally[rows] = 0
        offset = layouts.goal - layouts.start
        self.goal_distance[rows] = np.sqrt(offset[0] * offset[0] + offset[1] * offset[1])
        if self._queue is not None:
            self._queue.clear(rows)
        if self._windy:
            self._wind[:, rows] = mean_wind(self.config, self._keys[rows])
            self.simulator.blow(self._wind)

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
        ended = self.cause != rules.NONE
        if np.count_nonzero(ended):
            return self._step_some(commands, ended)
        return self._step_all(commands)

    def _commands(self, actions: NDArray[Any]) -> Floats:
        """(3, E) float32 commands from actions of either kind."""
        actions = np.asarray(actions)
        if actions.dtype.kind in "iu" and actions.shape == (self.num_envs,):
            if actions.min() < 0 or actions.max() >= len(ACTION_NAMES):
                wrong = actions[(actions < 0) | (actions >= len(ACTION_NAMES))][0]
                raise SettingsError(f"action {wrong} is not known; allowed are 0 to {len(ACTION_NAMES) - 1}.")
            return ACTION_COMMANDS[actions].T
        if actions.dtype.kind == "f" and actions.shape == (self.num_envs, 3):
            if not np.isfinite(actions).all():
                raise SettingsError("a continuous action is not finite.")
            return np.clip(actions, COMMAND_LOW, COMMAND_HIGH).T.astype(np.float32)
        raise SettingsError(
            f"actions are {actions.dtype}{list(actions.shape)}; allowed are integers of shape ({self.num_envs},) "
            f"or floats of shape ({self.num_envs}, 3)."
        )

    def _step_some(self, commands: Floats, ended: Bools) -> Step:
        """Return a step in which the drones whose episode has ended stay as they are."""
        arrays: tuple[NDArray[Any], ...] = (
            self._wind, self.command, self.steps, self.cause, self.goal_distance, self.flight_time, self.distance,
            self.energy,
        )  # fmt: skip
        saved = [array[..., ended] for array in arrays]
        observation = self._observe(np.flatnonzero(ended))
        step = self._step_all(commands, ended)
        for array, before in zip(arrays, saved, strict=True):
            array[..., ended] = before
        step.observation[ended] = observation
        step.reward[ended] = 0.0
        step.terminated[:], step.truncated[:] = self._ends()
        step.info.update(self.info())
        return step

    def _step_all(self, commands: Floats, held: Bools | None = None) -> Step:
        before = self.goal_distance.copy()
        self._advance(commands, held)
        observation = self._observe(None)
        return self._finish(observation, before)

    def step_or_reset(self, actions: NDArray[Any], mask: Bools, episode_ids: NDArray[np.integer]) -> Step:
        """Step as :meth:`step` does, but begin a new episode for the drones of ``mask`` (E,): their action is ignored.

        That is Gymnasium's next-step autoreset, at the price of one observation of the whole batch.

        Args:
            actions: as in :meth:`step`.
            mask: the drones to reset; every drone whose episode has ended has to be among them.
            episode_ids: one for each drone that is reset.
        """
        rows = np.flatnonzero(mask)
        if self._pool is None or ((self.cause != rules.NONE) & ~mask).any():
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

    def _advance(self, commands: Floats, held: Bools | None = None) -> None:
        """One control period: fly, find what ends the flight, keep the tallies. Held drones stay as they are."""
        config, simulator = self.config, self.simulator
        self.command[:] = commands
        if config.gust_m_s:
            self._wind[:] = next_wind(config, self._keys, self.steps, self._wind)
            simulator.blow(self._wind)
        track = simulator.fly(self._calls(), held)
        cause, when = self._ends_of.first(track, self.goal)
        elapsed = track.times_s[when]
        lengths = track.lengths
        (ended,) = (cause if held is None else np.where(held, rules.NONE, cause)).nonzero()
        if len(ended):  # the flight ends where the event happened, not at the end of the period
            simulator.halt(ended, when[ended])
            lengths *= np.arange(len(lengths))[:, None] <= when
        motion = simulator.motion
        self.steps += 1
        self.flight_time += elapsed
        self.distance += lengths.sum(axis=0)
        self.energy += power_w(motion.velocity, motion.acceleration) * elapsed
        late = self.steps >= config.max_steps
        if np.count_nonzero(late):
            cause[late & (cause == rules.NONE)] = rules.TIME
        self.cause[:] = cause

    def _calls(self) -> list[Call]:
        """Return what the simulator is called with in this period: the command at once, or those that arrive late."""
        if self._queue is None:
            return [Call(self.command)]
        latency = self.config.latency
        assert latency is not None
        counter = 2 * self.steps if latency.drawn_for is DrawnFor.COMMAND else 0
        uniform = rng.uniforms(self._keys, Stream.LATENCY, counter)
        normal = rng.normals(self._keys, Stream.LATENCY, counter + 1)
        self._queue.push(self.command, latency.draw(uniform, normal))
        return [Call(command, at_s) for command, at_s in self._queue.arriving()]

    def _finish(self, observation: Floats, before: Floats) -> Step:
        """Return the step's result; ``before`` (E,) is the goal's distance before it."""
        return Step(observation, self._reward(before), *self._ends(), self.info())

    def _ends(self) -> tuple[Bools, Bools]:
        """Terminated and truncated (E,): a learner looks beyond an end that is not paid for, and not beyond one that
        is."""
        over = self.cause != rules.NONE
        if self.config.reward_style is RewardStyle.AIR_LEARNING:
            return over, np.zeros_like(over)
        truncated = self.cause == rules.TIME
        return over & ~truncated, truncated

    def _reward(self, before: Floats) -> Floats:
        progress = before - self.goal_distance
        if self.config.reward_style is RewardStyle.SHAPED:
            return compute_reward(self.config, self.cause, progress)
        vx, vy = self.simulator.motion.velocity
        return air_learning_reward(self.cause, progress, self.goal_distance, np.sqrt(vx * vx + vy * vy))

    def _observe(self, rows: Ids | None) -> Floats:
        """Observations of some rows (all where None); also refreshes their goal distance."""
        motion, config = self.simulator.motion, self.config
        at: Any = slice(None) if rows is None else rows
        position, velocity, command = motion.position[:, at], motion.velocity[:, at], self.command[:, at]
        cosine, sine = motion.cosine[at], motion.sine[at]
        ranges = self.simulator.ranges(self._angles, config.max_range_m, rows)
        offset = self.goal[:, at] - position
        square = offset * offset
        distance = np.sqrt(square[0] + square[1])
        right, ahead = cosine * offset[1] - sine * offset[0], cosine * offset[0] + sine * offset[1]
        # In float64, so that a vector library's last bit is of no account.
        bearing = np.arctan2(right.astype(np.float64), ahead.astype(np.float64))
        self.goal_distance[at] = distance
        count = config.ray_count
        observation = np.empty((len(cosine), count + VECTOR_SIZE), np.float32)
        observation[:, :count] = ranges
        observation[:, count] = bearing
        observation[:, count + 1] = distance
        observation[:, count + 2] = cosine * velocity[0] + sine * velocity[1]
        observation[:, count + 3] = cosine * velocity[1] - sine * velocity[0]
        observation[:, count + 4] = motion.yaw_rate[at]
        observation[:, count + 5 :] = command.T
        if is_noisy(config):
            add_noise(config, observation, self._keys[at], self.steps[at])
        return observation

    def info(self) -> dict[str, NDArray[Any]]:
        """Return the info of :class:`Step`, as it stands now."""
        return {
            "success": self.cause == rules.GOAL,
            "cause": self.cause.copy(),
            "flight_time_s": self.flight_time.copy(),
            "distance_m": self.distance.copy(),
            "energy_j": self.energy.copy(),
            "goal_distance_m": self.goal_distance.copy(),
            "episode_id": self.episode_id.copy(),
        }
