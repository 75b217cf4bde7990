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
from typing import Any

import flatbuffers
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
    codes: dict[tuple[int, int], int] = field(default_factory=dict)
    # Buffer 0 is the empty one, by convention: tensors without constant data refer to it.
    buffers: list[Any] = field(default_factory=lambda: [AlignedBuffer()])

    def tensor(
        self, name: str, shape: Sequence[int], dtype: type[np.generic], scales: Scales | None = None, buffer: int = 0
    ) -> int:
        """Add a tensor; the result is its index."""
        kind = TENSOR_TYPES[np.dtype(dtype)]
        tensor = _table(schema.TensorT, name=name.encode(), shape=list(shape), type=kind, buffer=buffer)
        if scales is not None:
            scale = np.atleast_1d(np.asarray(scales.scale, np.float32))
            zeros = np.full(scale.shape, scales.zero_point, np.int64)
            tensor.quantization = _table(
                schema.QuantizationParametersT, scale=scale, zeroPoint=zeros, quantizedDimension=scales.axis
            )
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def constant(self, name: str, values: np.ndarray, scales: Scales | None = None) -> int:
        """Add a constant tensor; the result is its index."""
        self.buffers.append(_table(AlignedBuffer, data=values))
        return self.tensor(name, values.shape, values.dtype.type, scales, len(self.buffers) - 1)

    def operator(
        self,
        operator: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str = "",
        version: int = 1,
        **members: Any,
    ) -> None:
        """Add an operator that reads and writes these tensors.

        Args:
            operator: of ``schema.BuiltinOperator``.
            inputs, outputs: tensors.
            options: name of its options' table in the schema, without "Options"; none by default.
            version: the operator's.
            members: of the options' table.
        """
        node = _table(schema.OperatorT, inputs=list(inputs), outputs=list(outputs))
        node.opcodeIndex = self.codes.setdefault((operator, version), len(self.codes))
        if options:
            node.builtinOptions = _table(getattr(schema, f"{options}OptionsT"), **members)
            node.builtinOptionsType = getattr(schema.BuiltinOptions, f"{options}Options")
        self.operators.append(node)

    def serialise(self, name: str, inputs: dict[str, int], outputs: dict[str, int], description: str) -> bytes:
        """Return the file's bytes.

        Args:
            name: of the graph.
            inputs, outputs: tensor index by name, in order; they also make the signature ``serving_default``.
            description: one line for who opens the file.
        """
        maps = [
            [_table(schema.TensorMapT, name=key.encode(), tensorIndex=index) for key, index in named.items()]
            for named in (inputs, outputs)
        ]
        model = _table(
            schema.ModelT,
            version=SCHEMA_VERSION,
            description=description.encode(),
            # Readers before 2020 look at the deprecated code; all of ours are below the placeholder 127.
            operatorCodes=[
                _table(schema.OperatorCodeT, builtinCode=code, deprecatedBuiltinCode=code, version=version)
                for code, version in self.codes
            ],
            subgraphs=[
                _table(
                    schema.SubGraphT,
                    name=name.encode(),
                    tensors=self.tensors,
                    operators=self.operators,
                    inputs=list(inputs.values()),
                    outputs=list(outputs.values()),
                )
            ],
            buffers=self.buffers,
            signatureDefs=[
                _table(
                    schema.SignatureDefT,
                    signatureKey=b"serving_default",
                    subgraphIndex=0,
                    inputs=maps[0],
                    outputs=maps[1],
                )
            ],
        )
        constants = sum(buffer.data.nbytes for buffer in self.buffers if buffer.data is not None)
        builder = flatbuffers.Builder(constants + 64 * 1024)
        builder.Finish(model.Pack(builder), file_identifier=FILE_IDENTIFIER)
        return bytes(builder.Output())


def _table(kind: type[Any], **members: Any) -> Any:
    table = kind()
    for name, value in members.items():
        setattr(table, name, value)
    return table
