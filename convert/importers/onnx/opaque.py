"""A whole ONNX graph as one step of a policy: what the contract cannot express is executed as it is.

The file's nodes stay what they are. Around them stand a few that give the graph the interface of every artifact: one
row of observation, split into the file's inputs with their shapes and types, one row of all states likewise, and rows
of outputs and of next states.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import (
    Affine,
    Clip,
    Discrete,
    Doubles,
    Floats,
    ForeignError,
    ForeignPolicy,
    Input,
    Opaque,
)
from quarl.convert.importers.onnx.file import OnnxFile
from quarl.convert.importers.onnx.inputs import (
    LARGEST_OBSERVATION,
    LARGEST_STATE,
    OUTPUT_OPTION,
    keep_reached_states,
    reach_of,
)
from quarl.convert.importers.onnx.metadata import names_that_fit, provenance_of, source_of
from quarl.convert.importers.onnx.original import Feed, Original
from quarl.convert.importers.prefix import Prefix
from quarl.convert.interface import ACTION, LOGITS, NEXT_STATE, OBSERVATION, STATE
from quarl.policy.spec import Memory, Remembered

FILE, OUTPUTS = "file/", "outputs"
"""What stands before every name of the file in the wrapped graph, and what its chosen output is called there."""
LARGEST_MEMORY, LONGEST_S = 8 << 30, 60
"""Bytes and CPU seconds that a graph may take for its first observations."""
ONES = ("action_masks",)
"""Inputs that choose among actions: 1 allows each (ML-Agents)."""
NO_LOOPS = ("Loop", "Scan", "SequenceMap")
NUMBERS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8, TensorProto.INT8}
NUMBERS |= {TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}
PASSING = ("Cast", "Concat", "Transpose", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
DISTRIBUTIONS = ("Softmax", "LogSoftmax")
MONOTONE = (*DISTRIBUTIONS, "Log")
"""Operators that leave the order of a row's elements as it is."""


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
        tensors = self.original.tensors(rows)
        return np.concatenate([made[:, :size] for made, size in zip(tensors, self.sizes, strict=True)], axis=1)


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
    _check_names(graph, states)
    chosen, is_choice = _find_logits(graph, output)
    states = keep_reached_states(file, chosen, states)
    names = [chosen, *states.values()]
    nodes = sorted({index for name in names for index in reach_of(file, name).nodes})
    for node in _nodes_within(graph.node[index] for index in nodes):
        if node.op_type in NO_LOOPS:
            raise ForeignError(f"Node {node.name!r} is a {node.op_type}, which may not end.")
    needed = frozenset[str]().union(*(reach_of(file, name).tensors for name in names))
    values = [value for value in graph.input if value.name in needed and value.name not in file.constants]
    ones = [value for value in values if value.name in ONES]
    feeds = {value.name: _feed(graph, nodes, value) for value in values if value not in ones}
    held = [feeds[name] for name in states]
    observed = [feed for name, feed in feeds.items() if name not in states]
    _check_inputs(observed, held)
    inputs = [value for value in values if value not in ones]
    if is_choice and chosen != output:
        whole = _part(file, reach_of(file, output).nodes, inputs, ones, [output])
        if (made := _probe_outputs(whole, [*observed, *held], [output])[0]).size != 1:
            raise ForeignError(f"The output {output!r} makes {made.size} choices; read is one.", OUTPUT_OPTION)
    part = _part(file, nodes, inputs, ones, names)
    sizes = _count_outputs(_probe_outputs(part, [*observed, *held], names), observed, held, names)
    is_half = any(tensor.data_type == TensorProto.FLOAT16 for tensor in graph.initializer)
    original = WholeGraph(Original(part, (*observed, *held), tuple(names)), tuple(sizes), is_half)
    data = _wrap_graph(_convert_half(part) if is_half else part, observed, held, names, sizes)
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


def _check_names(graph: onnx.GraphProto, states: Mapping[str, str]) -> None:
    inputs, outputs = ({value.name for value in values} for values in (graph.input, graph.output))
    for name, made in states.items():
        if name not in inputs or made not in outputs:
            raise ForeignError(
                f"--states has {name}={made}; the graph has the inputs {', '.join(sorted(inputs))} and the outputs "
                f"{', '.join(sorted(outputs))}.",
                "Give INPUT=OUTPUT of these.",
            )


def _check_inputs(observed: Sequence[Feed], held: Sequence[Feed]) -> None:
    if not observed:
        raise ForeignError("The output does not depend on any observation.", OUTPUT_OPTION)
    for feed, most in [(each, LARGEST_OBSERVATION) for each in observed] + [(each, LARGEST_STATE) for each in held]:
        if not 0 < feed.size <= most:
            raise ForeignError(f"The input {feed.name!r} has {feed.size} elements; allowed are 1 … {most}.")


