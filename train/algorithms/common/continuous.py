"""What DDPG, D4PG and SAC share: settings, critics, a step down a loss, and the actor at work.

Actions lie between −1 and 1 in the replay and in the networks, and become physical units where the task takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import NetworkSpec
from quarl.train.algorithms.common.exploration import ActionRange
from quarl.train.algorithms.common.learner import State
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.settings import ReplaySettings, setting
from quarl.train.lazily import tf
from quarl.train.networks.forward import mlp
from quarl.train.networks.optimiser import adam_step, clip_by_global_norm
from quarl.train.networks.weights import Weights, initial_weights, zeros_like
from quarl.train.quantization.mixed_precision import Compute, apply_if_finite, cast, fresh_loss_scale, gradients_of
from quarl.train.quantization.weight_control import OFF, WeightControl

Floats = NDArray[np.float32]


METRICS = ("critic_loss", "value", "critic_gradient_norm", "actor_gradient_norm")
"""Columns of what an update tells of itself; D4PG and SAC have more."""


@dataclass(frozen=True)
class ContinuousSettings(ReplaySettings):
    """What DDPG, D4PG and SAC have in common; their own settings come on top."""

    normalise: bool = setting(
        True,
        "False: mean 0 and scale 1 stand in for the statistics of the observations, which then enter the networks as "
        "they are, but for what lies beyond ±5: every element is cut to −5 … 5, in the bundle as in training. It is "
        "for observations that the task itself brings to order one: statistics of random steps would cut more.",
    )
    actor_learning_rate: float = setting(1e-3, "Adam's step size of the actor.")
    critic_learning_rate: float = setting(1e-3, "Adam's step size of the critic.")
    learning_rate_last: float = setting(
        1.0, "Share of the learning rates that is left at the last step; they fall linearly."
    )
    critic_hidden: tuple[int, ...] = setting((256, 256), "Widths of the critic's hidden layers.")
    critic_layer_norm: bool = setting(False, "Normalise the critic's hidden layers.")
    gradient_norm: float = setting(10.0, "Largest global norm of the actor's and of the critic's gradient.")
    compute: str = setting(
        "float32",
        "Number type of the networks' activations and their gradients: float32, bfloat16 or float16 "
        "(--mixed-precision); weights, losses and the optimiser are float32 all the same, and so is acting.",
    )

    @property
    def critic(self) -> NetworkSpec:
        """The critic's network."""
        return NetworkSpec(self.critic_hidden, layer_norm=self.critic_layer_norm)

    def rate_share(self, step: int, steps: int) -> float:
        """Share of the learning rates when ``step`` of all ``steps`` are made."""
        return 1.0 + (self.learning_rate_last - 1.0) * step / steps


# --- critics ----------------------------------------------------------------------------------------------------


def part(critics: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the weights of one critic; ``critics`` holds those of all under ``0/…``, ``1/…``."""
    prefix = f"{index}/"
    return {name.removeprefix(prefix): value for name, value in critics.items() if name.startswith(prefix)}


def critic_value(critics: Mapping[str, Any], index: int, observations: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Q(s, a) (batch,) of one critic."""
    return mlp(part(critics, index), tf.concat([observations, actions], axis=1))[:, 0]


def smallest(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """min over critics of Q, row by row (batch,): clipped double Q-learning (Fujimoto et al. 2018, equation 10)."""
    least = values[0]
    for value in values[1:]:
        least = tf.minimum(least, value)
    return least


def soft_update(target: Mapping[str, Any], learned: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """θ' ← (1 − τ) θ' + τ θ, array by array."""
    return {name: (1.0 - rate) * old + rate * learned[name] for name, old in target.items()}


def fresh_critics(
    generator: np.random.Generator, critic: NetworkSpec, size: int, critics: int, outputs: int = 1
) -> Weights:
    """Weights of several critics, as :func:`part` takes them, for ``size`` elements of observation and action.

    Orthogonal with a small head: values start near 0.
    """
    every: Weights = {}
    for index in range(critics):
        drawn = initial_weights(generator, critic, (size,), outputs, head_gain=0.1)
        every |= {f"{index}/{name}": value for name, value in drawn.items()}
    return every


# --- learning ---------------------------------------------------------------------------------------------------


def build_learner_groups(
    name: str, weights: Weights, compute: str = "float32", followed: bool = True
) -> dict[str, Weights]:
    """Return a learner's groups of one network that :func:`descend` takes a step of, by name.

    Itself, its target where it is ``followed`` by one (a copy), Adam's moments, and the loss's scale in float16.
    """
    groups = {name: weights, **({f"{name}_target": dict(weights)} if followed else {})}
    groups |= {f"{name}_first": zeros_like(weights), f"{name}_second": zeros_like(weights)}
    if loss_scale := fresh_loss_scale(Compute(compute)):
        groups[f"{name}_loss_scale"] = loss_scale
    return groups


def descend(
    state: State,
    group: str,
    loss: Callable[[Weights], Any],
    steps: tf.Tensor,
    rate: tf.Tensor,
    largest: float,
    compute: Compute = Compute.FLOAT32,
    control: WeightControl = OFF,
) -> tuple[State, Any, tf.Tensor]:
    """Return one step of Adam of a group down its loss: the new state, the loss and the gradient's norm.

    The loss is given the weights in the type that is computed in; ``control`` holds the kernels.
    """
    weights, key = state[group], f"{group}_loss_scale"
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        value = loss(cast(weights, compute))
    gradients, finite = gradients_of(tape, value, weights, state.get(key, {}))
    gradients, norm = clip_by_global_norm(gradients, largest)
    names = (group, f"{group}_first", f"{group}_second")
    moments = state[names[1]], state[names[2]]
    moved, *learned = adam_step(control.decay_weights(weights, rate), gradients, *moments, steps, rate)
    new = apply_if_finite(dict(zip(names, (control.clip_weights(moved), *learned), strict=True)), state, finite, key)
    return {**state, **new}, value, norm


class Actor:
    """The actor at work, without noise: for the judge.

    Attributes:
        range: between actions in −1 … 1 and in the task's units.
    """

    def __init__(self, loop: Loop) -> None:
        """Args: the loop whose deployed weights these are.

        Raises:
            ValueError: the task has discrete actions.
        """
        self.range = ActionRange(loop.run.task.head, loop.run.request.method)
        self._loop = loop

    def unit(self, observations: Floats) -> Floats:
        """tanh of the actor's outputs for raw observations: actions (n, size) in −1 … 1."""
        return np.tanh(mlp(self._loop.aware.acting(self._loop.weights), self._loop.normaliser(observations)))

    def greedy(self, observations: Floats) -> Floats:
        """Return the actor's actions for raw observations, in the task's units."""
        return self.range.physical(self.unit(observations))
