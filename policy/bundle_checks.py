"""Does a bundle compute what it says? Its golden outputs and the artifacts' expected ones, computed again (host only).

Hashes say that a file is the one that was listed. That weights, normaliser, calibration and golden vectors belong
together is another question, which only the forward pass answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy.errors import BundleError
from policy.float_errors import UNIT_ROUNDOFF, float_tolerance
from policy.integer import forward_integer, quantize_network
from policy.network import Floats, Weights, forward_float
from policy.quantization import to_fp16
from policy.spec import ContinuousHead, PolicySpec, Precision

ROWS_AT_ONCE = 512
"""Golden vectors that are computed together, as many as training writes: the activations of all could be large."""
FEW_ROUNDINGS = 8.0
"""Of the largest output: so little apart, two sums of the same products need no analysis. Computed again is the fast
forward pass, in float32; what is stored was exact, or float32 of another processor."""
MOST_ELSEWHERE = 0.1
"""Of an integer policy's outputs that may lie a step off. Scales are the same bits on every processor
(:mod:`policy.exact`); those of artifacts that were made before that came from float32 sums, whose last bits were the
processor's, and these move the few levels on the border of two. Another calibration moves nearly all, be it by less
than a step."""
STEP_SLACK = 1e-3  # of a step: levels come back as floats, scale · level is rounded
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
        stored: the golden outputs, (n, output_size).
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


def check_expected_outputs(
    spec: PolicySpec,
    weights: Weights,
    calibration: Floats,
    precision: Precision,
    observations: Floats,
    stored: Floats,
    where: Path,
) -> None:
    """Compute the expected outputs of an artifact again, from weights and calibration.

    Args:
        spec, weights: the policy.
        calibration: raw observations, (m, observation_size); not looked at for fp32 and fp16.
        precision: of the artifact.
        observations: the golden ones, raw, (n, observation_size).
        stored: what the artifact is said to compute on them, (n, output_size).
        where: the file that ``stored`` is from.

    Raises:
        BundleError: they differ by more than the order of float additions makes (fp32, fp16), or by more than a step
            of the output, or in more than a tenth of the outputs (int8 … int2).
        QuantizationError: the policy cannot be quantized at all.
    """
    next_step = f"Convert it again: make convert BITS={precision.bits} POLICY={spec.name}"
    if not precision.is_integer:
        if precision is Precision.FP16:
            weights = {name: to_fp16(value).astype(np.float32) for name, value in weights.items()}
        _compare_floats(spec, weights, observations, stored, where, "these weights", next_step)
        return
    network = quantize_network(spec, weights, calibration, precision.bits)
    computed, few = _computed(lambda part: forward_integer(spec, network, part), observations, stored)
    apart = np.abs(computed.astype(np.float64) - stored)
    steps = network.output_step * _gain(spec) * (1.0 + STEP_SLACK)
    others = ~(apart <= few)
    wrong = others if others.mean() > MOST_ELSEWHERE else ~(apart <= np.maximum(steps, few))
    _refuse(wrong, computed, stored, where, "these weights and this calibration", next_step)


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
    """The outputs computed again, and what a few roundings of each output, (output_size,), are."""
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


def _gain(spec: PolicySpec) -> NDArray[np.float64]:
    """What a unit of the head's raw output is worth at most, for each output: |d tanh| and |d clip| are at most 1."""
    if not isinstance(spec.head, ContinuousHead):
        return np.ones(spec.output_size)
    return (np.array(spec.head.high) - np.array(spec.head.low)) / 2
