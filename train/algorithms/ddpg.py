"""DDPG: deep deterministic policy gradients (Lillicrap et al. 2016), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` noisy steps with numpy weights into a replay of plain arrays;
then ``updates`` minibatches are drawn at once and learned in one call compiled by XLA. What DDPG shares with D4PG is
in ``common/deterministic.py`` (noise) and, with SAC too, in ``common/continuous.py`` (critics, a step down a loss);
minibatches are in ``common/experience.py``.

Deviations from the paper, in order of weight:
1. Many environments at once and many updates between their steps; the ratio of both is a setting.
2. n-step returns, computed when a minibatch is drawn; a time limit is bootstrapped, not taken for an end.
3. Observations are normalised by the statistics of the first steps, and their bounds, instead of batch normalisation;
   the critic may normalise its layers (Ba et al. 2016), off by default.
4. Actions enter the critic's first layer, not its second; no L2 penalty on its weights.
5. The noise is an Ornstein–Uhlenbeck process whose θ may be 1 (independent Gaussian noise); its σ changes linearly.
6. The first ``learning_starts`` steps are uniformly random, or the noise alone (``noise_only_start``).
7. The bundle holds the policy of the best greedy evaluation, not the last one.
8. Off by default, from TD3 (Fujimoto et al. 2018): a ``twin`` critic whose smaller value is the target, noise on the
   target's action (``target_noise``), a slower actor (``policy_period``). With all three on it is ``td3.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.algorithms.common.continuous import METRICS, critic_value, descend, smallest, soft_update
from quarl.train.algorithms.common.deterministic import DeterministicSettings, NoisyActor, fresh_learner
from quarl.train.algorithms.common.experience import Experience
from quarl.train.algorithms.common.learner import State, Update, compile_round, learn
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.normalisation import normaliser_of_replay
from quarl.train.algorithms.common.settings import ENGINE, TENSORFLOW, setting
from quarl.train.lazily import tf
from quarl.train.networks.forward import mlp
from quarl.train.networks.weights import Weights
from quarl.train.quantization.fake import QUANTIZER, FakeQuantization, fake_quantize_weights
from quarl.train.quantization.mixed_precision import Compute, cast
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class DDPGSettings(DeterministicSettings):
    """Settings of one DDPG run; the files in ``train/settings/`` hold the ones that were tuned, with their source.

    Those that D4PG has as well are in ``deterministic.py`` and ``continuous.py`` of ``train/algorithms/common``, those
    of every replay in ``settings.py`` there.
    """

    target_rate: float = setting(
        0.005, "τ: share of the learned weights that goes into the target networks at every update of the actor."
    )
    action_penalty: float = setting(
        0.0, "Weight of the mean squared actor output before the tanh: keeps a policy out of the tanh's flat ends."
    )
    twin: bool = setting(False, "Two critics; the target is the smaller of their values (TD3).")
    target_noise: float = setting(0.0, "σ of the noise on the target's action (TD3: 0.2).")
    target_noise_clip: float = setting(0.5, "Largest size of that noise.")
    policy_period: int = setting(1, "Critic updates for one update of the actor (TD3: 2).")
    engine: str = setting(TENSORFLOW, ENGINE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("policy_period")


# --- pure functions ---------------------------------------------------------------------------------------------


def td_targets(returns: tf.Tensor, discounts: tf.Tensor, next_values: list[tf.Tensor]) -> tf.Tensor:
    """n-step targets (batch,): y = R + γ' · min over critics of Q'(s', μ'(s')); with one critic and step, equation 5.

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the episode terminated (batch,).
        next_values: of every target critic, (batch,) each.
    """
    return returns + discounts * smallest(next_values)


def actor_loss(
    actor: Mapping[str, Any], critics: Mapping[str, Any], observations: tf.Tensor, penalty: float
) -> tf.Tensor:
    """−mean Q(s, tanh y(s)) + penalty · mean y²: its gradient is the deterministic policy gradient (equation 6)."""
    raw = mlp(actor, observations)
    value = critic_value(critics, 0, observations, tf.tanh(raw))
    return penalty * tf.reduce_mean(raw * raw) - tf.reduce_mean(value)


def target_action_noise(generator: np.random.Generator, shape: tuple[int, ...], settings: DDPGSettings) -> Floats:
    """clip(σ ε, ±c), ε ~ N(0, 1): target-policy smoothing (Fujimoto et al. 2018, equation 14)."""
    noise = np.float32(settings.target_noise) * generator.standard_normal(shape, dtype=np.float32)
    return noise.clip(-settings.target_noise_clip, settings.target_noise_clip)


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


def make_update(settings: DDPGSettings, fake: FakeQuantization | None = None) -> Update:
    """Return the compiled round: (state, batches, updates before, share of the learning rates) → (state, metrics).

    ``fake`` is the grid on which the actor and its target compute, where the state has scales for it; ``batches`` are
    the columns of ``Experience.draw``, and ``target_noise`` where it is on; metrics are (updates, 4).
    """
    critics, compute = range(2 if settings.twin else 1), Compute(settings.compute)

    def learn_actor(state: State, batch: dict[str, tf.Tensor], steps: tf.Tensor, rate: tf.Tensor) -> Any:
        def loss(actor: Weights) -> tf.Tensor:
            quantized = fake_quantize_weights(actor, state.get(QUANTIZER, {}), fake)
            return actor_loss(quantized, cast(state["critic"], compute), batch["observation"], settings.action_penalty)

        largest, control = settings.gradient_norm, settings.weight_control
        new, _, norm = descend(state, "actor", loss, steps, rate, largest, compute, control)
        for name in ("actor", "critic"):
            new[f"{name}_target"] = soft_update(new[f"{name}_target"], new[name], settings.target_rate)
        return new, norm

    def one(state: State, batch: dict[str, tf.Tensor], count: tf.Tensor, share: tf.Tensor) -> tuple[State, tf.Tensor]:
        following = batch["next_observation"]
        actor_target, critic_target = (cast(state[f"{name}_target"], compute) for name in ("actor", "critic"))
        next_action = tf.tanh(mlp(fake_quantize_weights(actor_target, state.get(QUANTIZER, {}), fake), following))
        if settings.target_noise > 0:
            next_action = tf.clip_by_value(next_action + batch["target_noise"], -1.0, 1.0)
        next_values = [critic_value(critic_target, index, following, next_action) for index in critics]
        targets = td_targets(batch["return"], batch["discount"], next_values)
        mean_value: list[tf.Tensor] = []

        def critic_loss(weights: Weights) -> tf.Tensor:
            # L = mean (y − Q(s, a))², summed over the critics
            values = [critic_value(weights, index, batch["observation"], batch["action"]) for index in critics]
            mean_value.append(tf.reduce_mean(values[0]))
            return tf.add_n([tf.reduce_mean((targets - value) ** 2) for value in values])

        steps = tf.cast(count + 1, tf.float32)
        critic_rate, actor_rate = share * settings.critic_learning_rate, share * settings.actor_learning_rate
        largest = settings.gradient_norm
        state, loss, critic_norm = descend(state, "critic", critic_loss, steps, critic_rate, largest, compute)
        period = settings.policy_period
        actor_steps = tf.cast((count + 1) // period, tf.float32)
        if period == 1:
            state, actor_norm = learn_actor(state, batch, actor_steps, actor_rate)
        else:
            state, actor_norm = tf.cond(
                tf.equal((count + 1) % period, 0),
                lambda: learn_actor(state, batch, actor_steps, actor_rate),
                lambda: (state, tf.constant(0.0)),
            )
        return state, tf.stack([loss, mean_value[0], critic_norm, actor_norm])

    return compile_round(one, len(METRICS))


# --- the run ------------------------------------------------------------------------------------------------------


def train(run: Run, settings: DDPGSettings, accelerated: Update | None = None) -> Trained:
    """Train until all steps are made or the run wants to stop; the policy of the best evaluation is returned.

    Raises:
        ValueError: the task has discrete actions.
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
    """
    task, network = run.task, run.request.network
    loop = Loop(run, settings, normaliser_of_replay(task, settings, run.request.steps))
    actor, experience = NoisyActor(loop, settings), Experience(task, settings, task.outputs)
    shapes = network, settings.critic, task.observation_shape, task.outputs
    learner = fresh_learner(loop.generator, *shapes, critics=2 if settings.twin else 1, compute=settings.compute)
    loop.follow(learner, "actor", {"noise": actor.noise, **experience.list_checkpoint_parts()})
    # With engine = "numpy" the same update runs with gradients by hand: train/accelerator.
    update = accelerated or make_update(settings, loop.aware.fake)

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
            if settings.target_noise > 0:
                batches["target_noise"] = target_action_noise(loop.generator, batches["action"].shape, settings)
            (metrics,) = learn(update, learner, batches, share, loop.aware.group)
            row |= loop.means(metrics, METRICS)
        loop.report(row, actor.greedy, may_be_best=loop.step >= settings.learning_starts)
    return loop.finish_training()
