"""DQN: deep Q-learning (Mnih et al. 2015) with double targets and n-step returns, read from top to bottom.

One iteration: every environment makes ``rollout_steps`` ε-greedy steps with numpy weights into a replay of plain
arrays; then ``updates`` minibatches are drawn at once and learned in one call compiled by XLA.

Deviations from the paper, in order of weight:
1. Double targets (van Hasselt et al. 2016): the online network chooses the action that the target network values.
2. n-step returns, computed when a minibatch is drawn; a time limit is bootstrapped, not taken for an end.
3. Adam and the Huber loss instead of RMSProp and clipped errors; the global gradient norm is clipped.
4. Many environments at once and many updates between their steps; the ratio of both is a setting.
5. Learning rate falls linearly with the steps made.
"""

from __future__ import annotations

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
from train.replay import Replay, n_step_returns
from train.run import Run, Trained
from train.tasks import episode_seed

Floats = NDArray[np.float32]
METRICS = ("loss", "value", "gradient_norm")


@dataclass(frozen=True)
class DQNSettings:
    """Settings of one DQN run; the files in ``train/settings/`` hold the ones that were tuned, with their source."""

    environments: int = 64
    """Environments stepped together."""
    rollout_steps: int = 16
    """Steps of every environment between two rounds of updates."""
    updates: int = 32
    """Gradient steps in one round (one compiled call)."""
    minibatch: int = 256
    """Transitions of one gradient step."""
    learning_rate: float = 5e-4
    """Adam's step size at the start; falls linearly to ``learning_rate_last`` × itself at the last step."""
    learning_rate_last: float = 0.1
    """Share of the learning rate that is left at the last step."""
    discount: float = 0.99
    """γ, per step."""
    n_step: int = 3
    """Rewards summed before the bootstrap."""
    replay_capacity: int = 300_000
    """Transitions kept; the oldest are overwritten."""
    learning_starts: int = 10_000
    """Steps before the first update; the observations' statistics are gathered over these and then stand still."""
    target_period: int = 250
    """Updates between two copies of the online network to the target network."""
    epsilon_first: float = 1.0
    """Share of random actions at the start."""
    epsilon_last: float = 0.02
    """Share of random actions after the exploration."""
    exploration: float = 0.2
    """Share of all steps over which ε falls linearly."""
    gradient_norm: float = 10.0
    """Largest global norm of the gradient."""
    huber_delta: float = 1.0
    """Errors beyond it count linearly; in units of the (scaled) return."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning, so that returns are of order one."""

    def __post_init__(self) -> None:
        smallest = self.environments * (self.rollout_steps + self.n_step)
        if self.replay_capacity < smallest:
            raise ValueError(
                f"replay_capacity {self.replay_capacity} does not hold a rollout of {self.environments} environments; "
                f"take at least {smallest}."
            )


# --- pure functions ---------------------------------------------------------------------------------------------


def td_targets(returns: tf.Tensor, discounts: tf.Tensor, next_online: tf.Tensor, next_target: tf.Tensor) -> tf.Tensor:
    """Double n-step targets (batch,) (van Hasselt et al. 2016, equation 4).

    a* = argmax Q_online(s', ·);  y = R + γ' · Q_target(s', a*)

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the episode terminated (batch,).
        next_online: Q_online(s', ·) (batch, actions).
        next_target: Q_target(s', ·) (batch, actions).
    """
    best = tf.argmax(next_online, axis=1, output_type=tf.int32)
    return returns + discounts * tf.gather(next_target, best, batch_dims=1)


def huber(errors: tf.Tensor, delta: float) -> tf.Tensor:
    """½ e² where |e| ≤ δ, else δ (|e| − ½ δ); element by element."""
    size = tf.abs(errors)
    return tf.where(size <= delta, 0.5 * errors * errors, delta * (size - 0.5 * delta))


def exploration_rate(settings: DQNSettings, share: float) -> float:
    """ε when ``share`` of all steps are made: linear from first to last, then constant."""
    done = min(share / settings.exploration, 1.0) if settings.exploration > 0 else 1.0
    return settings.epsilon_first + (settings.epsilon_last - settings.epsilon_first) * done


