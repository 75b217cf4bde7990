"""The ranges that activations are quantized over, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.policy.errors import QuantizationError
from quarl.policy.quantize import affine_from_range
from quarl.policy.reference import linear_part
from quarl.policy.simulate import _ends, calibrate_ranges
from quarl.policy.spec import (
    DiscreteHead,
    EnvironmentSpec,
    NetworkSpec,
    Normaliser,
    ObservationField,
    PolicySpec,
    Ranges,
    TrainedQuantization,
)

SPEC = PolicySpec(
    name="by-hand",
    observation=(ObservationField("distance", (2,), "m"),),
    normaliser=Normaliser((1.0, 0.0), (2.0, 1.0), 5.0),
    network=NetworkSpec((2,)),
    head=DiscreteHead(("left", "right")),
    control_period_s=0.1,
    environment=EnvironmentSpec("Test-v0"),
)
WEIGHTS = {
    "dense_0/kernel": np.array([[1.0, -1.0], [2.0, 0.0]], np.float32),
    "dense_0/bias": np.array([0.0, 1.0], np.float32),
    "head/kernel": np.array([[1.0, -10.0], [0.0, -10.0]], np.float32),
    "head/bias": np.zeros(2, np.float32),
}
# normalised: [1, 0], [5, 0] (cut at the clip), [0, 3]; hidden: [1, 0], [5, 0], [6, 1]
SEEN = np.array([[3.0, 0.0], [101.0, 0.0], [1.0, 3.0]], np.float32)


def test_every_tensor_by_hand() -> None:
    ranges = calibrate_ranges(SPEC, WEIGHTS, SEEN, whole_head=True)
    # head: [1, −10], [5, −50], [6, −70]
    assert ranges == {"input": (0.0, 5.0), "dense_0": (0.0, 6.0), "head": (-70.0, 6.0)}
    # the winners are 1, 5 and 6; a quarter of 6 − 1 below the smallest of them
    assert calibrate_ranges(SPEC, WEIGHTS, SEEN) == {**ranges, "head": (1.0 - 1.25, 6.0)}


def test_monitored_ranges_take_the_place_of_those_seen() -> None:
    trained = TrainedQuantization(4, {"input": (-2.0, 2.0), "dense_0": (0.0, 3.5)})
    ranges = calibrate_ranges(SPEC, WEIGHTS, SEEN, trained)
    assert ranges == {"input": (-2.0, 2.0), "dense_0": (0.0, 3.5), "head": (-0.25, 6.0)}


def test_what_a_layer_normalisation_is_fed_has_its_own() -> None:
    spec = replace(SPEC, network=NetworkSpec((2,), layer_norm=True))
    weights = {
        **WEIGHTS,
        "dense_0/gamma": np.array([3.0, 3.0], np.float32),
        "dense_0/beta": np.zeros(2, np.float32),
    }
    ranges = calibrate_ranges(spec, weights, SEEN)
    # x W + b: [1, 0], [5, −4], [6, 1]; two elements normalise to ±1: 3 and −3, the latter cut
    assert ranges[linear_part("dense_0")] == (-4.0, 6.0)
    assert ranges["dense_0"] == (0.0, pytest.approx(3.0, abs=1e-4))


def test_images_span_all_grey_levels() -> None:
    spec = replace(
        SPEC, observation=(ObservationField("screen", (1, 2, 1), "1"),), normaliser=Normaliser((0.0,), (255.0,))
    )
    grey = np.array([[10.0, 20.0]], np.float32)
    assert calibrate_ranges(spec, WEIGHTS, grey)["input"] == pytest.approx((0.0, 1.0))
    trained = TrainedQuantization(8, {"input": (0.0, 0.5), "dense_0": (0.0, 1.0)})
    assert calibrate_ranges(spec, WEIGHTS, grey, trained)["input"] == pytest.approx((0.0, 1.0))
    # numbers that are no grey levels have their own range
    assert calibrate_ranges(spec, WEIGHTS, grey / 100)["input"] == pytest.approx((0.1 / 255, 0.2 / 255))


def test_what_is_refused() -> None:
    with pytest.raises(QuantizationError, match="must have observations"):
        calibrate_ranges(SPEC, WEIGHTS, SEEN[:0])
    with pytest.raises(QuantizationError, match=r"calibration observations.*NaN or infinite"):
        calibrate_ranges(SPEC, WEIGHTS, np.array([[np.inf, 0.0]], np.float32))


def test_ranges_end_where_they_are_told_to() -> None:
    values = np.linspace(-1.0, 1.0, 100_001, dtype=np.float32)
    values[7] = 50.0
    assert _ends(values) == (-1.0, 50.0)
    assert _ends(values, Ranges.PERCENTILE) == pytest.approx((-0.9998, 0.9998), abs=1e-4)
    low, high = _ends(values, Ranges.MSE)

    def error(low: float, high: float) -> float:
        affine = affine_from_range(low, high)
        levels = np.clip(np.rint(values / affine.scale) + affine.zero_point, affine.low, affine.high)
        return float(np.square((levels - affine.zero_point) * affine.scale - values).sum())

    assert error(low, high) < min(error(-1.0, 50.0), error(-0.9998, 0.9998))
