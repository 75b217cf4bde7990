"""Environments that say which number each choice has to have, for the tests of several choices at once."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

STEPS = 16


class Dials(gymnasium.Env[Any, Any]):
    """Shows a random action of its space as zeros and ones, and pays 1 where exactly that one is taken.

    Raises:
        ValueError: an action that the space does not contain, by shape, type or value.
    """

    action_space: gymnasium.Space[Any] = MultiDiscrete([3, 2, 4])
    observation_space: gymnasium.Space[Any] = Box(0.0, 1.0, (9,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        reward = float(np.array_equal(action, self.wanted))
        self.steps += 1
        return self.show(), reward, self.steps >= STEPS, False, {}

    def show(self) -> np.ndarray:
        space = self.action_space
        if isinstance(space, Discrete):
            counts, starts = np.array([space.n]), np.array([space.start])
        elif isinstance(space, MultiBinary):
            counts, starts = np.full(space.n, 2), np.zeros(space.n, int)
        else:
            assert isinstance(space, MultiDiscrete)
            counts, starts = space.nvec, space.start
        chosen = self.np_random.integers(counts)
        self.wanted = (chosen + starts).reshape(space.shape or ())
        shown = [np.eye(count, dtype=np.float32)[one] for count, one in zip(counts, chosen, strict=True)]
        return np.concatenate(shown)


class Switches(Dials):
    action_space = MultiBinary(3)
    observation_space = Box(0.0, 1.0, (6,), np.float32)


class FromOne(Dials):
    action_space = Discrete(3, start=1)
    observation_space = Box(0.0, 1.0, (3,), np.float32)


class FromFive(Dials):
    action_space = MultiDiscrete([3, 2], start=[5, 0])
    observation_space = Box(0.0, 1.0, (5,), np.float32)


register: Any = gymnasium.register  # typed for functions of **kwargs, not for classes
for kind in (Dials, Switches, FromOne, FromFive):
    batch: Any = lambda num_envs, kind=kind: gymnasium.vector.SyncVectorEnv([kind] * num_envs)  # noqa: E731
    register(f"{kind.__name__}-v0", kind, max_episode_steps=STEPS)
    register(f"{kind.__name__}Batch-v0", kind, vector_entry_point=batch)
