"""bench.study.measures.damage: the cheap measures by hand, and assembled policies against those that simulate makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.study.measures.damage import Estimator, damage_of
from convert.mixed import widths_of
from policy.bundle import Bundle
from policy.locate import ZOO
from policy.simulated import simulate
from policy.spec import ContinuousHead, PolicySpec, Squash


@pytest.fixture(scope="module")
def spec(balancing: Callable[..., Bundle], tmp_path_factory: pytest.TempPathFactory) -> PolicySpec:
    return balancing(tmp_path_factory.mktemp("estimate") / "by-hand").spec


def test_measures_of_two_actions_by_hand(spec: PolicySpec) -> None:
    reference = np.array([[1.0, -1.0], [-2.0, 2.0], [3.0, 1.0], [0.0, 2.0]], np.float32)
    # a shift of both outputs by 5 changes nothing; the last row's outputs swap
    outputs = reference + 5.0
    outputs[3] = [7.0, 5.0]
    found = damage_of(spec, outputs, reference)
    assert found.actions_differ == 0.25
    # less their mean: ±1, ∓2, ±1, ∓1 around ∓0.25: Σ (f − mean f)² = 2 · (1.25² + 1.75² + 1.25² + 0.75²) = 13.5;
    # the swapped row is 2 off in both: Σ (y − f)² = 8
    assert found.output_error == pytest.approx((8 / 13.5) ** 0.5)
    # the taken action's output is 2 lower in one of four; deviations of the rows are 1, 2, 1, 1: 0.5 / 1.25
    assert found.regret == pytest.approx(0.4)


def test_measures_of_a_continuous_action_by_hand(spec: PolicySpec) -> None:
    continuous = replace(spec, head=ContinuousHead((0.0,), (10.0,), Squash.TANH))
    reference = np.array([[2.0], [4.0], [6.0], [8.0]], np.float32)
    outputs = reference + np.array([[0.0], [0.09], [0.11], [3.0]], np.float32)
    found = damage_of(continuous, outputs, reference)
    assert found.actions_differ == 0.5  # more than 0.1 of 10
    # in shares of 10: Σ (f − 0.5)² = 0.09 + 0.01 + 0.01 + 0.09 = 0.2; Σ (y − f)² = 0.009² + 0.011² + 0.3² = 0.090202
    assert found.output_error == pytest.approx((0.090202 / 0.2) ** 0.5, rel=1e-5)
    assert found.regret is None


def test_nothing_changed_is_no_damage_even_of_a_constant_policy(spec: PolicySpec) -> None:
    constant = np.tile(np.array([[0.0, 1.0]], np.float32), (3, 1))
    assert damage_of(spec, constant, constant).output_error == 0.0
    assert damage_of(spec, constant * 2, constant).output_error == 1.0  # there is no spread to compare with


@pytest.mark.parametrize("name", ["cartpole-a2c", "pendulum-ddpg"])
def test_an_assembled_policy_is_the_simulated_one(name: str) -> None:
    bundle = Bundle.load(ZOO / "benchmark" / name)
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    estimator = Estimator(spec, weights, calibration)
    for bits in ((2, 8, 3, 5), (8, 8, 8, 8), (4, 4, 4, 4)):
        assignment = dict(
            zip((*spec.network.hidden_names, "head"), bits[: len(spec.network.hidden_names) + 1], strict=True)
        )
        assembled = estimator.assembled(assignment)
        expected = simulate(spec, weights, calibration, widths_of(assignment))
        assert assembled.maps == expected.maps
        for key, value in expected.weights.items():
            np.testing.assert_array_equal(assembled.weights[key], value)


def test_eight_bits_cost_little_and_two_much() -> None:
    bundle = Bundle.load(ZOO / "benchmark" / "pendulum-ddpg")
    estimator = Estimator(bundle.spec, bundle.weights(), bundle.calibration())
    eight = estimator.damage({"dense_0": 8, "dense_1": 8, "head": 8})
    two = estimator.damage({"dense_0": 2, "dense_1": 2, "head": 2})
    assert len(estimator.observations) == 1024
    assert eight.output_error < 0.5 < 1.0 < two.output_error
    assert eight.actions_differ < two.actions_differ


def test_a_measure_is_computed_once(spec: PolicySpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = Bundle.load(ZOO / "benchmark" / "cartpole-dqn")
    estimator = Estimator(bundle.spec, bundle.weights(), bundle.calibration()[:50])
    widths = {"dense_0": 3, "dense_1": 3, "head": 3}
    first = estimator.damage(widths)
    monkeypatch.setattr(estimator, "assembled", None)
    assert estimator.damage(dict(widths)) is first
