"""From a chain of steps to the contract: normaliser, layers and head, with every affine map between them folded in.

Folding multiplies in float64 and rounds once, so that the bundle computes what the chain does to a few float32
roundings; ``convert.importers.proof`` holds it to that. Whatever does not reduce to the contract is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quarl.convert.importers.chain import (
    Affine,
    Clip,
    Continuous,
    Discrete,
    ForeignError,
    ForeignPolicy,
    Opaque,
    as_rows,
    state_size,
)
from quarl.convert.importers.heads import head_of
from quarl.convert.importers.layers import Layer, layers_of, network_of
from quarl.convert.importers.onnx.wrapping import finish_graph
from quarl.convert.importers.prefix import Prefix, refuse_odd_images
from quarl.policy.spec import (
    PROGRAM,
    ContinuousHead,
    Head,
    NetworkSpec,
    Normaliser,
    ObservationField,
    OpaqueProgram,
    Squash,
)


@dataclass(frozen=True)
class Folded:
    """A chain in the contract's terms.

    Attributes:
        observation, normaliser, network, head: of the spec.
        weights: float32, by the bundle's names.
    """

    observation: tuple[ObservationField, ...]
    normaliser: Normaliser
    network: NetworkSpec
    head: Head
    weights: dict[str, np.ndarray]


def fold(policy: ForeignPolicy, observations: np.ndarray, *, may_normalise: bool = True) -> Folded:
    """Return the chain's normaliser, layers and head.

    Args:
        policy: its ``actions`` are known.
        observations: raw rows (n, size), of which the reach of unbounded actions is taken.
        may_normalise: put a normaliser in front of a policy that has none.

    Raises:
        ForeignError: a step that the contract has no place for, by its name.
    """
    if policy.steps and isinstance(policy.steps[0], Opaque):
        return _opaque(policy, policy.steps[0])
    fields = _fields(policy)
    steps = list(policy.steps)
    size = sum(field.size for field in fields) - state_size(steps)
    before: list[Affine | Clip] = []
    while steps and isinstance(steps[0], Affine | Clip):
        before.append(steps.pop(0))  # type: ignore[arg-type]
    prefix = Prefix.of(size, before)
    layers, after = layers_of(steps)
    if may_normalise and not before and layers[0].kernel.ndim == 2:
        prefix = _from_observations(layers[0], observations[:, :size])
    _take_up(prefix, layers[0])
    head = head_of(policy, layers[-1], after, as_rows(policy, observations))
    network, weights = network_of(layers)
    return Folded(fields, prefix.normaliser(), network, head, weights)


def _fields(policy: ForeignPolicy) -> tuple[ObservationField, ...]:
    return tuple(ObservationField(i.name, i.shape, i.unit, i.element_names, i.memory) for i in policy.inputs)


def _opaque(policy: ForeignPolicy, step: Opaque) -> Folded:
    """Return the policy whose network is an ONNX graph; what stands behind it becomes a part of the graph."""
    after = [later_step for later_step in policy.steps[1:] if isinstance(later_step, Affine | Clip)]
    data, behind = finish_graph(step, after, policy.actions)
    network = NetworkSpec((), opaque=OpaqueProgram(len(data), step.reason, step.states))
    head: Head
    if isinstance(policy.actions, Continuous):
        ones = np.ones(step.outputs)
        bounded = bool(np.isfinite([behind.low, behind.high]).all())
        low, high = (behind.low, behind.high) if bounded else (-ones, ones)
        squash = Squash.CLIP if bounded else Squash.NONE
        head = ContinuousHead(tuple(low), tuple(high), squash, names=policy.actions.names, unit=policy.actions.unit)
    else:
        head = (policy.actions or Discrete()).head(step.outputs)
    weights = {PROGRAM: np.frombuffer(data, np.uint8)}
    return Folded(_fields(policy), Normaliser((0.0,), (1.0,)), network, head, weights)


def _from_observations(first: Layer, observations: np.ndarray) -> Prefix:
    """Return a normaliser for a policy that has none, and the first layer that undoes it: nothing changes but int8.

    All elements share one int8 scale: an angle beside a speed would have few levels. x W = ((x − m) / s) (s W) + m W.
    """
    rows = np.asarray(observations, np.float64)
    low, high = rows.min(axis=0), rows.max(axis=0)
    middle = np.float64(np.float32((high + low) / 2))
    reach = np.where(high > low, np.float64(np.float32((high - low) / 2)), 1.0)
    first.bias = first.bias + middle @ first.kernel
    first.kernel = first.kernel * reach[:, None]
    size = len(reach)
    return Prefix(1.0 / reach, -middle / reach, np.full(size, -np.inf), np.full(size, np.inf))


def _take_up(prefix: Prefix, first: Layer) -> None:
    """Let the first layer take up what no normaliser can say: signs and constants of the observation's elements."""
    if first.kernel.ndim != 2:
        refuse_odd_images(prefix)
        return
    if len(prefix.scale) != len(first.kernel):
        raise ForeignError(
            f"the observation must have {len(first.kernel)} elements for the first layer, got {len(prefix.scale)}."
        )
    constants = prefix.constants
    fixed = np.isfinite(constants)
    first.bias = first.bias + np.where(fixed, constants, 0.0) @ first.kernel
    first.kernel = np.where(fixed[:, None], 0.0, first.kernel) * prefix.signs[:, None]
    first.bias = first.bias + prefix.rounding_excess @ first.kernel
