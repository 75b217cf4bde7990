"""A node of a foreign graph with its operands, and the operators that no policy here may have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from quarl.convert.importers.chain import ForeignError
from quarl.convert.importers.onnx.fold import Folder, attributes, label_node
from quarl.convert.importers.onnx.value import Value

Operand = Value | np.ndarray | None
Result = list[Value | np.ndarray]

ONE, ZERO, INFINITE = (np.float64(number).reshape(()) for number in (1.0, 0.0, np.inf))
REASONS = {
    "it is recurrent, of a kind that no bundle's policy is": "RNN Loop Scan",
    "it computes one of two branches": "If",
    "it draws random numbers": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli",
    "its result's places depend on the data": "TopK NonZero Unique Compress OneHot NonMaxSuppression",
    "the file is quantized already": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearMatMul "
    "MatMulInteger QLinearConv ConvInteger",
}
WAYS_OUT = {
    "RNN": "Train a GRU or an LSTM, or a policy without memory; stack the last observations instead.",
    "If": "Export the graph of one decision.",
    "RandomNormal": "Export the deterministic action.",
    "TopK": "Export the output before it.",
    "QuantizeLinear": "Export the float model: the quantization is done here.",
}


@dataclass(frozen=True)
class Call:
    """A node with its operands, of which at least one depends on the observation."""

    node: onnx.NodeProto
    operands: list[Operand]
    opset: int
    folder: Folder

    @property
    def name(self) -> str:
        """Operator and node, for messages."""
        return label_node(self.node)

    def attribute(self, name: str, default: object) -> object:
        """Return an attribute, or what the operator's definition gives where it is missing."""
        return attributes(self.node).get(name, default)

    def whole(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        value = self.attribute(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is a real number."""
        value = self.attribute(name, default)
        return float(value) if isinstance(value, int | float) else default

    def value(self, index: int = 0) -> Value:
        """Return the operand that depends on the observation; refuses where that is another one."""
        operand = self.operands[index] if index < len(self.operands) else None
        if not isinstance(operand, Value):
            raise self.build_error("takes what depends on the observation at an unusual place")
        return operand

    def constant(self, index: int, default: np.ndarray | None = None) -> np.ndarray:
        """Return an operand that does not depend on the observation."""
        operand = self.operands[index] if index < len(self.operands) else None
        operand = default if operand is None else operand
        if not isinstance(operand, np.ndarray | np.generic):
            raise self.build_error(f"needs a constant as its input {index}")
        return np.asarray(operand)

    def build_error(self, why: str, way_out: str = "") -> ForeignError:
        """Return the error that names this node."""
        return ForeignError(f"{self.name} {why}.", way_out or "Export the network without it, or type --output NAME.")


def refuse_by_name(node: onnx.NodeProto) -> None:
    """Raise ForeignError for operators that no policy here may have on its way, whatever their operands."""
    for reason, operators in REASONS.items():
        names = operators.split()
        if node.op_type in names and node.op_type != "DequantizeLinear":
            raise ForeignError(f"{label_node(node)} is not supported: {reason}.", WAYS_OUT[names[0]])
