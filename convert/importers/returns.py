"""Returns of the original and of the bundle on the same episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quarl.convert.importers.chain import ForeignPolicy
from quarl.convert.importers.recordings import SEED, decider, flat
from quarl.policy.pilot import deciding
from quarl.policy.reference import Weights, forward_float
from quarl.policy.spec import PolicySpec
from quarl.train.evaluate import difference
from quarl.train.intervals import mean_interval
from quarl.train.suites.episodes import Decide
from quarl.train.suites.task import Task


def compare_returns(
    policy: ForeignPolicy, spec: PolicySpec, weights: Weights, task: Task, episodes: int
) -> dict[str, Any]:
    """Mean return of each on the task's first preset, with its interval, and its difference from the original's.

    The original is flown by the steps as they were read.
    """
    deciders: dict[str, Decide] = {
        "original": decider(policy),
        "fp32": deciding(spec, lambda rows: forward_float(spec, weights, flat(rows))),
    }
    report: dict[str, Any] = {}
    reference: list[float] = []
    for name, decide in deciders.items():
        result = task.evaluate(decide, episodes, SEED, task.presets[0])
        reference = reference or result.different
        mean, interval = difference(result.different, reference, task.paired)
        report[name] = {
            "episodes": len(result.different),
            "mean_return": float(np.mean(result.different)),
            "return_interval": mean_interval(result.different),
            "minus_original": mean,
            "minus_original_interval": interval,
        }
    return report
