"""A LEAPP folder (configuration version 1.3, as LEAPP 0.7.2 writes it) around an artifact: NAME.yaml and NAME.onnx.

    field ─┐
    field ─┼ Concat ─ observation ─ the artifact's graph, unchanged ─ logits, action
    field ─┘

A folder of one node, without state. What LEAPP has no key for stands flat beside its keys, as LEAPP's own extras do:
units, bounds, names of discrete actions, precision, delay and fallback.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from typing import Any

import onnx
from onnx import TensorProto, helper

from convert.interface import ACTION, LOGITS, OBSERVATION
from convert.package.actions import action_bounds
from convert.package.yaml_text import document
from policy.bundle import Bundle
from policy.manifest import ArtifactEntry
from policy.spec import DiscreteHead, PolicySpec

CONFIG_VERSION = "1.3"


def leapp_files(bundle: Bundle, entry: ArtifactEntry) -> dict[str, bytes]:
    """The two files of the folder by name.

    Args:
        bundle: has the artifact.
        entry: an ONNX artifact of it.

    Raises:
        BundleError: the artifact's file is missing or another one.
    """
    name = bundle.spec.name
    model = with_fields(bundle.spec, bundle.artifact_data(entry))
    return {
        f"{name}.yaml": document(description(bundle.spec, entry, model)).encode(),
        f"{name}.onnx": model,
    }


def with_fields(spec: PolicySpec, data: bytes) -> bytes:
    """A copy of an ONNX artifact that takes each field of the observation as an input of its own.

    Args:
        spec: the policy's.
        data: the artifact; its input is ``observation``, float32 (1, observation_size).

    Returns:
        The model with inputs float32 (1, n), n the field's size, named by :func:`input_names`; outputs as they were.
    """
    model = onnx.load_from_string(data)
    graph, names = model.graph, input_names(spec, data)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, field.size])
        for name, field in zip(names, spec.observation, strict=True)
    ]
    if len(names) == 1:
        for node in graph.node:
            node.input[:] = [names[0] if each == OBSERVATION else each for each in node.input]
    else:
        graph.node.insert(0, helper.make_node("Concat", names, [OBSERVATION], name=OBSERVATION, axis=1))
    del graph.input[:]
    graph.input.extend(inputs)
    onnx.checker.check_model(model)
    made: bytes = model.SerializeToString()
    return made


def input_names(spec: PolicySpec, data: bytes) -> list[str]:
    """The fields' names as inputs: a slash, which LEAPP puts between node and input, becomes an underscore, and a name
    that the artifact's graph has already, or another field, is followed by ``_in``."""
    graph = onnx.load_from_string(data).graph
    taken = {output for node in graph.node for output in node.output} | {each.name for each in graph.initializer}
    if len(spec.observation) > 1:
        taken.add(OBSERVATION)
    names: list[str] = []
    for field in spec.observation:
        name = field.name.replace("/", "_")
        while name in taken:
            name += "_in"
        names.append(name)
        taken.add(name)
    return names


def description(spec: PolicySpec, entry: ArtifactEntry, model: bytes) -> dict[str, Any]:
    """What stands in NAME.yaml.

    Args:
        spec: the policy's.
        entry: of the artifact.
        model: the bytes of NAME.onnx.
    """
    read = onnx.load_from_string(model)
    inputs = list(_inputs(spec, [each.name for each in read.graph.input]))
    outputs = list(_outputs(spec))
    node = {
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {
            "model_path": f"{spec.name}.onnx",
            "md5sum": hashlib.md5(model, usedforsecurity=False).hexdigest(),
            "sha256sum": hashlib.sha256(model).hexdigest(),
            "backend": "onnx",
            "warp_segments": 0,
            "opset_version": next(each.version for each in read.opset_import if each.domain == ""),
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
        "feedback_flow": {},
        "inputs": {spec.name: [each["name"] for each in inputs]},
        "outputs": {spec.name: [each["name"] for each in outputs]},
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
        "written by": "python -m convert.package",
    }
    return {"models": {spec.name: node}, "pipeline": pipeline, "system information": system}


def _inputs(spec: PolicySpec, names: list[str]) -> Iterator[dict[str, Any]]:
    for name, field in zip(names, spec.observation, strict=True):
        made = _tensor(name, "float32", [1, field.size])
        if field.element_names:
            made["element_names"] = [list(field.element_names)]
        made["unit"] = field.unit
        if len(field.shape) > 1:
            made["field_shape"] = list(field.shape)
        if name != field.name:
            made["field"] = field.name
        yield made


def _outputs(spec: PolicySpec) -> Iterator[dict[str, Any]]:
    head = spec.head
    if isinstance(head, DiscreteHead):
        yield {**_tensor(LOGITS, "float32", [1, head.size]), "element_names": [list(head.action_names)]}
        yield {**_tensor(ACTION, "int64", [1]), "action_names": list(head.action_names)}
        return
    made = _tensor(ACTION, "float32", [1, head.size])
    if head.names:
        made["element_names"] = [list(head.names)]
    made["unit"] = head.unit
    if bounds := action_bounds(head):
        made |= {"low": [low for low, _ in bounds], "high": [high for _, high in bounds]}
    yield made


def _tensor(name: str, dtype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "type": "tensor"}
