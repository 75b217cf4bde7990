"""Returns of the original, of the bundle and of its int8 artifact, on the same episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.convert.importers.chain import ForeignPolicy
from quarl.convert.importers.recordings import SEED, decider, flat
from quarl.policy.pilot import deciding
from quarl.policy.reference import IntegerNetwork, Weights, forward_float, forward_integer
from quarl.policy.spec import PolicySpec
from quarl.train.evaluate import difference
from quarl.train.intervals import mean_interval
from quarl.train.suites.episodes import Decide
from quarl.train.suites.task import Task


def compared_returns(
    policy: ForeignPolicy, spec: PolicySpec, weights: Weights, network: IntegerNetwork, task: Task, episodes: int
) -> dict[str, Any]:
    """Mean return of each on the task's first preset, with its interval, and its paired difference from the original.

    The original is flown by the steps as they were read; the integers are computed by the reference that every runtime
    is held to when the artifact is made.
    """
    each: dict[str, Decide] = {
        "original": decider(policy),
        "fp32": deciding(spec, lambda rows: forward_float(spec, weights, flat(rows))),
        "int8": deciding(spec, lambda rows: forward_integer(spec, network, flat(rows))),
    }
    found: dict[str, Any] = {}
    reference: list[float] = []
    for name, decide in each.items():
        result = task.evaluate(decide, episodes, SEED, task.presets[0])
        reference = reference or result.different
        mean, interval = difference(result.different, reference)
        found[name] = {
            "episodes": len(result.different),
            "mean_return": float(np.mean(result.different)),
            "return_interval": mean_interval(result.different),
            "minus_original": mean,
            "minus_original_interval": interval,
        }
    return found
