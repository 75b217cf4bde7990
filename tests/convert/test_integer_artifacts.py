"""int8 and n-bit artifacts: our integers and our scales stand in the file, and the runtimes compute with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from onnx import numpy_helper

from quarl.convert import onnx_graph, tflite_graph
from quarl.convert.executor import RuntimeProcess
from quarl.convert.pipeline import INTEGERS
from quarl.convert.reference import STEP_SLACK
from quarl.policy.quantize import Affine
from quarl.policy.reference import IntegerLayer, IntegerNetwork, forward_integer
from quarl.policy.simulate import quantize_network
from quarl.policy.spec import NetworkSpec, PolicySpec, RuntimeName

Small = tuple[PolicySpec, dict[str, np.ndarray], np.ndarray, np.ndarray]

# Float multipliers: bit by bit the numpy reference. tflite-runtime has its own arithmetic: see test_rounding_by_hand.
SAME_ARITHMETIC = (RuntimeName.LITERT, RuntimeName.ONNXRUNTIME, RuntimeName.NATIVE)


def tensors(data: bytes) -> dict[str, tuple[schema.TensorT, np.ndarray]]:
    """Tensors of a TFLite file by name, with the bytes of the constant ones."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    return {t.name.decode(): (t, model.buffers[t.buffer].data) for t in model.subgraphs[0].tensors}


def operators(data: bytes) -> list[tuple[int, int]]:
    """(operator, version) of a TFLite file in order."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    codes = [(code.builtinCode, code.version) for code in model.operatorCodes]
    return [codes[operator.opcodeIndex] for operator in model.subgraphs[0].operators]


def initialisers(data: bytes) -> dict[str, np.ndarray]:
    return {c.name: numpy_helper.to_array(c) for c in onnx.load_from_string(data).graph.initializer}


@pytest.mark.parametrize("bits", [8, 7, 6, 5, 4, 3, 2])
def test_n_bit_weights_give_the_numbers_of_the_numpy_reference(
    runtimes: dict[RuntimeName, RuntimeProcess], small: Small, bits: int
) -> None:
    spec, weights, calibration, observations = small
    network = quantize_network(spec, weights, calibration, bits)
    expected = forward_integer(spec, network, observations)
    for runtime in SAME_ARITHMETIC:
        execution = runtimes[runtime].execute(spec, INTEGERS[runtime.artifact_format](spec, network), observations)
        # To the level: onnxruntime may dequantize as q · s − z · s, another last bit than (q − z) · s.
        slack = STEP_SLACK * network.output_step
        np.testing.assert_allclose(execution.outputs, expected, rtol=0, atol=slack, err_msg=runtime.value)
        np.testing.assert_array_equal(execution.actions, expected.argmax(axis=1))
    assert len(np.unique(expected.argmax(axis=1))) > 1, "the policy always chooses one action: nothing was compared"


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_files_hold_our_integers_and_scales(small: Small, bits: int) -> None:
    spec, weights, calibration, _ = small
    network = quantize_network(spec, weights, calibration, bits)
    lite = tensors(tflite_graph.integer_graph(spec, network))
    onnx_constants = initialisers(onnx_graph.integer_graph(spec, network))
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


def test_one_scale_for_each_output_channel_is_honoured(
    runtimes: dict[RuntimeName, RuntimeProcess], small: Small
) -> None:
    """Channels a hundredfold apart: a runtime that took the first scale for all would be off by a hundred steps."""
    spec, _, _, observations = small
    spec = replace(spec, network=NetworkSpec(()))
    kernel = np.tile(np.array([[4, -3, 2, -1, 1, -2, 3, 5]], np.int8).T, (1, 6))
    scales = np.array([1.0, 0.5, 0.2, 0.1, 0.05, 0.01], np.float32)
    head = IntegerLayer("head", kernel, np.zeros(6, np.int32), scales, Affine(0.25, 0), relu=False)
    network = IntegerNetwork(Affine(0.02, 0), (head,), weight_bits=8)
    expected = forward_integer(spec, network, observations)
    # The integers are the same in every channel, so that only the scales tell the outputs apart.
    np.testing.assert_allclose(expected, expected[:, :1] * scales, atol=0.26)
    assert np.ptp(expected[:, 0]) > 30 * np.ptp(expected[:, 5])
    for runtime, process in runtimes.items():
        execution = process.execute(spec, INTEGERS[runtime.artifact_format](spec, network), observations)
        # One step, because tflite-runtime rounds twice.
        np.testing.assert_allclose(execution.outputs, expected, rtol=0, atol=0.25, err_msg=runtime.value)


def test_onnxruntime_executes_every_dense_layer_in_integers(small: Small) -> None:
    spec, weights, calibration, _ = small
    network = quantize_network(spec, weights, calibration)
    executed = onnx_graph.list_executed_operators(onnx_graph.integer_graph(spec, network))
    assert executed.count("QGemm") == len(network.layers)
    assert not {"Gemm", "FusedGemm", "MatMul"} & set(executed), f"a dense layer is left in float: {executed}"
    assert executed.count("QuantizeLinear") == executed.count("DequantizeLinear") == 1


def test_tflite_operators_are_of_versions_that_tflite_runtime_2_14_knows(small: Small) -> None:
    spec, weights, calibration, _ = small
    kinds = schema.BuiltinOperator
    dense = (kinds.FULLY_CONNECTED, 4)
    assert operators(tflite_graph.integer_graph(spec, quantize_network(spec, weights, calibration))) == [
        (kinds.SUB, 1),
        (kinds.MUL, 1),
        (kinds.MINIMUM, 1),
        (kinds.MAXIMUM, 1),
        (kinds.QUANTIZE, 1),
        dense,
        dense,
        dense,
        (kinds.DEQUANTIZE, 2),
        (kinds.ARG_MAX, 1),
    ]


def test_the_normaliser_is_float_in_front_of_the_quantization(small: Small) -> None:
    spec, weights, calibration, _ = small
    network = quantize_network(spec, weights, calibration, 4)
    data = tflite_graph.integer_graph(spec, network)
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data))
    graph = model.subgraphs[0]
    kinds = [code for code, _ in operators(data)]
    before = graph.operators[: kinds.index(schema.BuiltinOperator.QUANTIZE)]
    assert len(before) == 4
    for operator in before:
        types = {graph.tensors[index].type for index in (*operator.inputs, *operator.outputs)}
        assert types == {schema.TensorType.FLOAT32}
    nodes = [node.op_type for node in onnx.load_from_string(onnx_graph.integer_graph(spec, network)).graph.node]
    assert nodes[:4] == ["Sub", "Mul", "Clip", "QuantizeLinear"]


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


def test_a_dead_network_is_executed_too(runtimes: dict[RuntimeName, RuntimeProcess], small: Small) -> None:
    """A layer that never fires has no range: its map is (1, 0), and the graph is still that of the reference."""
    spec, weights, calibration, observations = small
    dead = {name: np.zeros_like(value) for name, value in weights.items()}
    dead["head/bias"] = np.array([0.5, -1.0, 2.0, 0.0, 1.0, 1.5], np.float32)
    network = quantize_network(spec, dead, calibration)
    expected = forward_integer(spec, network, observations)
    for runtime, process in runtimes.items():
        execution = process.execute(spec, INTEGERS[runtime.artifact_format](spec, network), observations)
        np.testing.assert_array_equal(execution.outputs, expected, err_msg=runtime.value)
        assert set(execution.actions.tolist()) == {2}
