"""What other programs are given of a policy: its float network as arrays, and the ONNX graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quarl.bench.command_line import UsageError
from quarl.convert.pipeline import build_graph
from quarl.policy.bundle import Bundle
from quarl.policy.reference import compute_activations, layer_names, normaliser_constants
from quarl.policy.spec import Activation, ArtifactFormat, PolicySpec, Precision


def require_expressible(spec: PolicySpec) -> None:
    """Refuse what the programs are not given here.

    Raises:
        UsageError: it is no plain perceptron of ReLUs with a discrete head.
    """
    network = spec.network
    plain = not (network.convolutions or network.layer_norm) and spec.is_plain_choice
    if not plain or network.activation is not Activation.RELU:
        raise UsageError(f"policy {spec.name} must be a ReLU perceptron with discrete actions.", "--policy I,II,III")


def write_network(folder: Path, bundle: Bundle) -> None:
    """``network.npz``, ``calibration.npy`` (n, N), ``fp32.onnx`` and ``int8.onnx``.

    The arrays: ``layers``; ``kernel_i`` (in, out) and ``bias_i`` (out,) of each; ``largest_i``, the largest magnitude
    that layer i is fed on the calibration observations; ``mean``, ``inverse`` (N,) and ``clip`` of the normaliser.
    """
    spec, weights, calibration = bundle.spec, bundle.weights(), bundle.calibration()
    mean, inverse = normaliser_constants(spec.normaliser)
    fed = compute_activations(spec, weights, calibration)
    arrays = {"layers": np.array(len(layer_names(spec))), "clip": np.array(spec.normaliser.clip)}
    arrays |= {"mean": np.resize(mean, spec.observation_size), "inverse": np.resize(inverse, spec.observation_size)}
    for index, name in enumerate(layer_names(spec)):
        arrays |= {f"kernel_{index}": weights[f"{name}/kernel"], f"bias_{index}": weights[f"{name}/bias"]}
        arrays[f"largest_{index}"] = np.abs(fed[index]).max()
    np.savez(folder / "network.npz", **arrays)
    np.save(folder / "calibration.npy", calibration.astype(np.float32), allow_pickle=False)
    for precision in (Precision.FP32, Precision.INT8):
        graph = build_graph(spec, weights, calibration, precision, ArtifactFormat.ONNX)
        (folder / f"{precision.value}.onnx").write_bytes(graph)
