"""Arithmetic with the same bits on every processor: what is written into a bundle or an artifact is computed with it.

A float32 or float64 sum depends on its order, and the order on the BLAS kernel, its threads and the width of its
registers. A sum of whole numbers does not, as long as no partial sum leaves the 53 bits that a double holds exactly:
then no addition rounds, fused with its product or not, in whatever order. So the factors are first rounded to whole
numbers times a power of two, one for each row of activations and one for each output channel of a kernel
(:func:`linear`), as in Ozaki et al. 2012, "Error-free transformations of matrix multiplication by using fast routines
of matrix multiplication". Largest values, multiplications by powers of two and roundings to whole numbers are exact or
of single elements, and what single elements go through (+, −, ×, /, √) IEEE 754 prescribes to the bit; tanh it does not
(:func:`tanh`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from quarl.policy.errors import QuantizationError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]

DOUBLE_BITS = 53  # of a double's significand: whole numbers up to 2⁵³ are exact
COARSE, FINE = 1, 2  # parts of a kernel
FINE_ROW_BITS = 26  # of an activation
ROWS_AT_ONCE = 256  # the doubles of a whole calibration set would fill the memory
SMALLEST_EXPONENT = -900  # the inverse of 2 to this still is a double
LAYER_NORM_EPSILON = 1e-5  # inside the root; Keras and PyTorch use 1e-3 and 1e-5
# tanh: 1 − tanh 16 is 2.5e-14, far below half a step of a float32 under 1; 16 · 2⁻⁶ = ¼.
TANH_END, HALVINGS = 16.0, 6
# Lambert's continued fraction as far as needed: at ¼ the rest is below 1e-17.
DENOMINATORS = (9.0, 7.0, 5.0, 3.0, 1.0)


def product(x: np.ndarray, kernel: np.ndarray, multiply: Multiply = np.matmul, parts: int = FINE) -> Doubles:
    """Σ x W with the same bits everywhere, of the shape of ``multiply(x, kernel)``, float64; see :func:`linear`."""
    return np.concatenate(list(_products(x, kernel, multiply, parts)))


def linear(x: Floats, kernel: Floats, bias: Floats, multiply: Multiply = np.matmul, parts: int = FINE) -> Floats:
    """Σ x W + b with the same bits everywhere, of the shape of ``multiply(x, kernel)``, float32.

    With one part of the kernel

        x ≈ 2ᵉ⁻ᵃ · X,   W ≈ 2ᶠ⁻ᵇ · C,   Σ x W ≈ 2ᵉ⁻ᵃ⁺ᶠ⁻ᵇ · Σ X C

    with whole X, |X| ≤ 2ᵃ (e of each row), and C, |C| ≤ 2ᵇ (f of each channel). A partial sum of K summands is at most
    K · 2ᵃ⁺ᵇ ≤ 2⁵³ with b = ⌊(53 − ⌈log₂ K⌉) / 2⌋ and a = 53 − ⌈log₂ K⌉ − b: exact in any order. With two parts

        W ≈ 2ᶠ⁻²ᵇ · (2ᵇ · C + D),   |D| ≤ 2ᵇ⁻¹,   Σ x W ≈ 2ᵉ⁻ᵃ⁺ᶠ⁻²ᵇ · (2ᵇ · Σ X C + Σ X D)

    a = 26 and b = 27 − ⌈log₂ K⌉. What follows the sums is of single elements.

    Args:
        x: (batch, …).
        kernel: (…, out), whose K = size / out elements of a channel are summed over.
        bias: (out,).
        multiply: sums of products, linear in the channels of ``kernel``: matmul or a convolution.
        parts: COARSE, in twice the time of float32 sums: up to 4,096 summands, rows keep 21 bits below their largest
            and channels 20, enough for ranges; or FINE, in four times: 26 bits and 30, as near to the true sums as
            float32's own, as a rule nearer.

    Raises:
        QuantizationError: a channel of more than 2²⁶ weights, for which b is no bit.
    """
    return np.concatenate([(y + bias).astype(np.float32) for y in _products(x, kernel, multiply, parts)])


def _products(x: np.ndarray, kernel: np.ndarray, multiply: Multiply, parts: int) -> Iterator[Doubles]:
    outputs, summands = kernel.shape[-1], kernel[..., 0].size
    both = DOUBLE_BITS - (summands - 1).bit_length()
    row_bits = FINE_ROW_BITS if parts == FINE else both - both // 2
    bits = both - row_bits
    if bits < 1:
        raise QuantizationError(f"a layer of {summands} inputs is too wide to be summed exactly.")
    largest = np.abs(kernel).reshape(-1, outputs).max(axis=0, initial=0.0)
    scaled, unit = _scale_to_unit(kernel, largest, bits)
    factors = np.rint(scaled)
    if parts == FINE:
        factors = np.concatenate([factors, np.rint((scaled - factors) * 2.0**bits)], axis=-1)
    for start in range(0, max(len(x), 1), ROWS_AT_ONCE):
        rows, row_unit = whole(x[start : start + ROWS_AT_ONCE], row_bits)
        sums = multiply(rows, factors)
        y = sums[..., :outputs] + sums[..., outputs:] * 2.0**-bits if parts == FINE else sums
        y *= row_unit.reshape(-1, *[1] * (y.ndim - 1))
        y *= unit
        yield y


def whole(x: np.ndarray, bits: int) -> tuple[Doubles, Doubles]:
    """x ≈ unit · X: whole numbers X, |X| ≤ 2ᵇⁱᵗˢ, of the shape of x (batch, …), and a power of two a row, (batch,)."""
    axes = tuple(range(1, x.ndim))
    largest = np.maximum(x.max(axis=axes, initial=0.0), -x.min(axis=axes, initial=0.0))
    scaled, unit = _scale_to_unit(x, largest.reshape(-1, *[1] * len(axes)), bits)
    return np.rint(scaled, out=scaled), unit.reshape(-1)


def _scale_to_unit(x: np.ndarray, largest: np.ndarray, bits: int) -> tuple[Doubles, Doubles]:
    """x / unit, not rounded yet, and unit = 2ᵉ⁻ᵇⁱᵗˢ with ``largest`` = m · 2ᵉ, ½ ≤ m < 1."""
    exponents = np.maximum(np.frexp(largest.astype(np.float64))[1], SMALLEST_EXPONENT)
    scaled: Doubles = x * np.ldexp(1.0, bits - exponents)
    return scaled, np.ldexp(1.0, exponents - bits)


def layer_norm(values: np.ndarray, gamma: Floats, beta: Floats) -> Floats:
    """γ (x − mean x) / √(var x + ε) + β over the last axis of (batch, n), float32, with the same bits everywhere.

    Both sums are of whole numbers: of n · 2²⁶ at most for the mean, and for the variance of squares of b bits,
    n · 2²ᵇ ≤ 2⁵³ with b = ⌊(53 − ⌈log₂ n⌉) / 2⌋.
    """
    wide, width = values.astype(np.float64), values.shape[-1]
    levels, unit = whole(wide, FINE_ROW_BITS)
    centred = wide - (levels.sum(axis=-1) * unit / width)[:, None]
    levels, unit = whole(centred, (DOUBLE_BITS - (width - 1).bit_length()) // 2)
    variance = (levels * levels).sum(axis=-1) * (unit * unit) / width
    normalised: Floats = (centred / np.sqrt(variance + LAYER_NORM_EPSILON)[:, None] * gamma + beta).astype(np.float32)
    return normalised


def tanh(x: Floats) -> Floats:
    """Return the float32 nearest to tanh x, with the same bits everywhere; libraries differ in the last ones."""
    return tanh64(x).astype(np.float32)


def tanh64(x: np.ndarray) -> Doubles:
    """tanh x in double precision, with the same bits everywhere, to about 1e-16.

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
    return t
