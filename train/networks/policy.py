"""All that decides what a policy computes: its weights, its observations' normaliser, its quantizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import Normaliser, TrainedQuantization, WeightRange
from quarl.train.networks.weights import Weights


@dataclass(frozen=True)
class Policy:
    """All that decides what a policy computes.

    Attributes:
        weights: of its network. Arrays are kept as they are: a learner replaces its arrays and never writes into them.
        normaliser: of its observations.
        quantization: the quantizers that it computes with; None in floats.
    """

    weights: Weights
    normaliser: Normaliser
    quantization: TrainedQuantization | None = None

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays that :meth:`from_state` takes."""
        normaliser, quantization = self.normaliser, self.quantization
        scaling = {"mean": normaliser.mean, "scale": normaliser.scale, "clip": [normaliser.clip]}
        groups = {"weights": self.weights, "normaliser": {name: np.array(value) for name, value in scaling.items()}}
        if quantization is not None:
            groups["ranges"] = {name: np.array(ends) for name, ends in quantization.ranges.items()}
            is_mean = quantization.weight_range is WeightRange.MEAN
            groups["quantizer"] = {"bits": np.array([quantization.bits]), "is_mean": np.array([is_mean])}
        return {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]]) -> Policy:
        """Return the policy that :meth:`state` took.

        Raises:
            KeyError: a part of it is missing.
        """

        def group(name: str) -> dict[str, NDArray[Any]]:
            return {key.removeprefix(f"{name}/"): state[key] for key in state if key.startswith(f"{name}/")}

        mean, scale = (tuple(map(float, state[f"normaliser/{name}"])) for name in ("mean", "scale"))
        quantization = None
        if ranges := {name: (float(ends[0]), float(ends[1])) for name, ends in group("ranges").items()}:
            weight_range = WeightRange.MEAN if state["quantizer/is_mean"][0] else WeightRange.LARGEST
            quantization = TrainedQuantization(int(state["quantizer/bits"][0]), ranges, weight_range)
        return cls(group("weights"), Normaliser(mean, scale, float(state["normaliser/clip"][0])), quantization)
