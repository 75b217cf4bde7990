"""Returns of the original, of the bundle and of its artifacts, on the same episodes; and which of them keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quarl.convert.importers.chain import Floats, ForeignPolicy
from quarl.convert.importers.recordings import SEED, decider, flat
from quarl.convert.pipeline import half_weights
from quarl.policy.pilot import deciding
from quarl.policy.reference import Weights, forward_float
from quarl.policy.spec import PolicySpec
from quarl.train.evaluate import difference
from quarl.train.intervals import mean_interval
from quarl.train.suites.episodes import Decide
from quarl.train.suites.task import Task


def compare_returns(
    policy: ForeignPolicy,
    spec: PolicySpec,
    weights: Weights,
    int8: Callable[[Floats], Floats],
    task: Task,
    episodes: int,
) -> dict[str, Any]:
    """Mean return of each on the task's first preset, with its interval, and its difference from the original's.

    The original is flown by the steps as they were read; the integers are computed by the reference that every runtime
    is held to when the artifact is made.
    """
    half = half_weights(weights)
    deciders: dict[str, Decide] = {
        "original": decider(policy),
        "fp32": deciding(spec, lambda rows: forward_float(spec, weights, flat(rows))),
        "int8": deciding(spec, lambda rows: int8(flat(rows))),
        "fp16": deciding(spec, lambda rows: forward_float(spec, half, flat(rows))),  # asked where int8 fell
    }
    report: dict[str, Any] = {}
    reference: list[float] = []
    names = ["original", "fp32", "int8"]
    for name in names:
        result = task.evaluate(deciders[name], episodes, SEED, task.presets[0])
        reference = reference or result.different
        mean, interval = difference(result.different, reference, task.paired)
        report[name] = {
            "episodes": len(result.different),
            "mean_return": float(np.mean(result.different)),
            "return_interval": mean_interval(result.different),
            "minus_original": mean,
            "minus_original_interval": interval,
        }
        if name == "int8" and fell(report["int8"]):
            names.append("fp16")
    return report


def fell(row: Mapping[str, Any]) -> bool:
    """Return whether the return is lower than the original's, beyond the interval of the difference."""
    interval = row["minus_original_interval"]
    return interval is not None and bool(interval[1] < 0.0)


def describe_int8_loss(returns: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence where int8 does not keep the original's return."""
    if not fell(returns["int8"]):
        return ()
    less = -returns["int8"]["minus_original"]
    return (f"int8 loses {less:.4g} of the return; {advise_bits(returns)} bits keep it.",)


def advise_bits(returns: Mapping[str, Any]) -> int:
    """Fewest bits of 8, 16 and 32 that keep the original's return; 8 where no returns were compared."""
    for bits, name in ((8, "int8"), (16, "fp16")):
        if not returns or (name in returns and not fell(returns[name])):
            return bits
    return 32
