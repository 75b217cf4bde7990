"""A chain as a graph spells it, made the chain that a bundle expects: no scale or offset between layers.

    x W + b, then · s + t        →  x (W s) + (b s + t)
    · s + t, then x W + b        →  x (s W) + (t W + b)      (a batch normalisation behind an activation)

What stands before the first layer (a normaliser) and behind the last one (an action's scale and bounds) stays. An
image's scale per channel goes into its first convolution, which is exact: nothing is padded. All in float64; kernels
are rounded to float32 once.
"""

from __future__ import annotations

import math

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Convolution,
    Dense,
    ForeignError,
    LayerNorm,
    Step,
)
from quarl.policy.spec import Activation

Image = tuple[int, int, int]


def simplify_steps(steps: tuple[Step, ...], image: Image | None) -> tuple[Step, ...]:
    """Return the same function in the fewest steps.

    Args:
        steps: with numbers per element in the order (height, width, channels) where the values are images.
        image: of the observation, if it is one.

    Raises:
        ForeignError: an image is scaled or cut pixel by pixel.
    """
    chain: list[Step] = []
    for step in steps:
        chain = _append_step(chain, _short(step))
    chain = _fold_backward(chain)
    chain = _fold_forward(chain, image)
    return tuple(_restore_relus(_without_selections(chain)))


def _short(step: Step) -> Step:
    """Return one number where all are alike."""
    if isinstance(step, Affine | Clip):
        first, second = (step.scale, step.offset) if isinstance(step, Affine) else (step.low, step.high)
        if (first == first[0]).all() and (second == second[0]).all():
            return type(step)(first[:1], second[:1])
        width = max(len(first), len(second))
        return type(step)(np.array(np.broadcast_to(first, (width,))), np.array(np.broadcast_to(second, (width,))))
    return step


def _append_step(chain: list[Step], step: Step) -> list[Step]:
    last = chain[-1] if chain else None
    if isinstance(step, Affine):
        if (step.scale == 1).all() and (step.offset == 0).all():
            return chain
        # Behind a product without a bias this is the bias.
        if isinstance(last, Dense) and (step.scale == 1).all():
            return [*chain[:-1], Dense(last.kernel, (last.bias + step.offset).astype(np.float32))]
        if isinstance(last, LayerNorm):
            gamma, beta = last.gamma * step.scale, last.beta * step.scale + step.offset
            return [*chain[:-1], LayerNorm(gamma.astype(np.float32), beta.astype(np.float32), last.epsilon)]
        if isinstance(last, Affine):
            return [*chain[:-1], Affine(last.scale * step.scale, last.offset * step.scale + step.offset)]
    if isinstance(step, Clip):
        if np.isneginf(step.low).all() and np.isposinf(step.high).all():
            return chain
        if isinstance(last, Clip):
            low, high = (np.minimum(np.maximum(bound, step.low), step.high) for bound in (last.low, last.high))
            return [*chain[:-1], Clip(low, high)]
    return [*chain, step]


def _fold_backward(chain: list[Step]) -> list[Step]:
    """Scales and offsets directly behind a layer, unless only bounds follow them: those are the action's."""
    result: list[Step] = []
    for index, step in enumerate(chain):
        last = result[-1] if result else None
        inside = not all(isinstance(later, Affine | Clip) for later in chain[index:])
        if isinstance(step, Affine) and inside and isinstance(last, Dense | Convolution):
            folded = _scale_layer(last, step)
            if folded is not None:
                result[-1] = folded
                continue
        result.append(step)
    return result


def _scale_layer(layer: Dense | Convolution, step: Affine) -> Dense | Convolution | None:
    """Return the layer with a scale and offset of its outputs inside; None where they differ from pixel to pixel."""
    channels = layer.kernel.shape[-1]
    scale, offset = step.scale, step.offset
    if isinstance(layer, Convolution):
        parts = [_per_channel(numbers, channels) for numbers in (scale, offset)]
        if parts[0] is None or parts[1] is None:
            return None
        scale, offset = parts[0], parts[1]
    kernel = (layer.kernel.astype(np.float64) * scale).astype(np.float32)
    bias = np.broadcast_to(layer.bias.astype(np.float64) * scale + offset, (channels,)).astype(np.float32)
    return Dense(kernel, bias) if isinstance(layer, Dense) else Convolution(kernel, bias, layer.stride)


