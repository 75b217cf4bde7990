"""PPO: proximal policy optimization with a clipped surrogate (Schulman et al. 2017), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` steps; generalized advantages are computed in numpy; then all
epochs and minibatches of the update run in one compiled call. What PPO shares with A2C (networks, rollout,
advantages, checkpoint) is in ``train/actor_critic.py``. Equations and deviations from the paper:
``docs/algorithms/ppo.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import NetworkSpec, Squash
from train import networks
from train.actor_critic import (
    Forward,
    Learner,
    clipped_together,
    collect,
    generalized_advantages,
    linear,
    normaliser_of,
    offered,
    outputs_and_values,
    restore,
    saved,
    training_batch,
)
from train.best import BestPolicy
from train.distributions import Distribution, distribution_of, exported
from train.engine import check_engine, uses_numpy
from train.episodes import Actions, EpisodeStream, Observations
from train.gradients import clipped_by_norm
from train.lazily import tf
from train.mixed_precision import check_compute, gradients_of, settled
from train.run import Run, Trained
from train.tasks import episode_seed

__all__ = ["PPOSettings", "generalized_advantages", "train"]
METRICS = ("policy_loss", "value_loss", "entropy", "divergence", "clipped", "policy_norm", "value_norm")


@dataclass(frozen=True)
class PPOSettings:
    """Settings of one PPO run; the files in ``train/settings/`` hold the ones that were tuned, with their source."""

    environments: int = 128
    """Environments stepped together."""
    rollout_steps: int = 64
    """Steps of every environment between two updates; the batch is environments × rollout_steps."""
    epochs: int = 4
    """Passes over the batch in one update."""
    minibatch: int = 2048
    """Rows of one gradient step; must divide the batch."""
    learning_rate: float = 7e-4
    """Adam's step size at the start; falls linearly to ``learning_rate_last`` × itself at the last step."""
    learning_rate_last: float = 0.0
    """Share of the learning rate that is left at the last step."""
    discount: float = 0.99
    """γ, per step."""
    gae_lambda: float = 0.95
    """λ of the generalized advantages: 0 is one-step, 1 is the whole return."""
    clip_range: float = 0.2
    """ε: how far the probability ratio may move the objective away from 1."""
    entropy_first: float = 0.01
    """Entropy bonus at the start, in reward per nat."""
    entropy_last: float = 0.001
    """Entropy bonus at the last step; linear in between."""
    gradient_norm: float = 0.5
    """Largest global norm of the policy's and of the value network's gradient, each on its own; of both together
    where they share their trunk (images)."""
    value_weight: float = 1.0
    """Weight of the value's loss beside the policy's; matters only where they share their trunk."""
    log_std: float = 0.0
    """log σ of a continuous task's Gaussian at the start, where 1 is half the range of an action."""
    value_hidden: tuple[int, ...] = ()
    """Hidden layers of the value network; empty means those of the policy."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning, so that returns are of order one."""
    normaliser_steps: int = 2_000_000
    """Steps over which running statistics of the observations are gathered; frozen after that."""
    keep_best: bool = False
    """The bundle holds the policy of the best greedy evaluation, made since the statistics of the observations stand
    still (images have none), instead of the last one."""

    compute: str = "float32"
    """Number type of the hidden layers' activations and their gradients: float32, bfloat16 or float16
    (--mixed-precision); weights, heads, losses and the optimiser are float32 all the same."""
    engine: str = "tensorflow"
    """What computes the updates: "tensorflow" (compiled), or "numpy", which is faster for small perceptrons."""

    def __post_init__(self) -> None:
        check_engine(self.engine)
        check_compute(self.compute, self.engine)
        batch = self.environments * self.rollout_steps
        if batch % self.minibatch:
            raise ValueError(
                f"minibatch {self.minibatch} does not divide the batch of {self.environments} environments × "
                f"{self.rollout_steps} steps = {batch}. Choose a divisor, for example {batch // 4}."
            )


