"""Networks, Adam and the running normaliser against numbers worked by hand."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box

from quarl.policy.bundle import Bundle
from quarl.policy.reference import forward_float, normalise, split
from quarl.policy.spec import (
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    weight_shapes,
)
from quarl.train.algorithms.common.distributions import log_softmax, sample_actions
from quarl.train.algorithms.common.normalisation import CLIP, RunningNormaliser, widening_steps
from quarl.train.networks.forward import Acting, mlp
from quarl.train.networks.optimiser import adam_step
from quarl.train.networks.weights import initial_weights, orthogonal
from quarl.train.suites.gymnasium_task import bounds_of
from tests.train import small_runs


def test_adam_by_hand() -> None:
    # First step, g = 2: m = 0.2, v = 0.004; both corrections give m̂ = 2, v̂ = 4, so θ = 1 − 0.1 · 2 / (2 + 1).
    weights, first, second = adam_step(
        {"w": np.array([1.0])}, {"w": np.array([2.0])}, {"w": np.zeros(1)}, {"w": np.zeros(1)}, 1.0, 0.1, epsilon=1.0
    )
    assert weights["w"][0] == pytest.approx(1.0 - 0.1 * 2.0 / 3.0)
    assert (first["w"][0], second["w"][0]) == (pytest.approx(0.2), pytest.approx(0.004))
    # Second step, g = 0: m = 0.18, v = 0.003996; m̂ = 0.18 / 0.19, v̂ = 0.003996 / 0.001999.
    weights, _, _ = adam_step(weights, {"w": np.zeros(1)}, first, second, 2.0, 0.1, epsilon=1.0)
    move = 0.1 * (0.18 / 0.19) / ((0.003996 / 0.001999) ** 0.5 + 1.0)
    assert weights["w"][0] == pytest.approx(1.0 - 0.1 * 2.0 / 3.0 - move)


def test_mlp_by_hand() -> None:
    weights = {
        "dense_0/kernel": np.array([[1.0, -1.0]], np.float32), "dense_0/bias": np.array([0.0, 1.0], np.float32),
        "head/kernel": np.array([[2.0], [3.0]], np.float32), "head/bias": np.array([0.5], np.float32),
    }  # fmt: skip
    # x = 3: hidden [3, −2] → [3, 0] → 6.5;  x = −1: hidden [−1, 2] → [0, 2] → 6.5;  x = 0: [0, 1] → 3.5
    outputs = mlp(weights, np.array([[3.0], [-1.0], [0.0]], np.float32))
    np.testing.assert_array_equal(outputs[:, 0], [6.5, 6.5, 3.5])


@pytest.mark.parametrize("filters", [(2,), (2, 3)], ids=["one convolution", "two"])
def test_a_vector_joins_the_flattened_convolutions(filters: tuple[int, ...]) -> None:
    network = NetworkSpec((5,), convolutions=tuple(Convolution(count, 3, 1) for count in filters))
    fields = (ObservationField("depth", (6, 7, 1), "m"), ObservationField("velocity", (3,), "m/s"))
    normaliser = Normaliser((0.0,) * 42 + (1.0, 2.0, 3.0), (20.0,) * 42 + (1.0, 4.0, 2.0))
    spec = PolicySpec(
        "seeing", fields, normaliser, network, DiscreteHead(("a", "b")), 0.25, EnvironmentSpec("somewhere")
    )
    random = np.random.default_rng(0)
    weights = initial_weights(random, network, (6, 7, 1), 2, head_gain=1.0, vector=3)
    assert {name: value.shape for name, value in weights.items()} == weight_shapes(spec)
    levels = random.integers(0, 256, (4, 6, 7, 1), np.uint8)
    vectors = random.normal(size=(4, 3)).astype(np.float32)
    observations = np.concatenate([levels.reshape(4, -1) * np.float32(20.0 / 255.0), vectors], axis=1)
    wanted = forward_float(spec, weights, observations)
    image, vector = split(spec, normalise(normaliser, observations))
    for pair in ((image, vector), (levels, vector)):
        np.testing.assert_allclose(Acting(network)(weights, pair), wanted, atol=1e-5)
    assert np.abs(Acting(network)(weights, (image, 0 * vector)) - wanted).max() > 0.01


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3)])
def test_orthogonal_matrices_are_orthogonal(shape: tuple[int, int]) -> None:
    matrix = orthogonal(np.random.default_rng(0), shape, gain=2.0)
    product = matrix @ matrix.T if shape[0] <= shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, 4.0 * np.eye(min(shape)), atol=1e-5)


def test_a_fresh_policy_is_nearly_uniform() -> None:
    weights = initial_weights(np.random.default_rng(0), NetworkSpec((64, 64)), (8,), 4, head_gain=0.01)
    logits = mlp(weights, np.random.default_rng(1).normal(size=(100, 8)).astype(np.float32))
    assert np.abs(np.exp(log_softmax(logits)) - 0.25).max() < 0.02


def test_sampled_actions_follow_the_distribution() -> None:
    logits = np.tile(np.log(np.array([0.1, 0.6, 0.3], np.float32)), (20_000, 1))
    actions, log_probabilities = sample_actions(np.random.default_rng(0), logits)
    shares = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(shares, [0.1, 0.6, 0.3], atol=0.015)  # 4 standard deviations are 0.014
    np.testing.assert_allclose(np.exp(log_probabilities), np.array([0.1, 0.6, 0.3])[actions], rtol=1e-5)


def test_statistics_are_of_all_rows_and_freeze_to_the_same_bits() -> None:
    rows = np.random.default_rng(0).normal([1.0, -50.0], [2.0, 30.0], size=(1000, 2)).astype(np.float32)
    normaliser = RunningNormaliser(2, until=10_000)
    for part in np.split(rows, [10, 400]):
        normaliser.update(part)
    np.testing.assert_allclose(normaliser.mean, rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(normaliser.scale, rows.std(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(normaliser(rows), normalise(normaliser.frozen(), rows))


def test_statistics_stand_still_after_enough_rows() -> None:
    normaliser = RunningNormaliser(1, until=4)
    normaliser.update(np.array([[0.0], [2.0], [0.0], [2.0]], np.float32))  # mean 1, standard deviation 1
    normaliser.update(np.full((100, 1), 1000.0, np.float32))
    assert (normaliser.mean[0], normaliser.scale[0]) == (1.0, 1.0)
    np.testing.assert_array_equal(normaliser(np.array([[3.0], [1000.0]], np.float32))[:, 0], [2.0, CLIP])


def test_elements_constant_in_training_are_ignored() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    rows[:, 1], rows[:, 2] = 5.0, 1e7 + (rows[:, 2] > 0)  # a float32 beside 1e7 has steps of 1
    normaliser = RunningNormaliser(4, until=100)
    for part in np.split(rows, 4):
        normaliser(part)
        normaliser.update(part)
    kept = RunningNormaliser(4, until=100)
    kept.restore(normaliser.state())
    assert kept.frozen() == normaliser.frozen()
    assert [each[:2] for each in kept.frozen().still] == [(1, 5.0), (2, float(normaliser.mean[2]))]
    found = normalise(kept.frozen(), np.array([[0.0, 5.005, 1e7 + 100, 0.0]], np.float32))[0]
    assert abs(found[1]) < 1e-20 and abs(found[2]) < 1e-20
    # One that moves after the statistics stand still was trained on.
    kept(np.array([[0.0, 6.0, 1e7, 0.0]], np.float32))
    assert [each[0] for each in kept.frozen().still] == [2]


def test_small_units_are_scaled_as_large_ones() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    made = []
    for unit in np.array([1.0, 1e-6], np.float32):
        normaliser = RunningNormaliser(3, 1000, (np.full(3, -3.0) * unit, np.full(3, 3.0) * unit))
        normaliser.update(rows * unit)
        made.append(normaliser(rows * unit))
    np.testing.assert_allclose(made[0], made[1], rtol=1e-4, atol=1e-5)


def test_a_field_that_never_moves_is_centred_and_not_blown_up() -> None:
    normaliser = RunningNormaliser(1, until=10)
    normaliser.update(np.full((10, 1), 20.0, np.float32))
    assert abs(float(normaliser(np.array([[20.0 + 1e-4]], np.float32))[0, 0])) < 0.2


NO = np.inf


def test_bounds_are_not_cut_but_widen_a_scale_tenfold_at_most_by_hand() -> None:
    # Mean 0 and deviation 1 throughout but for the last, which never moved and stands at 0.
    rows = np.array([[1.0, 1.0, 1.0, 1.0, 0.0], [-1.0, -1.0, -1.0, -1.0, 0.0]], np.float32)
    low, high = np.array([-3.0, -5.0, -1000.0, -NO, -1.0]), np.array([4.0, 25.0, 1000.0, 7.0, 2.0])
    normaliser = RunningNormaliser(5, until=2, bounds=(low, high))
    normaliser.update(rows)
    # ±4 lie within ±5σ; 25 / 5; 1000 / 5 is more than 10 σ; 7 / 5, one side; 2 / 5, for what never moved says nothing.
    np.testing.assert_allclose(normaliser.scale, [1.0, 5.0, 10.0, 1.4, 0.4], rtol=1e-6)
    ends = normaliser(np.array([high], np.float32))[0]
    np.testing.assert_allclose(ends, [4.0, 5.0, 5.0, 5.0, 5.0], rtol=1e-6)


def test_the_share_of_cut_observations_by_hand() -> None:
    normaliser = RunningNormaliser(2, until=4, bounds=(np.array([-NO, -10.0]), np.array([NO, 10.0])))
    normaliser.update(np.array([[1.0, 1.0], [-1.0, -1.0]] * 2, np.float32))  # scale 1 and 2
    assert np.isnan(normaliser.take_clipped())  # before there were statistics nothing was normalised
    normaliser.update(np.array([[5.5, 0.0], [-6.0, 10.0], [4.9, -10.0], [0.0, 0.0]], np.float32))
    assert normaliser.take_clipped() == 0.5  # the first two; a bound itself is not cut
    assert np.isnan(normaliser.take_clipped())


def test_what_is_seen_stands_for_bounds_that_are_not_there_by_hand() -> None:
    normaliser = RunningNormaliser(2, until=4, widen_until=6)
    normaliser.update(np.array([[1.0, 1.0], [-1.0, -1.0]] * 2, np.float32))  # mean 0 and σ 1
    np.testing.assert_array_equal(normaliser.scale, [1.0, 1.0])
    normaliser.update(np.array([[15.0, 4.0], [0.0, -5.0]], np.float32))  # 15 / 5; within ±5 σ nothing changes
    np.testing.assert_array_equal(normaliser.scale, [3.0, 1.0])
    np.testing.assert_array_equal(normaliser.mean, [0.0, 0.0])
    assert normaliser.is_settled
    normaliser.update(np.full((3, 2), 40.0, np.float32))  # too late
    np.testing.assert_array_equal(normaliser.scale, [3.0, 1.0])
    again = RunningNormaliser(2, until=4, widen_until=6)
    again.restore(normaliser.state())
    np.testing.assert_array_equal(again.scale, normaliser.scale)


@pytest.mark.parametrize("high", [np.inf, 3.4e38])
def test_a_quarter_of_the_steps_may_widen_where_an_element_has_no_bounds(high: float) -> None:
    space = Box(np.array([0.0, -1.0]), np.array([1.0, high]), dtype=np.float64)
    assert widening_steps(bounds_of(space), 1_000, 50_000) == 12_500
    assert widening_steps(bounds_of(space), 1_000, 2_000) == 1_000
    assert widening_steps(bounds_of(Box(0.0, 1.0, (2,))), 1_000, 50_000) == 0
    assert widening_steps(None, 1_000, 50_000) == 12_500


def test_random_first_steps_cover_cartpole(tmp_path: Path) -> None:
    """Its cart stays within 0.5 m of the middle as long as actions are random; it may go 2.4 m to each side."""
    assert small_runs.train(tmp_path / "pole", *small_runs.DQN, "--steps", "2048") == 0
    normaliser = Bundle.load(tmp_path / "pole").spec.normaliser
    reach = CLIP * np.array(normaliser.scale) - np.abs(normaliser.mean)
    assert reach[0] > 2.4 and reach[2] > 0.21  # beyond these an episode ends
    rows = small_runs.curve(tmp_path / "pole")
    assert all(0.0 <= float(row["observations_clipped"]) <= 1.0 for row in rows[1:])
    assert "observations_clipped" in Bundle.load(tmp_path / "pole").spec.provenance["training"]