def _count_outputs(
    made: Sequence[OutputKind], observed: Sequence[Feed], held: Sequence[Feed], names: Sequence[str]
) -> list[int]:
    """Return the elements of each output for one observation.

    Raises:
        ForeignError: the first holds whole numbers, or a state's next value has another size than the state.
    """
    if not made[0].is_float:
        raise ForeignError(
            f"The output {names[0]!r} holds whole numbers, no outputs of which the largest is the action.",
            "Type --output NAME with the logits of one choice, or export the policy with them.",
        )
    copies = max(feed.copies for feed in (*observed, *held))
    sizes = [each.size // copies for each in made]
    for name, size, state in zip(names[1:], sizes[1:], held, strict=True):
        if size != state.size:
            raise ForeignError(f"The next state {name!r} has {size} elements, and {state.name!r} {state.size}.")
    return sizes


def finish_graph(step: Opaque, after: Sequence[Affine | Clip], is_discrete: bool) -> tuple[bytes, Prefix]:
    """Return the step's graph as an artifact's, and what stands behind it: z = clip(a x + b, low, high)."""
    model = onnx.load_model_from_string(step.data)
    graph, behind = model.graph, Prefix.of(step.outputs, list(after))
    last, constants = OUTPUTS, []
    operators = (
        ("Mul", behind.scale, 1.0),
        ("Add", behind.offset, 0.0),
        ("Max", behind.low, -np.inf),
        ("Min", behind.high, np.inf),
    )
    for operator, values, neutral in operators:
        if not (values == neutral).all():
            constants.append(numpy_helper.from_array(values.astype(np.float32)[None], f"head/{operator}"))
            graph.node.append(helper.make_node(operator, [last, constants[-1].name], [f"head/{operator}_made"]))
            last = f"head/{operator}_made"
    graph.initializer.extend(constants)
    name = LOGITS if is_discrete else ACTION
    graph.node.append(helper.make_node("Identity", [last], [name]))
    following = [value for value in graph.output if value.name == NEXT_STATE]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, step.outputs]), *following]
    if is_discrete:
        graph.node.append(helper.make_node("ArgMax", [LOGITS], [ACTION], axis=1, keepdims=0))
        outputs.append(helper.make_tensor_value_info(ACTION, TensorProto.INT64, [1]))
    del graph.output[:]
    graph.output.extend(outputs)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data, behind


def _find_logits(graph: onnx.GraphProto, output: str) -> tuple[str, bool]:
    """Return the tensor of whose largest element an output is the number, and True; else the output, and False.

    A distribution is such a tensor, too.
    """
    makers = {name: node for node in graph.node for name in node.output}
    tensor = output
    while (node := makers.get(tensor)) is not None and node.op_type in PASSING:
        if node.op_type == "Concat" and len(node.input) > 1:
            break
        tensor = node.input[0]
    if node is not None and node.op_type == "ArgMax":
        tensor = node.input[0]
        while (node := makers.get(tensor)) is not None and node.op_type in (*MONOTONE, "Reshape"):
            tensor = node.input[0]
        return str(tensor), True
    return output, tensor == output and node is not None and node.op_type in DISTRIBUTIONS


