"""The DeepMind Control Suite as tasks, e.g. ``dm_control,cartpole_balance`` (Tassa et al. 2018).

An observation is that of the suite, its entries in the suite's order, flattened; each entry is a field of the spec. A
step is one control step; an episode lasts the suite's 1,000 steps (its time limit: truncated, since the state after it
would have been rewarded on). Rewards are in [0, 1], so a return is at most 1,000.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import ContinuousHead, EnvironmentSpec, ObservationField, Squash
from quarl.train.quiet import suppress_output
from quarl.train.suites.checked import Checked
from quarl.train.suites.episodes import Actions, SyncVectorEnv, episode_of
from quarl.train.suites.errors import TaskError
from quarl.train.suites.names import TaskName
from quarl.train.suites.task import Task, judging

JUDGING_ENVIRONMENTS = 16
RENDERER = "MUJOCO_GL"


def import_suite() -> Any:
    """``dm_control.suite``, without looking for a display: training draws nothing."""
    chosen = os.environ.get(RENDERER)
    os.environ.setdefault(RENDERER, "disabled")
    try:
        from dm_control import suite
    finally:
        if chosen is None:
            del os.environ[RENDERER]
    return suite


def task_names() -> dict[str, tuple[str, str]]:
    """``walker_stand`` → ("walker", "stand"), for every task of the suite."""
    return {f"{domain}_{task}": (domain, task) for domain, task in import_suite().ALL_TASKS}


def load(domain: str, task: str, options: Mapping[str, Any]) -> Any:
    """Return one environment of the suite, without the warnings that some of its models give when they are compiled."""
    suite = import_suite()
    with suppress_output():
        return suite.load(domain, task, task_kwargs={**options, "random": np.random.RandomState(0)})


class DeepMindEpisodes(SyncVectorEnv):
    """Environments of one task.

    Each is loaded once; before each episode its generator is seeded again, and MuJoCo's state is reset as a whole, so
    that an episode has the same bits in an environment that was used and in a new one.
    """

    def __init__(self, domain: str, task: str, environments: int, seed: int, options: Mapping[str, Any]) -> None:
        """Args: domain and task of the suite, number of environments, seed, and ``task_kwargs`` of ``suite.load``."""
        playing = [load(domain, task, options) for _ in range(environments)]
        super().__init__(playing, seed, (sum(field.size for field in fields_of(playing[0].observation_spec())),))
        self._bounds = bounds_of(playing[0])
        self._checked = [Checked(f"dm_control,{domain}_{task}", env, self._observation.shape[1:]) for env in playing]

    def begin(self, place: int, seed: np.random.SeedSequence) -> Any:
        """See :class:`SyncVectorEnv`."""
        self.playing[place].task.random.seed(seed.generate_state(4))
        self._checked[place].began(0, episode_of(seed))
        return self._checked[place].reset(lambda: (flat(self.playing[place].reset().observation), {}))

    def convert_actions(self, actions: Actions) -> Any:
        """Return the actions clipped to the suite's bounds."""
        return np.clip(actions.astype(np.float64), *self._bounds)

    def move(self, place: int, action: Any) -> tuple[Any, float, bool, bool]:
        """Return one control step; a discount of 1 at the end says that only the time is over."""

        def step_environment() -> tuple[Any, ...]:
            step = self.playing[place].step(action)
            return flat(step.observation), step.reward, step.last() and step.discount != 1.0, step.last(), {}

        observation, reward, terminated, truncated, _ = self._checked[place].step(step_environment)
        return observation, float(reward[0]), terminated, truncated

    def picture(self) -> NDArray[np.uint8]:
        """Return the picture of the first environment as it is now, (240, 320, 3)."""
        picture: NDArray[np.uint8] = self.playing[0].physics.render(240, 320, camera_id=0)
        return picture


def flat(observation: Mapping[str, Any]) -> NDArray[Any]:
    """Return the entries of an observation one after the other."""
    return np.concatenate([np.ravel(value) for value in observation.values()])


def bounds_of(environment: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest and largest value of every action element."""
    actions = environment.action_spec()
    return np.broadcast_to(actions.minimum, actions.shape), np.broadcast_to(actions.maximum, actions.shape)


def fields_of(specification: Mapping[str, Any]) -> tuple[ObservationField, ...]:
    """Return the fields of the suite's observation specification; a single number has the shape (1,)."""
    return tuple(ObservationField(name, tuple(part.shape) or (1,), "1") for name, part in specification.items())


def deepmind_task(name: TaskName, options: Mapping[str, Any]) -> Task:
    """Return the task whose target is ``DOMAIN_TASK``; ``options`` are ``task_kwargs`` of ``suite.load``, e.g.
    ``time_limit``.

    Raises:
        TaskError: the suite has no such task; says which are near.
    """
    known = task_names()
    if name.target not in known:
        near = difflib.get_close_matches(name.target, known, n=3) or sorted(known)[:5]
        words = ", ".join(f"dm_control,{word}" for word in near)
        raise TaskError(f"--task {name.canonical} is not a task of the DeepMind Control Suite. Did you mean {words}?")
    domain, task = known[name.target]

    def make(environments: int, seed: int) -> DeepMindEpisodes:
        return DeepMindEpisodes(domain, task, environments, seed, options)

    def draw(seed: int) -> tuple[DeepMindEpisodes, Callable[[], Any]]:
        episodes = make(1, seed)
        return episodes, episodes.picture

    probe = load(domain, task, options)
    try:
        probe.reset()
    except RuntimeError as error:  # the terrain of quadruped_escape is made on a graphics card
        raise TaskError(f"--task {name.canonical} cannot start an episode here: {error}") from error
    low, high = bounds_of(probe)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise TaskError(
            f"--task {name.canonical} must have bounded actions: a policy's outputs are scaled to the bounds."
        )
    return Task(
        name=name.canonical,
        environment=EnvironmentSpec(name.canonical, dict(options)),
        observation=fields_of(probe.observation_spec()),
        head=ContinuousHead(tuple(map(float, low)), tuple(map(float, high)), Squash.TANH),
        control_period_s=float(probe.control_timestep()),
        presets=("",),
        make=make,
        evaluate=judging(make, JUDGING_ENVIRONMENTS),
        draw=draw,
    )