def explore(generator: np.random.Generator, values: Floats, epsilon: float) -> NDArray[np.int64]:
    """ε-greedy actions (batch,) for action values (batch, actions)."""
    random = generator.random(len(values)) < epsilon
    return np.where(random, generator.integers(values.shape[1], size=len(values)), values.argmax(axis=1))


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


@dataclass
class Learner:
    """What the update changes, as plain arrays."""

    online: Weights
    target: Weights
    first: Weights
    second: Weights
    updates: int = 0

    @classmethod
    def fresh(
        cls, generator: np.random.Generator, network: NetworkSpec, observation: tuple[int, ...], outputs: int
    ) -> Learner:
        """Orthogonal weights with a small head: action values start near 0."""
        online = networks.initial_weights(generator, network, observation, outputs, head_gain=0.01)
        zeros = networks.zeros_like(online)
        return cls(online, dict(online), zeros, dict(zeros))

    def groups(self) -> dict[str, Weights]:
        """The arrays by name."""
        return {"online": self.online, "target": self.target, "first": self.first, "second": self.second}


def make_update(settings: DQNSettings) -> Callable[..., tuple[Any, tf.Tensor]]:
    """The compiled round: (state, batches, updates before, learning rate) → (state, metrics (updates, 3)).

    ``batches`` are the columns of ``draw`` with the shape (updates, minibatch, …).
    """

    def one(
        state: dict[str, Any], batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        next_online = networks.mlp(state["online"], batch["next_observation"])
        next_target = networks.mlp(state["target"], batch["next_observation"])
        targets = td_targets(batch["return"], batch["discount"], next_online, next_target)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["online"])
            values = networks.mlp(state["online"], batch["observation"])
            chosen = tf.gather(values, batch["action"], batch_dims=1)
            loss = tf.reduce_mean(huber(targets - chosen, settings.huber_delta))
        gradients, norm = clipped_by_norm(tape.gradient(loss, state["online"]), settings.gradient_norm)
        steps = tf.cast(count + 1, tf.float32)
        online, first, second = networks.adam_step(
            state["online"], gradients, state["first"], state["second"], steps, rate
        )
        renew = tf.equal((count + 1) % settings.target_period, 0)
        target = {name: tf.where(renew, online[name], old) for name, old in state["target"].items()}
        new_state = {"online": online, "target": target, "first": first, "second": second}
        return new_state, tf.stack([loss, tf.reduce_mean(chosen), norm])

    @tf.function(jit_compile=True, autograph=False)
    def update(
        state: dict[str, Any], batches: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        updates = batches["return"].shape[0]

        def body(
            index: tf.Tensor, state: dict[str, Any], metrics: tf.Tensor
        ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
            batch = {name: column[index] for name, column in batches.items()}
            state, row = one(state, batch, count + index, rate)
            return index + 1, state, tf.tensor_scatter_nd_update(metrics, [[index]], row[None])

        start = (tf.constant(0), state, tf.zeros((updates, len(METRICS))))
        _, state, metrics = tf.while_loop(lambda index, *_: index < updates, body, start)
        return state, metrics

    return update


def learn(
    update: Callable[..., tuple[Any, tf.Tensor]], learner: Learner, batches: dict[str, NDArray[Any]], rate: float
) -> NDArray[np.float32]:
    """Run the compiled round on the learner; its metrics (updates, 3)."""
    state, metrics = update(learner.groups(), batches, np.int32(learner.updates), np.float32(rate))
    arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), state)
    learner.online, learner.target = arrays["online"], arrays["target"]
    learner.first, learner.second = arrays["first"], arrays["second"]
    learner.updates += len(metrics)
    result: NDArray[np.float32] = metrics.numpy()
    return result


