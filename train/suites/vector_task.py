"""Natively vectorised Gymnasium environments as tasks: all environments of a batch are one ``VectorEnv``.

``--task module:Env-v0`` is one where the registration has a ``vector_entry_point`` and no other; ``--task vector,ID``
takes the vectorised one where there are both; ``--task module:function`` is a class or function that makes one, called
with ``num_envs`` and the options of the task.

Gymnasium's interface of a ``VectorEnv`` seeds the batch, not its episodes: which one begins where follows from when the
others ended. Episodes are therefore not the functions of (seed, episode id, actions) that ``train/suites/episodes.py``
promises elsewhere: a resumed run begins new ones, and two policies are not compared episode by episode.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import FlattenObservation
from numpy.typing import NDArray

from quarl import airlearning_envs
from quarl.policy.spec import EnvironmentSpec
from quarl.train.quiet import suppress_output
from quarl.train.suites.checked import Checked, message_of
from quarl.train.suites.episodes import Actions, Observations, StepResult
from quarl.train.suites.errors import TaskError
from quarl.train.suites.gymnasium_task import (
    JUDGING_ENVIRONMENTS,
    LONGEST_EPISODE,
    NO_LIMIT,
    bounds_of,
    control_period,
    environment_actions,
    fields_of,
    head_of,
    import_own_module,
    refuse_spaces,
    shows_images,
    unknown_task,
)
from quarl.train.suites.names import MAX_EPISODE_STEPS, NAVIGATION_ID, Suite, TaskName
from quarl.train.suites.task import Task, judging

Batch = VectorEnv[Any, Any, Any]
Maker = Callable[[int], Batch]
"""Number of environments → a batch of as many."""
MODE = "autoreset_mode"
NEVER_CUT = (
    "{} has no time limit, and in its autoreset mode no episode can be cut from outside: one of more than "
    f"{LONGEST_EPISODE:,} steps ends the command. Give the environment a limit."
)


def find_maker(name: TaskName, options: Mapping[str, Any]) -> Maker | None:
    """Return what makes the batch of a task; None where environments are made one by one.

    Raises:
        TaskError: its module cannot be imported; or ``vector,`` was typed and there is none.
    """
    target = name.target
    import_own_module(target)
    if target.startswith(NAVIGATION_ID.partition("/")[0] + "/"):
        airlearning_envs.register()
    spec, is_asked_for = registration(target), name.suite is Suite.VECTOR
    if spec is not None and spec.vector_entry_point is not None and (is_asked_for or spec.entry_point is None):
        arguments = arguments_of(entry_point(name, spec.vector_entry_point), options)
        return partial(
            make_batch, partial(gymnasium.make_vec, target, vectorization_mode="vector_entry_point"), arguments
        )
    module, colon, attribute = target.partition(":")
    function = getattr(importlib.import_module(module), attribute, None) if colon and spec is None else None
    if callable(function):
        return partial(make_batch, function, arguments_of(function, options))
    if is_asked_for and spec is not None:
        raise TaskError(
            f"--task {name.canonical}: the registration of {target} has no vector_entry_point. Type --task {target}; "
            "if it is slow, add --workers 2."
        )
    if is_asked_for:
        raise TaskError(unknown_task(target, "not registered, nor a function of a module"))
    return None


def registration(target: str) -> EnvSpec | None:
    """Gymnasium's entry of an id, whose module is imported; None where it has none."""
    try:
        return gymnasium.spec(target.rpartition(":")[2])
    except gymnasium.error.Error:
        return None


def entry_point(name: TaskName, entry: Any) -> Callable[..., Any]:
    """Return what an entry of Gymnasium's registry stands for.

    Raises:
        TaskError: its module cannot be imported.
    """
    try:
        return load_env_creator(entry) if isinstance(entry, str) else entry
    except Exception as error:  # whatever stands in somebody's own module
        raise TaskError(f"--task {name.canonical} cannot be made: {message_of(error)}.") from error


