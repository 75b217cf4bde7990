"""What training needs of a task: a batch of environments, the facts for the spec, and judging."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import ContinuousHead, EnvironmentSpec, Head, ObservationField
from quarl.train.intervals import Interval, deduplicate_by_start, mean_interval
from quarl.train.suites.episodes import Decide, EpisodeResults, Episodes, evaluate_episodes
from quarl.train.suites.names import Suite, resolve

COMPARED_STEPS = 20
"""Of an episode that is played twice."""


@dataclass(frozen=True)
class Evaluation:
    """Greedy episodes of one policy on one preset.

    Attributes:
        preset: name of the preset, or "" where the task has none.
        episodes: number of episodes.
        success, interval: share that succeeded, with its 95 % interval (low, high); None where the task has no success.
        mean_return: mean of the undiscounted returns of different episodes, with ``return_interval`` (95 %, Student's
            t; None where they give none: one episode, or equal ones).
        mean_length: mean number of steps.
        details: further figures of the task by name with their unit, e.g. mean flight time.
        returns: undiscounted return of each episode, by number: two policies are compared episode by episode.
        successes: whether each succeeded; empty where the task has no success.
        starts: of each episode what its course follows from beside the actions, so that greedy episodes of one start
            are one and the same, which is counted once; empty where every episode has its own.
    """

    preset: str
    episodes: int
    success: float | None
    interval: Interval | None
    mean_return: float
    return_interval: Interval | None
    mean_length: float
    details: Mapping[str, float] = field(default_factory=dict)
    returns: tuple[float, ...] = ()
    successes: tuple[bool, ...] = ()
    starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, results: EpisodeResults, preset: str = "", starts: Sequence[int] = ()) -> Evaluation:
        """Return the evaluation of episodes (:func:`train.suites.episodes.evaluate_episodes`)."""
        episodes, returns, success, interval = len(results.returns), results.returns, None, None
        successes: tuple[bool, ...] = ()
        if results.success is not None:
            successes = tuple(results.success.tolist())
            from quarl.airlearning_envs.flights import wilson_interval  # here: it brings the whole simulator along

            success, interval = sum(successes) / episodes, wilson_interval(sum(successes), episodes)
        different = deduplicate_by_start(starts or range(episodes), returns.tolist())
        means = success, interval, fmean(different), mean_interval(different), float(results.lengths.mean())
        per_episode = tuple(returns.tolist()), successes, tuple(starts)
        return cls(preset, episodes, *means, {}, *per_episode)

    @property
    def different(self) -> list[float]:
        """Returns of the different episodes."""
        return deduplicate_by_start(self.starts or range(self.episodes), self.returns)

    @property
    def episode_summary(self) -> str:
        """``20 episodes``; ``20 episodes, 15 of them different``."""
        return f"{self.episodes} episodes" + (f", {len(self.different)} of them different" if self.starts else "")


@dataclass(frozen=True)
class Task:
    """A task, ready for training.

    Attributes:
        name: as typed after ``--task``.
        environment: id and settings for the spec.
        observation: fields for the spec.
        head: for the spec; a method may choose another squash for a continuous one.
        control_period_s: for the spec, s.
        presets: those on which the policy is evaluated, the first being the one it is trained on; ("",) for none.
        make: (environments, seed) → the training episodes.
        evaluate: (decide, episodes, seed, preset) → results of greedy episodes.
        baseline: a policy that learned nothing, to print beside the result, or None.
        fallback: for the spec; empty where no action is known to be safe.
        teacher_observation: fields that a policy sees from which another one learns, as ``teacher_observation`` of the
            episodes, in the same states; None where it sees the same as the learner.
        bounds: smallest and largest value of every observation element, infinite where there is none; None where the
            environment states none.
        frames: stacked in the last axis of an image, the newest last; 1 where its channels are something else.
        paired: whether the episode of a number begins alike for every policy, whatever else was played, so that two are
            compared episode by episode, and a resumed run goes on with the episodes it was in.
        notes: sentences to print when training or evaluating on it.
        draw: seed → one environment of an evaluation, and a function that gives its picture (height, width, 3) now;
            None where the environment has no picture of itself.
    """

    name: str
    environment: EnvironmentSpec
    observation: tuple[ObservationField, ...]
    head: Head
    control_period_s: float
    presets: tuple[str, ...]
    make: Callable[[int, int], Episodes]
    evaluate: Callable[[Decide, int, int, str], Evaluation]
    baseline: Decide | None = None
    draw: Callable[[int], tuple[Episodes, Callable[[], Any]]] | None = None
    frames: int = 1
    bounds: tuple[NDArray[Any], NDArray[Any]] | None = None
    teacher_observation: tuple[ObservationField, ...] | None = None
    fallback: tuple[float, ...] = ()
    paired: bool = True
    notes: tuple[str, ...] = ()

    @property
    def observation_size(self) -> int:
        """Floats of one observation."""
        return sum(part.size for part in self.observation)

    @property
    def is_image(self) -> bool:
        """Whether an observation is one uint8 image (height, width, channels) instead of a vector of floats."""
        return len(self.observation) == 1 and len(self.observation[0].shape) == 3

    @property
    def has_image(self) -> bool:
        """Whether an observation is an image, or one with a vector behind it."""
        return len(self.observation[0].shape) == 3

    @property
    def vector_size(self) -> int:
        """Floats that follow an image in an observation, which is flat then; 0 where no image is before them."""
        return sum(part.size for part in self.observation[1:]) if self.has_image else 0

    @property
    def network_shape(self) -> tuple[int, ...]:
        """Shape of what a network's first layer takes: that of the image, or (observation_size,)."""
        return self.observation[0].shape if self.has_image else (self.observation_size,)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation as training sees it: that of the image, or (observation_size,)."""
        return self.observation[0].shape if self.is_image else (self.observation_size,)

    @property
    def is_discrete(self) -> bool:
        """Whether the task takes choices, one or several at once, and no continuous actions."""
        return not isinstance(self.head, ContinuousHead)

    @property
    def outputs(self) -> int:
        """Outputs of a policy: the actions of a choice, the elements of a continuous action."""
        return self.head.size


def judging(make: Callable[[int, int], Any], most: int) -> Callable[[Decide, int, int, str], Evaluation]:
    """Return a task's ``evaluate`` on episodes as it makes them, a limited number at a time; they can ``close()``."""

    def evaluate(decide: Decide, episodes: int, seed: int, preset: str) -> Evaluation:
        with closing(make(min(most, episodes), seed)) as played:
            return Evaluation.of(evaluate_episodes(played, decide, episodes), preset)

    return evaluate