def _per_channel(numbers: np.ndarray, channels: int) -> np.ndarray | None:
    """(height · width · channels,) or (1,) as (channels,), if all pixels have the same numbers."""
    if len(numbers) == 1:
        return np.broadcast_to(numbers, (channels,))
    pixels = numbers.reshape(-1, channels)
    return pixels[0] if (pixels == pixels[0]).all() else None


def _fold_forward(chain: list[Step], image: Image | None) -> list[Step]:
    """Scales and offsets before a layer, unless they come first (a normaliser of rows or one number for an image)."""
    result: list[Step] = []
    opening = True
    for index, step in enumerate(chain):
        after = chain[index + 1] if index + 1 < len(chain) else None
        if isinstance(step, Affine | Clip) and image is not None and _width(step) > 1:
            folded = _into(step, after, image) if isinstance(step, Affine) else None
            if folded is None:
                raise ForeignError(
                    "The network must not scale or clip an image per pixel, or per channel.",
                    "Scale an image by one number, or by one for each channel directly before the convolution.",
                    code="per_pixel_scaling",
                )
            chain[index + 1] = folded
            continue
        if isinstance(step, Affine) and not opening:
            folded = _into(step, after, image)
            if folded is not None:
                chain[index + 1] = folded
                continue
        opening = opening and isinstance(step, Affine | Clip)
        if image is not None:
            image = _after(step, image)
        result.append(step)
    return result


def _width(step: Affine | Clip) -> int:
    return len(step.scale) if isinstance(step, Affine) else len(step.low)


def _into(step: Affine, layer: Step | None, image: Image | None) -> Dense | Convolution | None:
    """Return the layer with a scale and offset of its inputs inside; None where it cannot take them."""
    if isinstance(layer, Dense):
        inputs = layer.kernel.shape[0]
        kernel = layer.kernel.astype(np.float64)
        bias = layer.bias + np.broadcast_to(step.offset, (inputs,)) @ kernel
        scale = np.broadcast_to(step.scale, (inputs,))
        return Dense((scale[:, None] * kernel).astype(np.float32), bias.astype(np.float32))
    if isinstance(layer, Convolution) and image is not None:
        parts = [_per_channel(numbers, image[2]) for numbers in (step.scale, step.offset)]
        if parts[0] is None or parts[1] is None:
            return None
        kernel = layer.kernel.astype(np.float64)
        bias = layer.bias + np.einsum("hwio,i->o", kernel, parts[1])
        return Convolution((kernel * parts[0][:, None]).astype(np.float32), bias.astype(np.float32), layer.stride)
    return None


def _after(step: Step, image: Image) -> Image | None:
    """Return the image behind a step; None once it is a row."""
    if isinstance(step, Convolution):
        side, stride, channels = step.kernel.shape[0], step.stride, step.kernel.shape[-1]
        return (image[0] - side) // stride + 1, (image[1] - side) // stride + 1, channels
    return None if isinstance(step, Dense) else image


def _restore_relus(chain: list[Step]) -> list[Step]:
    """max(x, 0) between layers is a ReLU, whatever a graph calls it."""
    result = list(chain)
    for index, step in enumerate(chain[1:-1], start=1):
        behind_layer = isinstance(chain[index - 1], Dense | Convolution | LayerNorm)
        if behind_layer and isinstance(step, Clip) and (step.low == 0).all() and math.isinf(step.high.min()):
            result[index] = Activate(Activation.RELU)
    return result


def _without_selections(chain: list[Step]) -> list[Step]:
    """Return a Dense that only copies and scales elements goes into the Dense directly behind it."""
    result: list[Step] = []
    for step in chain:
        last = result[-1] if result else None
        copies = isinstance(last, Dense) and bool((np.count_nonzero(last.kernel, axis=0) <= 1).all())
        if isinstance(step, Dense) and isinstance(last, Dense) and copies:
            kernel = step.kernel.astype(np.float64)
            bias = last.bias.astype(np.float64) @ kernel + step.bias
            result[-1] = Dense((last.kernel.astype(np.float64) @ kernel).astype(np.float32), bias.astype(np.float32))
        else:
            result.append(step)
    return result
