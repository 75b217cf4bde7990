"""A2C: advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` steps; n-step returns (or generalized advantages) are computed
in numpy; then one gradient step on the whole batch in one compiled call. Three files of ``common/``, shared with PPO,
complete it: ``rollouts.py`` (what a rollout keeps, and the recursion of the advantages), ``actor_critic.py`` (the
networks and a clipped step of both) and ``loop.py`` (reports, checkpoints). Equations and deviations from the paper:
``docs/algorithms/a2c.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quarl.policy.spec import NetworkSpec, Squash
from quarl.train.algorithms.common.actor_critic import ActorCritic, Forward, descent, outputs_and_values
from quarl.train.algorithms.common.distributions import Distribution, distribution_of
from quarl.train.algorithms.common.learner import State, Update
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

METRICS = ("policy_loss", "value_loss", "entropy", "policy_norm", "value_norm")
MOMENTS = {"rmsprop": ("second",), "adam": ("first", "second")}
"""Moments that each optimiser remembers; see ``ActorCritic.fresh``."""


@dataclass(frozen=True)
class A2CSettings(RolloutSettings):
    """Settings of one A2C run; the files in ``train/settings/`` hold the ones that were tuned, with their source.

    Those that PPO has as well are in ``train/algorithms/common/settings.py``. A batch is environments × rollout_steps,
    the paper's n; ``gae_lambda`` 1 gives its n-step returns.
    """

    environments: int = 16
    rollout_steps: int = 5
    gae_lambda: float = 1.0
    value_weight: float = 0.5
    optimiser: str = setting("rmsprop", '"rmsprop" as in the paper, or "adam".')
    rms_decay: float = setting(0.99, "α of RMSProp's running mean of squares.")
    rms_epsilon: float = setting(1e-5, "ε under RMSProp's root.")
    normalise_advantages: bool = setting(
        False, "Whether the advantages of a batch are brought to mean 0 and deviation 1."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser not in MOMENTS:
            raise ValueError(f"optimiser must be one of {', '.join(MOMENTS)}, got {self.optimiser!r}.")


# --- pure functions ---------------------------------------------------------------------------------------------


def loss_parts(
    distribution: Distribution,
    weights: Mapping[str, Any],
    outputs: Any,
    values: Any,
    batch: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the three parts of the loss for one batch (Mnih et al. 2016, section 4).

    policy_loss = −E[log π(a|s) · A], A fixed;  value_loss = ½ E[(R − V(s))²];  entropy = E[H(π(·|s))]

    ``weights`` are the policy's, those of the distribution among them, ``outputs`` its network's, (batch, outputs), and
    ``values`` V(s), (batch,). ``batch`` has ``action``, ``advantage`` A and ``return`` R = A + V.
    """
    log_probabilities = distribution.log_probability(outputs, batch["action"], weights)
    return {
        "policy_loss": -tf.reduce_mean(log_probabilities * batch["advantage"]),
        "value_loss": 0.5 * tf.reduce_mean(tf.square(values - batch["return"])),
        "entropy": tf.reduce_mean(distribution.entropy(outputs, weights)),
    }


