"""The golden vectors: executed one by one and held to what the numpy reference of the same precision computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from device.agent.protocol import AgentError, ErrorCode
from device.agent.runtimes import Executor, Floats
from policy.bundle import Expected
from policy.manifest import ArtifactEntry
from policy.network import choose_actions
from policy.spec import PolicySpec, RuntimeName

SMALLEST = float(np.finfo(np.float64).tiny)


def decide_all(executor: Executor, observations: Iterable[Floats]) -> tuple[Floats, np.ndarray]:
    """Decide on raw observations, each float32 (1, N), one at a time.

    Returns:
        Outputs, float32 (n, A), and actions: int64 (n,) of a discrete head, float32 (n, A) of a continuous one.
    """
    outputs, actions = [], []
    for observation in observations:
        actions.append(executor.decide(observation))
        outputs.append(executor.outputs())
    return np.stack(outputs), np.array(actions)


def first_wrong_action(spec: PolicySpec, outputs: Floats, actions: np.ndarray) -> int | None:
    """The first vector whose action is not the one that its own outputs choose; None where there is none."""
    wrong = (actions != choose_actions(spec, outputs)).reshape(len(outputs), -1).any(axis=1)
    return int(wrong.argmax()) if wrong.any() else None


def check_golden(
    spec: PolicySpec,
    entry: ArtifactEntry,
    executor: Executor,
    observations: Iterable[Floats],
    expected: Expected,
    float_actions: np.ndarray,
    runtime: RuntimeName,
) -> dict[str, Any]:
    """Execute every golden vector and compare it with the numpy reference of this precision.

    Args:
        observations: each float32 (1, N).
        expected: outputs of the reference, and how far from them they may be.
        float_actions: (n,) or (n, A) actions of the float policy.

    Returns:
        The ``golden`` of the protocol's reply to ``load``.

    Raises:
        AgentError: GOLDEN: names the vector, what was computed and what was expected.
    """
    outputs, actions = decide_all(executor, observations)
    finite = np.isfinite(outputs)
    errors = np.where(finite, np.abs(outputs.astype(np.float64) - expected.outputs), np.inf)
    tolerance = expected.tolerance
    # The output that is nearest to being refused, or farthest beyond; the least positive float: where none may differ.
    worst, output = divmod(int((errors / np.maximum(tolerance, SMALLEST)).argmax()), errors.shape[1])
    error, allowed = float(errors[worst, output]), float(tolerance[worst, output])
    if error > allowed:
        failed = int((errors > tolerance).any(axis=1).sum())
        computed = f"an error of {_in_words(error, entry, output)}" if finite[worst, output] else "NaN or infinity"
        raise AgentError(
            ErrorCode.GOLDEN,
            f"{entry.file} computes wrongly in {runtime.value} on this device: golden vector {worst}, output {output} "
            f"has {computed}, allowed is {_in_words(allowed, entry, output)}. {failed} of {len(errors)} vectors fail.",
            "Load another runtime or precision, or convert the policy again.",
        )
    if entry.most_off is not None and entry.output_step is not None:
        off = float((errors > np.array(entry.output_step) / 2).mean())
        if off > entry.most_off:
            raise AgentError(
                ErrorCode.GOLDEN,
                f"{entry.file} computes wrongly in {runtime.value} on this device: {off:.2%} of the golden outputs are "
                f"a step off, allowed are {entry.most_off:.2%}: its weights are not those that were converted.",
                "Deploy again, or convert the policy again.",
            )
    wrong = first_wrong_action(spec, outputs, actions)
    if wrong is not None:
        raise AgentError(
            ErrorCode.GOLDEN,
            f"{entry.file} chooses wrongly in {runtime.value} on this device: on golden vector {wrong} its action is "
            f"{actions[wrong].tolist()}, but its own outputs say {choose_actions(spec, outputs)[wrong].tolist()}.",
            "Load another runtime or precision, or convert the policy again.",
        )

    def agreement(others: np.ndarray) -> float:
        if spec.is_discrete:
            return float((actions == others).mean())
        return float((np.abs(actions.astype(np.float64) - others) <= tolerance).all(axis=1).mean())

    return {
        "vectors": len(errors),
        "max_error": error,
        "max_error_steps": None if not entry.output_step else error / entry.output_step[output],
        "tolerance": allowed,
        "action_agreement": agreement(choose_actions(spec, expected.outputs)),
        "fp32_agreement": agreement(float_actions),
    }


def _in_words(error: float, entry: ArtifactEntry, output: int) -> str:
    """An error of an output in its unit, and in steps of its scale where it has one."""
    steps = f" ({error / entry.output_step[output]:.3f} steps)" if entry.output_step else ""
    return f"{error:.5g}{steps}"
