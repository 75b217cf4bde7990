"""What an environment returns, checked where it enters: one place for training, evaluation, import and recording."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np

from quarl.policy.json_values import shortened
from quarl.train.suites.errors import EnvironmentFaultError

RETURNS = {"reset": "observation, info", "step": "observation, reward, terminated, truncated, info"}
"""Gymnasium's interface since 0.26."""
AGAIN = "Mend the environment, then type the same command again: it goes on from its last checkpoint, where it has one."


class Checked:
    """An environment whose answers are held against Gymnasium's interface.

    Args:
        name: the environment's id.
        environment: as ``gymnasium.make`` gives it.
    """

    def __init__(self, name: str, environment: gymnasium.Env[Any, Any]) -> None:
        self.environment, self._name = environment, name
        self._shape = environment.observation_space.shape
        self._episode = self._step = 0

    def reset(self, seed: int, episode: int) -> Any:
        """The first observation of an episode.

        Raises:
            EnvironmentFaultError: the environment raises, or returns something else than Gymnasium's interface says.
        """
        self._episode, self._step = episode, 0
        (observation, _) = self._parts("reset", lambda: self.environment.reset(seed=seed))
        return self._seen("reset", observation)

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """One step: observation, reward, terminated, truncated; raises as :meth:`reset` does."""
        self._step += 1
        observation, reward, terminated, truncated, _ = self._parts("step", lambda: self.environment.step(action))
        for what, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_, int, np.integer)) and np.shape(flag) != ():
                raise self._fault("step", f"returned {shortened(flag)} as {what}; allowed are True and False")
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = np.nan
        if not np.isfinite(value):
            raise self._fault("step", f"returned {shortened(reward)} as the reward; allowed are finite numbers")
        return self._seen("step", observation), value, bool(terminated), bool(truncated)

    def _parts(self, method: str, call: Any) -> Any:
        try:
            found = call()
        except Exception as error:  # whatever stands in somebody's own environment
            raise self._fault(method, f"raised {type(error).__name__}: {error}") from error
        wanted = RETURNS[method].count(",") + 1
        if isinstance(found, tuple) and len(found) == wanted and isinstance(found[-1], dict):
            return found
        what = f"a tuple of {len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise self._fault(method, f"returned {what}; Gymnasium's interface says {RETURNS[method]}, the last a dict")

    def _seen(self, method: str, observation: Any) -> Any:
        if np.shape(observation) != self._shape:
            raise self._fault(
                method, f"returned an observation of shape {np.shape(observation)}; its space has {self._shape}"
            )
        values = np.asarray(observation)
        if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
            place = tuple(int(each) for each in np.argwhere(~finite)[0])
            element = place[0] if len(place) == 1 else place
            raise self._fault(
                method, f"returned {values[place]} as element {element} of the observation; allowed are finite numbers"
            )
        return observation

    def _fault(self, method: str, what: str) -> EnvironmentFaultError:
        function = getattr(type(self.environment.unwrapped), method)
        try:
            where = f" ({inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]})"
        except (OSError, TypeError):  # of C, or typed into an interpreter
            where = ""
        return EnvironmentFaultError(
            f"{self._name}: {method}(){where} {what}. That was in episode {self._episode}, step {self._step}.",
            AGAIN,
            environment=self._name,
            method=method,
            episode=self._episode,
            step=self._step,
        )
