"""D4PG: distributed distributional deterministic policy gradients (Barth-Maron et al. 2018), read from top to bottom.

DDPG whose critic predicts the distribution of the return as probabilities of fixed atoms (Bellemare et al. 2017), with
n-step returns and target networks that are copied every ``target_period`` updates. What D4PG shares with DDPG is in
``common/deterministic.py`` (noise) and, with SAC too, in ``common/continuous.py`` (a step down a loss); minibatches are
in ``common/experience.py``.

Deviations from the paper, in order of weight:
1. Many environments stepped together in one process take the place of many actors; the ratio of steps and updates is
   a setting. (Actors in processes of their own, quantized, are ``train/actorq``, which learns by this file's update.)
2. The replay is drawn from uniformly; the paper found priorities to help little and sometimes to harm.
3. Observations are normalised by the statistics of the first steps; a time limit is bootstrapped.
4. Actions enter the critic's first layer; no layer normalisation unless set; the first ``learning_starts`` steps are
   uniformly random.
5. Gradients are clipped by their norm.
6. The bundle holds the policy of the best greedy evaluation, not the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.algorithms.common.continuous import METRICS as SHARED
from quarl.train.algorithms.common.continuous import descend, part
from quarl.train.algorithms.common.deterministic import DeterministicSettings, NoisyActor, fresh_learner
from quarl.train.algorithms.common.experience import Experience
from quarl.train.algorithms.common.learner import ROWS, State, Update, compile_round, learn
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.normalisation import normaliser_of_replay
from quarl.train.algorithms.common.settings import setting
from quarl.train.lazily import tf
from quarl.train.networks.forward import mlp
from quarl.train.networks.weights import Weights
from quarl.train.quantization.fake import QUANTIZER, FakeQuantization, fake_quantize_weights
from quarl.train.quantization.mixed_precision import Compute, cast
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run

Floats = NDArray[np.float32]
METRICS = (*SHARED, "clipped_mass")
CLIPPED_MASS, SETTLED_COPIES = 0.1, 10
"""A round's mean clipped mass beyond which the user is told, once the target networks were copied so often."""


