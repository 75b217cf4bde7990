"""exploy's ONNX files: observation and action code of an environment in one graph, wired by its tensors' names.

Inputs are called by what feeds them (``obj.robot.joints.pos``, ``cmd.se2_velocity.vel``), outputs by what they drive
(``output.joint_targets.legs.pos``); ``memory.NAME.out`` is fed back as ``memory.NAME.in``. JSON in its properties
names the joints and the rate. Such a file is read as a LEAPP folder is. The exporter also wraps it in an ``If`` on the
simulation's step, which is refused: the graph of a decision lies beside it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx

from quarl.convert.importers.chain import ForeignError, ForeignPolicy
from quarl.convert.importers.leapp.description import Description, Tensor
from quarl.convert.importers.leapp.reader import read_described
from quarl.convert.importers.onnx.file import load
from quarl.convert.importers.onnx.metadata import properties_of
from quarl.convert.importers.registry import Importer
from quarl.policy.json_values import is_text

STEP = "ctx.step_count"
UNITS = {
    "joints.pos": "rad",
    "joints.vel": "rad/s",
    "joint_targets.pos": "rad",
    "joint_targets.vel": "rad/s",
    "joint_targets.effort": "N·m",
    "lin_vel_b_rt_w_in_b": "m/s",
    "ang_vel_b_rt_w_in_b": "rad/s",
    "pos_b_rt_w_in_w": "m",
    "height": "m",
}
"""Units by the last words of a tensor's name, the component's own name left out."""


def is_exploy(path: Path) -> bool:
    """Return whether a file says that exploy wrote it, or is wired as its files are."""
    file = load(path)
    inputs = [value.name for value in file.model.graph.input]
    return "exploy_version" in properties_of(file.model) or any(
        name == STEP or (name.startswith("memory.") and name.endswith(".in")) for name in inputs
    )


def read_exploy(path: Path, output: str | None = None) -> ForeignPolicy:
    """Return the policy of a file of exploy's.

    Args:
        path: of the file.
        output: which of its outputs acts; default the only ``output.…`` that depends on an input.

    Raises:
        ForeignError: it does not decide at every step, or is nothing that a LEAPP folder may be.
    """
    file = load(path)
    if any(node.op_type == "If" for node in file.model.graph.node):
        raise ForeignError(
            f"{path.name} must decide in every step of the simulation, got an If on {STEP!r}.",
            "Use the graph of one decision; exploy writes it to the same folder, with 'default' in its name.",
            code="partial_graph",
        )
    properties = properties_of(file.model)
    inputs, outputs = (
        {value.name: _tensor(value, properties) for value in values}
        for values in (file.model.graph.input, file.model.graph.output)
    )
    feedback = {f"{name[:-4]}.in": name for name in outputs if name.startswith("memory.") and name.endswith(".out")}
    missing = sorted(name for name in feedback if name not in inputs)
    results = [name for name in outputs if name.startswith("output.")] or [n for n in outputs if n == "actions"]
    if output is not None and output in outputs:
        results = [output]
    if not results:
        raise ForeignError(f"{path.name} must have an output 'actions' or 'output.…', got {sorted(outputs)[:20]}.")
    described = Description(
        source=f"exploy {_json(properties, 'exploy_version') or ''}".strip(),
        node="policy",
        model=path,
        sha256="",
        inputs=inputs,
        outputs=outputs,
        results=tuple(results),
        feedback={name: source for name, source in feedback.items() if name not in missing},
        initial_values=None,
        frequency=_rate(properties),
        versions={"format": "exploy"},
    )
    return read_described(described, file, output)


def _tensor(value: onnx.ValueInfoProto, properties: dict[str, str]) -> Tensor:
    shape = tuple(axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim)
    kind, *rest = value.name.split(".")
    unit = next((unit for end, unit in UNITS.items() if ".".join(rest[-2:]) == end or rest[-1:] == [end]), "1")
    if kind == "output" and rest[:1] == ["joint_targets"]:
        unit = UNITS.get(f"joint_targets.{rest[-1]}", "1")
    metadata = _json(properties, value.name.rpartition(".")[0])
    listed = (metadata.get("joint_names") or metadata.get("names")) if isinstance(metadata, dict) else None
    entries = listed if isinstance(listed, list) else []
    names = tuple(name for name in entries if isinstance(name, str) and is_text(name))
    return Tensor(value.name, shape, unit, names if len(names) == math.prod(shape) else ())


def _rate(properties: dict[str, str]) -> float | None:
    rate = _json(properties, "update_rate")
    return float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e6 else None


def _json(properties: dict[str, str], key: str) -> Any:
    try:
        return json.loads(properties.get(key, "null"))
    except (ValueError, RecursionError):
        return None


IMPORTER = Importer("exploy", (".onnx",), read_exploy, ("output",), is_exploy)
