"""What follows the last layer, as a head."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quarl.convert.importers.chain import (
    Activate,
    Affine,
    Clip,
    Continuous,
    Discrete,
    Doubles,
    ForeignError,
    ForeignPolicy,
    Step,
    through,
)
from quarl.convert.importers.layers import Layer, behind, describe_step
from quarl.convert.importers.prefix import Prefix
from quarl.policy.spec import Activation, ContinuousHead, Head, Squash

FAR_BOUNDS = 2.0
"""Times as far from the centre as any action: bounds that clip nothing and would take the int8 levels."""


def head_of(policy: ForeignPolicy, last: Layer, after: list[Step], rows: Doubles) -> Head:
    """Return the head.

    Args:
        policy: its ``actions`` are known.
        last: the last layer, which takes up the maps before the squashing.
        after: the steps behind it.
        rows: what the policy takes (n, size), or images, of which the reach of unbounded outputs is seen.

    Raises:
        ForeignError: a step that no head has, by its name.
    """
    head = _head(policy, last, after)
    if not isinstance(head, ContinuousHead) or head.squash is Squash.TANH:
        return head
    return _fit_head(head, last, through(policy.steps, rows)[:, : head.size])


def _head(policy: ForeignPolicy, last: Layer, after: list[Step]) -> Head:
    """Return the head, given what follows the last layer, which takes up the maps before the squashing."""
    outputs = len(last.bias)
    steps = [step for step in after if not (isinstance(step, Activate) and step.activation is Activation.NONE)]
    if not last.is_linear:
        raise ForeignError("the last layer must be a plain dense layer.")
    while steps and isinstance(steps[0], Affine):
        behind(last, steps.pop(0), None)  # type: ignore[arg-type]
    if isinstance(policy.actions, Discrete):
        if steps:
            raise ForeignError(f"{describe_step(steps[0])} after the outputs of a discrete policy is not supported.")
        return policy.actions.head(outputs)
    if not isinstance(policy.actions, Continuous):
        raise ForeignError(
            "the file does not say what its outputs mean.",
            "Add --actions discrete, as-is, clip or scale (with --bounds LOW:HIGH).",
        )
    ones = np.ones(outputs)
    limit = math.inf
    if steps and isinstance(steps[0], Clip) and any(isinstance(step, Activate) for step in steps):
        limit = _limit(steps.pop(0))  # type: ignore[arg-type]
    if steps and isinstance(steps[0], Activate):
        if steps[0].activation is Activation.SIGMOID:
            limit /= 2  # as the outputs: see _squashed
        gain, offset = (value * ones for value in _fold_squash(steps.pop(0), last))  # type: ignore[arg-type]
        for step in steps:
            gain, offset = _through(step, gain, offset)
        signs = np.where(gain < 0, -1.0, 1.0)
        last.kernel, last.bias, gain = last.kernel * signs, last.bias * signs, np.abs(gain)
        if not gain.all():
            raise ForeignError("an action must not be multiplied by 0.")
        return _continuous(offset - gain, offset + gain, Squash.TANH, limit, policy.actions)
    clips = Prefix.of(outputs, [step for step in steps if isinstance(step, Affine | Clip)])
    if odd := [step for step in steps if not isinstance(step, Affine | Clip)]:
        raise ForeignError(f"{describe_step(odd[0])} after the actions is not supported.")
    last.kernel, last.bias = last.kernel * clips.scale, last.bias * clips.scale + clips.offset
    bounded = np.isfinite(clips.low) & np.isfinite(clips.high)
    if not bounded.any() and not (np.isfinite(clips.low) | np.isfinite(clips.high)).any():
        return _continuous(-ones, ones, Squash.NONE, math.inf, policy.actions)
    if not bounded.all():
        raise ForeignError("all actions or none must be clipped, at both ends.")
    if (clips.low >= clips.high).any():
        raise ForeignError("an action must not be clipped to a single value.")
    gain, offset = (clips.high - clips.low) / 2, (clips.high + clips.low) / 2
    last.kernel, last.bias = last.kernel / gain, (last.bias - offset) / gain
    return _continuous(clips.low, clips.high, Squash.CLIP, math.inf, policy.actions)


def _fold_squash(step: Activate, last: Layer) -> tuple[float, float]:
    """(gain, offset) of tanh: a sigmoid is (1 + tanh y/2) / 2."""
    if step.activation is Activation.TANH:
        return 1.0, 0.0
    if step.activation is Activation.SIGMOID:
        last.kernel, last.bias = last.kernel / 2, last.bias / 2
        return 0.5, 0.5
    raise ForeignError(f"only tanh or sigmoid may follow the last layer, got {describe_step(step)}.")


def _limit(step: Clip) -> float:
    """Return the one largest |y| that a clip before the squashing lets through."""
    limit = float(np.max(step.high))
    if (np.asarray(step.high) != limit).any() or (np.asarray(step.low) != -limit).any():
        raise ForeignError("the clip before the squashing must have bounds −x … x, the same for all actions.")
    return limit


def _through(step: Step, gain: Doubles, offset: Doubles) -> tuple[Doubles, Doubles]:
    if isinstance(step, Affine):
        return gain * step.scale, offset * step.scale + step.offset
    if isinstance(step, Clip):
        reach = np.abs(gain) * (1 - 1e-6)
        if (offset - reach >= step.low).all() and (offset + reach <= step.high).all():
            return gain, offset  # it cuts nothing
        raise ForeignError("a clip after the squashed actions must not cut any of them.")
    raise ForeignError(f"{describe_step(step)} after the squashed actions is not supported.")


def _continuous(low: Doubles, high: Doubles, squash: Squash, limit: float, actions: Continuous) -> ContinuousHead:
    return ContinuousHead(tuple(low.tolist()), tuple(high.tolist()), squash, limit, actions.names, actions.unit)


def _fit_head(head: ContinuousHead, last: Layer, reached: Doubles) -> ContinuousHead:
    """Return a head whose −1 … 1 is about what its actions reach, (n, outputs): so each has its share of the 8 bits.

    Bounds that no action comes near become a limit of the raw outputs, L: centre ± L · (half width / L).
    """
    low, high = reached.min(axis=0), reached.max(axis=0)
    if head.squash is Squash.CLIP:
        half, centre = (np.array(head.high) - np.array(head.low)) / 2, (np.array(head.high) + np.array(head.low)) / 2
        share = float((np.maximum(high - centre, centre - low) / half).max())
        if not 0.0 < share < 1.0 / FAR_BOUNDS:
            return head
        limit = 1.0 / share
        last.kernel, last.bias = last.kernel * limit, last.bias * limit
        ends = (tuple((centre + sign * half / limit).tolist()) for sign in (-1.0, 1.0))
        return replace(head, low=next(ends), high=next(ends), squash=Squash.NONE, limit=limit)
    wide = high - low > 1e-6 * np.maximum(1.0, np.abs(high))
    gain, offset = np.where(wide, (high - low) / 2, 1.0), np.where(wide, (high + low) / 2, 0.0)
    last.kernel, last.bias = last.kernel / gain, (last.bias - offset) / gain
    return replace(head, low=tuple((offset - gain).tolist()), high=tuple((offset + gain).tolist()))
