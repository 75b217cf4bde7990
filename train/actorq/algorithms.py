"""D4PG and DQN as ActorQ's learner and actors see them: one face for two algorithms.

The mathematics stays where it is: the compiled rounds of ``train/algorithms/d4pg.py`` and ``train/algorithms/dqn.py``,
and the exploration of ``train/algorithms/common/exploration.py``.
Here is only what differs once acting and learning live in different processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policy.spec import ContinuousHead, DiscreteHead, Squash
from train.accelerator.table import accelerated
from train.actorq import METHODS
from train.actorq.settings import Plan
from train.actorq.stepping import NO_CHOICE
from train.algorithms import d4pg, dqn
from train.algorithms.common.deterministic import fresh_learner
from train.algorithms.common.exploration import (
    ActionRange,
    EpsilonGreedy,
    ExplorationNoise,
    exploration_rate,
    noise_scale,
)
from train.algorithms.common.learner import learn
from train.networks.forward import mlp
from train.networks.weights import Weights
from train.runs.checkpoint import Checkpoint, CheckpointError
from train.runs.presets import build
from train.suites.task import Task

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Choice:
    """What an actor does now.

    Attributes:
        action: as the replay keeps it: an int, or floats (k,) in −1 … 1.
        physical: as the task takes it, for one environment: (1,) or (1, k).
        greedy: what the artifact itself chose, in the layout of ``action``.
        chosen: whether the action is that choice, and not one of chance that happens to differ or to be held.
    """

    action: Any
    physical: NDArray[Any]
    greedy: Any
    chosen: bool = False


class Explorer(Protocol):
    """How an actor turns what its artifact says into actions."""

    def start(self) -> Choice:
        """An action without a policy: uniform, or the noise alone."""

    def choose(self, decided: Any, outputs: Floats, share: float) -> Choice:
        """An action for what ``decide`` and ``outputs`` of the artifact gave; ``share`` of all steps are made."""

    def ended(self) -> None:
        """An episode is over."""


def settings_of(plan: Plan) -> Any:
    """The algorithm's own settings.

    Raises:
        ValueError: the method is not one that ActorQ distributes; a value is refused.
    """
    kinds = {"d4pg": d4pg.D4PGSettings, "dqn": dqn.DQNSettings}
    if plan.method not in kinds:
        raise ValueError(f"--method {plan.method} is not distributed; take {' or '.join(METHODS)}.")
    return build(kinds[plan.method], plan.algorithm)


def make_explorer(plan: Plan, task: Task, generator: np.random.Generator) -> Explorer:
    """One actor's side."""
    settings = settings_of(plan)
    if plan.method == "d4pg":
        return NoisyActions(settings, task, generator)
    return RandomActions(settings, task, generator)


def head_of(task: Task) -> DiscreteHead | ContinuousHead:
    """The policy's head: both algorithms squash continuous actions by tanh."""
    head = task.head
    if isinstance(head, ContinuousHead):
        return ContinuousHead(head.low, head.high, Squash.TANH)
    return head


class Algorithm:
    """What the learner process drives: the learner of ``d4pg.py`` or ``dqn.py``, drawn from the plan's seed.

    Attributes:
        settings: of the algorithm.
        metrics: names of what every update tells of itself.
        warning: what the user has to hear of it, if anything.
    """

    warning: str | None = None

    def __init__(self, plan: Plan, task: Task) -> None:
        self.settings = settings = settings_of(plan)
        self.metrics = metric_names(plan.method)
        self._prioritized = plan.actorq.priority_exponent > 0
        generator, network, outputs = np.random.default_rng(plan.seed), plan.network, task.outputs
        observation, compute = task.observation_shape, settings.compute
        if plan.method == "d4pg":
            self._learner = fresh_learner(
                generator,
                network,
                settings.critic,
                observation,
                outputs,
                critic_outputs=settings.atoms,
                compute=compute,
            )
            self._update = d4pg.make_update(settings, with_losses=self._prioritized)
            self._deployed, self._rate = "actor", 1.0
            self._watch: d4pg.AtomWatch | None = d4pg.AtomWatch(settings)
        else:
            self._learner = dqn.fresh_learner(generator, network, observation, outputs, compute)
            self._update = accelerated(plan.method, settings, network) or dqn.make_update(settings, network)
            self._deployed, self._rate = "online", settings.learning_rate
            self._watch = None

    @property
    def updates(self) -> int:
        """Updates made."""
        return self._learner.updates

    @property
    def policy(self) -> Weights:
        """The policy network's weights, as a bundle names them."""
        return self._learner.groups[self._deployed]

    def learn(self, columns: Mapping[str, NDArray[Any]], share: float) -> tuple[Floats, Floats | None]:
        """One round: metrics (updates, …) and, for prioritized replay, errors (updates, minibatch).

        A transition's priority is D4PG's loss on it, as in the paper, or DQN's error.

        Args:
            columns: (updates, minibatch, …): observation and next_observation normalised, action, return, discount,
                and weight where transitions count differently.
            share: of all steps that are made.
        """
        rate = self._rate * (1.0 + (self.settings.learning_rate_last - 1.0) * share)
        metrics, *errors = learn(self._update, self._learner, dict(columns), rate)
        if self._watch is not None:
            self.warning = self._watch.look(metrics, columns["return"], self.updates) or self.warning
        return metrics, errors[0] if self._prioritized else None

    def groups(self) -> dict[str, Weights]:
        """All arrays by group, for a checkpoint."""
        return dict(self._learner.groups)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint's arrays.

        Raises:
            CheckpointError: names the first group that is of another network.
        """
        state = {name: checkpoint.group(name) for name in self._learner.groups}
        for name, arrays in self._learner.groups.items():
            if shapes_of(state[name]) != shapes_of(arrays):
                raise CheckpointError(f"the checkpoint's {name} is of another network. Leave out --resume.")
        self._learner.put(state)
        self._learner.updates = int(checkpoint.facts["updates"])


def metric_names(method: str) -> tuple[str, ...]:
    """The learner's metrics, in the order of its rows."""
    return d4pg.METRICS if method == "d4pg" else dqn.METRICS


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every array by name."""
    return {name: tuple(value.shape) for name, value in arrays.items()}


class NoisyActions:
    """D4PG's: a ← clip(μ(s) + noise, −1, 1); see ``train/algorithms/common/exploration.py``."""

    def __init__(self, settings: d4pg.D4PGSettings, task: Task, generator: np.random.Generator) -> None:
        self._settings, self._generator = settings, generator
        self._range = ActionRange(task.head, "d4pg")
        self._noise = ExplorationNoise(1, task.outputs, settings.noise_reversion, settings.noise_repeat)
        self._shape = (1, task.outputs)

    def start(self) -> Choice:
        """See :class:`Explorer`."""
        noise = self._noise(self._generator, self._settings.noise_first)
        if not self._settings.noise_only_start:
            noise = self._generator.uniform(-1.0, 1.0, self._shape).astype(np.float32)
        unit = noise.clip(-1.0, 1.0)
        return Choice(unit[0], self._range.physical(unit), unit[0])

    def choose(self, decided: Any, outputs: Floats, share: float) -> Choice:
        """See :class:`Explorer`."""
        greedy = self._range.unit(decided)
        sigma = noise_scale(self._settings.noise_first, self._settings.noise_last, share)
        unit = (greedy + self._noise(self._generator, sigma)).clip(-1.0, 1.0)
        return Choice(unit[0], self._range.physical(unit), greedy)

    def ended(self) -> None:
        """See :class:`Explorer`."""
        self._noise.begin(np.ones(1, np.bool_))


