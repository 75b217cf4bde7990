"""What an artifact has to compute, and how far from it may be right: the whole analysis of errors.

* fp32, fp16, w8 and w4: the numpy reference on the weights that the stored ones stand for (rounded to half, or to
  levels), within the error that float32 additions in another order can make (:func:`float_tolerance`).
* int8 … int2: one of the four exact integer references (``convert.rounding``), to the level. Measured: policies I, II
  and III, int8 … int2, all golden vectors, the three runtimes on x86-64: zero steps; convolutions likewise. With a
  layer normalisation or a recurrent layer's gates in float between the integers: within one step of them, for a float
  that lies on the border of two levels may get either (``NORM_STEPS``). The next state is right within the roundings
  of its program, and behind such floats within a level of its gates.

All that is written of it has the same bits on every processor (:mod:`policy.exact`).

What a device then compares with (``Reference.tolerance``) is wider: by what separates the integer references on the
golden observations, for the device may round in another of these ways, and by one step, for kernels that were not
tried here (``DEVICE_STEPS``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl.convert.rounding import fixed_point_head_inputs, quantize_by_inverse, with_float_tables
from quarl.policy.golden import DEVIATIONS, Doubles, float_tolerance, head_rounding
from quarl.policy.quantize import Floats
from quarl.policy.reference import (
    IntegerNetwork,
    Trace,
    Weights,
    apply_head,
    head_inputs,
    program_variance,
)
from quarl.policy.simulate import forward_stored, stored_weights
from quarl.policy.spec import ContinuousHead, PolicySpec, Precision

# Levels are whole: an output within half a step of the reference's has the reference's level. The half is for what
# follows the last level, the float rounding of scale · level and of a continuous head's squashing.
OWN_STEPS = 0.5
# One unit's level that came out one step off moves the outputs by a fraction of a step, so that they are rounded to the
# next level at most.
NORM_STEPS = 1.0
# A device may have kernels that were not tried where the artifact was made: of another instruction set, of another
# version. Where one divides by the input's scale and another multiplies by its inverse, an input within a rounding
# error of a half is read one level off. That moves an output by a fraction of a step, so that it is rounded to the next
# level at most, as a rule.
DEVICE_STEPS = 1.0
MORE_OFF = 1.5, 0.005
# Steps come back as floats: scale · levels is rounded.
STEP_SLACK = 1e-3
LEVELS_OFF = 2.5
USUAL_SHARE = 0.9
"""A level on the border may be the next one, which is seldom; another weight moves nearly every row."""


@dataclass(frozen=True)
class Reference:
    """What an artifact has to compute on the golden observations.

    Attributes:
        observations: float32 (n, observation_size), raw.
        outputs: float32 (n, result_size), by the numpy reference of the artifact's precision.
        own: references of which one has to be met within ``own_tolerance``; ``outputs`` is the first.
        own_tolerance: for each of them, (n, result_size) or what broadcasts to it, in the outputs' units.
        tolerance: largest allowed |output − outputs| on any device, (n, result_size).
        step: one step of each result's scale, (result_size,): the largest that squashing can make of it; None for a
            float artifact.
        most_off: share of all outputs that may be half a step or more off on a device; None where nothing is asked.
        usual: what all but a few (``USUAL_SHARE``) of the rows have to keep of ``outputs`` where the artifact is made,
            (result_size,); None where nothing is asked.
    """

    observations: Floats
    outputs: Floats
    own: tuple[Floats, ...]
    own_tolerance: tuple[Doubles, ...]
    tolerance: Doubles
    step: Doubles | None
    most_off: float | None = None
    usual: Doubles | None = None

    def describe(self, error: float, output: int) -> str:
        """Return an error of an output in words: in steps where there are steps."""
        return f"{error:.3g}" if self.step is None else f"{error / self.step[output]:.2f} steps ({error:.3g})"


def float_reference(
    spec: PolicySpec,
    weights: Weights,
    observations: Floats,
    outputs: Floats | None = None,
    precision: Precision = Precision.FP32,
) -> Reference:
    """Return the reference of a float artifact.

    Args:
        spec, weights: the policy.
        observations: raw.
        outputs: what was recorded for them when the policy was trained, where it was; else they are computed here.
        precision: of the artifact.
    """
    if outputs is None:
        outputs = forward_stored(spec, weights, precision, exact=True)(observations)
    stored = stored_weights(spec, weights, precision)
    tolerance = np.broadcast_to(float_tolerance(spec, stored, observations, precision), outputs.shape)
    usual = float_tolerance(spec, stored, observations) if precision is Precision.DYNAMIC else None
    return Reference(observations, outputs, (outputs,), (tolerance,), tolerance, None, usual=usual)


def integer_reference(spec: PolicySpec, network: IntegerNetwork, observations: Floats) -> Reference:
    """Return the reference of an int8 … int2 artifact, with the tolerance that the two ways of rounding make
    necessary."""
    trace = Trace()
    ways = (
        head_inputs(spec, network, observations, trace=trace),
        fixed_point_head_inputs(spec, network, observations),
        head_inputs(spec, network, observations, quantize_by_inverse),
        head_inputs(spec, with_float_tables(network), observations),
    )
    raw, level = [way[:, : spec.output_size] for way in ways], network.output_step
    spread = np.max([np.abs(ways[0].astype(np.float64) - other) for other in ways[1:]], axis=0)
    apart = spread[:, : spec.output_size].max(axis=0) / level
    floats = [index for index, layer in enumerate(network.layers) if layer.norm is not None or layer.cell is not None]
    # Each recurrent layer has such floats of its own, all layer normalisations together are as one.
    float_steps = max(len(spec.network.recurrences), 1) * NORM_STEPS if floats else 0.0
    own_steps = np.full(spec.output_size, OWN_STEPS + float_steps)
    rounding, wide = (
        _of_states(network, trace.gates, len(raw[0]), min(floats, default=0)),
        _of_states(network, trace.gates, len(raw[0])),
    )
    states = spread[:, spec.output_size :] + wide
    return Reference(
        observations,
        outputs=apply_head(spec, ways[0], exact=True),
        own=tuple(apply_head(spec, way, exact=True) for way in ways),
        own_tolerance=tuple(np.concatenate([_within(spec, way, own_steps * level), rounding], axis=1) for way in raw),
        tolerance=np.concatenate([_within(spec, raw[0], (apart + DEVICE_STEPS + STEP_SLACK) * level), states], axis=1),
        step=np.concatenate([output_steps(spec, network), wide.max(axis=0, initial=0.0)]),
        most_off=None if floats else _most_off(spread, level),
    )


def _of_states(network: IntegerNetwork, gates: dict[str, list[Floats]], rows: int, exact_up_to: int = -1) -> Doubles:
    """Return how far the next states (n, state_size) may be off: by the roundings of their programs, and from the layer
    ``exact_up_to`` + 1 on, whose levels may differ, by a level of each gate.

    Six gates at most make an element of a state: the sum of six errors is at most 2.5 times their root of squares.
    """
    errors = [np.zeros((rows, 0))]
    for index, layer in enumerate(network.layers):
        if layer.cell is None:
            continue
        gate_values, steps = gates[layer.name], (layer.cell.fed.scale, layer.output.scale, 0.0)
        exact = index <= exact_up_to
        spread = [np.full(gate.shape, 0.0 if exact else step**2) for gate, step in zip(gate_values, steps, strict=True)]
        factor = DEVIATIONS if exact else LEVELS_OFF
        errors.append(factor * np.sqrt(program_variance(layer.cell.steps, gate_values, spread)))
    return np.concatenate(errors, axis=1)


def _most_off(spread: Doubles, step: float) -> float:
    """Return a device rounds in one of these ways, so that none of its outputs differ, or those that differ between
    them; a weight that is another one moves many. Some more are granted to kernels that were not tried here."""
    return MORE_OFF[0] * float((spread > OWN_STEPS * step).mean()) + MORE_OFF[1]


def _within(spec: PolicySpec, raw: Floats, far: Doubles) -> Doubles:
    """Return how far ``far`` (m,) of the head's raw outputs (n, m), up or down, takes each output, (n, m), its rounding
    included; where a tanh is flat that is next to nothing."""
    part = far.astype(np.float32)
    middle = apply_head(spec, raw, True).astype(np.float64)
    moved: Doubles = np.max([np.abs(apply_head(spec, end, True) - middle) for end in (raw - part, raw + part)], axis=0)
    return moved + head_rounding(spec)


def output_steps(spec: PolicySpec, network: IntegerNetwork) -> Doubles:
    """Return one step of the head's levels, (output_size,), in each output's unit: the largest that squashing makes of
    it."""
    if not isinstance(spec.head, ContinuousHead):
        return np.full(spec.output_size, network.output_step)
    # |d tanh| and |d clip| are at most 1, then the gain
    return network.output_step * (np.array(spec.head.high) - np.array(spec.head.low)) / 2
