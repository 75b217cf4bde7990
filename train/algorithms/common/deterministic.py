"""What DDPG and D4PG share: settings, actor and critic, a step of both, and actions with noise.

Actions lie between −1 and 1 in the replay and in the networks, and become physical units where the task takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import NetworkSpec
from train.algorithms.common.exploration import ActionRange, ExplorationNoise, noise_scale
from train.algorithms.common.learner import Learner, State
from train.algorithms.common.loop import Loop
from train.algorithms.common.settings import ReplaySettings, setting
from train.lazily import tf
from train.networks.forward import mlp
from train.networks.optimiser import adam_step, clipped_by_norm
from train.networks.weights import Weights, initial_weights, zeros_like
from train.quantization.mixed_precision import Compute, cast, fresh_loss_scale, gradients_of, settled
from train.quantization.weight_control import OFF, WeightControl

Floats = NDArray[np.float32]


METRICS = ("critic_loss", "value", "critic_gradient_norm", "actor_gradient_norm")
"""Columns of what an update tells of itself; D4PG has one more."""


@dataclass(frozen=True)
class DeterministicSettings(ReplaySettings):
    """What DDPG and D4PG have in common; their own settings come on top."""

    normalise: bool = setting(
        True,
        "False: mean 0 and scale 1 stand in for the statistics of the observations, which then enter the networks as "
        "they are, but for what lies beyond ±5: every element is cut to −5 … 5, in the bundle as in training. It is "
        "for observations that the task itself brings to order one: statistics of random steps would cut more.",
    )
    noise_first: float = setting(0.2, "σ of the exploration noise at the start, in units of half the action's range.")
    noise_last: float = setting(0.2, "σ at the last step; in between it changes linearly.")
    noise_reversion: float = setting(
        1.0, "θ of the noise: 1 is independent Gaussian noise, Lillicrap's Ornstein–Uhlenbeck process has 0.15."
    )
    noise_repeat: int = setting(1, "Steps for which one draw of the noise is held.")
    noise_only_start: bool = setting(
        False, "The first ``learning_starts`` actions are the noise alone instead of uniform draws."
    )
    actor_learning_rate: float = setting(1e-3, "Adam's step size of the actor.")
    critic_learning_rate: float = setting(1e-3, "Adam's step size of the critic.")
    learning_rate_last: float = setting(
        1.0, "Share of both learning rates that is left at the last step; they fall linearly."
    )
    critic_hidden: tuple[int, ...] = setting((256, 256), "Widths of the critic's hidden layers.")
    critic_layer_norm: bool = setting(False, "Normalise the critic's hidden layers.")
    gradient_norm: float = setting(10.0, "Largest global norm of the actor's and of the critic's gradient.")
    compute: str = setting(
        "float32",
        "Number type of the networks' activations and their gradients: float32, bfloat16 or float16 "
        "(--mixed-precision); weights, losses and the optimiser are float32 all the same, and so is acting.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("noise_repeat")
        if not 0.0 < self.noise_reversion <= 1.0:
            raise ValueError(f"noise_reversion is {self.noise_reversion}; take a share above 0, at most 1 (Gaussian).")

    @property
    def critic(self) -> NetworkSpec:
        """The critic's network."""
        return NetworkSpec(self.critic_hidden, layer_norm=self.critic_layer_norm)

    def schedules(self, step: int, steps: int) -> tuple[float, float]:
        """σ of the noise, and the share of both learning rates, when ``step`` of all ``steps`` are made."""
        sigma = noise_scale(self.noise_first, self.noise_last, step / steps)
        return sigma, 1.0 + (self.learning_rate_last - 1.0) * step / steps


def part(critics: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The weights of one critic; ``critics`` holds those of all under ``0/…``, ``1/…``."""
    prefix = f"{index}/"
    return {name.removeprefix(prefix): value for name, value in critics.items() if name.startswith(prefix)}


def fresh_learner(
    generator: np.random.Generator,
    network: NetworkSpec,
    critic: NetworkSpec,
    observation: tuple[int, ...],
    actions: int,
    critics: int = 1,
    critic_outputs: int = 1,
    compute: str = "float32",
) -> Learner:
    """Orthogonal weights with small heads: actions and values start near 0; the targets are copies."""
    actor = initial_weights(generator, network, observation, actions, head_gain=0.01)
    size = (observation[0] + actions,)
    both: Weights = {}
    for index in range(critics):
        drawn = initial_weights(generator, critic, size, critic_outputs, head_gain=0.1)
        both |= {f"{index}/{name}": value for name, value in drawn.items()}
    groups: dict[str, Weights] = {}
    for name, weights in (("actor", actor), ("critic", both)):
        groups |= {name: weights, f"{name}_target": dict(weights)}
        groups |= {f"{name}_first": zeros_like(weights), f"{name}_second": zeros_like(weights)}
        if loss_scale := fresh_loss_scale(Compute(compute)):
            groups[f"{name}_loss_scale"] = loss_scale
    return Learner(groups)


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
    """One step of Adam of ``actor`` or ``critic`` down its loss: the new state, the loss and the gradient's norm.

    The loss is given the weights in the type that is computed in; ``control`` holds the kernels.
    """
    weights, key = state[group], f"{group}_loss_scale"
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(weights)
        value = loss(cast(weights, compute))
    gradients, finite = gradients_of(tape, value, weights, state.get(key, {}))
    gradients, norm = clipped_by_norm(gradients, largest)
    names = (group, f"{group}_first", f"{group}_second")
    moments = state[names[1]], state[names[2]]
    moved, *learned = adam_step(control.decayed(weights, rate), gradients, *moments, steps, rate)
    new = settled(dict(zip(names, (control.clipped(moved), *learned), strict=True)), state, finite, key)
    return {**state, **new}, value, norm


class NoisyActor:
    """The actor at work: with noise for the replay, without it for the judge.

    Attributes:
        range: between actions in −1 … 1 and in the task's units.
        noise: remembers something of an episode.
    """

    def __init__(self, loop: Loop, settings: DeterministicSettings) -> None:
        """Args: the loop whose deployed weights these are, and the algorithm's settings.

        Raises:
            ValueError: the task has discrete actions.
        """
        task, size = loop.run.task, (settings.environments, loop.run.task.outputs)
        self.range = ActionRange(task.head, loop.run.request.method)
        self.noise = ExplorationNoise(*size, settings.noise_reversion, settings.noise_repeat)
        self._loop, self._settings = loop, settings

    def unit(self, observations: Floats) -> Floats:
        """tanh of the actor's outputs for raw observations: actions (n, size) in −1 … 1."""
        return np.tanh(mlp(self._loop.aware.acting(self._loop.weights), self._loop.normaliser(observations)))

    def greedy(self, observations: Floats) -> Floats:
        """The actor's actions for raw observations, in the task's units."""
        return self.range.physical(self.unit(observations))

    def noisy(self, observations: Floats, sigma: float) -> Floats:
        """clip(μ(s) + noise, −1, 1), ``sigma`` the noise's σ; before learning starts a uniform draw, or noise alone."""
        action = self.noise(self._loop.generator, sigma)
        if self._loop.step >= self._settings.learning_starts:
            action = self.unit(observations) + action
        elif not self._settings.noise_only_start:
            action = self._loop.generator.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        return action.clip(-1.0, 1.0)
