"""Artifacts of opaque programs: the ONNX graph itself, with half weights, or quantized by onnxruntime's own tool.

No layer of such a policy is known here, so int8 is onnxruntime's static quantization in QDQ form: what multiplies by
weights (MatMul, Gemm, Conv) takes int8, everything else stays float. What such an artifact has to compute is the same
graph executed node by node in float, with nothing fused (:mod:`policy.opaque`): the runtimes fuse it into integer
kernels, and are held to it within four int8 steps of each output.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.interface import OBSERVATION, STATE
from quarl.convert.reference import Reference
from quarl.device.agent.graph_executors import onnx_session_options
from quarl.device.agent.runtimes import import_runtime
from quarl.policy.bundle import Contents
from quarl.policy.errors import QuantizationError
from quarl.policy.opaque import execute, tolerance
from quarl.policy.quantize import Floats, to_fp16
from quarl.policy.spec import ArtifactFormat, PolicySpec, Precision, RuntimeName

PRECISIONS = Precision.FP32, Precision.FP16, Precision.INT8
MULTIPLYING = ("Conv", "Gemm", "MatMul")
"""Operators that int8 is for: the others cost no time that integers would save, and lose digits."""
OWN_STEPS, DEVICE_STEPS = 4.0, 5.0
"""An element on the border of two levels may get either in a fused kernel, and moves what lies behind it."""
LEVELS = 255
PER_CHANNEL_OPSET = 13
"""From here on DequantizeLinear takes a scale for each channel."""
SCHEME = (
    "by onnxruntime's static quantization (QDQ): weights of Conv, Gemm and MatMul symmetric per output channel, "
    "8 bits; their activations affine per tensor, 8 bits, ranges from recorded rollouts; everything else float32"
)


def impossible(spec: PolicySpec, artifact_format: ArtifactFormat, precision: Precision = Precision.INT8) -> str:
    """Return why a policy has no such artifact; empty where it has."""
    opaque = spec.network.opaque
    if not artifact_format.expresses(precision):
        return f"{precision.value} artifacts are of the native engine alone, got {artifact_format.value}."
    if opaque is None or (artifact_format is ArtifactFormat.ONNX and precision in PRECISIONS):
        return ""
    return (
        f"policy {spec.name!r} is an opaque program, which only onnxruntime executes, in fp32, fp16 and int8: "
        f"{opaque.reason}"
    )


def require_possible(spec: PolicySpec, precision: Precision) -> None:
    """Raise QuantizationError if no runtime executes a policy in this precision."""
    reasons = [impossible(spec, form, precision) for form in ArtifactFormat]
    if all(reasons):
        raise QuantizationError(reasons[-1], "Type --bits 32, 16 or 8.")


def build(spec: PolicySpec, program: np.ndarray, calibration: Floats, precision: Precision) -> bytes:
    """Return the artifact of an opaque program in a precision.

    Args:
        spec, program: the policy.
        calibration: raw observations (n, observation_size), for int8.
        precision: one of PRECISIONS.

    Raises:
        QuantizationError: there is nothing in the graph that int8 is for.
    """
    require_possible(spec, precision)
    if precision is Precision.FP32:
        return program.tobytes()
    if precision is Precision.FP16:
        return with_half_weights(program)
    return _quantize_program(spec, program, calibration)


def reference(spec: PolicySpec, data: bytes, contents: Contents, precision: Precision) -> Reference:
    """Return what an artifact of an opaque program has to compute on the golden observations."""
    rows, golden = contents.golden.observations, contents.golden.outputs
    outputs = golden if precision is Precision.FP32 else execute(spec, np.frombuffer(data, np.uint8), rows)
    rounding = np.broadcast_to(np.maximum(tolerance(outputs), np.finfo(np.float32).tiny), outputs.shape)
    if precision is not Precision.INT8:
        return Reference(rows, outputs, (outputs,), (rounding,), rounding, None)
    span = np.ptp(outputs[:, : spec.output_size]) if spec.is_discrete else np.ptp(outputs, axis=0)
    step = np.maximum(np.broadcast_to(span, outputs.shape[1:]) / LEVELS, rounding[0])
    own, device = (np.broadcast_to(steps * step, outputs.shape) for steps in (OWN_STEPS, DEVICE_STEPS))
    return Reference(rows, outputs, (outputs,), (own,), device, step)


def with_half_weights(program: np.ndarray) -> bytes:
    """Return a graph whose float32 tensors are stored as IEEE half, and widened where it begins."""
    model = onnx.load_model_from_string(program.tobytes())
    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims, dtype=int) < 2:
            continue
        half, name = to_fp16(numpy_helper.to_array(tensor)), tensor.name
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}/half"))
        casts.append(helper.make_node("Cast", [tensor.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    data: bytes = model.SerializeToString()
    return data


class _Rows:
    """Observations as onnxruntime's quantization asks for them."""

    def __init__(self, spec: PolicySpec, observations: Floats) -> None:
        self._feeds: Iterator[dict[str, np.ndarray]] = (
            {OBSERVATION: row[None, : spec.input_size]}
            | ({STATE: row[None, spec.input_size :]} if spec.state_size else {})
            for row in observations
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next observation's inputs, or None."""
        return next(self._feeds, None)


def _quantize_program(spec: PolicySpec, program: np.ndarray, calibration: Floats) -> bytes:
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as folder:
        folded, int8_path = Path(folder) / "folded.onnx", Path(folder) / "int8.onnx"
        _fold_constants(program.tobytes(), folded)
        logging.getLogger().addFilter(_silent)
        try:
            quantization.quantize_static(
                _in_opset(onnx.load(folded), PER_CHANNEL_OPSET),
                int8_path,
                _Rows(spec, calibration),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(MULTIPLYING),
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        except Exception as error:  # onnxruntime's quantizer documents no exception classes
            raise QuantizationError(
                f"onnxruntime cannot quantize policy {spec.name!r} ({type(error).__name__}: {error}).",
                "Type --bits 16 (make: BITS=16).",
            ) from error
        finally:
            logging.getLogger().removeFilter(_silent)
        data = int8_path.read_bytes()
    if not any(node.op_type == "QuantizeLinear" for node in onnx.load_model_from_string(data).graph.node):
        raise QuantizationError(
            f"policy {spec.name!r} must have a {', '.join(MULTIPLYING)} with constant weights for int8, got none.",
            "Type --bits 16 (make: BITS=16).",
        )
    return data


def _in_opset(model: onnx.ModelProto, least: int) -> onnx.ModelProto:
    versions = [opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")]
    return model if versions[0] >= least else onnx.version_converter.convert_version(model, least)


def _silent(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


def _fold_constants(data: bytes, path: Path) -> None:
    """Write the graph with what needs no observation computed, so that the tool sees weights where weights are."""
    onnxruntime: Any = import_runtime(RuntimeName.ONNXRUNTIME)
    options = onnx_session_options(onnxruntime)
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
