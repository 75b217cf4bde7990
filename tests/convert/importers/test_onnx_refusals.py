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
from tests.convert.importers.onnx_graphs import Graph, read_as_chain
from tests.refusals import refused

Spelling = Callable[[Graph, str], str]


def recurrent(operator: str, gates: int) -> Spelling:
    def spelled(g: Graph, x: str) -> str:
        weights = [g.w(1, gates * 4, 8), g.w(1, gates * 4, 4)]
        y = g.n(operator, g.n("Unsqueeze", x, g.c([0])), *weights, hidden_size=4)
        return g.n("Reshape", y, g.c([1, 4]))

    return spelled


UNARY = ["Selu", "Gelu", "Softplus", "Softsign", "HardSwish", "HardSigmoid", "Mish", "Celu", "ThresholdedRelu"]
UNARY += ["Exp", "Sqrt", "Abs", "Sin", "Erf", "Sign"]
OPERATORS: dict[str, Spelling] = {name: lambda g, x, name=name: g.n(name, x) for name in UNARY}  # type: ignore[misc]
OPERATORS |= {
    "PRelu": lambda g, x: g.n("PRelu", x, g.w(8)),
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
    "constant part": (lambda g, x: g.n("Concat", x, g.w(1, 2), axis=1), "Concat .*joins a constant"),
    "stretched": (lambda g, x: g.n("Add", x, g.w(2, 8)), "keep the"),
    "probabilities": (lambda g, x: g.n("Mul", g.n("Softmax", x), g.c(2.0)), "Mul .*probabilities"),
    "action number": (
        lambda g, x: g.n("Mul", g.n("Cast", g.n("ArgMax", x, axis=1), to=TensorProto.FLOAT), g.c(2.0)),
        "Mul .*number of an action",
    ),
    "rounded": (lambda g, x: g.n("Cast", x, to=TensorProto.INT64), "Cast .*rounds"),
    "several rows": (lambda g, x: g.n("MatMul", g.n("Reshape", x, g.c([2, 4])), g.w(4, 3)), "MatMul .*several rows"),
    "part normalised": (
        lambda g, x: g.n("LayerNormalization", g.n("Reshape", x, g.c([1, 2, 4])), g.w(4)),
        "LayerNormalization .*only whole rows",
    ),
    "last index": (lambda g, x: g.n("ArgMax", x, axis=1, select_last_index=1), "ArgMax .*last of equal"),
    "empty bounds": (lambda g, x: g.n("Clip", x, g.c(1.0), g.c(-1.0)), "Clip"),
    "nothing alone": (
        lambda g, x: g.n("Concat", *[g.n("Slice", x, g.c([8]), g.c([9]), g.c([1]))] * 2, axis=1),
        "fit|vector",
    ),
    "nothing at the end": (lambda g, x: g.n("Slice", x, g.c([8]), g.c([9]), g.c([1])), "'slice_"),
    "nothing of four": (lambda g, x: g.n("Slice", x, g.c([2]), g.c([2]), g.c([1])), "slice"),
    "another output": (
        lambda g, x: (g.n("LayerNormalization", x, g.w(8), outputs=("normal", "mean")), "mean")[1],
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
    x = graph.n("Conv", "image", graph.w(*shape), **attributes)
    with pytest.raises(ForeignError, match=rf"'node_conv_0'.*{message}"):
        graph.read(tmp_path, graph.n("Flatten", x))


def convolved(graph: Graph, channels: int = 1, x: str = "image") -> str:
    return graph.n("Conv", x, graph.w(2, channels, 2, 2))


IMAGES: dict[str, tuple[Spelling, str, list[str]]] = {
    "pooled": (lambda g, x: g.n("MaxPool", convolved(g), kernel_shape=[2, 2]), "foreign", ["MaxPool"]),
    "each pixel scaled": (
        lambda g, x: g.dense(g.n("Flatten", convolved(g, x=g.n("Mul", x, g.w(1, 4, 4)))), 18, 2),
        "per_pixel_scaling",
        [],
    ),
    "the output": (lambda g, x: g.n("Relu", convolved(g), outputs=["action"]), "image_output", ["'action'"]),
    "and something else": (
        lambda g, x: g.n("Concat", g.n("Flatten", convolved(g)), "speed", axis=1),
        "foreign",
        ["'image'", "'speed'"],
    ),
}


@pytest.mark.parametrize("name", IMAGES)
def test_uses_of_an_image_are_refused(name: str, tmp_path: Path) -> None:
    spelled, code, shown = IMAGES[name]
    graph = Graph(13, image=["batch", 1, 4, 4], speed=["batch", 2])
    with refused(ForeignError, code, shows=shown):
        graph.read(tmp_path, spelled(graph, "image"))


def test_memory_inputs_that_reach_the_output_are_refused(tmp_path: Path) -> None:
    graph = Graph(13, obs=["batch", 5], h_in=["batch", 3])
    free = graph.dense("obs", 5, 2)
    assert graph.read(tmp_path, free).ignored == ("inputs without influence: h_in",)
    joined = graph.dense(graph.n("Concat", "obs", "h_in", axis=1), 8, 2)
    with pytest.raises(ForeignError, match="--states h_in=OUTPUT"):
        graph.read(tmp_path, free, joined, output=joined)


def part(name: str, given: dict[str, list[int]], made: dict[str, list[int]], **same: str) -> onnx.GraphProto:
    """A graph inside a node, in which each output is an input by another name; what has no side is a truth or turn."""
    kinds = {"turn": TensorProto.INT64, "true": TensorProto.BOOL, "keep_on": TensorProto.BOOL}
    ends = [
        [helper.make_tensor_value_info(each, kinds.get(each, TensorProto.FLOAT), shape) for each, shape in end.items()]
        for end in (given, made)
    ]
    return helper.make_graph([helper.make_node("Identity", [x], [y]) for y, x in same.items()], name, *ends)


CHOSEN = part("chosen", {}, {"same": [1, 5]}, same="obs")
LOOPED = part(
    "body", {"turn": [], "true": [], "state": [1, 5]}, {"keep_on": [], "next": [1, 5]}, keep_on="true", next="state"
)
CONTROL: dict[str, Callable[[Graph], str]] = {
    "If": lambda g: g.n("If", g.c(np.array(True)), then_branch=CHOSEN, else_branch=CHOSEN),
    "Loop": lambda g: g.n("Loop", g.c(np.array(3)), g.c(np.array(True)), "obs", body=LOOPED),
    "Scan": lambda g: g.n("Scan", "obs", body=part("s", {"row": [5]}, {"one": [5]}, one="row"), num_scan_inputs=1),
}


def refuse(model: onnx.ModelProto, folder: Path, words: str) -> None:
    onnx.save(model, folder / "policy.onnx")
    with pytest.raises(ForeignError, match=words):
        read_as_chain(folder / "policy.onnx")


@pytest.mark.parametrize("operator", CONTROL)
def test_control_flow_is_refused(operator: str, tmp_path: Path) -> None:
    graph = Graph(17, obs=[1, 5])
    refuse(graph.model(graph.n("Relu", CONTROL[operator](graph))), tmp_path, rf"{operator} \(node")


def shaped(*shape: int | str) -> Callable[[onnx.ModelProto], object]:
    return lambda m: m.graph.input[0].CopyFrom(helper.make_tensor_value_info("obs", TensorProto.FLOAT, shape))


def typed(kind: int) -> Callable[[onnx.ModelProto], object]:
    return lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", kind)


SQUASH = helper.make_function(
    *("own", "squash", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], [helper.make_opsetid("", 17)])
)
WRONG: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "two open sides": (shaped("batch", "features"), "'obs'"),
    "a fixed batch": (shaped(4, 5), "'obs'"),
    "no elements": (shaped("batch", 0), "'obs'"),
    "no side": (shaped(), "'obs'"),
    "terabytes": (shaped("batch", 1 << 40), "'obs'"),
    "overflowing": (shaped(1, 1 << 31, 1 << 31), "'obs'"),
    "another domain": (lambda m: setattr(m.graph.node[0], "domain", "com.microsoft"), r"com\.microsoft\.Relu"),
    "functions": (lambda m: m.functions.append(SQUASH), "functions"),
    "an old opset": (lambda m: setattr(m.opset_import[0], "version", 6), "opset"),
    "a future opset": (lambda m: setattr(m.opset_import[0], "version", 99), "opset"),
    "no type": (typed(0), "'obs'"),
    "an unknown type": (typed(101), "101"),
    "text": (typed(TensorProto.STRING), "'obs'"),
    "whole numbers": (typed(TensorProto.INT64), "'obs'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_models_are_refused_for_what_is_around_their_nodes(name: str, tmp_path: Path) -> None:
    change, words = WRONG[name]
    graph = Graph(17, obs=["batch", 5])
    model = graph.model(graph.n("Relu", "obs"))
    change(model)
    refuse(model, tmp_path, words)
