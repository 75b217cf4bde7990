"""The reference forward passes, worked by hand; the runtimes are held to the same numbers in tests/convert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.policy.errors import QuantizationError, SpecError
from quarl.policy.quantize import Affine
from quarl.policy.reference import (
    IntegerLayer,
    IntegerNetwork,
    as_batch,
    check_weights,
    choose_actions,
    forward_float,
    forward_integer,
    forward_layer,
    normalise,
    requantization_multipliers,
)
from quarl.policy.simulate import output_range, quantize_network
from quarl.policy.spec import (
    ContinuousHead,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Squash,
    weight_shapes,
)

SPEC = PolicySpec(
    name="by-hand",
    observation=(ObservationField("distance", (), "m"), ObservationField("speed", (), "m/s")),
    normaliser=Normaliser((1.0, -2.0), (2.0, 0.5), 4.0),
    network=NetworkSpec((2,)),
    head=DiscreteHead(("left", "right")),
    control_period_s=0.1,
    environment=EnvironmentSpec("Test-v0"),
)
WEIGHTS = {
    "dense_0/kernel": np.array([[1.5, -0.5], [-2.5, 1.0]], np.float32),
    "dense_0/bias": np.array([1.25, -1.1875], np.float32),
    "head/kernel": np.array([[1.0, -0.125], [3.5, 0.375]], np.float32),
    "head/bias": np.array([0.25, -0.1875], np.float32),
}


def test_the_normaliser_centres_scales_and_clips() -> None:
    # (4 − 1) / 2, (−1.5 + 2) / 0.5;   49.5 and −196 are clipped
    observations = np.array([[4.0, -1.5], [100.0, -100.0]], np.float32)
    assert normalise(SPEC.normaliser, observations).tolist() == [[1.5, 1.0], [4.0, -4.0]]
    unclipped = replace(SPEC.normaliser, clip=float("inf"))
    assert normalise(unclipped, observations).tolist() == [[1.5, 1.0], [49.5, -196.0]]


def test_forward_float() -> None:
    # z = (1.5, 1): 2.25 − 2.5 + 1.25 = 1;  −0.75 + 1 − 1.1875 < 0 → 0;   head: 1 + 0.25;  −0.125 − 0.1875
    # z = (4, −4): 6 + 10 + 1.25 = 17.25;  −2 − 4 − 1.1875 → 0;           head: 17.5;  −2.15625 − 0.1875
    outputs = forward_float(SPEC, WEIGHTS, np.array([[4.0, -1.5], [100.0, -100.0]], np.float32))
    assert outputs.dtype == np.float32
    assert outputs.tolist() == [[1.25, -0.3125], [17.5, -2.34375]]
    assert forward_float(SPEC, WEIGHTS, np.array([4.0, -1.5])).tolist() == [[1.25, -0.3125]]


@pytest.mark.parametrize(
    ("squash", "expected"),
    [
        # raw outputs 1.25 and −0.3125, low −3 and 0, high 1 and 10: gains 2 and 5, offsets −1 and 5
        (Squash.CLIP, [2.0 * 1.0 - 1.0, 5.0 * -0.3125 + 5.0]),
        (Squash.TANH, [2.0 * 0.8482836399575129 - 1.0, 5.0 * -0.3027097293 + 5.0]),
    ],
)
def test_a_continuous_head_squashes_and_scales(squash: Squash, expected: list[float]) -> None:
    spec = replace(SPEC, head=ContinuousHead((-3.0, 0.0), (1.0, 10.0), squash))
    actions = forward_float(spec, WEIGHTS, np.array([4.0, -1.5]))
    np.testing.assert_allclose(actions, [expected], rtol=1e-6)
    assert choose_actions(spec, actions) is actions


def test_the_first_of_equal_outputs_is_chosen() -> None:
    outputs = np.array([[1.0, 1.0], [0.0, 2.0], [3.0, -1.0]], np.float32)
    assert choose_actions(SPEC, outputs).tolist() == [0, 1, 0]


NETWORK = IntegerNetwork(
    input=Affine(0.25, -4),
    layers=(
        IntegerLayer(
            "dense_0",
            np.array([[3, -2], [-5, 4]], np.int8),
            np.array([10, -3], np.int32),
            np.array([0.5, 0.25], np.float32),
            Affine(0.25, -100),
            relu=True,
        ),
        IntegerLayer(
            "head",
            np.array([[2, -1], [7, 3]], np.int8),
            np.array([2, -6], np.int32),
            np.array([0.5, 0.125], np.float32),
            Affine(0.5, 3),
            relu=False,
        ),
    ),
    weight_bits=8,
)


def test_one_integer_layer() -> None:
    # m = 0.25 · (0.5, 0.25) / 0.25
    assert requantization_multipliers(NETWORK.layers[0], NETWORK.input).tolist() == [0.5, 0.25]
    # q − z = (6, 4): 18 − 20 + 10 = 8, · ½ = 4;   −12 + 16 − 3 = 1, · ¼ → 0
    # (16, −16): 138, · ½ = 69;   −99 → below zero, cut at the zero point
    # (124, −124): 372 + 620 + 10 = 1002, · ½ = 501: cut at 127;   −747 → cut at the zero point
    levels = np.array([[2, 0], [12, -20], [120, -128]], np.int32)
    assert forward_layer(NETWORK.layers[0], NETWORK.input, levels).tolist() == [[-96, -100], [-31, -100], [127, -100]]


def test_forward_integer() -> None:
    # z = (1.5, 1) → levels (2, 0) → h = (4, 0): 10 · ¼ = 2.5, half to even 2;  −10 / 16 = −0.625 → −1
    # z = (4, −4) → levels (12, −20) → h = (69, 0): 140 · ¼ = 35;  −75 / 16 = −4.69 → −5
    outputs = forward_integer(SPEC, NETWORK, np.array([[4.0, -1.5], [100.0, -100.0]], np.float32))
    assert outputs.tolist() == [[1.0, -0.5], [17.5, -2.5]]


def test_quantize_network_by_hand() -> None:
    """Ranges from the two observations above: z in [−4, 4], h in [0, 17.25], outputs in [−2.34375, 17.5]."""
    calibration = np.array([[4.0, -1.5], [100.0, -100.0]], np.float32)
    network = quantize_network(SPEC, WEIGHTS, calibration)
    # symmetric: zero at 0, 4 / 127
    assert network.input.zero_point == 0
    assert network.input.scale == pytest.approx(4.0 / 127)
    first, head = network.layers
    # columns of dense_0: max |W| = 2.5 and 1, scales 2.5 / 127 and 1 / 127
    # s_out / (s_in · s_c): 109.11, which is too far from 110;  272.77, which moves to 272: 1 / 127 becomes 0.0078963
    np.testing.assert_allclose(first.kernel_scales, [2.5 / 127, 17.25 / 255 / (4 / 127) / 272], rtol=2e-6)
    assert first.kernel.tolist() == [[76, -63], [-127, 127]]  # 76.2, −127;  −63.32, 126.64
    # b / (s_in · s_c): 1.25 · 127² / (4 · 2.5) = 2016.125;  −1.1875 / (0.0314961 · 0.0078963) = −4774.8
    assert first.bias.tolist() == [2016, -4775]
    assert (first.output.zero_point, first.relu) == (-128, True)
    assert first.output.scale == pytest.approx(17.25 / 255)
    # winners 1.25 and 17.5: the range begins a quarter of their distance below, 1.25 − 4.0625 = −2.8125: all of it
    # −2.34375 … 17.5: 19.84375 / 255, zero at −128 + 30.12 → −98;  the wider of 17.5 / 225 and 2.34375 / 30
    assert (head.output.zero_point, head.relu) == (-98, False)
    assert head.output.scale == pytest.approx(2.34375 / 30)
    # and the float policy is met within two steps
    outputs = forward_integer(SPEC, network, calibration)
    assert np.abs(outputs - forward_float(SPEC, WEIGHTS, calibration)).max() <= 2 * network.output_step


def test_fewer_bits_keep_the_plain_grid() -> None:
    """No scale is nudged below 8 bits: the columns' largest weights, 2.5 and 1, lie on level 2^(n-1) - 1."""
    calibration = np.array([[4.0, -1.5], [100.0, -100.0]], np.float32)
    for bits in range(2, 8):
        first = quantize_network(SPEC, WEIGHTS, calibration, bits).layers[0]
        limit = 2 ** (bits - 1) - 1
        assert first.kernel_scales.tolist() == (np.array([2.5, 1.0], np.float32) / np.float32(limit)).tolist()
        assert np.abs(first.kernel).max(axis=0).tolist() == [limit, limit]


