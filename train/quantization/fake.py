"""Fake quantization: a network computed in floats that lie on the integers' grid (Jacob et al. 2018, section 3).

:func:`fake_quantize_weights` turns float32 master weights into what the forward passes of ``train/networks/forward.py``
take: kernels rounded to their n-bit levels, and under ``<layer>/levels`` what rounds the outputs of a layer. Rounding
has no slope, so gradients pass it as if it were not there (the straight-through estimator, Bengio et al. 2013); where
an output is cut at the top of its range they are 0. The grid is that of ``policy/quantization_aware.py``, to the bit:
what was trained is what is exported. Biases are whole steps of the accumulator, as in the 32 bits of a device: with few
bits these steps are coarse.

For arrays (acting, numpy's engine) and tensors (the compiled updates) alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.quantize import INT8_MAX, INT8_MIN, SMALLEST_SCALE, affine_from_range, kernel_scales, unsigned_affine
from quarl.policy.simulate import ABOVE_THE_HALF, LARGEST_NUDGE, SMALLEST_FRACTION, agreeing_scales
from quarl.policy.spec import INPUT, NetworkSpec, TrainedQuantization, WeightRange
from quarl.train.lazily import tf

Floats = NDArray[np.float32]
QUANTIZER = "quantizer"
"""Name of the group of scales beside a learner's weights; there only while the quantizers are active."""
LEVELS = "levels"


@dataclass(frozen=True)
class FakeQuantization:
    """The grid of fake quantization.

    Attributes:
        bits: of weights and of hidden layers' outputs, 2 … 8.
        weight_range: what the weights' scales are taken from.
        nudged: whether 8-bit scales are those on which all integer kernels round alike (not behind a layer
            normalisation); see ``policy.simulate.agreeing_scales``.
    """

    bits: int
    weight_range: WeightRange
    nudged: bool

    @classmethod
    def of(cls, trained: TrainedQuantization, network: NetworkSpec) -> FakeQuantization:
        """Return the grid that a policy was trained on."""
        return cls(trained.bits, trained.weight_range, nudged=not network.layer_norm)

    @property
    def top(self) -> int:
        """Uppermost level of a hidden layer's output, of which 0 is the lowest."""
        return 2**self.bits - 1


def scales_of(ranges: Mapping[str, tuple[float, float]], bits: int) -> dict[str, Floats]:
    """Return the group ``quantizer`` for monitored ranges.

    Of the input: (scale, zero point), 8 bits. Of every hidden layer: (scale,).
    """
    scales = {}
    for name, (low, high) in ranges.items():
        if name == INPUT:
            affine = affine_from_range(low, high)
            scales[name] = np.array([affine.scale, affine.zero_point], np.float32)
        else:
            scales[name] = np.array([unsigned_affine(high, bits).scale], np.float32)
    return scales


def fake_quantize_weights(
    weights: Mapping[str, Any], scales: Mapping[str, Any], fake: FakeQuantization | None
) -> Mapping[str, Any]:
    """Return the weights to compute with: rounded, with what rounds the layers' outputs; unchanged without ``scales``.

    Args:
        weights: float32 master weights by the bundle's names, arrays or tensors; further names pass.
        scales: as :func:`scales_of` gives them; empty while the quantizers are not active.
        fake: which grid.
    """
    if not scales or fake is None:
        return weights
    layers = [name.removesuffix("/kernel") for name in weights if name.endswith("/kernel")]
    result = dict(weights)
    before = INPUT if "conv_0" not in layers else None  # an image's grey levels are whole numbers already
    if before is not None:
        result[f"{INPUT}/{LEVELS}"] = scales[INPUT]
    hidden = sorted((name for name in layers if name != "head"), key=_order)
    source = scales[INPUT][:1]
    for name in [*hidden, "head"]:
        kernel = weights[f"{name}/kernel"]
        out = scales[name] if name != "head" else None
        nudge = (source, out) if fake.nudged and fake.bits == 8 and out is not None else None
        result[f"{name}/kernel"], steps = fake_kernel(kernel, fake, nudge)
        result[f"{name}/bias"] = fake_bias(weights[f"{name}/bias"], source * steps)
        if out is not None:
            result[f"{name}/{LEVELS}"] = _with_top(out, fake.top)
            source = out
    return result


