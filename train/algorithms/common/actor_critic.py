"""The networks that PPO and A2C share: policy and value, how they act, and a step of both down their loss.

For vectors, policy and value are two multilayer perceptrons that act in numpy. For images they share the convolutions
and hidden layers, and the value is a second head: one compiled forward pass gives both, and one loss trains both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms.common.learner import Learner, State
from quarl.train.algorithms.common.settings import RolloutSettings
from quarl.train.lazily import tf
from quarl.train.networks.forward import features, mlp
from quarl.train.networks.optimiser import clip_by_global_norm
from quarl.train.networks.weights import Weights, initial_weights, zeros_like
from quarl.train.quantization.fake import select_scales
from quarl.train.quantization.mixed_precision import Compute, apply_if_finite, cast, fresh_loss_scale, gradients_of
from quarl.train.quantization.weight_control import OFF
from quarl.train.suites.episodes import Observations

Floats = NDArray[np.float32]


@dataclass
class ActorCritic(Learner):
    """The learner of PPO and A2C: the groups ``policy`` and ``value``, and the optimiser's moments of both.

    Tensors where the trunk is shared.
    """

    network: NetworkSpec = field(kw_only=True)

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
    ) -> ActorCritic:
        """Orthogonal weights; the policy's head starts near the uniform distribution.

        Args:
            generator: of the weights.
            network: of the policy, for one ``observation`` of that shape; with convolutions the value shares its trunk.
            outputs: of the policy.
            value_hidden: hidden layers of a value network of its own; empty means those of the policy.
            moments: the optimiser's, each kept for the policy and for the value.
            extra: the distribution's weights, learned with the policy's.
            compute: number type of the update; float16 keeps a loss scale among the moments.
        """
        policy = initial_weights(generator, network, observation, outputs, head_gain=0.01)
        if network.convolutions:
            width = (network.hidden[-1],) if network.hidden else (network.dense_inputs(observation),)
            value = initial_weights(generator, NetworkSpec(()), width, 1, head_gain=1.0)
        else:
            value_network = dataclasses.replace(network, hidden=value_hidden or network.hidden, recurrences=())
            value_shape = (observation[0] + network.state_size,)  # it is shown what the policy remembers
            value = initial_weights(generator, value_network, value_shape, 1, head_gain=1.0)
        policy |= extra or {}
        groups = {"policy": policy, "value": value}
        optimiser_groups = {f"{group}_{name}": zeros_like(groups[group]) for group in groups for name in moments}
        if loss_scale := fresh_loss_scale(Compute(compute)):
            optimiser_groups["loss_scale"] = loss_scale
        learner = cls({**groups, **optimiser_groups}, as_tensors=bool(network.convolutions), network=network)
        learner.put(learner.groups)
        return learner

    @property
    def is_shared(self) -> bool:
        """Whether policy and value share their trunk."""
        return self.as_tensors

    @property
    def policy(self) -> Weights:
        """The policy's weights."""
        return self.groups["policy"]

    @property
    def value(self) -> Weights:
        """The weights of the value network, or of its head."""
        return self.groups["value"]


def outputs_and_values(
    network: NetworkSpec, policy: Any, value: Any, observations: Any, compute: str = "float32"
) -> tuple[Any, Any]:
    """Return the policy's outputs (batch, outputs) and V (batch,) for normalised observations or uint8 images
    (tensors).

    ``compute`` is the number type of the hidden layers; both heads and all weights, of ``policy`` and ``value``, stay
    float32.
    """
    mixed = Compute(compute)
    hidden = features(network, cast(policy, mixed), observations)
    if mixed.is_mixed:
        hidden = tf.cast(hidden, tf.float32)
    outputs = hidden @ policy["head/kernel"] + policy["head/bias"]
    if network.convolutions:
        return outputs, (hidden @ value["head/kernel"] + value["head/bias"])[:, 0]
    return outputs, mlp(cast(value, mixed), observations)[:, 0]


