"""SAC: soft actor-critic with a temperature that is learned (Haarnoja et al. 2018), read from top to bottom.

The paper is the second one, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905). The policy is a
squashed Gaussian: a network gives μ(s) by its head and log σ(s) by a second one, and a = tanh(μ + σ ε). What is
deployed is tanh μ(s): the second head is learned beside the network under names of its own; a bundle does not have it.

One iteration: every environment makes ``rollout_steps`` drawn steps with numpy weights into a replay of plain arrays;
then ``updates`` minibatches are drawn at once and learned in one call compiled by XLA. What SAC shares with DDPG and
D4PG (critics, a step down a loss) is in ``common/continuous.py``, minibatches in ``common/experience.py``.

Deviations from the paper, in order of weight:
1. Many environments at once and many updates between their steps; the ratio of both is a setting.
2. n-step returns if set; the entropy of the steps between is then left out. A time limit is bootstrapped.
3. Observations are normalised by the statistics of the first steps, and their bounds.
4. The step of the temperature is along log α, so that α stays positive; gradients are clipped by their norm.
5. The first ``learning_starts`` steps are uniformly random.
6. The bundle holds the policy of the best greedy evaluation, not the last one.
7. log σ is cut to −20 … 2, as in the authors' code; the paper does not say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms.common.continuous import METRICS as SHARED
from quarl.train.algorithms.common.continuous import (
    Actor,
    ContinuousSettings,
    build_learner_groups,
    critic_value,
    descend,
    fresh_critics,
    smallest,
    soft_update,
)
from quarl.train.algorithms.common.distributions import HALF_LOG_2_PI, LOG_STD
from quarl.train.algorithms.common.experience import Experience
from quarl.train.algorithms.common.learner import Learner, State, Update, compile_round, learn
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.normalisation import normaliser_of_replay
from quarl.train.algorithms.common.settings import setting
from quarl.train.lazily import tf
from quarl.train.networks.forward import apply_hidden_layers, head
from quarl.train.networks.weights import Weights, initial_weights
from quarl.train.quantization.fake import QUANTIZER, FakeQuantization, fake_quantize_weights
from quarl.train.quantization.mixed_precision import Compute, cast
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run

Floats = NDArray[np.float32]
METRICS = (*SHARED, "entropy", "temperature")
CRITICS = range(2)
LOG_STD_WEIGHTS, LOG_STD_BIAS = f"{LOG_STD}/weights", f"{LOG_STD}/bias"
"""The second head among the actor's weights; it is no ``kernel``, so that quantizers and weight control leave it be."""
LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0
TEMPERATURE, LOG_TEMPERATURE = "temperature", "log_temperature"


