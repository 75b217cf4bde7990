"""Any Gymnasium environment with a Box observation and Discrete actions as a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from policy.spec import DiscreteHead, EnvironmentSpec, ObservationField
from train.episodes import Decide, Floats, StepResult, judge
from train.tasks import Evaluation, Task, TaskError

JUDGING_ENVIRONMENTS = 32
SECONDS_UNKNOWN = 1.0  # an environment that does not say how long a step lasts: one step is one unit of time


class GymnasiumEpisodes:
    """A Gymnasium vector environment whose episode ``k`` is seeded with (seed, k), in whichever place it is played.

    Gymnasium promises that an environment is determined by its reset seed and the actions; that makes each episode
    the pure function that ``train.episodes`` asks for.
    """

    def __init__(self, environment_id: str, environments: int, seed: int, options: Mapping[str, Any]) -> None:
        self.environments = environments
        self._seed = seed
        self._vector = gymnasium.make_vec(
            environment_id,
            num_envs=environments,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
            **options,
        )

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Floats:
        """Begin the masked episodes; see ``train.episodes.Episodes``."""
        seeds = [self._episode_seed(int(number)) if new else 0 for number, new in zip(episode_ids, mask, strict=True)]
        # A list of seeds is what the vector environment takes; its base class is annotated for one seed only.
        observation, _ = self._vector.reset(seed=seeds, options={"reset_mask": mask.copy()})  # type: ignore[arg-type]
        return self._flat(observation)

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """One step; see ``train.episodes.Episodes``."""
        observation, reward, terminated, truncated, _ = self._vector.step(actions)
        return StepResult(self._flat(observation), reward.astype(np.float32), terminated, truncated & ~terminated, None)

    def picture(self) -> NDArray[np.uint8]:
        """The first environment as it is now, (height, width, 3); made with ``render_mode="rgb_array"``."""
        return np.asarray(self._vector.render()[0])  # type: ignore[index]

    def _flat(self, observation: NDArray[Any]) -> Floats:
        return observation.reshape(self.environments, -1).astype(np.float32)

    def _episode_seed(self, number: int) -> int:
        return int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])


def gymnasium_task(environment_id: str, options: Mapping[str, Any]) -> Task:
    """The task of a Gymnasium id, e.g. ``CartPole-v1``.

    Raises:
        TaskError: Gymnasium does not know the id, or its spaces are not Box → Discrete.
    """
    try:
        probe = gymnasium.make(environment_id, **options)
    except gymnasium.error.Error as error:
        raise TaskError(
            f"--task {environment_id} is neither navigation nor an id that Gymnasium can make ({error}). "
            "Try --task navigation or --task CartPole-v1."
        ) from error
    with probe:
        inputs, outputs = probe.observation_space, probe.action_space
        period = getattr(probe.unwrapped, "tau", SECONDS_UNKNOWN)
    if not isinstance(inputs, gymnasium.spaces.Box) or not isinstance(outputs, gymnasium.spaces.Discrete):
        raise TaskError(
            f"--task {environment_id} has the spaces {inputs} and {outputs}; training takes a Box observation "
            "and Discrete actions. Choose another task, for example CartPole-v1."
        )
    if outputs.start != 0:
        raise TaskError(
            f"--task {environment_id} numbers its actions from {outputs.start}; training takes them from 0."
        )
    size = int(np.prod(inputs.shape))

    def evaluate(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
        count = min(JUDGING_ENVIRONMENTS, episodes)
        return Evaluation.of(judge(GymnasiumEpisodes(environment_id, count, seed, options), decide, episodes), preset)

    def draw(seed: int) -> tuple[GymnasiumEpisodes, Callable[[], Any]]:
        episodes = GymnasiumEpisodes(environment_id, 1, seed, {**options, "render_mode": "rgb_array"})
        return episodes, episodes.picture

    return Task(
        name=environment_id,
        environment=EnvironmentSpec(environment_id, dict(options)),
        observation=(ObservationField("observation", (size,), "1"),),
        head=DiscreteHead(tuple(f"action_{index}" for index in range(int(outputs.n)))),
        control_period_s=float(period),
        presets=("",),
        make=lambda environments, seed: GymnasiumEpisodes(environment_id, environments, seed, options),
        evaluate=evaluate,
        draw=draw,
    )
