"""The table of activation ranges and what it warns of."""

from __future__ import annotations

import numpy as np
import pytest

from quarl.convert.calibration import inspect
from quarl.policy.errors import QuantizationError
from quarl.policy.simulate import quantize_network
from tests.convert.conftest import Small
from tests.refusals import refused


def test_the_table_names_every_quantized_tensor_with_its_range(small: Small) -> None:
    spec, weights, calibration, golden = small
    network = quantize_network(spec, weights, calibration)
    report = inspect(spec, weights, network, calibration, golden)
    assert [item.name for item in report.ranges] == ["input", "dense_0", "dense_1", "head"]
    assert (report.rows, report.warnings) == (400, ())
    # The normaliser clips at ±3, which 400 rows reach; one of 255 steps is then 3 / 127.
    first = report.ranges[0]
    assert (first.low, first.high) == (-3.0, 3.0)
    assert first.step == pytest.approx(3.0 / 127)
    assert first.clipped == 0.0
    for item in report.ranges[1:3]:
        assert item.low == 0.0
        assert item.step == pytest.approx(item.high / 255)


def test_few_repeated_and_frozen_rows_are_warned_of(small: Small) -> None:
    spec, weights, calibration, golden = small
    network = quantize_network(spec, weights, calibration)
    frozen = calibration[:40].copy()
    frozen[:, 5:] = 0.25
    frozen[10:] = frozen[0]
    warnings = inspect(spec, weights, network, frozen, golden).warnings
    assert any("only 40 calibration rows" in warning for warning in warnings)
    assert any("only 10 of 40" in warning for warning in warnings)
    assert any("'velocity'" in warning and "5, 6" in warning for warning in warnings)
    assert not any("'ranges'" in warning for warning in warnings)


def test_an_empty_or_broken_set_is_refused(small: Small) -> None:
    spec, weights, calibration, golden = small
    network = quantize_network(spec, weights, calibration)
    with pytest.raises(QuantizationError, match="must have observations"):
        inspect(spec, weights, network, calibration[:0], golden)
    with pytest.raises(QuantizationError, match="must have observations"):
        quantize_network(spec, weights, calibration[:0])
    broken = calibration.copy()
    broken[3, 1] = np.inf
    with refused(QuantizationError, "not_finite"):
        quantize_network(spec, weights, broken)
