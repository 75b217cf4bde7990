"""The float operators of :mod:`policy.contract.features` in numpy, with how far float32 roundings may take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from quarl.policy.contract.features import FloatOperator, FloatStep

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# A library's sine, exponential or tanh differs by a few units in the last place.
LIBRARY_ROUNDINGS = 8.0
ROWS_AT_ONCE = 64
UNIT_ROUNDOFF = float(np.finfo(np.float32).eps) / 2

Operator = FloatOperator
_BINARY: dict[FloatOperator, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Operator.ADD: np.add,
    Operator.SUBTRACT: np.subtract,
    Operator.MULTIPLY: np.multiply,
    Operator.DIVIDE: np.divide,
    Operator.MINIMUM: np.minimum,
    Operator.MAXIMUM: np.maximum,
}
_UNARY: dict[FloatOperator, Callable[[np.ndarray], np.ndarray]] = {
    Operator.SQUARE_ROOT: np.sqrt,
    Operator.SINE: np.sin,
    Operator.COSINE: np.cos,
    Operator.ABSOLUTE: np.abs,
    Operator.EXPONENTIAL: np.exp,
    Operator.TANH: np.tanh,
    Operator.SIGMOID: lambda x: 1.0 / (1.0 + np.exp(-x)),
}


def run_program(steps: tuple[FloatStep, ...], *given: Floats) -> Floats:
    """Run a program on what it is given, (batch, n) each; returns (batch, m), the first value without steps.

    Sums, products, quotients and roots are those of float32; what a library approximates is computed in double
    precision and rounded once, so that it has the same bits on every processor.
    """
    if not steps:
        return given[0]
    return np.concatenate([_values(steps, rows) for rows in _chunks(given)])


def exact_program(steps: tuple[FloatStep, ...], *given: np.ndarray) -> Doubles:
    """Run a program as :func:`run_program` does, in double precision throughout."""
    rows = [np.asarray(each, np.float64) for each in given]
    return np.concatenate([_values(steps, part) for part in _chunks(rows)]) if steps else rows[0]


def program_variance(
    steps: tuple[FloatStep, ...], given: Sequence[np.ndarray], variance: Sequence[Doubles] | None = None
) -> Doubles:
    """Variance (batch, m) of a program's results, of float32 roundings, all independent, and of what it is given.

    Each step carries its operands' variances by its derivatives, and adds (u · |y|)², of a library's function
    (8 u · (1 + |y|))²; u is the unit roundoff.

    Args:
        steps: the program.
        given: what it is given, (batch, n) each.
        variance: of that, (batch, n) each; None where it is exact.
    """
    rows = [np.asarray(each, np.float64) for each in given]
    spread = [np.zeros_like(each) for each in rows] if variance is None else variance
    if not steps:
        return spread[0]
    parts = zip(_chunks(rows), _chunks(spread), strict=True)
    found = np.concatenate([_variance(steps, part, own) for part, own in parts])
    return np.where(np.isfinite(found), found, np.finfo(np.float32).max)


def _chunks(given: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Split the rows of all values into chunks: all values of all steps are in memory at once."""
    starts = range(0, max(len(given[0]), 1), ROWS_AT_ONCE)
    return [[rows[start : start + ROWS_AT_ONCE] for rows in given] for start in starts]


def _values(steps: tuple[FloatStep, ...], given: list[np.ndarray]) -> np.ndarray:
    values = list(given)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for step in steps:
            values.append(np.asarray(_applied(step, [values[place] for place in step.operands]), given[0].dtype))
    return values[-1]


def _variance(steps: tuple[FloatStep, ...], rows: list[Doubles], spread: list[Doubles]) -> Doubles:
    values, variances = list(rows), list(spread)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for step in steps:
            x = [values[place] for place in step.operands]
            y = np.asarray(_applied(step, x), np.float64)
            variances.append(_carried(step, x, [variances[place] for place in step.operands], y))
            values.append(y)
    return variances[-1]


def _applied(step: FloatStep, x: list[np.ndarray]) -> np.ndarray:
    kind, operator = x[0].dtype, step.operator
    if operator in _BINARY:
        second = np.asarray(step.constants, np.float32).astype(kind) if step.constants else x[1]
        return _BINARY[operator](x[0], second)
    if operator is Operator.TAKE:
        taken: np.ndarray = x[0][:, list(step.places)]
        return taken
    if operator is Operator.JOIN:
        return np.concatenate(x, axis=1)
    if operator is Operator.SUM:
        total: np.ndarray = x[0].astype(np.float64).sum(axis=1, keepdims=True).astype(kind)
        return total
    return _UNARY[operator](x[0].astype(np.float64)).astype(kind)


def _carried(step: FloatStep, x: list[Doubles], spread: list[Doubles], y: Doubles) -> Doubles:
    operator, rounding = step.operator, (UNIT_ROUNDOFF * y) ** 2
    if operator is Operator.TAKE:
        return spread[0][:, list(step.places)]
    if operator is Operator.JOIN:
        return np.concatenate(spread, axis=1)
    if operator is Operator.SUM:
        size = np.abs(x[0]).sum(axis=1, keepdims=True)
        total: Doubles = spread[0].sum(axis=1, keepdims=True) + x[0].shape[1] * (UNIT_ROUNDOFF * size) ** 2
        return total
    if operator in _BINARY:
        other = np.asarray(step.constants, np.float64) if step.constants else x[1]
        own = spread[1] if len(spread) > 1 else np.zeros(1)
        if operator is Operator.MULTIPLY:
            return other**2 * spread[0] + x[0] ** 2 * own + rounding
        if operator is Operator.DIVIDE:
            return (spread[0] + y**2 * own) / other**2 + rounding
        if operator in (Operator.ADD, Operator.SUBTRACT):
            return spread[0] + own + rounding
        return np.maximum(spread[0], own)
    if operator is Operator.ABSOLUTE:
        return spread[0]
    library = (LIBRARY_ROUNDINGS * UNIT_ROUNDOFF * (1.0 + np.abs(y))) ** 2
    if operator is Operator.SQUARE_ROOT:
        return spread[0] / np.maximum(4.0 * y**2, np.sqrt(spread[0]) + 1e-30) + rounding
    slope = np.abs(y) if operator is Operator.EXPONENTIAL else 0.25 if operator is Operator.SIGMOID else 1.0
    return slope**2 * spread[0] + library
