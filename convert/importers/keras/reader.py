"""Read a policy that Keras 3 saved: ``model.save("policy.keras")``.

The chain computes what ``model(observation, training=False)`` computes; of a softmax, what it is taken of. The file is
a zip of a config (JSON) and of an HDF5 file with the weights; both are read as data, without Keras.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
from pathlib import Path

import numpy as np

from quarl.convert.importers.chain import Affine, Discrete, Doubles, ForeignError, ForeignPolicy, Input, Step
from quarl.convert.importers.keras.graph import Item, Model, Route, Tensor, own_settings, parse, route
from quarl.convert.importers.keras.layers import Layers, input_shape
from quarl.convert.importers.keras.original import Original, rebuilt
from quarl.convert.importers.keras.tensors import Tensors, damaged, read_tensors
from quarl.convert.importers.pickles.nodes import printable
from quarl.convert.importers.zip_members import open_zip, read_untrusted
from quarl.policy.json_values import JsonValueError, parse_object, shortened

MOST_CONFIG_BYTES = 16 * 2**20
_MEMBERS = ("metadata.json", "config.json", "model.weights.h5")


def read_keras(path: Path, output: str | None = None) -> ForeignPolicy:
    """The policy in a file of Keras 3.

    Args:
        path: what ``model.save`` wrote.
        output: of a model with several: its key, or its layer's name.

    Raises:
        ForeignError: the file is damaged, no such file, or holds a model that no chain expresses.
    """
    what = printable(path.name)
    data = read_untrusted(path)
    members = open_zip(data, what)
    if missing := [name for name in _MEMBERS if name not in members.names]:
        raise damaged(f"{what} has no member {missing[0]}, so it is no file of Keras 3")
    try:
        config = parse_object(members.read("config.json", MOST_CONFIG_BYTES))
        metadata = parse_object(members.read("metadata.json", MOST_CONFIG_BYTES))
    except JsonValueError as error:
        raise damaged(f"the config of {what} cannot be used: {error}") from None
    version = metadata.get("keras_version")
    if not isinstance(version, str) or re.fullmatch(r"3\.[\w.+-]{1,40}", version) is None:
        raise ForeignError(
            f"{what} was written by Keras {shortened(version)}; read is Keras 3.",
            "Load it with Keras 3, and save it again: model.save(FILE.keras).",
        )
    model = parse(config)
    name, end = _chosen(model, output)
    way = route(model, end)
    tensors = read_tensors(members.read("model.weights.h5"), f"{what}'s weights")
    inputs, layers = _steps(way, tensors)
    others = [f"{printable(item.name)} ({item.kind})" for item in model.items if not way.has(item)]
    shown = f"{', '.join(others[:6])}{', …' if len(others) > 6 else ''}"
    given = rebuilt(model, way, layers.softmax) if importlib.util.find_spec("keras") is not None else None
    return ForeignPolicy(
        source=f"Keras {version}",
        inputs=inputs,
        steps=tuple(layers.steps),
        actions=Discrete() if layers.softmax else None,
        ignored=(f"{len(others)} layers that the output {name} does not need: {shown}",) if others else (),
        assumed=_assumed(layers),
        original=None
        if given is None
        else Original(given, tensors, tuple(first[0].name for first in way.branches), end),
        provenance={
            "program": "Keras",
            "version": version,
            "output": name,
            "sha256": {"policy": hashlib.sha256(data).hexdigest()},
        },
    )


def _chosen(model: Model, output: str | None) -> tuple[str, Tensor]:
    """The output of a name, or the only one."""
    known = ", ".join(printable(name) for name, _ in model.outputs)
    if output is None:
        if len(model.outputs) != 1:
            raise ForeignError(f"the model has the outputs {known}.", "Add --output NAME, the one that acts.")
        return model.outputs[0]
    found = [end for end in model.outputs if output in (end[0], end[1].layer)]
    if len(found) != 1:
        raise ForeignError(f"--output {shortened(output)}: the model has the outputs {known}.", "Give one of them.")
    return found[0]


def _steps(way: Route, tensors: Tensors) -> tuple[tuple[Input, ...], Layers]:
    """The inputs, and the steps behind them with what they found out."""
    inputs: list[Input] = []
    ends: list[Layers] = []
    for first, *others in way.branches:
        shape = input_shape(first)
        layers = Layers(tensors, shape)
        for item in others:
            layers.add(item)
        inputs.append(Input(_input_name(first, way), shape if len(shape) == 3 else (math.prod(shape),)))
        ends.append(layers)
    trunk = ends[0]
    if way.joined is not None:
        trunk = _concatenated(way, ends, tensors)
        if len({part.name for part in inputs}) < len(inputs):
            raise ForeignError(f"{way.joined.name} (Concatenate) joins an input twice.", "Concatenate each input once.")
        inputs = [Input(part.name, (math.prod(part.shape),)) for part in inputs]
    for item in way.trunk:
        trunk.add(item)
    if len(trunk.shape) != 1:
        raise ForeignError(f"the output has the shape {trunk.shape}; a policy's has one side.", "Put Flatten behind.")
    _check_images(inputs, trunk.steps)
    return tuple(inputs), trunk


def _concatenated(way: Route, ends: list[Layers], tensors: Tensors) -> Layers:
    """Join the inputs; what each goes through before acts on each element by itself."""
    assert way.joined is not None
    axis = own_settings(way.joined).get("axis", -1)
    scales, offsets = [], []
    for branch, end in zip(way.branches, ends, strict=True):
        if len(end.shape) != 1 or axis not in (-1, 1) or any(not isinstance(step, Affine) for step in end.steps):
            raise ForeignError(
                f"{way.joined.name} (Concatenate) joins {branch[0].name} of {end.shape} behind layers; allowed are "
                "inputs with one side, normalised or rescaled at most.",
                "An image with a vector behind it is not supported (as yet).",
            )
        scale, offset = np.ones(end.shape), np.zeros(end.shape)
        for step in end.steps:
            if isinstance(step, Affine):
                scale, offset = scale * step.scale, offset * step.scale + step.offset
        scales.append(scale)
        offsets.append(offset)
    joined = Layers(tensors, (sum(len(scale) for scale in scales),))
    joined.halved = set[str]().union(*(end.halved for end in ends))
    if any(end.steps for end in ends):
        joined.steps.append(Affine(_all(scales), _all(offsets)))
    return joined


def _all(parts: list[Doubles]) -> Doubles:
    return np.concatenate(parts)


def _check_images(inputs: list[Input], steps: list[Step]) -> None:
    """Refuse an image whose channels are scaled unlike: a chain's affine map of an image is one for all elements."""
    if len(inputs[0].shape) != 3:
        return
    first = next((step for step in steps if not isinstance(step, Affine)), None)
    for step in steps[: steps.index(first) if first is not None else None]:
        if isinstance(step, Affine) and max(step.scale.size, step.offset.size) > 1:
            raise ForeignError(
                "the image's channels are scaled one by one before the first layer; allowed is one scale for all.",
                "Use Rescaling(1 / 255), or Normalization(axis=None).",
            )


def _input_name(item: Item, way: Route) -> str:
    """The file's name of an input; of the only one, no name that Keras made up."""
    made_up = re.fullmatch(r"input_layer(_\d+)?|keras_tensor(_\d+)?", item.name) is not None
    return "observation" if made_up and len(way.branches) == 1 else item.name


def _assumed(layers: Layers) -> tuple[str, ...]:
    assumed = []
    if layers.softmax:
        assumed.append(
            f"The softmax of {layers.softmax} is left out: the largest output is the same. For --golden, record the "
            "logarithms of its probabilities."
        )
    if layers.halved:
        assumed.append(f"Layers compute in {', '.join(sorted(layers.halved))}; they are read as float32.")
    return tuple(assumed)
