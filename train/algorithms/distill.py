"""Distillation: a student network learns to answer as a trained teacher does, on the states that both visit.

The scheme is DAgger (Ross, Gordon & Bagnell 2011) with policy distillation's loss (Rusu et al. 2016): some drones are
flown by the student and some by the teacher, every observation is answered by the teacher, and the student minimises
the divergence of its action distribution from the teacher's on all that was gathered. It is how a network too large to
be trained by reinforcement in minutes (policy III: 10 updates/s) gets its weights; the bundle's policy.json says so.

Deviations from the papers: the teacher's share of the drones falls linearly instead of geometrically, and the oldest
observations are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.bundle import WEIGHTS_FILE
from policy.locate import working_bundle
from policy.network import normalise
from policy.spec import Normaliser
from train.algorithms.common.learner import Learner, State, Update, compiled_round, learn
from train.algorithms.common.settings import linear, setting
from train.lazily import tf
from train.networks.forward import mlp
from train.networks.optimiser import adam_step, clipped_by_norm
from train.networks.policy import Policy
from train.networks.weights import Weights, initial_weights, zeros_like
from train.runs.checkpoint import CheckpointError, Keeper, gathered
from train.runs.request import Trained
from train.runs.run import Run
from train.suites.episodes import EpisodeStream
from train.suites.task import episode_seed

Floats = NDArray[np.float32]
METRICS = ("divergence", "agreement", "gradient_norm")


@dataclass(frozen=True)
class DistillSettings:
    """Settings of one distillation; the files in ``train/settings/`` hold the ones that were tuned."""

    environments: int = setting(128, "Environments stepped together.")
    rollout_steps: int = setting(16, "Steps of every environment between two rounds of updates.")
    updates: int = setting(8, "Gradient steps in one round (one compiled call).")
    minibatch: int = setting(1024, "Observations of one gradient step.")
    learning_rate: float = setting(5e-4, "Adam's step size at the start; falls linearly to 0 at the last step.")
    temperature: float = setting(1.0, "Both distributions are softened by it: softmax(logits / temperature).")
    teacher_share_first: float = setting(1.0, "Share of the drones that the teacher flies at the start.")
    teacher_share_last: float = setting(
        0.3, "Share of the drones that the teacher flies after half of the steps; the student flies the others."
    )
    capacity: int = setting(262_144, "Observations kept; the oldest are forgotten.")
    gradient_norm: float = setting(1.0, "Largest global norm of the gradient.")


# --- pure functions ---------------------------------------------------------------------------------------------


def divergence(teacher_logits: tf.Tensor, student_logits: tf.Tensor, temperature: float) -> tf.Tensor:
    """KL(teacher ‖ student) of each row, in nats (batch,).

    p = softmax(t / T);  KL = Σₐ p (log p − log softmax(s / T))
    """
    teacher = tf.nn.log_softmax(teacher_logits / temperature)
    student = tf.nn.log_softmax(student_logits / temperature)
    return tf.reduce_sum(tf.exp(teacher) * (teacher - student), axis=1)


def teacher_share(settings: DistillSettings, share: float) -> float:
    """Share of the drones that the teacher flies when ``share`` of all steps are made."""
    return linear(settings.teacher_share_first, settings.teacher_share_last, 2.0 * share)


# --- what is gathered -----------------------------------------------------------------------------------------------


class Answers:
    """Normalised observations (rows, size) with the teacher's logits (rows, actions), the newest ``capacity``."""

    def __init__(self, capacity: int, size: int, actions: int) -> None:
        self._observations = np.zeros((capacity, size), np.float32)
        self._logits = np.zeros((capacity, actions), np.float32)
        self._written = 0

    def add(self, observations: Floats, logits: Floats) -> None:
        """Remember a batch."""
        slots = (self._written + np.arange(len(observations))) % len(self._observations)
        self._observations[slots], self._logits[slots] = observations, logits
        self._written += len(observations)

    def sample(self, generator: np.random.Generator, shape: tuple[int, int]) -> dict[str, Floats]:
        """Minibatches (updates, rows, …), drawn uniformly with replacement."""
        rows = generator.integers(min(self._written, len(self._observations)), size=shape)
        return {"observation": self._observations[rows], "teacher": self._logits[rows]}

    def state(self) -> dict[str, NDArray[Any]]:
        """The filled part."""
        held = min(self._written, len(self._observations))
        written = np.array([self._written], np.int64)
        return {"observations": self._observations[:held], "logits": self._logits[:held], "written": written}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._written = int(state["written"][0])
        held = len(state["observations"])
        self._observations[:held], self._logits[:held] = state["observations"], state["logits"]


# --- the update -----------------------------------------------------------------------------------------------------