class RandomActions:
    """DQN's: ε-greedy, with random actions that may be held; see ``train/algorithms/common/exploration.py``."""

    def __init__(self, settings: dqn.DQNSettings, task: Task, generator: np.random.Generator) -> None:
        self._settings, self._generator, self._actions = settings, generator, task.outputs
        self._explore = EpsilonGreedy(1, settings.exploration_hold)

    def start(self) -> Choice:
        """See :class:`Explorer`."""
        action = int(self._explore(self._generator, np.zeros((1, self._actions), np.float32), 1.0)[0])
        return Choice(action, np.array([action]), action)

    def choose(self, decided: Any, outputs: Floats, share: float) -> Choice:
        """See :class:`Explorer`; a random action that is held was decided earlier, whatever the network says now."""
        settings = self._settings
        epsilon = exploration_rate(settings.epsilon_first, settings.epsilon_last, settings.exploration, share)
        held = bool(self._explore.holding[0])
        action = int(self._explore(self._generator, outputs[None], epsilon)[0])
        held = held or (settings.exploration_hold > 1 and bool(self._explore.holding[0]))
        return Choice(action, np.array([action]), int(decided), not held and action == int(decided))

    def ended(self) -> None:
        """See :class:`Explorer`."""
        self._explore.begin(np.ones(1, np.bool_))


def cut_at_disagreement(
    columns: Mapping[str, NDArray[Any]], learner: NDArray[np.int64], discount: float
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """n-step returns that end before the first step at which the learner would have chosen otherwise than the actor.

    R = Σⱼ γʲ rⱼ over j < k, bootstrapped by γᵏ from sₖ, where k ≥ 1 is the first step whose action the acting policy
    chose and the learner's policy would not. These are Watkins' traces (1989), or those of Retrace (Munos et al. 2016,
    equation 3) with cₖ = 1 where π(aₖ|sₖ) ≥ b(aₖ|sₖ), else 0, for ε-greedy π and b of one ε: a random action is as
    likely under both. The first action needs no agreement: its value is what is learned.

    Args:
        columns: (rows, …) of :meth:`train.actorq.stepping.Window.take`: return, discount, next_observation, and the
            later steps.
        learner: what the learner would choose at the later steps, (rows, n − 1).
        discount: γ.

    Returns:
        The columns return, discount and next_observation, and which returns were cut, (rows,).
    """
    theirs = columns["following_greedy"]
    differs = (theirs != NO_CHOICE) & (theirs != learner)
    is_cut, rows, place = differs.any(axis=1), np.arange(len(differs)), differs.argmax(axis=1)
    factors = np.float32(discount) ** (place + 1)
    return {
        "return": np.where(is_cut, columns["following_return"][rows, place], columns["return"]),
        "discount": np.where(is_cut, factors, columns["discount"]).astype(np.float32),
        "next_observation": np.where(is_cut[:, None], columns["following"][rows, place], columns["next_observation"]),
    }, is_cut


def greedy_of(plan: Plan, weights: Weights, inputs: Floats) -> NDArray[Any]:
    """What the fp32 policy chooses for normalised observations: actions (rows,), or tanh outputs (rows, k)."""
    outputs = mlp(weights, inputs)
    return np.tanh(outputs) if plan.method == "d4pg" else outputs.argmax(axis=1)
