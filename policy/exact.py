"""Arithmetic with the same bits on every processor: what is written into a bundle or an artifact is computed with it.

A float32 or float64 sum depends on its order, and the order on the BLAS kernel, its threads and the width of its
registers. A sum of whole numbers does not, as long as no partial sum leaves the 53 bits that a double holds exactly:
then no addition rounds, fused with its product or not, in whatever order. So the factors are first rounded to whole
numbers times a power of two, one for each row of activations and one for each output channel of a kernel
(:func:`product`), as in Ozaki et al. 2012, "Error-free transformations of matrix multiplication by using fast routines
of matrix multiplication". Largest values, multiplications by powers of two and roundings to whole numbers are exact or
of single elements, and what single elements go through (+, −, ×, /, √) IEEE 754 prescribes to the bit; tanh it does not
(:func:`tanh`).

The results are about as near to the true ones as float32 sums are, as a rule nearer: an activation keeps 26 bits below
the largest of its row (a float32 has 24 below itself), a weight 30 or more below the largest of its channel for up to
4,096 summands.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from policy.errors import QuantizationError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]

DOUBLE_BITS = 53  # of a double's significand: whole numbers up to 2⁵³ are exact
ROW_BITS = 26  # of an activation
ROWS_AT_ONCE = 256  # the doubles of a whole calibration set would fill the memory
SMALLEST_EXPONENT = -900  # the inverse of 2 to this still is a double
# tanh: 1 − tanh 16 is 2.5e-14, far below half a step of a float32 under 1; 16 · 2⁻⁶ = ¼.
TANH_END, HALVINGS = 16.0, 6
# Lambert's continued fraction as far as needed: at ¼ the rest is below 1e-17.
DENOMINATORS = (9.0, 7.0, 5.0, 3.0, 1.0)


def product(x: np.ndarray, kernel: np.ndarray, multiply: Multiply = np.matmul) -> Doubles:
    """Σ x W with the same bits everywhere, of the shape of ``multiply(x, kernel)``, float64.

        x ≈ 2ᵉ⁻²⁶ · X,   W ≈ 2ᶠ · (2⁻ᵇ · C + 2⁻²ᵇ · D),   Σ x W ≈ 2ᵉ⁻²⁶⁺ᶠ⁻²ᵇ · (2ᵇ · Σ X C + Σ X D)

    with whole X, |X| ≤ 2²⁶ (e of each row), and C, D, |C| ≤ 2ᵇ, |D| ≤ 2ᵇ⁻¹ (f of each channel). Every partial sum of
    K summands X C is at most K · 2²⁶⁺ᵇ ≤ 2⁵³ with b = 27 − ⌈log₂ K⌉: exact in any order. What follows the sums is of
    single elements.

    Args:
        x: (batch, …), float32 or float64.
        kernel: (…, out), whose K = size / out elements of a channel are summed over.
        multiply: sums of products, linear in the channels of ``kernel``: matmul or a convolution.

    Raises:
        QuantizationError: a channel of more than 2²⁶ weights, for which b is no bit.
    """
    outputs, summands = kernel.shape[-1], kernel[..., 0].size
    bits = DOUBLE_BITS - ROW_BITS - (summands - 1).bit_length()
    if bits < 1:
        raise QuantizationError(f"a layer of {summands} inputs is too wide to be summed exactly.")
    largest = np.abs(kernel).reshape(-1, outputs).max(axis=0, initial=0.0)
    wide, unit = _whole(kernel, largest, bits, keep=True)
    coarse = np.rint(wide)
    both = np.concatenate([coarse, np.rint((wide - coarse) * 2.0**bits)], axis=-1)
    parts = []
    for start in range(0, max(len(x), 1), ROWS_AT_ONCE):
        rows, row_unit = whole(x[start : start + ROWS_AT_ONCE], ROW_BITS)
        sums = multiply(rows, both)
        y = sums[..., :outputs] * 2.0**bits + sums[..., outputs:]
        y *= row_unit.reshape(-1, *[1] * (y.ndim - 1))
        y *= unit * 2.0**-bits
        parts.append(y)
    result: Doubles = np.concatenate(parts)
    return result


def whole(x: np.ndarray, bits: int) -> tuple[Doubles, Doubles]:
    """x ≈ unit · X: whole numbers X, |X| ≤ 2ᵇⁱᵗˢ, of the shape of x (batch, …), and a power of two a row, (batch,)."""
    axes = tuple(range(1, x.ndim))
    largest = np.maximum(x.max(axis=axes, initial=0.0), -x.min(axis=axes, initial=0.0))
    scaled, unit = _whole(x, largest.reshape(-1, *[1] * len(axes)), bits)
    return scaled, unit.reshape(-1)


def _whole(x: np.ndarray, largest: np.ndarray, bits: int, keep: bool = False) -> tuple[Doubles, Doubles]:
    """x / unit, not rounded yet where ``keep`` says so, and unit = 2ᵉ⁻ᵇⁱᵗˢ with ``largest`` = m · 2ᵉ, ½ ≤ m < 1."""
    exponents = np.maximum(np.frexp(largest.astype(np.float64))[1], SMALLEST_EXPONENT)
    scaled: Doubles = x * np.ldexp(1.0, bits - exponents)
    return scaled if keep else np.rint(scaled, out=scaled), np.ldexp(1.0, exponents - bits)


def layer_norm(values: np.ndarray, gamma: Floats, beta: Floats, epsilon: float) -> Floats:
    """γ (x − mean x) / √(var x + ε) + β over the last axis of (batch, n), float32, with the same bits everywhere.

    Both sums are of whole numbers: of n · 2²⁶ at most for the mean, and for the variance of squares of b bits,
    n · 2²ᵇ ≤ 2⁵³ with b = ⌊(53 − ⌈log₂ n⌉) / 2⌋.
    """
    wide, width = values.astype(np.float64), values.shape[-1]
    levels, unit = whole(wide, ROW_BITS)
    centred = wide - (levels.sum(axis=-1) * unit / width)[:, None]
    levels, unit = whole(centred, (DOUBLE_BITS - (width - 1).bit_length()) // 2)
    variance = (levels * levels).sum(axis=-1) * (unit * unit) / width
    normalised: Floats = (centred / np.sqrt(variance + epsilon)[:, None] * gamma + beta).astype(np.float32)
    return normalised


def tanh(x: Floats) -> Floats:
    """The float32 nearest to tanh x, with the same bits everywhere; libraries differ in the last ones.

    At x / 64, |x| ≤ 16, by the continued fraction t / (1 + t² / (3 + t² / (5 + …))) (Lambert 1761), then doubled six
    times: tanh 2t = 2 tanh t / (1 + tanh² t).
    """
    t = np.clip(x.astype(np.float64), -TANH_END, TANH_END) / 2.0**HALVINGS
    square = t * t
    below = np.full_like(t, 11.0)
    for denominator in DENOMINATORS:
        below = denominator + square / below
    t = t / below
    for _ in range(HALVINGS):
        t = 2.0 * t / (1.0 + t * t)
    return t.astype(np.float32)