def _feed(graph: onnx.GraphProto, nodes: Sequence[int], value: onnx.ValueInfoProto) -> Feed:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or kind.elem_type not in NUMBERS:
        raise ForeignError(
            f"The input {value.name!r} is no tensor of numbers with a shape.",
            "Export the policy for one observation, all sizes fixed.",
        )
    shape = tuple(max(axis.dim_value, 1) for axis in kind.shape.dim) or (1,)
    copies = shape[0] if len(shape) == 2 else 1
    takers = [graph.node[index].op_type for index in nodes if value.name in graph.node[index].input]
    image = (shape[2], shape[3], shape[1]) if len(shape) == 4 and takers[:1] == ["Conv"] else None
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return Feed(value.name, math.prod(shape) // copies, shape, image, image is not None, dtype, False, copies)


def _field_shape(feed: Feed) -> tuple[int, ...]:
    """Return the shape of one observation's part, without a batch."""
    inner = feed.shape[1:] if len(feed.shape) > 1 else feed.shape
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


PROBE = """
import resource, sys
import numpy, onnxruntime
memory, seconds, model, given, *names = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
onnxruntime.set_default_logger_severity(4)
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
print(*(f"{made.size}:{made.dtype.kind}" for made in map(numpy.asarray, session.run(names, dict(numpy.load(given))))))
"""


def _convert_half(part: bytes) -> bytes:
    """Return a float16 graph in float32: processors without half arithmetic compute in float32 anyhow."""
    model = onnx.load_model_from_string(part)
    half, whole = TensorProto.FLOAT16, TensorProto.FLOAT
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == half:
                attribute.i = whole
            if attribute.t.data_type == half:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
    for tensor in model.graph.initializer:
        if tensor.data_type == half:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = whole
    data: bytes = model.SerializeToString()
    return data


class OutputKind(NamedTuple):
    """An output as it came out: how many elements, and whether they are floats."""

    size: int
    is_float: bool


def _probe_outputs(part: bytes, feeds: Sequence[Feed], names: Sequence[str]) -> list[OutputKind]:
    """Execute a graph on ones, in a process with limits, and return what these outputs are.

    Raises:
        ForeignError: onnxruntime refuses the graph, crashes, or takes more time or memory than LONGEST_S and
            LARGEST_MEMORY.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, given = Path(folder) / "part.onnx", Path(folder) / "given.npz"
        model.write_bytes(part)
        np.savez(given, **{feed.name: np.ones(feed.shape, feed.kind) for feed in feeds})
        command = [sys.executable, "-c", PROBE, str(LARGEST_MEMORY), str(LONGEST_S), str(model), str(given), *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise ForeignError(f"onnxruntime does not execute the file ({lines[-1][:500]}).", "Export the policy again.")
    words = [word.split(":") for word in done.stdout.split()]
    return [OutputKind(int(size), kind == "f") for size, kind in words]


def _wrap_graph(
    part: bytes, observed: Sequence[Feed], held: Sequence[Feed], names: Sequence[str], sizes: Sequence[int]
) -> bytes:
    """Return the graph with one row of observation and of states in, and one of outputs and of next states out."""
    model = onnx.compose.add_prefix(onnx.load_model_from_string(part), FILE)
    graph = model.graph
    opening, closing, constants, inputs = [], [], [], []

    def indices(name: str, values: Iterable[int]) -> str:
        constants.append(numpy_helper.from_array(np.array(list(values), np.int64), name))
        return name

    for whole, feeds in ((OBSERVATION, observed), (STATE, held)):
        start = 0
        for feed in feeds:
            steps: list[tuple[str, str, dict[str, Any]]] = [
                ("Gather", indices(f"{feed.name}/places", range(start, start + feed.size)), {"axis": 1})
            ]
            shape = (1, *feed.shape[1:]) if feed.copies > 1 else feed.shape
            if feed.image:
                steps.append(("Reshape", indices(f"{feed.name}/image", (1, *feed.image)), {}))
                steps.append(("Transpose", "", {"perm": [0, 3, 1, 2]}))
            steps.append(("Reshape", indices(f"{feed.name}/shape", shape), {}))
            if feed.copies > 1:
                steps.append(("Expand", indices(f"{feed.name}/copies", feed.shape), {}))
            kind = np.dtype(np.float32) if feed.kind == np.float16 else feed.kind
            steps.append(("Cast", "", {"to": helper.np_dtype_to_tensor_dtype(kind)}))
            last = whole
            for at, (operator, constant, attributes) in enumerate(steps):
                made = FILE + feed.name if at == len(steps) - 1 else f"{feed.name}/{at}"
                given = [last, constant] if constant else [last]
                opening.append(helper.make_node(operator, given, [made], **attributes))
                last = made
            start += feed.size
        if feeds:
            inputs.append(helper.make_tensor_value_info(whole, TensorProto.FLOAT, [1, start]))
    row = indices("row", (1, -1))
    for at, (name, size) in enumerate(zip(names, sizes, strict=True)):
        result = OUTPUTS if at == 0 else f"next/{at}"
        closing += [
            helper.make_node("Cast", [FILE + name], [f"{result}/float"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", [f"{result}/float", row], [f"{result}/row"]),
            helper.make_node("Gather", [f"{result}/row", indices(f"{result}/places", range(size))], [result], axis=1),
        ]
    outputs = [helper.make_tensor_value_info(OUTPUTS, TensorProto.FLOAT, [1, sizes[0]])]
    if held:
        rows = [f"next/{at}" for at in range(1, len(names))]
        closing.append(helper.make_node("Concat", rows, [NEXT_STATE], axis=1))
        outputs.append(helper.make_tensor_value_info(NEXT_STATE, TensorProto.FLOAT, [1, sum(sizes[1:])]))
    nodes = [*opening, *graph.node, *closing]
    for field, added in ((graph.node, nodes), (graph.input, inputs), (graph.output, outputs)):
        del field[:]
        field.extend(added)
    graph.initializer.extend(constants)
    data: bytes = model.SerializeToString()
    return data
