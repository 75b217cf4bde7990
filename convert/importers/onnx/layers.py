"""ONNX operators that are layers: products with a kernel, convolutions and normalisations."""

from __future__ import annotations

import math

import numpy as np

from quarl.convert.importers.onnx.call import ZERO, Call, Result
from quarl.convert.importers.onnx.value import Value, affine, convolution, dense, layer_norm


def gemm(call: Call) -> Result:
    """Compute α · x B + β · C of one row."""
    # y = alpha · x B + beta · C
    value, kernel = call.value(), call.constant(1)
    if call.whole("transA", 0):
        raise call.build_error("transposes what depends on the observation")
    if len(value.shape) != 2 or value.shape[0] != 1 or kernel.ndim != 2:
        raise call.build_error(f"takes {value.shape} and {kernel.shape}, not one row and a matrix")
    kernel = kernel.T if call.whole("transB", 0) else kernel
    kernel = kernel.astype(np.float64) * call.number("alpha", 1.0)
    bias = call.constant(2, ZERO).astype(np.float64) * call.number("beta", 1.0)
    if bias.size not in (1, kernel.shape[1]):
        raise call.build_error(f"adds {bias.shape} to {kernel.shape[1]} outputs")
    return [dense(value, kernel, bias.reshape(-1), (1, kernel.shape[1]))]


def matrix_product(call: Call) -> Result:
    """x W of one row; a bias is an Add behind it."""
    first, second = call.operands[:2]
    if isinstance(first, Value) and isinstance(second, Value):
        raise call.build_error("multiplies values that all depend on the observation")
    if not isinstance(first, Value):
        raise call.build_error("has the kernel on the left")
    value, kernel = call.value(), call.constant(1)
    if kernel.ndim < 2 or math.prod(kernel.shape[:-2]) != 1 or value.shape[-1:] != kernel.shape[-2:-1]:
        raise call.build_error(f"takes {value.shape} and {kernel.shape}, not a row and a matrix")
    if value.size != value.shape[-1]:
        raise call.build_error(f"is applied to several rows of one observation: {value.shape}")
    shape = (*np.broadcast_shapes(value.shape[:-2], kernel.shape[:-2]), *value.shape[-2:-1], kernel.shape[-1])
    return [dense(value, kernel.reshape(kernel.shape[-2:]), np.zeros(1), shape)]


def convolutional(call: Call) -> Result:
    """Return a convolution without padding, in one group."""
    value, kernel = call.value(), call.constant(1)
    if kernel.ndim != 4 or len(value.shape) != 4:
        raise call.build_error(f"has a kernel of shape {kernel.shape}; only two-dimensional convolutions are read")
    bias = call.constant(2, np.zeros(kernel.shape[0]))
    pads, strides = call.attribute("pads", []), call.attribute("strides", [1, 1])
    padded = call.attribute("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    if padded or (isinstance(pads, list) and any(pads)):
        raise call.build_error(
            "pads the image", "Only convolutions without padding are run: train the policy without it."
        )
    if call.attribute("dilations", [1, 1]) != [1, 1] or call.whole("group", 1) != 1:
        raise call.build_error("is dilated or in groups")
    if not isinstance(strides, list) or len(set(strides)) != 1 or strides[0] < 1:
        raise call.build_error(f"has the strides {strides}; only one for both directions is read")
    if bias.shape != kernel.shape[:1]:
        raise call.build_error(f"has {bias.shape} biases for {kernel.shape[0]} channels")
    return [convolution(value, kernel, bias, int(strides[0]), call.name)]


def batch_normalised(call: Call) -> Result:
    """Return a batch normalisation in inference: a scale and an offset for each channel."""
    # y = (x − mean) / √(var + ε) · γ + β, over axis 1
    value = call.value()
    if call.whole("training_mode", 0):
        raise call.build_error("is in training mode", "Call .eval() before the export.")
    gamma, beta, mean, variance = (call.constant(index).astype(np.float64) for index in range(1, 5))
    if len(value.shape) < 2 or gamma.shape != (value.shape[1],):
        raise call.build_error(f"has {gamma.shape} channels for {value.shape}")
    scale = gamma / np.sqrt(variance + call.number("epsilon", 1e-5))
    shape = (1, -1, *(1,) * (len(value.shape) - 2))
    return [affine(value, scale.reshape(shape), (beta - mean * scale).reshape(shape), call.name)]


def layer_normalised(call: Call) -> Result:
    """Return a layer normalisation over the whole row."""
    value, axis = call.value(), call.whole("axis", -1)
    if math.prod(value.shape[axis:]) != value.size:
        raise call.build_error(f"normalises {value.shape} from axis {axis} on; only whole rows are")
    gamma, beta = call.constant(1).astype(np.float64), call.constant(2, ZERO).astype(np.float64)
    gamma, beta = (np.broadcast_to(numbers, value.shape).reshape(-1) for numbers in (gamma, beta))
    return [layer_norm(value, gamma, beta, call.number("epsilon", 1e-5), call.name)]
