"""The quantizers of quantization-aware training in the contract: maps and scales by hand, the spec, the integers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from quarl.policy.errors import SpecError
from quarl.policy.quantize import Affine, affine_from_range, kernel_scales, quantize_affine, unsigned_affine
from quarl.policy.reference import forward_layer
from quarl.policy.simulate import find_trained_quantizers, quantize_network
from quarl.policy.spec import (
    INPUT,
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    TrainedQuantization,
    WeightRange,
)

RANGES = {INPUT: (-2.0, 2.0), "dense_0": (0.0, 3.0)}


def spec(quantization: TrainedQuantization | None = None) -> PolicySpec:
    """Two inputs, two hidden units, two actions."""
    return PolicySpec(
        name="tiny",
        observation=(ObservationField("x", (2,), "m"),),
        normaliser=Normaliser((0.0, 0.0), (1.0, 1.0), 10.0),
        network=NetworkSpec((2,)),
        head=DiscreteHead(("left", "right")),
        control_period_s=0.1,
        environment=EnvironmentSpec("Tiny-v0"),
        quantization=quantization,
    )


WEIGHTS = {
    "dense_0/kernel": np.array([[0.5, -1.0], [1.5, 0.0]], np.float32),
    "dense_0/bias": np.array([0.0, 0.25], np.float32),
    "head/kernel": np.array([[1.0, -1.0], [0.5, 2.0]], np.float32),
    "head/bias": np.zeros(2, np.float32),
}


def test_the_uppermost_levels_hold_an_unsigned_range() -> None:
    # 2 bits: four levels, 124 … 127, of one third of 3.0 each
    assert unsigned_affine(3.0, 2) == Affine(1.0, 124, 124, 127)
    assert unsigned_affine(15.0, 4) == Affine(1.0, 112, 112, 127)
    assert unsigned_affine(0.0, 3) == Affine(1.0, 120, 120, 127)  # a layer that is never active


def test_eight_bits_are_the_devices_own_map() -> None:
    assert unsigned_affine(3.0, 8) == dataclasses.replace(affine_from_range(0.0, 3.0), low=-128)


def test_an_unsigned_map_clips_at_both_ends() -> None:
    levels = quantize_affine(np.array([-5.0, 0.0, 0.4, 0.6, 3.0, 99.0]), unsigned_affine(3.0, 2))
    assert levels.tolist() == [124, 124, 124, 125, 127, 127]


def test_scales_of_the_mean_by_hand() -> None:
    kernel = np.array([[1.0, 0.0], [-3.0, 0.0]], np.float32)
    # 2 bits: 2 · 2 / √1 = 4;  3 bits: 2 · 2 / √3;  a channel of zeros has the scale 1
    assert kernel_scales(kernel, 2, WeightRange.MEAN).tolist() == [4.0, 1.0]
    assert kernel_scales(kernel, 3, WeightRange.MEAN)[0] == pytest.approx(4.0 / np.sqrt(3.0), rel=1e-6)
    assert kernel_scales(kernel, 2, WeightRange.LARGEST).tolist() == [3.0, 1.0]


def test_the_spec_keeps_it() -> None:
    with_it = spec(TrainedQuantization(3, RANGES, WeightRange.MEAN))
    assert PolicySpec.from_json(with_it.to_json()) == with_it
    assert "quantization" not in spec().to_dict()
    assert PolicySpec.from_json(spec().to_json()).quantization is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"bits": 9}, r"quantization\.bits"),
        ({"bits": "4"}, "bits"),
        ({"ranges": {"input": [-1, 1]}}, r"\['dense_0', 'input'\]"),
        ({"ranges": {"input": [-1, 1], "dense_0": [0, 1], "head": [0, 1]}}, r"quantization\.ranges"),
        ({"ranges": {"input": [1, -1], "dense_0": [0, 1]}}, "finite and ordered"),
        ({"ranges": {"input": [-1, 1], "dense_0": [-1, 1]}}, "must begin"),
        ({"ranges": {"input": [-1, 1, 2], "dense_0": [0, 1]}}, "numbers"),
        ({"weight_range": "widest"}, "widest"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    document = json.loads(spec(TrainedQuantization(4, RANGES)).to_json())
    document["quantization"] |= change
    with pytest.raises(SpecError, match=word):
        PolicySpec.from_json(json.dumps(document))


def test_the_artifact_of_that_width_uses_the_trained_quantizers() -> None:
    trained = spec(TrainedQuantization(2, RANGES, WeightRange.MEAN))
    seen = np.array([[0.1, 0.1], [-0.1, 0.2]], np.float32)  # much less than the ranges of training
    network = quantize_network(trained, WEIGHTS, seen, weight_bits=2)
    assert network.input == affine_from_range(-2.0, 2.0)
    assert network.layers[0].output == Affine(1.0, 124, 124, 127)
    # s = 2 · mean |W|: 2 · (0.5 + 1.5) / 2 = 2 and 2 · (1 + 0) / 2 = 1
    assert network.layers[0].kernel_scales.tolist() == [2.0, 1.0]
    assert network.layers[0].kernel.tolist() == [[0, -1], [1, 0]]
    # 1.5 / 2 = 0.75 → 1: h = 2 · x₂ and −x₁ + ¼; of x = (−2, 1.26): 2.5 → level 2 or 3, 2.25 → 2
    levels = quantize_affine(np.array([[-2.0, 1.26]], np.float32), network.input)
    assert forward_layer(network.layers[0], network.input, levels).tolist() == [[127, 126]]


def test_other_widths_are_quantized_after_training_as_ever() -> None:
    trained, plain = spec(TrainedQuantization(2, RANGES, WeightRange.MEAN)), spec()
    seen = np.array([[0.1, 0.1], [-0.1, 0.2]], np.float32)
    mine, theirs = (quantize_network(each, WEIGHTS, seen, weight_bits=4) for each in (trained, plain))
    assert mine.input == theirs.input
    assert [layer.output for layer in mine.layers] == [layer.output for layer in theirs.layers]
    assert all(np.array_equal(a.kernel, b.kernel) for a, b in zip(mine.layers, theirs.layers, strict=True))


def test_bits_by_layer_are_the_trained_ones_where_all_are() -> None:
    trained = spec(TrainedQuantization(4, RANGES))
    assert (
        find_trained_quantizers(trained, 4)
        is find_trained_quantizers(trained, {"dense_0": 4, "head": 4})
        is trained.quantization
    )
    assert find_trained_quantizers(trained, {"dense_0": 8, "head": 4}) is find_trained_quantizers(trained, 8) is None
