"""Whether an artifact still acts as the policy that was trained: it may compute exactly what its weights say, and the
weights, after the rounding or on a poor calibration set, may say something else.

The parity gate (``convert.parity``) asks whether a runtime computes what the integers mean; here is asked what the
integers are worth. Below ``policy.ladder.FLOOR`` an artifact is written and deployed only when the user accepts it.
"""

from __future__ import annotations

import numpy as np

from quarl.policy.reference import choose_actions, share_of_same_actions
from quarl.policy.spec import ContinuousHead, PolicySpec, output_spans

# An output that hardly moves explains no variance of its own: it is measured against so much of its range.
SMALLEST_DEVIATION = 0.05


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
