"""Mixed precision: networks computed in 16 bits, with weights, moments and losses kept in 32.

An algorithm keeps its float32 *master* weights and casts them inside the gradient tape (:func:`cast`), so that
activations and their gradients have 16 bits and the gradients of the weights come back in float32 (Micikevicius et al.
2018, section 3.1). Outputs are float32 from the head on: softmax, losses, targets and Adam never see 16 bits, and
neither do the statistics of a layer normalisation.

bfloat16 has float32's exponents and needs nothing else. float16's smallest number is 6e-8, so its loss is multiplied
by a scale that halves when a gradient overflows and doubles after :data:`GROWTH_INTERVAL` good updates (section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from quarl.train.lazily import tf

FIRST_SCALE = 2.0**15  # the largest power of two that float16 holds (65,504 is its largest number)
GROWTH_INTERVAL = 2000  # good updates before the scale doubles; that of PyTorch's and TensorFlow's loss scaling
SMALLEST_SCALE = 1.0
LARGEST_SCALE = 2.0**24
MASTER_PARTS = ("gamma", "beta")  # of a layer normalisation: its statistics are float32, so these stay, too
NEEDED_FLAGS = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16", "asimdhp")}
"""Flags of /proc/cpuinfo (x86, Arm), one of which says that the processor multiplies in that type."""


class Compute(StrEnum):
    """The number type in which a network is computed while it is trained."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def is_mixed(self) -> bool:
        """Whether it has 16 bits."""
        return self is not Compute.FLOAT32

    @property
    def scales_loss(self) -> bool:
        """Whether its range is so small that the loss must be scaled."""
        return self is Compute.FLOAT16


def parse_compute(text: str) -> Compute:
    """Return the number type of that name.

    Raises:
        ValueError: says which there are.
    """
    if text not in list(Compute):
        raise ValueError(f"compute must be one of {', '.join(Compute)}, got {text!r}.")
    return Compute(text)


