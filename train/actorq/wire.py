"""What travels from the learner to the actors: an artifact, or weights of 8, 16 or 32 bits that an artifact is made of.

Where actors execute what was sent (``quantize`` = ``quantize_communication``), the data is the artifact itself, in the
format of the actors' runtime, byte for byte what ``convert`` writes for these weights and this calibration:
broadcasting to an actor and deploying to a device are one mechanism. Otherwise it is a safetensors file, and the actor
makes its artifact of it.

    weights of  8 bits   <name>: int8 levels, <name>/scales: float32, one an output channel; vectors stay float32
    weights of 16 bits   <name>: IEEE half
    weights of 32 bits   <name>: float32
    for actors in int8   calibration: float32 (rows, observation), which their activations' ranges are taken from
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from quarl.convert.pipeline import build_graph
from quarl.policy.errors import PolicyError
from quarl.policy.quantize import dequantize_symmetric, quantize_symmetric, symmetric_scales, to_fp16
from quarl.policy.reference import Weights, check_weights, forward_float, forward_integer
from quarl.policy.simulate import quantize_network, stored_weights
from quarl.policy.spec import ArtifactFormat, PolicySpec, Precision

CALIBRATION, SCALES = "calibration", "/scales"
MATRIX = 2  # dimensions from which on a tensor has output channels


class WireError(PolicyError):
    """What arrived is damaged."""


@dataclass(frozen=True)
class Pushed:
    """What the learner hands to the parameter server.

    Attributes:
        updates: number of updates that the learner had made.
        spec: the policy's contract.
        weights: float32.
        calibration: raw observations (rows, size) for the ranges of int8 activations.
    """

    updates: int
    spec: PolicySpec
    weights: dict[str, NDArray[np.float32]]
    calibration: NDArray[np.float32]


@dataclass(frozen=True)
class Published:
    """One version of the parameters as actors receive it.

    Attributes:
        version: 1, 2, …, by the learner's handing over.
        updates: number of updates that the learner had made.
        precision: the precision that actors execute.
        communication: bits of a weight in the data.
        format: of the artifact that actors execute.
        spec: the policy's contract.
        sha256: of the data.
        data: uint8; on its way through Ray a reference to it.
    """

    version: int
    updates: int
    precision: Precision
    communication: int
    format: ArtifactFormat
    spec: PolicySpec
    sha256: str
    data: NDArray[np.uint8]

    @property
    def is_artifact(self) -> bool:
        """Whether the data is the artifact itself."""
        return self.precision.bits == self.communication

    def attach_data(self, data: NDArray[np.uint8]) -> Published:
        """Take the data that came for the reference.

        Raises:
            WireError: it is damaged.
        """
        if sha256(data) != self.sha256:
            raise WireError(
                f"version {self.version} of the parameters was damaged in transit: its SHA-256 does not match.",
                code="damaged_parameters",
            )
        return replace(self, data=data)


def sha256(data: NDArray[np.uint8]) -> str:
    """SHA-256 of an array's bytes, in hexadecimal digits."""
    return hashlib.sha256(data.data).hexdigest()


def publish(
    pushed: Pushed,
    version: int,
    quantize: int,
    communication: int,
    artifact_format: ArtifactFormat = ArtifactFormat.TFLITE,
) -> Published:
    """Parameters as they are sent.

    Args:
        pushed: what the learner handed over.
        version: its number.
        quantize: bits that actors execute: 8, 16, 32.
        communication: bits of a weight on the way: 8, 16, 32.
        artifact_format: of the artifact that actors execute.

    Raises:
        QuantizationError: weights or calibration are not finite, or there is none; or the format cannot hold them.
    """
    precision, spec, weights = Precision.from_bits(quantize), pushed.spec, pushed.weights
    check_weights(spec, weights)
    if quantize == communication:
        data = build_graph(spec, weights, pushed.calibration, precision, artifact_format)
    else:
        data = save(pack_weights(weights, communication, pushed.calibration, precision))
    array = np.frombuffer(data, np.uint8)
    return Published(version, pushed.updates, precision, communication, artifact_format, spec, sha256(array), array)


def pack_weights(
    weights: Weights, bits: int, calibration: NDArray[np.float32], precision: Precision
) -> dict[str, NDArray[Any]]:
    """Weights as tensors of the wire; see the module's docstring."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, value in weights.items():
        if bits == 8 and value.ndim >= MATRIX:
            tensors[name + SCALES] = symmetric_scales(value)
            tensors[name] = quantize_symmetric(value, tensors[name + SCALES])
        else:
            tensors[name] = to_fp16(value) if bits == 16 else value
    if precision.is_integer:
        tensors[CALIBRATION] = np.ascontiguousarray(calibration, np.float32)
    return tensors


def unpack_artifact(published: Published) -> bytes:
    """Return the artifact that an actor opens: the data itself, or made of the weights in it.

    Raises:
        WireError: the data is no safetensors file of weights.
        QuantizationError: weights that cannot be quantized.
    """
    if published.is_artifact:
        return published.data.tobytes()
    try:
        tensors = load(published.data.tobytes())
    except SafetensorError as error:
        raise WireError(
            f"version {published.version} of the parameters is not a valid safetensors file ({error}).",
            code="not_safetensors",
        ) from error
    spec = published.spec
    calibration = tensors.pop(CALIBRATION, np.zeros((0, spec.observation_size), np.float32))
    return build_graph(spec, unpack_weights(tensors), calibration, published.precision, published.format)


def unpack_weights(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """Weights of the wire as float32: what an actor makes its artifact of."""
    levels = {
        name: dequantize_symmetric(value, tensors[name + SCALES]) if name + SCALES in tensors else value
        for name, value in tensors.items()
        if not name.endswith(SCALES) and name != CALIBRATION
    }
    return {name: value.astype(np.float32) for name, value in levels.items()}


def quantization_error(pushed: Pushed, precision: Precision, communication: int) -> float:
    """Mean |output of the policy that actors execute − output in fp32| over the calibration rows.

    It is the part of the difference between actors and learner that quantization makes, on the way and in the actor,
    computed with the reference passes of ``policy/``; the rest is delay.
    """
    if precision.bits == communication == Precision.FP32.bits or not len(pushed.calibration):
        return 0.0
    spec, weights = pushed.spec, pushed.weights
    exact = forward_float(spec, weights, pushed.calibration)
    if precision.bits != communication:
        weights = unpack_weights(pack_weights(weights, communication, pushed.calibration, precision))
    if precision.is_integer:
        network = quantize_network(spec, weights, pushed.calibration, precision.bits)
        return float(np.mean(np.abs(forward_integer(spec, network, pushed.calibration) - exact)))
    executed = stored_weights(spec, weights, precision)
    return float(np.mean(np.abs(forward_float(spec, executed, pushed.calibration) - exact)))
