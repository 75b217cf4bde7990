"""What a DQN run remembers beside its networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from train.best import BestPolicy
from train.episodes import EpisodeStream
from train.epsilon_greedy import EpsilonGreedy
from train.normalisation import ImageScaling, RunningNormaliser, widening_steps
from train.priorities import Priorities
from train.quantization_aware import QuantizationAware
from train.replay import Replay
from train.tasks import Task, episode_seed

if TYPE_CHECKING:
    from train.dqn import DQNSettings
    from train.run import RunRequest


@dataclass
class Memory:
    """What a run has seen: statistics of the observations, environments in flight, replay, priorities, the best
    policy, the random actions that are held, and the quantizers."""

    normaliser: RunningNormaliser | ImageScaling
    stream: EpisodeStream
    replay: Replay
    priorities: Priorities | None
    best: BestPolicy
    explore: EpsilonGreedy
    aware: QuantizationAware

    @classmethod
    def fresh(cls, task: Task, request: RunRequest, settings: DQNSettings) -> Memory:
        """Nothing seen yet; all environments at the start of their first episodes."""
        seed, aware = request.seed, QuantizationAware(settings, request.network, request.steps)
        stream = EpisodeStream(task.make(settings.environments, episode_seed(seed, "training")))
        frames = task.frames if task.is_image else 0
        replay = Replay(settings.replay_capacity, settings.environments, task.observation_shape, frames=frames)
        slots, alpha = replay.slots, settings.priority_exponent
        priorities = Priorities(slots, settings.environments, alpha, settings.n_step) if alpha > 0 else None
        size, starts = task.observation_size, settings.learning_starts
        until = max(starts, widening_steps(task.bounds, starts, request.steps))
        normaliser = ImageScaling() if task.is_image else RunningNormaliser(size, until, task.bounds)
        explore = EpsilonGreedy(settings.environments, settings.exploration_hold)
        return cls(normaliser, stream, replay, priorities, BestPolicy(task.presets[0]), explore, aware)

    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds of it, by name. A replay of images is left out: it is filled anew."""
        names = ["normaliser", "stream", "best", "explore"]
        if isinstance(self.normaliser, RunningNormaliser):
            names += ["replay", "priorities"] if self.priorities else ["replay"]
        return {name: getattr(self, name) for name in names} | self.aware.keepers()
