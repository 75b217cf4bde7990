"""The parity gate: no artifact is listed in a manifest before every runtime that is named there has executed it.

Loading is not running: a graph can load and be silently wrong. So each artifact runs on all golden observations in each
runtime, and is held to

* the policy's shapes and types, and no NaN or infinity in any output;
* action = first argmax of the artifact's own logits;
* fp32 and fp16: the numpy reference on the same weights (for fp16 rounded to half), within the error that float32
  additions in another order can make (``convert.float_error``);
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

from convert.executor import Execution
from convert.float_error import float_tolerance
from convert.rounding import action_step, forward_fixed_point
from policy.errors import PolicyError
from policy.integer import IntegerNetwork, forward_integer
from policy.manifest import Parity
from policy.network import Weights, choose_actions, forward_float
from policy.quantization import Floats
from policy.spec import PolicySpec, RuntimeName

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


class ParityError(PolicyError):
    """An artifact failed in a runtime; nothing was written."""


@dataclass(frozen=True)
class Reference:
    """What an artifact has to compute on the golden observations.

    Attributes:
        outputs: float32 (n, output_size), by the numpy reference of the artifact's precision.
        own: references of which one has to be met within ``own_tolerance``; ``outputs`` is the first.
        own_tolerance: in the unit of the outputs.
        tolerance: largest allowed |output − outputs| on any device.
        step: one step of the output's scale; None for a float artifact.
    """

    outputs: Floats
    own: tuple[Floats, ...]
    own_tolerance: float
    tolerance: float
    step: float | None

    def describe(self, error: float) -> str:
        """An error in words: in steps where there are steps."""
        return f"{error:.3g}" if self.step is None else f"{error / self.step:.2f} steps ({error:.3g})"


def float_reference(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> Reference:
    """The reference of an fp32 artifact; of an fp16 one when ``weights`` are those that its half weights stand for."""
    outputs = forward_float(spec, weights, observations)
    tolerance = float_tolerance(spec, weights, observations)
    return Reference(outputs, (outputs,), tolerance, tolerance, None)


def integer_reference(spec: PolicySpec, network: IntegerNetwork, observations: np.ndarray) -> Reference:
    """The reference of an int8 … int2 artifact, with the tolerance that the two ways of rounding make necessary."""
    step = action_step(spec, network)
    own = forward_integer(spec, network, observations), forward_fixed_point(spec, network, observations)
    apart = float(np.abs(own[0] - own[1]).max())
    slack = STEP_SLACK * step
    normalised = any(layer.norm is not None for layer in network.layers)
    own_steps = OWN_STEPS + NORM_STEPS if normalised else OWN_STEPS
    return Reference(own[0], own, own_steps * step, apart + DEVICE_STEPS * step + slack, step)


def check(runtime: RuntimeName, artifact: str, spec: PolicySpec, execution: Execution, reference: Reference) -> Parity:
    """Hold what a runtime made of the golden observations to the reference.

    Raises:
        ParityError: names the artifact, the runtime, the golden vector, the error and the tolerance.
    """
    where = f"{artifact} in {runtime.value} {execution.version}"
    outputs = _checked_outputs(where, spec, execution, len(reference.outputs))
    # (references, n): largest error of each golden vector against each reference
    errors = np.stack([np.abs(outputs - own).max(axis=1) for own in reference.own])
    best = int(errors.max(axis=1).argmin())
    vector, error = int(errors[best].argmax()), float(errors[best].max())
    if error > reference.own_tolerance:
        raise ParityError(
            f"{where}: golden vector {vector} is off by {reference.describe(error)}; "
            f"allowed are {reference.describe(reference.own_tolerance)}. Nothing was written."
        )
    worst = float(errors[0].max())
    agreement = 1.0
    if spec.is_discrete:
        agreement = float(np.mean(execution.actions == choose_actions(spec, reference.outputs)))
    steps = None if reference.step is None else round(worst / reference.step, 3)
    return Parity(execution.version, worst, steps, agreement)


def _checked_outputs(where: str, spec: PolicySpec, execution: Execution, vectors: int) -> Floats:
    """The artifact's outputs, (n, output_size), after all that can be said without a reference."""
    outputs, actions = execution.outputs, execution.actions
    if outputs.shape != (vectors, spec.output_size) or outputs.dtype != np.float32:
        raise ParityError(
            f"{where}: the outputs are {outputs.dtype}{list(outputs.shape)}, "
            f"not float32{[vectors, spec.output_size]} for {vectors} golden vectors. Nothing was written."
        )
    broken = ~np.isfinite(outputs).all(axis=1)
    if broken.any():
        raise ParityError(f"{where}: golden vector {int(broken.argmax())} gives NaN or infinity. Nothing was written.")
    wanted = choose_actions(spec, outputs)
    if actions.shape != wanted.shape or actions.dtype.kind != wanted.dtype.kind:
        raise ParityError(
            f"{where}: the actions are {actions.dtype}{list(actions.shape)}, not {wanted.dtype}{list(wanted.shape)}. "
            "Nothing was written."
        )
    wrong = (actions != wanted).reshape(vectors, -1).any(axis=1)
    if wrong.any():
        vector = int(wrong.argmax())
        raise ParityError(
            f"{where}: golden vector {vector}: the action {actions[vector]} is not that of its own outputs, "
            f"{wanted[vector]}. Nothing was written."
        )
    return outputs
