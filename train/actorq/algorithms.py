"""D4PG and DQN as ActorQ's learner and actors see them: one face for two algorithms.

The mathematics stays where it is: the compiled rounds of ``train/algorithms/d4pg.py`` and ``train/algorithms/dqn.py``,
and the exploration of ``train/algorithms/common/exploration.py``.
Here is only what differs once acting and learning live in different processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.accelerator.table import build_accelerated_update
from quarl.train.actorq.plan import Plan
from quarl.train.actorq.stepping import NO_CHOICE, Choice
from quarl.train.algorithms import d4pg, dqn
from quarl.train.algorithms.common.deterministic import fresh_learner
from quarl.train.algorithms.common.exploration import (
    ActionRange,
    EpsilonGreedy,
    ExplorationNoise,
    exploration_rate,
    noise_scale,
)
from quarl.train.algorithms.common.learner import learn
from quarl.train.networks.forward import mlp
from quarl.train.networks.weights import Weights
from quarl.train.suites.task import Task

Floats = NDArray[np.float32]
METRICS = {"d4pg": d4pg.METRICS, "dqn": dqn.METRICS}
"""The learner's metrics by method, in the order of its rows."""


class NoisyActions:
    """D4PG's: a ← clip(μ(s) + noise, −1, 1); see ``train/algorithms/common/exploration.py``."""

    def __init__(self, settings: d4pg.D4PGSettings, task: Task, generator: np.random.Generator) -> None:
        self._settings, self._generator = settings, generator
        self._range = ActionRange(task.head, "d4pg")
        self._noise = ExplorationNoise(1, task.outputs, settings.noise_reversion, settings.noise_repeat)
        self._shape = (1, task.outputs)

    def start(self) -> Choice:
        """Return an action without a policy: uniform, or the noise alone."""
        noise = self._noise(self._generator, self._settings.noise_first)
        if not self._settings.noise_only_start:
            noise = self._generator.uniform(-1.0, 1.0, self._shape).astype(np.float32)
        unit = noise.clip(-1.0, 1.0)
        return Choice(unit[0], self._range.physical(unit), unit[0])

    def choose(self, decided: Any, outputs: Floats, share: float) -> Choice:
        """Return an action for what ``decide`` and ``outputs`` of the artifact gave; ``share`` of all steps are
        made."""
        greedy = self._range.unit(decided)
        sigma = noise_scale(self._settings.noise_first, self._settings.noise_last, share)
        unit = (greedy + self._noise(self._generator, sigma)).clip(-1.0, 1.0)
        return Choice(unit[0], self._range.physical(unit), greedy)

    def end_episode(self) -> None:
        """End an episode."""
        self._noise.begin(np.ones(1, np.bool_))


class RandomActions:
    """DQN's: ε-greedy, with random actions that may be held; the methods are those of :class:`NoisyActions`."""

    def __init__(self, settings: dqn.DQNSettings, task: Task, generator: np.random.Generator) -> None:
        self._settings, self._generator, self._actions = settings, generator, task.outputs
        self._explore = EpsilonGreedy(1, settings.exploration_hold)

    def start(self) -> Choice:
        """Choose a uniform action."""
        action = int(self._explore(self._generator, np.zeros((1, self._actions), np.float32), 1.0)[0])
        return Choice(action, np.array([action]), action)

    def choose(self, decided: Any, outputs: Floats, share: float) -> Choice:
        """Return the action; a random one that is held was decided earlier and stays."""
        settings = self._settings
        epsilon = exploration_rate(settings.epsilon_first, settings.epsilon_last, settings.exploration, share)
        held = bool(self._explore.holding[0])
        action = int(self._explore(self._generator, outputs[None], epsilon)[0])
        held = held or (settings.exploration_hold > 1 and bool(self._explore.holding[0]))
        return Choice(action, np.array([action]), int(decided), not held and action == int(decided))

    def end_episode(self) -> None:
        """End an episode: no action is held any longer."""
        self._explore.begin(np.ones(1, np.bool_))


def make_explorer(plan: Plan, task: Task, generator: np.random.Generator) -> NoisyActions | RandomActions:
    """Return how an actor turns what its artifact says into actions."""
    kind = NoisyActions if plan.request.method == "d4pg" else RandomActions
    return kind(plan.settings, task, generator)


