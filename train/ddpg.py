"""DDPG: deep deterministic policy gradients (Lillicrap et al. 2016), read from top to bottom.

One iteration: every environment makes ``rollout_steps`` noisy steps with numpy weights into a replay of plain arrays;
then ``updates`` minibatches are drawn at once and learned in one call compiled by XLA.

Deviations from the paper, in order of weight:
1. Many environments at once and many updates between their steps; the ratio of both is a setting.
2. n-step returns, computed when a minibatch is drawn; a time limit is bootstrapped, not taken for an end.
3. Observations are normalised by the statistics of the first steps instead of batch normalisation; the critic may
   normalise its layers (Ba et al. 2016), off by default.
4. Actions enter the critic's first layer, not its second; no L2 penalty on its weights.
5. The noise is an Ornstein–Uhlenbeck process whose θ may be 1 (independent Gaussian noise); its σ changes linearly.
6. The first ``learning_starts`` steps are uniformly random, or the noise alone (``noise_only_start``).
7. The bundle holds the policy of the best greedy evaluation, not the last one.
8. Off by default, from TD3 (Fujimoto et al. 2018): a ``twin`` critic whose smaller value is the target, noise on the
   target's action (``target_noise``), a slower actor (``policy_period``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from policy.spec import NetworkSpec, Squash
from train import networks
from train.best import BestPolicy
from train.checkpoint import Checkpoint, flattened, generator_facts, restored_generator
from train.episodes import EpisodeStream
from train.exploration import ActionRange, ExplorationNoise, noise_scale
from train.gradients import clipped_by_norm
from train.networks import Weights
from train.normalisation import RunningNormaliser
from train.replay import Replay, n_step_returns
from train.run import Run, Trained
from train.tasks import episode_seed

Floats = NDArray[np.float32]
METRICS = ("critic_loss", "value", "critic_gradient_norm", "actor_gradient_norm")


@dataclass(frozen=True)
class DDPGSettings:
    """Settings of one DDPG run; the files in ``train/settings/`` hold the ones that were tuned, with their source."""

    environments: int = 8
    """Environments stepped together."""
    rollout_steps: int = 8
    """Steps of every environment between two rounds of updates."""
    updates: int = 32
    """Gradient steps in one round (one compiled call)."""
    minibatch: int = 128
    """Transitions of one gradient step."""
    actor_learning_rate: float = 1e-3
    """Adam's step size of the actor."""
    critic_learning_rate: float = 1e-3
    """Adam's step size of the critic."""
    learning_rate_last: float = 1.0
    """Share of both learning rates that is left at the last step; they fall linearly."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    critic_layer_norm: bool = False
    """Normalise the critic's hidden layers."""
    discount: float = 0.99
    """γ, per step."""
    n_step: int = 1
    """Rewards summed before the bootstrap."""
    target_rate: float = 0.005
    """τ: share of the learned weights that goes into the target networks at every update."""
    replay_capacity: int = 300_000
    """Transitions kept; the oldest are overwritten."""
    learning_starts: int = 2_000
    """Steps before the first update; the observations' statistics are gathered over these and then stand still."""
    normalise: bool = True
    """Off for observations that the task itself brings to order one: statistics of random steps would cut the rest."""
    noise_first: float = 0.2
    """σ of the exploration noise at the start, in units of half the action's range."""
    noise_last: float = 0.2
    """σ at the last step."""
    noise_reversion: float = 1.0
    """θ of the noise: 1 is independent Gaussian noise, the paper's Ornstein–Uhlenbeck process has 0.15."""
    noise_repeat: int = 1
    """Steps for which one draw of the noise is held."""
    noise_only_start: bool = False
    """The first ``learning_starts`` actions are the noise alone instead of uniform draws."""
    gradient_norm: float = 10.0
    """Largest global norm of the actor's and of the critic's gradient."""
    action_penalty: float = 0.0
    """Weight of the mean squared actor output before the tanh: keeps a policy out of the tanh's flat ends."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning, so that returns are of order ten."""
    twin: bool = False
    """Two critics; the target is the smaller of their values (TD3)."""
    target_noise: float = 0.0
    """σ of the noise on the target's action (TD3: 0.2)."""
    target_noise_clip: float = 0.5
    """Largest size of that noise."""
    policy_period: int = 1
    """Critic updates for one update of the actor (TD3: 2)."""

    def __post_init__(self) -> None:
        smallest = self.environments * (self.rollout_steps + self.n_step)
        if self.replay_capacity < smallest:
            raise ValueError(
                f"replay_capacity {self.replay_capacity} does not hold a rollout of {self.environments} environments; "
                f"take at least {smallest}."
            )
        if not 0.0 < self.noise_reversion <= 1.0:
            raise ValueError(f"noise_reversion is {self.noise_reversion}; take a share above 0, at most 1 (Gaussian).")
        if min(self.policy_period, self.noise_repeat, self.n_step, self.updates) < 1:
            raise ValueError("policy_period, noise_repeat, n_step and updates count from 1.")