@dataclass(frozen=True)
class SACSettings(ContinuousSettings):
    """Settings of one SAC run; defaults are those of the paper's appendix D, but for a replay a third as large.

    Those that DDPG and D4PG have as well are in ``train/algorithms/common/continuous.py``, those of every replay in
    ``settings.py`` there.
    """

    updates: int = 64
    minibatch: int = 256
    learning_starts: int = 10_000
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    temperature_learning_rate: float = setting(3e-4, "Adam's step size of log α.")
    temperature: float = setting(1.0, "α at the start, in units of the scaled reward per nat.")
    target_entropy: float = setting(
        -1.0, "H̄, the entropy that α is learned to keep, in nats for each element of the action in −1 … 1."
    )
    target_rate: float = setting(
        0.005, "τ: share of the learned weights that goes into the target critics at every update."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a positive number, got {self.temperature}.")
        if not math.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be a finite number such as -1, got {self.target_entropy}.")


# --- pure functions ---------------------------------------------------------------------------------------------


def gaussian(actor: Mapping[str, Any], observations: Any) -> tuple[Any, Any]:
    """μ(s) and log σ(s), (batch, elements) each, for arrays or tensors: two heads on the same hidden layers.

    log σ = clip(h W + b, −20, 2)
    """
    hidden = apply_hidden_layers(actor, observations)
    spread = head({"head/kernel": actor[LOG_STD_WEIGHTS], "head/bias": actor[LOG_STD_BIAS]}, hidden)
    cut = np.clip if isinstance(spread, np.ndarray) else tf.clip_by_value
    return head(actor, hidden), cut(spread, LOG_STD_LOW, LOG_STD_HIGH)


def squash_actions(mean: tf.Tensor, log_std: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Drawn actions (batch, elements) in −1 … 1 and their log-probability densities (batch,).

    u = μ + σ ε;  a = tanh u
    log π(a|s) = Σ [−½ ε² − log σ − ½ log 2π − log(1 − tanh² u)]                                   (appendix C)

    The last term is log(1 − tanh² u) = 2 (log 2 − u − log(1 + e^(−2u))), which does not become log 0 for large |u|.

    Args:
        mean, log_std: μ and log σ (batch, elements).
        noise: ε, standard normal draws (batch, elements).
    """
    raw = mean + tf.exp(log_std) * noise
    log_slope = 2.0 * (math.log(2.0) - raw - tf.nn.softplus(-2.0 * raw))
    log_densities = -0.5 * noise * noise - log_std - HALF_LOG_2_PI - log_slope
    return tf.tanh(raw), tf.reduce_sum(log_densities, axis=1)


def soft_targets(
    returns: tf.Tensor,
    discounts: tf.Tensor,
    next_values: Sequence[tf.Tensor],
    next_log_probabilities: tf.Tensor,
    temperature: tf.Tensor,
) -> tf.Tensor:
    """Targets (batch,): y = R + γ' (min over critics of Q'(s', a') − α log π(a'|s')), a' ~ π(·|s') (equations 2, 3).

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the episode terminated (batch,).
        next_values: of every target critic, (batch,) each.
        next_log_probabilities: log π(a'|s') (batch,).
        temperature: α.
    """
    return returns + discounts * (smallest(next_values) - temperature * next_log_probabilities)


def actor_loss(log_probabilities: tf.Tensor, values: Sequence[tf.Tensor], temperature: tf.Tensor) -> tf.Tensor:
    """mean (α log π(a|s) − min over critics of Q(s, a)) of drawn actions a (equation 9); all (batch,) but α."""
    return tf.reduce_mean(temperature * log_probabilities - smallest(values))


def temperature_loss(log_temperature: tf.Tensor, log_probabilities: tf.Tensor, target_entropy: float) -> tf.Tensor:
    """mean −α (log π(a|s) + H̄) of log-probabilities (batch,), which are held (equation 18); α = e^(log α).

    Its slope is positive, and a step makes α smaller, while the entropy −log π is larger than H̄.
    """
    return -tf.exp(log_temperature) * tf.reduce_mean(tf.stop_gradient(log_probabilities) + target_entropy)


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


def fresh_learner(
    generator: np.random.Generator,
    network: NetworkSpec,
    observation: tuple[int, ...],
    actions: int,
    settings: SACSettings,
) -> Learner:
    """Orthogonal weights with small heads: means and values start near 0, σ is 1 in every state."""
    actor = initial_weights(generator, network, observation, actions, head_gain=0.01)
    width = actor["head/kernel"].shape[0]
    actor |= {LOG_STD_WEIGHTS: np.zeros((width, actions), np.float32), LOG_STD_BIAS: np.zeros(actions, np.float32)}
    critics = fresh_critics(generator, settings.critic, observation[0] + actions, len(CRITICS))
    temperature = {LOG_TEMPERATURE: np.array([math.log(settings.temperature)], np.float32)}
    groups = build_learner_groups("actor", actor, settings.compute, followed=False)
    groups |= build_learner_groups("critic", critics, settings.compute)
    return Learner(groups | build_learner_groups(TEMPERATURE, temperature, followed=False))


def draws(generator: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Floats]:
    """Columns ε of a round, (updates, minibatch, elements) each: for the action in s, and for the one in s'."""
    return {name: generator.standard_normal(shape, dtype=np.float32) for name in ("noise", "next_noise")}


