"""A network worked by hand, integer by integer, through the real runtimes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quarl.convert.pipeline import FLOATS, INTEGERS
from quarl.convert.rounding import forward_fixed_point
from quarl.policy.quantize import Affine
from quarl.policy.reference import forward_integer
from quarl.policy.spec import Precision, RuntimeName
from tests.convert.conftest import Runtimes
from tests.policy.test_forward_by_hand import NETWORK as FORWARD
from tests.policy.test_forward_by_hand import SPEC

FIRST, HEAD = FORWARD.layers
NETWORK = replace(FORWARD, layers=(replace(FIRST, output=Affine(0.25, -128)), HEAD))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# "→" is the float multiplier, rounded once, half to even; "⇒" the fixed point: acc · m' is rounded, halves up, then
# divided by 2ˢ and rounded again, halves up, where m = m' · 2⁻ˢ with m' from ½ to 1 (here always ½).
#
# z = ((4 − 1) / 2, (−1.5 + 2) / 0.5) = (1.5, 1)          q = (6 − 4, 4 − 4);  without zero point (6, 4)
# dense_0: 6·3 − 4·5 + 10 = 8, · ½ = 4;  −6·2 + 4·4 − 3 = 1, · ¼ = 0.25 → 0 ⇒ (½ up: 1, ½ up:) 1
# head, h = (4, 0): 4·2 + 2 = 10, · ¼ = 2.5 → 2;  −4 − 6 = −10, · 1/16 = −0.625 → −1
# head, h = (4, 1): 8 + 7 + 2 = 17, · ¼ = 4.25 ⇒ (8.5 up: 9, 4.5 up:) 5;  −4 + 3 − 6 = −7, · 1/16 ⇒ (−3.5 up: −3, · ⅛) 0
TIES = (4.0, -1.5)
# z = clip(49.5, −196) = (4, −4)                           without zero point (16, −16)
# dense_0: 48 + 80 + 10 = 138, · ½ = 69;  −32 − 64 − 3 < 0 → 0                     h = (69, 0)
# head: 138 + 2 = 140, · ¼ = 35;  −69 − 6 = −75, · 1/16 = −4.6875 → −5 ⇒ (−37.5 up: −37, · ⅛) −5
CLIPPED = (100.0, -100.0)
# z = clip(−50, 20) = (−4, 4)                              without zero point (−16, 16)
# dense_0: −48 − 80 + 10 < 0 → 0;  32 + 64 − 3 = 93, · ¼ = 23.25 → 23 ⇒ (46.5 up: 47, 23.5 up:) 24
# head, h = (0, 23): 161 + 2 = 163, · ¼ = 40.75 → 41;  69 − 6 = 63, · 1/16 = 3.9375 → 4
# head, h = (0, 24): 168 + 2 = 170, · ¼ = 42.5 ⇒ (85, 42.5 up:) 43;  72 − 6 = 66, · 1/16 ⇒ (33, 4.125:) 4
OTHER_SIDE = (-99.0, 8.0)
OBSERVATIONS = np.array([TIES, CLIPPED, OTHER_SIDE], np.float32)

HALF_TO_EVEN = 0.5 * np.array([[2, -1], [35, -5], [41, 4]], np.float32)
TWICE_ROUNDED = 0.5 * np.array([[5, 0], [35, -5], [43, 4]], np.float32)


def test_the_numpy_references_are_the_hand_worked_numbers() -> None:
    np.testing.assert_array_equal(forward_integer(SPEC, NETWORK, OBSERVATIONS), HALF_TO_EVEN)
    np.testing.assert_array_equal(forward_fixed_point(SPEC, NETWORK, OBSERVATIONS), TWICE_ROUNDED)


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        (RuntimeName.LITERT, HALF_TO_EVEN),
        (RuntimeName.ONNXRUNTIME, HALF_TO_EVEN),
        (RuntimeName.NATIVE, HALF_TO_EVEN),
        (RuntimeName.TFLITE_RUNTIME, TWICE_ROUNDED),  # its only int8 kernels multiply in fixed point
    ],
)
def test_every_runtime_computes_the_hand_worked_integers(
    runtimes: Runtimes, runtime: RuntimeName, expected: np.ndarray
) -> None:
    execution = runtimes[runtime].execute(SPEC, INTEGERS[runtime.artifact_format](SPEC, NETWORK), OBSERVATIONS)
    np.testing.assert_array_equal(execution.outputs, expected)
    np.testing.assert_array_equal(execution.actions, [0, 0, 0])


WEIGHTS = {
    "dense_0/kernel": np.array([[1.5, -0.5], [-2.5, 1.0]], np.float32),
    "dense_0/bias": floats(1.25, -0.1875),
    "head/kernel": np.array([[1.0, -0.125], [3.5, 0.375]], np.float32),
    "head/bias": floats(0.25, -0.1875),
}
# z = (1.5, 1): 2.25 − 2.5 + 1.25 = 1;  −0.75 + 1 − 0.1875 = 0.0625
# head: 1 + 0.21875 + 0.25 = 1.46875;  −0.125 + 0.0234375 − 0.1875 = −0.2890625     (all of it exact in half precision)
FLOAT_LOGITS = floats(1.46875, -0.2890625)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("runtime", Precision.FP32.runtimes)
def test_every_runtime_computes_the_hand_worked_floats(runtimes: Runtimes, runtime: RuntimeName, half: bool) -> None:
    data = FLOATS[runtime.artifact_format](SPEC, WEIGHTS, half)
    execution = runtimes[runtime].execute(SPEC, data, np.array([TIES], np.float32))
    np.testing.assert_array_equal(execution.outputs[0], FLOAT_LOGITS)
    assert execution.actions.tolist() == [0]


@pytest.mark.parametrize("runtime", Precision.FP32.runtimes)
def test_of_equal_logits_the_first_wins(runtimes: Runtimes, runtime: RuntimeName) -> None:
    weights = {name: np.zeros_like(value) for name, value in WEIGHTS.items()}
    execution = runtimes[runtime].execute(SPEC, FLOATS[runtime.artifact_format](SPEC, weights), OBSERVATIONS)
    assert execution.actions.tolist() == [0, 0, 0]
