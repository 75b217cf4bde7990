"""What an ONNX graph takes on the way to one output: its inputs with their shapes, images told from rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from convert.foreign.chain import ForeignError
from convert.foreign.onnx.file import OnnxFile
from convert.foreign.onnx.original import Feed

# What exporters call the state of a recurrent network.
MEMORY_INPUTS = {"h_in", "c_in", "h0", "c0", "h_0", "c_0", "hx", "cx", "hidden", "hidden_state", "cell_state"}
MEMORY_INPUTS |= {"rnn_state", "state_in", "state_ins", "recurrent_in", "memory", "seq_lens"}
LARGEST_OBSERVATION = 1 << 20
OUTPUT_OPTION = "Type --output NAME with one of them."


@dataclass(frozen=True)
class Reach:
    """What leads to one output: node numbers in order, and the names of all tensors on the way."""

    nodes: tuple[int, ...]
    tensors: frozenset[str]


def reach_of(file: OnnxFile, output: str) -> Reach:
    """The nodes that lead to an output."""
    makers = {name: index for index, node in enumerate(file.model.graph.node) for name in node.output if name}
    nodes: set[int] = set()
    tensors = {output}
    waiting = [output]
    while waiting:
        index = makers.get(waiting.pop())
        if index is None or index in nodes:
            continue
        nodes.add(index)
        new = {name for name in file.model.graph.node[index].input if name} - tensors
        tensors |= new
        waiting.extend(new)
    return Reach(tuple(sorted(nodes)), frozenset(tensors))


def feeds_of(file: OnnxFile, reach: Reach, wired: bool = False) -> tuple[Feed, ...]:
    """The inputs that lead to the output, an image first.

    Args:
        file, reach: the graph, and what leads to the output.
        wired: it is known which inputs are states; else their names say it.
    """
    feeds = []
    for value in file.model.graph.input:
        if value.name in file.constants or value.name not in reach.tensors:
            continue
        if not wired and value.name.lower() in MEMORY_INPUTS:
            message = f"The input {value.name!r} is a memory: the policy is recurrent, and a bundle's policy has none."
            raise ForeignError(message, "Train a policy without memory; stack the last observations instead.")
        feeds.append(_feed(file, reach, value))
    if not feeds:
        raise ForeignError("The output does not depend on any input.", OUTPUT_OPTION)
    if len(feeds) > 1 and any(feed.image for feed in feeds):
        names = ", ".join(repr(feed.name) for feed in feeds)
        raise ForeignError(f"The policy takes an image and something else ({names}).", "Only one image alone is read.")
    return tuple(feeds)


def _feed(file: OnnxFile, reach: Reach, value: onnx.ValueInfoProto) -> Feed:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ForeignError(f"The input {value.name!r} declares no shape.", "Export the policy with a fixed shape.")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else np.dtype(object)
    if dtype not in (np.float32, np.float64, np.float16, np.uint8):
        raise ForeignError(f"The input {value.name!r} is {dtype}; float and uint8 are read.", "Export it as float32.")
    dims = [axis.dim_value if axis.HasField("dim_value") else 0 for axis in kind.shape.dim]
    rest = dims if len(dims) == 1 else dims[1:]
    size = math.prod(rest)
    if not rest or min(rest) < 1 or (len(dims) > 1 and dims[0] > 1) or size > LARGEST_OBSERVATION:
        declared = ", ".join(str(axis.dim_value or axis.dim_param or "?") for axis in kind.shape.dim)
        raise ForeignError(
            f"The input {value.name!r} has the shape ({declared}); needed is (batch or 1, size …) "
            f"of at most {LARGEST_OBSERVATION} elements.",
            "Export the policy for one observation, or with an open batch and every other size fixed.",
        )
    shape = (1, *rest) if len(dims) > 1 else tuple(rest)
    image, channels_first = None, False
    operator = _first_on_the_way(file.model.graph, reach, value.name) if len(rest) == 3 else None
    if operator == "Conv":
        image, channels_first = (rest[1], rest[2], rest[0]), True
    elif operator == "Transpose":
        image = (rest[0], rest[1], rest[2])
    return Feed(value.name, size, shape, image, channels_first, dtype, len(dims) > 1 and dims[0] <= 0)


def _first_on_the_way(graph: onnx.GraphProto, reach: Reach, name: str) -> str | None:
    """Conv or Transpose, whichever an input of four dimensions meets first; None if neither: it is no image then."""
    images = {name}
    for index in reach.nodes:
        node = graph.node[index]
        if not images.intersection(node.input[:1] if node.op_type == "Conv" else node.input):
            continue
        if node.op_type in ("Conv", "Transpose"):
            return str(node.op_type)
        if node.op_type not in ("Shape", "Size", "Flatten", "Reshape", "Gemm", "MatMul"):
            images.update(node.output)
    return None
