"""PPO: proximal policy optimization with a clipped surrogate (Schulman et al. 2017), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` steps with numpy weights; generalized advantages are
computed in numpy; then all epochs and minibatches of the update run in one call compiled by XLA, which takes arrays
and returns arrays. So the whole state of training is plain arrays, and a checkpoint of it resumes to the same bits.

Deviations from the paper, in order of weight:
1. A step that ends by the time limit is bootstrapped with the value of its last observation (Pardo et al. 2018).
2. Advantages are normalised per minibatch; policy and value networks are separate, and so are their gradient norms.
3. Learning rate and entropy coefficient fall linearly with the steps made.
4. The value loss is not clipped (it does not help: Andrychowicz et al. 2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from policy.spec import NetworkSpec
from train import networks
from train.checkpoint import Checkpoint, flattened, generator_facts, restored_generator
from train.episodes import EpisodeStream
from train.gradients import clipped_by_norm
from train.networks import Weights
from train.normalisation import RunningNormaliser
from train.run import Run, Trained
from train.tasks import episode_seed

Floats = NDArray[np.float32]
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
    """Largest global norm of the policy's and of the value network's gradient, each on its own."""
    value_hidden: tuple[int, ...] = ()
    """Hidden layers of the value network; empty means those of the policy."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning, so that returns are of order one."""
    normaliser_steps: int = 2_000_000
    """Steps over which running statistics of the observations are gathered; frozen after that."""

    def __post_init__(self) -> None:
        batch = self.environments * self.rollout_steps
        if batch % self.minibatch:
            raise ValueError(
                f"minibatch {self.minibatch} does not divide the batch of {self.environments} environments × "
                f"{self.rollout_steps} steps = {batch}. Choose a divisor, for example {batch // 4}."
            )


# --- pure functions ---------------------------------------------------------------------------------------------


def generalized_advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: NDArray[np.bool_],
    done: NDArray[np.bool_],
    discount: float,
    gae_lambda: float,
) -> Floats:
    """Generalized advantages (Schulman et al. 2016, equation 16), all arrays (steps, environments).

    δₜ = rₜ + γ V(sₜ₊₁) (1 − terminatedₜ) − V(sₜ)
    Aₜ = δₜ + γ λ (1 − doneₜ) Aₜ₊₁

    Args:
        rewards: rₜ.
        values: V(sₜ).
        next_values: V of the observation that followed the step, *before* any reset: at a time limit this is the
            value the episode would have gone on with.
        terminated: the episode ended in a state of no further reward.
        done: the episode ended at all (terminated or cut by its time limit).
        discount: γ.
        gae_lambda: λ.
    """
    deltas = rewards + discount * next_values * ~terminated - values
    advantages = np.zeros_like(deltas)
    following = np.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        following = deltas[step] + discount * gae_lambda * ~done[step] * following
        advantages[step] = following
    return advantages


def clipped_surrogate(ratio: tf.Tensor, advantages: tf.Tensor, clip_range: float) -> tf.Tensor:
    """L = E[min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)] (Schulman et al. 2017, equation 7), to be made large; ρ, A (batch,)."""
    return tf.reduce_mean(
        tf.minimum(ratio * advantages, tf.clip_by_value(ratio, 1.0 - clip_range, 1.0 + clip_range) * advantages)
    )


def normalised_advantages(advantages: tf.Tensor) -> tf.Tensor:
    """(A − mean A) / (std A + 10⁻⁸), (batch,)."""
    return (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-8)


def linear(first: float, last: float, share: float) -> float:
    """first + (last − first) · share, with the share of all steps already made clipped to [0, 1]."""
    return first + (last - first) * min(max(share, 0.0), 1.0)


def policy_loss(
    weights: dict[str, tf.Tensor], batch: dict[str, tf.Tensor], clip_range: float, entropy_coefficient: tf.Tensor
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """−L_clip − c · H and its parts for one minibatch.

    ρ = π(a|s) / π_old(a|s);  H = E[−Σ π log π];  divergence ≈ E[(ρ − 1) − log ρ] (Schulman's k3 estimate of KL)
    """
    log_probabilities = tf.nn.log_softmax(networks.mlp(weights, batch["observation"]))
    chosen = tf.gather(log_probabilities, batch["action"], batch_dims=1)
    log_ratio = chosen - batch["log_probability"]
    ratio = tf.exp(log_ratio)
    entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=1))
    surrogate = clipped_surrogate(ratio, normalised_advantages(batch["advantage"]), clip_range)
    parts = {
        "policy_loss": -surrogate,
        "entropy": entropy,
        "divergence": tf.reduce_mean(ratio - 1.0 - log_ratio),
        "clipped": tf.reduce_mean(tf.cast(tf.abs(ratio - 1.0) > clip_range, tf.float32)),
    }
    return -surrogate - entropy_coefficient * entropy, parts


