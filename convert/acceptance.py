"""Whether an artifact still acts as the policy that was trained: it may compute exactly what its weights say, and the
weights, after the rounding or on a poor calibration set, may say something else.

The parity gate (``convert.parity``) asks whether a runtime computes what the integers mean; here is asked what the
integers are worth. Below FLOOR an artifact is only written when the user accepts it.
"""

from __future__ import annotations

import numpy as np

from quarl.policy.errors import PolicyError
from quarl.policy.reference import choose_actions, share_of_same_actions
from quarl.policy.simulate import find_trained_quantizers
from quarl.policy.spec import ContinuousHead, PolicySpec, Recipe, output_spans

FLOOR = 0.75  # the help of --accept calls it three quarters
"""Below the int8 artifact of every committed policy, above a policy with another one's weights."""
# An output that hardly moves explains no variance of its own: it is measured against so much of its range.
SMALLEST_DEVIATION = 0.05


class AcceptanceError(PolicyError):
    """An artifact's agreement with the policy is below the threshold; nothing was written."""


def agreement(spec: PolicySpec, outputs: np.ndarray, wanted: np.ndarray) -> float:
    """Return how far results (n, result_size) act as the policy's own on the same observations, 1 at most.

    Of a discrete head: the fraction of observations with the same action. Of a continuous one: the least, over its
    outputs, of the explained share of the variance,

        1 − mean (y − w)² / max(var w, (SMALLEST_DEVIATION · span)²),   span: policy.spec.output_spans

    which is 0 or less for an output that is stuck.
    """
    if not isinstance(spec.head, ContinuousHead):
        return share_of_same_actions(*(choose_actions(spec, values) for values in (outputs, wanted)))
    outputs, wanted = outputs[:, : spec.output_size], wanted[:, : spec.output_size]
    width = np.array(output_spans(spec, float(wanted.min()), float(wanted.max())))
    own = wanted.astype(np.float64)
    variance = np.maximum(own.var(axis=0), (SMALLEST_DEVIATION * width) ** 2)
    return float((1.0 - ((outputs - own) ** 2).mean(axis=0) / variance).min())


def require_min_agreement(
    spec: PolicySpec, file: str, recipe: Recipe | None, found: float, warnings: tuple[str, ...]
) -> None:
    """Refuse an artifact whose agreement with the policy is below the floor.

    One of the width that the policy was trained with is what was trained, and its float weights are not.

    Raises:
        AcceptanceError: says how much it has, what is allowed, and what may be wrong.
    """
    if found >= FLOOR or (recipe is not None and find_trained_quantizers(spec, recipe.bits) is not None):
        return
    measure = "same actions" if spec.is_discrete else "explained variance of the worst output"
    reasons = f" Its calibration: {' '.join(warnings)}" if warnings else ""
    raise AcceptanceError(
        f"{spec.name}/{file}: agreement with the trained policy is {found:.1%} ({measure}, on golden observations), "
        f"below the threshold of {FLOOR:.0%}. It was not written.{reasons}",
        "Use more bits, train with --quantization-method quantization-aware, or write it anyway: --accept "
        "(make: ACCEPT=1).",
    )