def select_scales(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scales in a learner's state by their name, which an update does not change; empty where there are
    none."""
    return {QUANTIZER: state[QUANTIZER]} if QUANTIZER in state else {}


def _order(name: str) -> tuple[bool, int]:
    kind, _, index = name.partition("_")
    return kind == "dense", int(index)


def _with_top(scale: Any, top: int) -> Any:
    if isinstance(scale, np.ndarray):
        return np.array([scale[0], top], np.float32)
    return tf.stack([scale[0], tf.constant(top, scale.dtype)])


# --- weights ----------------------------------------------------------------------------------------------------------


def fake_kernel(kernel: Any, fake: FakeQuantization, nudge: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """Ŵ = s_c · clip(round(W / s_c), ±(2ⁿ⁻¹ − 1)) of a kernel (…, out), with the gradient of W; and s_c, (out,).

    ``nudge``: scales (1,) of the layer's input and output, where 8-bit scales shall agree with them.
    """
    limit = 2 ** (fake.bits - 1) - 1
    if isinstance(kernel, np.ndarray):
        scales = kernel_scales(kernel, fake.bits, fake.weight_range)
        if nudge is not None:
            scales = agreeing_scales(scales, float(nudge[0][0]), float(nudge[1][0]))
        levels = np.rint(kernel / scales)
        return np.minimum(np.maximum(levels, np.float32(-limit)), np.float32(limit)) * scales, scales
    master = tf.stop_gradient(kernel)
    scales = _scales_of_tensor(master, fake)
    if nudge is not None:
        scales = _agreeing_tensor(scales, *nudge)
    rounded = tf.clip_by_value(tf.round(master / scales), -float(limit), float(limit)) * scales
    return kernel + (rounded - master), scales


def fake_bias(bias: Any, steps: Any) -> Any:
    """b̂ = step · round(b / step), (out,), with the gradient of b; the steps are s_in · s_c."""
    if isinstance(bias, np.ndarray):
        return np.rint(bias / steps) * steps
    master = tf.stop_gradient(bias)
    return bias + (tf.round(master / steps) * steps - master)


def _scales_of_tensor(kernel: Any, fake: FakeQuantization) -> Any:
    """Scales of a kernel (…, out), as ``policy.quantize.kernel_scales`` computes them."""
    magnitude = tf.reshape(tf.abs(kernel), (-1, kernel.shape[-1]))
    limit = 2 ** (fake.bits - 1) - 1
    if fake.weight_range is WeightRange.LARGEST:
        scales = tf.reduce_max(magnitude, axis=0) / np.float32(limit)
    else:
        scales = np.float32(2.0 / np.sqrt(limit)) * tf.reduce_mean(magnitude, axis=0)
    return tf.where(scales >= np.float32(SMALLEST_SCALE), scales, tf.ones_like(scales))


def _agreeing_tensor(scales: Any, source: Any, out: Any) -> Any:
    """Scales that agree, as those of ``policy.simulate.agreeing_scales``, in double precision like there."""
    wide, in_scale, out_scale = (tf.cast(tensor, tf.float64) for tensor in (scales, source[0], out[0]))
    m = in_scale * wide / out_scale
    t = tf.maximum(tf.round(0.5 / m), 1.0)
    wanted = 0.5 / t * (1.0 + ABOVE_THE_HALF)
    # frexp: the significand in [½, 1) from the 52 bits that hold it
    low_bits = tf.bitwise.bitwise_and(tf.bitcast(wanted, tf.int64), tf.constant(2**52 - 1, tf.int64))
    fraction = 0.5 + tf.cast(low_bits, tf.float64) / 2.0**53
    moved = (tf.abs(wanted / m - 1.0) <= LARGEST_NUDGE) & (fraction > SMALLEST_FRACTION)
    return tf.cast(tf.where(moved, wanted * out_scale / in_scale, wide), tf.float32)


# --- activations ------------------------------------------------------------------------------------------------------


def fake_hidden(values: Any, levels: Any) -> Any:
    """ĥ = s · min(round(h / s), top) of a ReLU's output h ≥ 0, any shape, with the levels (s, top).

    The slope is 1 up to the top, 0 beyond.
    """
    scale, top = levels[0], levels[1]
    if isinstance(values, np.ndarray):
        return np.minimum(np.rint(values / scale), top) * scale
    cut = tf.minimum(values, scale * top)
    return cut + tf.stop_gradient(tf.minimum(tf.round(values / scale), top) * scale - cut)


def fake_input(values: Any, levels: Any) -> Any:
    """x̂ = s · (clip(round(x / s) + z, −128, 127) − z): the normalised observation x in 8 bits; levels (s, z).

    It needs no gradient.
    """
    scale, zero = levels[0], levels[1]
    low, high = INT8_MIN - zero, INT8_MAX - zero
    if isinstance(values, np.ndarray):
        return np.minimum(np.maximum(np.rint(values / scale), low), high) * scale
    return tf.clip_by_value(tf.round(values / scale), low, high) * scale
