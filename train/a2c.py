"""A2C: advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` steps; n-step returns (or generalized advantages) are computed
in numpy; then one gradient step on the whole batch in one compiled call. What A2C shares with PPO (networks, rollout,
advantages, checkpoint) is in ``train/actor_critic.py``. Equations and deviations from the paper:
``docs/algorithms/a2c.md``.
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
    linear,
    normaliser_of,
    offered,
    outputs_and_values,
    restore,
    saved,
    training_batch,
)
from train.best import BestPolicy
from train.by_hand.on_policy import a2c_update
from train.distributions import Distribution, distribution_of, exported
from train.engine import check_engine, uses_numpy
from train.episodes import Actions, EpisodeStream, Observations
from train.gradients import clipped_by_norm
from train.lazily import tf
from train.mixed_precision import check_compute, gradients_of, settled
from train.run import Run, Trained
from train.tasks import episode_seed

METRICS = ("policy_loss", "value_loss", "entropy", "policy_norm", "value_norm")
MOMENTS = {"rmsprop": ("second",), "adam": ("first", "second")}
"""What each optimiser remembers, by the names of ``Learner.moments``."""


@dataclass(frozen=True)
class A2CSettings:
    """Settings of one A2C run; the files in ``train/settings/`` hold the ones that were tuned, with their source."""

    environments: int = 16
    """Environments stepped together."""
    rollout_steps: int = 5
    """n: steps of every environment between two updates; the batch is environments × rollout_steps."""
    learning_rate: float = 7e-4
    """The optimiser's step size at the start; falls linearly to ``learning_rate_last`` × itself at the last step."""
    learning_rate_last: float = 0.0
    """Share of the learning rate that is left at the last step."""
    discount: float = 0.99
    """γ, per step."""
    gae_lambda: float = 1.0
    """λ of the generalized advantages: 1 gives the n-step returns of the paper."""
    entropy_first: float = 0.01
    """Entropy bonus at the start, in reward per nat."""
    entropy_last: float = 0.01
    """Entropy bonus at the last step; linear in between."""
    gradient_norm: float = 0.5
    """Largest global norm of the policy's and of the value network's gradient, each on its own; of both together
    where they share their trunk (images)."""
    value_weight: float = 0.5
    """Weight of the value's loss beside the policy's."""
    optimiser: str = "rmsprop"
    """"rmsprop" as in the paper, or "adam"."""
    rms_decay: float = 0.99
    """α of RMSProp's running mean of squares."""
    rms_epsilon: float = 1e-5
    """ε under RMSProp's root."""
    normalise_advantages: bool = False
    """Whether the advantages of a batch are brought to mean 0 and deviation 1."""
    value_hidden: tuple[int, ...] = ()
    """Hidden layers of the value network; empty means those of the policy. Unused where the trunk is shared."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning, so that returns are of order one."""
    normaliser_steps: int = 2_000_000
    """Steps over which running statistics of the observations are gathered; frozen after that."""
    keep_best: bool = False
    """The bundle holds the policy of the best greedy evaluation, made since the statistics of the observations stand
    still (images have none), instead of the last one."""
    log_std: float = 0.0
    """log σ of a continuous task's Gaussian at the start, where 1 is half the range of an action."""
    compute: str = "float32"
    """Number type of the hidden layers' activations and their gradients: float32, bfloat16 or float16
    (--mixed-precision); weights, heads, losses and the optimiser are float32 all the same."""
    engine: str = "tensorflow"
    """What computes the updates: "tensorflow" (compiled), or "numpy", which is faster for small perceptrons."""

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.optimiser not in MOMENTS:
            raise ValueError(f"optimiser {self.optimiser!r} is not known; allowed are {', '.join(MOMENTS)}.")
        check_compute(self.compute, self.engine)


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

    Args:
        distribution: of the actions; its own weights are among ``weights``.
        weights: of the policy.
        outputs: of the policy's network, (batch, outputs).
        values: V(s), (batch,).
        batch: ``action``, ``advantage`` A and ``return`` R = A + V.
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

    Args:
        weights: θ by name; likewise the gradients Δθ and the running means of their squares g.
        gradients: see above.
        second_moment: see above.
        learning_rate: η.
        decay: α.
        epsilon: ε.
    """
    moments = {name: decay * second_moment[name] + (1.0 - decay) * g * g for name, g in gradients.items()}
    moved = {
        name: weights[name] - learning_rate * g / (moments[name] + epsilon) ** 0.5 for name, g in gradients.items()
    }
    return moved, moments


# --- the update ---------------------------------------------------------------------------------------------------


def make_update(
    settings: A2CSettings, network: NetworkSpec, distribution: Distribution
) -> Callable[..., tuple[Any, Any]]:
    """The compiled update: (state, batch, count, learning rate, entropy coefficient) → (state, metrics (5,)).

    XLA compiles it for multilayer perceptrons; its convolutions on a CPU are slower than TensorFlow's own.
    """
    if uses_numpy(settings.engine, network):
        return a2c_update(settings, distribution)
    shared = bool(network.convolutions)

    @tf.function(jit_compile=True, autograph=False)
    def descend(
        state: dict[str, Any], of_policy: Any, of_value: Any, count: Any, rate: Any
    ) -> tuple[dict[str, Any], Any, Any]:
        """One step along the clipped gradients: the new state, and the norms before clipping."""
        if shared:
            of_policy, of_value, policy_norm = clipped_together(of_policy, of_value, settings.gradient_norm)
            value_norm = policy_norm
        else:
            of_policy, policy_norm = clipped_by_norm(of_policy, settings.gradient_norm)
            of_value, value_norm = clipped_by_norm(of_value, settings.gradient_norm)
        new: dict[str, Any] = {}
        for name, gradients in (("policy", of_policy), ("value", of_value)):
            weights, second = state[name], state[f"{name}_second"]
            if settings.optimiser == "rmsprop":
                new[name], new[f"{name}_second"] = rmsprop_step(
                    weights, gradients, second, rate, settings.rms_decay, settings.rms_epsilon
                )
            else:
                new[name], new[f"{name}_first"], new[f"{name}_second"] = networks.adam_step(
                    weights, gradients, state[f"{name}_first"], second, count, rate
                )
        return new, policy_norm, value_norm

    @tf.function(jit_compile=not shared, autograph=False)
    def update(state: dict[str, Any], batch: dict[str, Any], count: Any, rate: Any, bonus: Any) -> tuple[Any, Any]:
        policy, value = state["policy"], state["value"]
        if settings.normalise_advantages:
            advantages = batch["advantage"]
            centred = advantages - tf.reduce_mean(advantages)
            batch = {**batch, "advantage": centred / (tf.math.reduce_std(advantages) + 1e-8)}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch((policy, value))
            outputs, values = outputs_and_values(network, policy, value, batch["observation"], settings.compute)
            parts = loss_parts(distribution, policy, outputs, values, batch)
            loss = parts["policy_loss"] + settings.value_weight * parts["value_loss"] - bonus * parts["entropy"]
        (of_policy, of_value), finite = gradients_of(tape, loss, (policy, value), state.get("loss_scale", {}))
        new, policy_norm, value_norm = descend(state, of_policy, of_value, count, rate)
        new = settled(new, state, finite)
        parts = parts | {"policy_norm": policy_norm, "value_norm": value_norm}
        return new, tf.stack([parts[name] for name in METRICS])

    return lambda *arguments: update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))


def learn(
    update: Callable[..., tuple[Any, Any]], learner: Learner, batch: Mapping[str, Any], rate: float, bonus: float
) -> NDArray[np.float32]:
    """Run the compiled update on the learner; its metrics (5,)."""
    learner.updates += 1
    state, metrics = update(learner.state(), batch, np.float32(learner.updates), np.float32(rate), np.float32(bonus))
    learner.put(state)
    return np.asarray(metrics)


# --- the loop -----------------------------------------------------------------------------------------------------

REPORT_EVERY = 2048
"""Steps between two rows of the log: an iteration is too short for a row of its own."""


def train(run: Run, settings: A2CSettings) -> Trained:
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
        MOMENTS[settings.optimiser],
        distribution.extra_weights(),
        settings.compute,
    )
    forward = Forward(learner, settings.compute)
    normaliser = normaliser_of(task, settings.normaliser_steps)
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    best = BestPolicy(task.presets[0])
    if run.checkpoint is not None:
        generator = restore(run.checkpoint, learner, normaliser, stream, best)
    update = make_update(settings, request.network, distribution)
    iteration_steps = settings.environments * settings.rollout_steps
    updates_a_row = max(REPORT_EVERY // iteration_steps, 1)
    step = run.start_step

    def decide(observation: Observations) -> Actions:
        return distribution.greedy(forward.outputs(normaliser(observation)))

    def save() -> None:
        run.save(step, *saved(learner, normaliser, stream, best, generator))

    while step < request.steps and run.stop_reason is None:
        metrics = np.empty((updates_a_row, len(METRICS)), np.float32)
        for index in range(updates_a_row):
            share = step / request.steps
            rate = settings.learning_rate * linear(1.0, settings.learning_rate_last, share)
            bonus = linear(settings.entropy_first, settings.entropy_last, share)
            rollout = collect(stream, normaliser, learner, forward, distribution, generator, settings)
            batch = training_batch(rollout, settings)
            del batch["log_probability"]
            metrics[index] = learn(update, learner, batch, rate, bonus)
            step += iteration_steps
            run.check_finite(step, metrics[index : index + 1], METRICS)  # before NaN is acted on
        means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        row = {**stream.take_tally().row(), **means, "learning_rate": rate}
        run.report(step, row, updates_a_row * iteration_steps, decide)
        offered(best, settings, run, normaliser, learner, step)
        if run.wants_checkpoint:
            save()
    save()
    weights, notes = best.weights(exported(learner.policy)), {"updates": learner.updates, **best.notes()}
    return Trained(weights, normaliser.frozen(), step, notes, squash=Squash.CLIP)
