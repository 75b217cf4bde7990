"""The JSON document of a policy's contract: its parts as JSON values, and read from them, strictly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from policy import json_values
from policy.errors import SpecError
from policy.quantization_aware import TrainedQuantization, WeightRange
from policy.spec_parts import (
    Activation,
    ContinuousHead,
    Convolution,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    Squash,
    parse_enum,
    require,
)

SPEC_FORMAT_VERSION = 1

# --- writing ------------------------------------------------------------------------------------------------------


def observation_values(fields: Iterable[ObservationField]) -> list[dict[str, Any]]:
    """The observation's fields as JSON values."""
    return [{"name": each.name, "shape": list(each.shape), "unit": each.unit} for each in fields]


def normaliser_values(normaliser: Normaliser) -> dict[str, Any]:
    """JSON values; JSON has no infinity, so a ``clip`` of null is none."""
    return {
        "mean": list(normaliser.mean),
        "scale": list(normaliser.scale),
        "clip": normaliser.clip if math.isfinite(normaliser.clip) else None,
    }


def network_values(network: NetworkSpec) -> dict[str, Any]:
    """JSON values; what a plain multilayer perceptron does not have is left out."""
    values: dict[str, Any] = {"hidden": list(network.hidden), "activation": network.activation.value}
    if network.convolutions:
        values["convolutions"] = [
            {"filters": layer.filters, "kernel": layer.kernel, "stride": layer.stride} for layer in network.convolutions
        ]
    if network.layer_norm:
        values["layer_norm"] = True
    return values


def head_values(head: DiscreteHead | ContinuousHead) -> dict[str, Any]:
    """JSON values, ``kind`` first."""
    if isinstance(head, DiscreteHead):
        return {"kind": "discrete", "action_names": list(head.action_names)}
    return {"kind": "continuous", "low": list(head.low), "high": list(head.high), "squash": head.squash.value}


def quantization_values(quantization: TrainedQuantization) -> dict[str, Any]:
    """JSON values of the quantizers that a policy was trained with."""
    return {
        "bits": quantization.bits,
        "ranges": {name: list(ends) for name, ends in quantization.ranges.items()},
        "weight_range": quantization.weight_range.value,
    }


# --- reading ------------------------------------------------------------------------------------------------------


def read_members(text: str | bytes) -> dict[str, Any]:
    """The arguments of a :class:`policy.spec.PolicySpec` from its document.

    Raises:
        SpecError: the text is no JSON, of a future version, or lacks a field (which is named).
    """
    try:
        data = json_values.parse_object(text)
    except json_values.JsonValueError as error:
        raise SpecError(f"policy.json cannot be read: {error}.") from error
    version = data.get("format_version")
    require(
        version == SPEC_FORMAT_VERSION,
        f"policy.json has format_version {version!r}; this program reads {SPEC_FORMAT_VERSION}.",
        "Use the program version that wrote it, or train the policy again.",
    )
    try:
        return {
            "name": json_values.text(data["name"], "name"),
            "observation": tuple(_field(item) for item in json_values.items(data["observation"], "observation")),
            "normaliser": _normaliser(json_values.members(data["normaliser"], "normaliser")),
            "network": read_network(json_values.members(data["network"], "network")),
            "head": _head(json_values.members(data["head"], "head")),
            "control_period_s": json_values.number(data["control_period_s"], "control_period_s"),
            "environment": _environment(json_values.members(data["environment"], "environment")),
            "provenance": json_values.members(data.get("provenance", {}), "provenance"),
            "quantization": _quantization(data["quantization"]) if "quantization" in data else None,
        }
    except KeyError as error:
        raise SpecError(f"policy.json lacks the field {error.args[0]!r}.") from error
    except json_values.JsonValueError as error:
        raise SpecError(f"policy.json: {error}.") from error


def _field(data: object) -> ObservationField:
    item = json_values.members(data, "observation")
    name = json_values.text(item["name"], "observation.name")
    shape = tuple(json_values.integer(side, f"the shape of {name}") for side in json_values.items(item["shape"], name))
    return ObservationField(name, shape, json_values.text(item["unit"], f"the unit of {name}"))


def _numbers(data: Mapping[str, Any], key: str, where: str) -> tuple[float, ...]:
    name = f"{where}.{key}"
    return tuple(json_values.number(value, name) for value in json_values.items(data[key], name))


def _normaliser(data: Mapping[str, Any]) -> Normaliser:
    clip = math.inf if data["clip"] is None else json_values.number(data["clip"], "normaliser.clip")
    return Normaliser(_numbers(data, "mean", "normaliser"), _numbers(data, "scale", "normaliser"), clip)


def read_network(data: Mapping[str, Any]) -> NetworkSpec:
    """The inverse of :func:`network_values`."""
    hidden = json_values.items(data["hidden"], "network.hidden")
    layer_norm = data.get("layer_norm", False)
    require(isinstance(layer_norm, bool), f"network.layer_norm is {layer_norm!r}; it must be true or false.")
    return NetworkSpec(
        tuple(json_values.integer(width, "network.hidden") for width in hidden),
        parse_enum(Activation, data["activation"], "network.activation"),
        tuple(_convolution(layer) for layer in json_values.items(data.get("convolutions", []), "network.convolutions")),
        layer_norm,
    )


def _convolution(data: object) -> Convolution:
    where = "network.convolutions"
    layer = json_values.members(data, where)
    filters, kernel, stride = (json_values.integer(layer[name], where) for name in ("filters", "kernel", "stride"))
    return Convolution(filters, kernel, stride)


def _environment(data: Mapping[str, Any]) -> EnvironmentSpec:
    settings = json_values.members(data["settings"], "environment.settings")
    return EnvironmentSpec(json_values.text(data["id"], "environment.id"), dict(settings))


def _head(data: Mapping[str, Any]) -> DiscreteHead | ContinuousHead:
    if data["kind"] == "discrete":
        names = json_values.items(data["action_names"], "head.action_names")
        return DiscreteHead(tuple(json_values.text(name, "head.action_names") for name in names))
    require(data["kind"] == "continuous", f"head.kind {data['kind']!r} is not known; allowed are discrete, continuous.")
    low, high = (_numbers(data, side, "head") for side in ("low", "high"))
    return ContinuousHead(low, high, parse_enum(Squash, data["squash"], "head.squash"))


def _quantization(data: object) -> TrainedQuantization:
    where = "quantization"
    values = json_values.members(data, where)
    ranges = json_values.members(values["ranges"], f"{where}.ranges")
    ends = {name: _numbers(ranges, name, f"{where}.ranges") for name in ranges}
    for name, pair in ends.items():
        require(len(pair) == 2, f"{where}.ranges.{name} has {len(pair)} numbers; it must be (low, high).")
    return TrainedQuantization(
        json_values.integer(values["bits"], f"{where}.bits"),
        {name: (pair[0], pair[1]) for name, pair in ends.items()},
        parse_enum(WeightRange, values["weight_range"], f"{where}.weight_range"),
    )
