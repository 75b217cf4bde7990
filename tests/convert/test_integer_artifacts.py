"""int8 and n-bit artifacts: our integers and our scales stand in the file, and the runtimes compute with them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import numpy_helper

from quarl.convert import onnx_graph, tflite_graph
from quarl.convert.pipeline import INTEGERS
from quarl.convert.reference import STEP_SLACK
from quarl.convert.rounding import forward_fixed_point
from quarl.policy.reference import forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import RuntimeName
from tests.convert.conftest import Runtimes, Small


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
