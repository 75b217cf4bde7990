"""Every spelling of a policy that exporters write becomes a chain that computes what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from quarl.convert.importers import chain
from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Convolution,
    Dense,
    Discrete,
    ForeignError,
    ForeignPolicy,
    Step,
    run,
)
from quarl.convert.importers.onnx import cells, gates
from quarl.convert.importers.onnx import reader as onnx_chain
from quarl.policy.spec import Cell, Memory, Recurrence, Remembered
from tests.convert.importers.onnx_graphs import Graph, numbers
from tests.refusals import refused


def kinds(policy: ForeignPolicy) -> str:
    return " ".join(
        step.activation.value if isinstance(step, Activate) else type(step).__name__ for step in policy.steps
    )


def vector(opset: int = 17) -> Graph:
    return Graph(opset, obs=["batch", 5])


# Each spelling between two dense layers: (opset, what is added to the graph, the steps it becomes)
Spelling = Callable[[Graph, str], str]


def positive(size: int) -> np.ndarray:
    return np.abs(numbers(size)) + 0.5


def written_out(g: Graph, x: str) -> str:
    centred = g.n("Sub", x, g.n("ReduceMean", x, axes=[-1]))
    variance = g.n("ReduceMean", g.n("Pow", centred, g.c(2.0)), axes=[-1])
    x = g.n("Div", centred, g.n("Sqrt", g.n("Add", variance, g.c(1e-3))))
    return g.n("Add", g.n("Mul", x, g.w(8)), g.w(8))


MIDDLES: dict[str, tuple[int, Spelling, str]] = {
    "nothing": (17, lambda g, x: x, ""),
    "Gemm transB": (17, lambda g, x: g.n("Gemm", x, g.w(8, 8), transB=1), "Dense"),
    "Gemm alpha, beta": (13, lambda g, x: g.n("Gemm", x, g.w(8, 8), g.w(1, 8), alpha=0.5, beta=2.0), "Dense"),
    "Gemm, one bias": (11, lambda g, x: g.n("Gemm", x, g.w(8, 8), g.c(0.3)), "Dense"),
    "MatMul": (9, lambda g, x: g.n("MatMul", x, g.w(8, 8)), "Dense"),
    "MatMul, Add": (9, lambda g, x: g.n("Add", g.n("MatMul", x, g.w(8, 8)), g.w(8)), "Dense"),
    "Add, MatMul": (22, lambda g, x: g.n("Add", g.w(8), g.n("MatMul", x, g.w(8, 8))), "Dense"),
    "Transpose of a kernel": (13, lambda g, x: g.n("MatMul", x, g.n("Transpose", g.w(8, 8), perm=[1, 0])), "Dense"),
    "MatMul of (1, n, m)": (
        13,
        lambda g, x: g.n("Squeeze", g.n("MatMul", g.n("Unsqueeze", x, g.c([1])), g.w(1, 8, 8)), g.c([1])),
        "Dense",
    ),
    "Relu": (9, lambda g, x: g.n("Relu", x), "relu"),
    "Max with zero": (12, lambda g, x: g.n("Max", x, g.c(0.0)), "relu"),
    "Tanh": (9, lambda g, x: g.n("Tanh", x), "tanh"),
    "Sigmoid": (9, lambda g, x: g.n("Sigmoid", x), "sigmoid"),
    "Elu": (9, lambda g, x: g.n("Elu", x), "elu"),
    "LeakyRelu": (9, lambda g, x: g.n("LeakyRelu", x, alpha=0.2), "leaky_relu"),
    "Swish": (24, lambda g, x: g.n("Swish", x), "silu"),
    "x sigmoid": (17, lambda g, x: g.n("Mul", x, g.n("Sigmoid", x)), "silu"),
    "sigmoid x": (17, lambda g, x: g.n("Mul", g.n("Sigmoid", x), x), "silu"),
    "Clip 6": (9, lambda g, x: g.n("Clip", x, min=-1.0, max=2.0), "Clip"),
    "Clip 11": (11, lambda g, x: g.n("Clip", x, g.c(-1.0), g.c(2.0)), "Clip"),
    "Clip above": (17, lambda g, x: g.n("Clip", x, "", g.c(2.0)), "Clip"),
    "Min, Max": (13, lambda g, x: g.n("Min", g.c(numbers(8) + 3), g.n("Max", x, g.c(-1.0))), "Clip"),
    "Add, Mul behind a layer": (9, lambda g, x: g.n("Mul", g.n("Add", x, g.w(8)), g.c(0.5)), ""),
    "Sub, Div behind an activation": (
        17,
        lambda g, x: g.n("Div", g.n("Sub", g.n("Tanh", x), g.w(8)), g.c(positive(8))),
        "tanh",
    ),
    "constant − x": (17, lambda g, x: g.n("Sub", g.c(1.0), g.n("Tanh", x)), "tanh"),
    "Neg": (17, lambda g, x: g.n("Neg", g.n("Tanh", x)), "tanh"),
    "BatchNormalization behind a layer": (
        15,
        lambda g, x: g.n("BatchNormalization", x, *(g.c(positive(8)) for _ in range(4))),
        "",
    ),
    "BatchNormalization behind an activation": (
        9,
        lambda g, x: g.n("BatchNormalization", g.n("Relu", x), *(g.c(positive(8)) for _ in range(4))),
        "relu",
    ),
    "LayerNormalization": (17, lambda g, x: g.n("LayerNormalization", x, g.w(8), g.w(8), epsilon=1e-3), "LayerNorm"),
    "layer normalisation written out": (13, written_out, "LayerNorm"),
    "Identity, Dropout, Cast": (
        13,
        lambda g, x: g.n("Cast", g.n("Dropout", g.n("Identity", x)), to=TensorProto.FLOAT),
        "",
    ),
    "a part of nothing joined": (
        13,
        lambda g, x: g.n("Concat", g.n("Relu", x), g.n("Slice", x, g.c([8]), g.c([9]), g.c([1])), axis=1),
        "relu",
    ),
    "outputs that nobody reads": (
        17,
        lambda g, x: g.n(
            *("LayerNormalization", g.n("Dropout", x, outputs=("dropped", "mask")), g.w(8), g.w(8)),
            outputs=("normal", "mean", "deviation"),
        ),
        "LayerNorm",
    ),
    "Flatten": (9, lambda g, x: g.n("Flatten", x), ""),
    "Reshape by Shape": (
        13,
        lambda g, x: g.n(
            *("Reshape", x),
            g.n("Concat", g.n("Unsqueeze", g.n("Gather", g.n("Shape", x), g.c(0)), g.c([0])), g.c([-1]), axis=0),
        ),
        "",
    ),
    "Squeeze 11": (11, lambda g, x: g.n("Squeeze", g.n("Unsqueeze", x, axes=[1]), axes=[1]), ""),
    "Slice 9": (9, lambda g, x: g.n("MatMul", g.n("Slice", x, starts=[4], ends=[8], axes=[1]), g.w(4, 8)), "Dense"),
    "ConstantOfShape as bias": (
        13,
        lambda g, x: g.n(
            "Add", x, g.n("ConstantOfShape", g.c([8]), value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0]))
        ),
        "",
    ),
    "Gather in reverse": (
        13,
        lambda g, x: g.n("Gather", g.n("Tanh", x), g.c([7, 6, 5, 4, 3, 2, 1, 0]), axis=1),
        "tanh",
    ),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_between_two_layers(name: str, tmp_path: Path) -> None:
    opset, spelled, steps = MIDDLES[name]
    graph = vector(opset)
    x = spelled(graph, graph.dense("obs", 5, 8))
    policy = graph.read(tmp_path, graph.dense(x, 8, 3))
    assert kinds(policy) == " ".join(["Dense", *steps.split(), "Dense"])
    if "leaky" in steps:
        (activation,) = [step for step in policy.steps if isinstance(step, Activate)]
        assert activation.negative_slope == pytest.approx(0.2)


def normalised(graph: Graph, x: str, size: int, clip: float = 5.0) -> str:
    x = graph.n("Div", graph.n("Sub", x, graph.w(size)), graph.c(positive(size)))
    return graph.n("Clip", x, graph.c(-clip), graph.c(clip))


def test_normaliser_and_action_scale_stay_steps_of_their_own(tmp_path: Path) -> None:
    graph = vector()
    x = graph.n("Relu", graph.dense(normalised(graph, "obs", 5), 5, 8))
    x = graph.n("Tanh", graph.dense(x, 8, 2))
    graph.n("Add", graph.n("Mul", x, graph.c([2.0, 0.5])), graph.c([1.0, 0.0]), outputs=["actions"])
    names = graph.read(tmp_path, "actions", observation_names="a,b,c,d,e", joint_names="only one")
    assert names.inputs[0].element_names == tuple("abcde") and names.actions != Continuous(("only one",))
    policy = graph.read(tmp_path, "actions", joint_names="hip, knee", action_scale="0.5,0.25")
    assert kinds(policy) == "Affine Clip Dense relu Dense tanh Affine"
    last = policy.steps[-1]
    assert isinstance(last, Affine)
    assert last.scale.tolist() == [2.0, 0.5] and last.offset.tolist() == [1.0, 0.0]
    assert policy.actions == Continuous(("hip", "knee")) and policy.provenance is not None
    assert policy.provenance["metadata"] == {"joint_names": "hip, knee", "action_scale": "0.5,0.25"}
    assert any("action_scale" in sentence for sentence in policy.assumed)


WHOLE: dict[str, tuple[Callable[[Graph], str], str]] = {
    "bounds behind the last layer stay": (
        lambda g: g.n("Clip", g.dense("obs", 5, 2), g.c(-1.0), g.c(1.0)),
        "Dense Clip",
    ),
    "a selection is a layer": (lambda g: g.n("Tanh", g.n("Gather", "obs", g.c([3, 1]), axis=1)), "tanh Dense"),
    "a selection goes into the kernel": (
        lambda g: g.dense(g.n("Gather", g.n("Mul", "obs", g.w(5)), g.c([4, 0, 4]), axis=1), 3, 2),
        "Affine Dense",
    ),
    "a picture without a convolution": (lambda g: g.dense(g.n("Flatten", "image"), 24, 2), "Dense"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_graphs(name: str, tmp_path: Path) -> None:
    spelled, steps = WHOLE[name]
    graph = Graph(13, image=["batch", 2, 3, 4]) if "picture" in name else vector(13)
    policy = graph.read(tmp_path, spelled(graph))
    assert kinds(policy) == steps and policy.inputs[0].shape == ((24,) if "picture" in name else (5,))


def test_several_inputs_each_normalised_on_its_own(tmp_path: Path) -> None:
    graph = Graph(17, position=["batch", 3], speed=["batch", 2], goal=[1, 2])
    speed = graph.n("Mul", graph.n("Clip", "speed", graph.c(-1.0), graph.c(2.0)), graph.c(0.25))
    x = graph.n("Concat", speed, normalised(graph, "position", 3), "goal", axis=1)
    policy = graph.read(tmp_path, graph.dense(graph.n("Relu", graph.dense(x, 7, 4)), 4, 2))
    assert [(part.name, part.shape) for part in policy.inputs] == [("position", (3,)), ("speed", (2,)), ("goal", (2,))]
    assert "Dense relu Dense" in kinds(policy) and kinds(policy).count("Dense") == 2
    # speed, then position, in the kernel of the file: the kernel's rows were put in the inputs' order
    bounds = [step for step in policy.steps if isinstance(step, Clip)]
    assert np.concatenate([bounds[0].low[5:], bounds[0].low[3:5]]).tolist() == [-np.inf, -np.inf, -1.0, -1.0]


def test_three_outputs_and_what_is_ignored(tmp_path: Path) -> None:
    graph = vector()
    hidden = graph.n("Tanh", graph.dense("obs", 5, 4))
    graph.n("Gemm", hidden, graph.w(4, 2), outputs=["actions"])
    graph.n("Gemm", graph.n("Tanh", graph.dense("obs", 5, 4)), graph.w(4, 1), outputs=["values"])
    policy = graph.read(tmp_path, "actions", "values")
    assert policy.ignored == ("output 'values': 3 nodes, 28 parameters of its own",)
    assert policy.actions == Continuous()
    other = graph.read(tmp_path, "actions", "values", output="values")
    assert run(other, np.zeros((1, 5))).shape == (1, 1)
    with refused(ForeignError, "foreign", shows=["'best'", "'actions'", "'values'"]):
        graph.read(tmp_path, "actions", "values", output="best")


def test_outputs_without_a_known_name_are_listed(tmp_path: Path) -> None:
    graph = vector()
    outputs = [graph.dense("obs", 5, 2), graph.dense("obs", 5, 1)]
    with pytest.raises(ForeignError, match=r"2 outputs \('gemm_0', 'gemm_1'\).*--output NAME"):
        graph.read(tmp_path, *outputs)


DISCRETE: dict[str, Callable[[Graph, str], str]] = {
    "ArgMax": lambda g, x: g.n("ArgMax", x, axis=1),
    "ArgMax, axis −1": lambda g, x: g.n("ArgMax", x, axis=-1, keepdims=0),
    "Softmax, ArgMax": lambda g, x: g.n("ArgMax", g.n("Softmax", x, axis=1), axis=1, keepdims=0),
    "LogSoftmax": lambda g, x: g.n("LogSoftmax", x, axis=-1),
    "Softmax": lambda g, x: g.n("Softmax", x, axis=-1),
    "x − logsumexp, Softmax, ArgMax": lambda g, x: g.n(
        "Cast",
        g.n("ArgMax", g.n("Softmax", g.n("Sub", x, g.n("ReduceLogSumExp", x, axes=[1])), axis=1), axis=1),
        to=TensorProto.INT64,
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_heads_end_in_their_logits(name: str, tmp_path: Path) -> None:
    graph = vector()
    policy = graph.read(tmp_path, DISCRETE[name](graph, graph.dense("obs", 5, 4)))
    assert policy.actions == Discrete() and kinds(policy) == "Dense"
    assert run(policy, np.zeros((2, 5))).shape == (2, 4) and bool(policy.assumed) == ("Softmax" in name)


@pytest.mark.parametrize("shape", [(5,), (1, 5), ("batch", 5), (1, 1, 5), ("batch", 1, 5)])
def test_batches(shape: tuple[int | str, ...], tmp_path: Path) -> None:
    graph = Graph(17, obs=shape)
    x = graph.n("Add", graph.n("MatMul", "obs", graph.w(5, 3)), graph.w(3))
    assert kinds(graph.read(tmp_path, x)) == "Dense"


def image_graph(layout: str, opset: int = 13) -> tuple[Graph, str]:
    if layout == "NCHW":
        return Graph(opset, image=["batch", 3, 9, 8]), "image"
    graph = Graph(opset, image=["batch", 9, 8, 3])
    return graph, graph.n("Transpose", "image", perm=[0, 3, 1, 2])


def convolved(graph: Graph, x: str, inputs: int, outputs: int, side: int, **attributes: Any) -> str:
    return graph.n("Conv", x, graph.w(outputs, inputs, side, side), graph.w(outputs), **attributes)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("flat", ["Flatten", "Reshape", "NHWC"])
def test_images(layout: str, flat: str, tmp_path: Path) -> None:
    graph, x = image_graph(layout)
    x = graph.n("Div", x, graph.c(255.0))
    x = graph.n("Relu", convolved(graph, x, 3, 4, 3, strides=[2, 2]))  # (4, 4, 3)
    x = convolved(graph, x, 4, 5, 2, auto_pad="VALID")  # (5, 3, 2)
    x = graph.n("BatchNormalization", x, *(graph.c(positive(5)) for _ in range(4)))
    x = graph.n("Relu", x)
    if flat == "NHWC":
        x = graph.n("Transpose", x, perm=[0, 2, 3, 1])
    x = graph.n("Flatten", x) if flat == "Flatten" else graph.n("Reshape", x, graph.c([-1, 30]))
    policy = graph.read(tmp_path, graph.dense(x, 30, 2))
    assert policy.inputs[0].shape == (9, 8, 3)
    assert kinds(policy) == "Affine Convolution relu Convolution relu Dense"


def test_an_images_channels_scaled_apart_go_into_the_convolution(tmp_path: Path) -> None:
    graph, x = image_graph("NCHW")
    x = graph.n("Div", graph.n("Sub", x, graph.w(3, 1, 1)), graph.c(positive(3).reshape(1, 3, 1, 1)))
    x = graph.n(
        "BatchNormalization", graph.n("Relu", convolved(graph, x, 3, 4, 3)), *(graph.c(positive(4)) for _ in "abcd")
    )
    policy = graph.read(tmp_path, graph.dense(graph.n("Flatten", x), 4 * 7 * 6, 2))
    assert kinds(policy) == "Convolution relu Dense" and isinstance(policy.steps[0], Convolution)


def test_a_wrong_chain_is_never_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clipped_forgotten(steps: tuple[Step, ...], image: object) -> tuple[Step, ...]:
        return tuple(step for step in steps if not isinstance(step, Clip))

    graph = vector()
    x = graph.dense(normalised(graph, "obs", 5, clip=50.0), 5, 2)
    graph.read(tmp_path, x)
    monkeypatch.setattr(onnx_chain, "simplify_steps", clipped_forgotten)
    with refused(ForeignError, "graph_not_reproduced"):
        graph.read(tmp_path, x)


def test_the_original_knows_nothing_of_the_steps(tmp_path: Path) -> None:
    graph = vector()
    policy = graph.read(tmp_path, graph.dense("obs", 5, 2))
    assert policy.original is not None
    step = policy.steps[0]
    assert isinstance(step, Dense)
    before = policy.original(np.ones((3, 5), np.float32))
    step.kernel[:] = 0.0
    np.testing.assert_array_equal(policy.original(np.ones((3, 5), np.float32)), before)


GATES = {"GRU": 3, "LSTM": 4}
UNITS = 4


def layer(g: Graph, operator: str, x: str, inputs: int, *states: str, **attributes: object) -> list[str]:
    """Outputs of one layer: of every period, and the next states."""
    gates = GATES[operator] * UNITS
    weights = [g.c(0.8 * numbers(1, gates, inputs)), g.c(0.8 * numbers(1, gates, UNITS)), g.w(1, 2 * gates)]
    if operator == "GRU":
        attributes = {"linear_before_reset": 1, **attributes}
    outputs = [f"{part}_{len(g.nodes)}" for part in ("y", "h", "c")[: len(states) + 1]]
    g.n(operator, x, *weights, "", *states, outputs=outputs, hidden_size=UNITS, **attributes)
    return outputs


def row(g: Graph, y: str) -> str:
    return g.n("Reshape", y, g.c([1, UNITS]))


def one(operator: str, **attributes: object) -> tuple[Graph, str]:
    """A graph of one layer between a dense one and the output, with its states wired."""
    states = ["h_in", "c_in"][: 1 + (operator == "LSTM")]
    g = Graph(17, obs=[1, 5], **{name: [1, 1, UNITS] for name in states})
    x = g.n("Unsqueeze", g.n("Elu", g.dense("obs", 5, 6)), g.c([0]))
    y, *following = layer(g, operator, x, 6, *states, **attributes)
    for name, made in zip(("h_out", "c_out"), following, strict=False):
        g.n("Identity", made, outputs=[name])
    return g, g.n("Identity", g.dense(row(g, y), UNITS, 3), outputs=["actions"])


def outputs(operator: str) -> list[str]:
    return ["actions", "h_out", "c_out"][: 2 + (operator == "LSTM")]


@pytest.mark.parametrize("operator", GATES)
def test_a_layer_with_its_states_wired_becomes_a_recurrence(operator: str, tmp_path: Path) -> None:
    policy = one(operator)[0].read(tmp_path, *outputs(operator))
    (step,) = (step for step in policy.steps if isinstance(step, chain.Recurrent))
    assert step.recurrence == Recurrence(Cell[operator], UNITS)
    *_, state = policy.inputs
    assert state.memory == Memory(Remembered.STATE, (0.0,) * step.recurrence.state_size)
    assert not policy.ignored and "fed back as 'h_in'" in policy.assumed[0]


def two(swapped: bool) -> Graph:
    g = Graph(17, obs=[1, 5], h_in=[2, 1, UNITS])
    x = g.n("Unsqueeze", "obs", g.c([0]))
    parts = [g.n("Slice", "h_in", g.c([at]), g.c([at + 1]), g.c([0])) for at in (0, 1)]
    first, second = parts[::-1] if swapped else parts
    y, h = layer(g, "GRU", x, 5, first)
    z, k = layer(g, "GRU", g.n("Squeeze", y, g.c([1])), UNITS, second)
    g.n("Concat", *((k, h) if swapped else (h, k)), outputs=["h_out"], axis=0)
    g.n("Identity", g.dense(row(g, z), UNITS, 3), outputs=["actions"])
    return g


@pytest.mark.parametrize("swapped", [False, True])
def test_several_layers_share_an_input_in_any_order(swapped: bool, tmp_path: Path) -> None:
    policy = two(swapped).read(tmp_path, "actions", "h_out")
    assert [part.name for part in policy.inputs] == ["obs", "state_0", "state_1"]


@pytest.mark.parametrize("cell", Cell)
def test_a_wrong_order_of_gates_is_refused(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = tuple(range(len(cells.ORDERS[cell])))  # the contract's own
    monkeypatch.setitem(cells.ORDERS, cell, gates)
    with refused(ForeignError, "graph_not_reproduced"):
        one(cell.name)[0].read(tmp_path, *outputs(cell.name))


def written_out_lstm() -> Graph:
    """An LSTMCell of PyTorch in sums and products, as LEAPP and torch.onnx write it."""
    g = Graph(17, obs=[1, 5], h_in=[1, UNITS], c_in=[1, UNITS])
    sums = g.n("Add", g.dense("obs", 5, 4 * UNITS), g.dense("h_in", UNITS, 4 * UNITS))
    g.n("Split", sums, g.c([UNITS] * 4), outputs=["i", "f", "g", "o"], axis=1)
    kept = g.n("Mul", g.n("Sigmoid", "f"), "c_in")
    g.n("Add", kept, g.n("Mul", g.n("Sigmoid", "i"), g.n("Tanh", "g")), outputs=["c_out"])
    g.n("Mul", g.n("Sigmoid", "o"), g.n("Tanh", "c_out"), outputs=["h_out"])
    g.n("Identity", g.dense("h_out", UNITS, 3), outputs=["actions"])
    return g


def test_an_lstm_that_is_written_out_is_a_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["actions", "h_out", "c_out"]
    policy = written_out_lstm().read(tmp_path, *names)
    (step,) = (step for step in policy.steps if isinstance(step, chain.Recurrent))
    assert step.recurrence == Recurrence(Cell.LSTM, UNITS)
    recognised = gates._lstm

    def misread(*given: Any) -> Any:
        found = recognised(*given)
        return None if found is None else [found[at] for at in (0, 1, 3, 2)]

    monkeypatch.setattr(gates, "_lstm", misread)
    with refused(ForeignError, "graph_not_reproduced"):
        written_out_lstm().read(tmp_path, *names)


def gru(g: Graph, state: str = "h_in") -> tuple[str, str]:
    y, h = layer(g, "GRU", g.n("Unsqueeze", "obs", g.c([0])), 5, state)
    return row(g, y), h


def changed_state(g: Graph) -> str:
    y, h = gru(g)
    g.n("Mul", h, g.c(0.9), outputs=["h_out"])
    return g.dense(y, UNITS, 3)


def seen_state(g: Graph) -> str:
    y, h = gru(g)
    g.n("Identity", h, outputs=["h_out"])
    return g.dense(g.n("Concat", y, row(g, "h_in"), axis=1), 2 * UNITS, 3)


def left_over(g: Graph) -> str:
    (y, h), (_, k) = (gru(g, g.n("Slice", "h_in", g.c([at]), g.c([at + 1]), g.c([0]))) for at in (0, 1))
    g.n("Concat", h, k, outputs=["h_out"], axis=0)
    return g.dense(y, UNITS, 3)


STATES: dict[str, tuple[Callable[[Graph], str], int, list[str]]] = {
    "graph_not_reproduced": (changed_state, 1, []),
    "unsupported_memory": (seen_state, 1, ["'h_in'"]),
    "state_size_mismatch": (left_over, 2, ["'h_in'", "8", "4"]),
}


@pytest.mark.parametrize("code", STATES)
def test_a_state_that_is_no_layers_own_is_refused(code: str, tmp_path: Path) -> None:
    spelled, layers, shown = STATES[code]
    g = Graph(17, obs=[1, 5], h_in=[layers, 1, UNITS])
    with refused(ForeignError, code, shows=shown):
        g.read(tmp_path, g.n("Identity", spelled(g), outputs=["actions"]), "h_out")


def test_a_state_that_no_output_continues_is_refused(tmp_path: Path) -> None:
    graph, _ = one("GRU")
    with pytest.raises(ForeignError, match="--states h_in=OUTPUT"):
        graph.read(tmp_path, "actions")
    constant = Graph(17, obs=[1, 5])
    y, _ = gru(constant, constant.w(1, 1, UNITS))
    with refused(ForeignError, "recurrent_without_state"):
        constant.read(tmp_path, constant.dense(y, UNITS, 3))


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("GRU", {"linear_before_reset": 0}, r"has the reset before the product \(linear_before_reset=0\)"),
        ("GRU", {"clip": 3.0}, "cuts its gates' sums"),
        ("LSTM", {"input_forget": 1}, "couples its gates"),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}, r"has the functions \['Sigmoid', 'Tanh', 'Relu'\]"),
        ("GRU", {"direction": "reverse"}, "runs backward, or both ways"),
    ],
)
def test_other_cells_are_refused_by_name(
    operator: str, attributes: dict[str, object], message: str, tmp_path: Path
) -> None:
    graph, _ = one(operator, **attributes)
    with pytest.raises(ForeignError, match=rf"{operator} .*{message}"):
        graph.read(tmp_path, *outputs(operator))