# --- pure functions ---------------------------------------------------------------------------------------------


def clipped_surrogate(ratio: tf.Tensor, advantages: tf.Tensor, clip_range: float) -> tf.Tensor:
    """L = E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] (Schulman et al. 2017, equation 7), to be made large; ρ, A (batch,)."""
    return tf.reduce_mean(
        tf.minimum(ratio * advantages, tf.clip_by_value(ratio, 1.0 - clip_range, 1.0 + clip_range) * advantages)
    )


def normalised_advantages(advantages: tf.Tensor) -> tf.Tensor:
    """(A − mean A) / (std A + 10⁻⁸), (batch,)."""
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

    Args:
        distribution: of the actions; its own weights are among ``weights``.
        weights: of the policy.
        outputs: of the policy's network, (batch, outputs).
        batch: ``action``, ``log_probability`` (old) and ``advantage``.
        clip_range: ε.
        entropy_coefficient: c.
    """
    log_ratio = distribution.log_probability(outputs, batch["action"], weights) - batch["log_probability"]
    ratio = tf.exp(log_ratio)
    entropy = tf.reduce_mean(distribution.entropy(outputs, weights))
    surrogate = clipped_surrogate(ratio, normalised_advantages(batch["advantage"]), clip_range)
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


def make_update(
    settings: PPOSettings, network: NetworkSpec, distribution: Distribution
) -> Callable[..., tuple[Any, tf.Tensor]]:
    """The compiled update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    ``order`` (minibatches, rows) int32 names the rows of every minibatch of every epoch; ``metrics``
    (minibatches, 7) has the columns of ``METRICS``, in which a NaN betrays the minibatch that made it.

    XLA compiles it for multilayer perceptrons; its convolutions on a CPU are slower than TensorFlow's own.

    Raises:
        SettingsError: the engine "numpy" cannot compute the network's gradient.
    """
    if uses_numpy(settings.engine, network):
        from train.by_hand.on_policy import ppo_update

        return ppo_update(settings, distribution)
    shared = bool(network.convolutions)

    @tf.function(jit_compile=True, autograph=False)  # one pass over the weights instead of a dozen
    def descend(
        state: dict[str, Any], of_policy: Any, of_value: Any, count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        """One step of Adam along the clipped gradients: the new state, and the norms before clipping."""
        if shared:
            of_policy, of_value, policy_norm = clipped_together(of_policy, of_value, settings.gradient_norm)
            value_norm = policy_norm
        else:
            of_policy, policy_norm = clipped_by_norm(of_policy, settings.gradient_norm)
            of_value, value_norm = clipped_by_norm(of_value, settings.gradient_norm)
        new: dict[str, Any] = {}
        for name, gradients in (("policy", of_policy), ("value", of_value)):
            moments = state[f"{name}_first"], state[f"{name}_second"]
            new[name], new[f"{name}_first"], new[f"{name}_second"] = networks.adam_step(
                state[name], gradients, *moments, count, rate
            )
        return new, policy_norm, value_norm

    def one_minibatch(
        state: dict[str, Any], batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor, bonus: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        policy, value = state["policy"], state["value"]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((policy, value))
            outputs, values = outputs_and_values(network, policy, value, batch["observation"], settings.compute)
            loss, parts = policy_loss(distribution, policy, outputs, batch, settings.clip_range, bonus)
            error = value_loss(values, batch["return"])
            loss += settings.value_weight * error
        (of_policy, of_value), finite = gradients_of(tape, loss, (policy, value), state.get("loss_scale", {}))
        new, policy_norm, value_norm = descend(state, of_policy, of_value, count, rate)
        new = settled(new, state, finite)
        parts = parts | {"value_loss": error, "policy_norm": policy_norm, "value_norm": value_norm}
        return new, tf.stack([parts[name] for name in METRICS])

    @tf.function(jit_compile=not shared, autograph=False)
    def update(
        state: dict[str, Any],
        batch: dict[str, tf.Tensor],
        order: tf.Tensor,
        count: tf.Tensor,
        rate: tf.Tensor,
        bonus: tf.Tensor,
    ) -> tuple[dict[str, Any], tf.Tensor]:
        minibatches = order.shape[0]

        def body(
            index: tf.Tensor, state: dict[str, Any], metrics: tf.Tensor
        ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
            rows = {name: tf.gather(column, order[index]) for name, column in batch.items()}
            state, row = one_minibatch(state, rows, count + tf.cast(index, tf.float32) + 1.0, rate, bonus)
            return index + 1, state, tf.tensor_scatter_nd_update(metrics, [[index]], row[None])

        start = (tf.constant(0), state, tf.zeros((minibatches, len(METRICS))))
        _, state, metrics = tf.while_loop(lambda index, *_: index < minibatches, body, start)
        return state, metrics

    return lambda *arguments: update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))


def shuffled_order(generator: np.random.Generator, rows: int, minibatch: int, epochs: int) -> NDArray[np.int32]:
    """A fresh permutation of the rows for every epoch, cut into minibatches: (epochs × rows / minibatch, minibatch)."""
    order = np.concatenate([generator.permutation(rows) for _ in range(epochs)])
    return order.reshape(-1, minibatch).astype(np.int32)


def learn(
    update: Callable[..., tuple[Any, tf.Tensor]],
    learner: Learner,
    batch: dict[str, NDArray[Any]],
    order: NDArray[np.int32],
    rate: float,
    bonus: float,
) -> NDArray[np.float32]:
    """Run the compiled update on the learner; its metrics (minibatches, 7)."""
    numbers = np.float32(learner.updates), np.float32(rate), np.float32(bonus)
    state, metrics = update(learner.state(), batch, order, *numbers)
    learner.put(state)
    learner.updates += len(order)
    return np.asarray(metrics)


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: PPOSettings) -> Trained:
    """Train until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: a loss or gradient became NaN or infinite; the last good checkpoint is kept.
    """
    request, task = run.request, run.task
    generator = np.random.default_rng(request.seed)
    distribution = distribution_of(task, settings.log_std)
    learner = Learner.fresh(
        generator,
        request.network,
        task.observation_shape,
        task.outputs,
        settings.value_hidden,
        extra=distribution.extra_weights(),
        compute=settings.compute,
    )
    forward = Forward(learner, settings.compute)
    normaliser = normaliser_of(task, settings.normaliser_steps)
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    best = BestPolicy(task.presets[0])
    if run.checkpoint is not None:
        generator = restore(run.checkpoint, learner, normaliser, stream, best)
    update = make_update(settings, request.network, distribution)
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def decide(observation: Observations) -> Actions:
        return distribution.greedy(forward.outputs(normaliser(observation)))

    def save() -> None:
        run.save(step, *saved(learner, normaliser, stream, best, generator))

    while step < request.steps and run.stop_reason is None:
        share = step / request.steps
        rate = settings.learning_rate * linear(1.0, settings.learning_rate_last, share)
        bonus = linear(settings.entropy_first, settings.entropy_last, share)
        rollout = collect(stream, normaliser, learner, forward, distribution, generator, settings)
        order = shuffled_order(generator, iteration_steps, settings.minibatch, settings.epochs)
        metrics = learn(update, learner, training_batch(rollout, settings), order, rate, bonus)
        step += iteration_steps
        run.check_finite(step, metrics, METRICS)
        means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        row = {**stream.take_tally().row(), **means, "learning_rate": rate}
        run.report(step, row, iteration_steps, decide)
        offered(best, settings, run, normaliser, learner, step)
        if run.wants_checkpoint:
            save()
    save()
    weights, notes = best.weights(exported(learner.policy)), {"updates": learner.updates, **best.notes()}
    return Trained(weights, normaliser.frozen(), step, notes, squash=Squash.CLIP)
