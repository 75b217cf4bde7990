"""SAC learns in seconds what a broken SAC cannot."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from quarl.train.algorithms import sac
from tests.learning.continuous import assert_resumes_alike, beginning, learned

SETTINGS = sac.SACSettings(
    environments=8, rollout_steps=8, updates=32, minibatch=64, critic_hidden=(32, 32), learning_starts=512,
    target_rate=0.02, discount=0.9, actor_learning_rate=1e-3, critic_learning_rate=1e-3, temperature=0.2,
    temperature_learning_rate=1e-3, replay_capacity=10_000,
)  # fmt: skip
STEPS = 4096
GOOD, BAD = 9.3, 8.5  # the best policy has 9.6, the ball left where it is 6.7


def test_sac_keeps_the_ball_in_the_middle(tmp_path: Path) -> None:
    assert learned(tmp_path, sac.train, SETTINGS, STEPS) > GOOD


@pytest.mark.slow
def test_with_the_sign_of_the_policy_gradient_flipped_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = sac.actor_loss
    monkeypatch.setattr(sac, "actor_loss", lambda *arguments: -right(*arguments))
    assert learned(tmp_path, sac.train, SETTINGS, STEPS) < BAD


@pytest.mark.slow
def test_the_temperature_brings_the_entropy_to_the_wanted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entropies = []
    means = sac.Loop.means

    def watched(self: sac.Loop, metrics: np.ndarray, names: tuple[str, ...]) -> dict[str, float]:
        row = means(self, metrics, names)
        entropies.append(row["entropy"])
        return row

    monkeypatch.setattr(sac.Loop, "means", watched)
    with beginning(tmp_path, STEPS) as run:
        sac.train(run, dataclasses.replace(SETTINGS, target_entropy=-0.5, temperature_learning_rate=1e-2))
    assert entropies[0] > 0.5  # almost uniform, log 2 = 0.69, at the start
    assert np.mean(entropies[-10:]) == pytest.approx(-0.5, abs=0.2)


@pytest.mark.slow
def test_the_tanh_density_correction_keeps_means_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsquashed(mean: tf.Tensor, log_std: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logs = -0.5 * noise * noise - log_std - sac.HALF_LOG_2_PI
        return tf.tanh(mean + tf.exp(log_std) * noise), tf.reduce_sum(logs, axis=1)

    monkeypatch.setattr(sac, "squash_actions", unsquashed)
    assert learned(tmp_path, sac.train, SETTINGS, STEPS) < GOOD


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits_as_one_that_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_alike(tmp_path, monkeypatch, sac.train, SETTINGS)
