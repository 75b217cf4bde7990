"""Quantization-aware training of one run: ranges are monitored, then the policy learns with quantizers.

As QuaRL does it: for ``quant_delay`` the policy trains in floats while the ranges of its activations are watched; then
weights and activations are quantized in every forward pass, of acting, judging and learning alike, and the ranges go
on being watched. Only what is deployed is quantized: policies, action values and their target networks, not critics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.policy.spec import INPUT, NetworkSpec, Normaliser, TrainedQuantization, WeightRange
from quarl.train.networks.forward import activations
from quarl.train.networks.policy import Policy
from quarl.train.networks.weights import Weights
from quarl.train.quantization.fake import QUANTIZER, FakeQuantization, fake_quantize_weights, scales_of

Floats = NDArray[np.float32]
FULL_BITS = 32
MEAN_RANGE_BITS = 3  # up to here the largest weight leaves the others too few levels
DECAY = 0.9  # of the running mean of a range's end, per look
LOOK_ROWS = 256  # observations of one look
LOOK_IMAGES = 32
CANDIDATES = np.linspace(0.2, 1.0, 17, dtype=np.float32)  # tops of a range, as shares of the largest value seen


class QuantizationAware:
    """The quantizers of one run; does nothing in a run of 32 bits.

    Attributes:
        fake: which grid; None in a run of 32 bits.
        active: whether the policy is quantized now.
        updates: number of updates that were made with quantizers.
    """

    def __init__(self, network: NetworkSpec, bits: int, delay_steps: int) -> None:
        """Args: the policy's network, the bits, and the steps that are made in floats first."""
        self._network = network
        self.fake = fake_quantization(bits, network)
        self.delay_steps = delay_steps
        self.active = False
        self.updates = 0
        self._ranges: dict[str, tuple[float, float]] = {}
        self._scales: dict[str, Floats] = {}
        self._acting: tuple[Any, Any, Mapping[str, Any]] = (None, None, {})

    def begin(self, step: int) -> bool:
        """Activate the quantizers where they are due at ``step``, before an iteration; returns whether it did so."""
        if self.fake is None or self.active or step < self.delay_steps or not self._ranges:
            return False
        self.active = True
        self._scales = scales_of(self._ranges, self.fake.bits)
        return True

    @property
    def scales(self) -> dict[str, Floats]:
        """The scales of the layers, while active; else empty."""
        return self._scales

    @property
    def group(self) -> dict[str, dict[str, Floats]]:
        """Arrays that an update is given beside the learner's, by group."""
        return {QUANTIZER: self._scales} if self._scales else {}

    def acting(self, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the weights to act and to judge with; the same object for the same weights."""
        if not self._scales:
            return weights
        of, scales, acting_weights = self._acting
        if of is not weights or scales is not self._scales:
            acting_weights = fake_quantize_weights(weights, self._scales, self.fake)
            self._acting = weights, self._scales, acting_weights
        return acting_weights

    def count(self, updates: int) -> None:
        """Count updates that were made: with quantizers, if they are active."""
        self.updates += updates if self._scales else 0

    def look(self, weights: Mapping[str, Any], inputs: NDArray[Any]) -> None:
        """Watch the ranges on some inputs of the network: normalised observations (rows, size), or uint8 images."""
        if self.fake is None:
            return
        rows = LOOK_IMAGES if self._network.convolutions else LOOK_ROWS
        chosen = inputs[:: max(len(inputs) // rows, 1)][:rows]
        values = activations(self._network, self.acting(weights), chosen)
        low, high = (float(end) for end in (chosen.min(), chosen.max()))
        if self._network.convolutions:
            low, high = 0.0, 1.0
        seen = self._ranges.get(INPUT, (low, high))
        ranges = {INPUT: (min(seen[0], low), max(seen[1], high))}
        for name, output in zip(self._network.hidden_names, values, strict=True):
            top = best_top(output, self.fake.bits)
            before = self._ranges.get(name)
            ranges[name] = (0.0, top if before is None else DECAY * before[1] + (1.0 - DECAY) * top)
        self._ranges = ranges
        if self.active:
            self._scales = scales_of(ranges, self.fake.bits)

    def policy(self, weights: Weights, normaliser: Normaliser) -> Policy:
        """Return the policy as it computes now: these weights, quantized on the ranges of now if the quantizers are
        active."""
        trained = None
        if self.fake is not None and self.active:
            trained = TrainedQuantization(self.fake.bits, dict(self._ranges), self.fake.weight_range)
        return Policy(dict(weights), normaliser, trained)

    def notes(self) -> dict[str, Any]:
        """Facts for the provenance."""
        if self.fake is None:
            return {}
        return {"quantized_updates": self.updates, "quant_delay_steps": self.delay_steps}

    def list_checkpoint_parts(self) -> dict[str, QuantizationAware]:
        """Return this object under its name, for a checkpoint; nothing in a run of 32 bits."""
        return {} if self.fake is None else {"quantization_aware": self}

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that :meth:`restore` needs."""
        ranges = {f"ranges/{name}": np.array(ends) for name, ends in self._ranges.items()}
        return {"active": np.array([self.active]), "updates": np.array([self.updates], np.int64), **ranges}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on exactly where :meth:`state` was taken."""
        prefix = "ranges/"
        self._ranges = {
            name.removeprefix(prefix): (float(ends[0]), float(ends[1]))
            for name, ends in state.items()
            if name.startswith(prefix)
        }
        self.active, self.updates = bool(state["active"][0]), int(state["updates"][0])
        if self.active and self.fake is not None:
            self._scales = scales_of(self._ranges, self.fake.bits)


def fake_quantization(bits: int, network: NetworkSpec) -> FakeQuantization | None:
    """Return the grid of this many bits for a network; None for 32."""
    if bits == FULL_BITS:
        return None
    weight_range = WeightRange.MEAN if bits <= MEAN_RANGE_BITS else WeightRange.LARGEST
    return FakeQuantization(bits, weight_range, nudged=not network.layer_norm)


def best_top(values: Floats, bits: int) -> float:
    """Top of the range 0 … top whose n-bit levels have the smallest mean squared error on ``values`` (≥ 0).

    With 8 bits that is the largest value or just below it; with few bits, rare large values are cut off for the sake of
    the others (Banner et al. 2019).
    """
    largest = float(values.max(initial=0.0))
    if largest <= 0.0:
        return 0.0
    flat = values.ravel()
    tops = np.float32(largest) * CANDIDATES
    levels = np.float32(2**bits - 1)
    errors = []
    for top in tops:
        scale = top / levels
        errors.append(float(np.square(np.minimum(np.rint(flat / scale), levels) * scale - flat).mean()))
    return float(tops[int(np.argmin(errors))])
