"""The navigation task as native Gymnasium vector environments."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.rules.curriculum import Curriculum
from quarl.airlearning_envs.rules.observation import IMAGE_SIDE, vector_part
from quarl.airlearning_envs.spaces import (
    FRAMES_PER_SECOND,
    StepLimitSpec,
    action_space,
    check_render_mode,
    observation_space,
)
from quarl.airlearning_envs.task import NavigationTask


class NavigationVectorEnv(StepLimitSpec, VectorEnv[Any, Any, NDArray[Any]]):
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
        curriculum: start with near goals (:class:`~airlearning_envs.rules.curriculum.Curriculum`); ``info["zone"]``
            says how far it has come.
        max_episode_steps: Gymnasium's name of ``max_steps``, over which it takes precedence.
        settings: attributes of :class:`~airlearning_envs.config.NavigationConfig`.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so by Gymnasium)
        "render_modes": ["rgb_array"],
        "render_fps": FRAMES_PER_SECOND,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    continuous: ClassVar[bool] = False
    depth: ClassVar[bool] = False

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
        check_render_mode(render_mode)
        if max_episode_steps is not None:
            settings["max_steps"] = max_episode_steps
        self.config = NavigationConfig.from_settings({"preset": preset, **settings})
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = observation_space(self.config, self.depth)
        self.single_action_space = action_space(self.continuous)
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
                f"seed is {seed!r}; allowed is one integer: episodes differ by their id, not by their seed."
            )
        mask = np.asarray((options or {}).get("reset_mask", self._everywhere))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise SettingsError(
                f"reset_mask is {mask!r}; allowed is a bool array ({self.num_envs},) with a True in it."
            )
        if seed is not None and not mask.all():
            raise SettingsError("a seed is for all drones; give it without reset_mask, which resets some of them.")
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
        """A tuple of one picture (640, 640, 3) for each drone, or None without a render mode."""
        if self.render_mode is None:
            return None
        return tuple(picture.draw() for picture in self._pictures)

    def _build_observation(self, observation: NDArray[np.float32]) -> Any:
        if not self.depth:
            return observation
        pictures = self.core.simulator.depth(IMAGE_SIDE, IMAGE_SIDE, self.config.max_range_m)
        return {"depth": pictures, "vector": vector_part(observation).copy()}

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
    """A Gymnasium vector info: each array and, under its name with an underscore, where it is valid."""
    return {**arrays, **{f"_{name}": mask for name in arrays}}
