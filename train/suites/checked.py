"""What an environment returns, checked where it enters: one place for training, evaluation, import and recording."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.json_values import abbreviate
from quarl.train.suites.errors import EnvironmentFaultError

RETURNS = {"reset": "observation, info", "step": "observation, reward, terminated, truncated, info"}
"""Gymnasium's interface since 0.26."""
AGAIN = "Mend the environment, then type the same command again: it goes on from its last checkpoint, where it has one."


class Checked:
    """Environments whose answers are held against Gymnasium's interface.

    Args:
        name: the environment's id.
        environment: what is reset and stepped: one environment, or a batch of them.
        shape: of one observation.
        batch: number of environments of a batch; None for one environment alone.
    """

    def __init__(self, name: str, environment: Any, shape: tuple[int, ...] | None, batch: int | None = None) -> None:
        self.environment, self._name = environment, name
        self._count, leading = (1, ()) if batch is None else (batch, (batch,))
        self._shape = (*leading, *(shape or ()))
        self._axes = len(leading)
        self._episodes, self._steps = [0] * self._count, [0] * self._count

    def began(self, place: int, episode: int) -> None:
        """Note which episode begins in this place."""
        self._episodes[place], self._steps[place] = episode, 0

    def reset(self, call: Callable[[], Any]) -> Any:
        """Return the first observation, by a call of ``reset``.

        Raises:
            EnvironmentFaultError: the environment raises, or returns something else than Gymnasium's interface says.
        """
        return self._check_observation("reset", self._parts("reset", call)[0])

    def step(self, call: Callable[[], Any]) -> tuple[Any, NDArray[np.float64], Any, Any, dict[str, Any]]:
        """Return what a call of ``step`` returns, the reward as (environments,); raises as :meth:`reset` does."""
        self._steps = [step + 1 for step in self._steps]
        observation, reward, terminated, truncated, info = self._parts("step", call)
        for text, flag in (("terminated", terminated), ("truncated", truncated)):
            shape, kind = shape_and_kind(flag)
            if shape not in ([(), (1,)] if not self._axes else [(self._count,)]) or kind not in "biu":
                raise self._fault("step", f"returned {abbreviate(flag)} as {text}, which must be True or False")
        try:
            rewards = np.array(reward, np.float64).reshape(self._count)
        except (TypeError, ValueError):  # None, or of another size
            rewards = np.full(self._count, np.nan)
        if not (finite := np.isfinite(rewards)).all():
            place = int(np.argmin(finite))
            text = abbreviate(reward if not self._axes or np.size(reward) != self._count else rewards[place])
            raise self._fault("step", f"returned {text} as the reward, which must be a finite number", place)
        return self._check_observation("step", observation), rewards, terminated, truncated, info

    def _parts(self, method: str, call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except Exception as error:  # whatever stands in somebody's own environment
            raise self._fault(method, f"raised {message_of(error)}") from error
        wanted = RETURNS[method].count(",") + 1
        if isinstance(result, tuple) and len(result) == wanted and isinstance(result[-1], dict):
            return result
        summary = f"a tuple of {len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise self._fault(
            method, f"returned {summary}; Gymnasium's interface requires {RETURNS[method]}, the last a dict"
        )

    def _check_observation(self, method: str, observation: Any) -> Any:
        if (shape := shape_and_kind(observation)[0]) != self._shape:
            raise self._fault(method, f"returned an observation of shape {shape}; its space has {self._shape}")
        values = np.asarray(observation)
        if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
            place = tuple(int(index) for index in np.argwhere(~finite)[0])
            inside = place[self._axes :]
            element = inside[0] if len(inside) == 1 else inside
            problem = f"returned {values[place]} as element {element} of the observation, which must be a finite number"
            raise self._fault(method, problem, place[0] if self._axes else 0)
        return observation

    def _fault(self, method: str, what: str, place: int = 0) -> EnvironmentFaultError:
        function = getattr(type(getattr(self.environment, "unwrapped", self.environment)), method)
        try:
            where = f" ({inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]})"
        except (OSError, TypeError):  # of C, or typed into an interpreter
            where = ""
        episode, step = self._episodes[place], self._steps[place]
        return EnvironmentFaultError(
            f"{self._name}: {method}(){where} {what}. It happened in episode {episode}, step {step}.",
            AGAIN,
            environment=self._name,
            method=method,
            episode=episode,
            step=step,
        )


def message_of(error: Exception) -> str:
    """Return an error of somebody's own program, and its place there."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without this file
    own = [frame for frame in frames if "site-packages" not in frame.filename and not frame.filename.startswith("<")]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def shape_and_kind(value: Any) -> tuple[tuple[int, ...], str]:
    """Shape and kind of a value as an array; of ragged lists those of an object."""
    try:
        array = np.asarray(value)
    except ValueError:
        return (), "O"
    return array.shape, array.dtype.kind
