"""Writes TFLite files operator by operator, so that every integer and every scale in them is ours.

TensorFlow's converter chooses its own scales (a 4-bit grid would be rounded a second time), takes tens of seconds for
Policy III and stamps operator versions that older runtimes refuse. Here a graph is put together by hand through the
flatbuffer classes that LiteRT ships, and every operator carries the lowest version that describes it: each of them is
read by tflite-runtime 2.14 and by today's LiteRT alike.

Source: tensorflow/compiler/mlir/lite/schema/schema.fbs (file identifier TFL3, schema version 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
from ai_edge_litert import schema_py_generated as schema

SCHEMA_VERSION = 3
FILE_IDENTIFIER = b"TFL3"
# The schema demands it (Buffer.data, force_align: 16): kernels read constants in place.
BUFFER_ALIGNMENT = 16

TENSOR_TYPES = {
    np.dtype(np.float32): schema.TensorType.FLOAT32,
    np.dtype(np.float16): schema.TensorType.FLOAT16,
    np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.int8): schema.TensorType.INT8,
}


class Operator(Enum):
    """The operators that a policy needs."""

    SUB = schema.BuiltinOperator.SUB
    MUL = schema.BuiltinOperator.MUL
    ADD = schema.BuiltinOperator.ADD
    MINIMUM = schema.BuiltinOperator.MINIMUM
    MAXIMUM = schema.BuiltinOperator.MAXIMUM
    TANH = schema.BuiltinOperator.TANH
    ARG_MAX = schema.BuiltinOperator.ARG_MAX
    QUANTIZE = schema.BuiltinOperator.QUANTIZE
    DEQUANTIZE = schema.BuiltinOperator.DEQUANTIZE
    FULLY_CONNECTED = schema.BuiltinOperator.FULLY_CONNECTED
    CONV_2D = schema.BuiltinOperator.CONV_2D
    RESHAPE = schema.BuiltinOperator.RESHAPE
    MEAN = schema.BuiltinOperator.MEAN
    RSQRT = schema.BuiltinOperator.RSQRT


@dataclass(frozen=True)
class Scales:
    """x ≈ scale · (q − zero_point): one scale, or one per channel along ``axis``."""

    scale: np.ndarray | np.floating
    zero_point: int = 0
    axis: int = 0


class AlignedBuffer(schema.BufferT):
    """A constant, aligned as the schema demands (the generated class aligns to one byte)."""

    def Pack(self, builder: flatbuffers.Builder) -> int:  # noqa: N802 (the generated classes' name)
        """Write the table, its bytes aligned to 16."""
        data = None
        if self.data is not None:
            content = np.ascontiguousarray(self.data).tobytes()
            builder.StartVector(1, len(content), BUFFER_ALIGNMENT)
            builder.head = builder.head - len(content)
            builder.Bytes[builder.head : builder.head + len(content)] = content
            data = builder.EndVector()
        schema.BufferStart(builder)
        if data is not None:
            schema.BufferAddData(builder, data)
        return int(schema.BufferEnd(builder))


@dataclass
class GraphWriter:
    """One graph under construction: add tensors and operators in order, then :meth:`serialise`."""

    tensors: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    codes: dict[tuple[Operator, int], int] = field(default_factory=dict)
    # Buffer 0 is the empty one, by convention: tensors without constant data refer to it.
    buffers: list[Any] = field(default_factory=lambda: [AlignedBuffer()])

    def tensor(
        self, name: str, shape: Sequence[int], dtype: type[np.generic], scales: Scales | None = None, buffer: int = 0
    ) -> int:
        """Add a tensor; the result is its index."""
        tensor = schema.TensorT()
        tensor.name = name.encode()
        tensor.shape = list(shape)
        tensor.type = TENSOR_TYPES[np.dtype(dtype)]
        tensor.buffer = buffer
        if scales is not None:
            quantization = schema.QuantizationParametersT()
            quantization.scale = np.atleast_1d(np.asarray(scales.scale, np.float32))
            quantization.zeroPoint = np.full(quantization.scale.shape, scales.zero_point, np.int64)
            quantization.quantizedDimension = scales.axis
            tensor.quantization = quantization
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def constant(self, name: str, values: np.ndarray, scales: Scales | None = None) -> int:
        """Add a constant tensor; the result is its index."""
        buffer = AlignedBuffer()
        buffer.data = values
        self.buffers.append(buffer)
        return self.tensor(name, values.shape, values.dtype.type, scales, len(self.buffers) - 1)

    def operator(
        self,
        operator: Operator,
        inputs: Sequence[int],
        outputs: Sequence[int],
        version: int = 1,
        options: Any = None,
        options_type: int = schema.BuiltinOptions.NONE,
    ) -> None:
        """Add an operator of this version that reads and writes these tensors."""
        node = schema.OperatorT()
        node.opcodeIndex = self.codes.setdefault((operator, version), len(self.codes))
        node.inputs = list(inputs)
        node.outputs = list(outputs)
        node.builtinOptions = options
        node.builtinOptionsType = options_type
        self.operators.append(node)

    def serialise(self, name: str, inputs: dict[str, int], outputs: dict[str, int], description: str) -> bytes:
        """The file's bytes.

        Args:
            name: of the graph.
            inputs, outputs: tensor index by name, in order; they also make the signature ``serving_default``.
            description: one line for who opens the file.
        """
        graph = schema.SubGraphT()
        graph.name = name.encode()
        graph.tensors = self.tensors
        graph.operators = self.operators
        graph.inputs = list(inputs.values())
        graph.outputs = list(outputs.values())

        signature = schema.SignatureDefT()
        signature.signatureKey = b"serving_default"
        signature.subgraphIndex = 0
        signature.inputs = [_tensor_map(key, index) for key, index in inputs.items()]
        signature.outputs = [_tensor_map(key, index) for key, index in outputs.items()]

        model = schema.ModelT()
        model.version = SCHEMA_VERSION
        model.description = description.encode()
        model.operatorCodes = [_operator_code(operator, version) for operator, version in self.codes]
        model.subgraphs = [graph]
        model.buffers = self.buffers
        model.signatureDefs = [signature]

        constants = sum(buffer.data.nbytes for buffer in self.buffers if buffer.data is not None)
        builder = flatbuffers.Builder(constants + 64 * 1024)
        builder.Finish(model.Pack(builder), file_identifier=FILE_IDENTIFIER)
        return bytes(builder.Output())


def _tensor_map(name: str, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name = name.encode()
    entry.tensorIndex = index
    return entry


def _operator_code(operator: Operator, version: int) -> Any:
    code = schema.OperatorCodeT()
    code.builtinCode = operator.value
    # Readers before 2020 look here; all of ours are below the placeholder 127.
    code.deprecatedBuiltinCode = operator.value
    code.version = version
    return code