def slower_here(compute: Compute, cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return one sentence if this processor, of which the kernel speaks in ``cpuinfo``, emulates the type; else
    None."""
    if not compute.is_mixed or not cpuinfo.is_file():
        return None
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split(":")[-1].split()}
    if flags & set(NEEDED_FLAGS[compute.value]):
        return None
    return (
        f"This processor has no {compute.value} unit ({' or '.join(NEEDED_FLAGS[compute.value][:2])}): training is "
        "right and slower than in float32."
    )


def check_compute(compute: str, engine: str = "tensorflow") -> None:
    """Refuse a number type that is not known, or that the engine cannot compute in.

    Raises:
        ValueError: says what there is, or what to type.
    """
    if parse_compute(compute).is_mixed and engine == "numpy":
        raise ValueError(f"the engine numpy trains in float32 only, got {compute}. Type --set 'engine=\"tensorflow\"'.")


def cast(weights: Mapping[str, Any], compute: Compute) -> dict[str, Any]:
    """Return the weights in the type that is computed in; to be called inside the tape that watches the master weights.

    In float32 they are the very same tensors. γ and β of a layer normalisation stay float32.
    """
    if not compute.is_mixed:
        return dict(weights)
    return {
        name: value if name.rpartition("/")[2] in MASTER_PARTS else tf.cast(value, compute.value)
        for name, value in weights.items()
    }


# --- loss scaling -------------------------------------------------------------------------------------------------


def fresh_loss_scale(compute: Compute) -> dict[str, Any]:
    """State of the scale as plain arrays (1,): ``scale``, and ``good`` updates since it changed; empty if unneeded."""
    if not compute.scales_loss:
        return {}
    return {"scale": np.array([FIRST_SCALE], np.float32), "good": np.zeros(1, np.float32)}


def gradients_of(tape: Any, loss: Any, weights: Any, loss_scale: Mapping[str, Any]) -> tuple[Any, Any]:
    """Gradients of the loss, and whether all of them are finite (a bool tensor; None without a scale).

    With a scale s (of :func:`fresh_loss_scale`) the tape goes back from s instead of 1, and the gradients with respect
    to the float32 master weights, nested as they may be, are divided by s in float32. If one of them overflowed all are
    0, and :func:`apply_if_finite` undoes the step.
    """
    if not loss_scale:
        return tape.gradient(loss, weights), None
    scale = loss_scale["scale"][0]
    gradients = tape.gradient(loss, weights, output_gradients=scale)
    gradients = tf.nest.map_structure(lambda gradient: gradient / scale, gradients)
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tf.nest.flatten(gradients)])
    return tf.nest.map_structure(lambda each: tf.where(finite, each, tf.zeros_like(each)), gradients), finite


def next_loss_scale(loss_scale: Mapping[str, Any], finite: Any) -> dict[str, Any]:
    """Return the scale for the next update: half after an overflow, double after many good updates, else the same."""
    scale, good = loss_scale["scale"], loss_scale["good"] + 1.0
    grown = good >= GROWTH_INTERVAL
    larger = tf.where(grown, tf.minimum(2.0 * scale, LARGEST_SCALE), scale)
    smaller = tf.maximum(0.5 * scale, SMALLEST_SCALE)
    counted = tf.where(grown, tf.zeros_like(good), good)
    return {"scale": tf.where(finite, larger, smaller), "good": tf.where(finite, counted, tf.zeros_like(good))}


def apply_if_finite(
    new: Mapping[str, Any], old: Mapping[str, Any], finite: Any, key: str = "loss_scale"
) -> dict[str, Any]:
    """Return the groups of a learner after a step: ``new``, or those of ``old`` if a gradient overflowed; and the next
    scale.

    ``old`` has all groups of ``new``, and the scale under ``key`` where there is one; ``finite`` is as
    :func:`gradients_of` gives it.
    """
    if finite is None:
        return dict(new)
    before = {name: old[name] for name in new}
    groups = tf.nest.map_structure(lambda after, as_it_was: tf.where(finite, after, as_it_was), dict(new), before)
    return {**groups, key: next_loss_scale(old[key], finite)}


# --- convolutions -------------------------------------------------------------------------------------------------


def convolution(inputs: Any, kernel: Any, bias: Any, stride: int) -> Any:
    """relu(inputs * kernel + bias), in the type of the kernel; VALID, NHWC inputs and HWIO kernel.

    oneDNN is faster in bfloat16 than in float32 for the forward pass and the gradient of the inputs, but not for the
    gradient of the kernel, and it sums the bias's gradient slowly (no measurement of this is stored). Here both are
    matrix products. With d the gradient at the convolution's output, (batch, m, m, channels), and q = size / stride:

        kernel's gradient at block (a, b) = Σ over batch and places (i, j) of  z[i + a, j + b]ᵀ d[i, j],  a, b < q

    where z are the inputs with stride × stride neighbours side by side as channels (space to depth): there the stride
    is 1 and the kernel q × q.
    """
    if kernel.shape[0] % stride or kernel.shape[0] != kernel.shape[1]:
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, stride, "VALID"), bias))

    @tf.custom_gradient
    def forward(inputs: Any, kernel: Any, bias: Any) -> tuple[Any, Any]:
        outputs = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, stride, "VALID"), bias))

        def backward(gradient: Any) -> tuple[Any, Any, Any]:
            at_sum = tf.raw_ops.ReluGrad(gradients=gradient, features=outputs)
            to_inputs = tf.raw_ops.Conv2DBackpropInput(  # TensorFlow leaves it out where nobody asks: at the image
                input_sizes=tf.shape(inputs),
                filter=kernel,
                out_backprop=at_sum,
                strides=[1, stride, stride, 1],
                padding="VALID",
            )
            return to_inputs, *parameter_gradients(inputs, at_sum, kernel.shape, stride)

        return outputs, backward

    return forward(inputs, kernel, bias)


def parameter_gradients(inputs: Any, gradient: Any, shape: tuple[int, ...], stride: int) -> tuple[Any, Any]:
    """Gradients of kernel and bias, given that of the convolution's output before the ReLU; see :func:`convolution`.

    ``inputs`` are (batch, n, n, channels in), ``gradient`` is (batch, m, m, channels out), the kernel's ``shape`` is
    (size, size, channels in, channels out), and ``stride`` divides the size.
    """
    size, _, channels, filters = (int(length) for length in shape)
    height, width, blocks = int(gradient.shape[1]), int(gradient.shape[2]), size // stride
    rows = tf.reshape(gradient, (-1, filters))
    to_bias = tf.reshape(tf.ones((1, tf.shape(rows)[0]), rows.dtype) @ rows, (filters,))  # the product sums in float32
    z = inputs[:, : (height + blocks - 1) * stride, : (width + blocks - 1) * stride]
    if stride > 1:
        z = tf.nn.space_to_depth(z, stride)
    depth = stride * stride * channels
    products = [
        tf.matmul(tf.reshape(z[:, a : a + height, b : b + width], (-1, depth)), rows, transpose_a=True)
        for a in range(blocks)
        for b in range(blocks)
    ]
    # (a, b, row in the block, column in the block, in, out) → (a, row, b, column, in, out) → (size, size, in, out)
    nested = tf.reshape(tf.stack(products), (blocks, blocks, stride, stride, channels, filters))
    return tf.reshape(tf.transpose(nested, (0, 2, 1, 3, 4, 5)), (size, size, channels, filters)), to_bias
