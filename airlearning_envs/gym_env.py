"""The navigation task as Gymnasium environments, single and vectorised.

:class:`NavigationEnv` is the task's specification. Importing this module registers the environments:

| id | actions | observation |
| --- | --- | --- |
| ``AirLearning/Navigation-v0`` | Discrete(25) | Box(32,) |
| ``AirLearning/NavigationContinuous-v0`` | Box(3,) | Box(32,) |
| ``AirLearning/NavigationDepth-v0`` | Discrete(25) | Dict(depth (84, 84), vector (8,)) |

``gymnasium.make`` gives the single environment, ``gymnasium.make_vec`` the native vector environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.curriculum import Curriculum
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.rules import (
    ACTION_NAMES,
    COMMAND_HIGH,
    COMMAND_LOW,
    IMAGE_SIDE,
    EndCause,
    observation_bounds,
    vector_part,
)
from quarl.airlearning_envs.simulators.opening import EMBEDDED, open_simulator
from quarl.airlearning_envs.task import NavigationTask

FRAMES_PER_SECOND = 4  # one picture a decision of 0.25 s


class NavigationFace:
    """What the single and the vector environment share: settings, spaces, observations, and Gymnasium's ``spec``.

    The ``spec`` reports the task's ``max_steps`` as ``max_episode_steps``. The ids are registered without it:
    Gymnasium would enforce the registered number too, by a wrapper that overrules another ``max_steps`` and truncates
    an episode that terminates in its last step.
    """

    continuous: ClassVar[bool] = False
    depth: ClassVar[bool] = False
    config: NavigationConfig
    core: NavigationTask
    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """What Gymnasium made the environment from; None without ``gymnasium.make``."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = spec and dataclasses.replace(spec, max_episode_steps=self.config.max_steps)

    def _read_settings(
        self, preset: str, render_mode: str | None, settings: Mapping[str, Any]
    ) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Set the task; return the spaces of one drone's observation and action.

        Raises:
            SettingsError: a setting or the render mode is not allowed.
        """
        if render_mode not in (None, "rgb_array"):
            raise SettingsError(
                f"render_mode must be None or 'rgb_array', got {render_mode!r}.",
                code="unknown_render_mode",
                render_mode=render_mode,
            )
        self.config = config = NavigationConfig.from_settings({"preset": preset, **settings})
        low, high = observation_bounds(config)
        observation: spaces.Space[Any] = spaces.Box(low, high, dtype=np.float32)
        if self.depth:
            picture = spaces.Box(0.0, config.max_range_m, (IMAGE_SIDE, IMAGE_SIDE), np.float32)
            vector = spaces.Box(vector_part(low), vector_part(high), dtype=np.float32)
            observation = spaces.Dict({"depth": picture, "vector": vector})
        if self.continuous:
            return observation, spaces.Box(COMMAND_LOW, COMMAND_HIGH, dtype=np.float32)
        return observation, spaces.Discrete(len(ACTION_NAMES))

    def _build_observation(self, observation: NDArray[np.float32]) -> Any:
        """Observations (E, 32) as the space has them."""
        if not self.depth:
            return observation
        pictures = self.core.simulator.depth(IMAGE_SIDE, IMAGE_SIDE, self.config.max_range_m)
        return {"depth": pictures, "vector": vector_part(observation).copy()}


__all__ = [
    "NavigationContinuousEnv",
    "NavigationContinuousVectorEnv",
    "NavigationDepthEnv",
    "NavigationDepthVectorEnv",
    "NavigationEnv",
    "NavigationVectorEnv",
    "register",
]


class NavigationEnv(NavigationFace, gym.Env[Any, Any]):
    """A drone flies to a goal between standing and moving obstacles, seeing only what is ahead.

    ## Observation: Box(32,), float32, raw physical units

    | index | field | unit | range | meaning |
    | --- | --- | --- | --- | --- |
    | 0-23 | ranges | m | 0 to 20 | range rays from -45 (left, index 0) to +45 degrees, evenly spread; 20 is nothing |
    | 24 | goal_bearing | rad | -pi to pi | direction to the goal from straight ahead, positive to the right |
    | 25 | goal_distance | m | 0 to the arena's diagonal | in the plane |
    | 26 | velocity | m/s | -25 to 25 | forward, body frame |
    | 27 | velocity | m/s | -25 to 25 | rightward, body frame |
    | 28 | yaw_rate | rad/s | -10 to 10 | positive to the right (clockwise seen from above) |
    | 29 | last_command | m/s | -2.5 to 5 | forward speed last commanded, 0 at the start |
    | 30 | last_command | m/s | -2.5 to 3.54 | rightward speed last commanded |
    | 31 | last_command | rad/s | -3.77 to 3.77 | yaw rate last commanded |

    Rays start at the drone's centre and end at walls, cylinders, boxes and movers. What is beside or behind the
    drone is not seen.

    ## Actions: Discrete(25)

    Each holds a velocity in the body frame, or a turn on the spot, for one control period of 0.25 s.

    | action | command |
    | --- | --- |
    | 0-4 | forward at 5, 4, 3, 2, 1 m/s |
    | 5-9 | diagonally forward to the right (45 degrees) at a ground speed of 5, 4, 3, 2, 1 m/s |
    | 10-14 | backup: backwards at 2.5, 2, 1.5, 1, 0.5 m/s |
    | 15-19 | stop and yaw right at 108, 54, 27, 13.5, 6.75 degrees/s |
    | 20-24 | stop and yaw left at 216, 108, 54, 27, 13.5 degrees/s |

    ## Dynamics

    AirSim's SimpleFlight (:mod:`airlearning_envs.simulators.embedded.dynamics`) at an altitude of 4 m: 63 % of 5 m/s
    after 1.39 s, 90 % after 3.2 s, no overshoot; tilt up to 32.7 degrees, yaw rate with a lag of 0.26 s. A command is
    turned into the world frame by the yaw at its beginning and takes effect 20 ms later. ``altitude_m`` changes the
    altitude: the higher, the more sluggish. Movers fly straight at 0.5 to 2 m/s, pass obstacles, and bounce off walls.

    ## Reward

    0.1 for each metre come nearer to the goal, -0.01 each step, +5 at the goal, -3 on collision and on leaving the
    arena. ``reward_style="air-learning"`` pays the original: 1000 at the goal; -100 on collision, leaving and the step
    limit; else -1 + metres come nearer + (4 - |v|) 0.01875 within 6 m of the goal.

    ## Start

    At rest, in a random place at least 2 m from the walls, heading anywhere, the goal at a random distance and
    direction. Nothing stands within 1.5 m, nothing moves within 3 m; the goal stands free; standing obstacles leave at
    least 0.9 m between each other and the walls, so there is always a way past them.

    ## End

    Terminated: within 3 m of the goal in the plane (success); contact of the drone (radius 0.3 m) with an obstacle or a
    mover; leaving the arena (touching its walls). Checked every 62.5 ms. Truncated: after 200 steps; with
    ``reward_style="air-learning"`` that terminates, since it is paid for as a crash is.

    ## Info

    ``success`` (bool), ``cause`` (:class:`~airlearning_envs.rules.EndCause`: NONE, GOAL, COLLISION,
    COLLISION_MOVER, LEFT_ARENA, TIME), ``flight_time_s``, ``distance_m`` flown, ``energy_j`` used, ``goal_distance_m``,
    ``episode_id``.

    ## Arguments

    ``preset`` (default ``"hard"``):

    | preset | arena (m) | standing | moving | spacing (m) | goal distance (m) |
    | --- | --- | --- | --- | --- | --- |
    | easy | 50 x 50 x 20 | 0 | 0 | | 8 to 40 |
    | medium | 60 x 60 x 20 | 0 | 0 | | 8 to 48 |
    | shipped | 35 x 35 x 5 | 7 | 0 | 2 | 10 to 23 |
    | hard | 30 x 30 x 10 | 10 to 19 | 6 to 9 | 4, centre to centre | 6 to 25 |

    ``render_mode``: None or ``"rgb_array"`` (a top-down picture). Every attribute of
    :class:`~airlearning_envs.config.NavigationConfig` is an argument too, e.g. ``wind_m_s=3``, ``range_noise_m=0.1``,
    ``latency=0.2`` or ``latency={"kind": "empirical", "values_s": [0.009, 0.011]}``.

    ``simulator="airsim"`` flies in AirSim, Colosseum, Cosys-AirSim or the server that stands in for them, at
    ``address="127.0.0.1:41451"``; what else
    :class:`~airlearning_envs.simulators.airsim.simulator.AirSimOptions` has goes into ``simulator_options``. Close the
    environment to take its arena away.

    ``reset(seed=s)`` begins episode 0 of seed ``s``; each further ``reset()`` the next episode.
    ``reset(options={"episode_id": k})`` begins episode ``k``. An episode is a function of seed, id and actions alone.

    ## Versions

    v0: the first version; flown as AirSim flies since its dynamics follow recordings of AirSim's own flight code.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so by Gymnasium)
        "render_modes": ["rgb_array"],
        "render_fps": FRAMES_PER_SECOND,
    }

    def __init__(
        self,
        preset: str = "hard",
        render_mode: str | None = None,
        simulator: str = EMBEDDED,
        address: str | None = None,
        simulator_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.observation_space, self.action_space = self._read_settings(preset, render_mode, settings)
        self.render_mode = render_mode
        options = {**(simulator_options or {}), **({} if address is None else {"address": address})}
        self.core = NavigationTask(self.config, 1, open_simulator(simulator, self.config, options))
        self._picture: Any = None
        self._seed: int | None = None
        self._next_id = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see the class."""
        super().reset(seed=seed)
        if seed is not None or self._seed is None:
            self._seed = seed if seed is not None else int(self.np_random.integers(2**31))
            self._next_id = 0
        episode = int((options or {}).get("episode_id", self._next_id))
        self._next_id = episode + 1
        observation = self.core.reset(np.array([episode]), self._seed)
        if self.render_mode is not None:
            self._follow(start=True)
        return self._build_observation(observation), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold the action's command for one control period; see the class."""
        step = self.core.step(np.asarray(action)[None])
        if self.render_mode is not None:
            self._follow(start=False)
        reward, terminated, truncated = float(step.reward[0]), bool(step.terminated[0]), bool(step.truncated[0])
        return self._build_observation(step.observation), reward, terminated, truncated, self._info()

    def close(self) -> None:
        """Give back what the simulator holds."""
        self.core.simulator.close()

    def render(self) -> Any:
        """Return the top-down picture (640, 640, 3) uint8, or None without a render mode."""
        if self.render_mode is None:
            return None
        if self._picture is None:
            raise SettingsError("render was called before reset; call reset first.")
        return self._picture.draw()

    def _build_observation(self, observation: NDArray[np.float32]) -> Any:
        batch = super()._build_observation(observation)
        return {name: part[0] for name, part in batch.items()} if self.depth else batch[0]

    def _info(self) -> dict[str, Any]:
        core = self.core
        cause = EndCause(int(core.cause[0]))
        return {
            "success": cause is EndCause.GOAL,
            "cause": cause,
            "flight_time_s": float(core.flight_time[0]),
            "distance_m": float(core.distance[0]),
            "energy_j": float(core.energy[0]),
            "goal_distance_m": float(core.goal_distance[0]),
            "episode_id": int(core.episode_id[0]),
        }

    def _follow(self, start: bool) -> None:
        if self._picture is None:
            from quarl.airlearning_envs.render import Picture  # needs Pillow, which flying does not

            self._picture = Picture(self.core, 0)
        self._picture.follow(start)


class NavigationContinuousEnv(NavigationEnv):
    """A :class:`NavigationEnv` with continuous commands.

    Actions: Box(3,), float32, physical units in the body frame, held for 0.25 s: forward speed (-2.5 to 5 m/s),
    rightward speed (-2.5 to 3.54 m/s), yaw rate (-3.77 to 3.77 rad/s, positive to the right). Commands outside are
    clipped. Unlike the discrete actions, flying and turning can be had at once.
    """

    continuous = True


class NavigationDepthEnv(NavigationEnv):
    """A :class:`NavigationEnv` with a depth picture in place of the rays.

    Observation: Dict with ``depth``, Box(84, 84) float32, planar depth in metres, 0 to 20, row 0 on top, column 0 on
    the left, 90 degrees wide and high; and ``vector``, Box(8,) float32, the elements 24 to 31 of
    :class:`NavigationEnv`'s observation. Sensor noise and dropout apply to rays only.
    """

    depth = True


_NAMES = ("Navigation", "NavigationContinuous", "NavigationDepth")


def register() -> None:
    """Register the environments with Gymnasium; doing it twice does no harm."""
    for name in _NAMES:
        if f"AirLearning/{name}-v0" not in gym.registry:
            gym.register(
                id=f"AirLearning/{name}-v0",
                entry_point=f"quarl.airlearning_envs.gym_env:{name}Env",
                vector_entry_point=f"quarl.airlearning_envs.gym_env:{name}VectorEnv",
            )


register()


class NavigationVectorEnv(NavigationFace, VectorEnv[Any, Any, NDArray[Any]]):
    """Many :class:`NavigationEnv` that step as one batch in numpy, much faster than one by one.

    Autoreset: ``NEXT_STEP`` by default, as Gymnasium's own: the step after an episode's end ignores that drone's
    action and returns the new episode's first observation with reward 0. With
    ``autoreset_mode=AutoresetMode.SAME_STEP`` (or ``"SameStep"``) the step that ends an episode already returns the
    new one's first observation; the last one of the old is in ``info["final_obs"]`` (object array) and its info in
    ``info["final_info"]``. With ``DISABLED`` the drones that have ended stay where they are until
    ``reset(options={"reset_mask": mask})``.

    ``reset(seed=s)`` begins episodes 0 to ``num_envs`` - 1 of seed ``s``, and whichever drone is free next takes the
    next id: the same episodes as a single environment with seed ``s`` flies one after another.

    Info: arrays over the drones, as in :class:`NavigationEnv` (``cause`` as int8).

    Args:
        num_envs: batch size.
        preset: as in :class:`NavigationEnv`.
        render_mode: None or ``"rgb_array"``: ``render()`` returns one picture for each drone.
        autoreset_mode: see above.
        curriculum: start with near goals (:class:`~airlearning_envs.curriculum.Curriculum`); ``info["zone"]``
            says how far it has come.
        max_episode_steps: Gymnasium's name of ``max_steps``, over which it takes precedence.
        settings: attributes of :class:`~airlearning_envs.config.NavigationConfig`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so by Gymnasium)
        "render_modes": ["rgb_array"],
        "render_fps": FRAMES_PER_SECOND,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        preset: str = "hard",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        curriculum: bool = False,
        max_episode_steps: int | None = None,
        **settings: Any,
    ) -> None:
        if max_episode_steps is not None:
            settings["max_steps"] = max_episode_steps
        self.single_observation_space, self.single_action_space = self._read_settings(preset, render_mode, settings)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.curriculum = Curriculum(self.config) if curriculum else None
        self.core = NavigationTask(self.config, num_envs)
        self._pictures: list[Any] = []
        self._seed: int | None = None
        self._next_id = 0
        self._ended = np.zeros(num_envs, bool)
        self._everywhere = np.ones(num_envs, bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes in all drones, or in those of ``options["reset_mask"]``."""
        if isinstance(seed, (list, tuple)):
            raise SettingsError(
                f"seed must be one integer, got {seed!r}: episodes differ by their id, not by their seed.",
                code="many_seeds",
                seed=seed,
            )
        mask = np.asarray((options or {}).get("reset_mask", self._everywhere))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise SettingsError(
                f"reset_mask must be a bool array ({self.num_envs},) with a True in it, got {mask!r}.",
                code="wrong_reset_mask",
            )
        if seed is not None and not mask.all():
            raise SettingsError(
                "a seed is for all drones; give it without reset_mask, which resets some of them.",
                code="seed_with_reset_mask",
            )
        super().reset(seed=seed)
        if seed is not None or self._seed is None:
            self._seed = seed if seed is not None else int(self.np_random.integers(2**31))
            self._next_id = 0
        if self.curriculum is not None:
            self.core.use(self.curriculum.config)
        if mask.all():
            observation = self.core.reset(self._new_ids(self.num_envs), self._seed)
        else:
            observation = self.core.observe()
            observation[mask] = self.core.reset_where(mask, self._new_ids(int(mask.sum())))
        self._ended = self._ended & ~mask
        if self.render_mode is not None:
            self._follow(mask)
        return self._build_observation(observation), self._info()

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step all drones; see the class for what happens at an episode's end."""
        core, started = self.core, self._ended
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and started.any():
            step = core.step_or_reset(np.asarray(actions), started, self._new_ids(int(started.sum())))
        else:
            step = core.step(np.asarray(actions))
        ended = step.terminated | step.truncated
        if self.curriculum is not None and ended.any():
            newly = ended if self.autoreset_mode is not AutoresetMode.DISABLED else ended & ~self._ended
            if self.curriculum.record(step.info["success"][newly]):
                core.use(self.curriculum.config)
        observation = self._build_observation(step.observation)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            started = ended
            info = self._info()
            if ended.any():
                observation, info = self._begin_again(step.observation, observation, ended)
        else:
            info, self._ended = self._info(), ended
        if self.render_mode is not None:
            self._follow(started if self.autoreset_mode is not AutoresetMode.DISABLED else ~self._everywhere)
        return observation, step.reward, step.terminated, step.truncated, info

    def _begin_again(self, raw: Any, observation: Any, ended: NDArray[np.bool_]) -> tuple[Any, dict[str, Any]]:
        """Same-step autoreset: new episodes for the drones that ended, the old ones' last state in the info."""
        final = np.full(self.num_envs, None, dtype=object)
        for row in np.flatnonzero(ended):
            part = {k: v[row].copy() for k, v in observation.items()} if self.depth else observation[row].copy()
            final[row] = part
        final_info = _add_masks(self.core.info(), ended)
        raw[ended] = self.core.reset_where(ended, self._new_ids(int(ended.sum())))
        info = self._info()
        info.update({"final_obs": final, "_final_obs": ended, "final_info": final_info, "_final_info": ended})
        return self._build_observation(raw), info

    def render(self) -> Any:
        """Return a tuple of one picture (640, 640, 3) for each drone, or None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(picture.draw() for picture in self._pictures)

    def _info(self) -> dict[str, Any]:
        arrays = self.core.info()
        if self.curriculum is not None:
            arrays["zone"] = np.full(self.num_envs, self.curriculum.zone)
        return _add_masks(arrays, self._everywhere)

    def _new_ids(self, count: int) -> NDArray[np.int64]:
        ids = np.arange(self._next_id, self._next_id + count)
        self._next_id += count
        return ids

    def _follow(self, started: NDArray[np.bool_]) -> None:
        if not self._pictures:
            from quarl.airlearning_envs.render import Picture  # needs Pillow, which flying does not

            self._pictures = [Picture(self.core, row) for row in range(self.num_envs)]
        for row, picture in enumerate(self._pictures):
            picture.follow(bool(started[row]))


class NavigationContinuousVectorEnv(NavigationVectorEnv):
    """:class:`NavigationVectorEnv` with the actions of :class:`NavigationContinuousEnv`."""

    continuous = True


class NavigationDepthVectorEnv(NavigationVectorEnv):
    """:class:`NavigationVectorEnv` with the observation of :class:`NavigationDepthEnv`."""

    depth = True


def _add_masks(arrays: dict[str, NDArray[Any]], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a Gymnasium vector info: each array and, under its name with an underscore, where it is valid."""
    return {**arrays, **{f"_{name}": mask for name in arrays}}
