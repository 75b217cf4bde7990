"""The YAML of a LEAPP folder: what goes in and out by name, which file computes it, and which output is fed back.

Everything in it is a stranger's: it is read as plain YAML (no tags), bounded, and each name is checked before it is a
path or a key. One node whose model is ONNX is what can become a policy here; everything else is refused by its name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.zip_members import read_untrusted
from quarl.policy.json_values import abbreviate, is_text

LARGEST_YAML = 1 << 17
MOST_TENSORS, MOST_SIDES, MOST_FREQUENT, LONGEST_TEXT = 1000, 8, 1e6, 200
UNITS = {
    "joint/position": "rad",
    "joint/velocity": "rad/s",
    "joint/effort": "N·m",
    "joint/torques": "N·m",
    "body/linear_velocity": "m/s",
    "body/angular_velocity": "rad/s",
    "body/linear_acceleration": "m/s²",
    "body/angular_acceleration": "rad/s²",
    "body/position": "m",
}
"""Units by what follows ``state/``, ``command/`` or ``target/``, for the kinds that have one."""


@dataclass(frozen=True)
class Tensor:
    """A named input or output.

    Attributes:
        name: of the model's tensor.
        shape: with the batch of 1.
        unit: by its kind; "1" where it has none or several.
        element_names: of its last axis, or none.
    """

    name: str
    shape: tuple[int, ...]
    unit: str
    element_names: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Description:
    """One ONNX node with its wiring.

    Attributes:
        source: what wrote it, for people.
        node: its name.
        model: the ONNX file.
        sha256: that it has to have; empty where nothing says.
        inputs, outputs: of the model, by name, in order.
        results: names of the outputs that leave the pipeline.
        feedback: output that an input gets the period after, by the input's name.
        initial_values: file of what these inputs are before the first period, or None.
        frequency: periods a second; None where the file does not say.
        versions: what wrote it.
    """

    source: str
    node: str
    model: Path
    sha256: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    results: tuple[str, ...]
    feedback: dict[str, str]
    initial_values: Path | None
    frequency: float | None
    versions: dict[str, str]


def describe(path: Path) -> Description:
    """Read and check a folder's YAML, given the folder or the file.

    Raises:
        ForeignError: none, several nodes, another backend than ONNX, or a document that is no description.
    """
    file = _yaml_of(path)
    document = _parse_yaml(file)
    models = _mapping(document.get("models"), "models", file)
    if len(models) != 1:
        nodes = sorted(name for name in models if isinstance(name, str))
        raise ForeignError(
            f"{file.name} must have one node, got {len(models)} ({abbreviate(nodes)}).",
            "Export the policy as a single node.",
        )
    ((node, model),) = models.items()
    model = _mapping(model, f"models.{node}", file)
    parameters = _mapping(model.get("parameters"), f"models.{node}.parameters", file)
    if parameters.get("backend") != "onnx":
        raise ForeignError(
            f"the backend of the node {node!r} must be onnx, got {abbreviate(parameters.get('backend'))}.",
            'Export it with export_with="onnx".',
        )
    pipeline = _mapping(document.get("pipeline"), "pipeline", file)
    if pipeline.get("data_flow"):
        raise ForeignError(f"{file.name} wires a node's output to an input within one period.", "Export a single node.")
    inputs, outputs = (_tensors(model.get(name), f"models.{node}.{name}", file) for name in ("inputs", "outputs"))
    results = _mapping(pipeline.get("outputs"), "pipeline.outputs", file).get(node)
    listed = results if isinstance(results, list) else []
    if not listed or not all(isinstance(name, str) and name in outputs for name in listed):
        raise ForeignError(f"{file.name}: pipeline.outputs of {node!r} must be its outputs, got {abbreviate(results)}.")
    feedback = _feedback(pipeline.get("feedback_flow") or {}, str(node), inputs, outputs, file)
    pipeline_inputs = _mapping(pipeline.get("inputs"), "pipeline.inputs", file).get(node)
    if not isinstance(pipeline_inputs, list) or sorted(map(str, pipeline_inputs)) != sorted(
        inputs.keys() - feedback.keys()
    ):
        raise ForeignError(
            f"{file.name}: pipeline.inputs of {node!r} must be the model's inputs without those fed back, "
            f"{sorted(inputs.keys() - feedback.keys())}, got {abbreviate(pipeline_inputs)}.",
            "Export the folder again.",
        )
    initial = pipeline.get("initial_values")
    versions = _versions(document)
    return Description(
        source=f"LEAPP {versions.get('leapp version', '')}, node {node!r}",
        node=str(node),
        model=_inside(file.parent, parameters.get("model_path"), "model_path"),
        sha256=_text(parameters.get("sha256sum")).lower(),
        inputs=inputs,
        outputs=outputs,
        results=tuple(dict.fromkeys(listed)),
        feedback=feedback,
        initial_values=None if initial is None else _inside(file.parent, initial, "initial_values"),
        frequency=_frequency(pipeline, file),
        versions=versions,
    )


def _yaml_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    named = path / f"{path.resolve().name}.yaml"
    candidates = [named] if named.is_file() else sorted(path.glob("*.yaml"))
    if len(candidates) != 1:
        raise ForeignError(
            f"{path} must hold one YAML file, as a LEAPP folder NAME has NAME.yaml, got {len(candidates)}.",
            "Type the path of the YAML file itself.",
        )
    return candidates[0]


def _parse_yaml(file: Path) -> dict[str, Any]:
    data = read_untrusted(file, LARGEST_YAML)
    try:
        document = yaml.load(data, Loader=_Plain)
    except RecursionError:
        raise ForeignError(f"{file.name} is not supported YAML: too deeply nested.") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ForeignError(f"{file.name} is not supported YAML: {abbreviate(str(error))}.") from None
    return _mapping(document, "the document", file)


class _Plain(yaml.SafeLoader):
    """YAML without anchors: a few lines of them unfold to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("it must not have an alias (*name)")
        return super().compose_node(parent, index)


