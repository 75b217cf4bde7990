"""A LEAPP folder: its YAML gives names, units, period and wiring; its ONNX model is read as any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from quarl.convert.importers.chain import Continuous, Doubles, ForeignError, ForeignPolicy, Input, relabel
from quarl.convert.importers.leapp.description import Description, Tensor, describe
from quarl.convert.importers.onnx.file import OnnxFile, load
from quarl.convert.importers.onnx.inputs import reach_of
from quarl.convert.importers.onnx.reader import read_graph
from quarl.convert.importers.registry import Importer

LARGEST_INITIAL = 1e18


def read_leapp(path: Path, output: str | None = None) -> ForeignPolicy:
    """Return the policy in a LEAPP folder.

    Args:
        path: the folder, or its YAML.
        output: which of the pipeline's outputs acts; default the only one that depends on an input.

    Raises:
        ForeignError: several nodes, another backend, a model that is not the one that the YAML describes, or whatever
            the ONNX reader refuses.
    """
    described = describe(path)
    file = load(described.model)
    if described.sha256 != file.hashes[described.model.name]:
        difference = "differs" if described.sha256 else "is missing there"
        raise ForeignError(
            f"{described.model.name} must be the file that the YAML lists: its sha256 {difference}.",
            "Export the folder again, or copy all of it.",
        )
    return read_described(described, file, output)


def read_described(described: Description, file: OnnxFile, output: str | None) -> ForeignPolicy:
    """Return the policy of a model whose inputs, outputs and wiring are known; errors as :func:`read_leapp`."""
    _check_inputs(described, file)
    chosen = _choose(described, file, output)
    policy = read_graph(file, chosen, described.feedback, _initial_values(described))
    return relabel(policy, lambda each: _apply_description(described, each, described.outputs[chosen]))


def _check_inputs(described: Description, file: OnnxFile) -> None:
    """Raise ForeignError if the model's inputs are not those that the YAML describes, name by name and in size."""
    sizes = {}
    for value in file.model.graph.input:
        if value.name not in file.constants:
            sides = [max(axis.dim_value, 1) for axis in value.type.tensor_type.shape.dim]
            sizes[value.name] = int(np.prod(sides))
    wanted = {name: tensor.size for name, tensor in described.inputs.items()}
    if sizes != wanted:
        odd = sorted(name for name in sizes.keys() | wanted.keys() if sizes.get(name) != wanted.get(name))
        raise ForeignError(
            f"the model's input {odd[0]!r} must have {wanted.get(odd[0], 'no')} elements as in the YAML, "
            f"got {sizes.get(odd[0], 'no')}.",
            "Export the folder again.",
        )


def _choose(described: Description, file: OnnxFile, output: str | None) -> str:
    inputs = set(described.inputs)
    living = [name for name in described.results if reach_of(file, name).tensors & inputs]
    if output is not None:
        if output not in living:
            raise ForeignError(f"--output must be one of {living}, which depend on an input, got {output!r}.")
        return output
    if len(living) != 1:
        raise ForeignError(f"the node must have one output, got {len(living)}: {living}.", "Type --output NAME.")
    return living[0]


def _initial_values(described: Description) -> dict[str, Doubles]:
    """Return the value of each state before the first period, flat, where the folder has one."""
    if described.initial_values is None:
        return {}
    from quarl.convert.importers.weights import tensors_of

    stored = tensors_of(described.initial_values)
    initial_states = {}
    for name in described.feedback:
        if (values := stored.get(f"{described.node}/{name}")) is None:
            continue
        values, size = np.asarray(values, np.float64).reshape(-1), described.inputs[name].size
        if len(values) != size:
            raise ForeignError(f"the initial value of the state {name!r} must have {size} elements, got {len(values)}.")
        if not (np.abs(values) < LARGEST_INITIAL).all():
            raise ForeignError(f"the initial value of the state {name!r} must be within ±{LARGEST_INITIAL:g}.")
        initial_states[name] = values
    return initial_states


def _apply_description(described: Description, policy: ForeignPolicy, target: Tensor) -> ForeignPolicy:
    """Return the policy with the folder's names, units and period."""
    actions = policy.actions
    if not policy.is_discrete:
        actions = Continuous(target.element_names if len(target.element_names) == target.size else (), target.unit)
    return replace(
        policy,
        source=described.source,
        inputs=tuple(_with_units(part, described.inputs) for part in policy.inputs),
        actions=actions,
        period_s=None if described.frequency is None else 1.0 / described.frequency,
        provenance={"node": described.node, **(policy.provenance or {}), **described.versions},
    )


def _with_units(part: Input, tensors: Mapping[str, Tensor]) -> Input:
    tensor = tensors.get(part.name)
    if tensor is None or part.memory is not None:
        return part
    return replace(part, unit=tensor.unit, element_names=tensor.element_names)


IMPORTER = Importer("LEAPP", ("", ".yaml", ".yml"), read_leapp, ("output",))
