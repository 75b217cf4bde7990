"""Comparing what two processors made of one artifact, by hand."""

from __future__ import annotations

import numpy as np

from bench.device_agreement import Comparison, Difference, judge, output_step, table

HOST = np.array([[1.0, 2.0, 3.0], [4.0, 4.5, 0.0]], np.float32)


def judged(precision: str, device: list[list[float]], tolerance: float = 1e-4) -> Comparison:
    made = np.asarray(device, np.float32)
    return judge(
        "I", precision, "litert", "2.3.0", HOST, made, HOST.argmax(axis=1), made.argmax(axis=1), tolerance=tolerance
    )


def test_the_step_is_the_smallest_distance_between_levels() -> None:
    assert output_step(HOST) == 0.5  # 0, 1, 2, 3, 4, 4.5
    assert abs(output_step(np.float32(0.1) * np.arange(-128, 128, dtype=np.float32)) - 0.1) < 1e-5


def test_equal_outputs_hold() -> None:
    found = judged("int8", HOST.tolist())
    assert (found.largest, found.differences, found.holds) == (0.0, (), True)


def test_one_step_of_an_integer_artifact_is_allowed_and_its_action_listed() -> None:
    found = judged("int8", [[1.0, 2.0, 3.0], [4.5, 4.0, 0.0]])
    assert found.holds  # half a unit is one step
    assert found.differences == (Difference(1, 1, 0, 0.5),)
    said = " ".join(table([found], {"target": "pi@virtual", "device": {}, "host": "this"}).notes)
    assert "vector 1: host 1, device 0" in said
    assert "1.00 steps apart" in said


def test_two_steps_are_not() -> None:
    found = judged("int8", [[1.0, 2.0, 3.0], [4.0, 3.5, 0.0]])
    assert not found.holds
    assert table([found], {"target": "pi@virtual", "device": {}, "host": "this"}).rows[0][-1] == "NO"


def test_a_float_artifact_is_held_to_its_tolerance() -> None:
    device = HOST + np.float32(5e-5)
    assert judged("fp32", device.tolist(), 1e-4).holds
    assert not judged("fp32", device.tolist(), 1e-5).holds
