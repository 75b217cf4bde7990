"""Golden vectors of the study's quantizers, worked by hand: the released script's, and the device's beyond 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.policy.errors import QuantizationError
from quarl.policy.quantize import (
    Affine,
    affine_from_range,
    dequantize_affine,
    dequantize_symmetric,
    fake_symmetric,
    quantize_affine,
    quantize_quarl,
    quantize_symmetric,
    quarl,
    quarl_from_range,
    quarl_levels,
    quarl_released,
    quarl_values,
    symmetric_scales,
)
from tests.refusals import refused


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# --- the released script's variant ----------------------------------------------------------------------------------


def test_released_2_bits_have_five_levels() -> None:
    # δ = (2 + 2) / 4 = 1: rint gives −2, −1, 0, 1, 2, one level more than two bits hold; halves go to even
    weights = floats(-2.0, -1.5, -1.0, -0.5, 0.2, 0.5, 1.5, 2.0)
    assert quarl_released(weights, 2).tolist() == [-2.0, -2.0, -1.0, 0.0, 0.0, 0.0, 2.0, 2.0]
    assert len(np.unique(quarl_released(np.linspace(-2, 2, 401, dtype=np.float32), 2))) == 5
    # the slides' formula keeps to four: −2, −1, 0, 1
    assert len(np.unique(quarl(np.linspace(-2, 2, 401, dtype=np.float32), 2))) == 4


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # all positive: δ = (1 + 4) / 16 = 0.3125; 1 / δ = 3.2 → 3, 2 / δ = 6.4 → 6, 4 / δ = 12.8 → 13, beyond the 4
        (floats(1.0, 2.0, 4.0), [0.9375, 1.875, 4.0625]),
        (floats(-4.0, -2.0, -1.0), [-4.0625, -1.875, -0.9375]),  # all negative: the mirror image
        (floats(2.0, 2.0), [2.0, 2.0]),  # constant: δ = 4 / 16 = 0.25, level 8
        (floats(-8.0), [-8.0]),  # single: δ = 16 / 16 = 1
        (floats(0.0, 0.0), [0.0, 0.0]),  # no range
        (floats(), []),  # empty
        # both signs: δ = (1 + 3) / 16 = 0.25; 0.125 is a tie and goes to 0, 0.375 to 0.5
        (floats(-1.0, 0.125, 0.375, 3.0), [-1.0, 0.0, 0.5, 3.0]),
    ],
)
def test_released_4_bits_special_tensors(weights: np.ndarray, expected: list[float]) -> None:
    assert quarl_released(weights, 4).tolist() == expected
    assert quarl_released(weights, 4).dtype == np.float32


def test_released_all_positive_weights_waste_range() -> None:
    # 8 … 16 at 3 bits: δ = (8 + 16) / 8 = 3; levels 3, 4, 5: three of the eight, where the slides' δ = 2 uses 4 … 7
    weights = np.linspace(8.0, 16.0, 81, dtype=np.float32)
    assert np.unique(quarl_released(weights, 3)).tolist() == [9.0, 12.0, 15.0]
    assert np.unique(quarl(weights, 3)).tolist() == [8.0, 10.0, 12.0, 14.0]


def test_released_convolutions_per_channel_and_dense_per_tensor() -> None:
    # Two channels with the ends ±4 and ±1: at 2 bits δ is 2 and 0.5. As one tensor both would get 2.
    kernel = np.array([[4.0, 1.0], [-4.0, -1.0], [0.9, 0.9]], np.float32)
    assert quarl_released(kernel.reshape(3, 1, 1, 2), 2).reshape(3, 2).tolist() == [
        [4.0, 1.0],
        [-4.0, -1.0],
        [0.0, 1.0],
    ]
    assert quarl_released(kernel, 2).tolist() == [[4.0, 0.0], [-4.0, 0.0], [0.0, 0.0]]
    # a channel of zeros beside another one
    zeros = np.array([[4.0, 0.0], [-4.0, 0.0]], np.float32).reshape(2, 1, 1, 2)
    assert quarl_released(zeros, 2).reshape(2, 2).tolist() == [[4.0, 0.0], [-4.0, 0.0]]


@pytest.mark.parametrize("bits", [32, 40])
def test_released_32_bits_and_more_are_identity(bits: int) -> None:
    weights = floats(-1.0, 0.3333, 2.7182818)
    np.testing.assert_array_equal(quarl_released(weights, bits), weights)
    assert not np.array_equal(quarl_released(weights, 16), weights)


# --- the slides' scheme on activations ------------------------------------------------------------------------------


def test_quarl_on_a_given_range() -> None:
    # δ = (1 + 3) / 4 = 1, z = 1; floored, and what is outside the range is clipped to levels 0 and 3
    affine = quarl_from_range(-1.0, 3.0, 2)
    assert affine == Affine(1.0, 1, 0, 3)
    levels = quarl_levels(floats(-7.0, -0.1, 0.0, 0.9, 1.9, 9.0), affine)
    assert levels.tolist() == [0, 0, 1, 1, 2, 3]
    assert quarl_values(levels, affine).tolist() == [-1.0, -1.0, 0.0, 0.0, 1.0, 2.0]
    # after a ReLU: zero is level 0; a range that does not hold zero is widened to it
    assert quarl_from_range(0.0, 4.0, 3) == Affine(0.5, 0, 0, 7)
    assert quarl_from_range(2.0, 4.0, 3) == Affine(0.5, 0, 0, 7)
    assert quarl_from_range(0.0, 0.0, 3) == Affine(1.0, 0, 0, 7)
    for low, high in ((1.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(QuantizationError, match="finite and ordered"):
            quarl_from_range(low, high, 8)


# --- symmetric: beyond 8 bits ---------------------------------------------------------------------------------------


def test_symmetric_10_bits_by_hand() -> None:
    # scales 5.11 / 511 = 0.01 and 1.022 / 511 = 0.002;  2.004 / 0.01 = 200.4 → 200;  −0.0071 / 0.002 = −3.55 → −4
    weights = np.array([[5.11, -1.022], [2.004, -0.0071], [-0.0049, 0.0]], np.float32)
    expected = [[5.11, -1.022], [2.0, -0.008], [0.0, 0.0]]
    np.testing.assert_allclose(fake_symmetric(weights, 10), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [9, 12, 16, 20, 24, 31])
def test_symmetric_wide_errs_by_half_a_step_at_most(bits: int) -> None:
    weights = np.random.default_rng(3).normal(0.0, 1.0, (200, 4)).astype(np.float32)
    steps = np.abs(weights.astype(np.float64)).max(axis=0) / (2 ** (bits - 1) - 1)
    error = np.abs(fake_symmetric(weights, bits) - weights.astype(np.float64))
    # what rounding to float32 may add: half a unit in its last place
    assert (error <= 0.5 * steps + 2.0**-24 * np.abs(weights)).all()
    if bits <= 16:  # and it is no identity
        assert error.max() > 0.3 * steps.min()


@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_narrow_is_the_artifacts(bits: int) -> None:
    weights = np.random.default_rng(4).normal(0.0, 1.0, (50, 3)).astype(np.float32)
    scales = symmetric_scales(weights, bits)
    np.testing.assert_array_equal(
        fake_symmetric(weights, bits), dequantize_symmetric(quantize_symmetric(weights, scales, bits), scales)
    )
    given = (scales * np.float32(1.004)).astype(np.float32)
    np.testing.assert_array_equal(
        fake_symmetric(weights, bits, given), dequantize_symmetric(quantize_symmetric(weights, given, bits), given)
    )


@pytest.mark.parametrize("bits", [8, 12, 31])
def test_symmetric_special_tensors_beyond_8_bits(bits: int) -> None:
    for weights in (floats(3.0, 3.0), floats(-3.0, -3.0), floats(-0.25), floats(0.0, 0.0), floats()):
        column = weights.reshape(-1, 1)
        np.testing.assert_allclose(fake_symmetric(column, bits), column, rtol=1e-6, atol=0)


# --- affine: other widths than 8 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "bits", "expected"),
    [
        (0.0, 3.0, 2, Affine(1.0, 124, 124, 127)),  # after a ReLU: the four uppermost int8 numbers, zero the lowest
        (0.0, 15.0, 4, Affine(1.0, 112, 112, 127)),
        # −3 … 4.5 at 4 bits: 7.5 / 15 = 0.5, zero at 112 + 6 = 118; both ends are levels
        (-3.0, 4.5, 4, Affine(0.5, 118, 112, 127)),
        (-15.0, 0.0, 4, Affine(1.0, 127, 112, 127)),
        (0.0, 0.0, 4, Affine(1.0, 112, 112, 127)),
        (0.0, 127.5, 8, Affine(0.5, -128, -128, 127)),
        (0.0, 0.0, 8, Affine(1.0, 0, -128, 127)),
        (0.0, 1023.0, 10, Affine(1.0, -512, -512, 511)),
        (-3.0, 1020.0, 10, Affine(1.0, -509, -512, 511)),
    ],
)
def test_affine_of_other_widths(low: float, high: float, bits: int, expected: Affine) -> None:
    assert affine_from_range(low, high, bits) == expected


def test_affine_2_bits_give_four_numbers() -> None:
    affine = affine_from_range(0.0, 3.0, 2)
    # 0.5 is a tie to 0, 1.5 a tie to 2; 9 is beyond the top
    levels = quantize_affine(floats(-1.0, 0.5, 0.6, 1.5, 2.6, 9.0), affine)
    assert levels.tolist() == [124, 124, 125, 126, 127, 127]
    assert dequantize_affine(levels, affine).tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 3.0]


def test_affine_beyond_8_bits_keeps_every_level() -> None:
    affine = affine_from_range(-4.0, 4.0, 31)
    values = floats(-4.0, -1.2345678, 0.0, 0.1, 3.9999998, 4.0)
    np.testing.assert_allclose(dequantize_affine(quantize_affine(values, affine), affine), values, rtol=1e-6)


# --- what none of them takes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weights = floats(1.0, bad, 2.0).reshape(-1, 1)
    for quantize in (
        lambda: quarl_released(weights, 4),
        lambda: quarl_released(weights, 32),
        lambda: quantize_quarl(weights, 4),
        lambda: quarl_levels(weights, quarl_from_range(0.0, 1.0, 4)),
        lambda: fake_symmetric(weights, 4),
        lambda: fake_symmetric(weights, 12),
    ):
        with refused(QuantizationError, "not_finite"):
            quantize()


def test_other_widths_are_refused() -> None:
    column = floats(1.0, 2.0).reshape(-1, 1)
    for bits in (1, 0, -3):
        with refused(QuantizationError, "bits_out_of_range", shows=["2", "32"]):
            quarl_released(column, bits)
    for bits in (1, 32):
        with refused(QuantizationError, "bits_out_of_range", shows=["2", "31"]):
            fake_symmetric(column, bits)
        with refused(QuantizationError, "bits_out_of_range", shows=["2", "31"]):
            affine_from_range(0.0, 1.0, bits)
    with refused(QuantizationError, "bits_out_of_range", shows=["12", "2", "8"]):
        fake_symmetric(column, 12, floats(0.1))
