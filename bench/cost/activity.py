"""Which weights a decision has to read: those behind outputs that are not exactly zero, in a policy's integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quarl.convert.mixed import integers
from quarl.policy.reference import Trace, head_inputs

if TYPE_CHECKING:
    from quarl.policy.bundle import Bundle
    from quarl.policy.spec import Precision


@dataclass(frozen=True)
class Activity:
    """How much of one layer's weights is read.

    Attributes:
        weights: number of the kernel's weights.
        share: share of the inputs that are not the level of zero, mean over the golden observations.
    """

    weights: int
    share: float


def activities(bundle: Bundle, precision: Precision) -> list[Activity]:
    """Return the activity of every layer of a perceptron in integers, from the first to the head."""
    spec = bundle.spec
    network = integers(bundle, precision)
    trace = Trace()
    head_inputs(spec, network, bundle.golden().observations, trace=trace)
    shares = {layer.name: float(np.mean(trace.levels[layer.name] != fed.zero_point)) for layer, fed in network.fed}
    return [Activity(layer.kernel.size, shares[layer.name]) for layer in network.layers]


def read_share(layers: Sequence[Activity]) -> float:
    """Share of these layers' weights that a decision reads."""
    return sum(layer.weights * layer.share for layer in layers) / sum(layer.weights for layer in layers)
