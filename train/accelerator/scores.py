"""Log-probabilities and entropies of both distributions of actions in numpy, with their gradients by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.accelerator.layers import Perceptron
from train.algorithms.common.distributions import HALF_LOG_2_PI, LOG_STD

Floats = NDArray[np.float32]


class CategoricalScore:
    """π = softmax(y).  ∂ log π(a)/∂yⱼ = [j = a] − πⱼ;  ∂H/∂yⱼ = −πⱼ (log πⱼ + H)."""

    def evaluate(self, outputs: Floats, actions: NDArray[Any]) -> tuple[Floats, np.float32]:
        """log π(a|s) (rows,) of actions under a policy's outputs, and the mean entropy in nats."""
        shifted = outputs - np.maximum.reduce(outputs, axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = np.add.reduce(exponentials, axis=1, keepdims=True)
        self._probabilities = np.divide(exponentials, sums, out=exponentials)
        self._logarithms = np.subtract(shifted, np.log(sums), out=shifted)
        self._entropies = -np.add.reduce(self._probabilities * self._logarithms, axis=1, keepdims=True)
        self._where = (np.arange(len(outputs)), actions)
        return self._logarithms[self._where], np.float32(self._entropies.mean())

    def slopes(self, chosen: Floats, bonus: float) -> Floats:
        """∂L/∂outputs (rows, outputs) of L = Σᵢ chosenᵢ log π(aᵢ|sᵢ) − bonus · mean H, at the last evaluation."""
        slopes = self._probabilities * -chosen[:, None]
        slopes[self._where] += chosen
        if bonus:
            share = np.float32(bonus / len(chosen))
            slopes += share * self._probabilities * (self._logarithms + self._entropies)
        return slopes


class GaussianScore:
    """π = N(y, σ²).  z = (a − y) / σ;  ∂ log π/∂y = z / σ;  ∂ log π/∂ log σ = z² − 1;  ∂H/∂ log σ = 1."""

    def __init__(self, policy: Perceptron) -> None:
        self._log_std = policy.weights.views[LOG_STD]
        self._gradient = policy.gradient.views[LOG_STD]

    def evaluate(self, outputs: Floats, actions: NDArray[Any]) -> tuple[Floats, np.float32]:
        """As :class:`CategoricalScore`'s."""
        self._inverse = np.exp(-self._log_std)
        self._distance = (actions - outputs) * self._inverse
        constant = np.float32(self._log_std.sum() + len(self._log_std) * HALF_LOG_2_PI)
        entropy = np.float32(constant + 0.5 * len(self._log_std))
        return np.float32(-0.5) * np.add.reduce(self._distance * self._distance, axis=1) - constant, entropy

    def slopes(self, chosen: Floats, bonus: float) -> Floats:
        """As :class:`CategoricalScore`'s; the gradient of log σ is set in the network's gradient."""
        weighted = self._distance * chosen[:, None]
        self._gradient[:] = np.add.reduce(weighted * self._distance, axis=0) - chosen.sum() - np.float32(bonus)
        weighted *= self._inverse
        return weighted


def score_of(policy: Perceptron) -> CategoricalScore | GaussianScore:
    """That of the distribution whose weights the policy has."""
    return GaussianScore(policy) if LOG_STD in policy.weights.views else CategoricalScore()
