"""Opaque programs: policies that no layers of the contract express, executed by onnxruntime.

Such a program is one ONNX graph from ``observation`` (and ``state``) to the head's outputs (and ``next_state``), with
the same interface as every exported artifact. It is the bundle's only weight; the fp32 artifact is the same bytes.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from quarl.policy.errors import PolicyError
from quarl.policy.exact import Doubles, Floats
from quarl.policy.spec import PolicySpec

TOLERANCE = 1e-4
"""Share of the largest |result| by which two executions of one graph in float32 may differ; in another order of sums
they differ by about 1e-6."""
MOST_SESSIONS = 4

_sessions: list[tuple[np.ndarray, Any]] = []


class ProgramError(PolicyError):
    """onnxruntime does not execute an opaque program."""


def execute(spec: PolicySpec, program: np.ndarray, observations: Floats) -> Floats:
    """Execute an opaque program on raw observations, one at a time and with no operators fused.

    Args:
        spec: the policy.
        program: the graph's bytes, uint8 (n,).
        observations: float32 (batch, observation_size), the states last.

    Returns:
        Results, float32 (batch, result_size), the next states behind the outputs.

    Raises:
        ProgramError: onnxruntime refuses the graph or the observation.
    """
    results = np.empty((len(observations), spec.result_size), np.float32)
    try:
        session = _session(program)
        names = [value.name for value in session.get_inputs()]
        for index, row in enumerate(observations):
            feeds = {names[0]: row[None, : spec.input_size]}
            if spec.state_size:
                feeds[names[1]] = row[None, spec.input_size :]
            outputs = session.run(None, feeds)
            results[index, : spec.output_size] = outputs[0][0]
            results[index, spec.output_size :] = outputs[1][0] if spec.state_size else ()
    except Exception as error:  # onnxruntime documents no exception classes
        raise ProgramError(f"onnxruntime cannot execute policy {spec.name!r} ({error}).") from error
    return results


def tolerance(results: np.ndarray) -> Doubles:
    """Return how far another execution in float32 may be from these results (n, result_size): (result_size,)."""
    return TOLERANCE * np.abs(results.astype(np.float64)).max(axis=0)


def _session(program: np.ndarray) -> Any:
    for known, session in _sessions:
        if known is program:
            return session
    onnxruntime = importlib.import_module("onnxruntime")
    onnxruntime.set_default_logger_severity(4)  # what it warns of is the file's
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(program.tobytes(), options, providers=["CPUExecutionProvider"])
    _sessions[:] = [*_sessions[1 - MOST_SESSIONS :], (program, session)]
    return session
