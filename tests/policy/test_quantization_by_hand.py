"""Golden vectors of every quantizer, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.policy.errors import QuantizationError
from quarl.policy.quantize import (
    Affine,
    affine_from_range,
    dequantize_affine,
    dequantize_symmetric,
    quantize_affine,
    quantize_quarl,
    quantize_symmetric,
    quarl,
    symmetric_scales,
    to_fp16,
)
from tests.refusals import refused


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- symmetric, per output channel ----------------------------------------------------------------------------------

# Two channels; largest magnitudes 1.27 and 6.35, so that 8 bits have the scales 0.01 and 0.05.
KERNEL = np.array([[1.27, -6.35], [-0.62, 3.12], [0.004, 0.13], [0.0, -0.01]], np.float32)


def test_symmetric_8_bits_per_channel() -> None:
    scales = symmetric_scales(KERNEL, 8)
    np.testing.assert_allclose(scales, [0.01, 0.05], rtol=1e-6)
    # 127, −62, 0.4 → 0, 0;   −127, 62.4 → 62, 2.6 → 3, −0.2 → 0
    assert quantize_symmetric(KERNEL, scales, 8).tolist() == [[127, -127], [-62, 62], [0, 3], [0, 0]]


@pytest.mark.parametrize(
    ("bits", "levels"),
    [
        # W / max |W| is 1, −0.488, 0.003, 0 and −1, 0.491, 0.0205, −0.0016; times 63, 31, 15, 7, 3, 1
        (7, [[63, -63], [-31, 31], [0, 1], [0, 0]]),
        (6, [[31, -31], [-15, 15], [0, 1], [0, 0]]),
        (5, [[15, -15], [-7, 7], [0, 0], [0, 0]]),
        (4, [[7, -7], [-3, 3], [0, 0], [0, 0]]),
        (3, [[3, -3], [-1, 1], [0, 0], [0, 0]]),
        (2, [[1, -1], [0, 0], [0, 0], [0, 0]]),
    ],
)
def test_symmetric_fewer_bits(bits: int, levels: list[list[int]]) -> None:
    quantized = quantize_symmetric(KERNEL, symmetric_scales(KERNEL, bits), bits)
    assert quantized.dtype == np.int8
    assert quantized.tolist() == levels


def test_symmetric_rounds_half_to_even_and_then_clips() -> None:
    scales = floats(0.5)
    # 0.5, 1.5, 2.5, −0.5, −1.5 steps; 127.5 rounds to 128 and is clipped; −200 is clipped to −127, not −128
    weights = 0.5 * floats(0.5, 1.5, 2.5, -0.5, -1.5, 127.5, -200.0).reshape(-1, 1)
    assert quantize_symmetric(weights, scales, 8)[:, 0].tolist() == [0, 2, 2, 0, -2, 127, -127]


def test_symmetric_dequantizes_to_scale_times_level() -> None:
    levels = np.array([[127, -3], [-64, 0]], np.int8)
    expected = [[1.27, -0.15], [-0.64, 0.0]]
    np.testing.assert_allclose(dequantize_symmetric(levels, floats(0.01, 0.05)), expected, rtol=1e-6)


@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_special_tensors(bits: int) -> None:
    limit = 2 ** (bits - 1) - 1
    for weights, levels in [
        (floats(3.0, 3.0, 3.0), [limit] * 3),  # constant and all positive
        (floats(-3.0, -3.0), [-limit] * 2),  # all negative
        (floats(-0.25), [-limit]),  # single
        (floats(0.0, 0.0), [0, 0]),  # no range: scale 1
        (floats(1e-42), [0]),  # too small to divide by
    ]:
        column = weights.reshape(-1, 1)
        assert quantize_symmetric(column, symmetric_scales(column, bits), bits)[:, 0].tolist() == levels
    empty = np.zeros((0, 2), np.float32)
    assert symmetric_scales(empty, bits).tolist() == [1.0, 1.0]
    assert quantize_symmetric(empty, symmetric_scales(empty, bits), bits).shape == (0, 2)


# --- affine, per tensor ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "zero_point", "scale"),
    [
        (0.0, 2.55, -128, 0.01),  # after a ReLU: zero is the lowest level
        (1.0, 2.55, -128, 0.01),  # all positive: zero is put inside the range
        (-2.55, 0.0, 127, 0.01),
        (-2.55, -1.0, 127, 0.01),  # all negative
        (-0.28, 2.27, -100, 0.01),  # −128 + 28 = −100; both ends are levels: 2.27 / 227 = 0.28 / 28
        # symmetric: 6 / 255 puts zero at −128 + 127.5 = −0.5, half to even 0; then 3 / 127 reaches both ends
        (-3.0, 3.0, 0, 3.0 / 127),
        # −1 … 3: 4 / 255, zero at −128 + 63.75 → −64; ends: 3 / 191 = 0.015707, 1 / 64 = 0.015625: the wider step
        (-1.0, 3.0, -64, 3.0 / 191),
        (5.0, 5.0, -128, 5.0 / 255),  # constant
        (0.0, 0.0, 0, 1.0),  # nothing but zeros
        (0.0, 1e-40, 0, 1.0),  # too small to divide by
    ],
)
def test_affine_from_range(low: float, high: float, zero_point: int, scale: float) -> None:
    affine = affine_from_range(low, high)
    assert affine.zero_point == zero_point
    assert affine.scale == pytest.approx(scale, rel=1e-6)
    assert np.float32(affine.scale) == affine.scale, "the scale has to survive the float32 of an artifact"


@pytest.mark.parametrize(("low", "high"), [(-3.0, 3.0), (-1.0, 3.0), (-7.3, 0.9), (0.0, 4.4), (-5.0, 5.0)])
def test_the_ends_of_an_affine_range_are_no_ties(low: float, high: float) -> None:
    """Dividing by s and multiplying by 1/s, as different runtimes do, must not disagree on a saturated input."""
    affine = affine_from_range(low, high)
    scale = np.float32(affine.scale)
    ends = floats(low, high)
    divided, multiplied = np.rint(ends / scale), np.rint(ends * (np.float32(1.0) / scale))
    assert divided.tolist() == multiplied.tolist()
    distance = np.abs(ends / scale - divided)
    assert (distance < 0.45).all()


def test_affine_levels() -> None:
    affine = Affine(scale=0.5, zero_point=-28)
    # −50.1 → −100.2 − 28 → −128;  −1 → −30;  0.25: a tie, to even 0 → −28;  0.75: to even 2 → −26;  80 → 132 → 127
    values = floats(-50.1, -1.0, 0.0, 0.25, 0.75, 1.25, 80.0)
    assert quantize_affine(values, affine).tolist() == [-128, -30, -28, -28, -26, -26, 127]
    assert dequantize_affine(np.array([-128, -28, 127], np.int32), affine).tolist() == [-50.0, 0.0, 77.5]
    # rounded before the zero point is added: with an odd one, 0.25 is still 0 steps (-26.5 would become -26)
    assert quantize_affine(floats(0.25, 0.75), Affine(scale=0.5, zero_point=-27)).tolist() == [-27, -25]


def test_affine_keeps_an_empty_tensor_empty() -> None:
    assert quantize_affine(np.zeros((0, 3), np.float32), Affine(1.0, 0)).shape == (0, 3)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (np.nan, 1.0), (0.0, np.inf)])
def test_affine_refuses_a_range_that_is_none(low: float, high: float) -> None:
    with pytest.raises(QuantizationError, match="finite and ordered"):
        affine_from_range(low, high)


# --- the paper's quantizer ------------------------------------------------------------------------------------------


def test_quarl_2_bits_by_hand() -> None:
    # δ = (1 + 3) / 4 = 1,  z = ⌊1 / 1⌋ = 1;  Q = ⌊W⌋ + 1, clipped to 0 … 3
    quantized = quantize_quarl(floats(-1.0, -0.5, 0.0, 0.9, 1.0, 2.5, 3.0), 2)
    assert (quantized.affine.scale, quantized.affine.zero_point) == (1.0, 1)
    assert quantized.values.tolist() == [0, 0, 1, 1, 2, 3, 3]
    # the largest weight would be level 4, which two bits do not hold: it reads 2 instead of 3
    assert quantized.dequantize().tolist() == [-1.0, -1.0, 0.0, 0.0, 1.0, 2.0, 2.0]


def test_quarl_8_bits_by_hand() -> None:
    # δ = (0.64 + 1.92) / 256 = 0.01 (2.56 is no binary fraction: inputs a little inside their levels), z = 64
    quantized = quantize_quarl(floats(-0.64, -0.015, 0.0, 0.015, 1.005, 1.92), 8)
    assert quantized.affine.scale == pytest.approx(0.01, rel=1e-6)
    assert quantized.affine.zero_point == 64
    assert quantized.values.tolist()[1:] == [62, 64, 65, 164, 255]
    assert quantized.values[0] in (0, 1)


@pytest.mark.parametrize(
    ("weights", "levels", "zero_point", "scale"),
    [
        (floats(1.0, 2.0, 4.0), [4, 8, 15], 0, 0.25),  # all positive: the range begins at 0;  16 is clipped to 15
        (floats(-4.0, -2.0, -1.0), [0, 8, 12], 16, 0.25),  # all negative: z = 16 lies outside the levels
        (floats(2.0, 2.0), [15, 15], 0, 0.125),  # constant
        (floats(-8.0), [0], 16, 0.5),  # single
        (floats(0.0, 0.0), [0, 0], 0, 1.0),  # no range
        (floats(), [], 0, 1.0),  # empty
    ],
)
def test_quarl_4_bits_special_tensors(weights: np.ndarray, levels: list[int], zero_point: int, scale: float) -> None:
    quantized = quantize_quarl(weights, 4)
    assert quantized.values.tolist() == levels
    assert (quantized.affine.zero_point, quantized.affine.scale) == (zero_point, scale)
    assert quantized.affine.high == 15


def test_quarl_32_bits_is_identity_and_31_bits_nearly() -> None:
    weights = floats(-1.0, 0.3333, 2.7182818)
    np.testing.assert_array_equal(quarl(weights, 32), weights)
    np.testing.assert_allclose(quarl(weights, 31), weights, rtol=1e-6)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8, 16])
def test_quarl_goes_down_by_less_than_a_step_except_at_the_ends(bits: int) -> None:
    weights = np.random.default_rng(1).normal(0.0, 1.0, 1000).astype(np.float32)
    step = quantize_quarl(weights, bits).affine.scale
    error = (weights.astype(np.float64) - quarl(weights, bits)) / step
    inner = (error >= -1e-3) & (error < 1.0 + 1e-3)
    assert inner.mean() > 0.6 if bits == 2 else inner.mean() > 0.95
    # z is floored, so that a piece of a step below the lowest level is cut; the largest weight's own level is cut too
    assert error.min() > -1.0
    assert error.max() < 2.0


# --- half precision -------------------------------------------------------------------------------------------------


def test_fp16_rounds_half_to_even() -> None:
    # Between 1 and 2, halves are 2⁻¹⁰ apart: 1 + 2⁻¹¹ is a tie and goes to 1; 1 + 3 · 2⁻¹¹ goes to 1 + 2 · 2⁻¹⁰
    values = floats(1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 0.1, -65504.0, 2.0**-24, 2.0**-26)
    halves = to_fp16(values)
    assert halves.dtype == np.float16
    assert halves.astype(np.float64).tolist() == [1.0, 1.0 + 2.0**-9, 0.0999755859375, -65504.0, 2.0**-24, 0.0]
    assert to_fp16(floats()).shape == (0,)


def test_fp16_refuses_what_would_become_infinite() -> None:
    with pytest.raises(QuantizationError, match="65504"):
        to_fp16(floats(1.0, 70000.0))


# --- what none of them takes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_every_quantizer_refuses_what_is_not_finite(bad: float) -> None:
    weights = floats(1.0, bad, 2.0).reshape(-1, 1)
    for quantize in (
        lambda: symmetric_scales(weights, 8),
        lambda: quantize_symmetric(weights, floats(1.0), 8),
        lambda: quantize_affine(weights, Affine(1.0, 0)),
        lambda: quantize_quarl(weights, 8),
        lambda: quarl(weights, 32),
        lambda: to_fp16(weights),
    ):
        with refused(QuantizationError, "not_finite"):
            quantize()


@pytest.mark.parametrize("bits", [1, 9, 0, -3])
def test_symmetric_refuses_other_widths(bits: int) -> None:
    with refused(QuantizationError, "bits_out_of_range", shows=["2", "8"]):
        symmetric_scales(KERNEL, bits)


@pytest.mark.parametrize("bits", [1, 33])
def test_quarl_refuses_other_widths(bits: int) -> None:
    with refused(QuantizationError, "bits_out_of_range", shows=["31"]):
        quarl(KERNEL, bits)