@dataclass(frozen=True)
class D4PGSettings(DeterministicSettings):
    """Settings of one D4PG run; defaults as ActorQ states them where it does (see ``docs/algorithms/d4pg.md``).

    Those that DDPG has as well are in ``deterministic.py`` and ``continuous.py`` of ``train/algorithms/common``, those
    of every replay in ``settings.py`` there.
    """

    minibatch: int = 256
    n_step: int = 5
    replay_capacity: int = 100_000
    actor_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-4
    gradient_norm: float = 40.0
    atoms: int = setting(51, "Number of values whose probabilities the critic predicts.")
    value_min: float = setting(0.0, "Smallest atom, in units of the scaled discounted return.")
    value_max: float = setting(100.0, "Largest atom; rewards of 0 … 1 with γ = 0.99 sum up to 100.")
    target_period: int = setting(100, "Updates between two copies of the learned networks to the target networks.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.atoms < 2 or not self.value_min < self.value_max:
            raise ValueError(
                f"atoms must be at least 2 and value_min below value_max, got {self.atoms} atoms between value_min "
                f"{self.value_min} and value_max {self.value_max}."
            )
        self.require_at_least_one("target_period")

    @property
    def support(self) -> Floats:
        """z, the atoms (atoms,)."""
        return np.linspace(self.value_min, self.value_max, self.atoms, dtype=np.float32)


# --- pure functions ---------------------------------------------------------------------------------------------


def project_distribution(
    returns: tf.Tensor, discounts: tf.Tensor, probabilities: tf.Tensor, support: Floats
) -> tf.Tensor:
    """Return the distribution of R + γ' Z on the atoms again, (batch, atoms) (Bellemare et al. 2017, equation 7).

    mᵢ = Σⱼ [1 − |clip(R + γ' zⱼ, z₀, z₋₁) − zᵢ| / Δz]⁺ pⱼ

    Each shifted atom shares its probability among the two atoms it fell between, the nearer one getting more; one that
    fell on an atom gives it all; one beyond the ends goes to the end.

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the episode terminated (batch,).
        probabilities: p of the next state and action (batch, atoms).
        support: z, evenly spaced (atoms,).
    """
    spacing = float(support[-1] - support[0]) / (len(support) - 1)
    moved = tf.clip_by_value(returns[:, None] + discounts[:, None] * support, support[0], support[-1])
    shares = tf.nn.relu(1.0 - tf.abs(moved[:, None, :] - support[None, :, None]) / spacing)  # (batch, atom i, atom j)
    return tf.reduce_sum(shares * probabilities[:, None, :], axis=2)


def compute_clipped_mass(
    returns: tf.Tensor, discounts: tf.Tensor, probabilities: tf.Tensor, support: Floats
) -> tf.Tensor:
    """Probability (batch,) that :func:`project_distribution` moves from beyond the ends to the end.

    Σⱼ pⱼ [R + γ' zⱼ < z₀ or > z₋₁], but for a thousandth of Δz: in float32 what comes to rest on an end may miss it.
    """
    moved = returns[:, None] + discounts[:, None] * support
    rounding = 1e-3 * float(support[1] - support[0])
    is_beyond = tf.logical_or(moved < support[0] - rounding, moved > support[-1] + rounding)
    return tf.reduce_sum(tf.where(is_beyond, probabilities, tf.zeros_like(probabilities)), axis=1)


def recommend_atom_range(returns: NDArray[Any], settings: D4PGSettings) -> tuple[float, float]:
    """``value_min`` and ``value_max`` that the returns of such rewards do not leave, rounded outwards to two digits.

    A return is Σ γⁿᵏ Rₖ of n-step returns R, scaled, so it lies between the smallest and the largest R times
    1 / (1 − γⁿ); what ends adds nothing more, hence 0 is always within.
    """
    longest = 1.0 / max(1.0 - settings.discount**settings.n_step, 1e-3)

    def outwards(end: float) -> float:
        digit = 10.0 ** (math.floor(math.log10(abs(end))) - 1) if end else 1.0
        return math.copysign(math.ceil(abs(end) / digit - 1e-6) * digit, end) + 0.0

    return outwards(longest * min(float(returns.min()), 0.0)), outwards(longest * max(float(returns.max()), 0.0))


class AtomWatch:
    """Says once that returns leave the atoms: the critic then learns the end instead, and nothing else would tell."""

    def __init__(self, settings: D4PGSettings) -> None:
        self._settings, self._told = settings, False

    def look(self, metrics: Floats, returns: NDArray[Any], updates: int) -> str | None:
        """Return the sentence, the first time that a round's metrics (updates, …) and the returns R of its rows want
        it.

        In the first updates, before ``SETTLED_COPIES`` copies, what is clipped is the target networks' first guess.
        """
        settings, mass = self._settings, float(metrics[:, METRICS.index("clipped_mass")].mean())
        if self._told or mass <= CLIPPED_MASS or updates < SETTLED_COPIES * settings.target_period:
            return None
        self._told = True
        low, high = recommend_atom_range(returns, settings)
        return (
            f"{100 * mass:.0f} % of the critic's probability falls outside its atoms {settings.value_min:g} … "
            f"{settings.value_max:g} and is cut to their ends: it cannot learn such returns. Rewards like these need "
            f"--set value_min={low:g} --set value_max={high:g} (or another --set reward_scale=…): start over with them."
        )


def cross_entropy(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """−Σ mᵢ log softmax(logits)ᵢ, row by row (batch,)."""
    return -tf.reduce_sum(targets * tf.nn.log_softmax(logits), axis=1)


def mean_value(logits: tf.Tensor, support: Floats) -> tf.Tensor:
    """Q = Σ zᵢ pᵢ with p = softmax(logits); (batch,)."""
    return tf.reduce_sum(tf.nn.softmax(logits) * support, axis=1)


def critic_logits(critic: Mapping[str, Any], observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Logits (batch, atoms) of the return's distribution; ``critic`` of one critic."""
    return mlp(part(critic, 0), tf.concat([observations, actions], axis=1))


def actor_loss(
    actor: Mapping[str, Any], critic: Mapping[str, Any], observations: tf.Tensor, support: Floats
) -> tf.Tensor:
    """−mean E Z(s, tanh y(s)): its gradient is the policy gradient of Barth-Maron et al. 2018, equation 4."""
    actions = tf.tanh(mlp(actor, observations))
    return -tf.reduce_mean(mean_value(critic_logits(critic, observations, actions), support))


def copy_where(renew: tf.Tensor, target: Mapping[str, Any], learned: Mapping[str, Any]) -> dict[str, Any]:
    """θ' ← θ where ``renew``, else θ' stays."""
    return {name: tf.where(renew, learned[name], old) for name, old in target.items()}


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


def make_update(settings: D4PGSettings, fake: FakeQuantization | None = None, with_losses: bool = False) -> Update:
    """Return the compiled round: (state, batches, updates before, share of the learning rates) → (state, metrics).

    ``fake`` is the grid on which the actor and its target compute, where the state has scales for it; ``batches`` are
    the columns of ``Experience.draw``, and ``weight`` where transitions count differently; metrics are (updates, 5),
    and behind them comes the critic's loss on every transition where ``with_losses`` asks for it (prioritized replay).
    """
    support, compute = settings.support, Compute(settings.compute)

    def one(state: State, batch: dict[str, tf.Tensor], count: tf.Tensor, share: tf.Tensor) -> tuple[Any, ...]:
        following = batch["next_observation"]
        actor_target, critic_target = (cast(state[f"{name}_target"], compute) for name in ("actor", "critic"))
        scales = state.get(QUANTIZER, {})
        next_action = tf.tanh(mlp(fake_quantize_weights(actor_target, scales, fake), following))
        next_probabilities = tf.nn.softmax(critic_logits(critic_target, following, next_action))
        bootstrap = batch["return"], batch["discount"], next_probabilities, support
        targets, mass_beyond = project_distribution(*bootstrap), tf.reduce_mean(compute_clipped_mass(*bootstrap))
        values: list[tf.Tensor] = []

        def critic_loss(weights: Weights) -> tf.Tensor:
            logits = critic_logits(weights, batch["observation"], batch["action"])
            losses = cross_entropy(targets, logits)
            values.extend((tf.reduce_mean(mean_value(logits, support)), losses))
            return tf.reduce_mean(batch["weight"] * losses if "weight" in batch else losses)

        def policy_loss(weights: Weights) -> tf.Tensor:
            critic = cast(state["critic"], compute)
            return actor_loss(fake_quantize_weights(weights, scales, fake), critic, batch["observation"], support)

        steps, largest = tf.cast(count + 1, tf.float32), settings.gradient_norm
        rates = share * settings.critic_learning_rate, share * settings.actor_learning_rate
        state, loss, critic_norm = descend(state, "critic", critic_loss, steps, rates[0], largest, compute)
        state, _, actor_norm = descend(
            state, "actor", policy_loss, steps, rates[1], largest, compute, settings.weight_control
        )
        renew = tf.equal((count + 1) % settings.target_period, 0)
        for name in ("actor", "critic"):
            state[f"{name}_target"] = copy_where(renew, state[f"{name}_target"], state[name])
        metrics = tf.stack([loss, values[0], critic_norm, actor_norm, mass_beyond])
        return (state, metrics, values[1]) if with_losses else (state, metrics)

    return compile_round(one, len(METRICS), *((ROWS,) if with_losses else ()))


# --- the run ------------------------------------------------------------------------------------------------------


def train(run: Run, settings: D4PGSettings) -> Trained:
    """Train until all steps are made or the run wants to stop; the policy of the best evaluation is returned.

    Raises:
        ValueError: the task has discrete actions.
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
    """
    task, network = run.task, run.request.network
    loop = Loop(run, settings, normaliser_of_replay(task, settings, run.request.steps))
    actor, experience = NoisyActor(loop, settings), Experience(task, settings, task.outputs)
    shapes = network, settings.critic, task.observation_shape, task.outputs
    learner = fresh_learner(loop.generator, *shapes, critic_outputs=settings.atoms, compute=settings.compute)
    loop.follow(learner, "actor", {"noise": actor.noise, **experience.list_checkpoint_parts()})
    update, watch = make_update(settings, loop.aware.fake), AtomWatch(settings)

    while loop.should_continue():
        sigma, share = settings.schedules(loop.step, run.request.steps)

        # Act: u = clip(μ(s) + noise, −1, 1); (s, u, r, s') goes into the replay.
        for _ in range(settings.rollout_steps):
            observation = loop.stream.observation
            loop.normaliser.update(observation)
            actions = actor.noisy(observation, sigma)
            transition = loop.stream.step(actor.range.physical(actions))
            experience.add(observation, actions, transition)
            actor.noise.begin(transition.done)
        loop.step += loop.iteration_steps

        # Learn: a round of steps of critic and actor, each down its loss, in one compiled call.
        row = {"noise": sigma, "learning_rate_share": share, **dict.fromkeys(METRICS, math.nan)}
        if experience.suffices:
            batches = experience.draw(loop.generator, loop.normaliser)
            (metrics,) = learn(update, learner, batches, share, loop.aware.group)
            if sentence := watch.look(metrics, batches["return"], learner.updates):
                run.progress.say(sentence, always=True)
            row |= loop.means(metrics, METRICS)
        loop.report(row, actor.greedy, may_be_best=loop.step >= settings.learning_starts)
    return loop.finish_training()