def make_update(settings: SACSettings, fake: FakeQuantization | None = None) -> Update:
    """Return the compiled round: (state, batches, updates before, share of the learning rates) → (state, metrics).

    ``fake`` is the grid on which the actor computes, where the state has scales for it; ``batches`` are the columns of
    ``Experience.draw`` and of :func:`draws`; metrics are (updates, 6).
    """
    compute, largest = Compute(settings.compute), settings.gradient_norm

    def one(state: State, batch: dict[str, tf.Tensor], count: tf.Tensor, share: tf.Tensor) -> tuple[State, tf.Tensor]:
        observations, following, scales = batch["observation"], batch["next_observation"], state.get(QUANTIZER, {})
        temperature = tf.exp(state[TEMPERATURE][LOG_TEMPERATURE][0])
        actor, critic_target = cast(state["actor"], compute), cast(state["critic_target"], compute)
        next_action, next_log = squash_actions(
            *gaussian(fake_quantize_weights(actor, scales, fake), following), batch["next_noise"]
        )
        next_values = [critic_value(critic_target, index, following, next_action) for index in CRITICS]
        targets = soft_targets(batch["return"], batch["discount"], next_values, next_log, temperature)
        terms: dict[str, tf.Tensor] = {}

        def critic_loss(weights: Weights) -> tf.Tensor:
            # L = mean (y − Q(s, a))², summed over the critics; the paper's equation 5 has ½ of each
            values = [critic_value(weights, index, observations, batch["action"]) for index in CRITICS]
            terms["value"] = tf.reduce_mean(values[0])
            return tf.add_n([tf.reduce_mean((targets - value) ** 2) for value in values])

        def policy_loss(weights: Weights) -> tf.Tensor:
            critics = cast(state["critic"], compute)
            action, terms["log"] = squash_actions(
                *gaussian(fake_quantize_weights(weights, scales, fake), observations), batch["noise"]
            )
            values = [critic_value(critics, index, observations, action) for index in CRITICS]
            return actor_loss(terms["log"], values, temperature)

        def of_temperature(weights: Weights) -> tf.Tensor:
            wanted = settings.target_entropy * batch["action"].shape[1]
            return temperature_loss(weights[LOG_TEMPERATURE][0], terms["log"], wanted)

        steps = tf.cast(count + 1, tf.float32)
        critic_rate, actor_rate = share * settings.critic_learning_rate, share * settings.actor_learning_rate
        state, loss, critic_norm = descend(state, "critic", critic_loss, steps, critic_rate, largest, compute)
        held = settings.weight_control
        state, _, actor_norm = descend(state, "actor", policy_loss, steps, actor_rate, largest, compute, held)
        rate = share * settings.temperature_learning_rate
        state, _, _ = descend(state, TEMPERATURE, of_temperature, steps, rate, largest)
        state["critic_target"] = soft_update(state["critic_target"], state["critic"], settings.target_rate)
        entropy = -tf.reduce_mean(terms["log"])
        return state, tf.stack([loss, terms["value"], critic_norm, actor_norm, entropy, temperature])

    return compile_round(one, len(METRICS))


# --- the run ------------------------------------------------------------------------------------------------------


class StochasticActor(Actor):
    """The actor at work: with drawn actions for the replay, with the mean's for the judge."""

    def __init__(self, loop: Loop, settings: SACSettings) -> None:
        """Args: the loop whose deployed weights these are, and the algorithm's settings.

        Raises:
            ValueError: the task has discrete actions.
        """
        super().__init__(loop)
        self._shape = settings.environments, loop.run.task.outputs
        self._starts = settings.learning_starts

    def draw_actions(self, observations: Floats) -> Floats:
        """tanh(μ(s) + σ(s) ε) (environments, elements) for raw observations; a uniform draw before learning starts."""
        loop = self._loop
        if loop.step < self._starts:
            return loop.generator.uniform(-1.0, 1.0, self._shape).astype(np.float32)
        mean, log_std = gaussian(loop.aware.acting(loop.weights), loop.normaliser(observations))
        return np.tanh(mean + np.exp(log_std) * loop.generator.standard_normal(self._shape, dtype=np.float32))


def train(run: Run, settings: SACSettings) -> Trained:
    """Train until all steps are made or the run wants to stop; the policy of the best evaluation is returned.

    Raises:
        ValueError: the task has discrete actions.
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
    """
    task, network = run.task, run.request.network
    loop = Loop(run, settings, normaliser_of_replay(task, settings, run.request.steps))
    actor, experience = StochasticActor(loop, settings), Experience(task, settings, task.outputs)
    learner = fresh_learner(loop.generator, network, task.observation_shape, task.outputs, settings)
    loop.follow(learner, "actor", experience.list_checkpoint_parts())
    update = make_update(settings, loop.aware.fake)

    while loop.should_continue():
        share = settings.rate_share(loop.step, run.request.steps)

        # Act: a = tanh(μ(s) + σ(s) ε); (s, a, r, s') goes into the replay.
        for _ in range(settings.rollout_steps):
            observation = loop.stream.observation
            loop.normaliser.update(observation)
            actions = actor.draw_actions(observation)
            experience.add(observation, actions, loop.stream.step(actor.range.physical(actions)))
        loop.step += loop.iteration_steps

        # Learn: a round of steps of critics, actor and temperature, each down its loss, in one compiled call.
        row = {"learning_rate_share": share, **dict.fromkeys(METRICS, math.nan)}
        if experience.suffices:
            batches = experience.draw(loop.generator, loop.normaliser)
            batches |= draws(loop.generator, batches["action"].shape)
            (metrics,) = learn(update, learner, batches, share, loop.aware.group)
            row |= loop.means(metrics, METRICS)
        loop.report(row, actor.greedy, may_be_best=loop.step >= settings.learning_starts)
    return loop.finish_training()
