"""What a step is worth: a shaped reward for training, and Air Learning's original."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.rules import causes

Floats = NDArray[np.float32]

BRAKING_RADIUS_M = 6.0
BRAKING_SPEED_M_S = 4.0
BRAKING_FACTOR = 0.01875
"""Air Learning pays for flying slower than 4 m/s within 6 m of the goal; the factor is its time step in seconds."""


def _has_crashed(cause: NDArray[np.int8]) -> NDArray[np.bool_]:
    return (cause >= causes.COLLISION) & (cause <= causes.LEFT_ARENA)


def compute_reward(config: NavigationConfig, cause: NDArray[np.int8], progress: Floats) -> Floats:
    """r = p (d_before - d_now) + s, and g more at the goal, c more on collision and on leaving; (E,).

    By default p = 0.1 /m, s = -0.01, g = 5, c = -3.

    Args:
        config: the coefficients.
        cause: (E,) :class:`~airlearning_envs.rules.causes.EndCause`.
        progress: (E,) d_before - d_now, metres come nearer to the goal.
    """
    reward = np.float32(config.progress_reward_per_m) * progress
    reward += np.float32(config.step_reward)
    reward[cause == causes.GOAL] += np.float32(config.goal_reward)
    reward[_has_crashed(cause)] += np.float32(config.collision_reward)
    return reward


def air_learning_reward(cause: NDArray[np.int8], progress: Floats, goal_distance: Floats, speed: Floats) -> Floats:
    """r = -1 + (d_before - d_now) + (4 - |v|) 0.01875 within 6 m; 1000 at the goal; -100 at any other end; (E,)."""
    near = goal_distance < BRAKING_RADIUS_M
    reward = progress - np.float32(1.0)
    reward[near] += np.float32(BRAKING_FACTOR) * (np.float32(BRAKING_SPEED_M_S) - speed[near])
    reward[cause == causes.GOAL] = 1000.0
    reward[_has_crashed(cause) | (cause == causes.TIME)] = -100.0
    return reward
