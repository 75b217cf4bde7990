"""Distillation's pure functions against numbers worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from quarl.policy.spec import DiscreteHead, EnvironmentSpec, NetworkSpec, Normaliser, ObservationField
from quarl.train.algorithms import distill
from quarl.train.algorithms.common.learner import Learner, learn
from quarl.train.algorithms.distill import Answers, DistillSettings, student_normaliser
from quarl.train.networks.weights import initial_weights, zeros_like
from quarl.train.suites.errors import TaskError
from quarl.train.suites.task import Task
from tests.refusals import refused


def test_divergence_by_hand() -> None:
    # p = [¾, ¼], q = [½, ½]: KL = ¾ ln 1.5 + ¼ ln 0.5 = 0.130812; of a distribution from itself it is 0.
    teacher = tf.constant([[math.log(3.0), 0.0], [math.log(3.0), 0.0]])
    student = tf.constant([[7.0, 7.0], [1.0 + math.log(3.0), 1.0]])
    np.testing.assert_allclose(distill.divergence(teacher, student, 1.0), [0.130812, 0.0], atol=1e-6)
    # At temperature 2 the teacher is softmax([ln √3, 0]) = [√3, 1] / (1 + √3).
    p = math.sqrt(3.0) / (1.0 + math.sqrt(3.0))
    expected = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert float(distill.divergence(teacher, student, 2.0)[0]) == pytest.approx(expected, abs=1e-6)


def test_activity_by_hand() -> None:
    network = NetworkSpec((4, 2))
    shapes = {"dense_0/kernel": (3, 4), "dense_1/kernel": (4, 2), "head/kernel": (2, 1)}
    weights = {name: tf.zeros(shape) for name, shape in shapes.items()}
    # 8 weights behind the first layer and 2 behind the second: they count 0.8 and 0.2.
    hidden = [tf.constant([[0.0, 0.0, 3.0, 1.0]]), tf.constant([[2.0, 2.0]])]
    lowered, active = distill.activity(network, weights, hidden)
    assert float(lowered) == pytest.approx(0.8 * 1.0 / math.sqrt(2.5) + 0.2 * 1.0, abs=1e-5)
    assert float(active) == pytest.approx(0.8 * 0.5 + 0.2 * 1.0)
    # With steps of 2.5 the 1 is rounded to 0, too.
    weights["dense_0/levels"] = tf.constant([2.5, 3.0])
    assert float(distill.activity(network, weights, hidden)[1]) == pytest.approx(0.8 * 0.25 + 0.2 * 1.0)
    # Everything twice as large is no less active.
    assert float(distill.activity(network, weights, [2.0 * each for each in hidden])[0]) == pytest.approx(
        float(lowered), abs=1e-5
    )


def test_an_activity_penalty_makes_outputs_zero() -> None:
    """The same minibatches with and without it: fewer outputs are active in the end."""
    generator = np.random.default_rng(0)
    network = NetworkSpec((32,))
    drawn = initial_weights(generator, network, (4,), 2, head_gain=0.01)
    batches = {
        "observation": generator.standard_normal((200, 64, 4), dtype=np.float32),
        "teacher": generator.standard_normal((200, 64, 2), dtype=np.float32),
    }
    active = {}
    for penalty in (0.0, 1.0):
        learner = Learner({"student": drawn, "first": zeros_like(drawn), "second": zeros_like(drawn)})
        update = distill.make_update(DistillSettings(activity_penalty=penalty), network, (4,))
        (metrics,) = learn(update, learner, batches, 1e-3)
        active[penalty] = metrics[-1][distill.METRICS.index("active")]
    assert active[1.0] < 0.7 * active[0.0]


def test_only_the_newest_answers_are_kept_and_rows_stay_together() -> None:
    answers = Answers(capacity=6, size=1, actions=1)
    for first in range(0, 12, 4):  # 0 … 11 in batches of 4; 6 … 11 are left
        rows = np.arange(first, first + 4, dtype=np.float32)[:, None]
        answers.add(rows, 10 * rows)
    drawn = answers.sample(np.random.default_rng(0), (20, 10))
    assert set(drawn["observation"].ravel()) == {6, 7, 8, 9, 10, 11}
    np.testing.assert_array_equal(drawn["teacher"], 10 * drawn["observation"])
    copy = Answers(6, 1, 1)
    copy.restore(answers.state())
    again = copy.sample(np.random.default_rng(0), (20, 10))
    np.testing.assert_array_equal(again["observation"], drawn["observation"])


def test_pictures_are_kept_in_levels_of_a_255th() -> None:
    answers = Answers(capacity=4, size=3, actions=1, image=2)
    # 255 · [0, 0.5, 1.2] → [0, 127.5, 255 clipped]; halves go to the even level.
    answers.add(np.array([[0.0, 0.5, -7.0], [1.2, 0.1, 8.0]], np.float32), np.array([[1.0], [2.0]], np.float32))
    drawn = answers.sample(np.random.default_rng(0), (1, 50))
    assert drawn["image"].dtype == np.uint8 and drawn["image"].shape == (1, 50, 2)
    columns = (drawn[name][0] for name in ("image", "observation", "teacher"))
    rows = {(*image, *vector, *teacher) for image, vector, teacher in zip(*columns, strict=True)}
    assert rows == {(0, 128, -7.0, 1.0), (255, 26, 8.0, 2.0)}
    copy = Answers(4, 3, 1, image=2)
    copy.restore(answers.state())
    np.testing.assert_array_equal(copy.sample(np.random.default_rng(0), (1, 50))["image"], drawn["image"])


def test_student_and_teacher_normalise_fields_alike() -> None:
    rays, goal, speed = (ObservationField(name, (size,), "m") for name, size in (("r", 2), ("goal", 1), ("speed", 2)))
    picture = ObservationField("depth", (1, 3, 1), "m")
    task = Task(
        name="seeing",
        environment=EnvironmentSpec("somewhere"),
        observation=(picture, speed, goal),
        head=DiscreteHead(("a", "b")),
        control_period_s=0.25,
        presets=("",),
        make=None,  # type: ignore[arg-type]
        evaluate=None,  # type: ignore[arg-type]
        bounds=(np.zeros(6), np.array([20.0, 20.0, 20.0, 9.0, 9.0, 9.0])),
        teacher_observation=(rays, goal, speed),
    )
    teacher = Normaliser((1.0, 2.0, 3.0, 4.0, 5.0), (10.0, 20.0, 30.0, 40.0, 50.0), 7.0)
    made = student_normaliser(task, teacher)
    assert made == Normaliser((0.0, 0.0, 0.0, 4.0, 5.0, 3.0), (20.0, 20.0, 20.0, 40.0, 50.0, 30.0), 7.0)
    assert student_normaliser(replace(task, teacher_observation=None), teacher) == teacher
    with refused(TaskError, "cannot_distill", shows=["'r'", "'goal'"]):
        student_normaliser(replace(task, teacher_observation=(rays, goal)), teacher)
