"""Recurrent layers of a graph: the operators GRU and LSTM, whose state is an input that an output is fed back to.

ONNX has the gates of a GRU in the order z, r, h and those of an LSTM in the order i, o, f, c, one layer a node; an
input ``h_in`` (layers, 1, units) holds the hidden states of all of them. Where a state stands in its input is followed
through the graph; that the output beside it is the next state shows where the chain is compared with the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from quarl.convert.importers.chain import Floats, ForeignError, Recurrent
from quarl.convert.importers.onnx.file import OnnxFile
from quarl.convert.importers.onnx.fold import attributes, label_node
from quarl.convert.importers.onnx.sums import Sum, Tensor, source_of, sums
from quarl.convert.importers.onnx.value import Places
from quarl.policy.spec import Cell

OPERATORS = {"GRU": Cell.GRU, "LSTM": Cell.LSTM}
ORDERS = {Cell.GRU: (1, 0, 2), Cell.LSTM: (0, 2, 3, 1)}
"""Where the contract's gates stand among ONNX's."""
FUNCTIONS = {Cell.GRU: ["Sigmoid", "Tanh"], Cell.LSTM: ["Sigmoid", "Tanh", "Tanh"]}
NO_MEMORY = "Export the policy with its state as an input and an output, e.g. h_in and h_out."


@dataclass(frozen=True, eq=False)
class Found:
    """A recurrent layer of a graph.

    Attributes:
        step: its kind and weights, the rows of ``kernel`` in the order of what is fed.
        fed: the tensors that are fed to it, one behind the other.
        states: of its hidden state, and of an LSTM's other one: the input, and the places in it.
        outputs: shapes of the tensors that are the next hidden state, by name.
        what: names it in messages.
    """

    step: Recurrent
    fed: tuple[str, ...]
    states: tuple[tuple[str, Places], ...]
    outputs: Mapping[str, tuple[int, ...]]
    what: str


def operators(file: OnnxFile, nodes: Iterable[int], states: Mapping[str, tuple[int, ...]]) -> list[Found]:
    """Return the nodes GRU and LSTM among these.

    Args:
        file: the model.
        nodes: their numbers, in order.
        states: shapes of the inputs that an output is fed back to, by name.

    Raises:
        ForeignError: one of them is no layer that the contract has, or its state is none of the inputs.
    """
    nodes = list(nodes)
    if not any(file.model.graph.node[index].op_type in OPERATORS for index in nodes):
        return []
    tensors = sums(file, nodes, {name: source_of(name, shape) for name, shape in states.items()})
    return [
        _operator(file.model.graph.node[index], tensors)
        for index in nodes
        if file.model.graph.node[index].op_type in OPERATORS
    ]


def _operator(node: onnx.NodeProto, tensors: Mapping[str, Tensor]) -> Found:
    cell, keywords = OPERATORS[node.op_type], attributes(node)
    operands = [*node.input, *[""] * 8]
    _check(node, cell, keywords, operands)
    w, r, b = (_constant(node, tensors, name) if name else None for name in operands[1:4])
    gates = len(ORDERS[cell])
    if w is None or r is None or w.ndim != 3 or r.ndim != 3 or len(w) != 1 or r.shape != (1, w.shape[1], r.shape[2]):
        raise ForeignError(
            f"{label_node(node)} must have the weights of one layer in one direction.", "Export the policy again."
        )
    units = r.shape[2]
    b = np.zeros((1, 2 * gates * units)) if b is None else b
    if w.shape[1] != gates * units or b.shape != (1, 2 * gates * units):
        message = f"{label_node(node)} has weights {w.shape}, {r.shape} and {b.shape} of mismatched sizes."
        raise ForeignError(message, "Export the policy again.")
    order = np.arange(gates * units).reshape(gates, units)[list(ORDERS[cell])].reshape(-1)
    halves = b[0].reshape(2, -1)[:, order]
    kernels = [np.ascontiguousarray(matrix[0][order].T, np.float32) for matrix in (w, r)]
    step = Recurrent(cell, kernels[0], _single(halves[0]), kernels[1], _single(halves[1]))
    held = operands[5:7] if cell is Cell.LSTM else operands[5:6]
    states = tuple(_state(node, tensors.get(name), units) for name in held)
    shapes = [(1, 1, 1, units), (1, 1, units)]
    outputs = {name: shape for name, shape in zip(node.output[:2], shapes, strict=False) if name}
    return Found(step, (operands[0],), states, outputs, label_node(node))


def _check(node: onnx.NodeProto, cell: Cell, keywords: Mapping[str, object], operands: list[str]) -> None:
    """Refuse what the operator has and the contract's layers have not."""
    functions = keywords.get("activations", [])
    kinds = [function.decode() for function in functions] if isinstance(functions, list) else []
    odd = {
        "runs backward, or both ways": keywords.get("direction", b"forward") != b"forward",
        "cuts its gates' sums": "clip" in keywords,
        f"has the functions {kinds}": kinds not in ([], FUNCTIONS[cell]),
        "couples its gates": bool(keywords.get("input_forget", 0)),
        "looks at its state from the gates (peepholes)": cell is Cell.LSTM and bool(operands[7]),
        "has the reset before the product (linear_before_reset=0)": cell is Cell.GRU
        and not keywords.get("linear_before_reset", 0),
        "takes sequence lengths": bool(operands[4]),
    }
    for fault, wrong in odd.items():
        if wrong:
            raise ForeignError(
                f"{label_node(node)} {fault}; it must compute PyTorch's {node.op_type}, forward.",
                f"Train with PyTorch's {node.op_type} in its default form.",
            )


def _constant(node: onnx.NodeProto, tensors: Mapping[str, Tensor], name: str) -> np.ndarray:
    value = tensors.get(name)
    if not isinstance(value, np.ndarray):
        raise ForeignError(f"{label_node(node)}: {name!r} must be constant weights.", "Export the policy again.")
    return value.astype(np.float64)


def _state(node: onnx.NodeProto, held: Tensor, units: int) -> tuple[str, Places]:
    """Return the input, and its places, that a state is."""
    if isinstance(held, Sum) and len(held.terms) == 1 and not held.bias.any() and len(held.bias) == units:
        ((source, matrix),) = held.terms.items()
        places = matrix.argmax(axis=0)
        if source.name and (matrix.sum(axis=0) == 1).all() and np.count_nonzero(matrix) == units:
            return source.name, places.astype(np.int64)
    raise ForeignError(
        f"{label_node(node)} must have a state that is an input to which an output is fed back.",
        NO_MEMORY,
        code="recurrent_without_state",
    )


def _single(values: np.ndarray) -> Floats:
    return np.ascontiguousarray(values, np.float32)
