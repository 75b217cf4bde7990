"""DQN: deep Q-learning (Mnih et al. 2015) with double targets, n-step returns and, if asked for, priorities.

One iteration: every environment makes ``rollout_steps`` ε-greedy steps into a replay of plain arrays; then ``updates``
minibatches are drawn at once and learned in one compiled call. Three files of ``common/``, shared with DDPG and D4PG,
complete it: ``experience.py`` (minibatches of n-step transitions), ``learner.py`` (many updates in one call) and
``loop.py`` (reports, checkpoints). Equations, deviations and the settings' sources: ``docs/algorithms/dqn.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import DiscreteHead, NetworkSpec
from quarl.train.algorithms.common.experience import Experience
from quarl.train.algorithms.common.exploration import EpsilonGreedy, exploration_rate
from quarl.train.algorithms.common.learner import ROWS, Learner, Update, compile_round, learn
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.normalisation import normaliser_of_replay
from quarl.train.algorithms.common.settings import ENGINE, TENSORFLOW, ReplaySettings, linear, setting
from quarl.train.lazily import tf
from quarl.train.networks.forward import Acting, forward
from quarl.train.networks.optimiser import adam_step, clip_by_global_norm
from quarl.train.networks.weights import Weights, initial_weights, zeros_like
from quarl.train.quantization.aware import fake_quantization
from quarl.train.quantization.fake import QUANTIZER, fake_quantize_weights, select_scales
from quarl.train.quantization.mixed_precision import Compute, apply_if_finite, cast, fresh_loss_scale, gradients_of
from quarl.train.runs.presets import SettingsError
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import Actions, Observations

Floats = NDArray[np.float32]
METRICS = ("loss", "value", "gradient_norm")


@dataclass(frozen=True)
class DQNSettings(ReplaySettings):
    """Settings of one DQN run; the files in ``train/settings/`` hold the ones that were tuned, with their source.

    Those of every replay are in ``train/algorithms/common/settings.py``.
    """

    environments: int = 64
    rollout_steps: int = 16
    minibatch: int = 256
    n_step: int = 3
    learning_starts: int = 10_000
    learning_rate: float = setting(
        5e-4, "Adam's step size at the start; falls linearly to ``learning_rate_last`` × itself at the last step."
    )
    learning_rate_last: float = setting(0.1, "Share of the learning rate that is left at the last step.")
    target_period: int = setting(250, "Updates between two copies of the online network to the target network.")
    epsilon_first: float = setting(1.0, "Share of random actions at the start.")
    epsilon_last: float = setting(0.02, "Share of random actions after the exploration.")
    exploration: float = setting(0.2, "Share of all steps over which ε falls linearly.")
    exploration_hold: int = setting(
        1, "A random action is held for 1 to this many steps; ε is then the chance that one begins."
    )
    gradient_norm: float = setting(10.0, "Largest global norm of the gradient.")
    huber_delta: float = setting(1.0, "Errors beyond it count linearly; in units of the (scaled) return.")
    priority_exponent: float = setting(
        0.0, "α: transitions are drawn with a probability ∝ |error|^α; 0 draws all alike and costs nothing."
    )
    importance_exponent: float = setting(
        0.2, "β: how much of the bias of priorities is taken back by weights; 1 is all of it. Unused where α is 0."
    )
    engine: str = setting(TENSORFLOW, ENGINE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("target_period", "exploration_hold")


# --- pure functions ---------------------------------------------------------------------------------------------


def td_targets(returns: tf.Tensor, discounts: tf.Tensor, next_online: tf.Tensor, next_target: tf.Tensor) -> tf.Tensor:
    """Double n-step targets (batch,) (van Hasselt et al. 2016, equation 4).

    a* = argmax Q_online(s', ·);  y = R + γ' · Q_target(s', a*)

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the return terminated (batch,).
        next_online: Q_online(s', ·) (batch, actions).
        next_target: Q_target(s', ·) (batch, actions).
    """
    best = tf.argmax(next_online, axis=1, output_type=tf.int32)
    return returns + discounts * tf.gather(next_target, best, batch_dims=1)


def huber(errors: tf.Tensor, delta: float) -> tf.Tensor:
    """½ e² where |e| ≤ δ, else δ (|e| − ½ δ); element by element."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * errors * errors, delta * (size - 0.5 * delta))


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


def fresh_learner(
    generator: np.random.Generator,
    network: NetworkSpec,
    observation: tuple[int, ...],
    outputs: int,
    compute: str = "float32",
) -> Learner:
    """Orthogonal weights with a small head: action values start near 0. The target is a copy."""
    online = initial_weights(generator, network, observation, outputs, head_gain=0.01)
    zeros = zeros_like(online)
    groups: dict[str, Weights] = {"online": online, "target": dict(online), "first": zeros, "second": dict(zeros)}
    if loss_scale := fresh_loss_scale(Compute(compute)):
        groups["loss_scale"] = loss_scale
    return Learner(groups)


def make_update(settings: DQNSettings, network: NetworkSpec) -> Update:
    """Return the compiled round: (state, batches, updates before, rate) → (state, metrics (updates, 3), errors as
    drawn).

    ``batches`` are the columns of ``Experience.draw`` with the shape (updates, minibatch, …). Perceptrons are compiled
    by XLA; convolutions are not, since oneDNN's are faster, except for Adam's many small operators.
    """
    compiled, compute, control = not network.convolutions, Compute(settings.compute), settings.weight_control
    fake = fake_quantization(settings.quantization_bits, network)
    adam = adam_step if compiled else tf.function(adam_step, jit_compile=True, autograph=False)

    def descend(
        weights: Any, gradients: Any, first: Any, second: Any, steps: tf.Tensor, rate: tf.Tensor
    ) -> tuple[Any, Any, Any, tf.Tensor]:
        """Return one step of Adam along the clipped gradients: new weights and moments, and the norm before
        clipping."""
        gradients, norm = clip_by_global_norm(gradients, settings.gradient_norm)
        moved, first, second = adam(control.decay_weights(weights, rate), gradients, first, second, steps, rate)
        return control.clip_weights(moved), first, second, norm

    if compute.is_mixed and not compiled:  # fewer passes over the weights; in float32 other bits than those of old runs
        descend = tf.function(descend, jit_compile=True, autograph=False)

    def one(
        state: dict[str, Any], batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        scales = state.get(QUANTIZER, {})

        def action_values(weights: Any, observations: tf.Tensor) -> tf.Tensor:
            return forward(network, cast(fake_quantize_weights(weights, scales, fake), compute), observations)

        next_online = action_values(state["online"], batch["next_observation"])
        next_target = action_values(state["target"], batch["next_observation"])
        targets = td_targets(batch["return"], batch["discount"], next_online, next_target)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["online"])
            values = action_values(state["online"], batch["observation"])
            chosen = tf.gather(values, batch["action"], batch_dims=1)
            losses = huber(targets - chosen, settings.huber_delta)
            loss = tf.reduce_mean(batch["weight"] * losses if "weight" in batch else losses)
        gradients, finite = gradients_of(tape, loss, state["online"], state.get("loss_scale", {}))
        steps = tf.cast(count + 1, tf.float32)
        learned = descend(state["online"], gradients, state["first"], state["second"], steps, rate)
        online, first, second, norm = learned
        new_state = apply_if_finite({"online": online, "first": first, "second": second}, state, finite)
        renew, online = tf.equal((count + 1) % settings.target_period, 0), new_state["online"]
        new_state["target"] = {name: tf.where(renew, online[name], old) for name, old in state["target"].items()}
        return new_state | select_scales(state), tf.stack([loss, tf.reduce_mean(chosen), norm]), targets - chosen

    return compile_round(one, len(METRICS), ROWS, compiled=compiled)


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: DQNSettings, accelerated: Update | None = None) -> Trained:
    """Train until all steps are made or the run wants to stop; the policy of the best evaluation is returned.

    Raises:
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
        SettingsError: the task's actions are not one choice.
    """
    request, task = run.request, run.task
    if not isinstance(task.head, DiscreteHead):
        other = "ppo or --method a2c" if task.is_discrete else "ddpg"
        raise SettingsError(
            f"--method dqn requires a single discrete action, but {task.name} takes {task.head.describe()}. Type "
            f"--method {other}."
        )
    loop = Loop(run, settings, normaliser_of_replay(task, settings, request.steps))
    learner = fresh_learner(loop.generator, request.network, task.observation_shape, task.outputs, settings.compute)
    explore, experience = EpsilonGreedy(settings.environments, settings.exploration_hold), Experience(task, settings)
    loop.follow(learner, "online", {"explore": explore, **experience.list_checkpoint_parts()})
    if run.checkpoint is not None and task.is_image:
        run.progress.say(f"Checkpoints hold no images: {settings.learning_starts:,} steps refill the replay first.")
    # With engine = "numpy" the same update runs with gradients by hand: train/accelerator.
    update = accelerated or make_update(settings, request.network)
    forward = Acting(request.network, Compute(settings.compute))

    def values(observation: Observations) -> Floats:
        return forward(loop.aware.acting(loop.weights), loop.normaliser(observation))

    def greedy(observation: Observations) -> Actions:
        return values(observation).argmax(axis=1)

    while loop.should_continue():
        epsilon = exploration_rate(settings.epsilon_first, settings.epsilon_last, settings.exploration, loop.share)
        rate = settings.learning_rate * linear(1.0, settings.learning_rate_last, loop.share)

        # Act: a = argmax Q(s, ·), or with probability ε a random one; (s, a, r, s') goes into the replay.
        for _ in range(settings.rollout_steps):
            observation = loop.stream.observation
            loop.normaliser.update(observation)
            actions = explore(loop.generator, values(observation), epsilon)
            transition = loop.stream.step(actions)
            experience.add(observation, actions, transition)
            explore.begin(transition.done)
        loop.step += loop.iteration_steps

        # Learn: a round of Adam's steps on L = mean w · huber(R + γ' Q_target(s', a*) − Q(s, a)), in one compiled call.
        row = {**dict.fromkeys(METRICS, math.nan), "epsilon": epsilon, "learning_rate": rate}
        if experience.suffices:
            batches = experience.draw(loop.generator, loop.normaliser)
            metrics, errors = learn(update, learner, batches, rate, loop.aware.group)
            row |= loop.means(metrics, METRICS)
            experience.prioritize(errors)
        loop.report(row, greedy, may_be_best=loop.step >= settings.learning_starts)
    return loop.finish_training()
