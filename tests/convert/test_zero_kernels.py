"""Kernels of nothing but zeros, whole or in channels: converted for every runtime, with the biases that are left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quarl.convert import tflite_graph
from quarl.convert.pipeline import convert_all
from quarl.convert.rebuild import check_artifact
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import QuantizationError
from quarl.policy.reference import forward_float, forward_integer, requantization_multipliers
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision
from tests.policy.small_bundle import CALIBRATION, GOLDEN, SPEC, WEIGHTS
from tests.refusals import refused


def emptied(*places: tuple[str, int | slice]) -> dict[str, np.ndarray]:
    weights = {name: value.copy() for name, value in WEIGHTS.items()}
    for name, channels in places:
        weights[name][..., channels] = 0.0
    return weights


EVERY = slice(None)
CASES = {
    "all kernels": emptied(("dense_0/kernel", EVERY), ("head/kernel", EVERY)),
    "the head's": emptied(("head/kernel", EVERY)),
    "a hidden layer's": emptied(("dense_0/kernel", EVERY)),
    "channels": emptied(("dense_0/kernel", 0), ("head/kernel", 1)),
    "everything": emptied(*((name, EVERY) for name in WEIGHTS)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bias_on_zeros_is_kept_to_half_a_step(case: str) -> None:
    """With a scale of 1 it was rounded to whole multiples of the input's scale: 0.91 to 1.0, say."""
    weights = CASES[case]
    network = quantize_network(SPEC, weights, CALIBRATION)
    reference = forward_float(SPEC, weights, CALIBRATION)
    low = network.layers[-1].output.scale * (-128 - network.layers[-1].output.zero_point)
    error = np.abs(forward_integer(SPEC, network, CALIBRATION) - np.maximum(reference, low))
    assert error.max() <= (0.55 if case in ("all kernels", "the head's", "everything") else 3.0) * network.output_step


def test_zero_kernels_are_executed_by_every_runtime(tmp_path: Path) -> None:
    """LiteRT said "Node number 8 failed to prepare": s_in · 1 / s_out was 282 in the head of "all kernels"."""
    bundles = [
        write_bundle(tmp_path / f"T{index}", SPEC, weights, CALIBRATION, GOLDEN)
        for index, weights in enumerate(CASES.values())
    ]
    precisions = [Precision.INT8, Precision.INT2]
    assert len(convert_all(bundles, precisions, list(ArtifactFormat))) == len(CASES) * 6
    for bundle in bundles:
        again = Bundle.load(bundle.path)
        for entry in again.manifest.artifacts.values():
            check_artifact(again, entry)


def test_a_layer_that_never_fires_has_a_scale_that_fits_the_next(tmp_path: Path) -> None:
    """Its range says nothing; with a scale of 1 the head's multipliers would be beyond what LiteRT prepares."""
    weights = emptied(("dense_0/kernel", EVERY))
    weights["dense_0/bias"][:] = -1.0
    weights["head/bias"][:] = 1e-6
    network = quantize_network(SPEC, weights, CALIBRATION)
    multipliers = requantization_multipliers(network.layers[1], network.layers[0].result)
    assert multipliers.max() == pytest.approx(1.0)
    bundle = write_bundle(tmp_path / "T", SPEC, weights, CALIBRATION, GOLDEN)
    assert len(convert_all([bundle], [Precision.INT8], list(ArtifactFormat))) == 3


def test_what_litert_cannot_prepare_is_named() -> None:
    """The output hardly varies, though the input does: no scale can be chosen freely."""
    weights = {name: value.copy() for name, value in WEIGHTS.items()}
    network = quantize_network(SPEC, weights, CALIBRATION)
    head = replace(network.layers[-1], output=replace(network.layers[-1].output, scale=1e-7))
    with refused(QuantizationError, "multiplier_too_large", shows=["'head'", "256"]):
        tflite_graph.integer_graph(SPEC, replace(network, layers=(*network.layers[:-1], head)))
