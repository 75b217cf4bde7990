"""The calibration set: recorded rollouts that fix the int8 ranges of a policy's activations.

Ranges go from the smallest to the largest value seen in the rollouts, or as ``--ranges`` says; those of a discrete
head's outputs leave out what lies far below every winner (:func:`policy.simulate.output_range`). (A policy calibrated
on random numbers is another policy than the one that was trained.) What can be wrong with a set shows in this table:
too few rows, the same row again and again, elements that stand still, golden observations that leave the ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from quarl.policy.errors import QuantizationError
from quarl.policy.exact import COARSE
from quarl.policy.golden import units_above_zero
from quarl.policy.quantize import Affine, check_finite
from quarl.policy.reference import (
    IntegerNetwork,
    Weights,
    as_batch,
    compute_activations,
    layer_names,
    normalise_observations,
    normaliser_bounds,
    winning_outputs,
)
from quarl.policy.spec import PolicySpec

# Fewer rows do not reach the tails of the activations; 256 is where Policy I–III's ranges stop growing visibly.
FEWEST_ROWS = 256
# An image gives a filter hundreds of values, one a position.
FEWEST_IMAGES = 64
# Values outside the calibrated range are cut; more of them than this are worth a warning.
OUTSIDE_WARNING = 0.01
# This share of a field's recorded values lies beyond what the normaliser lets through.
CUT_WARNING = 0.05
# Of the most that an element of a field moves: below a tenth of an int8 step, another one stands still.
STILL = 0.1 / 255


@dataclass(frozen=True)
class ActivationRange:
    """One quantized tensor as the rollouts fill it.

    Attributes:
        name: ``input`` or the layer.
        count: values seen: observations × elements.
        low, high: smallest and largest value seen, in the tensor's unit.
        step: of its int8 scale.
        bottom, top: its outermost levels, in the tensor's unit.
        clipped: fraction of the fresh values (of the golden observations; of a discrete head, of the winning outputs)
            that these do not reach, by more than a step: the fixed maps of tanh and sigmoid end a step below 1.
        idle: fraction of units that never leave zero (or never move at all).
    """

    name: str
    count: int
    low: float
    high: float
    step: float
    bottom: float
    top: float
    clipped: float
    idle: float

    @classmethod
    def of(cls, name: str, seen: np.ndarray, fresh: np.ndarray, affine: Affine) -> Self:
        """Range of the values ``seen`` (n, …) and ``fresh`` (m, …) under this map."""
        bottom, top = (affine.scale * (level - affine.zero_point) for level in (affine.low, affine.high))
        clipped = float(np.mean((fresh < bottom - affine.scale) | (fresh > top + affine.scale)))
        idle = float(np.mean(seen.max(axis=0) == seen.min(axis=0)))
        low, high = float(seen.min()), float(seen.max())
        return cls(name, seen.size, low, high, affine.scale, bottom, top, clipped, idle)


@dataclass(frozen=True)
class CalibrationReport:
    """The table and what is suspicious about the set."""

    rows: int
    ranges: tuple[ActivationRange, ...]
    warnings: tuple[str, ...]


def inspect(
    spec: PolicySpec, weights: Weights, network: IntegerNetwork, calibration: np.ndarray, golden: np.ndarray
) -> CalibrationReport:
    """Table of the activation ranges, and warnings about the set.

    Args:
        spec, weights: the policy.
        network: it in integers, quantized on ``calibration``.
        calibration: raw observations (n, observation_size).
        golden: other raw observations (m, observation_size), also from rollouts.

    Raises:
        QuantizationError: the set is empty or not finite.
    """
    observations = as_batch(spec, calibration)
    if len(observations) == 0:
        raise QuantizationError("the calibration set must have observations from real rollouts, got none.")
    check_finite(observations, "calibration observations")
    # As the ranges were made: what is warned of stands in the manifest, alike wherever it was converted.
    seen = compute_activations(spec, weights, observations, exact=COARSE)
    fresh = compute_activations(spec, weights, golden, exact=COARSE)
    unchecked = units_above_zero(spec, seen).any(axis=0) & ~units_above_zero(spec, fresh).any(axis=0)
    maps = (network.input, *(layer.result for layer in network.layers))
    names = ("input", *layer_names(spec))
    for activations in (seen, fresh):
        activations[-1] = activations[-1][:, : spec.output_size]
    if spec.is_discrete:
        # Only the winner counts, and the range is made for it: smaller outputs are cut on purpose.
        fresh[-1] = winning_outputs(spec, fresh[-1])
    ranges = tuple(ActivationRange.of(*items) for items in zip(names, seen, fresh, maps, strict=True))
    return CalibrationReport(
        len(observations), ranges, tuple(_warnings(spec, observations, ranges, int(unchecked.sum())))
    )


def still_elements(spec: PolicySpec, observations: np.ndarray) -> Iterator[str]:
    """Yield a sentence for each field of raw observations (n, observation_size) that has elements standing still."""
    moved, start = np.ptp(observations.astype(np.float64), axis=0), 0
    ignored = [place for place, _, _ in spec.normaliser.still]
    for field in (spec_field for spec_field in spec.observation if not spec_field.is_state):
        part = moved[start : start + field.size]
        still = np.setdiff1d(start + np.flatnonzero(part <= STILL * part.max()), ignored)
        start += field.size
        # A pixel may well stand still; its neighbours share its range.
        if len(still) == field.size or (len(still) and len(field.shape) < 3):
            elements = ", ".join(map(str, still[:8])) + ", …" * (len(still) > 8)
            yield (
                f"{field.name!r}: element {elements} of the observation stands still in the calibration set, and int8 "
                f"does not follow it when it moves. Record it moving, or import with --range {still[0]} LOW HIGH."
            )


def _warnings(
    spec: PolicySpec, observations: np.ndarray, ranges: tuple[ActivationRange, ...], unchecked: int
) -> list[str]:
    warnings = []
    fewest = FEWEST_IMAGES if spec.network.convolutions else FEWEST_ROWS
    if len(observations) < fewest:
        warnings.append(f"only {len(observations)} calibration rows; record {fewest} or more from rollouts.")
    different = len(np.unique(observations, axis=0))
    if different < len(observations) / 2:
        warnings.append(f"only {different} of {len(observations)} calibration rows differ from each other.")
    warnings.extend(still_elements(spec, observations))
    low, high = normaliser_bounds(spec.normaliser)
    rows = normalise_observations(spec, observations)
    start, at_bounds = 0, (rows <= low) | (rows >= high)
    for field in (spec_field for spec_field in spec.observation if not spec_field.is_state):
        start += field.size
        cut = float((at_bounds[:, start - field.size : start]).mean())
        if cut > CUT_WARNING:
            warnings.append(f"{cut:.1%} of the recorded values of {field.name!r} are cut by the normaliser's clip.")
    if unchecked:
        warnings.append(f"{unchecked} units are excited by the calibration set and by no golden observation.")
    warnings.extend(
        f"{item.name}: {item.clipped:.1%} of the golden observations' values lie outside the calibrated range."
        for item in ranges
        if item.clipped > OUTSIDE_WARNING
    )
    return warnings
