"""int8 and n-bit artifacts: our integers and our scales stand in the file, and the runtimes compute with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import numpy_helper

from quarl.convert import onnx_graph, tflite_graph
from quarl.convert.pipeline import INTEGERS, convert_all
from quarl.convert.rebuild import check_artifact
from quarl.convert.reference import STEP_SLACK
from quarl.convert.rounding import forward_fixed_point
from quarl.policy.bundle import Bundle, write_bundle
from quarl.policy.errors import QuantizationError
from quarl.policy.reference import forward_float, forward_integer, requantization_multipliers
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import ArtifactFormat, Precision, RuntimeName
from tests.convert.conftest import Runtimes, Small
from tests.policy.small_bundle import CALIBRATION, GOLDEN, SPEC, WEIGHTS
from tests.refusals import refused


def tensors(data: bytes) -> dict[str, tuple[schema.TensorT, np.ndarray]]:
    """Tensors of a TFLite file by name, with the bytes of the constant ones."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    return {t.name.decode(): (t, model.buffers[t.buffer].data) for t in model.subgraphs[0].tensors}


@pytest.mark.parametrize("bits", [8, 7, 6, 5, 4, 3, 2])
def test_n_bit_weights_give_the_numbers_of_the_numpy_reference(runtimes: Runtimes, small: Small, bits: int) -> None:
    spec, weights, calibration, observations = small
    network = quantize_network(spec, weights, calibration, bits)
    once, twice = forward_integer(spec, network, observations), forward_fixed_point(spec, network, observations)
    assert (once != twice).any(), "the two ways of rounding do not differ: nothing is shown"
    for runtime in RuntimeName:
        expected = twice if runtime is RuntimeName.TFLITE_RUNTIME else once
        execution = runtimes[runtime].execute(spec, INTEGERS[runtime.artifact_format](spec, network), observations)
        # To the level: onnxruntime may dequantize as q · s − z · s, another last bit than (q − z) · s.
        slack = STEP_SLACK * network.output_step
        np.testing.assert_allclose(execution.outputs, expected, rtol=0, atol=slack, err_msg=runtime.value)
        np.testing.assert_array_equal(execution.actions, expected.argmax(axis=1))
    assert len(np.unique(once.argmax(axis=1))) > 1, "the policy always chooses one action: nothing was compared"


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_files_hold_our_integers_and_scales(small: Small, bits: int) -> None:
    spec, weights, calibration, _ = small
    network = quantize_network(spec, weights, calibration, bits)
    lite = tensors(tflite_graph.integer_graph(spec, network))
    graph = onnx.load_from_string(onnx_graph.integer_graph(spec, network)).graph
    onnx_constants = {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    input_scale = network.input.scale
    for layer in network.layers:
        assert np.abs(layer.kernel).max() == 2 ** (bits - 1) - 1
        tensor, content = lite[f"{layer.name}/kernel"]
        np.testing.assert_array_equal(content.view(np.int8).reshape(tensor.shape), layer.kernel.T)
        np.testing.assert_array_equal(tensor.quantization.scale, layer.kernel_scales)
        np.testing.assert_array_equal(onnx_constants[f"{layer.name}/kernel"], layer.kernel.T)
        np.testing.assert_array_equal(onnx_constants[f"{layer.name}/kernel_scales"], layer.kernel_scales)
        tensor, content = lite[f"{layer.name}/bias"]
        np.testing.assert_array_equal(content.view(np.int32), layer.bias)
        np.testing.assert_array_equal(tensor.quantization.scale, np.float32(input_scale) * layer.kernel_scales)
        np.testing.assert_array_equal(onnx_constants[f"{layer.name}/bias"], layer.bias)
        tensor, _ = lite[f"{layer.name}/output"]
        assert (tensor.quantization.scale[0], tensor.quantization.zeroPoint[0]) == (
            np.float32(layer.output.scale),
            layer.output.zero_point,
        )
        input_scale = layer.output.scale


def test_constants_are_aligned_to_sixteen_bytes(small: Small) -> None:
    spec, weights, _, _ = small
    data = tflite_graph.float_graph(spec, weights)
    assert data[4:8] == b"TFL3"
    model = schema.Model.GetRootAs(data)
    found = 0
    for index in range(model.BuffersLength()):
        buffer = model.Buffers(index)
        if buffer.DataLength():
            content = buffer.DataAsNumpy()
            offset = (
                content.__array_interface__["data"][0] - np.frombuffer(data, np.uint8).__array_interface__["data"][0]
            )
            assert offset % 16 == 0
            found += 1
    assert found > 6


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
