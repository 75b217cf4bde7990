"""PPO: proximal policy optimization with a clipped surrogate (Schulman et al. 2017), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` steps; generalized advantages are computed in numpy; then all
epochs and minibatches of the update run in one compiled call. Three files of ``common/``, shared with A2C, complete it:
``rollouts.py`` (what a rollout keeps, and the recursion of the advantages), ``actor_critic.py`` (the networks and a
clipped step of both) and ``loop.py`` (reports, checkpoints). Equations and deviations: ``docs/algorithms/ppo.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import NetworkSpec, Squash
from quarl.train.algorithms.common.actor_critic import ActorCritic, Forward, descent, outputs_and_values
from quarl.train.algorithms.common.distributions import Distribution, distribution_of
from quarl.train.algorithms.common.learner import State, Update, scan_updates
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.normalisation import RunningNormaliser
from quarl.train.algorithms.common.rollouts import RewardScaling, Rollout, compute_advantages
from quarl.train.algorithms.common.settings import RolloutSettings, setting
from quarl.train.lazily import tf
from quarl.train.networks.optimiser import adam
from quarl.train.quantization.aware import fake_quantization
from quarl.train.quantization.fake import QUANTIZER, fake_quantize_weights
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import Actions, Observations

METRICS = ("policy_loss", "value_loss", "entropy", "divergence", "clipped", "policy_norm", "value_norm")


@dataclass(frozen=True)
class PPOSettings(RolloutSettings):
    """Settings of one PPO run; the files in ``train/settings/`` hold the ones that were tuned, with their source.

    Those that A2C has as well are in ``train/algorithms/common/settings.py``; the batch is environments ×
    rollout_steps.
    """

    environments: int = 128
    rollout_steps: int = 64
    entropy_last: float = 0.001
    epochs: int = setting(4, "Passes over the batch in one update.")
    minibatch: int = setting(2048, "Rows of one gradient step; must divide the batch.")
    clip_range: float = setting(0.2, "ε: how far the probability ratio may move the objective away from 1.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("epochs", "minibatch")
        batch = self.environments * self.rollout_steps
        if batch % self.minibatch:
            raise ValueError(
                f"minibatch must divide the batch of {self.environments} environments × {self.rollout_steps} steps = "
                f"{batch}, got {self.minibatch}. Type --set minibatch={batch // 4}, for example."
            )


# --- pure functions ---------------------------------------------------------------------------------------------


def compute_clipped_surrogate(ratio: tf.Tensor, advantages: tf.Tensor, clip_range: float) -> tf.Tensor:
    """L = E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] (Schulman et al. 2017, equation 7), to be made large; ρ, A (batch,)."""
    return tf.reduce_mean(
        tf.minimum(ratio * advantages, tf.clip_by_value(ratio, 1.0 - clip_range, 1.0 + clip_range) * advantages)
    )


def standardise_advantages(advantages: tf.Tensor) -> tf.Tensor:
    """Return (A − mean A) / (std A + 10⁻⁸), (batch,)."""
    return (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-8)


def policy_loss(
    distribution: Distribution,
    weights: Mapping[str, tf.Tensor],
    outputs: tf.Tensor,
    batch: Mapping[str, tf.Tensor],
    clip_range: float,
    entropy_coefficient: tf.Tensor,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """−L_clip − c · H and its parts for one minibatch.

    ρ = π(a|s) / π_old(a|s);  H = E[−Σ π log π];  divergence ≈ E[(ρ − 1) − log ρ] (Schulman's k3 estimate of KL)

    ``weights`` are the policy's, those of the distribution among them, ``outputs`` its network's, (batch, outputs).
    ``batch`` has ``action``, ``log_probability`` (old) and ``advantage``; c is the entropy's coefficient.
    """
    log_ratio = distribution.log_probability(outputs, batch["action"], weights) - batch["log_probability"]
    ratio = tf.exp(log_ratio)
    entropy = tf.reduce_mean(distribution.entropy(outputs, weights))
    surrogate = compute_clipped_surrogate(ratio, standardise_advantages(batch["advantage"]), clip_range)
    parts = {
        "policy_loss": -surrogate,
        "entropy": entropy,
        "divergence": tf.reduce_mean(ratio - 1.0 - log_ratio),
        "clipped": tf.reduce_mean(tf.cast(tf.abs(ratio - 1.0) > clip_range, tf.float32)),
    }
    return -surrogate - entropy_coefficient * entropy, parts


def value_loss(values: tf.Tensor, returns: tf.Tensor) -> tf.Tensor:
    """½ E[(V(s) − R)²] with R = A + V_old(s)."""
    return 0.5 * tf.reduce_mean(tf.square(values - returns))


# --- the update: all epochs and minibatches in one compiled call --------------------------------------------------


def shuffle_minibatches(generator: np.random.Generator, rows: int, minibatch: int, epochs: int) -> NDArray[np.int32]:
    """Return a fresh permutation of the rows for every epoch, cut into minibatches: (epochs × rows / minibatch,
    minibatch)."""
    order = np.concatenate([generator.permutation(rows) for _ in range(epochs)])
    return order.reshape(-1, minibatch).astype(np.int32)


def make_update(settings: PPOSettings, network: NetworkSpec, distribution: Distribution) -> Update:
    """Return the compiled update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    ``order`` (minibatches, rows) int32 names the rows of every minibatch of every epoch; ``metrics``
    (minibatches, 7) has the columns of ``METRICS``, in which a NaN betrays the minibatch that made it.

    XLA compiles it for multilayer perceptrons; its convolutions on a CPU are slower than TensorFlow's own.
    """
    fake, descend = fake_quantization(settings.quantization_bits, network), descent(settings, network, adam)

    @tf.function(jit_compile=not network.convolutions, autograph=False)
    def update(
        state: State, batch: dict[str, tf.Tensor], order: tf.Tensor, count: tf.Tensor, rate: tf.Tensor, bonus: tf.Tensor
    ) -> tuple[State, tf.Tensor]:
        def one(index: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
            rows = {name: tf.gather(column, order[index]) for name, column in batch.items()}
            policy, value = state["policy"], state["value"]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch((policy, value))
                quantized = fake_quantize_weights(
                    policy, state.get(QUANTIZER, {}), fake
                )  # the policy itself without quantizers
                outputs, values = outputs_and_values(network, quantized, value, rows["observation"], settings.compute)
                # loss = −L_clip − c · H + w · ½ E[(V(s) − R)²]
                loss, parts = policy_loss(distribution, policy, outputs, rows, settings.clip_range, bonus)
                error = value_loss(values, rows["return"])
                loss += settings.value_weight * error
            # θ ← a step of Adam along the clipped gradient
            state, norms = descend(state, tape, loss, count + tf.cast(index, tf.float32) + 1.0, rate)
            parts |= {"value_loss": error, **norms}
            return state, tf.stack([parts[name] for name in METRICS])

        return scan_updates(one, state, order.shape[0], len(METRICS))

    return lambda *arguments: update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: PPOSettings, accelerated: Update | None = None) -> Trained:
    """Train until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: a loss or gradient became NaN or infinite; the last good checkpoint is kept.
    """
    task, network = run.task, run.request.network
    loop = Loop(run, settings, RunningNormaliser(task.observation_size, settings.normaliser_steps))
    distribution = distribution_of(task, settings.log_std)
    learner = ActorCritic.fresh(
        loop.generator,
        network,
        task.observation_shape,
        task.outputs,
        settings.value_hidden,
        extra=distribution.extra_weights(),
        compute=settings.compute,
    )
    scaled = RewardScaling(settings)
    loop.follow(learner, "policy", {"rewards": scaled})
    forward = Forward(learner, settings.compute, loop.aware.acting)
    # With engine = "numpy" the same update runs with gradients by hand: train/accelerator.
    update = accelerated or make_update(settings, network, distribution)

    def greedy(observation: Observations) -> Actions:
        return distribution.greedy(forward(loop.normaliser(observation))[0])

    while loop.should_continue():
        rate, bonus = settings.schedules(loop.share)

        # Collect: aₜ ~ π(·|sₜ) in every environment.
        rollout = Rollout(settings.rollout_steps, distribution, loop.stream.observation)
        for step in range(settings.rollout_steps):
            outputs, values = forward(loop.normaliser(loop.stream.observation))
            actions, log_probabilities = distribution.sample(loop.generator, outputs, learner.policy)
            transition = loop.stream.step(distribution.to_environment(actions))
            rollout.add(step, actions, log_probabilities, values, transition)
        loop.step += loop.iteration_steps

        # Advantages: δₜ = rₜ + γ V(sₜ₊₁) (1 − terminatedₜ) − V(sₜ);  Aₜ = δₜ + γ λ (1 − cutₜ) Aₜ₊₁
        values, next_values = rollout.evaluate(forward, loop.normaliser)
        rewards = scaled(rollout.rewards, rollout.cut)
        advantages = compute_advantages(
            rewards, values, next_values, rollout.terminated, rollout.cut, settings.discount, settings.gae_lambda
        )
        batch = rollout.batch(advantages, advantages + values)  # Rₜ = Aₜ + V(sₜ)

        # Update: a step of Adam for every minibatch of every epoch, all in one compiled call.
        order = shuffle_minibatches(loop.generator, loop.iteration_steps, settings.minibatch, settings.epochs)
        numbers = np.float32(learner.updates), np.float32(rate), np.float32(bonus)
        (metrics,) = learner.take(update, batch, order, *numbers, quantizer=loop.aware.group)
        learner.updates += len(order)

        row = {**loop.means(metrics, METRICS), "learning_rate": rate}
        loop.report(row, greedy, may_be_best=settings.keep_best and loop.normaliser.is_settled)
    return loop.finish_training(Squash.CLIP)
