"""The environments' Gymnasium spaces and what the single and the vector environment share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.rules.actions import ACTION_NAMES, COMMAND_HIGH, COMMAND_LOW
from quarl.airlearning_envs.rules.observation import IMAGE_SIDE, VECTOR_SIZE, observation_bounds

FRAMES_PER_SECOND = 4  # one picture a decision of 0.25 s


class StepLimitSpec:
    """Mixin whose Gymnasium ``spec`` reports the task's ``max_steps`` as ``max_episode_steps``.

    The ids are registered without it: Gymnasium would enforce the registered number too, by a wrapper that overrules
    another ``max_steps`` and truncates an episode that terminates in its last step.
    """

    config: NavigationConfig
    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """What Gymnasium made the environment from; None without ``gymnasium.make``."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = spec and dataclasses.replace(spec, max_episode_steps=self.config.max_steps)


def observation_space(config: NavigationConfig, depth: bool) -> spaces.Space[Any]:
    """Box of the 32 floats, or Dict of depth picture and the 8 floats that are no ranges."""
    low, high = observation_bounds(config)
    if not depth:
        return spaces.Box(low, high, dtype=np.float32)
    picture = spaces.Box(0.0, config.max_range_m, (IMAGE_SIDE, IMAGE_SIDE), np.float32)
    return spaces.Dict(
        {"depth": picture, "vector": spaces.Box(low[-VECTOR_SIZE:], high[-VECTOR_SIZE:], dtype=np.float32)}
    )


def action_space(continuous: bool) -> spaces.Space[Any]:
    """Discrete(25), or Box(3,) of commands."""
    return spaces.Box(COMMAND_LOW, COMMAND_HIGH, dtype=np.float32) if continuous else spaces.Discrete(len(ACTION_NAMES))


def check_render_mode(render_mode: str | None) -> None:
    """Refuse a render mode that there is not.

    Raises:
        SettingsError: names the allowed ones.
    """
    if render_mode not in (None, "rgb_array"):
        raise SettingsError(f"render_mode is {render_mode!r}; allowed are None and 'rgb_array'.")
