"""The parity gate: no artifact is listed in a manifest before every runtime that is named there has executed it.

Loading is not running: a graph can load and be silently wrong. So each artifact runs on all golden observations in each
runtime, and is held to the policy's shapes and types, to no NaN or infinity in any output, to action = first argmax of
its own logits, and to its reference within the reference's own tolerance (``convert.reference``).
"""

from __future__ import annotations

import numpy as np

from quarl.convert.executor import ExecutionResult
from quarl.convert.reference import USUAL_SHARE, Reference
from quarl.device.agent.golden import SMALLEST
from quarl.policy.errors import PolicyError
from quarl.policy.quantize import Floats
from quarl.policy.reading import Parity
from quarl.policy.reference import choose_actions, share_of_same_actions
from quarl.policy.spec import PolicySpec, RuntimeName


class ParityError(PolicyError):
    """An artifact failed in a runtime; nothing was written."""


class NoRuntimeError(ParityError):
    """No runtime that executes an artifact's format is installed; nothing was written.

    Attributes:
        format: of the artifact.
    """


def check(
    runtime: RuntimeName, artifact: str, spec: PolicySpec, execution: ExecutionResult, reference: Reference
) -> Parity:
    """Hold what a runtime made of the golden observations to the reference.

    Raises:
        ParityError: names the artifact, the runtime, the golden vector, the error and the tolerance.
    """
    where = f"{artifact} in {runtime.value} {execution.version}"
    outputs = _validate_outputs(where, spec, execution, reference.outputs.shape)
    # (references, n, output_size): how far each output is from each reference, and how far of what is allowed
    errors, limits = np.stack([np.abs(outputs - own) for own in reference.own]), np.stack(reference.own_tolerance)
    shares = errors / np.maximum(limits, SMALLEST)
    best = int(shares.max(axis=(1, 2)).argmin())
    vector, output = divmod(int(shares[best].argmax()), outputs.shape[1])
    error, allowed = float(errors[best, vector, output]), float(limits[best, vector, output])
    if error > allowed:
        raise ParityError(
            f"{where}: golden vector {vector}, output {output} must be within "
            f"{reference.describe(allowed, output)} of the reference, got {reference.describe(error, output)}. "
            "It was not written.",
            code="golden_mismatch",
        )
    if reference.usual is not None:
        share = float((errors[0] <= reference.usual).all(axis=1).mean())
        if share < USUAL_SHARE:
            raise ParityError(
                f"{where}: {USUAL_SHARE:.0%} of the golden vectors must be within the rounding of floats of the "
                f"reference, got {share:.1%}. It was not written.",
                code="golden_mismatch",
            )
    worst = float(errors[0].max())
    agreement = 1.0
    if spec.is_discrete:
        agreement = share_of_same_actions(execution.actions, choose_actions(spec, reference.outputs))
    steps = None if reference.step is None else round(float((errors[0] / reference.step).max()), 3)
    return Parity(execution.version, worst, steps, agreement)


def _validate_outputs(where: str, spec: PolicySpec, execution: ExecutionResult, shape: tuple[int, ...]) -> Floats:
    """Return the artifact's outputs, (n, output_size), after all checks that need no reference."""
    outputs, actions = execution.outputs, execution.actions
    if outputs.shape != shape or outputs.dtype != np.float32:
        raise ParityError(
            f"{where}: the outputs must be float32{list(shape)} for {shape[0]} golden vectors, "
            f"got {outputs.dtype}{list(outputs.shape)}. It was not written."
        )
    broken = ~np.isfinite(outputs).all(axis=1)
    if broken.any():
        raise ParityError(f"{where}: golden vector {int(broken.argmax())} gives NaN or infinity. It was not written.")
    wanted = choose_actions(spec, outputs)
    if actions.shape != wanted.shape or actions.dtype.kind != wanted.dtype.kind:
        raise ParityError(
            f"{where}: the actions must be {wanted.dtype}{list(wanted.shape)}, "
            f"got {actions.dtype}{list(actions.shape)}. It was not written."
        )
    wrong = (actions != wanted).reshape(len(outputs), -1).any(axis=1)
    if wrong.any():
        vector = int(wrong.argmax())
        raise ParityError(
            f"{where}: golden vector {vector}: the action must be {wanted[vector]}, as its outputs choose, "
            f"got {actions[vector]}. It was not written."
        )
    return outputs
