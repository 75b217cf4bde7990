"""What DDPG and D4PG share beside their updates: noisy steps into a replay, minibatches out of it, and the loop.

Actions lie between −1 and 1 in the replay and in the networks, and become physical units where the task takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policy.spec import NetworkSpec, Squash
from train import networks
from train.best import BestPolicy, Policy
from train.checkpoint import Keeper, gathered
from train.episodes import EpisodeStream
from train.exploration import ActionRange, ExplorationNoise, noise_scale
from train.networks import Weights
from train.normalisation import RunningNormaliser, widening_steps
from train.quantization_aware import QuantizationAware
from train.replay import Replay, n_step_returns
from train.run import Run, Trained
from train.shared_settings import ReplaySettings
from train.tasks import episode_seed

Floats = NDArray[np.float32]


METRICS = ("critic_loss", "value", "critic_gradient_norm", "actor_gradient_norm")
"""Columns of what an update tells of itself; D4PG has one more."""


@dataclass(frozen=True)
class CollectionSettings(ReplaySettings):
    """What DDPG and D4PG have in common; their own settings come on top."""

    normalise: bool = True
    """False: mean 0 and scale 1 stand in for the statistics of the observations, which then enter the networks as they
    are, but for what lies beyond ±5: every element is cut to −5 … 5, in the bundle as in training. It is for
    observations that the task itself brings to order one: statistics of random steps would cut more."""
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
    actor_learning_rate: float = 1e-3
    """Adam's step size of the actor."""
    critic_learning_rate: float = 1e-3
    """Adam's step size of the critic."""
    learning_rate_last: float = 1.0
    """Share of both learning rates that is left at the last step; they fall linearly."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    critic_layer_norm: bool = False
    """Normalise the critic's hidden layers."""
    gradient_norm: float = 10.0
    """Largest global norm of the actor's and of the critic's gradient."""
    compute: str = "float32"
    """Number type of the networks' activations and their gradients: float32, bfloat16 or float16 (--mixed-precision);
    weights, losses and the optimiser are float32 all the same, and so is acting."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("noise_repeat")
        if not 0.0 < self.noise_reversion <= 1.0:
            raise ValueError(f"noise_reversion is {self.noise_reversion}; take a share above 0, at most 1 (Gaussian).")

    @property
    def critic(self) -> NetworkSpec:
        """The critic's network."""
        return NetworkSpec(self.critic_hidden, layer_norm=self.critic_layer_norm)


class ActorCritic(Protocol):
    """What an update changes: arrays by group, the actor's among them, and the number of updates made."""

    groups: dict[str, Weights]
    updates: int


LearnRound = Callable[[dict[str, NDArray[Any]], float], NDArray[np.float32]]
"""(minibatches of one round, share of the learning rates) → metrics (updates, …); changes the learner."""


class Collection:
    """Environments, normaliser, replay, noise, random generator and the best policy of one run."""

    def __init__(self, run: Run, settings: CollectionSettings) -> None:
        """Args: the run, whose task must have continuous actions, and the settings."""
        request, task = run.request, run.task
        self._run, self._settings = run, settings
        self.generator = np.random.default_rng(request.seed)
        self.range = ActionRange(task.head, request.method)
        self.normaliser = RunningNormaliser(task.observation_size, 0)
        if settings.normalise:
            starts, size = settings.learning_starts, task.observation_size
            widen = widening_steps(task.bounds, starts, request.steps)
            self.normaliser = RunningNormaliser(size, starts, task.bounds, widen)
        self.stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
        self.best = BestPolicy(task.presets[0])
        self.aware = QuantizationAware(settings, request.network, request.steps)
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
        return np.tanh(networks.mlp(self.aware.acting(actor), self.normaliser(observations)))

    def sigma(self, step: int) -> float:
        """σ of the noise at a step."""
        return noise_scale(self._settings.noise_first, self._settings.noise_last, step / self._run.request.steps)

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

    def train(self, learner: ActorCritic, learn_round: LearnRound, names: tuple[str, ...] = METRICS) -> Trained:
        """The loop: collect and learn until all steps are made or the run wants to stop.

        Args:
            learner: as it begins; what the run's checkpoint has of it is put in.
            learn_round: one round of updates of it.
            names: of its metrics' columns.

        Returns:
            The best evaluated policy.

        Raises:
            DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
        """
        run, settings, step = self._run, self._settings, self._run.start_step
        if run.checkpoint is not None:
            restored = run.checkpoint.put_back(learner.groups, self._keepers())
            learner.groups, learner.updates, self.generator = restored

        def decide(observation: Floats) -> Floats:
            return self.range.physical(self.greedy(learner.groups["actor"], observation))

        def policy() -> Policy:
            return self.aware.policy(learner.groups["actor"], self.normaliser.frozen())

        while step < run.request.steps and run.stop_reason is None:
            self.aware.begin_when_due(step, run.progress.say, self.best)
            share = 1.0 + (settings.learning_rate_last - 1.0) * step / run.request.steps
            row = {"noise": self.sigma(step), "learning_rate_share": share, **dict.fromkeys(names, float("nan"))}
            self.collect(learner.groups["actor"], step)
            step += self.iteration_steps
            if step >= settings.learning_starts:
                metrics = learn_round(self.draw(), share)
                self.aware.count(len(metrics))
                run.check_finite(step, metrics, names)
                row |= dict(zip(names, metrics.mean(axis=0).tolist(), strict=True))
            self.aware.look(learner.groups["actor"], self.normaliser(self.stream.observation))
            row["observations_clipped"] = self.normaliser.take_clipped()
            run.report(step, {**self.stream.take_tally().row(), **row}, self.iteration_steps, decide)
            if step >= settings.learning_starts:
                self.best.offer(run.last_row, policy, step)
            if run.wants_checkpoint:
                self._save(step, learner)
        self._save(step, learner)
        notes = {"updates": learner.updates, **self.aware.notes(), **self.best.notes()}
        return Trained(self.best.policy(policy), step, notes, Squash.TANH)

    def _save(self, step: int, learner: ActorCritic) -> None:
        self._run.save(step, *gathered(learner.groups, self._keepers(), learner.updates, self.generator))

    def _keepers(self) -> dict[str, Keeper]:
        return {
            "normaliser": self.normaliser,
            "stream": self.stream,
            "replay": self._replay,
            "noise": self._noise,
            "best": self.best,
            **self.aware.keepers(),
        }
