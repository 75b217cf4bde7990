"""PPO with GRUs and truncated back-propagation through time, read from top to bottom.

As ``ppo.py``, whose losses these are; what differs is what an episode remembers. A rollout is cut into sequences of
``unroll`` steps. Each begins with the state that the policy had there when it acted, and the update computes the states
behind it again, so that gradients reach back through at most ``unroll`` steps (Williams & Peng 1990). Where an episode
begins within a sequence, the state is zero. Minibatches are of whole sequences.

The value network is a perceptron that is given the policy's state beside the observation, as it was when the policy
acted: what the policy remembers, without a memory and a gradient through time of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import NetworkSpec, Squash
from quarl.train.algorithms.common.actor_critic import ActorCritic, Forward, descent
from quarl.train.algorithms.common.distributions import Distribution, distribution_of
from quarl.train.algorithms.common.learner import State, Update, scan_updates
from quarl.train.algorithms.common.loop import Loop
from quarl.train.algorithms.common.normalisation import ImageScaling, RunningNormaliser
from quarl.train.algorithms.common.rollouts import Rollout, compute_advantages
from quarl.train.algorithms.common.settings import FULL_BITS, setting
from quarl.train.algorithms.ppo import METRICS, PPOSettings, policy_loss, shuffle_minibatches, value_loss
from quarl.train.lazily import tf
from quarl.train.networks.forward import mlp
from quarl.train.networks.optimiser import adam
from quarl.train.networks.recurrent import Memory, are_trainable, unroll_network
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import Actions, Observations

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class RecurrentPPOSettings(PPOSettings):
    """Settings of one run; those of ``ppo.py``, and how far gradients reach back."""

    unroll: int = setting(16, "Steps of a sequence, which gradients reach back through; must divide rollout_steps.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("unroll")
        if self.rollout_steps % self.unroll or self.minibatch % self.unroll:
            raise ValueError(
                f"unroll must divide rollout_steps, {self.rollout_steps}, and minibatch, {self.minibatch}, got "
                f"{self.unroll}. Type --set unroll=16, for example."
            )
        if self.quantization_bits != FULL_BITS or self.compute != "float32":
            raise ValueError(
                "recurrent_ppo trains in float32 and without quantizers. Leave --quantization-method, --precision "
                "and --mixed-precision out; quarl convert takes the ranges from recorded rollouts."
            )


def sequences(columns: Mapping[str, NDArray[Any]], unroll: int) -> dict[str, NDArray[Any]]:
    """Columns (steps, environments, …) as sequences (environments × steps / unroll, unroll, …)."""
    cut = {}
    for name, column in columns.items():
        steps, environments = column.shape[:2]
        parts = column.reshape(steps // unroll, unroll, environments, *column.shape[2:])
        cut[name] = np.ascontiguousarray(np.moveaxis(parts, 1, 2)).reshape(-1, unroll, *column.shape[2:])
    return cut


class RecurrentRollout(Rollout):
    """A rollout with what the policy remembered; values are of observations with the states behind them.

    Attributes:
        states: before each step, (steps + 1, environments, state_size); zero where an episode begins.
        behind: what each step made of them, (steps, environments, state_size).
        begins: (steps + 1, environments), whether a step is an episode's first.
    """

    def __init__(self, steps: int, distribution: Distribution, observation: Observations, memory: Memory) -> None:
        super().__init__(steps, distribution, observation)
        self.states = np.empty((steps + 1, *memory.states.shape), np.float32)
        self.behind = np.empty_like(self.states[:-1])
        self.begins = np.empty((steps + 1, len(observation)), np.bool_)

    def before(self, step: int, memory: Memory) -> None:
        """Remember the states that a step begins with."""
        self.begins[step] = memory.begins
        self.states[step] = memory.states * ~memory.begins[:, None]

    def evaluate_with_states(
        self, forward: Forward, normaliser: RunningNormaliser | ImageScaling
    ) -> tuple[Floats, Floats]:
        """As :meth:`Rollout.evaluate`; an episode that its time limit cut would go on with the state behind its last
        step."""
        raw = self.observations
        self.observations = normaliser(raw)
        rows = np.concatenate([self.observations, self.states], axis=2)
        values = forward.values(rows.reshape(-1, rows.shape[2])).reshape(rows.shape[:2])
        next_values = values[1:].copy()
        for step, truncated, last in self._cut_short:
            inputs = np.concatenate([normaliser(last), self.behind[step][truncated]], axis=1)
            next_values[step, truncated] = forward.values(inputs)
        normaliser.update(raw[:-1].reshape(-1, raw.shape[2]))
        return values[:-1], next_values


# --- the update -----------------------------------------------------------------------------------------------------


def make_update(settings: RecurrentPPOSettings, network: NetworkSpec, distribution: Distribution) -> Update:
    """Return the compiled update: (state, batch, order, count, learning rate, entropy coefficient) → (state, metrics).

    ``batch`` has columns of sequences, (sequences, unroll, …), ``order`` (minibatches, sequences) int32.
    """
    descend = descent(settings, network, adam)

    @tf.function(jit_compile=True, autograph=False)
    def update(
        state: State, batch: dict[str, tf.Tensor], order: tf.Tensor, count: tf.Tensor, rate: tf.Tensor, bonus: tf.Tensor
    ) -> tuple[State, tf.Tensor]:
        def one(index: tf.Tensor, state: State) -> tuple[State, tf.Tensor]:
            # (unroll, sequences, …): a step's rows lie together
            rows = {name: gather_sequences(column, order[index]) for name, column in batch.items()}
            flat = {name: tf.reshape(column, (-1, *column.shape[2:])) for name, column in rows.items()}
            policy, value = state["policy"], state["value"]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch((policy, value))
                outputs, _ = unroll_network(network, policy, rows["observation"], rows["state"][0], rows["begins"])
                loss, parts = policy_loss(distribution, policy, outputs, flat, settings.clip_range, bonus)
                value_inputs = tf.concat([flat["observation"], flat["state"]], axis=1)
                error = value_loss(mlp(value, value_inputs)[:, 0], flat["return"])
                loss += settings.value_weight * error
            state, norms = descend(state, tape, loss, count + tf.cast(index, tf.float32) + 1.0, rate)
            parts |= {"value_loss": error, **norms}
            return state, tf.stack([parts[name] for name in METRICS])

        return scan_updates(one, state, order.shape[0], len(METRICS))

    return lambda *arguments: update(*tf.nest.map_structure(tf.convert_to_tensor, arguments))


def gather_sequences(column: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Return the chosen sequences (n,) of a column (sequences, unroll, …), (unroll, n, …)."""
    subset = tf.gather(column, chosen)
    return tf.transpose(subset, (1, 0, *range(2, len(subset.shape))))


