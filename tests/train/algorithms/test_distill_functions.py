"""Distillation's pure functions against numbers worked by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from train.algorithms import distill
from train.algorithms.distill import Answers, DistillSettings


def test_divergence_by_hand() -> None:
    # p = [¾, ¼], q = [½, ½]: KL = ¾ ln 1.5 + ¼ ln 0.5 = 0.130812; of a distribution from itself it is 0.
    teacher = tf.constant([[math.log(3.0), 0.0], [math.log(3.0), 0.0]])
    student = tf.constant([[7.0, 7.0], [1.0 + math.log(3.0), 1.0]])
    np.testing.assert_allclose(distill.divergence(teacher, student, 1.0), [0.130812, 0.0], atol=1e-6)
    # At temperature 2 the teacher is softmax([ln √3, 0]) = [√3, 1] / (1 + √3).
    p = math.sqrt(3.0) / (1.0 + math.sqrt(3.0))
    expected = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert float(distill.divergence(teacher, student, 2.0)[0]) == pytest.approx(expected, abs=1e-6)


def test_the_teacher_hands_over_in_the_first_half() -> None:
    settings = DistillSettings(teacher_share_first=1.0, teacher_share_last=0.2)
    assert [distill.teacher_share(settings, s) for s in (0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


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