def test_a_discrete_heads_range_leaves_out_what_cannot_win() -> None:
    raw = np.array([[10.0, -90.0], [-40.0, 2.0], [6.0, 5.0]], np.float32)
    # winners 10, 2, 6: from 2 − ¼ · (10 − 2) = 0 to 10
    assert output_range(SPEC, raw) == (0.0, 10.0)
    continuous = replace(SPEC, head=ContinuousHead((-1.0, -1.0), (1.0, 1.0), Squash.TANH))
    assert output_range(continuous, raw) == (-90.0, 10.0)


def test_negative_winners_keep_levels_below_them() -> None:
    """Action values of a task that only costs: all negative, and a worse state than any seen must still have a best."""
    raw = np.array([[-20.0, -50.0], [-30.0, -28.0]], np.float32)
    assert output_range(SPEC, raw) == (-30.0, -20.0)


def test_an_accumulator_that_could_overflow_is_refused() -> None:
    weights = {**WEIGHTS, "dense_0/bias": np.array([3.0e9, 0.0], np.float32)}
    weights["dense_0/kernel"] = WEIGHTS["dense_0/kernel"] * np.float32(1e-3)
    calibration = np.array([[4.0, -1.5], [2.0, -2.5]], np.float32)
    with pytest.raises(QuantizationError, match=r"'dense_0', channel 0.*beyond 2147483647.*BITS=16"):
        quantize_network(SPEC, weights, calibration)


def test_shapes_of_the_weights() -> None:
    assert weight_shapes(SPEC) == {
        "dense_0/kernel": (2, 2),
        "dense_0/bias": (2,),
        "head/kernel": (2, 2),
        "head/bias": (2,),
    }
    linear = replace(SPEC, network=NetworkSpec(()))
    assert weight_shapes(linear) == {"head/kernel": (2, 2), "head/bias": (2,)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head/bias": None}, r"\['head/bias'\]"),
        ({"dense_7/kernel": np.zeros((2, 2), np.float32)}, r"unexpected \['dense_7/kernel'\]"),
        ({"dense_0/kernel": np.zeros((2, 3), np.float32)}, "'dense_0/kernel'"),
        ({"head/bias": np.zeros(2)}, "'head/bias'"),
        ({"head/bias": np.array([0.0, np.nan], np.float32)}, r"'head/bias' holds NaN"),
    ],
)
def test_weights_that_are_not_the_specs_are_named(change: dict[str, np.ndarray | None], words: str) -> None:
    merged = {**WEIGHTS, **change}
    with pytest.raises(SpecError, match=words):
        check_weights(SPEC, {name: value for name, value in merged.items() if value is not None})


def test_observations_of_another_width_are_refused() -> None:
    with pytest.raises(SpecError, match=r"\(1, 3\)"):
        as_batch(SPEC, np.zeros(3))