def draw(
    replay: Replay, normaliser: RunningNormaliser, generator: np.random.Generator, settings: DQNSettings
) -> dict[str, NDArray[Any]]:
    """Minibatches for one round, uniformly from the replay: columns (updates, minibatch, …)."""
    shape = (settings.updates, settings.minibatch)
    rows = replay.sample(generator, settings.updates * settings.minibatch, settings.n_step)
    returns, discounts = n_step_returns(rows.rewards, rows.done, rows.terminated, settings.discount)
    columns = {
        "observation": normaliser(rows.observations),
        "action": rows.actions.astype(np.int32),
        "return": returns * np.float32(settings.reward_scale),
        "discount": discounts,
        "next_observation": normaliser(rows.next_observations),
    }
    return {name: column.reshape(shape + column.shape[1:]) for name, column in columns.items()}


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: DQNSettings) -> Trained:
    """Train until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
    """
    request, task = run.request, run.task
    generator = np.random.default_rng(request.seed)
    learner = Learner.fresh(generator, request.network, task.observation_shape, task.outputs)
    normaliser = RunningNormaliser(task.observation_size, settings.learning_starts)
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    replay = Replay(settings.replay_capacity, settings.environments, task.observation_shape, image=task.is_image)
    if run.checkpoint is not None:
        generator = restore(run.checkpoint, learner, normaliser, stream, replay)
    update = make_update(settings)
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def decide(observation: Floats) -> NDArray[np.int64]:
        return networks.mlp(learner.online, normaliser(observation)).argmax(axis=1)

    def save() -> None:
        run.save(step, *saved(learner, normaliser, stream, replay, generator))

    while step < request.steps and run.stop_reason is None:
        share = step / request.steps
        epsilon = exploration_rate(settings, share)
        rate = settings.learning_rate * (1.0 + (settings.learning_rate_last - 1.0) * share)
        collect(stream, replay, normaliser, learner, generator, epsilon, settings.rollout_steps)
        step += iteration_steps
        means = dict.fromkeys(METRICS, float("nan"))
        if step >= settings.learning_starts:
            metrics = learn(update, learner, draw(replay, normaliser, generator, settings), rate)
            run.check_finite(step, metrics, METRICS)
            means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        row = {**stream.take_tally().row(), **means, "epsilon": epsilon, "learning_rate": rate}
        run.report(step, row, iteration_steps, decide)
        if run.wants_checkpoint:
            save()
    save()
    return Trained(learner.online, normaliser.frozen(), step, {"updates": learner.updates})


def collect(
    stream: EpisodeStream,
    replay: Replay,
    normaliser: RunningNormaliser,
    learner: Learner,
    generator: np.random.Generator,
    epsilon: float,
    steps: int,
) -> None:
    """Make ``steps`` ε-greedy steps in every environment and remember them."""
    for _ in range(steps):
        observation = stream.observation
        normaliser.update(observation)
        actions = explore(generator, networks.mlp(learner.online, normaliser(observation)), epsilon)
        transition = stream.step(actions)
        replay.add(observation, actions, transition)


def saved(
    learner: Learner,
    normaliser: RunningNormaliser,
    stream: EpisodeStream,
    replay: Replay,
    generator: np.random.Generator,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts of a checkpoint: all that the next iteration depends on, the replay included."""
    states = {"normaliser": normaliser.state(), "stream": stream.state(), "replay": replay.state()}
    arrays = flattened({**learner.groups(), **states})
    return arrays, {"updates": learner.updates, "generator": generator_facts(generator)}


def restore(
    checkpoint: Checkpoint, learner: Learner, normaliser: RunningNormaliser, stream: EpisodeStream, replay: Replay
) -> np.random.Generator:
    """Put everything back as :func:`saved` found it; returns the random generator."""
    learner.online, learner.target = checkpoint.group("online"), checkpoint.group("target")
    learner.first, learner.second = checkpoint.group("first"), checkpoint.group("second")
    learner.updates = int(checkpoint.facts["updates"])
    normaliser.restore(checkpoint.group("normaliser"))
    stream.restore(checkpoint.group("stream"))
    replay.restore(checkpoint.group("replay"))
    return restored_generator(checkpoint.facts["generator"])