class Forward:
    """Outputs and values of a learner for batches of any size, as arrays."""

    def __init__(
        self,
        learner: ActorCritic,
        compute: str = "float32",
        quantized: Callable[[Weights], Any] = lambda policy: policy,
    ) -> None:
        """Args: whose; number type of a shared trunk (perceptrons act in float32); weights → those to compute with."""
        self._learner, self._quantized = learner, quantized
        network = learner.network
        if learner.is_shared:
            self._graph = tf.function(
                lambda policy, value, images: outputs_and_values(network, policy, value, images, compute),
                autograph=False,
                reduce_retracing=True,
            )

    def __call__(self, observations: Observations) -> tuple[Floats, Any]:
        """Return the policy's outputs (batch, outputs), and V (batch,) where it comes from the same pass, else None.

        A value network of its own is asked about a whole rollout at once, which is cheaper.
        """
        policy = self._quantized(self._learner.policy)
        if not self._learner.is_shared:
            return mlp(policy, observations), None
        outputs, values = self._graph(policy, self._learner.value, tf.constant(observations))
        return outputs.numpy(), values.numpy()

    def values(self, observations: Observations) -> Floats:
        """Values V of observations, (batch,)."""
        if self._learner.is_shared:
            return self(observations)[1]
        return mlp(self._learner.value, observations)[:, 0]


def clip_jointly(policy: Any, value: Any, largest: float) -> tuple[Any, Any, tf.Tensor]:
    """Gradients of policy and value, clipped by the norm of all of them together."""
    merged = {f"policy/{name}": g for name, g in policy.items()} | {f"value/{name}": g for name, g in value.items()}
    parts, norm = clip_by_global_norm(merged, largest)
    return {name: parts[f"policy/{name}"] for name in policy}, {name: parts[f"value/{name}"] for name in value}, norm


def clip_gradients(shared: bool, policy: Any, value: Any, largest: float) -> tuple[Any, Any, tf.Tensor, tf.Tensor]:
    """Clip both gradients, each by its own norm, or together in a shared trunk; returns both norms before, too."""
    if shared:
        policy, value, norm = clip_jointly(policy, value, largest)
        return policy, value, norm, norm
    policy, policy_norm = clip_by_global_norm(policy, largest)
    value, value_norm = clip_by_global_norm(value, largest)
    return policy, value, policy_norm, value_norm


def descent(
    settings: RolloutSettings, network: NetworkSpec, optimise: Callable[..., tuple[Any, dict[str, Any]]]
) -> Callable[..., tuple[State, dict[str, tf.Tensor]]]:
    """Return one step of policy and value down a loss: (state, tape, loss, count, rate) → (state, norms by name).

    The norms are those of the gradients before clipping, ``policy_norm`` and ``value_norm``; ``optimise`` is (weights,
    gradients, moments by name, count, rate) → (weights, moments). The tape watched both groups of the state.
    """
    shared = bool(network.convolutions)
    controls = {"policy": settings.weight_control, "value": OFF}

    @tf.function(jit_compile=True, autograph=False)  # one pass over the weights instead of a dozen
    def along(
        state: State, of_policy: Any, of_value: Any, count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[State, tf.Tensor, tf.Tensor]:
        """Return one step along the clipped gradients: the new state, and the norms before clipping."""
        of_policy, of_value, policy_norm, value_norm = clip_gradients(
            shared, of_policy, of_value, settings.gradient_norm
        )
        new: State = {}
        for name, gradients in (("policy", of_policy), ("value", of_value)):
            moments = {key.removeprefix(f"{name}_"): state[key] for key in state if key.startswith(f"{name}_")}
            weights = controls[name].decay_weights(state[name], rate)
            moved, moments = optimise(weights, gradients, moments, count, rate)
            new |= {f"{name}_{key}": moment for key, moment in moments.items()}
            new[name] = controls[name].clip_weights(moved)
        return new, policy_norm, value_norm

    def descend(
        state: State, tape: tf.GradientTape, loss: tf.Tensor, count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[State, dict[str, tf.Tensor]]:
        both = state["policy"], state["value"]
        (of_policy, of_value), finite = gradients_of(tape, loss, both, state.get("loss_scale", {}))
        new, policy_norm, value_norm = along(state, of_policy, of_value, count, rate)
        new = apply_if_finite(new, state, finite) | select_scales(state)
        return new, {"policy_norm": policy_norm, "value_norm": value_norm}

    return descend
