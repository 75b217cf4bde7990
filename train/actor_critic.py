"""What PPO and A2C share: policy and value network, rollouts, generalized advantages, and the checkpoint.

For vectors, policy and value are two multilayer perceptrons that act in numpy. For images they share the convolutions
and hidden layers, and the value is a second head: one compiled forward pass gives both, and one loss trains both.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policy.spec import NetworkSpec
from train import networks
from train.best import BestPolicy
from train.checkpoint import Checkpoint, flattened, generator_facts, restored_generator
from train.distributions import Distribution, exported
from train.episodes import EpisodeStream, Observations
from train.gradients import clipped_by_norm
from train.lazily import tf
from train.mixed_precision import Compute, cast, fresh_loss_scale
from train.networks import Weights
from train.normalisation import ImageScaling, RunningNormaliser
from train.run import Run
from train.tasks import Task

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]


class RolloutSettings(Protocol):
    """The settings of a rollout."""

    @property
    def environments(self) -> int:
        """Environments stepped together."""

    @property
    def rollout_steps(self) -> int:
        """Steps of each."""

    @property
    def discount(self) -> float:
        """γ."""

    @property
    def gae_lambda(self) -> float:
        """λ."""

    @property
    def reward_scale(self) -> float:
        """Factor of the rewards."""

    @property
    def keep_best(self) -> bool:
        """Whether the bundle holds the best evaluated policy."""


# --- the networks -------------------------------------------------------------------------------------------------


@dataclass
class Learner:
    """What an update changes: policy, value network or head, the optimiser's moments, and the number of updates made.

    Weights are arrays, or tensors where the trunk is shared: converting those of a convolutional network at every
    update would cost as much as a step.
    """

    network: NetworkSpec
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
        moments: tuple[str, ...] = ("first", "second"),
        extra: Weights | None = None,
        compute: str = "float32",
    ) -> Learner:
        """Orthogonal weights; the policy's head starts near the uniform distribution.

        Args:
            generator: of the weights.
            network: of the policy; with convolutions the value shares its trunk.
            observation: shape of one.
            outputs: of the policy.
            value_hidden: hidden layers of a value network of its own; empty means those of the policy.
            moments: the optimiser's, each kept for the policy and for the value.
            extra: the distribution's weights, learned with the policy's.
            compute: number type of the update; float16 keeps a loss scale among the moments.
        """
        policy = networks.initial_weights(generator, network, observation, outputs, head_gain=0.01)
        if network.convolutions:
            width = (network.hidden[-1],) if network.hidden else (network.dense_inputs(observation),)
            value = networks.initial_weights(generator, NetworkSpec(()), width, 1, head_gain=1.0)
        else:
            value_network = dataclasses.replace(network, hidden=value_hidden or network.hidden)
            value = networks.initial_weights(generator, value_network, observation, 1, head_gain=1.0)
        policy |= extra or {}
        groups = {"policy": policy, "value": value}
        kept = {f"{group}_{name}": networks.zeros_like(groups[group]) for group in groups for name in moments}
        if loss_scale := fresh_loss_scale(Compute(compute)):
            kept["loss_scale"] = loss_scale
        learner = cls(network, policy, value, kept)
        learner.put(learner.state())
        return learner

    @property
    def is_shared(self) -> bool:
        """Whether policy and value share their trunk."""
        return bool(self.network.convolutions)

    def state(self) -> dict[str, Any]:
        """All weights and moments by group."""
        return {"policy": self.policy, "value": self.value, **self.moments}

    def put(self, state: dict[str, Any]) -> None:
        """Replace what :meth:`state` gave, by arrays or tensors."""
        convert = tf.convert_to_tensor if self.is_shared else np.asarray
        groups = {name: {key: convert(part) for key, part in group.items()} for name, group in state.items()}
        self.policy, self.value = groups.pop("policy"), groups.pop("value")
        self.moments = groups


def outputs_and_values(
    network: NetworkSpec, policy: Any, value: Any, observations: Any, compute: str = "float32"
) -> tuple[Any, Any]:
    """The policy's outputs (batch, outputs) and V (batch,) for normalised observations or uint8 images (tensors).

    Args:
        network: of the policy.
        policy: its weights, float32.
        value: the value's weights, float32.
        observations: see above.
        compute: the number type of the hidden layers; both heads and all weights stay float32.
    """
    mixed = Compute(compute)
    hidden = networks.features(network, cast(policy, mixed), observations)
    if mixed.is_mixed:
        hidden = tf.cast(hidden, tf.float32)
    outputs = hidden @ policy["head/kernel"] + policy["head/bias"]
    if network.convolutions:
        return outputs, (hidden @ value["head/kernel"] + value["head/bias"])[:, 0]
    return outputs, networks.mlp(cast(value, mixed), observations)[:, 0]


class Forward:
    """Outputs and values of a learner for batches of any size, as arrays."""

    def __init__(self, learner: Learner, compute: str = "float32") -> None:
        """Args: the learner, and the number type of a shared trunk; perceptrons act in float32."""
        self._learner = learner
        network = learner.network
        if learner.is_shared:
            self._graph = tf.function(
                lambda policy, value, images: outputs_and_values(network, policy, value, images, compute),
                autograph=False,
                reduce_retracing=True,
            )

    def outputs(self, observations: Observations) -> Floats:
        """Of the policy, (batch, outputs)."""
        return (
            self.both(observations)[0] if self._learner.is_shared else networks.mlp(self._learner.policy, observations)
        )

    def values(self, observations: Observations) -> Floats:
        """V, (batch,)."""
        if self._learner.is_shared:
            return self.both(observations)[1]
        return networks.mlp(self._learner.value, observations)[:, 0]

    def both(self, images: Observations) -> tuple[Floats, Floats]:
        """Both from one pass through a shared trunk."""
        outputs, values = self._graph(self._learner.policy, self._learner.value, tf.constant(images))
        return outputs.numpy(), values.numpy()


def clipped_together(policy: Any, value: Any, largest: float) -> tuple[Any, Any, tf.Tensor]:
    """Gradients of policy and value, clipped by the norm of all of them together."""
    merged = {f"policy/{name}": g for name, g in policy.items()} | {f"value/{name}": g for name, g in value.items()}
    clipped, norm = clipped_by_norm(merged, largest)
    return (
        {name: clipped[f"policy/{name}"] for name in policy},
        {name: clipped[f"value/{name}"] for name in value},
        norm,
    )


def normaliser_of(task: Task, steps: int) -> RunningNormaliser | ImageScaling:
    """Running statistics over so many steps for vectors, a constant for images."""
    return ImageScaling() if task.is_image else RunningNormaliser(task.observation_size, steps)


# --- the rollout --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rollout:
    """What one iteration gathers, (steps, environments, …); vectors are normalised, images raw.

    ``terminated`` and ``cut`` are those of :class:`train.episodes.Transition`; ``next_values`` are values of the
    observation that each step led to, before any reset.
    """

    observations: Observations
    actions: NDArray[Any]
    log_probabilities: Floats
    rewards: Floats
    terminated: Flags
    cut: Flags
    values: Floats
    next_values: Floats


def collect(
    stream: EpisodeStream,
    normaliser: RunningNormaliser | ImageScaling,
    learner: Learner,
    forward: Forward,
    distribution: Distribution,
    generator: np.random.Generator,
    settings: RolloutSettings,
) -> Rollout:
    """Act for ``rollout_steps`` steps with the policy as it is.

    Values of vectors are computed all at once at the end; those of images come with the outputs.
    """
    steps, environments = settings.rollout_steps, settings.environments
    shape, kind = stream.observation.shape[1:], stream.observation.dtype
    shared = learner.is_shared
    raw = np.empty((0 if shared else steps, environments, *shape), kind)
    observations = np.empty((steps + 1, environments, *shape), kind)
    actions: NDArray[Any] = np.empty((steps, environments, *distribution.action_shape), distribution.action_type)
    log_probabilities, rewards = np.empty((2, steps, environments), np.float32)
    values = np.empty((steps + 1, environments), np.float32)
    terminated, cut = np.empty((2, steps, environments), np.bool_)
    cut_short: list[tuple[int, Flags, Observations]] = []  # episodes that ended by their time limit
    observations[0] = normaliser(stream.observation)
    for step in range(steps):
        if shared:
            outputs, values[step] = forward.both(observations[step])
        else:
            raw[step] = stream.observation
            outputs = forward.outputs(observations[step])
        actions[step], log_probabilities[step] = distribution.sample(generator, outputs, learner.policy)
        transition = stream.step(distribution.to_environment(actions[step]))
        rewards[step], terminated[step], cut[step] = transition.reward, transition.terminated, transition.cut
        observations[step + 1] = normaliser(transition.observation)
        truncated = transition.done & ~transition.terminated
        if truncated.any():
            cut_short.append((step, truncated, normaliser(transition.last_observation[truncated])))
    rewards *= np.float32(settings.reward_scale)
    if shared:
        values[steps] = forward.values(observations[steps])
    else:
        values = forward.values(observations.reshape(-1, *shape)).reshape(steps + 1, environments)
        normaliser.update(raw.reshape(-1, *shape))  # only now: one rollout is seen through one normaliser
    next_values = values[1:].copy()
    for step, truncated, last in cut_short:
        next_values[step, truncated] = forward.values(last)
    return Rollout(observations[:-1], actions, log_probabilities, rewards, terminated, cut, values[:-1], next_values)


def generalized_advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: Flags,
    cut: Flags,
    discount: float,
    gae_lambda: float,
) -> Floats:
    """Generalized advantages (Schulman et al. 2016, equation 16), all arrays (steps, environments).

    δₜ = rₜ + γ V(sₜ₊₁) (1 − terminatedₜ) − V(sₜ)
    Aₜ = δₜ + γ λ (1 − cutₜ) Aₜ₊₁

    Args:
        rewards: rₜ.
        values: V(sₜ).
        next_values: V of the observation that followed the step, *before* any reset: at a time limit this is the
            value the episode would have gone on with.
        terminated: nothing that follows counts: the episode ended in a state of no further reward, or a life was lost.
        cut: the return reaches no further: terminated, or the episode ended by its time limit.
        discount: γ.
        gae_lambda: λ; 1 gives the n-step returns of A3C: A = Σ γⁱ r + γⁿ V − V(sₜ) up to the rollout's end.
    """
    deltas = rewards + discount * next_values * ~terminated - values
    advantages = np.zeros_like(deltas)
    following = np.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        following = deltas[step] + discount * gae_lambda * ~cut[step] * following
        advantages[step] = following
    return advantages


def training_batch(rollout: Rollout, settings: RolloutSettings) -> dict[str, NDArray[Any]]:
    """The rows that the update learns from, (steps × environments, …); the return is A + V."""
    advantages = generalized_advantages(
        rollout.rewards,
        rollout.values,
        rollout.next_values,
        rollout.terminated,
        rollout.cut,
        settings.discount,
        settings.gae_lambda,
    )
    columns = {
        "observation": rollout.observations,
        "action": rollout.actions,
        "log_probability": rollout.log_probabilities,
        "advantage": advantages,
        "return": advantages + rollout.values,
    }
    return {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}


def linear(first: float, last: float, share: float) -> float:
    """first + (last − first) · share, with the share of all steps already made clipped to [0, 1]."""
    return first + (last - first) * min(max(share, 0.0), 1.0)


def offered(
    best: BestPolicy, settings: RolloutSettings, run: Run, normaliser: Any, learner: Learner, step: int
) -> None:
    """Let the best policy look at the evaluation just made, if the settings ask for it and observations are normalised
    as they will be in the bundle."""
    if settings.keep_best and normaliser.settled:
        best.offer(run.last_row, exported(learner.policy), step)


# --- the checkpoint -----------------------------------------------------------------------------------------------


def saved(
    learner: Learner,
    normaliser: RunningNormaliser | ImageScaling,
    stream: EpisodeStream,
    best: BestPolicy,
    generator: np.random.Generator,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts of a checkpoint: all that the next iteration depends on."""
    weights = {name: {key: np.asarray(part) for key, part in group.items()} for name, group in learner.state().items()}
    arrays = flattened({**weights, "normaliser": normaliser.state(), "stream": stream.state(), "best": best.state()})
    return arrays, {"updates": learner.updates, "generator": generator_facts(generator)}


def restore(
    checkpoint: Checkpoint,
    learner: Learner,
    normaliser: RunningNormaliser | ImageScaling,
    stream: EpisodeStream,
    best: BestPolicy,
) -> np.random.Generator:
    """Put everything back as :func:`saved` found it; returns the random generator."""
    learner.put({name: checkpoint.group(name) for name in learner.state()})
    learner.updates = int(checkpoint.facts["updates"])
    normaliser.restore(checkpoint.group("normaliser"))
    stream.restore(checkpoint.group("stream"))
    best.restore(checkpoint.group("best"))
    return restored_generator(checkpoint.facts["generator"])