def make_update(settings: DistillSettings) -> Update:
    """The compiled round: (state, batches, updates before, learning rate) → (state, metrics (updates, 3))."""

    def one(state: State, batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor) -> tuple[State, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["student"])
            logits = mlp(state["student"], batch["observation"])
            loss = tf.reduce_mean(divergence(batch["teacher"], logits, settings.temperature))
        gradients, norm = clipped_by_norm(tape.gradient(loss, state["student"]), settings.gradient_norm)
        student, first, second = adam_step(
            state["student"], gradients, state["first"], state["second"], tf.cast(count + 1, tf.float32), rate
        )
        same = tf.equal(tf.argmax(logits, axis=1), tf.argmax(batch["teacher"], axis=1))
        row = tf.stack([loss, tf.reduce_mean(tf.cast(same, tf.float32)), norm])
        return {"student": student, "first": first, "second": second}, row

    return compiled_round(one, len(METRICS))


# --- the loop -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Teacher:
    """A trained policy that answers normalised observations."""

    name: str
    sha256: str
    weights: Weights
    normaliser: Normaliser

    @classmethod
    def load(cls, name_or_path: str, run: Run) -> Teacher:
        """That of a bundle.

        Raises:
            PolicyError: there is none, or it was trained on another observation.
        """
        bundle = working_bundle(name_or_path)
        spec = bundle.spec
        spec.check_observation(run.task.observation)
        return cls(spec.name, bundle.manifest.files[WEIGHTS_FILE].sha256, bundle.weights(), spec.normaliser)

    def logits(self, observations: Floats) -> Floats:
        """Its logits (batch, actions) for normalised observations (batch, size)."""
        return mlp(self.weights, observations)


def train(run: Run, settings: DistillSettings, teacher_name: str) -> Trained:
    """Distil the teacher until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
        PolicyError: the teacher's bundle cannot be used.
        CheckpointError: the checkpoint to resume is of another teacher.
    """
    request, task = run.request, run.task
    teacher = Teacher.load(teacher_name, run)
    generator = np.random.default_rng(request.seed)
    student = initial_weights(generator, request.network, task.observation_shape, task.outputs, head_gain=0.01)
    learner = Learner({"student": student, "first": zeros_like(student), "second": zeros_like(student)})
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    answers = Answers(settings.capacity, task.observation_size, task.outputs)
    keepers: dict[str, Keeper] = {"stream": stream, "answers": answers}
    if run.checkpoint is not None:
        if run.checkpoint.facts["teacher"] != teacher.sha256:
            raise CheckpointError(
                f"the checkpoint is of a run with another teacher than {teacher_name}. Resume with the one it was "
                "started with (--teacher), or begin anew with --fresh."
            )
        groups, learner.updates, generator = run.checkpoint.put_back(learner.groups, keepers)
        learner.put(groups)
    update = make_update(settings)
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def decide(observation: Floats) -> NDArray[np.int64]:
        return mlp(learner.groups["student"], normalise(teacher.normaliser, observation)).argmax(axis=1)

    def save() -> None:
        arrays, facts = gathered(learner.groups, keepers, learner.updates, generator)
        run.save(step, arrays, {**facts, "teacher": teacher.sha256})

    while step < request.steps and run.stop_reason is None:
        share = step / request.steps
        flown_by_teacher = round(settings.environments * teacher_share(settings, share))
        collect(stream, answers, teacher, learner, flown_by_teacher, settings.rollout_steps)
        rate = settings.learning_rate * (1.0 - share)
        (metrics,) = learn(update, learner, answers.sample(generator, (settings.updates, settings.minibatch)), rate)
        step += iteration_steps
        run.check_finite(step, metrics, METRICS)
        means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        tally = stream.take_tally()
        run.announce(step, tally.news)
        row = {**tally.row(), **means, "learning_rate": rate}
        run.report(step, row, iteration_steps, decide)
        if run.wants_checkpoint:
            save()
    save()
    notes = {
        "how": f"distilled from policy {teacher.name} (DAgger: teacher's answers on states that both visit)",
        "teacher": teacher.name,
        "teacher_weights_sha256": teacher.sha256,
        "updates": learner.updates,
    }
    return Trained(Policy(learner.groups["student"], teacher.normaliser), step, notes)


def collect(
    stream: EpisodeStream, answers: Answers, teacher: Teacher, learner: Learner, by_teacher: int, steps: int
) -> None:
    """Fly: the first ``by_teacher`` drones greedily by the teacher, the others by the student; keep the answers."""
    for _ in range(steps):
        observation = normalise(teacher.normaliser, stream.observation)
        logits = teacher.logits(observation)
        answers.add(observation, logits)
        actions = logits.argmax(axis=1)
        if by_teacher < len(observation):
            actions[by_teacher:] = mlp(learner.groups["student"], observation[by_teacher:]).argmax(axis=1)
        stream.step(actions)
