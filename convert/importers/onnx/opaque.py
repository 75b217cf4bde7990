"""A whole ONNX graph as one step of a policy: what the contract cannot express is executed as it is.

The file's nodes stay what they are. Around them stand a few that give the graph the interface of every artifact: one
row of observation, split into the file's inputs with their shapes and types, one row of all states likewise, and rows
of outputs and of next states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import (
    Discrete,
    Doubles,
    Floats,
    ForeignError,
    ForeignPolicy,
    Input,
    Opaque,
)
from quarl.convert.importers.onnx.file import OnnxFile
from quarl.convert.importers.onnx.fold import attributes, label_node
from quarl.convert.importers.onnx.inputs import (
    LARGEST_OBSERVATION,
    LARGEST_STATE,
    OUTPUT_OPTION,
    keep_reached_states,
    reach_of,
)
from quarl.convert.importers.onnx.metadata import names_that_fit, provenance_of, source_of
from quarl.convert.importers.onnx.original import SEED, Feed, Original
from quarl.convert.importers.onnx.wrapping import OutputInfo, computes_in_half, convert_half, probe_outputs, wrap_graph
from quarl.policy.spec import Memory, Remembered

ONES = ("action_masks",)
"""Inputs that choose among actions: 1 allows each (ML-Agents)."""
ALIKE = 1e-5
"""Share of the largest output by which the rows of a batch may differ that are alike."""
NO_LOOPS = ("Loop", "Scan", "SequenceMap")
NUMBERS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8, TensorProto.INT8}
NUMBERS |= {TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}
RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
WHOLE = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)
"""Types that hold the number of any action."""
PASSING = ("Cast", "Concat", "Transpose", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
DISTRIBUTIONS = ("Softmax", "LogSoftmax")


@dataclass(frozen=True)
class WholeGraph:
    """The file's own program: rows (batch, n + s) to the chosen output and the next states (batch, m + s).

    Attributes:
        original: gives these tensors.
        sizes: of each, for one observation.
        is_half: it computes in float16.
    """

    original: Original
    sizes: tuple[int, ...]
    is_half: bool

    def __call__(self, rows: Floats) -> Floats:
        """Execute the file for each row."""
        try:
            tensors = self.original.tensors(rows)
        except Exception as error:  # onnxruntime documents no exception classes
            raise ForeignError(
                f"onnxruntime cannot execute the file on these observations ({error}).",
                "Type --observations FILE with observations from real rollouts.",
            ) from error
        copies = max(feed.copies for feed in self.original.feeds)
        if [tensor.shape[1] for tensor in tensors] != [size * copies for size in self.sizes]:
            raise ForeignError("The size of an output must be fixed.", "Export it with a fixed size.")
        return np.concatenate([tensor[:, :size] for tensor, size in zip(tensors, self.sizes, strict=True)], axis=1)


def read_opaque(
    file: OnnxFile, output: str, states: Mapping[str, str], initial: Mapping[str, Doubles], reason: str
) -> ForeignPolicy:
    """Return the policy whose only step is the file's graph.

    Args:
        file: the model.
        output: the one that acts.
        states: inputs that are states, with the outputs that replace them.
        initial: what a state is before the first period, flat; zeros where there is nothing.
        reason: what the contract cannot express.

    Raises:
        ForeignError: an input or output whose size is not fixed, a loop, or a graph that onnxruntime does not execute.
    """
    graph = file.model.graph
    chosen, is_choice = _find_logits(graph, output)
    states = keep_reached_states(file, chosen, states)
    names = [chosen, *states.values()]
    nodes = sorted({index for name in names for index in reach_of(file, name).nodes})
    for node in _nodes_within(graph.node[index] for index in nodes):
        if node.op_type in NO_LOOPS:
            raise ForeignError(f"{label_node(node)} might never end.", "Export the policy without a loop.")
        if node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]):
            raise ForeignError(f"{label_node(node)} draws random numbers.", "Export the deterministic action.")
    needed = frozenset[str]().union(*(reach_of(file, name).tensors for name in names))
    values = [value for value in graph.input if value.name in needed and value.name not in file.constants]
    ones = [value for value in values if value.name in ONES]
    feeds = {value.name: _feed(graph, nodes, value, value.name in states) for value in values if value not in ones}
    held = [feeds[name] for name in states]
    observed = [feed for name, feed in feeds.items() if name not in states]
    _check_inputs(observed, held)
    inputs = [value for value in values if value not in ones]
    if is_choice and chosen != output:
        choice_part = _part(file, reach_of(file, output).nodes, inputs, ones, [output])
        if (size := probe_outputs(choice_part, [*observed, *held], [output])[0].size) != 1:
            raise ForeignError(f"The output {output!r} must make one choice, got {size}.", OUTPUT_OPTION)
    part = _part(file, nodes, inputs, ones, names)
    output_infos = probe_outputs(part, [*observed, *held], names)
    if copies := _batch(part, [*observed, *held], output_infos, names):
        observed, held = (
            [replace(f, size=f.size // copies, copies=copies) for f in group] for group in (observed, held)
        )
    sizes = _count_outputs(output_infos, copies or 1, held, names)
    if chosen == output and is_choice:
        is_choice = output_infos[0].shape in ((1, sizes[0]), (sizes[0],))
    is_half = computes_in_half(part)
    original = WholeGraph(Original(part, (*observed, *held), tuple(names)), tuple(sizes), is_half)
    data = wrap_graph(convert_half(part) if is_half else part, observed, held, names, sizes)
    fields = [
        Input(feed.name, _field_shape(feed), element_names=names_that_fit(file.model, feed.size, "observation_names"))
        for feed in observed
    ]
    begun = {feed.name: initial.get(feed.name, np.zeros(feed.size)).astype(np.float32).tolist() for feed in held}
    memories = [Input(f.name, (1, f.size), memory=Memory(Remembered.STATE, tuple(begun[f.name]))) for f in held]
    return ForeignPolicy(
        source=source_of(file),
        inputs=(*fields, *memories),
        steps=(Opaque(data, original, sizes[0], tuple(feed.size for feed in held), reason),),
        actions=Discrete() if is_choice else None,
        assumed=tuple(f"The input {value.name!r} is 1 throughout." for value in ones),
        original=original,
        provenance=provenance_of(file, output),
    )


def check_states(graph: onnx.GraphProto, states: Mapping[str, str]) -> None:
    """Raise ForeignError if --states names what is no input or no output of the graph."""
    inputs, outputs = ({value.name for value in values} for values in (graph.input, graph.output))
    for name, output in states.items():
        if name not in inputs or output not in outputs:
            raise ForeignError(
                f"--states must be INPUT=OUTPUT of the inputs {', '.join(sorted(inputs))} and the outputs "
                f"{', '.join(sorted(outputs))}, got {name}={output}.",
                "Type --states INPUT=OUTPUT with names of these.",
            )


def _check_inputs(observed: Sequence[Feed], held: Sequence[Feed]) -> None:
    if not observed:
        raise ForeignError("The output does not depend on any observation.", OUTPUT_OPTION)
    for feed, most in [(item, LARGEST_OBSERVATION) for item in observed] + [(item, LARGEST_STATE) for item in held]:
        if not 0 < feed.size <= most:
            raise ForeignError(f"The input {feed.name!r} must have 1 … {most} elements, got {feed.size}.")


def _count_outputs(made: Sequence[OutputInfo], copies: int, held: Sequence[Feed], names: Sequence[str]) -> list[int]:
    """Return the elements of each output for one observation.

    Raises:
        ForeignError: the first holds whole numbers, or a state's next value has another size than the state.
    """
    if not made[0].is_float:
        raise ForeignError(
            f"The output {names[0]!r} must be floats, such as the logits, got integers.",
            "Type --output NAME with the logits of one choice, or export the policy with them.",
        )
    sizes = [info.size // copies for info in made]
    for name, size, state in zip(names[1:], sizes[1:], held, strict=True):
        if size != state.size:
            raise ForeignError(f"Next state {name!r} must have {state.size} elements like {state.name!r}, got {size}.")
    return sizes


def _find_logits(graph: onnx.GraphProto, output: str) -> tuple[str, bool]:
    """Return the tensor of whose largest element an output is the number, and True; else the output, and False.

    A distribution over the last axis is such a tensor, too.
    """
    makers = {name: node for node in graph.node for name in node.output}
    tensor = output
    while (node := makers.get(tensor)) is not None and node.op_type in PASSING:
        keywords = attributes(node)
        if (len(node.input) > 1 and node.op_type == "Concat") or keywords.get("to", TensorProto.INT64) not in WHOLE:
            break
        tensor = node.input[0]
    if node is not None and node.op_type == "ArgMax" and not attributes(node).get("select_last_index"):
        tensor = node.input[0]
        while (node := makers.get(tensor)) is not None and node.op_type in ("Log", "Reshape"):
            tensor = node.input[0]
        return str(tensor), True
    node = makers.get(output)
    return output, node is not None and node.op_type in DISTRIBUTIONS and attributes(node).get("axis", -1) == -1


def _feed(graph: onnx.GraphProto, nodes: Sequence[int], value: onnx.ValueInfoProto, is_state: bool) -> Feed:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or kind.elem_type not in NUMBERS:
        raise ForeignError(
            f"The input {value.name!r} must be a tensor of numbers with a shape.",
            "Export the policy for one observation, all sizes fixed.",
        )
    batches = {
        graph_input.type.tensor_type.shape.dim[0].dim_param
        for graph_input in graph.input
        if graph_input.type.tensor_type.shape.dim
    }
    for axis, side in enumerate(kind.shape.dim):
        is_batch = axis == 0 or "batch" in side.dim_param.lower() or side.dim_param in batches - {""}
        if side.dim_value < 1 and not is_batch and not (is_state and axis == 1):
            raise ForeignError(
                f"The size of axis {axis} of the input {value.name!r} must be fixed, got {side.dim_param or '?'}.",
                "Export the policy with every size but the batch fixed.",
            )
    shape = tuple(max(side.dim_value, 1) for side in kind.shape.dim) or (1,)
    takers = [graph.node[index].op_type for index in nodes if value.name in graph.node[index].input]
    image = (shape[2], shape[3], shape[1]) if len(shape) == 4 and takers[:1] == ["Conv"] and shape[0] == 1 else None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return Feed(value.name, math.prod(shape), shape, image, image is not None, dtype, False)


def _batch(part: bytes, feeds: Sequence[Feed], made: Sequence[OutputInfo], names: Sequence[str]) -> int:
    """Return the rows of a batch that the file fixes, each computed by itself; 0 where there is no such batch."""
    sides = {feed.shape[0] if len(feed.shape) > 1 else 0 for feed in feeds}
    sides |= {info.shape[0] if info.shape else 0 for info in made}
    if len(sides) > 1 or min(sides) < 2:
        return 0
    (rows,) = sides
    generator, alike, unlike = np.random.default_rng(SEED), [], []
    for feed in feeds:
        first, others = generator.standard_normal((2, rows, feed.size // rows))
        alike.append(np.repeat(first[:1], rows, axis=0).ravel())
        unlike.append(np.concatenate([first[:1], others[1:]]).ravel())
    inputs = np.stack([np.concatenate(alike), np.concatenate(unlike)]).astype(np.float32)
    for tensor in Original(part, tuple(feeds), tuple(names)).tensors(inputs):
        parts = tensor.reshape(2, rows, -1)
        apart = np.abs(parts[0] - parts[0, :1]).max(), np.abs(parts[0, 0] - parts[1, 0]).max()
        if not max(apart) <= ALIKE * float(np.abs(parts).max()):
            return 0
    return rows


def _field_shape(feed: Feed) -> tuple[int, ...]:
    """Return the shape of one observation's part, without a batch."""
    has_batch = len(feed.shape) > 1 and (feed.copies > 1 or feed.shape[0] == 1)
    inner = feed.shape[1:] if has_batch else feed.shape
    return feed.image or tuple(side for side in inner if side > 1) or (1,)


def _part(
    file: OnnxFile,
    nodes: Sequence[int],
    inputs: Sequence[onnx.ValueInfoProto],
    ones: Sequence[onnx.ValueInfoProto],
    names: Sequence[str],
) -> bytes:
    """Return the model of these nodes alone, from these inputs to these tensors."""
    graph = file.model.graph
    needed = {name for node in _nodes_within(graph.node[index] for index in nodes) for name in node.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    for value in ones:
        kind = value.type.tensor_type
        shape = [max(axis.dim_value, 1) for axis in kind.shape.dim]
        constants.append(
            numpy_helper.from_array(np.ones(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type)), value.name)
        )
    part = onnx.ModelProto(ir_version=file.model.ir_version, opset_import=file.model.opset_import)
    part.graph.CopyFrom(helper.make_graph([graph.node[i] for i in nodes], "policy", list(inputs), [], constants))
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    data: bytes = part.SerializeToString()
    return data


def _nodes_within(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield these nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _nodes_within(attribute.g.node)
