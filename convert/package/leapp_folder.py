"""A LEAPP folder (configuration version 1.3, as LEAPP 0.7.2 writes it) around an artifact: NAME.yaml and NAME.onnx.

    field ─┐
    field ─┼ Concat ─ observation ─ the artifact's graph, unchanged ─ logits, action
    field ─┘

A folder of one node. A field that remembers is a state: its input NAME_in holds the earlier rows, this period's is an
input, and NAME_out, which is fed back, has lost the oldest row. What LEAPP has no key for stands flat beside its keys,
as LEAPP's own extras do: units, bounds, names of discrete actions, precision, delay and fallback.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save

from quarl.convert.interface import ACTION, LOGITS, NEXT_STATE, OBSERVATION, STATE
from quarl.convert.package.actions import action_bounds
from quarl.convert.package.yaml_text import document
from quarl.policy.bundle import Bundle
from quarl.policy.reading import ArtifactEntry
from quarl.policy.spec import DiscreteHead, MultiDiscreteHead, ObservationField, PolicySpec, Remembered

CONFIG_VERSION = "1.3"
INITIAL = "_initial_values.safetensors"


def leapp_files(bundle: Bundle, entry: ArtifactEntry) -> dict[str, bytes]:
    """Return the files of the folder by name: description, model, and initial values where there is state.

    Args:
        bundle: has the artifact.
        entry: an ONNX artifact of it.

    Raises:
        BundleError: the artifact's file is missing or another one.
    """
    name = bundle.spec.name
    model = with_fields(bundle.spec, bundle.artifact_data(entry))
    files = {
        f"{name}.yaml": document(description(bundle.spec, entry, model)).encode(),
        f"{name}.onnx": model,
    }
    names = input_names(bundle.spec, bundle.artifact_data(entry))
    initial = {
        f"{name}/{called}_in": np.tile(np.array(field.memory.initial, np.float32), (1, _earlier(field)))
        for called, field in zip(names, bundle.spec.observation, strict=True)
        if field.memory is not None and _earlier(field)
    }
    return files | ({f"{name}{INITIAL}": save(initial)} if initial else {})


def _earlier(field: ObservationField) -> int:
    """Rows of a field that come from earlier periods."""
    if field.memory is None:
        return 0
    return field.shape[0] - (field.memory.of is Remembered.OBSERVATION)


def with_fields(spec: PolicySpec, data: bytes) -> bytes:
    """Return a copy of an ONNX artifact that takes each field of the observation as an input of its own.

    Args:
        spec: the policy's.
        data: the artifact; its input is ``observation``, float32 (1, observation_size).

    Returns:
        The model with inputs float32 (1, n), n a row's size, named by :func:`input_names`, then its states; outputs as
        they were, then the states'.
    """
    model = onnx.load_from_string(data)
    graph, names = model.graph, input_names(spec, data)
    inputs, states, outputs = [], [], []  # LEAPP feeds them in the description's order
    parts: list[str] = []
    recurrent: list[str] = []
    start = 0
    for name, field in zip(names, spec.observation, strict=True):
        size, earlier = field.row_size, _earlier(field)
        rows = [f"{name}_in"] * bool(earlier) + [name] * field.is_brought
        inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])] * field.is_brought
        (recurrent if field.is_state else parts).extend(rows)
        newest = name if field.is_brought else ACTION
        if field.is_state:
            newest = f"{name}_out/next"
            graph.node.append(_build_slice_node(graph, NEXT_STATE, start, start + size, newest))
            start += size
        if earlier:
            states.append(helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, [1, earlier * size]))
            outputs.append(helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [1, earlier * size]))
            graph.node.extend(_build_shift_nodes(graph, name, size, earlier, newest))
    if parts == [names[0]]:
        for node in graph.node:
            node.input[:] = [names[0] if value == OBSERVATION else value for value in node.input]
    else:
        graph.node.insert(0, helper.make_node("Concat", parts, [OBSERVATION], name=OBSERVATION, axis=1))
    if recurrent:
        graph.node.insert(0, helper.make_node("Concat", recurrent, [STATE], name=STATE, axis=1))
        remaining = [value for value in graph.output if value.name != NEXT_STATE]
        del graph.output[:]
        graph.output.extend(remaining)
    del graph.input[:]
    graph.input.extend([*inputs, *states])
    graph.output.extend(outputs)
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized


def _build_shift_nodes(graph: onnx.GraphProto, name: str, size: int, rows: int, newest: str) -> list[onnx.NodeProto]:
    """Nodes that make NAME_out of NAME_in: without its oldest row, behind it the newest."""
    if rows == 1:
        return [helper.make_node("Identity", [newest], [f"{name}_out"], name=f"{name}_out")]
    return [
        _build_slice_node(graph, f"{name}_in", size, rows * size, f"{name}_in/kept"),
        helper.make_node("Concat", [f"{name}_in/kept", newest], [f"{name}_out"], name=f"{name}_out", axis=1),
    ]


def _build_slice_node(graph: onnx.GraphProto, x: str, start: int, end: int, output: str) -> onnx.NodeProto:
    """Elements ``start`` … ``end`` − 1 of (1, n)."""
    bounds = []
    for bound, value in (("starts", start), ("ends", end), ("axes", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), f"{output}/{bound}"))
        bounds.append(f"{output}/{bound}")
    return helper.make_node("Slice", [x, *bounds], [output], name=output)


def input_names(spec: PolicySpec, data: bytes) -> list[str]:
    """Return the fields' names as inputs: a slash, which LEAPP puts between node and input, becomes an underscore, and
    a name that the artifact's graph has already, or another field, is followed by ``_in``."""
    graph = onnx.load_from_string(data).graph
    used_names = {output for node in graph.node for output in node.output} | {
        constant.name for constant in graph.initializer
    }
    if len(spec.observation) > 1:
        used_names.add(OBSERVATION)
    names: list[str] = []
    for field in spec.observation:
        name = field.name.replace("/", "_")
        ends = ("", "_in", "_out") if field.memory else ("",)
        while used_names & {name + end for end in ends}:
            name += "_in"
        names.append(name)
        used_names |= {name + end for end in ends}
    return names


