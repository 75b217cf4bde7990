"""What an ONNX graph takes on the way to one output: its inputs with their shapes, images told from rows."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.onnx.cells import Found
from quarl.convert.importers.onnx.file import OnnxFile
from quarl.convert.importers.onnx.original import Feed

# What exporters call the state of a recurrent network.
MEMORY_INPUTS = {"h_in", "c_in", "h0", "c0", "h_0", "c_0", "hx", "cx", "hidden", "hidden_state", "cell_state"}
MEMORY_INPUTS |= {"rnn_state", "state_in", "state_ins", "recurrent_in", "memory", "seq_lens"}
STATE_WORDS = ("state", "memory", "hidden", "recurrent", "carry")
FED_BACK = (("_in", "_out"), ("0", "n"), ("hx", "hy"), ("cx", "cy"))
"""What exporters call a state before and behind a period."""
LARGEST_STATE = 1 << 15
LARGEST_OBSERVATION = 1 << 20
OUTPUT_OPTION = "Type --output NAME with one of them."


@dataclass(frozen=True)
class Reach:
    """What leads to one output: node numbers in order, and the names of all tensors on the way."""

    nodes: tuple[int, ...]
    tensors: frozenset[str]

    @classmethod
    def of(cls, parts: Sequence[Reach]) -> Reach:
        """Return what leads to several outputs."""
        nodes = sorted({index for part in parts for index in part.nodes})
        return cls(tuple(nodes), frozenset[str]().union(*(part.tensors for part in parts)))


def reach_of(file: OnnxFile, output: str, found: Iterable[Found] = ()) -> Reach:
    """Return the nodes that lead to an output; of recurrent layers what makes their next states, and what is fed to
    them."""
    fed = {name: cell.fed for cell in found for name in cell.outputs}
    makers = {name: index for index, node in enumerate(file.model.graph.node) for name in node.output if name}
    nodes: set[int] = set()
    tensors = {output}
    waiting = [output]
    while waiting:
        tensor = waiting.pop()
        index = makers.get(tensor)
        if index is None or index in nodes:
            continue
        nodes.add(index)
        new = {name for name in fed.get(tensor, file.model.graph.node[index].input) if name} - tensors
        tensors |= new
        waiting.extend(new)
    return Reach(tuple(sorted(nodes)), frozenset(tensors))


def find_states(file: OnnxFile) -> dict[str, str]:
    """Return the inputs whose names say that they are states, with the outputs that are called alike."""
    outputs = {value.name for value in file.model.graph.output}
    states = {}
    for value in file.model.graph.input:
        is_state = value.name.lower() in MEMORY_INPUTS or any(word in value.name.lower() for word in STATE_WORDS)
        if value.name in file.constants or not is_state:
            continue
        names = [value.name.replace(one, other) for one, other in FED_BACK if one in value.name]
        if (output := next((name for name in names if name in outputs), None)) is not None:
            states[value.name] = output
    return states


def keep_reached_states(file: OnnxFile, output: str, states: Mapping[str, str]) -> dict[str, str]:
    """Return the states that lead to an output, or to the next value of one that does.

    Raises:
        ForeignError: an input is a state by its name, and is none of the given ones.
    """
    reached_states: dict[str, str] = {}
    while True:
        tensors = frozenset[str]().union(*(reach_of(file, name).tensors for name in (output, *reached_states.values())))
        new = {
            name: next_state for name, next_state in states.items() if name in tensors and name not in reached_states
        }
        if not new:
            break
        reached_states |= new
    inputs = [value.name for value in file.model.graph.input if value.name not in file.constants]
    if loose := [name for name in inputs if name in tensors - states.keys() and name.lower() in MEMORY_INPUTS]:
        raise ForeignError(
            f"The input {loose[0]!r} has the name of a state, but no output has the name of its next value.",
            f"Type --states {loose[0]}=OUTPUT",
        )
    return {name: next_state for name, next_state in states.items() if name in reached_states}


def state_feeds(file: OnnxFile, names: Container[str]) -> dict[str, Feed]:
    """Return inputs that are states, (layers, batch, units) or (batch, units), for a batch of one.

    Args:
        file: the graph.
        names: of the inputs.

    Raises:
        ForeignError: one is no float32, or of another shape.
    """
    feeds = {}
    for value in file.model.graph.input:
        if value.name not in names:
            continue
        kind = value.type.tensor_type
        shape = tuple(axis.dim_value or 1 for axis in kind.shape.dim)
        if kind.elem_type != onnx.TensorProto.FLOAT or not 2 <= len(shape) <= 3 or min(shape) < 1:
            raise ForeignError(
                f"The state {value.name!r} must be float32 (layers, 1, units), got the shape {shape}.",
                "Export the policy for one observation.",
            )
        if (size := math.prod(shape)) > LARGEST_STATE:
            raise ForeignError(f"The state {value.name!r} must have at most {LARGEST_STATE} elements, got {size}.")
        feeds[value.name] = Feed(value.name, size, shape, None, False, np.dtype(np.float32), False)
    return feeds


def feeds_of(file: OnnxFile, reach: Reach, states: Container[str] = ()) -> tuple[Feed, ...]:
    """Return the inputs that lead to the output, an image first.

    Args:
        file, reach: the graph, and what leads to the output.
        states: inputs that are states of recurrent layers, which are left out.
    """
    feeds = []
    for value in file.model.graph.input:
        if value.name in file.constants or value.name not in reach.tensors or value.name in states:
            continue
        feeds.append(_feed(file, reach, value))
    if not feeds:
        raise ForeignError("The output does not depend on any input.", OUTPUT_OPTION)
    if len(feeds) > 1 and any(feed.image for feed in feeds):
        names = ", ".join(repr(feed.name) for feed in feeds)
        raise ForeignError(f"An image must be the only input, got {names}.", "Export a policy of one image.")
    return tuple(feeds)


def _feed(file: OnnxFile, reach: Reach, value: onnx.ValueInfoProto) -> Feed:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ForeignError(f"The input {value.name!r} must have a shape.", "Export the policy with a fixed shape.")
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else np.dtype(object)
    if dtype not in (np.float32, np.float64, np.float16, np.uint8):
        raise ForeignError(f"The input {value.name!r} must be float or uint8, got {dtype}.", "Export it as float32.")
    dims = [axis.dim_value if axis.HasField("dim_value") else 0 for axis in kind.shape.dim]
    rest = dims if len(dims) == 1 else dims[1:]
    size = math.prod(rest)
    if not rest or min(rest) < 1 or (len(dims) > 1 and dims[0] > 1) or size > LARGEST_OBSERVATION:
        declared = ", ".join(str(axis.dim_value or axis.dim_param or "?") for axis in kind.shape.dim)
        raise ForeignError(
            f"The input {value.name!r} must have the shape (batch or 1, size …) "
            f"of at most {LARGEST_OBSERVATION} elements, got ({declared}).",
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
