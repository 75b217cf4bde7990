"""What no bundle can hold is refused by the operator's and the node's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quarl.convert.importers.chain import ForeignError
from tests.convert.importers.onnx_graphs import Graph, numbers, read_as_chain
from tests.refusals import refused

Spelling = Callable[[Graph, str], str]


def recurrent(operator: str, gates: int) -> Spelling:
    def spelled(g: Graph, x: str) -> str:
        weights = [g.c(numbers(1, gates * 4, 8)), g.c(numbers(1, gates * 4, 4))]
        y = g.n(operator, g.n("Unsqueeze", x, g.c([0])), *weights, hidden_size=4)
        return g.n("Reshape", y, g.c([1, 4]))

    return spelled


UNARY = ["Selu", "Gelu", "Softplus", "Softsign", "HardSwish", "HardSigmoid", "Mish", "Celu", "ThresholdedRelu"]
UNARY += ["Exp", "Sqrt", "Abs", "Sin", "Erf", "Sign"]
OPERATORS: dict[str, Spelling] = {name: lambda g, x, name=name: g.n(name, x) for name in UNARY}  # type: ignore[misc]
OPERATORS |= {
    "PRelu": lambda g, x: g.n("PRelu", x, g.c(numbers(8))),
    "Pow": lambda g, x: g.n("Pow", x, g.c(2.0)),
    "LSTM": recurrent("LSTM", 4),
    "GRU": recurrent("GRU", 3),
    "RNN": recurrent("RNN", 1),
    "TopK": lambda g, x: g.n("TopK", x, g.c([2]), outputs=["topk_0", "places"]),
    "RandomUniformLike": lambda g, x: g.n("Add", x, g.n("RandomUniformLike", x)),
    "QuantizeLinear": lambda g, x: g.n(
        "DequantizeLinear", g.n("QuantizeLinear", x, g.c(0.1), g.c(np.int8(0))), g.c(0.1), g.c(np.int8(0))
    ),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_refused_by_name(operator: str, tmp_path: Path) -> None:
    graph = Graph(20, obs=["batch", 5])
    x = OPERATORS[operator](graph, graph.n("Relu", graph.dense("obs", 5, 8)))
    x = x if operator in ("LSTM", "GRU", "RNN") else graph.dense(x, 2 if operator == "TopK" else 8, 30)
    with pytest.raises(ForeignError, match=rf"^{operator} \(node 'node_{operator.lower()}_\d+'\)"):
        graph.read(tmp_path, x)


USES: dict[str, tuple[Spelling, str]] = {
    "residual": (lambda g, x: g.n("Add", x, g.n("Relu", x)), "Add .*combines values that all depend"),
    "square": (lambda g, x: g.n("Mul", x, x), "Mul .*combines values that all depend"),
    "gate": (lambda g, x: g.n("Mul", x, g.n("Tanh", x)), "Mul .*combines values that all depend"),
    "attention": (lambda g, x: g.n("MatMul", x, x), "MatMul .*all depend"),
    "constant / x": (lambda g, x: g.n("Div", g.c(1.0), x), "Div .*divides by what depends"),
    "by zero": (lambda g, x: g.n("Div", x, g.c(np.zeros(8))), "Div .*divides by zero"),
    "infinite": (lambda g, x: g.n("Mul", x, g.c(np.inf)), "have finite constants"),
    "Elu alpha": (lambda g, x: g.n("Elu", x, alpha=0.5), "Elu .*alpha 0.5"),
    "encoders": (
        lambda g, x: g.n("Concat", g.dense(x, 8, 20), g.dense(x, 8, 20), axis=1),
        "Concat .*values of different layers",
    ),
    "constant part": (lambda g, x: g.n("Concat", x, g.c(numbers(1, 2)), axis=1), "Concat .*joins a constant"),
    "stretched": (lambda g, x: g.n("Add", x, g.c(numbers(2, 8))), "keep the"),
    "probabilities": (lambda g, x: g.n("Mul", g.n("Softmax", x), g.c(2.0)), "Mul .*probabilities"),
    "action number": (
        lambda g, x: g.n("Mul", g.n("Cast", g.n("ArgMax", x, axis=1), to=TensorProto.FLOAT), g.c(2.0)),
        "Mul .*number of an action",
    ),
    "rounded": (lambda g, x: g.n("Cast", x, to=TensorProto.INT64), "Cast .*rounds"),
    "several rows": (
        lambda g, x: g.n("MatMul", g.n("Reshape", x, g.c([2, 4])), g.c(numbers(4, 3))),
        "MatMul .*several rows",
    ),
    "part normalised": (
        lambda g, x: g.n("LayerNormalization", g.n("Reshape", x, g.c([1, 2, 4])), g.c(numbers(4))),
        "LayerNormalization .*only whole rows",
    ),
    "last index": (lambda g, x: g.n("ArgMax", x, axis=1, select_last_index=1), "ArgMax .*last of equal"),
    "empty bounds": (lambda g, x: g.n("Clip", x, g.c(1.0), g.c(-1.0)), "Clip"),
    "nothing alone": (
        lambda g, x: g.n("Concat", *[g.n("Slice", x, g.c([8]), g.c([9]), g.c([1]))] * 2, axis=1),
        "fit|vector",
    ),
    "nothing at the end": (lambda g, x: g.n("Slice", x, g.c([8]), g.c([9]), g.c([1])), "'slice_"),
    "another output": (
        lambda g, x: (g.n("LayerNormalization", x, g.c(numbers(8)), outputs=("normal", "mean")), "mean")[1],
        "LayerNormalization .*'mean', which is not read",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_uses_are_refused_by_name(name: str, tmp_path: Path) -> None:
    spelled, message = USES[name]
    graph = Graph(17, obs=["batch", 5])
    with pytest.raises(ForeignError, match=message):
        x = spelled(graph, graph.dense("obs", 5, 8))
        graph.read(tmp_path, graph.dense(x, 8, 30) if "depend" in message or "between" in message else x)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "padded": ((4, 3, 3, 3), {"pads": [1, 1, 1, 1]}, "pads the image"),
    "same": ((4, 3, 3, 3), {"auto_pad": "SAME_UPPER"}, "pads the image"),
    "dilated": ((4, 3, 3, 3), {"dilations": [2, 2]}, "dilated or in groups"),
    "groups": ((3, 1, 3, 3), {"group": 3}, "dilated or in groups"),
    "strides": ((4, 3, 3, 3), {"strides": [1, 2]}, r"strides \[1, 2\]"),
    "oblong": ((4, 3, 2, 3), {}, "be square"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_refused_by_name(name: str, tmp_path: Path) -> None:
    shape, attributes, message = CONVOLUTIONS[name]
    graph = Graph(13, image=["batch", 3, 8, 8])
    x = graph.n("Conv", "image", graph.c(numbers(*shape)), **attributes)
    with pytest.raises(ForeignError, match=rf"'node_conv_0'.*{message}"):
        graph.read(tmp_path, graph.n("Flatten", x))


def test_pooling_and_pixels_are_refused(tmp_path: Path) -> None:
    graph = Graph(13, image=["batch", 3, 8, 8])
    x = graph.n("Conv", "image", graph.c(numbers(4, 3, 3, 3)))
    with pytest.raises(ForeignError, match="MaxPool"):
        graph.read(tmp_path, graph.n("MaxPool", x, kernel_shape=[2, 2]))
    graph = Graph(13, image=["batch", 3, 8, 8])
    x = graph.n("Conv", graph.n("Mul", "image", graph.c(numbers(3, 8, 8))), graph.c(numbers(4, 3, 3, 3)))
    with refused(ForeignError, "per_pixel_scaling"):
        graph.read(tmp_path, graph.dense(graph.n("Flatten", x), 144, 2))


def test_an_output_that_is_an_image_is_refused(tmp_path: Path) -> None:
    graph = Graph(13, image=["batch", 1, 4, 4])
    x = graph.n("Conv", "image", graph.c(numbers(2, 1, 2, 2)))
    with refused(ForeignError, "image_output", shows=["'relu_1'"]):
        graph.read(tmp_path, graph.n("Relu", x))


def test_an_image_and_something_else_is_refused(tmp_path: Path) -> None:
    graph = Graph(13, image=["batch", 1, 4, 4], speed=["batch", 2])
    x = graph.n("Flatten", graph.n("Conv", "image", graph.c(numbers(2, 1, 2, 2))))
    with refused(ForeignError, "foreign", shows=["'image'", "'speed'"]):
        graph.read(tmp_path, graph.n("Concat", x, "speed", axis=1))


def test_memory_inputs_that_reach_the_output_are_refused(tmp_path: Path) -> None:
    graph = Graph(13, obs=["batch", 5], h_in=["batch", 3])
    free = graph.dense("obs", 5, 2)
    assert graph.read(tmp_path, free).ignored == ("inputs without influence: h_in",)
    joined = graph.dense(graph.n("Concat", "obs", "h_in", axis=1), 8, 2)
    with pytest.raises(ForeignError, match="--states h_in=OUTPUT"):
        graph.read(tmp_path, free, joined, output=joined)


@pytest.mark.parametrize("operator", ["If", "Loop", "Scan"])
def test_control_flow_is_refused(operator: str, tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["true"], ["keep_on"]), helper.make_node("Identity", ["state"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("true", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, 5]),
        ],
        [
            helper.make_tensor_value_info("keep_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [1, 5]),
        ],
    )
    chosen = helper.make_graph(
        [helper.make_node("Identity", ["obs"], ["same"])],
        "chosen",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, [1, 5])],
    )
    scanned = helper.make_graph(
        [helper.make_node("Identity", ["row"], ["one"])],
        "scanned",
        [helper.make_tensor_value_info("row", TensorProto.FLOAT, [5])],
        [helper.make_tensor_value_info("one", TensorProto.FLOAT, [5])],
    )
    graph = Graph(17, obs=[1, 5])
    if operator == "If":
        x = graph.n("If", graph.c(np.array(True)), then_branch=chosen, else_branch=chosen)
    elif operator == "Loop":
        x = graph.n("Loop", graph.c(np.array(3)), graph.c(np.array(True)), "obs", body=inner)
    else:
        x = graph.n("Scan", "obs", body=scanned, num_scan_inputs=1)
    path = tmp_path / "policy.onnx"
    path.write_bytes(graph.model(graph.n("Relu", x)).SerializeToString())
    with pytest.raises(ForeignError, match=rf"{operator} \(node"):
        read_as_chain(path)


@pytest.mark.parametrize(
    "shape", [["batch", "features"], [4, 5], ["batch", 0], [], ["batch", 1 << 40], [1, 1 << 31, 1 << 31]]
)
def test_shapes_of_inputs(shape: list[int | str], tmp_path: Path) -> None:
    graph = Graph(17, obs=["batch", 5])
    model = graph.model(graph.n("Relu", "obs"))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("obs", TensorProto.FLOAT, shape))
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    with refused(ForeignError, "foreign", shows=["'obs'"]):
        read_as_chain(path)


def test_other_domains_and_functions(tmp_path: Path) -> None:
    graph = Graph(17, obs=["batch", 5])
    model = graph.model(graph.n("Relu", "obs"))
    model.graph.node[0].domain = "com.microsoft"
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ForeignError, match=r"com\.microsoft\.Relu"):
        read_as_chain(path)
    model.graph.node[0].domain = ""
    opsets = [helper.make_opsetid("", 17)]
    node = helper.make_node("Relu", ["x"], ["y"])
    model.functions.append(helper.make_function("own", "squash", ["x"], ["y"], [node], opsets))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ForeignError, match="functions"):
        read_as_chain(path)


@pytest.mark.parametrize("opset", [6, 99])
def test_opsets(opset: int, tmp_path: Path) -> None:
    graph = Graph(17, obs=["batch", 5])
    model = graph.model(graph.n("Relu", "obs"))
    model.opset_import[0].version = opset
    path = tmp_path / "policy.onnx"
    onnx.save(model, path)
    with pytest.raises(ForeignError, match="opset"):
        read_as_chain(path)


@pytest.mark.parametrize("kind", [0, 101, TensorProto.STRING, TensorProto.INT64])
def test_types_of_inputs(kind: int, tmp_path: Path) -> None:
    graph = Graph(17, obs=["batch", 5])
    model = graph.model(graph.n("Relu", "obs"))
    model.graph.input[0].type.tensor_type.elem_type = kind
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ForeignError):
        read_as_chain(path)


def test_nothing_selected(tmp_path: Path) -> None:
    graph = Graph(17, obs=["batch", 5])
    with pytest.raises(ForeignError):
        graph.read(tmp_path, graph.n("Slice", graph.dense("obs", 5, 4), graph.c([2]), graph.c([2]), graph.c([1])))