def rmsprop_step(
    weights: Mapping[str, Any],
    gradients: Mapping[str, Any],
    second_moment: Mapping[str, Any],
    learning_rate: Any,
    decay: float,
    epsilon: float,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return one step of RMSProp without momentum (Mnih et al. 2016, equations 8 and 9): new weights and moments.

    g ← α g + (1 − α) Δθ²;  θ ← θ − η Δθ / √(g + ε)

    ``weights`` are θ by name, likewise the gradients Δθ and the running means of their squares g, ``second_moment``;
    η is the learning rate, α the ``decay``.
    """
    moments = {name: decay * second_moment[name] + (1.0 - decay) * g * g for name, g in gradients.items()}
    moved = {
        name: weights[name] - learning_rate * g / (moments[name] + epsilon) ** 0.5 for name, g in gradients.items()
    }
    return moved, moments


# --- the update ---------------------------------------------------------------------------------------------------


def make_update(settings: A2CSettings, network: NetworkSpec, distribution: Distribution) -> Update:
    """Return the compiled update: (state, batch, count, learning rate, entropy coefficient) → (state, metrics (5,)).

    XLA compiles it for multilayer perceptrons; its convolutions on a CPU are slower than TensorFlow's own.
    """

    def rmsprop(
        weights: State, gradients: State, moments: State, count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[State, State]:
        decay, epsilon = settings.rms_decay, settings.rms_epsilon
        moved, second = rmsprop_step(weights, gradients, moments["second"], rate, decay, epsilon)
        return moved, {"second": second}

    optimise = rmsprop if settings.optimiser == "rmsprop" else adam
    fake, descend = fake_quantization(settings.quantization_bits, network), descent(settings, network, optimise)

    @tf.function(jit_compile=not network.convolutions, autograph=False)
    def update(
        state: State, batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor, bonus: tf.Tensor
    ) -> tuple[State, tf.Tensor]:
        policy, value = state["policy"], state["value"]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((policy, value))
            quantized = fake_quantize_weights(
                policy, state.get(QUANTIZER, {}), fake
            )  # the policy itself without quantizers
            outputs, values = outputs_and_values(network, quantized, value, batch["observation"], settings.compute)
            if settings.normalise_advantages:
                advantages = batch["advantage"]
                centred = advantages - tf.reduce_mean(advantages)
                batch = {**batch, "advantage": centred / (tf.math.reduce_std(advantages) + 1e-8)}
            parts = loss_parts(distribution, policy, outputs, values, batch)
            # loss = −E[log π · A] + w · ½ E[(R − V)²] − c · H
            loss = parts["policy_loss"] + settings.value_weight * parts["value_loss"] - bonus * parts["entropy"]
        state, norms = descend(state, tape, loss, count, rate)
        parts |= norms
        return state, tf.stack([parts[name] for name in METRICS])

    return lambda *arguments: update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))


# --- the loop -----------------------------------------------------------------------------------------------------

REPORT_EVERY = 2048
"""Steps between two rows of the log: an iteration is too short for a row of its own."""


def train(run: Run, settings: A2CSettings, accelerated: Update | None = None) -> Trained:
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
        MOMENTS[settings.optimiser],
        distribution.extra_weights(),
        settings.compute,
    )
    scaled = RewardScaling(settings)
    loop.follow(learner, "policy", {"rewards": scaled})
    forward = Forward(learner, settings.compute, loop.aware.acting)
    # With engine = "numpy" the same update runs with gradients by hand: train/accelerator.
    update = accelerated or make_update(settings, network, distribution)
    updates_a_row = max(REPORT_EVERY // loop.iteration_steps, 1)

    def greedy(observation: Observations) -> Actions:
        return distribution.greedy(forward(loop.normaliser(observation))[0])

    while loop.should_continue():
        metrics = np.empty((updates_a_row, len(METRICS)), np.float32)
        for index in range(updates_a_row):
            rate, bonus = settings.schedules(loop.share)

            # Collect: aₜ ~ π(·|sₜ) in every environment.
            rollout = Rollout(settings.rollout_steps, distribution, loop.stream.observation)
            for step in range(settings.rollout_steps):
                outputs, values = forward(loop.normaliser(loop.stream.observation))
                actions, log_probabilities = distribution.sample(loop.generator, outputs, learner.policy)
                transition = loop.stream.step(distribution.to_environment(actions))
                rollout.add(step, actions, log_probabilities, values, transition)
            loop.step += loop.iteration_steps

            # Advantages: Aₜ = Σᵢ γⁱ rₜ₊ᵢ + γⁿ V(sₜ₊ₙ) − V(sₜ), where λ = 1
            values, next_values = rollout.evaluate(forward, loop.normaliser)
            rewards = scaled(rollout.rewards, rollout.cut)
            advantages = compute_advantages(
                rewards, values, next_values, rollout.terminated, rollout.cut, settings.discount, settings.gae_lambda
            )
            batch = rollout.batch(advantages, advantages + values)  # Rₜ = Aₜ + V(sₜ)
            del batch["log_probability"]

            # Update: one step of the optimiser on the whole batch.
            learner.updates += 1
            numbers = np.float32(learner.updates), np.float32(rate), np.float32(bonus)
            (metrics[index],) = learner.take(update, batch, *numbers, quantizer=loop.aware.group)
            run.check_finite(loop.step, metrics[index : index + 1], METRICS)  # before NaN is acted on

        row = {**loop.means(metrics, METRICS), "learning_rate": rate}
        may_be_best = settings.keep_best and loop.normaliser.is_settled
        loop.report(row, greedy, may_be_best, updates_a_row * loop.iteration_steps)
    return loop.finish_training(Squash.CLIP)
