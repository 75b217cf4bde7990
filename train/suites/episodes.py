"""Endless episodes in a batch, which can be stopped and resumed to the same bits.

A task offers :class:`Episodes`: a batch of environments in which an episode is a pure function of its seed, its
episode id and the actions taken. :class:`EpisodeStream` numbers the episodes, resets what ended, and remembers the
actions since each reset. Its saved state is therefore small and needs no knowledge of any simulator: to restore it,
the unfinished episodes are simply flown again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quarl.policy import pilot

Floats = NDArray[np.float32]
Observations = NDArray[Any]
"""(batch, size) float32, or (batch, height, width, channels) uint8 for images; always raw."""
Actions = NDArray[Any]
"""Choices, int64 from 0: (batch,), or (batch, components) of several at once; of a continuous task (batch, size)
float32 in physical units."""
Decide = Callable[[Observations], Actions]
"""A function from raw observations to actions."""
PROGRESSION = "progression/"
"""Prefix of the names of a :class:`Progression`'s arrays in the state of a stream."""


@dataclass(frozen=True)
class StepResult:
    """One step of a batch of environments: the observation *before* any reset, and how it ended.

    Attributes:
        observation: see :data:`Observations`.
        reward: (environments,) float32.
        terminated: (environments,) bool, the episode ended in a state of no further reward.
        truncated: (environments,) bool, the episode was cut by its time limit.
        success: (environments,) bool at the end of an episode; None for a task that has no notion of it.
        life_lost: (environments,) bool, the learner's return ends here as if the episode had terminated, but the
            episode goes on; None for a task that has no lives.
    """

    observation: Observations
    reward: Floats
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    success: NDArray[np.bool_] | None
    life_lost: NDArray[np.bool_] | None = None


class Progression(Protocol):
    """Decides from how episodes ended of which kind the later ones are: a curriculum.

    It decides by episode id, so that given its state an episode is still a function of (seed, episode id, actions).
    """

    def record_episodes(self, successes: NDArray[np.bool_], next_id: int) -> str:
        """Count episodes that ended; what is new from the episode ``next_id`` on in a few words, or ""."""

    def figures(self) -> dict[str, float]:
        """Columns for the learning curve."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""


class Episodes(Protocol):
    """A batch of environments whose episodes are pure functions of (seed, episode id, actions).

    It may have more attributes: ``replayable``, False where an episode cannot be flown again; ``progression``, a
    :class:`Progression` that the stream tells of ended episodes; and ``teacher_observation``, what a policy from which
    another one learns sees in the states of the last observation, where that is something else.
    """

    @property
    def environments(self) -> int:
        """Number of environments."""

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """Begin the episodes of the masked environments; observations of all."""

    def step(self, actions: Actions) -> StepResult:
        """Apply one action an environment, without any reset."""


class SyncVectorEnv(ABC):
    """:class:`Episodes` of environments that are stepped one after the other.

    Episode ``k`` is seeded with (seed, k), in whichever environment it is played.

    Attributes:
        playing: the environments, which can ``close()``.
    """

    def __init__(self, playing: Sequence[Any], seed: int, shape: tuple[int, ...], kind: type = np.float32) -> None:
        """Args: the environments, the seed of all episodes, and the shape and type of one observation."""
        self.playing, self.environments = list(playing), len(playing)
        self._seed = seed
        self._observation: Observations = np.zeros((len(playing), *shape), kind)

    @abstractmethod
    def begin(self, place: int, seed: np.random.SeedSequence) -> Any:
        """Begin an episode in one environment; its observation."""

    @abstractmethod
    def move(self, place: int, action: Any) -> tuple[Any, float, bool, bool]:
        """Return one step of one environment: observation, reward, terminated, truncated."""

    def convert_actions(self, actions: Actions) -> Any:
        """Return the actions as :meth:`move` takes them, one after the other."""
        return actions

    def reset(self, mask: NDArray[np.bool_], episode_ids: NDArray[np.int64]) -> Observations:
        """See :class:`Episodes`."""
        self._observation = self._observation.copy()
        for place in np.flatnonzero(mask):
            seed = np.random.SeedSequence([self._seed, int(episode_ids[place])])
            self._observation[place] = np.reshape(self.begin(place, seed), self._observation.shape[1:])
        return self._observation

    def step(self, actions: Actions) -> StepResult:
        """See :class:`Episodes`."""
        observation = np.empty_like(self._observation)
        reward = np.empty(self.environments, np.float32)
        terminated, truncated = np.empty((2, self.environments), np.bool_)
        for place, action in enumerate(self.convert_actions(actions)):
            seen, reward[place], terminated[place], truncated[place] = self.move(place, action)
            observation[place] = np.reshape(seen, observation.shape[1:])
        self._observation = observation
        return StepResult(observation, reward, terminated, truncated & ~terminated, None)

    def close(self) -> None:
        """Give back what the environments hold: simulators, screens."""
        for environment in self.playing:
            environment.close()


def episode_of(seed: np.random.SeedSequence) -> int:
    """Return the episode whose seed it is, see :class:`SyncVectorEnv`."""
    return int(np.ravel(np.asarray(seed.entropy))[-1])


@dataclass(frozen=True)
class Transition:
    """What :meth:`EpisodeStream.step` returns.

    Attributes:
        observation: after the reset of ended episodes: what to act on next.
        reward: (environments,) float32.
        terminated: (environments,) bool, nothing that follows counts for the return: the episode terminated, or a life
            was lost.
        done: (environments,) bool, the episode ended (terminated or truncated) and another began.
        last_observation: before any reset: what the step led to.
        life_lost: (environments,) bool, see :class:`StepResult`; None for a task that has no lives.
    """

    observation: Observations
    reward: Floats
    terminated: NDArray[np.bool_]
    done: NDArray[np.bool_]
    last_observation: Observations
    life_lost: NDArray[np.bool_] | None = None

    @property
    def cut(self) -> NDArray[np.bool_]:
        """(environments,) bool: the return reaches no further than this step, by the episode's end or a lost life."""
        return self.done if self.life_lost is None else self.done | self.life_lost


