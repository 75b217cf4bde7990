"""What DDPG and D4PG share beside their networks: noisy steps into a replay, minibatches out of it, the best policy.

Actions lie between −1 and 1 in the replay and in the networks, and become physical units where the task takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train import networks
from train.best import BestPolicy
from train.checkpoint import Checkpoint, flattened, generator_facts, restored_generator
from train.episodes import EpisodeStream
from train.exploration import ActionRange, ExplorationNoise, noise_scale
from train.mixed_precision import check_compute
from train.networks import Weights
from train.normalisation import RunningNormaliser
from train.replay import Replay, n_step_returns
from train.run import Run
from train.tasks import episode_seed

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class CollectionSettings:
    """How DDPG and D4PG gather and draw; their own settings come on top."""

    environments: int = 8
    """Environments stepped together."""
    rollout_steps: int = 8
    """Steps of every environment between two rounds of updates."""
    updates: int = 32
    """Gradient steps in one round (one compiled call)."""
    minibatch: int = 128
    """Transitions of one gradient step."""
    discount: float = 0.99
    """γ, per step."""
    n_step: int = 1
    """Rewards summed before the bootstrap."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning."""
    replay_capacity: int = 300_000
    """Transitions kept; the oldest are overwritten."""
    learning_starts: int = 2_000
    """Steps before the first update; the observations' statistics are gathered over these and then stand still."""
    normalise: bool = True
    """Off for observations that the task itself brings to order one: statistics of random steps would cut the rest."""
    noise_first: float = 0.2
    """σ of the exploration noise at the start, in units of half the action's range."""
    noise_last: float = 0.2
    """σ at the last step; in between it changes linearly."""
    noise_reversion: float = 1.0
    """θ of the noise: 1 is independent Gaussian noise, Lillicrap's Ornstein–Uhlenbeck process has 0.15."""
    noise_repeat: int = 1
    """Steps for which one draw of the noise is held."""
    noise_only_start: bool = False
    """The first ``learning_starts`` actions are the noise alone instead of uniform draws."""
    compute: str = "float32"
    """Number type of the networks' activations and their gradients: float32, bfloat16 or float16 (--mixed-precision);
    weights, losses and the optimiser are float32 all the same, and so is acting."""

    def __post_init__(self) -> None:
        check_compute(self.compute)
        smallest = self.environments * (self.rollout_steps + self.n_step)
        if self.replay_capacity < smallest:
            raise ValueError(
                f"replay_capacity {self.replay_capacity} does not hold a rollout of {self.environments} environments; "
                f"take at least {smallest}."
            )
        if self.learning_starts < self.environments * self.n_step:
            raise ValueError(
                f"learning_starts {self.learning_starts} is no n-step transition of every environment; "
                f"take at least {self.environments * self.n_step}."
            )
        if not 0.0 < self.noise_reversion <= 1.0:
            raise ValueError(f"noise_reversion is {self.noise_reversion}; take a share above 0, at most 1 (Gaussian).")
        for name in ("environments", "rollout_steps", "updates", "minibatch", "n_step", "noise_repeat"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; take at least 1.")


class Collection:
    """Environments, normaliser, replay, noise, random generator and the best policy of one run."""

    def __init__(self, run: Run, settings: CollectionSettings) -> None:
        """Args: the run, whose task must have continuous actions, and the settings."""
        request, task = run.request, run.task
        self._settings, self._steps = settings, request.steps
        self.generator = np.random.default_rng(request.seed)
        self.range = ActionRange(task.head, request.method)
        self.normaliser = RunningNormaliser(
            task.observation_size, settings.learning_starts if settings.normalise else 0
        )
        self.stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
        self.best = BestPolicy(task.presets[0])
        self._replay = Replay(
            settings.replay_capacity, settings.environments, task.observation_shape, action_size=task.outputs
        )
        self._noise = ExplorationNoise(
            settings.environments, task.outputs, settings.noise_reversion, settings.noise_repeat
        )

    @property
    def iteration_steps(self) -> int:
        """Steps of one iteration."""
        return self._settings.environments * self._settings.rollout_steps

    def greedy(self, actor: Weights, observations: Floats) -> Floats:
        """tanh of the actor's outputs for raw observations: actions (n, size) in −1 … 1."""
        return np.tanh(networks.mlp(actor, self.normaliser(observations)))

    def sigma(self, step: int) -> float:
        """σ of the noise at a step."""
        return noise_scale(self._settings.noise_first, self._settings.noise_last, step / self._steps)

    def collect(self, actor: Weights, step: int) -> None:
        """Make ``rollout_steps`` noisy steps in every environment and remember them."""
        sigma = self.sigma(step)
        for _ in range(self._settings.rollout_steps):
            observation = self.stream.observation
            self.normaliser.update(observation)
            action = self._noise(self.generator, sigma)
            if step >= self._settings.learning_starts:
                action = self.greedy(actor, observation) + action
            elif not self._settings.noise_only_start:
                action = self.generator.uniform(-1.0, 1.0, action.shape).astype(np.float32)
            action = action.clip(-1.0, 1.0)
            transition = self.stream.step(self.range.physical(action))
            self._replay.add(observation, action, transition)
            self._noise.begin(transition.done)

    def draw(self) -> dict[str, NDArray[Any]]:
        """Minibatches for one round, uniformly from the replay: columns (updates, minibatch, …)."""
        settings = self._settings
        shape = (settings.updates, settings.minibatch)
        rows = self._replay.sample(self.generator, settings.updates * settings.minibatch, settings.n_step)
        returns, discounts = n_step_returns(rows.rewards, rows.cut, rows.terminated, settings.discount)
        columns = {
            "observation": self.normaliser(rows.observations),
            "action": rows.actions,
            "return": returns * np.float32(settings.reward_scale),
            "discount": discounts,
            "next_observation": self.normaliser(rows.next_observations),
        }
        return {name: column.reshape(shape + column.shape[1:]) for name, column in columns.items()}

    def saved(self, groups: dict[str, Weights], updates: int) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and facts of a checkpoint: all that the next iteration depends on, the replay included.

        Args: the learner's arrays by group, and how many updates it made.
        """
        states = {name: keeper.state() for name, keeper in self._keepers().items()}
        facts = {"updates": updates, "generator": generator_facts(self.generator)}
        return flattened({**groups, **states}), facts

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put everything but the learner back as :meth:`saved` found it."""
        for name, keeper in self._keepers().items():
            keeper.restore(checkpoint.group(name))
        self.generator = restored_generator(checkpoint.facts["generator"])

    def _keepers(self) -> dict[str, Any]:
        return {
            "normaliser": self.normaliser,
            "stream": self.stream,
            "replay": self._replay,
            "noise": self._noise,
            "best": self.best,
        }
