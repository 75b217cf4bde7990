"""Distillation: a student network learns to answer as a trained teacher does, on the states that both visit.

The scheme is DAgger (Ross, Gordon & Bagnell 2011) with policy distillation's loss (Rusu et al. 2016): some drones are
flown by the student and some by the teacher, every observation is answered by the teacher, and the student minimises
the divergence of its action distribution from the teacher's on all that was gathered. It is how a network too large to
be trained by reinforcement in minutes (policy III: 10 updates/s) gets its weights; the bundle's policy.json says so.
A task may show the two different observations of one state: the teacher range rays, the student a depth picture
(``Task.teacher_observation``).

With quantizers (--quantization-method quantization-aware) the student computes on its grid once the delay is over, as
in the other algorithms. It may begin as its teacher (``start_as_teacher``), which makes of a trained policy one of
fewer bits; and ``activity_penalty`` makes its hidden layers sparse: behind a ReLU an output of 0 is a row of weights
that the native engine neither loads nor multiplies.

Deviations from the papers: the teacher's share of the drones falls linearly instead of geometrically, and the oldest
observations are forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.locate import working_bundle
from quarl.policy.reading import WEIGHTS_FILE
from quarl.policy.reference import forward_float, normalise
from quarl.policy.spec import NetworkSpec, Normaliser, PolicySpec
from quarl.train.algorithms.common.learner import Learner, State, Update, compile_round, learn
from quarl.train.algorithms.common.settings import QuantizedSettings, linear, setting
from quarl.train.lazily import tf
from quarl.train.networks.forward import IMAGE_SCALE, Acting, features, head
from quarl.train.networks.optimiser import adam_step, clip_by_global_norm
from quarl.train.networks.weights import Weights, initial_weights, zeros_like
from quarl.train.quantization.aware import QuantizationAware
from quarl.train.quantization.fake import LEVELS, QUANTIZER, FakeQuantization, fake_quantize_weights, select_scales
from quarl.train.runs.checkpoint import Checkpointed, CheckpointError, gather_state
from quarl.train.runs.presets import SettingsError
from quarl.train.runs.request import Trained
from quarl.train.runs.run import Run
from quarl.train.suites.episodes import EpisodeStream
from quarl.train.suites.errors import TaskError
from quarl.train.suites.task import Task, episode_seed

Floats = NDArray[np.float32]
METRICS = ("divergence", "agreement", "gradient_norm", "active")
SMALL = 1e-6  # beside a root mean square


@dataclass(frozen=True)
class DistillSettings(QuantizedSettings):
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
    start_as_teacher: bool = setting(
        False, "Begin with the teacher's weights; its network has to be the student's. Otherwise with drawn ones."
    )
    activity_penalty: float = setting(
        0.0, "Weight of the hidden layers' mean output over its root mean square: more makes fewer outputs active."
    )

    def __post_init__(self) -> None:
        self.check_quantization()
        if not 0.0 <= self.activity_penalty < math.inf:
            raise ValueError(
                f"activity_penalty must be a positive number such as 0.1, or 0 for none, got {self.activity_penalty}."
            )


# --- pure functions ---------------------------------------------------------------------------------------------


def divergence(teacher_logits: tf.Tensor, student_logits: tf.Tensor, temperature: float) -> tf.Tensor:
    """KL(teacher ‖ student) of each row, in nats (batch,).

    p = softmax(t / T);  KL = Σₐ p (log p − log softmax(s / T))
    """
    teacher = tf.nn.log_softmax(teacher_logits / temperature)
    student = tf.nn.log_softmax(student_logits / temperature)
    return tf.reduce_sum(tf.exp(teacher) * (teacher - student), axis=1)


def activity(network: NetworkSpec, weights: Mapping[str, Any], hidden: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return how many of the weights behind hidden layers a decision needs: (what a penalty lowers, active share),
    scalars.

    Of each hidden layer's outputs h (batch, …) before rounding: mean h / √(mean h²), of which the root has no gradient,
    so that making everything smaller gains nothing; and the share of the h that are not rounded to 0. A layer counts by
    the number of weights behind it.
    """
    names = [*network.hidden_names, "head"]
    sizes = [math.prod(weights[f"{name}/kernel"].shape) for name in names[1:]]
    lowered, active = tf.constant(0.0), tf.constant(0.0)
    for name, values, size in zip(names, hidden, sizes, strict=False):
        root = tf.stop_gradient(tf.sqrt(tf.reduce_mean(tf.square(values)))) + SMALL
        levels = weights.get(f"{name}/{LEVELS}")
        above = 0.0 if levels is None else levels[0] / 2.0
        lowered += size / sum(sizes) * tf.reduce_mean(values) / root
        active += size / sum(sizes) * tf.reduce_mean(tf.cast(values > above, tf.float32))
    return lowered, active