def description(spec: PolicySpec, entry: ArtifactEntry, model: bytes) -> dict[str, Any]:
    """Return what stands in NAME.yaml.

    Args:
        spec: the policy's.
        entry: of the artifact.
        model: the bytes of NAME.onnx.
    """
    read = onnx.load_from_string(model)
    graph_inputs, graph_outputs = ([item.name for item in values] for values in (read.graph.input, read.graph.output))
    pairs = {name: f"{name[:-3]}_out" for name in graph_inputs if name.endswith("_in")}
    states = {name: output for name, output in pairs.items() if output in graph_outputs}
    names = [name for name in graph_inputs if name not in states]
    sensed = [field for field in spec.observation if field.is_brought]
    inputs, outputs = list(_inputs(names, sensed)), list(_outputs(spec))
    sizes = {item.name: item.type.tensor_type.shape.dim[1].dim_value for item in read.graph.input}
    node = {
        "inputs": inputs + [_tensor(name, "float32", [1, sizes[name]]) for name in states],
        "outputs": outputs + [_tensor(state, "float32", [1, sizes[name]]) for name, state in states.items()],
        "parameters": {
            "model_path": f"{spec.name}.onnx",
            "md5sum": hashlib.md5(model, usedforsecurity=False).hexdigest(),
            "sha256sum": hashlib.sha256(model).hexdigest(),
            "backend": "onnx",
            "warp_segments": 0,
            "opset_version": next(item.version for item in read.opset_import if item.domain == ""),
            "precision": entry.precision.value,
            "artifact_sha256": entry.record.sha256,
        },
    }
    configs: dict[str, Any] = {"frequency": 1.0 / spec.control_period_s, "delay_s": spec.delay_s}
    if spec.fallback:
        configs["fallback"] = list(spec.fallback)
    pipeline = {
        "configs": configs,
        "data_flow": {},
        "feedback_flow": {f"{spec.name}/{out}": [f"{spec.name}/{name}"] for name, out in states.items()},
        **({"initial_values": f"{spec.name}{INITIAL}"} if states else {}),
        "inputs": {spec.name: [item["name"] for item in inputs]},
        "outputs": {spec.name: [item["name"] for item in outputs]},
    }
    system = {
        "cuda version": None,
        "leapp config version": CONFIG_VERSION,
        "leapp version": None,
        "onnx version": onnx.__version__,
        "os": platform.system(),
        "python version": platform.python_version(),
        "torch version": None,
        "warp version": None,
        "written by": "quarl package",
    }
    return {"models": {spec.name: node}, "pipeline": pipeline, "system information": system}


def _inputs(names: list[str], fields: list[ObservationField]) -> Iterator[dict[str, Any]]:
    for name, field in zip(names, fields, strict=True):
        entry = _tensor(name, "float32", [1, field.row_size])
        if field.element_names:
            entry["element_names"] = [list(field.element_names)]
        entry["unit"] = field.unit
        if len(field.shape) > 1 and field.memory is None:
            entry["field_shape"] = list(field.shape)
        if name != field.name:
            entry["field"] = field.name
        yield entry


def _outputs(spec: PolicySpec) -> Iterator[dict[str, Any]]:
    head = spec.head
    if isinstance(head, DiscreteHead):
        yield {**_tensor(LOGITS, "float32", [1, head.size]), "element_names": [list(head.action_names)]}
        start = {"first_action": head.start} if head.start else {}
        yield {**_tensor(ACTION, "int64", [1]), "action_names": list(head.action_names), **start}
        return
    if isinstance(head, MultiDiscreteHead):
        choices: dict[str, Any] = {"choices": list(head.counts)}
        choices |= {"first_actions": list(head.starts)} if head.starts else {}
        yield {**_tensor(LOGITS, "float32", [1, head.size]), **choices}
        return
    entry = _tensor(ACTION, "float32", [1, head.size])
    if head.names:
        entry["element_names"] = [list(head.names)]
    entry["unit"] = head.unit
    if bounds := action_bounds(head):
        entry |= {"low": [low for low, _ in bounds], "high": [high for _, high in bounds]}
    yield entry


def _tensor(name: str, dtype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "type": "tensor"}
