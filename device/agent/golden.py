"""The golden vectors: executed one by one and held to what the numpy reference of the same precision computes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from quarl.device.agent.executing import Executor, Input, choice_values, results
from quarl.device.agent.protocol import AgentError, ErrorCode
from quarl.policy.reading import ArtifactEntry, ExpectedRows, GoldenRows
from quarl.policy.spec import PolicySpec, RuntimeName

SMALLEST = sys.float_info.min


def check_golden(
    spec: PolicySpec,
    entry: ArtifactEntry,
    executor: Executor,
    observations: Sequence[Input],
    expected: ExpectedRows,
    golden: GoldenRows,
    runtime: RuntimeName,
) -> dict[str, Any]:
    """Execute every golden vector and compare it with the numpy reference of this precision.

    Args:
        observations: the golden ones as the executor takes them.
        expected: outputs of the reference, and how far from them they may be.
        golden: the actions of the float policy.

    Returns:
        The ``golden`` of the protocol's reply to ``load``.

    Raises:
        AgentError: GOLDEN: names the vector, what was computed and what was expected.
    """
    worst, failed, off, wrong = (-1.0, 0, 0, 0.0, 0.0), 0, 0, None
    alike, agreeing = 0, 0
    halves = [step / 2 for step in entry.output_step or ()]
    rows = zip(observations, expected.outputs.floats(), expected.tolerance.floats(), golden.decisions())
    for vector, (observation, wanted, tolerance, trained) in enumerate(rows):
        action, outputs = choice_values(executor.decide(observation)), results(executor)
        errors = [_error(*pair) for pair in zip(outputs, wanted)]
        # The output that is nearest to being refused, or farthest beyond; the least positive: where none may differ.
        shares = [error / max(allowed, SMALLEST) for error, allowed in zip(errors, tolerance)]
        if (share := max(shares)) > worst[0]:
            output = shares.index(share)
            worst = share, vector, output, errors[output], tolerance[output]
        failed += any(map(float.__gt__, errors, tolerance))
        off += sum(map(float.__gt__, errors, halves))
        if wrong is None and action != (chosen := _choose_action(spec, outputs)):
            wrong = vector, action, chosen
        alike += _agree(spec, action, _choose_action(spec, wanted.tolist()), tolerance)
        agreeing += _agree(spec, action, trained, tolerance)
    _, vector, output, error, allowed = worst
    count = len(observations)
    if error > allowed:
        computed = f"an error of {_in_words(error, entry, output)}" if math.isfinite(error) else "NaN or infinity"
        raise AgentError(
            ErrorCode.GOLDEN,
            f"{entry.file} computes wrong outputs in {runtime.value} on this device: golden vector {vector}, output "
            f"{output} has {computed}, at most {_in_words(allowed, entry, output)} is allowed. {failed} of {count} "
            "vectors fail.",
            "Load another runtime or precision, or convert the policy again.",
        )
    if entry.most_off is not None and halves and (part := off / (count * len(halves))) > entry.most_off:
        raise AgentError(
            ErrorCode.GOLDEN,
            f"{entry.file} computes wrong outputs in {runtime.value} on this device: {part:.2%} of the golden "
            f"outputs differ by a quantization step, at most {entry.most_off:.2%} may: its weights are not those "
            "that were converted.",
            "Deploy again, or convert the policy again.",
        )
    if wrong is not None:
        raise AgentError(
            ErrorCode.GOLDEN,
            f"{entry.file} chooses the wrong action in {runtime.value} on this device: on golden vector {wrong[0]} "
            f"its action is {wrong[1]}, but its own outputs choose {wrong[2]}.",
            "Load another runtime or precision, or convert the policy again.",
        )
    return {
        "vectors": count,
        "max_error": error,
        "max_error_steps": None if not entry.output_step else error / entry.output_step[output],
        "tolerance": allowed,
        "action_agreement": alike / count,
        "fp32_agreement": agreeing / count,
    }


def _agree(spec: PolicySpec, action: Any, other: Any, tolerance: Sequence[float]) -> bool:
    if spec.is_discrete:
        return bool(action == other)
    return all(abs(a - b) <= allowed for a, b, allowed in zip(action, other, tolerance))


def _error(computed: float, wanted: float) -> float:
    return abs(computed - wanted) if math.isfinite(computed) else math.inf


def _choose_action(spec: PolicySpec, made: list[float]) -> Any:
    """Return what results choose."""
    return spec.head.choose(made[: spec.output_size])


def _in_words(error: float, entry: ArtifactEntry, output: int) -> str:
    """Return an error of an output in its unit, and in steps of its scale where it has one."""
    steps = f" ({error / entry.output_step[output]:.3f} steps)" if entry.output_step else ""
    return f"{error:.5g}{steps}"