class Algorithm:
    """What the learner process drives: the learner of ``d4pg.py`` or ``dqn.py``, drawn from the plan's seed.

    Attributes:
        learner: its arrays by group, and the number of its updates.
        metrics: names of what every update tells of itself.
        warning: what the user has to hear of it, if anything.
    """

    warning: str | None = None

    def __init__(self, plan: Plan, task: Task) -> None:
        request, settings = plan.request, plan.settings
        self.metrics = METRICS[request.method]
        self._settings, self._is_continuous = settings, request.method == "d4pg"
        self._prioritized = plan.actorq.priority_exponent > 0
        generator, network = np.random.default_rng(request.seed), request.network
        shapes = task.observation_shape, task.outputs
        if self._is_continuous:
            self.learner = fresh_learner(
                generator, network, settings.critic, *shapes, critic_outputs=settings.atoms, compute=settings.compute
            )
            self._update = d4pg.make_update(settings, with_losses=self._prioritized)
            self._deployed, self._rate, self._watch = "actor", 1.0, d4pg.AtomWatch(settings)
        else:
            self.learner = dqn.fresh_learner(generator, network, *shapes, settings.compute)
            self._update = build_accelerated_update("dqn", settings, network) or dqn.make_update(settings, network)
            self._deployed, self._rate = "online", settings.learning_rate

    @property
    def policy(self) -> Weights:
        """The policy network's weights, as a bundle names them."""
        return self.learner.groups[self._deployed]

    def greedy(self, inputs: Floats) -> NDArray[Any]:
        """Return the fp32 policy's choice for normalised observations: actions (rows,), or tanh outputs (rows, k)."""
        outputs = mlp(self.policy, inputs)
        return np.tanh(outputs) if self._is_continuous else outputs.argmax(axis=1)

    def learn(self, columns: Mapping[str, NDArray[Any]], share: float) -> tuple[Floats, Floats | None]:
        """Return one round: metrics (updates, …) and, for prioritized replay, errors (updates, minibatch).

        A transition's priority is D4PG's loss on it, as in the paper, or DQN's error.

        Args:
            columns: (updates, minibatch, …): observation and next_observation normalised, action, return, discount,
                and weight where transitions count differently.
            share: of all steps that are made.
        """
        rate = self._rate * (1.0 + (self._settings.learning_rate_last - 1.0) * share)
        metrics, *errors = learn(self._update, self.learner, dict(columns), rate)
        if self._is_continuous:
            self.warning = self._watch.look(metrics, columns["return"], self.learner.updates) or self.warning
        return metrics, errors[0] if self._prioritized else None


def cut_at_disagreement(
    columns: Mapping[str, NDArray[Any]], learner: NDArray[np.int64], discount: float
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """n-step returns that end before the first step at which the learner would have chosen otherwise than the actor.

    R = Σⱼ γʲ rⱼ over j < k, bootstrapped by γᵏ from sₖ, where k ≥ 1 is the first step whose action the acting policy
    chose and the learner's policy would not. These are Watkins' traces (1989), or those of Retrace (Munos et al. 2016,
    equation 3) with cₖ = 1 where π(aₖ|sₖ) ≥ b(aₖ|sₖ), else 0, for ε-greedy π and b of one ε: a random action is as
    likely under both. The first action needs no agreement: its value is what is learned.

    Args:
        columns: (…, columns) of :meth:`train.actorq.stepping.Window.take`: return, discount, next_observation, and
            the later steps.
        learner: what the learner would choose at the later steps, (…, n − 1).
        discount: γ.

    Returns:
        The columns return, discount and next_observation, and which returns were cut, (…).
    """
    actor_choices = columns["following_greedy"]
    differs = (actor_choices != NO_CHOICE) & (actor_choices != learner)
    is_cut, place = differs.any(axis=-1), differs.argmax(axis=-1)[..., None]
    total = np.take_along_axis(columns["following_return"], place, -1)[..., 0]
    state = np.take_along_axis(columns["following"], place[..., None], -2)[..., 0, :]
    factors = np.float32(discount) ** (place[..., 0] + 1)
    return {
        "return": np.where(is_cut, total, columns["return"]),
        "discount": np.where(is_cut, factors, columns["discount"]).astype(np.float32),
        "next_observation": np.where(is_cut[..., None], state, columns["next_observation"]),
    }, is_cut


def mismatch(learner: NDArray[Any], actors: NDArray[Any]) -> dict[str, float]:
    """Return how far what actors chose is from what the learner would choose in the same states.

    Args:
        learner, actors: actions (rows,), or (rows, k) in −1 … 1.

    Returns:
        ``disagreement``, the share of other actions; or ``distance``, the mean absolute difference of an element.
    """
    if learner.ndim == 1:
        return {"disagreement": float(np.mean(learner != actors))}
    return {"distance": float(np.mean(np.abs(learner - actors)))}
