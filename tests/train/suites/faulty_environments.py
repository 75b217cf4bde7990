"""Environments as public bug reports have them: what they return is not what Gymnasium's interface says."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple


class Walk(gymnasium.Env[Any, Any]):
    """A point on a line; episodes end after 20 steps."""

    observation_space: gymnasium.Space[Any] = Box(-10, 10, (2,), np.float32)
    action_space: gymnasium.Space[Any] = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.x = 0, 0.0
        return self.seen(), {}

    def step(self, action: int) -> Any:
        self.steps, self.x = self.steps + 1, self.x + 0.1 * (2 * action - 1)
        return self.seen(), -abs(self.x), self.steps >= 20, False, {}

    def seen(self) -> Any:
        return np.array([self.x, 1.0], np.float32)


class FourValues(Walk):
    def step(self, action: int) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class ObservationAlone(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class WithoutSeed(Walk):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class OtherShape(Walk):
    def step(self, action: int) -> Any:
        observation, *rest = super().step(action)
        return (observation[:, None], *rest)


class Infinite(Walk):
    def seen(self) -> Any:
        return np.array([self.x, np.inf if self.steps == 3 else 1.0], np.float32)


class NanReward(Walk):
    def step(self, action: int) -> Any:
        observation, reward, *rest = super().step(action)
        return (observation, float("nan") if self.steps == 3 else reward, *rest)


class NoReward(Walk):
    def step(self, action: int) -> Any:
        observation, _, *rest = super().step(action)
        return (observation, None, *rest)


class HangsUp(Walk):
    def step(self, action: int) -> Any:
        if self.steps == 2:
            raise TimeoutError("request timed out")
        return super().step(action)


class Endless(Walk):
    def step(self, action: int) -> Any:
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


class Hanging(Walk):
    """Never answers while ``hangs``."""

    hangs = False

    def step(self, action: int) -> Any:
        while Hanging.hangs:
            time.sleep(0.05)
        return super().step(action)


class Item(Walk):
    def step(self, action: Any) -> Any:
        return super().step(action.item())  # as Stable-Baselines3 gives it


class Unseeded(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(np.random.uniform(-1, 1))
        return self.seen(), {}


class UnseededSteps(Walk):
    def step(self, action: int) -> Any:
        self.x += 0.01 * float(np.random.uniform(-1, 1))
        return super().step(action)


class Nested(Walk):
    """What it sees in every kind of space that is flattened."""

    observation_space = Dict(
        arm=Dict(angle=Box(-10, 10, (2,), np.float32), grip=Discrete(3, start=1)),
        bumpers=MultiBinary(2),
        gears=MultiDiscrete([2, 3]),
        pair=Tuple((Box(0, 1, (1, 2), np.float64), Discrete(2))),
    )

    def seen(self) -> Any:
        pair = (np.array([[0.25, 0.5]]), self.steps % 2)
        arm = {"angle": super().seen(), "grip": 1 + self.steps % 3}
        return {"arm": arm, "bumpers": np.array([1, 0], np.int8), "gears": np.array([1, 2]), "pair": pair}


register: Any = gymnasium.register  # typed for functions of **kwargs, not for classes
FAULTY = (FourValues, ObservationAlone, WithoutSeed, OtherShape, Infinite, NanReward, NoReward, HangsUp)
for kind in (Walk, Item, Nested, Endless, Hanging, Unseeded, UnseededSteps, *FAULTY):
    for limit in ("", "Limited"):  # Gymnasium's wrapper of a time limit takes the answer apart itself
        register(f"{kind.__name__}{limit}-v0", kind, max_episode_steps=50 if limit else None)
register(
    "NestedBatch-v0", Nested, vector_entry_point=lambda num_envs: gymnasium.vector.SyncVectorEnv([Nested] * num_envs)
)
