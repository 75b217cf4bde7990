"""Exact rewrites: numbers by hand, the same policy in fp32 everywhere, and more of it in int8."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from quarl.policy import rewrites
from quarl.policy.errors import SpecError
from quarl.policy.golden import float_tolerance
from quarl.policy.reference import forward_float, forward_integer, normalise_observations
from quarl.policy.rewrites import (
    Rewrite,
    add_normaliser,
    common_share,
    fitting,
    possible,
    rewritten,
    subtract_output_mean,
)
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import (
    ContinuousHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
    TrainedQuantization,
    weight_shapes,
)
from tests.policy.small_bundle import SPEC, WEIGHTS
from tests.refusals import refused

RANDOM = np.random.default_rng(3)
STEERING = replace(
    SPEC,
    observation=(ObservationField("angle", (2,), "rad"), ObservationField("speed", (2,), "m/s")),
    normaliser=Normaliser((0.0,) * 4, (1.0,) * 4, 5.0),
    network=NetworkSpec((16, 16)),
    head=ContinuousHead((-1.0, -2.0), (1.0, 2.0), Squash.TANH),
)
ROWS = (RANDOM.normal(size=(400, 4)) * (0.05, 0.1, 1.5, 1.0) + (0.1, 0.0, 1.0, 0.0)).astype(np.float32)
TRAINED = TrainedQuantization(8, {"input": (-1.0, 1.0), "dense_0": (0.0, 1.0)})


def weights_of(spec: PolicySpec, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: (random.normal(size=shape) / math.sqrt(shape[0])).astype(np.float32)
        for name, shape in weight_shapes(spec).items()
    }


def action_values() -> dict[str, np.ndarray]:
    """Two actions that differ by little in a state, whose value differs much from another's."""
    weights = dict(WEIGHTS)
    weights["head/kernel"] = (4.0 + 0.02 * WEIGHTS["head/kernel"]).astype(np.float32)
    weights["head/bias"] = np.array([0.02, 0.0], np.float32)
    return weights


def test_a_head_is_centred_by_hand() -> None:
    weights = dict(WEIGHTS)
    weights["head/kernel"] = np.array([[1, 3], [2, 6], [0, 0], [-1, 1]], np.float32)
    weights["head/bias"] = np.array([10, 20], np.float32)
    spec, made = subtract_output_mean(SPEC, weights)
    assert spec is SPEC
    assert made["head/kernel"].tolist() == [[-1, 1], [-2, 2], [0, 0], [-1, 1]]
    assert made["head/bias"].tolist() == [-5, 5]
    assert made["head/kernel"].dtype == np.float32 and made["dense_0/kernel"] is weights["dense_0/kernel"]


def test_what_actions_have_in_common_by_hand() -> None:
    # means 2 and 4, of variance 1; differences from them ±1 in both rows, of variance 0
    assert common_share(np.array([[1.0, 3.0], [3.0, 5.0]])) == 1.0
    # means 0 and 0; differences of variance 1
    assert common_share(np.array([[1.0, -1.0], [-1.0, 1.0]])) == 0.0
    # means 0 and 2, of variance 1; differences ±1 of both signs, of variance 1
    assert common_share(np.array([[1.0, -1.0], [1.0, 3.0]])) == 0.5
    assert common_share(np.ones((4, 2))) == 0.0


def test_the_argmax_stays_and_int8_chooses_it_more_often() -> None:
    weights, rows = action_values(), np.random.default_rng(4).normal(size=(600, 3)).astype(np.float32)
    spec, made = rewritten(SPEC, weights, rows[:300])
    assert spec.provenance["rewrites"] == ["centred", "normalised"]
    for far in (rows, 10 * rows):
        wanted, found = (forward_float(s, w, far).astype(np.float64) for s, w in ((SPEC, weights), (spec, made)))
        tied = np.ptp(wanted, axis=1) < 4 * float_tolerance(SPEC, weights, far).max()
        assert tied.mean() < 0.01 and np.array_equal(wanted[~tied].argmax(axis=1), found[~tied].argmax(axis=1))
    chosen = forward_float(SPEC, weights, rows[300:]).argmax(axis=1)

    def same(spec: PolicySpec, weights: dict[str, np.ndarray]) -> float:
        int8 = forward_integer(spec, quantize_network(spec, weights, rows[:300]), rows[300:])
        return float(np.mean(int8.argmax(axis=1) == chosen))

    assert same(spec, made) > same(SPEC, weights) + 0.05


def test_a_normaliser_is_taken_from_the_rows_by_hand() -> None:
    rows = np.array([[0, -100, 7, 40], [2, 300, 7, 160], [1, 0, 7, 50]], np.float32)
    spec = replace(STEERING, normaliser=Normaliser((0.0,) * 4, (1.0,) * 4, math.inf))
    weights = weights_of(spec)
    new, made = add_normaliser(spec, weights, rows)
    assert new.normaliser.mean == (1.0, 100.0, 7.0, 100.0)
    # reaches 1, 200, 0, 60: twice as far where that is less than the widest; what never moves may move as far
    assert new.normaliser.scale == (2.0, 200.0, 200.0, 120.0)
    assert new.normaliser.clip == math.inf and not new.normaliser.low
    assert normalise_observations(new, rows).tolist() == [
        [-0.5, -1, 0, -0.5],
        [0.5, 1, 0, 0.5],
        [0, -0.5, 0, pytest.approx(-5 / 12)],
    ]
    kernel = weights["dense_0/kernel"]
    assert np.array_equal(made["dense_0/kernel"], kernel * np.array([[2], [200], [200], [120]], np.float32))
    np.testing.assert_allclose(
        made["dense_0/bias"], weights["dense_0/bias"] + np.array([1, 100, 7, 100]) @ kernel, rtol=1e-5
    )


