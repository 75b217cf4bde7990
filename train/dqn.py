"""DQN: deep Q-learning (Mnih et al. 2015) with double targets, n-step returns and, if asked for, priorities.

Read it from top to bottom. One iteration: every environment makes ``rollout_steps`` ε-greedy steps into a replay of
plain arrays; then ``updates`` minibatches are drawn at once and learned in one compiled call. Equations, numbered
deviations from the papers and the settings' sources: ``docs/algorithms/dqn.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.spec import NetworkSpec
from train import networks
from train.best import Policy
from train.checkpoint import gathered
from train.dqn_memory import Memory
from train.engine import uses_numpy
from train.episodes import Actions, Observations
from train.epsilon_greedy import exploration_rate
from train.fake_quantization import QUANTIZER, faked, passed_through
from train.gradients import clipped_by_norm
from train.lazily import tf
from train.mixed_precision import Compute, cast, fresh_loss_scale, gradients_of, settled
from train.networks import Weights
from train.presets import SettingsError
from train.priorities import importance_weights
from train.quantization_aware import fake_quantization
from train.replay import n_step_returns
from train.run import Run, Trained
from train.shared_settings import ReplaySettings

Floats = NDArray[np.float32]
METRICS = ("loss", "value", "gradient_norm")


@dataclass(frozen=True)
class DQNSettings(ReplaySettings):
    """Settings of one DQN run; the files in ``train/settings/`` hold the ones that were tuned, with their source.

    Those of every replay are in ``train/shared_settings.py``.
    """

    environments: int = 64
    rollout_steps: int = 16
    minibatch: int = 256
    n_step: int = 3
    learning_starts: int = 10_000
    learning_rate: float = 5e-4
    """Adam's step size at the start; falls linearly to ``learning_rate_last`` × itself at the last step."""
    learning_rate_last: float = 0.1
    """Share of the learning rate that is left at the last step."""
    target_period: int = 250
    """Updates between two copies of the online network to the target network."""
    epsilon_first: float = 1.0
    """Share of random actions at the start."""
    epsilon_last: float = 0.02
    """Share of random actions after the exploration."""
    exploration: float = 0.2
    """Share of all steps over which ε falls linearly."""
    exploration_hold: int = 1
    """A random action is held for 1 to so many steps; ε is then the chance that one begins."""
    gradient_norm: float = 10.0
    """Largest global norm of the gradient."""
    huber_delta: float = 1.0
    """Errors beyond it count linearly; in units of the (scaled) return."""
    priority_exponent: float = 0.0
    """α: transitions are drawn with a probability ∝ |error|^α; 0 draws all alike and costs nothing."""
    importance_exponent: float = 0.2
    """β: how much of the bias of priorities is taken back by weights; 1 is all of it. Unused where α is 0."""
    engine: str = "tensorflow"
    """What computes the updates: "tensorflow" (compiled), or "numpy", which is faster for small perceptrons."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least_one("target_period", "exploration_hold")


# --- pure functions ---------------------------------------------------------------------------------------------


def td_targets(returns: tf.Tensor, discounts: tf.Tensor, next_online: tf.Tensor, next_target: tf.Tensor) -> tf.Tensor:
    """Double n-step targets (batch,) (van Hasselt et al. 2016, equation 4).

    a* = argmax Q_online(s', ·);  y = R + γ' · Q_target(s', a*)

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the return terminated (batch,).
        next_online: Q_online(s', ·) (batch, actions).
        next_target: Q_target(s', ·) (batch, actions).
    """
    best = tf.argmax(next_online, axis=1, output_type=tf.int32)
    return returns + discounts * tf.gather(next_target, best, batch_dims=1)


def huber(errors: tf.Tensor, delta: float) -> tf.Tensor:
    """½ e² where |e| ≤ δ, else δ (|e| − ½ δ); element by element."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * errors * errors, delta * (size - 0.5 * delta))


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


@dataclass
class Learner:
    """What the update changes, as plain arrays."""

    online: Weights
    target: Weights
    first: Weights
    second: Weights
    updates: int = 0
    loss_scale: Weights = field(default_factory=dict)
    """Of float16; see ``train/mixed_precision.py``."""

    @classmethod
    def fresh(
        cls,
        generator: np.random.Generator,
        network: NetworkSpec,
        observation: tuple[int, ...],
        outputs: int,
        compute: str = "float32",
    ) -> Learner:
        """Orthogonal weights with a small head: action values start near 0."""
        online = networks.initial_weights(generator, network, observation, outputs, head_gain=0.01)
        zeros = networks.zeros_like(online)
        return cls(online, dict(online), zeros, dict(zeros), loss_scale=fresh_loss_scale(Compute(compute)))

    def groups(self) -> dict[str, Weights]:
        """The arrays by name."""
        groups = {"online": self.online, "target": self.target, "first": self.first, "second": self.second}
        return {**groups, "loss_scale": self.loss_scale} if self.loss_scale else groups

    def put(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace what :meth:`groups` gave, by arrays or tensors."""
        for group, values in groups.items():
            setattr(self, group, {name: np.asarray(value) for name, value in values.items()})


def make_update(settings: DQNSettings, network: NetworkSpec) -> Callable[..., tuple[Any, tf.Tensor, tf.Tensor]]:
    """The compiled round: (state, batches, updates before, rate) → (state, metrics (updates, 3), errors as drawn).

    ``batches`` are the columns of ``draw`` with the shape (updates, minibatch, …). Perceptrons are compiled by XLA;
    convolutions are not, since oneDNN's are faster, except for Adam's many small operators. The engine "numpy" computes
    the same without TensorFlow.
    """
    if uses_numpy(settings.engine, network):
        from train.by_hand.off_policy import dqn_update

        return dqn_update(settings, fake_quantization(settings, network))
    compiled, compute, control = not network.convolutions, Compute(settings.compute), settings.weight_control
    fake = fake_quantization(settings, network)
    adam_step = networks.adam_step if compiled else tf.function(networks.adam_step, jit_compile=True, autograph=False)

    def descend(
        weights: Any, gradients: Any, first: Any, second: Any, steps: tf.Tensor, rate: tf.Tensor
    ) -> tuple[Any, Any, Any, tf.Tensor]:
        """One step of Adam along the clipped gradients: new weights and moments, and the norm before clipping."""
        gradients, norm = clipped_by_norm(gradients, settings.gradient_norm)
        moved, first, second = adam_step(control.decayed(weights, rate), gradients, first, second, steps, rate)
        return control.clipped(moved), first, second, norm

    if compute.is_mixed and not compiled:  # fewer passes over the weights; in float32 other bits than those of old runs
        descend = tf.function(descend, jit_compile=True, autograph=False)

    def one(
        state: dict[str, Any], batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        scales = state.get(QUANTIZER, {})

        def action_values(weights: Any, observations: tf.Tensor) -> tf.Tensor:
            return networks.forward(network, cast(faked(weights, scales, fake), compute), observations)

        next_online = action_values(state["online"], batch["next_observation"])
        next_target = action_values(state["target"], batch["next_observation"])
        targets = td_targets(batch["return"], batch["discount"], next_online, next_target)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["online"])
            values = action_values(state["online"], batch["observation"])
            chosen = tf.gather(values, batch["action"], batch_dims=1)
            losses = huber(targets - chosen, settings.huber_delta)
            loss = tf.reduce_mean(batch["weight"] * losses if "weight" in batch else losses)
        gradients, finite = gradients_of(tape, loss, state["online"], state.get("loss_scale", {}))
        steps = tf.cast(count + 1, tf.float32)
        learned = descend(state["online"], gradients, state["first"], state["second"], steps, rate)
        online, first, second, norm = learned
        new_state = settled({"online": online, "first": first, "second": second}, state, finite)
        renew, online = tf.equal((count + 1) % settings.target_period, 0), new_state["online"]
        new_state["target"] = {name: tf.where(renew, online[name], old) for name, old in state["target"].items()}
        return new_state | passed_through(state), tf.stack([loss, tf.reduce_mean(chosen), norm]), targets - chosen

    @tf.function(jit_compile=compiled, autograph=False)
    def update(
        state: dict[str, Any], batches: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
        updates, minibatch = batches["return"].shape

        def body(
            index: tf.Tensor, state: dict[str, Any], metrics: tf.Tensor, errors: tf.Tensor
        ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor, tf.Tensor]:
            batch = {name: column[index] for name, column in batches.items()}
            state, row, error = one(state, batch, count + index, rate)
            metrics = tf.tensor_scatter_nd_update(metrics, [[index]], row[None])
            return index + 1, state, metrics, tf.tensor_scatter_nd_update(errors, [[index]], error[None])

        start = (tf.constant(0), state, tf.zeros((updates, len(METRICS))), tf.zeros((updates, minibatch)))
        _, state, metrics, errors = tf.while_loop(lambda index, *_: index < updates, body, start)
        return state, metrics, errors

    return update


def learn(
    update: Callable[..., tuple[Any, tf.Tensor, tf.Tensor]],
    learner: Learner,
    batches: dict[str, NDArray[Any]],
    rate: float,
    quantizer: Mapping[str, Any] | None = None,
) -> tuple[Floats, Floats]:
    """Run the compiled round on the learner, with the group ``quantizer`` if it is active.

    Returns its metrics (updates, 3) and errors (updates, minibatch).
    """
    groups = {**learner.groups(), **(quantizer or {})}
    state, metrics, errors = update(groups, batches, np.int32(learner.updates), np.float32(rate))
    learner.put({name: group for name, group in state.items() if name != QUANTIZER})
    learner.updates += len(metrics)
    return np.asarray(metrics), np.asarray(errors)


def draw(memory: Memory, generator: np.random.Generator, settings: DQNSettings) -> dict[str, NDArray[Any]]:
    """Minibatches for one round from the replay: columns (updates, minibatch, …) and the ``rows`` they are from."""
    shape = (settings.updates, settings.minibatch)
    columns: dict[str, NDArray[Any]] = {}
    if memory.priorities is None:
        drawn = memory.replay.sample(generator, settings.updates * settings.minibatch, settings.n_step)
    else:
        memory.priorities.follow(memory.replay.written)
        rows, probabilities = memory.priorities.draw(generator, shape)
        drawn = memory.replay.take(rows.ravel(), settings.n_step)
        columns["weight"] = importance_weights(probabilities, settings.importance_exponent).ravel()
    returns, discounts = n_step_returns(drawn.rewards, drawn.cut, drawn.terminated, settings.discount)
    columns |= {
        "observation": memory.normaliser(drawn.observations),
        "action": drawn.actions.astype(np.int32),
        "return": returns * np.float32(settings.reward_scale),
        "discount": discounts,
        "next_observation": memory.normaliser(drawn.next_observations),
        "rows": drawn.rows,
    }
    return {name: column.reshape(*shape, *column.shape[1:]) for name, column in columns.items()}


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: DQNSettings) -> Trained:
    """Train until all steps are made or the run wants to stop; the policy of the best evaluation is returned.

    Raises:
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
        SettingsError: the task's actions are continuous.
    """
    request, task = run.request, run.task
    if not task.is_discrete:
        raise SettingsError(f"dqn chooses among actions and {task.name}'s are continuous. Type --method ddpg.")
    generator = np.random.default_rng(request.seed)
    learner = Learner.fresh(generator, request.network, task.observation_shape, task.outputs, settings.compute)
    memory = Memory.fresh(task, request, settings)
    if run.checkpoint is not None:
        groups, learner.updates, generator = run.checkpoint.put_back(learner.groups(), memory.parts())
        learner.put(groups)
        if task.is_image:
            run.progress.say(f"Checkpoints hold no images: {settings.learning_starts:,} steps refill the replay first.")
    update = make_update(settings, request.network)
    act, aware = networks.Acting(request.network, Compute(settings.compute)), memory.aware
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def values(observation: Observations) -> Floats:
        return act(aware.acting(learner.online), memory.normaliser(observation))

    def decide(observation: Observations) -> Actions:
        return values(observation).argmax(axis=1)

    def policy() -> Policy:
        return aware.policy(learner.online, memory.normaliser.frozen())

    def save() -> None:  # a replay of images is left out
        run.save(step, *gathered(learner.groups(), memory.parts(), learner.updates, generator))

    while step < request.steps and run.stop_reason is None:
        aware.begin_when_due(step, run.progress.say, memory.best)
        share = step / request.steps
        epsilon = exploration_rate(settings.epsilon_first, settings.epsilon_last, settings.exploration, share)
        rate = settings.learning_rate * (1.0 + (settings.learning_rate_last - 1.0) * share)
        for _ in range(settings.rollout_steps):
            observation = memory.stream.observation
            memory.normaliser.update(observation)
            actions = memory.explore(generator, values(observation), epsilon)
            transition = memory.stream.step(actions)
            memory.replay.add(observation, actions, transition)
            memory.explore.begin(transition.done)
        step += iteration_steps
        means = dict.fromkeys(METRICS, float("nan"))
        if memory.replay.written * settings.environments >= settings.learning_starts:
            batches = draw(memory, generator, settings)
            rows = batches.pop("rows")
            metrics, errors = learn(update, learner, batches, rate, aware.group)
            aware.count(len(metrics))
            run.check_finite(step, metrics, METRICS)
            if memory.priorities is not None:
                memory.priorities.update(rows, errors)
            means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        rates = {"epsilon": epsilon, "learning_rate": rate, "observations_clipped": memory.normaliser.take_clipped()}
        row = {**memory.stream.take_tally().row(), **means, **rates}
        aware.look(learner.online, memory.normaliser(memory.stream.observation))
        run.report(step, row, iteration_steps, decide)
        if step >= settings.learning_starts:
            memory.best.offer(run.last_row, policy, step)
        if run.wants_checkpoint:
            save()
    save()
    notes = {"updates": learner.updates, **aware.notes(), **memory.best.notes()}
    return Trained(memory.best.policy(policy), step, notes)
