"""The fixed-point arithmetic of TFLite's built-in kernels, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from convert import tflite_graph
from convert.executor import RuntimeProcess
from convert.rounding import fixed_point_multipliers, fixed_point_requantize, forward_fixed_point
from policy.integer import IntegerLayer, forward_integer, quantize_network
from policy.quantization import Affine
from policy.spec import PolicySpec, RuntimeName


def layer(scales: list[float], output_scale: float) -> IntegerLayer:
    channels = len(scales)
    kernel, bias = np.ones((1, channels), np.int8), np.zeros(channels, np.int32)
    return IntegerLayer("head", kernel, bias, np.array(scales, np.float32), Affine(output_scale, 0), relu=False)


def test_multipliers_are_a_fraction_and_an_exponent() -> None:
    # 0.5 · 0.25 / 0.5 = ¼ = ½ · 2⁻¹;  0.5 · 3 / 0.5 = 3 = ¾ · 2²;  0.5 · 1 / 0.5 = 1 = ½ · 2¹
    fraction, exponent = fixed_point_multipliers(layer([0.25, 3.0, 1.0], 0.5), Affine(0.5, 0))
    assert fraction.tolist() == [2**30, 3 * 2**29, 2**30]
    assert exponent.tolist() == [-1, 2, 1]


@pytest.mark.parametrize(
    ("accumulator", "multiplier", "expected"),
    [
        (10, (2**30, -1), 3),  # 2.5: ⌊10/2 + ½⌋ = 5, ⌊5/2 + ½⌋ = 3
        (9, (2**30, -1), 3),  # 2.25: ⌊9/2 + ½⌋ = 5, then 3: rounded twice, one step above the float's 2
        (8, (2**30, -1), 2),  # 2
        (-10, (2**30, -1), -2),  # −2.5 goes up
        (-9, (2**30, -1), -2),  # −2.25: ⌊−4⌋ = −4, then −2
        (7, (3 * 2**29, 2), 21),  # 7 · 3
        (-7, (2**30, 1), -7),
        (0, (2**30, -9), 0),
    ],
)
def test_requantization_rounds_twice_and_halves_go_up(
    accumulator: int, multiplier: tuple[int, int], expected: int
) -> None:
    fraction, exponent = (np.array([value], np.int64) for value in multiplier)
    result = fixed_point_requantize(np.array([[accumulator]], np.int64), fraction, exponent)
    assert result.tolist() == [[expected]]


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_tflite_runtime_is_emulated_to_the_bit(
    runtimes: dict[RuntimeName, RuntimeProcess], small: tuple[PolicySpec, dict, np.ndarray, np.ndarray], bits: int
) -> None:
    spec, weights, calibration, observations = small
    network = quantize_network(spec, weights, calibration, bits)
    data = tflite_graph.integer_graph(spec, network)
    execution = runtimes[RuntimeName.TFLITE_RUNTIME].execute(spec, data, observations)
    np.testing.assert_array_equal(execution.outputs, forward_fixed_point(spec, network, observations))
    # and that is not the same as the other arithmetic: the test above could fail
    assert (execution.outputs != forward_integer(spec, network, observations)).any()
