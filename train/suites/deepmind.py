"""The DeepMind Control Suite as tasks, e.g. ``dm_control,cartpole_balance`` (Tassa et al. 2018).

An observation is that of the suite, its entries in the suite's order, flattened; each entry is a field of the spec. A
step is one control step; an episode lasts the suite's 1,000 steps (its time limit: truncated, since the state after it
would have been rewarded on). Rewards are in [0, 1], so a return is at most 1,000.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import ContinuousHead, EnvironmentSpec, ObservationField, Squash
from train.quiet import silenced
from train.suites.episodes import Actions, Decide, Floats, StepResult, judge
from train.suites.errors import TaskError
from train.suites.names import TaskName
from train.suites.task import Evaluation, Task

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
    """One environment of the suite, without the warnings that some of its models give when they are compiled."""
    suite = import_suite()
    with silenced():
        return suite.load(domain, task, task_kwargs={**options, "random": np.random.RandomState(0)})


class DeepMindEpisodes:
    """A list of environments whose episode ``k`` is seeded with (seed, k), in whichever place it is played.

    An environment is loaded once; before each episode its generator is seeded anew, and MuJoCo's state is reset as a
    whole, so that an episode has the same bits in an environment that was used and in a new one.
    """

    def __init__(self, domain: str, task: str, environments: int, seed: int, options: Mapping[str, Any]) -> None:
        """Args: domain and task of the suite, number of environments, seed, and ``task_kwargs`` of ``suite.load``."""
        self.environments = environments
        self._seed = seed
        self._playing = [load(domain, task, options) for _ in range(environments)]
        actions = self._playing[0].action_spec()
        self._low, self._high = (np.broadcast_to(side, actions.shape) for side in (actions.minimum, actions.maximum))
        size = sum(field.size for field in fields_of(self._playing[0].observation_spec()))
        self._observation: Floats = np.zeros((environments, size), np.float32)

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Floats:
        """Begin the masked episodes; see ``train.suites.episodes.Episodes``."""
        self._observation = self._observation.copy()
        for place in np.flatnonzero(mask):
            words = np.random.SeedSequence([self._seed, int(episode_ids[place])]).generate_state(4)
            self._playing[place].task.random.seed(words)
            flatten(self._playing[place].reset().observation, self._observation[place])
        return self._observation

    def step(self, actions: Actions) -> StepResult:
        """One control step; see ``train.suites.episodes.Episodes``. Actions are clipped to the suite's bounds."""
        chosen = np.clip(actions.astype(np.float64), self._low, self._high)
        observation = np.empty_like(self._observation)
        reward = np.empty(self.environments, np.float32)
        terminated, truncated = np.zeros((2, self.environments), np.bool_)
        for place, environment in enumerate(self._playing):
            step = environment.step(chosen[place])
            flatten(step.observation, observation[place])
            reward[place] = step.reward
            if step.last():  # a discount of 1 says that only the time is over
                truncated[place] = step.discount == 1.0
                terminated[place] = step.discount != 1.0
        self._observation = observation
        return StepResult(observation, reward, terminated, truncated, None)

    def picture(self) -> NDArray[np.uint8]:
        """The first environment as it is now, (240, 320, 3)."""
        picture: NDArray[np.uint8] = self._playing[0].physics.render(240, 320, camera_id=0)
        return picture

    def close(self) -> None:
        """Give back MuJoCo's models and data."""
        for environment in self._playing:
            environment.close()


def flatten(observation: Mapping[str, Any], row: Floats) -> None:
    """Write the entries of an observation one after the other into ``row``."""
    begin = 0
    for value in observation.values():
        size = np.size(value)
        row[begin : begin + size] = np.ravel(value)
        begin += size


def fields_of(specification: Mapping[str, Any]) -> tuple[ObservationField, ...]:
    """The fields of the suite's observation specification; a single number has the shape (1,)."""
    return tuple(ObservationField(name, tuple(part.shape) or (1,), "1") for name, part in specification.items())


def deepmind_task(name: TaskName, options: Mapping[str, Any]) -> Task:
    """The task of a name such as ``walker_stand``.

    Args:
        name: its target is ``DOMAIN_TASK``.
        options: further ``task_kwargs`` of ``suite.load``, e.g. ``time_limit``.

    Raises:
        TaskError: the suite has no such task; says which are near.
    """
    known = task_names()
    if name.target not in known:
        near = difflib.get_close_matches(name.target, known, n=3) or sorted(known)[:5]
        words = ", ".join(f"dm_control,{word}" for word in near)
        raise TaskError(f"--task {name.canonical} is no task of the DeepMind Control Suite. Did you mean {words}?")
    domain, task = known[name.target]

    def make(environments: int, seed: int) -> DeepMindEpisodes:
        return DeepMindEpisodes(domain, task, environments, seed, options)

    def evaluate(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
        with closing(make(min(JUDGING_ENVIRONMENTS, episodes), seed)) as played:
            return Evaluation.of(judge(played, decide, episodes), preset)

    def draw(seed: int) -> tuple[DeepMindEpisodes, Callable[[], Any]]:
        episodes = make(1, seed)
        return episodes, episodes.picture

    probe = load(domain, task, options)
    try:
        probe.reset()
    except RuntimeError as error:  # the terrain of quadruped_escape is made on a graphics card
        raise TaskError(f"--task {name.canonical} cannot begin an episode here: {error}") from error
    actions = probe.action_spec()
    low, high = (np.broadcast_to(side, actions.shape) for side in (actions.minimum, actions.maximum))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise TaskError(f"--task {name.canonical} has actions without bounds; a policy's actions are scaled to them.")
    return Task(
        name=name.canonical,
        environment=EnvironmentSpec(name.canonical, dict(options)),
        observation=fields_of(probe.observation_spec()),
        head=ContinuousHead(tuple(map(float, low)), tuple(map(float, high)), Squash.TANH),
        control_period_s=float(probe.control_timestep()),
        presets=("",),
        make=make,
        evaluate=evaluate,
        draw=draw,
    )