def value_loss(weights: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """½ E[(V(s) − R)²] with R = A + V_old(s)."""
    values = networks.mlp(weights, batch["observation"])[:, 0]
    return 0.5 * tf.reduce_mean(tf.square(values - batch["return"]))


# --- the update: all epochs and minibatches in one compiled call --------------------------------------------------


@dataclass
class Learner:
    """What the update changes, as plain arrays: both networks, Adam's moments, and the number of updates made."""

    policy: Weights
    value: Weights
    moments: dict[str, Weights]
    updates: int = 0

    @classmethod
    def fresh(
        cls,
        generator: np.random.Generator,
        network: NetworkSpec,
        observation: tuple[int, ...],
        outputs: int,
        value_hidden: tuple[int, ...] = (),
    ) -> Learner:
        """Orthogonal weights; the policy's head starts near the uniform distribution."""
        policy = networks.initial_weights(generator, network, observation, outputs, head_gain=0.01)
        value_network = dataclasses.replace(network, hidden=value_hidden or network.hidden)
        value = networks.initial_weights(generator, value_network, observation, 1, head_gain=1.0)
        names = ("policy_first", "policy_second", "value_first", "value_second")
        moments = {name: networks.zeros_like(policy if name.startswith("policy") else value) for name in names}
        return cls(policy, value, moments)


def make_update(settings: PPOSettings) -> Callable[..., tuple[Any, tf.Tensor]]:
    """The compiled update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    ``order`` (minibatches, rows) int32 names the rows of every minibatch of every epoch; ``metrics``
    (minibatches, 7) has the columns of ``METRICS``, in which a NaN betrays the minibatch that made it.
    """

    def one_minibatch(
        state: dict[str, Any], batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor, bonus: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["policy"])
            loss, parts = policy_loss(state["policy"], batch, settings.clip_range, bonus)
        gradients, policy_norm = clipped_by_norm(tape.gradient(loss, state["policy"]), settings.gradient_norm)
        policy, *policy_moments = networks.adam_step(
            state["policy"], gradients, state["policy_first"], state["policy_second"], count, rate
        )
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["value"])
            loss = value_loss(state["value"], batch)
        gradients, value_norm = clipped_by_norm(tape.gradient(loss, state["value"]), settings.gradient_norm)
        value, *value_moments = networks.adam_step(
            state["value"], gradients, state["value_first"], state["value_second"], count, rate
        )
        parts = parts | {"value_loss": loss, "policy_norm": policy_norm, "value_norm": value_norm}
        new_state = {
            "policy": policy,
            "policy_first": policy_moments[0],
            "policy_second": policy_moments[1],
            "value": value,
            "value_first": value_moments[0],
            "value_second": value_moments[1],
        }
        return new_state, tf.stack([parts[name] for name in METRICS])

    @tf.function(jit_compile=True, autograph=False)
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

    return update


def shuffled_order(generator: np.random.Generator, rows: int, minibatch: int, epochs: int) -> NDArray[np.int32]:
    """A fresh permutation of the rows for every epoch, cut into minibatches: (epochs × rows / minibatch, minibatch)."""
    order = np.concatenate([generator.permutation(rows) for _ in range(epochs)])
    return order.reshape(-1, minibatch).astype(np.int32)