@dataclass
class EpisodeStats:
    """Episodes that ended since the last :meth:`EpisodeStream.take_stats`."""

    episodes: int = 0
    total_return: float = 0.0
    total_length: int = 0
    successes: int = 0
    knows_success: bool = False
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures of a :class:`Progression`, as they are now."""
    news: list[str] = field(default_factory=list)
    """Messages of a :class:`Progression`."""

    def row(self) -> dict[str, float]:
        """Means for a log, NaN where no episode ended; and the figures."""
        count = self.episodes or float("nan")
        return {
            "episodes": float(self.episodes),
            "return": self.total_return / count,
            "length": self.total_length / count,
            "success": self.successes / count if self.knows_success else float("nan"),
            **self.figures,
        }


class EpisodeStream:
    """Steps a batch of environments for ever: ended episodes are followed by the next number.

    A lost life ends no episode: nothing is reset, and the stats counts the whole of it.
    """

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._progression: Progression | None = getattr(episodes, "progression", None)
        count = episodes.environments
        self._ids = np.arange(count, dtype=np.int64)
        self._next_id = count
        self._lengths = np.zeros(count, np.int64)
        self._returns = np.zeros(count, np.float64)
        self._actions: Actions = np.zeros((count, 0), np.int16)  # since the reset; grows with the longest episode
        self._stats = EpisodeStats()
        self._rows = np.arange(count)
        self.observation = episodes.reset(np.ones(count, np.bool_), self._ids)

    @property
    def teacher_observation(self) -> Observations:
        """The teacher's observation of the states of ``observation``."""
        seen: Observations = getattr(self._episodes, "teacher_observation", self.observation)
        return seen

    def step(self, actions: Actions) -> Transition:
        """Apply one action an environment, then begin a new episode wherever one ended."""
        result = self._episodes.step(actions)
        self._remember(actions)
        self._returns += result.reward
        done = result.terminated | result.truncated
        self.observation = result.observation
        if done.any():
            self._count_ended(done, result.success)
            self._ids[done] = np.arange(self._next_id, self._next_id + int(done.sum()))
            self._next_id += int(done.sum())
            self._lengths[done] = 0
            self._returns[done] = 0.0
            self.observation = self._episodes.reset(done, self._ids)
        lost = result.life_lost
        terminated = result.terminated if lost is None else result.terminated | lost
        return Transition(self.observation, result.reward, terminated, done, result.observation, lost)

    def _remember(self, actions: Actions) -> None:
        length = self._actions.shape[1]
        if length == 0:
            kind = np.float32 if actions.dtype.kind == "f" else np.int16
            self._actions = np.zeros((len(actions), 64, *actions.shape[1:]), kind)
        elif self._lengths.max() == length:
            self._actions = np.concatenate([self._actions, np.zeros_like(self._actions)], axis=1)
        self._actions[self._rows, self._lengths] = actions
        self._lengths += 1

    def _count_ended(self, done: NDArray[np.bool_], success: NDArray[np.bool_] | None) -> None:
        self._stats.episodes += int(done.sum())
        self._stats.total_return += float(self._returns[done].sum())
        self._stats.total_length += int(self._lengths[done].sum())
        if success is not None:
            self._stats.successes += int(success[done].sum())
            self._stats.knows_success = True
            if self._progression is not None and (
                news := self._progression.record_episodes(success[done], self._next_id)
            ):
                self._stats.news.append(news)

    def take_stats(self) -> EpisodeStats:
        """Return the episodes that ended since the last call."""
        stats, self._stats = self._stats, EpisodeStats()
        if self._progression is not None:
            stats.figures = self._progression.figures()
        return stats

    def state(self) -> dict[str, NDArray[Any]]:
        """Episode ids and the actions since each reset; take the stats first, it is not part of the state."""
        longest = max(int(self._lengths.max()), 1)
        progression = {} if self._progression is None else self._progression.state()
        return {
            "ids": self._ids.copy(),
            "next_id": np.array([self._next_id], np.int64),
            "lengths": self._lengths.copy(),
            "returns": self._returns.copy(),
            "actions": self._actions[:, :longest].copy(),
            **{PROGRESSION + name: array for name, array in progression.items()},
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Fly the unfinished episodes again, so that all arrive at their present at the same step.

        An environment whose episode is shorter than the longest idles (action 0) until its time has come. Where an
        episode cannot be flown again (``episodes.replayable`` is False), new ones begin instead. What ends meanwhile is
        not counted: the progression is told nothing.
        """
        if self._progression is not None:  # first, since it says of which kind each episode was
            names = [name for name in state if name.startswith(PROGRESSION)]
            self._progression.restore({name.removeprefix(PROGRESSION): state[name] for name in names})
        self._ids, self._lengths = state["ids"].copy(), state["lengths"].copy()
        self._next_id = int(state["next_id"][0])
        self._returns, self._actions = state["returns"].copy(), state["actions"].copy()
        if not getattr(self._episodes, "replayable", True):
            self._ids = np.arange(self._next_id, self._next_id + len(self._ids))
            self._next_id += len(self._ids)
            self._lengths[:], self._returns[:] = 0, 0.0
        longest = int(self._lengths.max())
        begins = longest - self._lengths  # the step of the replay before which each episode begins
        self.observation = self._episodes.reset(np.ones(len(self._ids), np.bool_), self._ids)
        ended = np.zeros(len(self._ids), np.bool_)
        for now in range(longest + 1):
            begin = (begins == now) | ended
            if now > 0 and begin.any():
                self.observation = self._episodes.reset(begin, self._ids)
            if now == longest:
                break
            column = now - begins
            actions = self._actions[self._rows, np.maximum(column, 0)]
            actions[column < 0] = 0
            result = self._episodes.step(actions if actions.dtype == np.float32 else actions.astype(np.int64))
            self.observation = result.observation
            ended = (result.terminated | result.truncated) & (column < 0)


@dataclass(frozen=True)
class EpisodeResults:
    """Greedy episodes by number: ``returns`` and ``lengths`` (episodes,), ``success`` (episodes,) or None."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    success: NDArray[np.bool_] | None


def evaluate_episodes(episodes: Episodes, decide: Decide, count: int) -> EpisodeResults:
    """Play the episodes 0 … count − 1, each once, whatever the size of the batch."""
    batch = episodes.environments
    ids = np.arange(batch, dtype=np.int64)
    next_id = batch
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    success: NDArray[np.bool_] | None = None
    observation = episodes.reset(np.ones(batch, np.bool_), ids)
    pilot.begin(decide, np.ones(batch, np.bool_))
    while (ids < count).any():
        result = episodes.step(decide(observation))
        playing = ids < count
        returns[ids[playing]] += result.reward[playing]
        lengths[ids[playing]] += 1
        done = result.terminated | result.truncated
        observation = result.observation
        if done.any():
            if result.success is not None:
                success = np.zeros(count, np.bool_) if success is None else success
                success[ids[done & playing]] = result.success[done & playing]
            ids[done] = np.arange(next_id, next_id + int(done.sum()))
            next_id += int(done.sum())
            observation = episodes.reset(done, ids)
            pilot.begin(decide, done)
    return EpisodeResults(returns, lengths, success)