def arguments_of(creator: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the task as a creator takes them.

    A creator with an argument ``autoreset_mode`` gets DISABLED, so that the caller resets ended environments; one with
    ``max_episode_steps`` gets the limit.
    """
    known: Mapping[str, Any] = {}
    with suppress(ValueError):  # of C
        known = inspect.signature(creator).parameters
    arguments = {name: value for name, value in options.items() if name != MAX_EPISODE_STEPS or name in known}
    return {MODE: AutoresetMode.DISABLED, **arguments} if MODE in known else arguments


def make_batch(creator: Callable[..., Batch], arguments: Mapping[str, Any], environments: int) -> Batch:
    """Return the batch that a creator makes, its observations flattened to a Box."""
    with suppress_output():
        batch = creator(num_envs=environments, **arguments)
    if isinstance(batch, VectorEnv) and not isinstance(batch.single_observation_space, Box):
        return FlattenObservation(batch)
    return batch


class VectorEpisodes:
    """The environments of one ``VectorEnv``, in each of Gymnasium's three modes after an episode's end.

    - ``DISABLED``: what ended is reset by a mask. Preferred: asked for where the environment takes ``autoreset_mode``.
    - ``SAME_STEP``: the last observation is in ``info["final_obs"]``, the next one is there already.
    - ``NEXT_STEP``: the next step of an environment that ended only resets it, whatever the action. That step counts as
      the first one of the new episode, with reward 0, and as one behind which nothing counts for the return (as a lost
      life does): its advantage is −V(s) whatever was drawn, which moves a policy nowhere in the mean. The price is that
      V of the states in which episodes end, or Q, is drawn towards 0 by one row an episode; after a time limit, where
      it is the bootstrap, that is an error, in one of as many rows as an episode has steps.
    """

    replayable = False

    def __init__(self, task: str, maker: Maker, environments: int, seed: int, limit: int) -> None:
        """Args: the task as typed, what makes the batch, number of environments, the seed, and steps of an episode.

        Raises:
            TaskError: another number of environments was made, or it does not say what follows an episode's end.
        """
        self.environments, self._task, self._seed = environments, task, seed
        self.batch = maker(environments)
        if self.batch.num_envs != environments:
            raise TaskError(
                f"--task {task} must make as many environments as num_envs says, {environments}, got "
                f"{self.batch.num_envs}. A run requests --set environments=N, an evaluation fewer."
            )
        mode = self.batch.metadata.get(MODE)
        if not isinstance(mode, AutoresetMode):
            raise TaskError(
                f"--task {task}: metadata[{MODE!r}] must be one of gymnasium.vector.AutoresetMode, got {mode!r}: "
                "NEXT_STEP, SAME_STEP or DISABLED, whichever the environment does after an episode ends."
            )
        self._mode = mode
        self._checked = Checked(task, self.batch, self.batch.single_observation_space.shape, environments)
        self._is_image = shows_images(self.batch.single_observation_space)
        self._observation: Observations = np.zeros(0)
        self._begun: Observations = np.zeros(0)  # SAME_STEP: the first of the new episodes
        self._ended = np.zeros(environments, np.bool_)  # and not begun again
        self._limit, self._lengths = limit, np.zeros(environments, np.int64)
        self._idles = np.zeros(environments, np.bool_)  # NEXT_STEP: the next step only resets these

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """See :class:`~train.suites.episodes.Episodes`; what did not just end can only be begun all together."""
        for place in np.flatnonzero(mask):
            self._checked.began(place, int(episode_ids[place]))
        if not np.array_equal(mask, self._ended):
            if not mask.all():
                raise ValueError(
                    "the first reset must be of all environments; later ones of those whose episodes ended"
                )
            seed = np.random.SeedSequence([self._seed, int(episode_ids[0])]).generate_state(1)[0] >> 1  # an int32
            self._observation = self._copy_observation(self._checked.reset(lambda: self.batch.reset(seed=int(seed))))
            self._idles = np.zeros_like(mask)
        elif self._mode is AutoresetMode.DISABLED:
            options = {"reset_mask": mask.copy()}
            first = self._copy_observation(self._checked.reset(lambda: self.batch.reset(options=options)))
            self._observation = self._observation.copy()
            self._observation[mask] = first[mask]
        elif self._mode is AutoresetMode.SAME_STEP:
            self._observation = self._begun
        self._ended = np.zeros_like(mask)
        self._lengths[mask] = 0
        return self._observation

    def step(self, actions: Actions) -> StepResult:
        """See :class:`~train.suites.episodes.Episodes`."""
        env_actions = environment_actions(self.batch.single_action_space, actions)
        seen, rewards, terminated, truncated, info = self._checked.step(lambda: self.batch.step(env_actions))
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._lengths += ~self._idles  # a step that only resets is none of the episode's
        if (over := self._lengths >= self._limit).any():
            if self._mode is not AutoresetMode.DISABLED and not (terminated | truncated)[over].all():
                raise TaskError(
                    f"--task {self._task}: an episode did not end within {self._limit:,} steps, and the autoreset "
                    f"mode {self._mode.name} does not allow cutting it off. Give the environment a time limit, or "
                    f"type a --max-episode-steps above {self._limit}."
                )
            truncated |= over
        ended, reward = terminated | truncated, rewards.astype(np.float32)
        self._observation, idled = self._copy_observation(seen), None
        if self._mode is AutoresetMode.SAME_STEP:
            self._begun = self._observation
            self._observation = self._last(info, terminated, ended)
        elif self._mode is AutoresetMode.NEXT_STEP:
            idled, self._idles = self._idles, ended
            reward[idled] = 0.0
        self._ended = ended
        return StepResult(self._observation, reward, terminated, truncated & ~terminated, None, idled)

    def _last(self, info: Mapping[str, Any], terminated: NDArray[np.bool_], ended: NDArray[np.bool_]) -> Observations:
        """Return the observations of a step in SAME_STEP, those of ended episodes their last ones.

        Raises:
            TaskError: one that a time limit cut has none.
        """
        last, final = self._observation.copy(), info.get("final_obs")
        if final is not None:
            for place in np.flatnonzero(ended):
                last[place] = np.reshape(final[place], last.shape[1:])
        elif (ended & ~terminated).any():
            raise TaskError(
                f"--task {self._task} resets in the same step, but its info has no final_obs, so that the value of "
                "the state at a time limit cannot be learned. Add final_obs (one observation per ended environment), "
                "or report that end as terminated."
            )
        return last

    def _copy_observation(self, observation: Any) -> Observations:
        """Return a copy, since an environment may write its next observation over this one."""
        if self._is_image:
            return np.array(observation, np.uint8)
        return np.array(observation, np.float32).reshape(self.environments, -1)

    def close(self) -> None:
        """Give back what the batch holds."""
        self.batch.close()


def vector_task(name: TaskName, options: Mapping[str, Any], maker: Maker) -> Task:
    """Return the task of a batch that :func:`find_maker` found.

    Raises:
        TaskError: it cannot be made, or its spaces are none that training takes.
    """
    try:
        probe = maker(1)
    except Exception as error:  # of an environment's own
        raise TaskError(
            f"--task {name.canonical} cannot be made: {message_of(error)}. A batch is made by its vector_entry_point "
            "or by module:function, called with num_envs=N."
        ) from error
    if not isinstance(probe, VectorEnv):
        raise TaskError(
            f"--task {name.canonical} must make a gymnasium.vector.VectorEnv, got {type(probe).__name__}. For a "
            "single environment, use gymnasium.register and type --task module:Env-v0."
        )
    with closing(probe):
        inner = probe.env if isinstance(probe, FlattenObservation) else probe
        inputs, outputs = inner.single_observation_space, inner.single_action_space
        period = control_period(probe, name.suite)
        no_limit = NO_LIMIT if probe.metadata.get(MODE) is AutoresetMode.DISABLED else NEVER_CUT
    refuse_spaces(name.canonical, inputs, outputs)

    registered = spec.max_episode_steps if (spec := registration(name.target)) else None
    limit = options.get(MAX_EPISODE_STEPS) or registered or LONGEST_EPISODE

    def make(environments: int, seed: int) -> VectorEpisodes:
        return VectorEpisodes(name.canonical, maker, environments, seed, limit)

    return Task(
        name=name.canonical,
        environment=EnvironmentSpec(name.target, dict(options)),
        observation=fields_of(name.target, inputs),
        head=head_of(outputs),
        control_period_s=period,
        presets=("",),
        make=make,
        evaluate=judging(make, JUDGING_ENVIRONMENTS),
        bounds=bounds_of(flatten_space(inputs)),
        paired=False,
        notes=() if MAX_EPISODE_STEPS in options or registered else (no_limit.format(name.canonical),),
    )
