"""What an artifact has to compute, and how far from it may be right: the whole analysis of errors.

* fp32 and fp16: the numpy reference on the same weights (for fp16 rounded to half), within the error that float32
  additions in another order can make (:func:`float_tolerance`).
* int8 … int2: one of the two exact integer references, float multiplier or fixed point (``convert.rounding``), to the
  level. Measured: policies I, II and III, int8 … int2, all golden vectors, the three runtimes on x86-64: zero steps;
  convolutions likewise. With a layer normalisation in float between the integers: within one step of them, for a float
  that lies on the border of two levels may get either (``NORM_STEPS``).

What a device then compares with (``ArtifactEntry.tolerance``) is wider: by what separates the two integer references on
the golden observations, for the device may round the other way, and by one step, for kernels that were not tried here
(``DEVICE_STEPS``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convert.rounding import forward_fixed_point
from policy.float_errors import float_tolerance
from policy.integer import IntegerNetwork, forward_integer
from policy.network import Weights, forward_float
from policy.quantization import Floats
from policy.spec import ContinuousHead, PolicySpec

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
# Steps come back as floats: scale · levels is rounded.
STEP_SLACK = 1e-3


@dataclass(frozen=True)
class Reference:
    """What an artifact has to compute on the golden observations.

    Attributes:
        observations: float32 (n, observation_size), raw.
        outputs: float32 (n, output_size), by the numpy reference of the artifact's precision.
        own: references of which one has to be met within ``own_tolerance``; ``outputs`` is the first.
        own_tolerance: in the unit of the outputs.
        tolerance: largest allowed |output − outputs| on any device.
        step: one step of the output's scale; None for a float artifact.
    """

    observations: Floats
    outputs: Floats
    own: tuple[Floats, ...]
    own_tolerance: float
    tolerance: float
    step: float | None

    def describe(self, error: float) -> str:
        """An error in words: in steps where there are steps."""
        return f"{error:.3g}" if self.step is None else f"{error / self.step:.2f} steps ({error:.3g})"


def float_reference(spec: PolicySpec, weights: Weights, observations: Floats) -> Reference:
    """The reference of an fp32 artifact; of an fp16 one when ``weights`` are those that its half weights stand for."""
    outputs = forward_float(spec, weights, observations)
    tolerance = float(float_tolerance(spec, weights, observations).max())
    return Reference(observations, outputs, (outputs,), tolerance, tolerance, None)


def integer_reference(spec: PolicySpec, network: IntegerNetwork, observations: Floats) -> Reference:
    """The reference of an int8 … int2 artifact, with the tolerance that the two ways of rounding make necessary."""
    step = action_step(spec, network)
    own = forward_integer(spec, network, observations), forward_fixed_point(spec, network, observations)
    apart = float(np.abs(own[0] - own[1]).max())
    slack = STEP_SLACK * step
    normalised = any(layer.norm is not None for layer in network.layers)
    own_steps = OWN_STEPS + NORM_STEPS if normalised else OWN_STEPS
    return Reference(observations, own[0], own, own_steps * step, apart + DEVICE_STEPS * step + slack, step)


def action_step(spec: PolicySpec, network: IntegerNetwork) -> float:
    """One step of the head's levels, in the unit of the outputs: the largest that squashing and gain can make of it."""
    if not isinstance(spec.head, ContinuousHead):
        return network.output_step
    # |d tanh| and |d clip| are at most 1
    return network.output_step * _widest(spec.head) / 2


def _widest(head: ContinuousHead) -> float:
    return max(high - low for low, high in zip(head.low, head.high, strict=True))