def teacher_share(settings: DistillSettings, share: float) -> float:
    """Share of the drones that the teacher flies when ``share`` of all steps are made."""
    return linear(settings.teacher_share_first, settings.teacher_share_last, 2.0 * share)


# --- what is gathered -----------------------------------------------------------------------------------------------


class Answers:
    """Normalised observations (rows, size) with the teacher's logits (rows, actions), the newest ``capacity``.

    The first ``image`` elements, those of a picture between 0 and 1, are kept as uint8, in a quarter of the memory: of
    20 m a level is 8 cm.
    """

    def __init__(self, capacity: int, size: int, actions: int, image: int = 0) -> None:
        self._image = image
        self._images = np.zeros((capacity, image), np.uint8)
        self._observations = np.zeros((capacity, size - image), np.float32)
        self._logits = np.zeros((capacity, actions), np.float32)
        self._written = 0

    def add(self, observations: Floats, logits: Floats) -> None:
        """Remember a batch."""
        slots = (self._written + np.arange(len(observations))) % len(self._observations)
        self._observations[slots], self._logits[slots] = observations[:, self._image :], logits
        if self._image:
            self._images[slots] = np.rint(IMAGE_SCALE * np.clip(observations[:, : self._image], 0.0, 1.0))
        self._written += len(observations)

    def sample(self, generator: np.random.Generator, shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
        """Minibatches (updates, rows, …), drawn uniformly with replacement; ``image`` of the pictures, if there are."""
        rows = generator.integers(min(self._written, len(self._observations)), size=shape)
        images = {"image": self._images[rows]} if self._image else {}
        return {"observation": self._observations[rows], "teacher": self._logits[rows], **images}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the filled part of the memory."""
        held = min(self._written, len(self._observations))
        written = np.array([self._written], np.int64)
        images = {"images": self._images[:held]} if self._image else {}
        return {"observations": self._observations[:held], "logits": self._logits[:held], "written": written, **images}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        self._written = int(state["written"][0])
        held = len(state["observations"])
        self._observations[:held], self._logits[:held] = state["observations"], state["logits"]
        if self._image:
            self._images[:held] = state["images"]


# --- the update -----------------------------------------------------------------------------------------------------


def make_update(
    settings: DistillSettings, network: NetworkSpec, shape: tuple[int, ...], fake: FakeQuantization | None = None
) -> Update:
    """Return the compiled round: (state, batches, updates before, learning rate) → (state, metrics (updates, 4)).

    ``shape`` is that of an image, where the batches have any; see :meth:`Answers.sample`. ``fake`` is the student's
    grid, which it computes on as soon as the state has the scales.
    """

    def one(state: State, batch: dict[str, tf.Tensor], count: tf.Tensor, rate: tf.Tensor) -> tuple[State, tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state["student"])
            inputs = batch["observation"]
            if "image" in batch:
                inputs = (tf.reshape(batch["image"], (-1, *shape)), inputs)
            weights = fake_quantize_weights(state["student"], state.get(QUANTIZER, {}), fake)
            hidden: list[tf.Tensor] = []
            logits = head(weights, features(network, weights, inputs, hidden))
            loss = tf.reduce_mean(divergence(batch["teacher"], logits, settings.temperature))
            lowered, active = activity(network, weights, hidden)
            total = loss + settings.activity_penalty * lowered if settings.activity_penalty else loss
        gradients, norm = clip_by_global_norm(tape.gradient(total, state["student"]), settings.gradient_norm)
        student, first, second = adam_step(
            state["student"], gradients, state["first"], state["second"], tf.cast(count + 1, tf.float32), rate
        )
        same = tf.equal(tf.argmax(logits, axis=1), tf.argmax(batch["teacher"], axis=1))
        row = tf.stack([loss, tf.reduce_mean(tf.cast(same, tf.float32)), norm, active])
        return {"student": student, "first": first, "second": second, **select_scales(state)}, row

    return compile_round(one, len(METRICS), compiled=not network.convolutions)


# --- the loop -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Teacher:
    """A trained policy that answers raw observations."""

    spec: PolicySpec
    sha256: str
    weights: Weights

    @classmethod
    def load(cls, name_or_path: str, run: Run) -> Teacher:
        """Load the policy of a bundle as a teacher.

        Raises:
            PolicyError: there is none, or it was trained on another observation than the task has for a teacher.
        """
        bundle = working_bundle(name_or_path)
        spec = bundle.spec
        spec.check_observation(run.task.teacher_observation or run.task.observation)
        return cls(spec, bundle.manifest.files[WEIGHTS_FILE].sha256, bundle.weights())

    def weights_for(self, network: NetworkSpec, drawn: Weights) -> Weights:
        """Return the teacher's weights, for a student of its own network that would begin with the ones drawn.

        Raises:
            SettingsError: the student's network is another one, or sees something else.
        """
        if self.spec.network != network or {n: w.shape for n, w in drawn.items()} != {
            name: value.shape for name, value in self.weights.items()
        }:
            raise SettingsError(
                f"start_as_teacher requires the teacher {self.spec.name} and the student to have the same network. "
                f"Type --policy {self.spec.name}, or leave start_as_teacher out."
            )
        return dict(self.weights)

    def logits(self, observations: Floats) -> Floats:
        """Return the teacher's logits (batch, actions) for raw observations (batch, size)."""
        return forward_float(self.spec, self.weights, observations)


def student_normaliser(task: Task, teacher: Normaliser) -> Normaliser:
    """Return the teacher's, where both see the same. Else an image is divided by its upper bound, so that it is 0 … 1
    as :class:`Answers` keeps it, and the fields behind it are normalised as the teacher's fields of their names.

    Raises:
        TaskError: an image of a task without bounds, or a field that the teacher does not see.
    """
    seen = task.teacher_observation
    if seen is None:
        return teacher
    if (
        not task.has_image
        or task.bounds is None
        or not {f.name for f in task.observation[1:]} <= {f.name for f in seen}
    ):
        raise TaskError(
            f"{task.name} cannot be distilled: the student's observation must be an image with known bounds, "
            "followed by fields that the teacher observes too; the teacher observes "
            f"{[field.name for field in seen]}.",
            code="cannot_distill",
        )
    ends = np.cumsum([field.size for field in seen])
    where = {field.name: slice(int(end) - field.size, int(end)) for field, end in zip(seen, ends, strict=True)}
    size = int(ends[-1])
    its_mean, its_scale = (np.broadcast_to(np.asarray(values), size) for values in (teacher.mean, teacher.scale))
    image = task.observation[0].size
    mean, scale = [0.0] * image, task.bounds[1][:image].tolist()
    for field in task.observation[1:]:
        mean += its_mean[where[field.name]].tolist()
        scale += its_scale[where[field.name]].tolist()
    return Normaliser(tuple(mean), tuple(scale), teacher.clip)


class Student:
    """How the student sees and decides; its weights are the learner's.

    Attributes:
        normaliser: of its observations.
    """

    def __init__(self, task: Task, network: NetworkSpec, normaliser: Normaliser) -> None:
        self.normaliser = normaliser
        self._outputs = Acting(network)
        self._shape, self._image = task.network_shape, task.observation[0].size if task.vector_size else 0

    def actions(self, weights: Mapping[str, Any], observations: Floats, first: int = 0) -> NDArray[np.int64]:
        """Greedy actions (batch − first,) for normalised observations (batch, size) but for the first."""
        if not self._image:
            return self._outputs(weights, observations[first:]).argmax(axis=1)
        # All of them: a graph of convolutions is made again for every size of a batch.
        images = observations[:, : self._image].reshape(-1, *self._shape)
        return self._outputs(weights, (images, observations[:, self._image :])).argmax(axis=1)[first:]


def train(run: Run, settings: DistillSettings, teacher_name: str) -> Trained:
    """Distil the teacher until all steps are made or the run wants to stop.

    Raises:
        DivergenceError: the loss or a gradient became NaN or infinite; the last good checkpoint is kept.
        PolicyError: the teacher's bundle cannot be used.
        SettingsError: the student shall begin as a teacher of another network.
        TaskError: quantizers for a task of pictures.
        CheckpointError: the checkpoint to resume is of another teacher.
    """
    request, task = run.request, run.task
    aware = QuantizationAware(request.network, settings.quantization_bits, settings.delay_steps(request.steps))
    if aware.fake is not None and task.has_image:
        raise TaskError(
            f"quantization-aware distillation requires vector observations, but {task.name} has images. Leave "
            "--quantization-method out."
        )
    teacher = Teacher.load(teacher_name, run)
    generator = np.random.default_rng(request.seed)
    shape, vector = task.network_shape, task.vector_size
    student = initial_weights(generator, request.network, shape, task.outputs, head_gain=0.01, vector=vector)
    if settings.start_as_teacher:
        student = teacher.weights_for(request.network, student)
    acting = Student(task, request.network, student_normaliser(task, teacher.spec.normaliser))
    learner = Learner({"student": student, "first": zeros_like(student), "second": zeros_like(student)})
    stream = EpisodeStream(task.make(settings.environments, episode_seed(request.seed, "training")))
    image = task.observation[0].size if vector else 0
    answers = Answers(settings.capacity, task.observation_size, task.outputs, image)
    checkpointed: dict[str, Checkpointed] = {"stream": stream, "answers": answers, **aware.list_checkpoint_parts()}
    if run.checkpoint is not None:
        if run.checkpoint.facts["teacher"] != teacher.sha256:
            raise CheckpointError(
                f"the checkpoint's teacher is not {teacher_name}. Resume with the --teacher that the run was started "
                "with, or start over with --fresh."
            )
        groups, learner.updates, generator = run.checkpoint.put_back(learner.groups, checkpointed)
        learner.put(groups)
    update = make_update(settings, request.network, shape, aware.fake)
    iteration_steps = settings.environments * settings.rollout_steps
    step = run.start_step

    def decide(observation: Floats) -> NDArray[np.int64]:
        return acting.actions(aware.acting(learner.groups["student"]), normalise(acting.normaliser, observation))

    def save() -> None:
        arrays, facts = gather_state(learner.groups, checkpointed, learner.updates, generator)
        run.save(step, arrays, {**facts, "teacher": teacher.sha256})

    while step < request.steps and run.stop_reason is None:
        if aware.begin(step):
            run.progress.say(f"step {step:,}: the student is quantized from here on")
        share = step / request.steps
        flown_by_teacher = round(settings.environments * teacher_share(settings, share))
        weights = aware.acting(learner.groups["student"])
        collect(stream, answers, teacher, acting, weights, flown_by_teacher, settings.rollout_steps)
        rate = settings.learning_rate * (1.0 - share)
        batches = answers.sample(generator, (settings.updates, settings.minibatch))
        (metrics,) = learn(update, learner, batches, rate, aware.group)
        aware.count(len(metrics))
        if aware.fake is not None:
            aware.look(learner.groups["student"], batches["observation"].reshape(-1, task.observation_size))
        step += iteration_steps
        run.check_finite(step, metrics, METRICS)
        means = dict(zip(METRICS, metrics.mean(axis=0).tolist(), strict=True))
        stats = stream.take_stats()
        run.announce(step, stats.news)
        row = {**stats.row(), **means, "learning_rate": rate}
        run.report(step, row, iteration_steps, decide)
        if run.wants_checkpoint:
            save()
    save()
    notes = {
        "how": f"distilled from policy {teacher.spec.name} (DAgger: teacher's answers on states that both visit)",
        "teacher": teacher.spec.name,
        "teacher_weights_sha256": teacher.sha256,
        "updates": learner.updates,
        **aware.notes(),
    }
    return Trained(aware.policy(learner.groups["student"], acting.normaliser), step, notes)


def collect(
    stream: EpisodeStream,
    answers: Answers,
    teacher: Teacher,
    student: Student,
    weights: Mapping[str, Any],
    by_teacher: int,
    steps: int,
) -> None:
    """Fly: the first ``by_teacher`` drones greedily by the teacher, the others by the student; keep the answers."""
    for _ in range(steps):
        observation = normalise(student.normaliser, stream.observation)
        logits = teacher.logits(stream.teacher_observation)
        answers.add(observation, logits)
        actions = logits.argmax(axis=1)
        if by_teacher < len(observation):
            actions[by_teacher:] = student.actions(weights, observation, by_teacher)
        stream.step(actions)