# --- pure functions ---------------------------------------------------------------------------------------------


def td_targets(returns: tf.Tensor, discounts: tf.Tensor, next_values: list[tf.Tensor]) -> tf.Tensor:
    """n-step targets (batch,): y = R + γ' · min over critics of Q'(s', μ'(s')); with one critic, equation 5.

    Args:
        returns: R, the discounted n-step reward (batch,).
        discounts: γ', γ to the number of rewards in R, or 0 where the episode terminated (batch,).
        next_values: of every target critic, (batch,) each.
    """
    smallest = next_values[0]
    for values in next_values[1:]:
        smallest = tf.minimum(smallest, values)
    return returns + discounts * smallest


def soft_update(target: Mapping[str, Any], learned: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """θ' ← (1 − τ) θ' + τ θ, array by array."""
    return {name: (1.0 - rate) * old + rate * learned[name] for name, old in target.items()}


def critic_values(critics: Mapping[str, Any], observations: tf.Tensor, actions: tf.Tensor) -> list[tf.Tensor]:
    """Q(s, a) (batch,) of every critic; ``critics`` holds their weights under ``0/…``, ``1/…``."""
    inputs = tf.concat([observations, actions], axis=1)
    return [networks.mlp(part(critics, index), inputs)[:, 0] for index in range(critic_count(critics))]


def critic_count(critics: Mapping[str, Any]) -> int:
    """Number of critics in these weights."""
    return len({name.split("/")[0] for name in critics})


def part(critics: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The weights of one critic."""
    prefix = f"{index}/"
    return {name.removeprefix(prefix): value for name, value in critics.items() if name.startswith(prefix)}


def actor_loss(
    actor: Mapping[str, Any], critics: Mapping[str, Any], observations: tf.Tensor, penalty: float
) -> tf.Tensor:
    """−mean Q(s, tanh(y(s))) + penalty · mean y²: its gradient is the deterministic policy gradient (equation 6)."""
    raw = networks.mlp(actor, observations)
    values = critic_values(part_only(critics, 0), observations, tf.tanh(raw))[0]
    return -tf.reduce_mean(values) + penalty * tf.reduce_mean(raw * raw)


def part_only(critics: Mapping[str, Any], index: int) -> dict[str, Any]:
    """One critic under the name ``0/…``."""
    return {f"0/{name}": value for name, value in part(critics, index).items()}


# --- the update: a whole round in one compiled call -----------------------------------------------------------------


@dataclass
class Learner:
    """What the update changes, as plain arrays by group: actor, critic, their targets and Adam's moments of both."""

    groups: dict[str, Weights]
    updates: int = 0

    @classmethod
    def fresh(
        cls,
        generator: np.random.Generator,
        network: NetworkSpec,
        critic: NetworkSpec,
        observation: tuple[int, ...],
        actions: int,
        critics: int,
    ) -> Learner:
        """Orthogonal weights with small heads: actions and values start near 0; the targets are copies."""
        actor = networks.initial_weights(generator, network, observation, actions, head_gain=0.01)
        size = (observation[0] + actions,)
        both: Weights = {}
        for index in range(critics):
            drawn = networks.initial_weights(generator, critic, size, 1, head_gain=0.1)
            both |= {f"{index}/{name}": value for name, value in drawn.items()}
        zeros = {"actor": networks.zeros_like(actor), "critic": networks.zeros_like(both)}
        return cls(
            {
                "actor": actor,
                "critic": both,
                "actor_target": dict(actor),
                "critic_target": dict(both),
                "actor_first": zeros["actor"],
                "actor_second": dict(zeros["actor"]),
                "critic_first": zeros["critic"],
                "critic_second": dict(zeros["critic"]),
            }
        )


def make_update(settings: DDPGSettings) -> Callable[..., tuple[Any, tf.Tensor]]:
    """The compiled round: (state, batches, updates before, share of the learning rates) → (state, metrics).

    ``batches`` are the columns of ``draw`` with the shape (updates, minibatch, …); metrics are (updates, 4).
    """

    def learn_critic(
        state: dict[str, Any], batch: dict[str, tf.Tensor], steps: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], list[tf.Tensor]]:
        next_action = tf.tanh(networks.mlp(state["actor_target"], batch["next_observation"]))
        if settings.target_noise > 0:
            next_action = tf.clip_by_value(next_action + batch["target_noise"], -1.0, 1.0)
        next_values = critic_values(state["critic_target"], batch["next_observation"], next_action)
        targets = td_targets(batch["return"], batch["discount"], next_values)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["critic"])
            values = critic_values(state["critic"], batch["observation"], batch["action"])
            # L = mean (y − Q(s, a))², summed over the critics
            loss = tf.add_n([tf.reduce_mean((targets - value) ** 2) for value in values])
        gradients, norm = clipped_by_norm(tape.gradient(loss, state["critic"]), settings.gradient_norm)
        learned = networks.adam_step(
            state["critic"], gradients, state["critic_first"], state["critic_second"], steps, rate
        )
        names = ("critic", "critic_first", "critic_second")
        return {**state, **dict(zip(names, learned, strict=True))}, [loss, tf.reduce_mean(values[0]), norm]

    def learn_actor(
        state: dict[str, Any], batch: dict[str, tf.Tensor], steps: tf.Tensor, rate: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["actor"])
            loss = actor_loss(state["actor"], state["critic"], batch["observation"], settings.action_penalty)
        gradients, norm = clipped_by_norm(tape.gradient(loss, state["actor"]), settings.gradient_norm)
        learned = networks.adam_step(
            state["actor"], gradients, state["actor_first"], state["actor_second"], steps, rate
        )
        names = ("actor", "actor_first", "actor_second")
        new = {**state, **dict(zip(names, learned, strict=True))}
        new["actor_target"] = soft_update(new["actor_target"], new["actor"], settings.target_rate)
        new["critic_target"] = soft_update(new["critic_target"], new["critic"], settings.target_rate)
        return new, norm

    def one(
        state: dict[str, Any], batch: dict[str, tf.Tensor], count: tf.Tensor, share: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        steps, period = tf.cast(count + 1, tf.float32), settings.policy_period
        state, metrics = learn_critic(state, batch, steps, share * settings.critic_learning_rate)
        actor_steps = tf.cast((count + 1) // period, tf.float32)
        rate = share * settings.actor_learning_rate
        if period == 1:
            state, norm = learn_actor(state, batch, actor_steps, rate)
        else:
            state, norm = tf.cond(
                tf.equal((count + 1) % period, 0),
                lambda: learn_actor(state, batch, actor_steps, rate),
                lambda: (state, tf.constant(0.0)),
            )
        return state, tf.stack([*metrics, norm])

    @tf.function(jit_compile=True, autograph=False)
    def update(
        state: dict[str, Any], batches: dict[str, tf.Tensor], count: tf.Tensor, share: tf.Tensor
    ) -> tuple[dict[str, Any], tf.Tensor]:
        updates = batches["return"].shape[0]

        def body(
            index: tf.Tensor, state: dict[str, Any], metrics: tf.Tensor
        ) -> tuple[tf.Tensor, dict[str, Any], tf.Tensor]:
            batch = {name: column[index] for name, column in batches.items()}
            state, row = one(state, batch, count + index, share)
            return index + 1, state, tf.tensor_scatter_nd_update(metrics, [[index]], row[None])

        start = (tf.constant(0), state, tf.zeros((updates, len(METRICS))))
        _, state, metrics = tf.while_loop(lambda index, *_: index < updates, body, start)
        return state, metrics

    return update


def learn(
    update: Callable[..., tuple[Any, tf.Tensor]], learner: Learner, batches: dict[str, NDArray[Any]], share: float
) -> NDArray[np.float32]:
    """Run the compiled round on the learner; its metrics (updates, …)."""
    state, metrics = update(learner.groups, batches, np.int32(learner.updates), np.float32(share))
    learner.groups = tf.nest.map_structure(lambda tensor: tensor.numpy(), state)
    learner.updates += len(metrics)
    result: NDArray[np.float32] = metrics.numpy()
    return result


def draw(
    replay: Replay, normaliser: RunningNormaliser, generator: np.random.Generator, settings: DDPGSettings
) -> dict[str, NDArray[Any]]:
    """Minibatches for one round, uniformly from the replay: columns (updates, minibatch, …)."""
    shape = (settings.updates, settings.minibatch)
    rows = replay.sample(generator, settings.updates * settings.minibatch, settings.n_step)
    returns, discounts = n_step_returns(rows.rewards, rows.done, rows.terminated, settings.discount)
    columns = {
        "observation": normaliser(rows.observations),
        "action": rows.actions,
        "return": returns * np.float32(settings.reward_scale),
        "discount": discounts,
        "next_observation": normaliser(rows.next_observations),
    }
    if settings.target_noise > 0:
        noise = np.float32(settings.target_noise) * generator.standard_normal(rows.actions.shape, dtype=np.float32)
        columns["target_noise"] = noise.clip(-settings.target_noise_clip, settings.target_noise_clip)
    return {name: column.reshape(shape + column.shape[1:]) for name, column in columns.items()}


# --- the loop -----------------------------------------------------------------------------------------------------


def train(run: Run, settings: DDPGSettings) -> Trained:
    """Train until all steps are made or the run wants to stop; the best evaluated policy is returned.

    Raises:
        ValueError: the task has discrete actions.
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
    """
    request, task = run.request, run.task
    generator = np.random.default_rng(request.seed)
    scale = ActionRange(task.head, "ddpg")
    critic = NetworkSpec(settings.critic_hidden, layer_norm=settings.critic_layer_norm)
    learner = Learner.fresh(
        generator, request.network, critic, task.observation_shape, task.outputs, 2 if settings.twin else 1
    )
    normaliser = RunningNormaliser(task.observation_size, settings.learning_starts if settings.normalise else 0)
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    replay = Replay(settings.replay_capacity, settings.environments, task.observation_shape, action_size=task.outputs)
    noise = ExplorationNoise(settings.environments, task.outputs, settings.noise_reversion, settings.noise_repeat)
    best = BestPolicy(task.presets[0])
    if run.checkpoint is not None:
        generator = restore(run.checkpoint, learner, normaliser, stream, replay, noise, best)
    update = make_update(settings)
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def act(observation: Floats) -> Floats:
        return np.tanh(networks.mlp(learner.groups["actor"], normaliser(observation)))

    def decide(observation: Floats) -> Floats:
        return scale.physical(act(observation))

    while step < request.steps and run.stop_reason is None:
        share = step / request.steps
        sigma = noise_scale(settings.noise_first, settings.noise_last, share)
        rate_share = 1.0 + (settings.learning_rate_last - 1.0) * share
        for _ in range(settings.rollout_steps):
            observation = stream.observation
            normaliser.update(observation)
            disturbance = noise(generator, sigma)
            if step >= settings.learning_starts:
                unit = act(observation) + disturbance
            elif settings.noise_only_start:
                unit = disturbance
            else:
                unit = generator.uniform(-1.0, 1.0, disturbance.shape).astype(np.float32)
            unit = unit.clip(-1.0, 1.0)
            transition = stream.step(scale.physical(unit))
            replay.add(observation, unit, transition)
            noise.begin(transition.done)
        step += iteration_steps
        means = dict.fromkeys(METRICS, float("nan"))
        if step >= settings.learning_starts:
            metrics = learn(update, learner, draw(replay, normaliser, generator, settings), rate_share)
            run.check_finite(step, metrics, METRICS)
            means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        run.report(step, {**stream.take_tally().row(), **means, "noise": sigma}, iteration_steps, decide)
        best.offer(run.last_row, learner.groups["actor"], step)
        if run.wants_checkpoint:
            run.save(step, *saved(learner, normaliser, stream, replay, noise, best, generator))
    run.save(step, *saved(learner, normaliser, stream, replay, noise, best, generator))
    notes = {"updates": learner.updates, **best.notes()}
    return Trained(best.weights(learner.groups["actor"]), normaliser.frozen(), step, notes, Squash.TANH)


def saved(
    learner: Learner,
    normaliser: RunningNormaliser,
    stream: EpisodeStream,
    replay: Replay,
    noise: ExplorationNoise,
    best: BestPolicy,
    generator: np.random.Generator,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and facts of a checkpoint: all that the next iteration depends on, the replay included."""
    parts: dict[str, Any] = {"normaliser": normaliser, "stream": stream, "replay": replay, "noise": noise, "best": best}
    states = {name: value.state() for name, value in parts.items()}
    return flattened({**learner.groups, **states}), {
        "updates": learner.updates,
        "generator": generator_facts(generator),
    }


def restore(
    checkpoint: Checkpoint,
    learner: Learner,
    normaliser: RunningNormaliser,
    stream: EpisodeStream,
    replay: Replay,
    noise: ExplorationNoise,
    best: BestPolicy,
) -> np.random.Generator:
    """Put everything back as :func:`saved` found it; returns the random generator."""
    learner.groups = {name: checkpoint.group(name) for name in learner.groups}
    learner.updates = int(checkpoint.facts["updates"])
    normaliser.restore(checkpoint.group("normaliser"))
    stream.restore(checkpoint.group("stream"))
    replay.restore(checkpoint.group("replay"))
    noise.restore(checkpoint.group("noise"))
    best.restore(checkpoint.group("best"))
    return restored_generator(checkpoint.facts["generator"])
