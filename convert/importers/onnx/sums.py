"""Tensors of a graph as sums of products with constants: which sources they are made of, and by which matrices.

    x = Σ source · matrix + bias

A source is a tensor of the graph (an input, or what an activation makes), a sigmoid or a tanh of such a sum, or a
product of two sums, element by element. However a graph spells a gate (one Gemm and a Split, six MatMuls and Adds, a
Concat in front), it is the same sum. What is nothing of this kind is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from quarl.convert.importers.chain import Doubles, ForeignError
from quarl.convert.importers.onnx.elementwise import ACTIVATIONS
from quarl.convert.importers.onnx.file import OnnxFile
from quarl.convert.importers.onnx.fold import Folder, attributes

LARGEST_SOURCE = 2048
"""Elements of a source: a matrix of zeros and ones is made of them."""
LARGEST_SUM = 4096
"""Elements of a sum: the gates of an LSTM of 1024 units."""
MOST_ELEMENTS = 1 << 25
"""Elements of all matrices together."""
SAME_SHAPE = (*ACTIVATIONS, "Clip", "LayerNormalization", "Softplus")
MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Split", "Expand", "Gather")
SAME = ("Identity", "Cast", "Dropout")


@dataclass(frozen=True, eq=False)
class Source:
    """What a sum is made of; two of them are the same if they are one object.

    Attributes:
        name: of a tensor of the graph; empty for what is computed.
        gate: "Sigmoid" or "Tanh", of ``operands[0]``; "Mul", of both operands; empty for a tensor.
        operands: sums.
    """

    name: str
    gate: str = ""
    operands: tuple[Sum, ...] = ()


@dataclass(frozen=True, eq=False)
class Sum:
    """Σ source · matrix + bias.

    Attributes:
        terms: (source's size, n) of each source.
        bias: (n,).
        shape: in the file, with a batch of 1.
    """

    terms: Mapping[Source, Doubles]
    bias: Doubles
    shape: tuple[int, ...]

    def select_elements(self, numbers: np.ndarray) -> Sum:
        """Return the elements with these numbers, in the shape of ``numbers``."""
        places = numbers.reshape(-1)
        return Sum({source: m[:, places] for source, m in self.terms.items()}, self.bias[places], numbers.shape)

    def scale_by(self, factor: np.ndarray) -> Sum:
        """Return the elements times one number each, or all times one."""
        return Sum({source: m * factor for source, m in self.terms.items()}, self.bias * factor, self.shape)

    def times(self, kernel: Doubles, shape: tuple[int, ...]) -> Sum:
        """Return the elements, as a row, times a matrix."""
        return Sum({source: m @ kernel for source, m in self.terms.items()}, self.bias @ kernel, shape)

    def diagonal(self) -> dict[Source, Doubles] | None:
        """Return the factor (n,) of each source where each element is made of its own element of the sources; else
        None."""
        diagonals = {}
        for source, matrix in self.terms.items():
            factors = matrix.diagonal()
            if matrix.shape[0] != matrix.shape[1] or np.count_nonzero(matrix) != np.count_nonzero(factors):
                return None
            diagonals[source] = factors
        return diagonals


Tensor = Sum | np.ndarray | None


def source_of(name: str, shape: tuple[int, ...], gate: str = "", operands: tuple[Sum, ...] = ()) -> Sum | None:
    """Return a sum of one source, as it is; None of one that is too large."""
    size = math.prod(shape)
    if size > LARGEST_SOURCE:
        return None
    return Sum({Source(name, gate, operands): np.eye(size)}, np.zeros(size), shape)


def sums(file: OnnxFile, nodes: Iterable[int], sources: Mapping[str, Sum | None]) -> dict[str, Tensor]:
    """Return every tensor that these nodes make, as a sum, a constant, or None.

    Args:
        file: the model.
        nodes: their numbers, in order.
        sources: tensors that are taken as they are.
    """
    tensors: dict[str, Tensor] = {**file.constants, **sources}
    folder, spent = Folder(file.opset), sum(len(tensor.bias) ** 2 for tensor in sources.values() if tensor is not None)
    for index in nodes:
        node = file.model.graph.node[index]
        operands = [tensors.get(name) if name else None for name in node.input]
        known = all(name in tensors for name in node.input if name) and spent < MOST_ELEMENTS
        try:
            results = _evaluate_node(node, operands, folder) if known else []
        except (ForeignError, ValueError, TypeError, LookupError, ArithmeticError):
            results = []  # whoever needs it says that it is missing; the reader of the chain says what is wrong
        for place, name in enumerate(node.output):
            if name and name not in sources:
                tensors[name] = results[place] if place < len(results) else None
        for tensor in results:
            spent += sum(matrix.size for matrix in tensor.terms.values()) if isinstance(tensor, Sum) else 0
    return tensors


def _evaluate_node(node: onnx.NodeProto, operands: list[Tensor], folder: Folder) -> list[Tensor]:
    if any(name and operand is None for name, operand in zip(node.input, operands, strict=True)):
        return []
    sum_operands = [operand for operand in operands if isinstance(operand, Sum)]
    if not sum_operands:
        return list(folder.evaluate(node, [None if o is None else np.asarray(o) for o in operands]))
    operator, first, keywords = node.op_type, sum_operands[0], attributes(node)
    if operator in SAME:
        return [first]
    if operator in ("Sigmoid", "Tanh"):
        return [source_of("", first.shape, operator, (first,))]
    if operator in SAME_SHAPE and operands[0] is first and len(sum_operands) == 1:
        return [source_of(node.output[0], first.shape)]
    if operator in MOVES and operands[0] is first and len(sum_operands) == 1:
        numbers = np.arange(math.prod(first.shape)).reshape(first.shape)
        constants = [None if o is None else np.asarray(o) for o in operands[1:]]
        return [
            first.select_elements(indices) if indices.size <= LARGEST_SUM else None
            for indices in folder.evaluate(node, [numbers, *constants])
        ]
    if operator == "Concat":
        return [_join_sums(node, operands, folder)]
    if operator in ("Gemm", "MatMul") and operands[0] is first and len(sum_operands) == 1:
        return [_product(operands, keywords if operator == "Gemm" else {})]
    if operator == "Neg":
        return [first.scale_by(np.array(-1.0))]
    if operator in ("Add", "Sub", "Mul", "Div"):
        return [_elementwise(operator, operands)]
    return []


def _product(operands: list[Tensor], keywords: dict[str, object]) -> Sum | None:
    x, kernel = operands[0], np.asarray(operands[1], np.float64)
    assert isinstance(x, Sum)
    kernel = kernel.T if keywords.get("transB") else kernel
    if kernel.ndim != 2 or len(kernel) != len(x.bias) or x.shape[-1] != len(x.bias) or keywords.get("transA"):
        return None
    if kernel.shape[1] > LARGEST_SUM:
        return None
    alpha, beta = (float(str(keywords.get(name, 1.0))) for name in ("alpha", "beta"))
    result = x.times(kernel * alpha, (*x.shape[:-1], kernel.shape[1]))
    bias = 0.0 if len(operands) < 3 or operands[2] is None else beta * np.asarray(operands[2], np.float64).reshape(-1)
    return Sum(result.terms, result.bias + np.broadcast_to(bias, result.bias.shape), result.shape)


def _join_sums(node: onnx.NodeProto, operands: list[Tensor], folder: Folder) -> Sum | None:
    parts = [o if isinstance(o, Sum) else Sum({}, np.ravel(o).astype(np.float64), np.shape(o)) for o in operands]  # type: ignore[arg-type]
    ends = np.cumsum([len(part.bias) for part in parts])
    if ends[-1] > LARGEST_SUM:
        return None
    numbers = [np.arange(end - len(part.bias), end).reshape(part.shape) for part, end in zip(parts, ends, strict=True)]
    terms: dict[Source, Doubles] = {}
    for part, end in zip(parts, ends, strict=True):
        for source, matrix in part.terms.items():
            full_matrix = terms.setdefault(source, np.zeros((len(matrix), int(ends[-1]))))
            full_matrix[:, end - len(part.bias) : end] += matrix
    together = Sum(terms, np.concatenate([part.bias for part in parts]), (int(ends[-1]),))
    return together.select_elements(folder.evaluate(node, numbers)[0])


def _elementwise(operator: str, operands: list[Tensor]) -> Sum | None:
    first, second = operands
    shape = np.broadcast_shapes(*(operand.shape for operand in operands if operand is not None))
    for operand in operands:
        if isinstance(operand, Sum) and math.prod(shape) != len(operand.bias):
            return None  # repeated elements
    if isinstance(first, Sum) and isinstance(second, Sum):
        if operator == "Mul":
            return source_of("", shape, operator, (first, second))
        if operator == "Div":
            return None
        return add_sums(first, second.scale_by(np.array(1.0 if operator == "Add" else -1.0)), shape)
    value, constant = (first, second) if isinstance(first, Sum) else (second, first)
    assert isinstance(value, Sum)
    numbers = np.broadcast_to(np.asarray(constant, np.float64), shape).reshape(-1)
    if operator in ("Mul", "Div"):
        if operator == "Div" and (not isinstance(first, Sum) or (numbers == 0).any()):
            return None
        result = value.scale_by(numbers if operator == "Mul" else 1.0 / numbers)
        return Sum(result.terms, result.bias, shape)
    if operator == "Sub":
        value, numbers = (value, -numbers) if isinstance(first, Sum) else (value.scale_by(np.array(-1.0)), numbers)
    return Sum(value.terms, value.bias + numbers, shape)


def add_sums(first: Sum, second: Sum, shape: tuple[int, ...]) -> Sum:
    """Return the sum of two, in this shape."""
    terms = dict(first.terms)
    for source, matrix in second.terms.items():
        terms[source] = terms[source] + matrix if source in terms else matrix
    return Sum(terms, first.bias + second.bias, shape)
