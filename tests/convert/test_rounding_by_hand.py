"""The fixed-point arithmetic of TFLite's built-in kernels, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.convert.pipeline import FLOATS, INTEGERS
from quarl.convert.rounding import (
    fixed_point_multipliers,
    fixed_point_requantize,
    forward_fixed_point,
    quantize_by_inverse,
    quantize_half_away,
    with_float_tables,
)
from quarl.policy.quantize import INT8_MIN, Affine, IntegerTable, quantize_affine
from quarl.policy.reference import IntegerLayer, IntegerNetwork, forward_integer, requantization_multipliers
from quarl.policy.simulate import agreeing_scales, quantize_network
from quarl.policy.spec import (
    Activation,
    ContinuousHead,
    NetworkSpec,
    Normaliser,
    ObservationField,
    Precision,
    RuntimeName,
    Squash,
)
from tests.convert.conftest import Runtimes, make_spec
from tests.policy.test_forward_by_hand import NETWORK as FORWARD
from tests.policy.test_forward_by_hand import SPEC


def layer(scales: list[float], output_scale: float) -> IntegerLayer:
    channels = len(scales)
    kernel, bias = np.ones((1, channels), np.int8), np.zeros(channels, np.int32)
    return IntegerLayer("head", kernel, bias, np.array(scales, np.float32), Affine(output_scale, 0), relu=False)


def test_multipliers_are_a_fraction_and_an_exponent() -> None:
    # 0.5 · 0.25 / 0.5 = ¼ = ½ · 2⁻¹;  0.5 · 3 / 0.5 = 3 = ¾ · 2²;  0.5 · 1 / 0.5 = 1 = ½ · 2¹
    fraction, exponent = fixed_point_multipliers(layer([0.25, 3.0, 1.0], 0.5), Affine(0.5, 0))
    assert fraction.tolist() == [2**30, 3 * 2**29, 2**30]
    assert exponent.tolist() == [-1, 2, 1]


def test_observations_half_way_go_away_from_zero() -> None:
    values, affine = np.array([1.0, 3.0, -1.0, -3.0, 0.9, 999.0], np.float32), Affine(2.0, 10)
    # ½, 1½, −½, −1½: to 1, 2, −1, −2, where halves to even are 0, 2, 0, −2
    assert quantize_half_away(values, affine).tolist() == [11, 12, 9, 8, 10, 127]
    assert quantize_affine(values, affine).tolist() == [10, 12, 10, 8, 10, 127]


@pytest.mark.parametrize(
    ("accumulator", "multiplier", "expected"),
    [
        (10, (2**30, -1), 3),  # 2.5: ⌊10/2 + ½⌋ = 5, ⌊5/2 + ½⌋ = 3
        (9, (2**30, -1), 3),  # 2.25: ⌊9/2 + ½⌋ = 5, then 3: rounded twice, one step above the float's 2
        (8, (2**30, -1), 2),  # 2
        (-10, (2**30, -1), -2),  # −2.5 goes up
        (-9, (2**30, -1), -2),  # −2.25: ⌊−4⌋ = −4, then −2
        (7, (3 * 2**29, 2), 21),  # 7 · 3
        (-7, (2**30, 1), -7),
        (0, (2**30, -9), 0),
    ],
)
def test_requantization_rounds_twice_and_halves_go_up(
    accumulator: int, multiplier: tuple[int, int], expected: int
) -> None:
    fraction, exponent = (np.array([value], np.int64) for value in multiplier)
    result = fixed_point_requantize(np.array([[accumulator]], np.int64), fraction, exponent)
    assert result.tolist() == [[expected]]


ROUNDS = {
    RuntimeName.TFLITE_RUNTIME: quantize_half_away,
    RuntimeName.LITERT: quantize_by_inverse,
    RuntimeName.ONNXRUNTIME: quantize_affine,
    RuntimeName.NATIVE: quantize_affine,
}


@pytest.mark.parametrize("runtime", RuntimeName)
def test_borderline_observations_round_as_their_runtime_does(runtimes: Runtimes, runtime: RuntimeName) -> None:
    size = 16
    spec = make_spec(
        observation=(ObservationField("x", (size,), "m"),),
        normaliser=Normaliser((0.0,) * size, (1.0,) * size, 100.0),
        network=NetworkSpec(()),
        head=ContinuousHead((-1.0,) * size, (1.0,) * size, Squash.NONE),
    )
    weights = {"head/kernel": np.eye(size, dtype=np.float32), "head/bias": np.zeros(size, np.float32)}
    calibration = np.random.default_rng(0).uniform(-3.1, 2.9, (500, size)).astype(np.float32)
    network = quantize_network(spec, weights, calibration, 8)
    scale = network.input.scale
    assert network.layers[0].output.scale == scale  # an output's level is its input's

    # every border, and the three floats above and below it
    below = above = borders = ((np.arange(-100, 100) + 0.5) * scale).astype(np.float32)
    near = [borders]
    for _ in range(3):
        below, above = np.nextafter(below, np.float32(-np.inf)), np.nextafter(above, np.float32(np.inf))
        near += [below, above]
    x = np.concatenate(near)
    levels = {rounds: rounds(x, network.input) for rounds in ROUNDS.values()}
    pairs = [(one, other) for one in levels for other in levels if one is not other]
    assert all((levels[one] != levels[other]).any() for one, other in pairs), "nothing is shown"

    observations = np.zeros((len(x), size), np.float32)
    observations[:, 0] = x
    data = INTEGERS[runtime.artifact_format](spec, network)
    outputs = runtimes[runtime].execute(spec, data, observations).outputs[:, 0]
    found = np.rint(outputs / scale) + network.layers[0].output.zero_point
    np.testing.assert_array_equal(found, levels[ROUNDS[runtime]])


def test_agreeing_scales_by_hand() -> None:
    # m = 0.1 · s: 1 / m = 990.1, 1.3, 207; to the even integers 990 (by 0.01 %) and 206 or 208 (by 0.48 %)
    # 1.3 would have to move to 2; 1 / m = 1024.3 to 1024, whose fraction is ½: both keep their scale
    scales = np.array([1 / 99.01, 1 / 0.13, 1 / 20.7, 1 / 102.43], np.float32)
    agreed = agreeing_scales(scales, 0.1, 1.0)
    np.testing.assert_allclose(0.1 * agreed[[0, 2]], [1 / 990, 1 / 208], rtol=2.0**-20)
    assert (0.1 * agreed[[0, 2]].astype(np.float64) > [1 / 990, 1 / 208]).all()
    assert agreed[[1, 3]].tolist() == scales[[1, 3]].tolist()


@pytest.mark.parametrize("inverse", [171.3, 390.0, 777.7, 1799.9])
def test_on_agreeing_scales_both_ways_of_rounding_are_one(inverse: float) -> None:
    """Every accumulator from zero to the level 127, in both arithmetics."""
    input_map = Affine(float(np.float32(0.031)), -128)
    output_scale = float(np.float32(0.057))
    scales = np.array([output_scale / input_map.scale / inverse], np.float32)
    accumulators = np.arange(int(127 * inverse))[:, None]

    def differing(kernel_scales: np.ndarray) -> int:
        one = layer(kernel_scales.tolist(), output_scale)
        multiplier = requantization_multipliers(one, input_map)
        fixed = fixed_point_requantize(accumulators, *fixed_point_multipliers(one, input_map))
        return int(np.sum(np.rint(accumulators.astype(np.float32) * multiplier) != fixed))

    assert differing(scales) > 50, "the plain scales do not differ: nothing is shown"
    assert differing(agreeing_scales(scales, input_map.scale, output_scale)) == 0


def test_a_level_on_the_border_of_two_may_get_either_of_them_in_float32() -> None:
    """Found in a public policy: 91 · 0.05335 / 0.04203 is 115.499998, and in float32 115.5, which rounds to even."""
    network = NetworkSpec((1,), Activation.ELU)
    fed, output = Affine(0.05334923788905144, -55), Affine(0.04203273355960846, -104)
    table = IntegerTable.build_lookup(network, "dense_0", fed, output)
    hidden = replace(layer([1.0], fed.scale), output=fed, table=table)
    (other,) = with_float_tables(IntegerNetwork(fed, (hidden,), 8)).layers
    assert other.table is not None
    differ = np.flatnonzero(other.table.levels != table.levels) + INT8_MIN
    assert differ.tolist() == [-16, 36, 88]
    assert (table.levels[36 - INT8_MIN], other.table.levels[36 - INT8_MIN]) == (11, 12)


FIRST, HEAD = FORWARD.layers
NETWORK = replace(FORWARD, layers=(replace(FIRST, output=Affine(0.25, -128)), HEAD))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# "→" is the float multiplier, rounded once, half to even; "⇒" the fixed point: acc · m' is rounded, halves up, then
# divided by 2ˢ and rounded again, halves up, where m = m' · 2⁻ˢ with m' from ½ to 1 (here always ½).
#
# z = ((4 − 1) / 2, (−1.5 + 2) / 0.5) = (1.5, 1)          q = (6 − 4, 4 − 4);  without zero point (6, 4)
# dense_0: 6·3 − 4·5 + 10 = 8, · ½ = 4;  −6·2 + 4·4 − 3 = 1, · ¼ = 0.25 → 0 ⇒ (½ up: 1, ½ up:) 1
# head, h = (4, 0): 4·2 + 2 = 10, · ¼ = 2.5 → 2;  −4 − 6 = −10, · 1/16 = −0.625 → −1
# head, h = (4, 1): 8 + 7 + 2 = 17, · ¼ = 4.25 ⇒ (8.5 up: 9, 4.5 up:) 5;  −4 + 3 − 6 = −7, · 1/16 ⇒ (−3.5 up: −3, · ⅛) 0
TIES = (4.0, -1.5)
# z = clip(49.5, −196) = (4, −4)                           without zero point (16, −16)
# dense_0: 48 + 80 + 10 = 138, · ½ = 69;  −32 − 64 − 3 < 0 → 0                     h = (69, 0)
# head: 138 + 2 = 140, · ¼ = 35;  −69 − 6 = −75, · 1/16 = −4.6875 → −5 ⇒ (−37.5 up: −37, · ⅛) −5
CLIPPED = (100.0, -100.0)
# z = clip(−50, 20) = (−4, 4)                              without zero point (−16, 16)
# dense_0: −48 − 80 + 10 < 0 → 0;  32 + 64 − 3 = 93, · ¼ = 23.25 → 23 ⇒ (46.5 up: 47, 23.5 up:) 24
# head, h = (0, 23): 161 + 2 = 163, · ¼ = 40.75 → 41;  69 − 6 = 63, · 1/16 = 3.9375 → 4
# head, h = (0, 24): 168 + 2 = 170, · ¼ = 42.5 ⇒ (85, 42.5 up:) 43;  72 − 6 = 66, · 1/16 ⇒ (33, 4.125:) 4
OTHER_SIDE = (-99.0, 8.0)
OBSERVATIONS = np.array([TIES, CLIPPED, OTHER_SIDE], np.float32)
HALF_TO_EVEN = 0.5 * np.array([[2, -1], [35, -5], [41, 4]], np.float32)
TWICE_ROUNDED = 0.5 * np.array([[5, 0], [35, -5], [43, 4]], np.float32)


def test_the_numpy_references_are_the_hand_worked_numbers() -> None:
    np.testing.assert_array_equal(forward_integer(SPEC, NETWORK, OBSERVATIONS), HALF_TO_EVEN)
    np.testing.assert_array_equal(forward_fixed_point(SPEC, NETWORK, OBSERVATIONS), TWICE_ROUNDED)


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        (RuntimeName.LITERT, HALF_TO_EVEN),
        (RuntimeName.ONNXRUNTIME, HALF_TO_EVEN),
        (RuntimeName.NATIVE, HALF_TO_EVEN),
        (RuntimeName.TFLITE_RUNTIME, TWICE_ROUNDED),  # its only int8 kernels multiply in fixed point
    ],
)
def test_every_runtime_computes_the_hand_worked_integers(
    runtimes: Runtimes, runtime: RuntimeName, expected: np.ndarray
) -> None:
    execution = runtimes[runtime].execute(SPEC, INTEGERS[runtime.artifact_format](SPEC, NETWORK), OBSERVATIONS)
    np.testing.assert_array_equal(execution.outputs, expected)
    np.testing.assert_array_equal(execution.actions, [0, 0, 0])


WEIGHTS = {
    "dense_0/kernel": np.array([[1.5, -0.5], [-2.5, 1.0]], np.float32),
    "dense_0/bias": floats(1.25, -0.1875),
    "head/kernel": np.array([[1.0, -0.125], [3.5, 0.375]], np.float32),
    "head/bias": floats(0.25, -0.1875),
}
# z = (1.5, 1): 2.25 − 2.5 + 1.25 = 1;  −0.75 + 1 − 0.1875 = 0.0625
# head: 1 + 0.21875 + 0.25 = 1.46875;  −0.125 + 0.0234375 − 0.1875 = −0.2890625     (all of it exact in half precision)
FLOAT_LOGITS = floats(1.46875, -0.2890625)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("runtime", RuntimeName)
def test_every_runtime_computes_the_hand_worked_floats(
    runtimes: Runtimes, runtime: RuntimeName, precision: Precision
) -> None:
    data = FLOATS[runtime.artifact_format](SPEC, WEIGHTS, precision)
    execution = runtimes[runtime].execute(SPEC, data, np.array([TIES], np.float32))
    np.testing.assert_array_equal(execution.outputs[0], FLOAT_LOGITS)
    assert execution.actions.tolist() == [0]


@pytest.mark.parametrize("runtime", RuntimeName)
def test_of_equal_logits_the_first_wins(runtimes: Runtimes, runtime: RuntimeName) -> None:
    weights = {name: np.zeros_like(value) for name, value in WEIGHTS.items()}
    execution = runtimes[runtime].execute(SPEC, FLOATS[runtime.artifact_format](SPEC, weights), OBSERVATIONS)
    assert execution.actions.tolist() == [0, 0, 0]