def _mapping(value: Any, what: str, file: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ForeignError(f"{file.name}: {what} must be a mapping, got {abbreviate(value)}.", "Is it LEAPP's YAML?")
    return value


def _tensors(value: Any, what: str, file: Path) -> dict[str, Tensor]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_TENSORS:
        raise ForeignError(f"{file.name}: {what} must be a list of tensors, got {abbreviate(value)}.")
    tensors: dict[str, Tensor] = {}
    for entry in value:
        entry = _mapping(entry, f"an entry of {what}", file)
        name, shape = entry.get("name"), entry.get("shape")
        if not isinstance(name, str) or not is_text(name) or name in tensors:
            raise ForeignError(f"{file.name}: names in {what} must be unique strings, got {abbreviate(name)}.")
        sides = shape if isinstance(shape, list) else []
        if not 0 < len(sides) <= MOST_SIDES or not all(type(side) is int and 0 < side < 2**20 for side in sides):
            raise ForeignError(f"{file.name}: shape of {name!r} must be positive integers, got {abbreviate(shape)}.")
        kind = _text(entry.get("kind")).partition("/")[2]
        names = _element_names(entry.get("element_names"), sides[-1])
        tensors[name] = Tensor(name, tuple(sides), UNITS.get(kind, "1"), names if len(sides) <= 2 else ())
    return tensors


def _element_names(value: Any, size: int) -> tuple[str, ...]:
    """Names of the last axis, if they are as many as its elements; LEAPP has a list for each axis, or None."""
    axes = value if isinstance(value, list) else []
    last = axes[-1] if axes and isinstance(axes[-1], list) else axes
    names = tuple(name for name in last if isinstance(name, str) and is_text(name))
    return names if len(names) == len(last) == size else ()


def _feedback(
    value: Any, node: str, inputs: dict[str, Tensor], outputs: dict[str, Tensor], file: Path
) -> dict[str, str]:
    feedback: dict[str, str] = {}
    for source, targets in _mapping(value, "pipeline.feedback_flow", file).items():
        output = _text(source).removeprefix(f"{node}/")
        for target in targets if isinstance(targets, list) else [targets]:
            name = _text(target).removeprefix(f"{node}/")
            if output not in outputs or name not in inputs or name in feedback:
                raise ForeignError(f"{file.name}: bad feedback_flow from {abbreviate(source)} to {abbreviate(target)}.")
            if outputs[output].size != inputs[name].size:
                raise ForeignError(f"{file.name}: {output!r} must have the size of {name!r}, to which it is fed back.")
            feedback[name] = output
    return feedback


def _inside(folder: Path, name: Any, what: str) -> Path:
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise ForeignError(f"{what} must be a file inside the folder, got {abbreviate(name)}.", "Export it again.")
    place = folder
    for part in parts:
        place = place / part
        if place.is_symlink():
            raise ForeignError(f"{what} {name!r} must not be a link.", "Copy the file itself.")
    return place


def _frequency(pipeline: dict[Any, Any], file: Path) -> float | None:
    configs = pipeline.get("configs") or {}
    value = configs.get("frequency") if isinstance(configs, dict) else None
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < MOST_FREQUENT:
        raise ForeignError(f"{file.name}: configs.frequency must be periods per second, got {abbreviate(value)}.")
    return float(value)


def _versions(document: dict[str, Any]) -> dict[str, str]:
    system = document.get("system information")
    entries = system if isinstance(system, dict) else {}
    names = ("leapp version", "leapp config version", "torch version")
    return {"format": "leapp"} | {name: _text(entries[name]) for name in names if name in entries}


def _text(value: Any) -> str:
    """Return a string, or a number's; nothing of anything else, and not more than a line."""
    plain = isinstance(value, str | float) or (type(value) is int and abs(value) < 10**9)
    return str(value)[:LONGEST_TEXT] if plain else ""
