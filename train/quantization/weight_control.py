"""Two means against wide weights, both off by default: decoupled weight decay and weight clipping.

Both act on the kernels of the network that is deployed (the policy, the actor, the action values), never on biases,
layer normalisations, a Gaussian's log σ, values or critics: a quantizer's step follows the range of the kernels alone.

Around every step of the optimiser, with its step size α, on each kernel W:

    W ← W − α λ W                                   weight_decay λ (AdamW: Loshchilov & Hutter 2019, algorithm 2)
    W ← the optimiser's step
    W ← clip(W, −κ / √fan_in, κ / √fan_in)          weight_clip κ (Elsayed et al. 2024, algorithm 1)

fan_in is the number of inputs of one output; 1 / √fan_in is the bound of PyTorch's first draw, which Elsayed et al.
keep with an orthogonal one (κ = 1 … 5; 3 in their PPO). They clip biases too. The decay is not part of the gradient:
neither its norm nor the optimiser's moments see it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.train.lazily import tf


@dataclass(frozen=True)
class WeightControl:
    """How the kernels are held; by default not at all, and then every function here leaves alone what it is given.

    Attributes:
        decay: λ.
        clip: κ; 0 is no clipping.
    """

    decay: float = 0.0
    clip: float = 0.0

    def decay_weights(self, weights: dict[str, Any], rate: Any) -> dict[str, Any]:
        """W − α λ W of the kernels among tensors by name, before the optimiser's step of size ``rate``."""
        if not self.decay:
            return weights
        keep = 1.0 - rate * self.decay
        return {name: value * keep if is_kernel(name) else value for name, value in weights.items()}

    def clip_weights(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return the kernels among tensors by name cut to ±κ / √fan_in, after the optimiser's step."""
        if not self.clip:
            return weights
        cut = dict(weights)
        for name in filter(is_kernel, weights):
            bound = self.compute_clip_bound(weights[name].shape)
            cut[name] = tf.clip_by_value(weights[name], -bound, bound)
        return cut

    def decay_in_place(self, weights: Mapping[str, NDArray[np.float32]], rate: float) -> None:
        """Decay arrays as :meth:`decay_weights` does."""
        if self.decay:
            for name in filter(is_kernel, weights):
                kernel = weights[name]
                kernel *= np.float32(1.0 - rate * self.decay)

    def clip_in_place(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Clip arrays as :meth:`clip_weights` does."""
        if self.clip:
            for name in filter(is_kernel, weights):
                kernel = weights[name]
                bound = np.float32(self.compute_clip_bound(kernel.shape))
                np.minimum(np.maximum(kernel, -bound, out=kernel), bound, out=kernel)

    def compute_clip_bound(self, shape: tuple[int, ...]) -> float:
        """κ / √fan_in of a kernel (…, in, out)."""
        return self.clip / math.sqrt(math.prod(int(size) for size in shape[:-1]))


OFF = WeightControl()


def is_kernel(name: str) -> bool:
    """Return whether weights of this name are a layer's kernel."""
    return name.endswith("/kernel")