def test_a_narrow_element_keeps_a_thousandth_of_the_widest() -> None:
    rows = np.array([[0, -1, 0, 0], [1e-6, 1, 0, 0]], np.float32)
    new, _ = add_normaliser(STEERING, weights_of(STEERING), rows)
    assert new.normaliser.scale == pytest.approx((1e-3, 1.0, 1.0, 1.0))


@pytest.mark.parametrize("clip", [5.0, math.inf])
def test_fp32_is_the_same_near_and_far_also_where_a_bound_cuts(clip: float) -> None:
    spec = replace(STEERING, normaliser=Normaliser((0.0,) * 4, (1.0,) * 4, clip))
    weights = weights_of(spec)
    new, made = rewritten(spec, weights, ROWS)
    assert new.provenance["rewrites"] == ["normalised"]
    for rows in (ROWS, 20 * ROWS):
        apart = np.abs(forward_float(new, made, rows) - forward_float(spec, weights, rows)).max(axis=0)
        assert (apart <= float_tolerance(spec, weights, rows) + float_tolerance(new, made, rows)).all()
    assert clip == math.inf or (np.abs(20 * ROWS) > clip).any()


def test_int8_misses_less_of_an_angle_beside_a_speed() -> None:
    weights = weights_of(STEERING)
    weights["dense_0/kernel"][:2] *= 20  # the angle decides
    new, made = rewritten(STEERING, weights, ROWS[:200])
    wanted = forward_float(STEERING, weights, ROWS[200:])

    def error(spec: PolicySpec, weights: dict[str, np.ndarray]) -> float:
        int8 = forward_integer(spec, quantize_network(spec, weights, ROWS[:200]), ROWS[200:])
        return float(np.sqrt(np.mean((int8 - wanted) ** 2)))

    assert error(new, made) < 0.6 * error(STEERING, weights)


def test_what_fits_is_done_once() -> None:
    rows = RANDOM.normal(size=(50, 3)).astype(np.float32)
    assert possible(SPEC) == (Rewrite.CENTRED, Rewrite.NORMALISED)
    assert fitting(SPEC, action_values(), rows) == possible(SPEC)
    spec, made = rewritten(SPEC, action_values(), rows)
    assert fitting(spec, made, rows) == ()
    again, same = rewritten(spec, made, rows)
    assert again is spec and all(same[name] is made[name] for name in made)


def test_logits_with_little_in_common_are_left_alone() -> None:
    weights, rows = dict(WEIGHTS), RANDOM.normal(size=(50, 3)).astype(np.float32)
    weights["head/kernel"] = WEIGHTS["head/kernel"][:, :1] * np.array([[1, -1]], np.float32)
    spec = replace(SPEC, normaliser=Normaliser((0.5,) * 3, (1.0,) * 3))
    assert fitting(spec, weights, rows) == () and possible(spec) == (Rewrite.CENTRED,)
    assert rewritten(spec, weights, rows)[0] is spec
    forced, _ = rewritten(spec, weights, rows, possible(spec))
    assert forced.provenance["rewrites"] == ["centred"]


def test_trained_quantizers_images_and_normalisers_are_refused() -> None:
    rows = RANDOM.normal(size=(9, 3)).astype(np.float32)
    trained = replace(SPEC, quantization=TRAINED)
    assert possible(trained) == () and rewritten(trained, action_values(), rows)[0] is trained
    for rewrite in (lambda: subtract_output_mean(trained, WEIGHTS), lambda: add_normaliser(trained, WEIGHTS, rows)):
        with refused(SpecError, "trained_with_quantizers"):
            rewrite()
    image = replace(SPEC, observation=(ObservationField("picture", (3, 1, 1), "1"),))
    scaled = replace(SPEC, normaliser=Normaliser((0.0,) * 3, (2.0,) * 3))
    for spec in (image, scaled):
        assert Rewrite.NORMALISED not in possible(spec)
        with pytest.raises(SpecError, match="a normaliser"):
            add_normaliser(spec, WEIGHTS, rows)
    with pytest.raises(SpecError, match="must be discrete"):
        subtract_output_mean(STEERING, weights_of(STEERING))
    with pytest.raises(SpecError, match="a normaliser"):
        add_normaliser(SPEC, WEIGHTS, rows[:0])
    with refused(SpecError, "spec", shows=["NaN"]):
        add_normaliser(SPEC, WEIGHTS, np.full((2, 3), np.nan, np.float32))


def test_the_rule_lies_between_action_values_and_logits() -> None:
    assert 0.2 < rewrites.MOST < 0.8
