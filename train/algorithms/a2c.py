"""A2C: advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` steps; n-step returns (or generalized advantages) are computed
in numpy; then one gradient step on the whole batch in one compiled call. What A2C shares with PPO is in ``common/``:
the networks in ``actor_critic.py``, rollouts and advantages in ``rollouts.py``, the loop's reports and checkpoints in
``loop.py``. Equations and deviations from the paper: ``docs/algorithms/a2c.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import NetworkSpec, Squash
from train.algorithms.common.actor_critic import gradient_step
from train.algorithms.common.distributions import Distribution
from train.algorithms.common.learner import Learner, State, Update
from train.algorithms.common.rollouts import Rollouts
from train.algorithms.common.settings import RolloutSettings, setting
from train.lazily import tf
from train.networks.optimiser import adam
from train.runs.request import Trained
from train.runs.run import Run

METRICS = ("policy_loss", "value_loss", "entropy", "policy_norm", "value_norm")
MOMENTS = {"rmsprop": ("second",), "adam": ("first", "second")}
"""What each optimiser remembers; see ``ActorCritic.fresh``."""


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
            raise ValueError(f"optimiser {self.optimiser!r} is not known; allowed are {', '.join(MOMENTS)}.")


# --- pure functions ---------------------------------------------------------------------------------------------


def loss_parts(
    distribution: Distribution,
    weights: Mapping[str, Any],
    outputs: Any,
    values: Any,
    batch: Mapping[str, Any],
) -> dict[str, Any]:
    """The three parts of the loss for one batch (Mnih et al. 2016, section 4).

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
    """One step of RMSProp without momentum (Mnih et al. 2016, equations 8 and 9): new weights and moments.

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
    """The compiled update: (state, batch, count, learning rate, entropy coefficient) → (state, metrics (5,)).

    XLA compiles it for multilayer perceptrons; its convolutions on a CPU are slower than TensorFlow's own.
    """

    def losses(
        policy: State, outputs: tf.Tensor, values: tf.Tensor, batch: Mapping[str, tf.Tensor], bonus: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        if settings.normalise_advantages:
            advantages = batch["advantage"]
            centred = advantages - tf.reduce_mean(advantages)
            batch = {**batch, "advantage": centred / (tf.math.reduce_std(advantages) + 1e-8)}
        parts = loss_parts(distribution, policy, outputs, values, batch)
        return parts["policy_loss"] + settings.value_weight * parts["value_loss"] - bonus * parts["entropy"], parts

    def rmsprop(
        weights: State, gradients: State, moments: State, count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[State, State]:
        decay, epsilon = settings.rms_decay, settings.rms_epsilon
        moved, second = rmsprop_step(weights, gradients, moments["second"], rate, decay, epsilon)
        return moved, {"second": second}

    optimise = rmsprop if settings.optimiser == "rmsprop" else adam
    step = gradient_step(settings, network, losses, optimise, METRICS)
    update = tf.function(step, jit_compile=not network.convolutions, autograph=False)
    return lambda *arguments: update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))


def learn(
    update: Update,
    learner: Learner,
    batch: Mapping[str, Any],
    rate: float,
    bonus: float,
    quantizer: Mapping[str, Any] | None = None,
) -> NDArray[np.float32]:
    """Run the compiled update on the learner, with the group ``quantizer`` if it is active; its metrics (5,)."""
    learner.updates += 1
    numbers = np.float32(learner.updates), np.float32(rate), np.float32(bonus)
    (metrics,) = learner.take(update, batch, *numbers, quantizer=quantizer)
    return metrics


# --- the loop -----------------------------------------------------------------------------------------------------

REPORT_EVERY = 2048
"""Steps between two rows of the log: an iteration is too short for a row of its own."""


def train(run: Run, settings: A2CSettings, accelerated: Update | None = None) -> Trained:
    """Train until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: a loss or gradient became NaN or infinite; the last good checkpoint is kept.
    """
    loop = Rollouts(run, settings, MOMENTS[settings.optimiser])
    # With engine = "numpy" the same update runs with gradients by hand: train/accelerator.
    update = accelerated or make_update(settings, run.request.network, loop.distribution)
    updates_a_row = max(REPORT_EVERY // loop.iteration_steps, 1)
    while loop.goes_on():
        metrics = np.empty((updates_a_row, len(METRICS)), np.float32)
        for index in range(updates_a_row):
            rate, bonus = loop.schedules()
            batch = loop.gather()
            del batch["log_probability"]
            metrics[index] = learn(update, loop.learner, batch, rate, bonus, loop.aware.group)
            loop.aware.count(1)
            loop.step += loop.iteration_steps
            run.check_finite(loop.step, metrics[index : index + 1], METRICS)  # before NaN is acted on
        row = {**loop.means(metrics, METRICS), "learning_rate": rate}
        loop.report(row, loop.decide, updates_a_row * loop.iteration_steps)
    return loop.finished(Squash.CLIP)
