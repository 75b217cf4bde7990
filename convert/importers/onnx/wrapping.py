"""An opaque graph's frame: what executes it first, under limits, and the nodes that give it an artifact's interface."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from quarl.convert.importers.chain import Affine, Clip, Continuous, Discrete, ForeignError, Opaque
from quarl.convert.importers.onnx.original import Feed
from quarl.convert.importers.prefix import Prefix
from quarl.convert.interface import ACTION, LOGITS, NEXT_STATE, OBSERVATION, STATE

FILE, OUTPUTS = "file/", "outputs"
"""What stands before every name of the file in the wrapped graph, and what its chosen output is called there."""
LARGEST_MEMORY, LONGEST_S = 8 << 30, 60
"""Bytes and CPU seconds that a graph may take for its first observations."""


PROBE = """
import resource, sys
import numpy, onnxruntime
memory, seconds, model, given, *names = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
onnxruntime.set_default_logger_severity(4)
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
feeds = {name[3:]: array for name, array in numpy.load(given).items()}
for made in map(numpy.asarray, session.run(names, feeds)):
    print(made.dtype.kind, *made.shape)
"""


class OutputInfo(NamedTuple):
    """An output as it came out: its shape, and whether it holds floats."""

    shape: tuple[int, ...]
    is_float: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def probe_outputs(part: bytes, feeds: Sequence[Feed], names: Sequence[str]) -> list[OutputInfo]:
    """Execute a graph on ones, in a process with limits, and return what these outputs are.

    Raises:
        ForeignError: onnxruntime refuses the graph, crashes, or takes more time or memory than LONGEST_S and
            LARGEST_MEMORY.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, inputs_path = Path(folder) / "part.onnx", Path(folder) / "given.npz"
        model.write_bytes(part)
        np.savez(inputs_path, **{f"in/{feed.name}": np.ones(feed.shape, feed.kind) for feed in feeds})
        command = [
            sys.executable,
            "-c",
            PROBE,
            str(LARGEST_MEMORY),
            str(LONGEST_S),
            str(model),
            str(inputs_path),
            *names,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * LONGEST_S)
        except subprocess.TimeoutExpired:
            raise ForeignError(f"onnxruntime did not finish the file within {2 * LONGEST_S} s.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise ForeignError(f"onnxruntime cannot execute the file ({lines[-1][:500]}).", "Export the policy again.")
    printed = [line.split() for line in done.stdout.splitlines()]
    return [OutputInfo(tuple(map(int, words[1:])), words[0] == "f") for words in printed]


def computes_in_half(part: bytes) -> bool:
    """Return whether a graph holds float16: in constants, inputs or casts."""
    model = onnx.load_model_from_string(part)
    half = TensorProto.FLOAT16
    held = [tensor.data_type for tensor in model.graph.initializer]
    held += [value.type.tensor_type.elem_type for value in model.graph.input]
    for attribute in (item for node in model.graph.node for item in node.attribute):
        held += [attribute.t.data_type, attribute.i if attribute.name in ("to", "dtype") else 0]
    return half in held


def convert_half(part: bytes) -> bytes:
    """Return a float16 graph in float32: processors without half arithmetic compute in float32 anyhow."""
    model = onnx.load_model_from_string(part)
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == half:
                attribute.i = single
            if attribute.t.data_type == half:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float32)))
    for tensor in model.graph.initializer:
        if tensor.data_type == half:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = single
    data: bytes = model.SerializeToString()
    return data


def wrap_graph(
    part: bytes, observed: Sequence[Feed], held: Sequence[Feed], names: Sequence[str], sizes: Sequence[int]
) -> bytes:
    """Return the graph with one row of observation and of states in, and one of outputs and of next states out."""
    model = onnx.compose.add_prefix(onnx.load_model_from_string(part), FILE)
    graph = model.graph
    opening, closing, constants, inputs = [], [], [], []

    def indices(name: str, values: Iterable[int]) -> str:
        constants.append(numpy_helper.from_array(np.array(list(values), np.int64), name))
        return name

    for input_name, feeds in ((OBSERVATION, observed), (STATE, held)):
        start = 0
        for feed in feeds:
            steps: list[tuple[str, str, dict[str, Any]]] = [
                ("Gather", indices(f"in/{feed.name}/places", range(start, start + feed.size)), {"axis": 1})
            ]
            shape = (1, *feed.shape[1:]) if feed.copies > 1 else feed.shape
            if feed.image:
                steps.append(("Reshape", indices(f"in/{feed.name}/image", (1, *feed.image)), {}))
                steps.append(("Transpose", "", {"perm": [0, 3, 1, 2]}))
            steps.append(("Reshape", indices(f"in/{feed.name}/shape", shape), {}))
            if feed.copies > 1:
                steps.append(("Expand", indices(f"in/{feed.name}/copies", feed.shape), {}))
            kind = np.dtype(np.float32) if feed.kind == np.float16 else feed.kind
            steps.append(("Cast", "", {"to": helper.np_dtype_to_tensor_dtype(kind)}))
            last = input_name
            for at, (operator, constant, attributes) in enumerate(steps):
                output_name = FILE + feed.name if at == len(steps) - 1 else f"in/{feed.name}/{at}"
                operands = [last, constant] if constant else [last]
                opening.append(helper.make_node(operator, operands, [output_name], **attributes))
                last = output_name
            start += feed.size
        if feeds:
            inputs.append(helper.make_tensor_value_info(input_name, TensorProto.FLOAT, [1, start]))
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


def finish_graph(
    step: Opaque, after: Sequence[Affine | Clip], actions: Discrete | Continuous | None
) -> tuple[bytes, Prefix]:
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
    name = LOGITS if isinstance(actions, Discrete) else ACTION
    graph.node.append(helper.make_node("Identity", [last], [name]))
    following = [value for value in graph.output if value.name == NEXT_STATE]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, step.outputs]), *following]
    if isinstance(actions, Discrete) and not actions.counts:
        graph.node.append(helper.make_node("ArgMax", [LOGITS], [ACTION], axis=1, keepdims=0))
        outputs.append(helper.make_tensor_value_info(ACTION, TensorProto.INT64, [1]))
    del graph.output[:]
    graph.output.extend(outputs)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data, behind
