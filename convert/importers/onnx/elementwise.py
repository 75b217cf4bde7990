"""ONNX operators on single elements: with constants they scale, shift and cut; alone they are activations."""

from __future__ import annotations

import numpy as np

from quarl.convert.importers.chain import Activate
from quarl.convert.importers.onnx.call import INFINITE, ONE, ZERO, Call, Result
from quarl.convert.importers.onnx.value import Value, activate, affine, clip
from quarl.policy.activations import NONLINEARITIES
from quarl.policy.spec import Activation

ACTIVATIONS = {name: kind for kind, each in NONLINEARITIES.items() for name in each.onnx_names}
GATED = {
    ACTIVATIONS[each.onnx[0][0]]: kind
    for kind, each in NONLINEARITIES.items()
    if len(each.onnx) == 2 and each.onnx[1][0] == "Mul"
}
"""x multiplied by such an activation of x is another one."""


def add_constant(call: Call) -> Result:
    """Compute x + c or c + x."""
    _refuse_pair(call)
    value, number, _ = _one_constant(call)
    return [affine(value, ONE, number, call.name)]


def subtract_constant(call: Call) -> Result:
    """Compute x − c or c − x."""
    _refuse_pair(call)
    value, number, swapped = _one_constant(call)
    return [affine(value, -ONE, number, call.name) if swapped else affine(value, ONE, -number, call.name)]


def multiply_or_gate(call: Call) -> Result:
    """x · c or c · x; x · sigmoid(x) is an activation."""
    if pair := _pair(call):
        for x, gate in (pair, pair[::-1]):
            if (gated := _find_gated_activation(gate, x)) is not None:
                return [activate(x, gated)]
        _refuse_pair(call)
    value, number, _ = _one_constant(call)
    return [affine(value, number, ZERO, call.name)]


def _find_gated_activation(gate: Value, x: Value) -> Activation | None:
    """Return the activation that multiplies x by this one of x."""
    same = len(gate.steps) == len(x.steps) + 1 and all(a is b for a, b in zip(gate.steps, x.steps, strict=False))
    if not same or gate.shape != x.shape or not np.array_equal(gate.selection, x.selection):
        return None
    last = gate.steps[-1]
    return GATED.get(last.activation) if isinstance(last, Activate) else None


def divide_by_constant(call: Call) -> Result:
    """Compute x / c."""
    _refuse_pair(call)
    value, number, swapped = _one_constant(call)
    if swapped:
        raise call.build_error("divides by what depends on the observation")
    if (number == 0).any():
        raise call.build_error("divides by zero", "A standard deviation is zero: train or export the policy again.")
    return [affine(value, 1.0 / number, ZERO, call.name)]


def _pair(call: Call) -> tuple[Value, Value] | None:
    """Return both operands, if both depend on the observation."""
    first, second = call.operands[:2]
    return (first, second) if isinstance(first, Value) and isinstance(second, Value) else None


def _refuse_pair(call: Call) -> None:
    if _pair(call):
        raise call.build_error("combines values that all depend on the observation")


def _one_constant(call: Call) -> tuple[Value, np.ndarray, bool]:
    """Return the value, the constant in float64, and whether the constant comes first."""
    swapped = isinstance(call.operands[1], Value)
    return call.value(int(swapped)), call.constant(int(not swapped)).astype(np.float64), swapped


def negate_value(call: Call) -> Result:
    """−x."""
    return [affine(call.value(), -ONE, ZERO, call.name)]


def clip_to_bounds(call: Call) -> Result:
    """Clip to bounds that are attributes (before opset 11) or operands."""
    if call.opset < 11:
        low, high = np.array(call.number("min", -np.inf)), np.array(call.number("max", np.inf))
    else:
        low, high = call.constant(1, -INFINITE), call.constant(2, INFINITE)
    return [clip(call.value(), low.astype(np.float64), high.astype(np.float64), call.name)]


def extreme(call: Call) -> Result:
    """Min or Max of a value and constants."""
    values = [operand for operand in call.operands if isinstance(operand, Value)]
    if len(values) != 1:
        raise call.build_error("combines values that all depend on the observation")
    result = values[0]
    for operand in call.operands:
        if isinstance(operand, np.ndarray | np.generic):
            number = np.asarray(operand).astype(np.float64)
            bounds = (number, INFINITE) if call.node.op_type == "Max" else (-INFINITE, number)
            result = clip(result, *bounds, call.name)
    return [result]


def apply_activation(call: Call) -> Result:
    """Return the activations that a bundle has."""
    operator = call.node.op_type
    if operator in ("Elu", "Swish") and call.number("alpha", 1.0) != 1.0:
        raise call.build_error(f"has alpha {call.number('alpha', 1.0)}; only 1 is read")
    kind = ACTIVATIONS[operator]
    slope = call.number("alpha", 0.01) if NONLINEARITIES[kind].takes_slope else 0.01
    return [activate(call.value(), kind, slope)]