# --- the rollout --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """What one iteration gathers, (steps, environments, …); observations are normalised.

    ``next_values`` are values of the observation that each step led to, before any reset.
    """

    observations: Floats
    actions: NDArray[np.int64]
    log_probabilities: Floats
    rewards: Floats
    terminated: NDArray[np.bool_]
    done: NDArray[np.bool_]
    values: Floats
    next_values: Floats


def collect(
    stream: EpisodeStream,
    normaliser: RunningNormaliser,
    learner: Learner,
    generator: np.random.Generator,
    settings: PPOSettings,
) -> Rollout:
    """Act for ``rollout_steps`` steps with the policy as it is; values of all observations are computed at once."""
    steps, environments = settings.rollout_steps, settings.environments
    size = stream.observation.shape[1]
    raw = np.empty((steps, environments, size), np.float32)
    observations = np.empty((steps + 1, environments, size), np.float32)
    actions = np.empty((steps, environments), np.int64)
    log_probabilities, rewards = np.empty((2, steps, environments), np.float32)
    terminated, done = np.empty((2, steps, environments), np.bool_)
    cut_short: list[tuple[int, NDArray[np.bool_], Floats]] = []  # episodes that ended by their time limit
    observations[0] = normaliser(stream.observation)
    for step in range(steps):
        raw[step] = stream.observation
        logits = networks.mlp(learner.policy, observations[step])
        actions[step], log_probabilities[step] = networks.sample_actions(generator, logits)
        transition = stream.step(actions[step])
        rewards[step], terminated[step], done[step] = transition.reward, transition.terminated, transition.done
        observations[step + 1] = normaliser(transition.observation)
        truncated = transition.done & ~transition.terminated
        if truncated.any():
            cut_short.append((step, truncated, normaliser(transition.last_observation[truncated])))
    rewards *= settings.reward_scale
    values = networks.mlp(learner.value, observations.reshape(-1, size)).reshape(steps + 1, environments)
    next_values = values[1:].copy()
    for step, truncated, last in cut_short:
        next_values[step, truncated] = networks.mlp(learner.value, last)[:, 0]
    normaliser.update(raw.reshape(-1, size))  # only now: one rollout is seen through one normaliser
    return Rollout(observations[:-1], actions, log_probabilities, rewards, terminated, done, values[:-1], next_values)


def training_batch(rollout: Rollout, settings: PPOSettings) -> dict[str, NDArray[Any]]:
    """The rows that the update learns from, (steps × environments, …)."""
    advantages = generalized_advantages(
        rollout.rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.done,
        settings.discount,
        settings.gae_lambda,
    )
    columns = {
        "action": rollout.actions.astype(np.int32),
        "log_probability": rollout.log_probabilities,
        "advantage": advantages,
        "return": advantages + rollout.values,
    }
    rows = {name: column.reshape(-1) for name, column in columns.items()}
    return rows | {"observation": rollout.observations.reshape(-1, rollout.observations.shape[-1])}


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: PPOSettings) -> Trained:
    """Train until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: a loss or gradient became NaN or infinite; the last good checkpoint is kept.
    """
    request, task = run.request, run.task
    generator = np.random.default_rng(request.seed)
    learner = Learner.fresh(generator, request.network, task.observation_shape, task.outputs, settings.value_hidden)
    normaliser = RunningNormaliser(task.observation_size, settings.normaliser_steps)
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    if run.checkpoint is not None:
        generator = restore(run.checkpoint, learner, normaliser, stream)
    update = make_update(settings)
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def decide(observation: Floats) -> NDArray[np.int64]:
        return networks.mlp(learner.policy, normaliser(observation)).argmax(axis=1)

    def save() -> None:
        run.save(step, *saved(learner, normaliser, stream, generator))

    while step < request.steps and run.stop_reason is None:
        share = step / request.steps
        rate = settings.learning_rate * linear(1.0, settings.learning_rate_last, share)
        bonus = linear(settings.entropy_first, settings.entropy_last, share)
        batch = training_batch(collect(stream, normaliser, learner, generator, settings), settings)
        order = shuffled_order(generator, iteration_steps, settings.minibatch, settings.epochs)
        metrics = learn(update, learner, batch, order, rate, bonus)
        step += iteration_steps
        run.check_finite(step, metrics, METRICS)
        means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        row = {**stream.take_tally().row(), **means, "learning_rate": rate}
        run.report(step, row, iteration_steps, decide)
        if run.wants_checkpoint:
            save()
    save()
    return Trained(learner.policy, normaliser.frozen(), step, {"updates": learner.updates})


def learn(
    update: Callable[..., tuple[Any, tf.Tensor]],
    learner: Learner,
    batch: dict[str, NDArray[Any]],
    order: NDArray[np.int32],
    rate: float,
    bonus: float,
) -> NDArray[np.float32]:
    """Run the compiled update on the learner; its metrics (minibatches, 7)."""
    state = {"policy": learner.policy, "value": learner.value, **learner.moments}
    arguments = (state, batch, order, np.float32(learner.updates), np.float32(rate), np.float32(bonus))
    state, metrics = update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))
    arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), state)
    learner.policy, learner.value = arrays.pop("policy"), arrays.pop("value")
    learner.moments = arrays
    learner.updates += len(order)
    result: NDArray[np.float32] = metrics.numpy()
    return result


def saved(
    learner: Learner, normaliser: RunningNormaliser, stream: EpisodeStream, generator: np.random.Generator
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts of a checkpoint: all that the next iteration depends on."""
    groups = {"policy": learner.policy, "value": learner.value, **learner.moments}
    arrays = flattened({**groups, "normaliser": normaliser.state(), "stream": stream.state()})
    return arrays, {"updates": learner.updates, "generator": generator_facts(generator)}


def restore(
    checkpoint: Checkpoint, learner: Learner, normaliser: RunningNormaliser, stream: EpisodeStream
) -> np.random.Generator:
    """Put everything back as :func:`saved` found it; returns the random generator."""
    learner.policy, learner.value = checkpoint.group("policy"), checkpoint.group("value")
    learner.moments = {name: checkpoint.group(name) for name in learner.moments}
    learner.updates = int(checkpoint.facts["updates"])
    normaliser.restore(checkpoint.group("normaliser"))
    stream.restore(checkpoint.group("stream"))
    return restored_generator(checkpoint.facts["generator"])