def unpair_if_unseeded(task: Task, seed: int) -> Task:
    """Return the task, with ``paired`` False where repeating a seed gives another episode."""
    is_ours = resolve(task.name).suite is Suite.NAVIGATION
    if is_ours or not task.paired or is_seeded(task.make(1, seed), task.head):
        return task
    note = f"{task.name} does not follow its seed: repeating an episode gives another one, so intervals are unpaired."
    return replace(task, paired=False, notes=(*task.notes, note))


def is_seeded(episodes: Episodes, head: Head) -> bool:
    """Return whether an episode is the same when it is played again, for :data:`COMPARED_STEPS`; closes them."""
    if isinstance(head, ContinuousHead):
        action = np.array([head.low], np.float32)
    else:
        action = np.zeros((1, *head.action_shape), np.int64)
    plays = []
    with closing(episodes):  # type: ignore[type-var]
        for _ in range(2):
            seen = [episodes.reset(np.ones(1, np.bool_), np.zeros(1, np.int64))]
            for _ in range(COMPARED_STEPS):
                result = episodes.step(action)
                seen += [result.observation, result.reward]
                if result.terminated[0] or result.truncated[0]:
                    break
            plays.append(seen)
    first, second = plays
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def episode_seed(seed: int, purpose: str) -> int:
    """Return a 63-bit seed for one purpose of a run, so that training and judging never share an episode.

    Deterministic on every machine: the first bytes of SHA-256 of ``purpose:seed``.
    """
    return int.from_bytes(sha256(f"{purpose}:{seed}".encode()).digest()[:8], "big") >> 1