# --- the loop -----------------------------------------------------------------------------------------------------


class GreedyPilot:
    """The policy as it is now, greedily, with a memory of its own; a function of raw observations.

    Args:
        outputs: (memory, raw observations (n, …)) to outputs.
        distribution: whose greedy action is taken.
        size: floats of a state.
    """

    def __init__(self, outputs: Any, distribution: Distribution, size: int) -> None:
        self._outputs, self._distribution, self._memory = outputs, distribution, Memory(0, size)

    def begin(self, mask: NDArray[np.bool_]) -> None:
        """Episodes begin where the mask (n,) says."""
        if len(mask) == len(self._memory.states):
            mask = mask | self._memory.begins
        self._memory.begin(mask)

    def __call__(self, observations: Observations) -> Actions:
        """Actions for raw observations."""
        return self._distribution.greedy(self._outputs(self._memory, observations))


def train(run: Run, settings: RecurrentPPOSettings) -> Trained:
    """Train until all steps are made or the run wants to stop.

    Raises:
        ValueError: the network has no recurrent layers, or others than GRUs.
        DivergenceError: a loss or gradient became NaN or infinite; the last good checkpoint is kept.
    """
    task, network = run.task, run.request.network
    if not network.recurrences or not are_trainable(network):
        raise ValueError("recurrent_ppo requires a network with GRUs. Type --model 128,gru-128, for example.")
    loop = Loop(run, settings, RunningNormaliser(task.observation_size, settings.normaliser_steps))
    distribution, memory = distribution_of(task, settings.log_std), Memory(settings.environments, network.state_size)
    learner = ActorCritic.fresh(
        loop.generator,
        network,
        task.observation_shape,
        task.outputs,
        settings.value_hidden,
        extra=distribution.extra_weights(),
    )
    loop.follow(learner, "policy", {"memory": memory})
    forward, update = Forward(learner), make_update(settings, network, distribution)

    def outputs_of(memory: Memory, observation: Observations) -> Floats:
        return memory.step(network, learner.policy, loop.normaliser(observation))

    greedy = GreedyPilot(outputs_of, distribution, network.state_size)
    while loop.should_continue():
        rate, bonus = settings.schedules(loop.share)

        # Collect: aₜ ~ π(·|sₜ, hₜ) in every environment.
        rollout = RecurrentRollout(settings.rollout_steps, distribution, loop.stream.observation, memory)
        for step in range(settings.rollout_steps):
            rollout.before(step, memory)
            outputs = outputs_of(memory, loop.stream.observation)
            actions, log_probabilities = distribution.sample(loop.generator, outputs, learner.policy)
            transition = loop.stream.step(distribution.to_environment(actions))
            rollout.add(step, actions, log_probabilities, None, transition)
            rollout.behind[step] = memory.states
            memory.begin(transition.done)
        rollout.before(settings.rollout_steps, memory)
        loop.step += loop.iteration_steps

        # Advantages: δₜ = rₜ + γ V(sₜ₊₁, hₜ₊₁) (1 − terminatedₜ) − V(sₜ, hₜ);  Aₜ = δₜ + γ λ (1 − cutₜ) Aₜ₊₁
        values, next_values = rollout.evaluate_with_states(forward, loop.normaliser)
        rewards = rollout.rewards * np.float32(settings.reward_scale)
        advantages = compute_advantages(
            rewards, values, next_values, rollout.terminated, rollout.cut, settings.discount, settings.gae_lambda
        )
        columns = rollout.columns(advantages, advantages + values)  # Rₜ = Aₜ + V(sₜ, hₜ)
        columns |= {"state": rollout.states[:-1], "begins": rollout.begins[:-1].astype(np.float32)}
        batch = sequences(columns, settings.unroll)

        # Update: a step of Adam for every minibatch of sequences of every epoch, all in one compiled call.
        count = loop.iteration_steps // settings.unroll
        order = shuffle_minibatches(loop.generator, count, settings.minibatch // settings.unroll, settings.epochs)
        numbers = np.float32(learner.updates), np.float32(rate), np.float32(bonus)
        (metrics,) = learner.take(update, batch, order, *numbers)
        learner.updates += len(order)

        row = {**loop.means(metrics, METRICS), "learning_rate": rate}
        loop.report(row, greedy, may_be_best=settings.keep_best and loop.normaliser.is_settled)
    return loop.finish_training(Squash.CLIP)
