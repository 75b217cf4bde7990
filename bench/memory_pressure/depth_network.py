"""Policy III with the inputs of a depth camera: 39,427 of them, 657 MB in fp32, sent to the device as a few kilobytes.

The size is our reconstruction, not the paper's figure: a 154 x 256 depth image and three numbers about the goal.

The graph is the deployed artifact's own; only the observation grows. The weights are not shipped: a TFLite buffer may
lie behind the flatbuffer at an offset (schema.fbs, ``Buffer.offset``), so that the device can write them itself. They
are the policy's own first weights over and over: times and memory do not depend on values, but zeros would compress,
and no weights are denormal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

LEGACY_OBSERVATION = 154 * 256 + 3
"""A flattened 154 × 256 depth image and three numbers about the goal: 39,427, our reconstruction."""

ALIGNMENT = 64  # bytes; what XNNPACK and the kernels want at most
SMALL = 4096  # bytes; smaller buffers stay in the flatbuffer
SEED_BYTES = 1 << 16


@dataclass(frozen=True)
class Fill:
    """A stretch of the file that the device writes by repeating a pattern."""

    offset: int
    size: int
    pattern: bytes


@dataclass(frozen=True)
class Skeleton:
    """The parts of a large model that are sent; the device writes the rest."""

    head: bytes
    fills: tuple[Fill, ...]
    size: int
    """Bytes of the whole file."""


def enlarge(artifact: bytes, old: int, new: int = LEGACY_OBSERVATION) -> Skeleton:
    """Return the same network with ``new`` inputs instead of ``old``.

    Args:
        artifact: a .tflite file of this project.
        old: its observation's size; no hidden layer may be as wide.
        new: the size wanted.

    Raises:
        ValueError: no tensor of the graph has a dimension ``old``.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(artifact, 0))
    sizes: dict[int, int] = {}
    changed = 0
    for tensor in model.subgraphs[0].tensors:
        shape = [int(length) for length in tensor.shape]
        grown = [new if length == old else length for length in shape]
        changed += old in shape
        tensor.shape = np.asarray(grown, np.int32)
        data = model.buffers[tensor.buffer].data
        if data is not None and len(data):
            sizes[tensor.buffer] = len(data) * int(np.prod(grown)) // int(np.prod(shape))
    if not changed:
        raise ValueError(f"no tensor of this artifact has a dimension of {old}.")
    large = {number: size for number, size in sizes.items() if size >= SMALL}
    patterns = {number: bytes(model.buffers[number].data)[:SEED_BYTES] for number in large}
    for number, size in large.items():
        buffer = model.buffers[number]
        buffer.data, buffer.offset, buffer.size = None, 2, size  # 0 and 1 mean "not outside"
    # The offsets are scalars: the flatbuffer is as long with the right ones.
    begin = _align(len(_pack(model)), SMALL)
    fills = []
    for number, size in large.items():
        model.buffers[number].offset = begin
        fills.append(Fill(begin, size, patterns[number]))
        begin = _align(begin + size, ALIGNMENT)
    return Skeleton(_pack(model), tuple(fills), begin)


def _pack(model: Any) -> bytes:
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _align(value: int, step: int) -> int:
    return -(-value // step) * step
