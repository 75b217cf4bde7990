"""Does a bundle compute what it says? Its golden outputs, computed again (host only).

Hashes say that a file is the one that was listed. That weights, normaliser, calibration and golden vectors belong
together is another question, which only the forward pass answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quarl.policy.errors import BundleError
from quarl.policy.float_errors import UNIT_ROUNDOFF, float_tolerance
from quarl.policy.network import Floats, Weights, forward_float
from quarl.policy.spec import PolicySpec

ROWS_AT_ONCE = 512
"""Golden vectors that are computed together, as many as training writes: the activations of all could be large."""
FEW_ROUNDINGS = 8.0
"""Roundings of the largest output: two sums of the same products that are so little apart need no analysis. The fast
forward pass is computed again, in float32; what is stored was exact, or float32 of another processor."""
REMEMBERED = 1000

# Hashes of what was computed and agrees: they say all that the answer depends on.
_agreeing: set[tuple[str, ...]] = set()


def check_golden_outputs(
    spec: PolicySpec, weights: Weights, observations: Floats, stored: Floats, where: Path, hashes: tuple[str, ...]
) -> None:
    """Compute the golden outputs again from weights and normaliser; once in a process for the same files.

    Args:
        spec, weights: the policy.
        observations: raw, (n, observation_size).
        stored: the golden outputs, (n, result_size).
        where: the file that they are from.
        hashes: of the files that all of this is from, which were compared with them.

    Raises:
        BundleError: the golden outputs are not those of the weights.
    """
    if hashes in _agreeing:
        return
    _compare_floats(spec, weights, observations, stored, where, "these weights", "Make or fetch the bundle again.")
    if len(_agreeing) < REMEMBERED:
        _agreeing.add(hashes)


def _compare_floats(
    spec: PolicySpec, weights: Weights, observations: Floats, stored: Floats, where: Path, whose: str, next_step: str
) -> None:
    computed, few = _computed(lambda part: forward_float(spec, weights, part), observations, stored)
    apart = np.abs(computed.astype(np.float64) - stored)
    if (apart <= few).all():
        return
    with np.errstate(all="ignore"):  # slow: computed only where it decides
        parts = [float_tolerance(spec, weights, observations[rows]) for rows in _blocks(len(observations))]
    _refuse(~(apart <= np.maximum(np.max(parts, axis=0), few)), computed, stored, where, whose, next_step)


def _computed(
    forward: Callable[[Floats], Floats], observations: Floats, stored: Floats
) -> tuple[Floats, NDArray[np.float64]]:
    """The outputs computed again, and what a few roundings of each output, (result_size,), are."""
    with np.errstate(all="ignore"):  # what becomes infinite differs from what is stored
        computed = np.concatenate([forward(observations[rows]) for rows in _blocks(len(observations))])
    return computed, FEW_ROUNDINGS * UNIT_ROUNDOFF * np.abs(stored).max(axis=0).astype(np.float64)


def _refuse(
    wrong: NDArray[np.bool_], computed: Floats, stored: Floats, where: Path, whose: str, next_step: str
) -> None:
    if wrong.any():
        row, output = (int(place) for place in np.argwhere(wrong)[0])
        raise BundleError(
            f"{where}: the golden outputs are not those of {whose}: output {output} of vector {row} is "
            f"{stored[row, output]:g}, computed again {computed[row, output]:g}; "
            f"{int(wrong.any(axis=1).sum())} of {len(wrong)} vectors differ.",
            next_step,
        )


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + ROWS_AT_ONCE) for start in range(0, rows, ROWS_AT_ONCE))
