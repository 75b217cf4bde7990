"""Which network is trained: one of the case study's policies, or a string such as ``400,300``, ``128,gru-128``,
``nature``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from quarl.policy.errors import PolicyError
from quarl.policy.spec import NATURE_CONVOLUTIONS, Cell, NetworkSpec, Recurrence
from quarl.train.networks.policies import POLICIES
from quarl.train.runs.presets import SettingsError
from quarl.train.suites.task import Task

NATURE = "nature"
NATURE_HIDDEN = (512,)  # Mnih et al. 2015, Methods
DEFAULT_POLICY = "I"


def parse_model(text: str) -> NetworkSpec:
    """``nature``, ``400,300``, or both: ``nature,512,512``; ``nature-128`` has 128 filters in all convolutions.

    ``gru-128`` among the hidden layers is a recurrent layer of 128 units.

    Raises:
        SettingsError: it is none of these.
    """
    first, _, rest = text.partition(",")
    convolutional = re.fullmatch(rf"{NATURE}(-[1-9]\d*)?", first)
    widths = rest if convolutional else text
    layer = r"(gru-)?[1-9]\d*"
    if widths and not re.fullmatch(f"{layer}(,{layer})*", widths):
        raise SettingsError(
            f"--model {text} is not valid. Type --model 256,256 (hidden layers), --model 128,gru-128 (with a "
            f"memory), or --model {NATURE} (images).",
            code="bad_model",
        )
    words = widths.split(",") if widths else [str(width) for width in NATURE_HIDDEN]
    hidden = tuple(int(word) for word in words if word.isdigit())
    recurrences = tuple(
        Recurrence(Cell.GRU, int(word.removeprefix("gru-")), sum(earlier.isdigit() for earlier in words[:index]))
        for index, word in enumerate(words)
        if not word.isdigit()
    )
    if convolutional is None:
        return NetworkSpec(hidden, recurrences=recurrences)
    filters = abs(int(convolutional[1] or 0))
    layers = tuple(dataclasses.replace(layer, filters=filters or layer.filters) for layer in NATURE_CONVOLUTIONS)
    return NetworkSpec(hidden, convolutions=layers, recurrences=recurrences)


def choose_network(
    task: Task, policy: str | None, model: str | None, layer_norm: bool, found: Mapping[str, Any]
) -> tuple[str, NetworkSpec]:
    """Return the name of the network for titles and provenance, and the network.

    What was typed (``--policy`` or ``--model``, ``--layer-norm``) wins over the settings file's ``network``: ``found``,
    whose ``model`` and ``layer_norm`` are both optional. Images need convolutions and vectors have none.

    Raises:
        SettingsError: the network does not fit the task.
    """
    if unknown := sorted(found.keys() - {"model", "layer_norm"}):
        raise SettingsError(
            f"network in the settings file must have only the keys model and layer_norm, got {unknown}."
        )
    if model is not None and policy is not None:
        raise SettingsError(f"--policy {policy} and --model {model} both choose the network. Leave one of them out.")
    text = model or (found.get("model") if policy is None else None)
    if text is None and policy is None and task.has_image:
        text = NATURE
    name = text or policy or DEFAULT_POLICY
    try:
        network = parse_model(text) if text else NetworkSpec(POLICIES[name])
    except PolicyError as error:
        raise SettingsError(f"{name} cannot be trained: {error}") from error
    wanted = layer_norm or (bool(found.get("layer_norm", False)) and model is None and policy is None)
    network = dataclasses.replace(network, layer_norm=wanted)
    if task.has_image and not network.convolutions:
        raise SettingsError(
            f"{task.name} has image observations, but {name} has no convolutions. Type --model {NATURE}."
        )
    if network.convolutions:
        try:
            network.image_shapes(task.network_shape)
        except PolicyError as error:
            raise SettingsError(f"{name} does not fit {task.name}: {error}") from error
    return name, network
