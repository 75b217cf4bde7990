"""Random transitions for updates worked by hand."""

import numpy as np


def draw_batches(
    generator: np.random.Generator, updates: int, size: int = 4, observations: int = 3, actions: int = 2
) -> dict[str, np.ndarray]:
    """Columns (updates, size, …) as ``Experience.draw`` gives them."""

    def normal(*shape: int) -> np.ndarray:
        return generator.normal(size=(updates, size, *shape)).astype(np.float32)

    return {
        "observation": normal(observations), "action": np.tanh(normal(actions)), "return": normal(),
        "discount": np.full((updates, size), 0.9, np.float32), "next_observation": normal(observations),
    }  # fmt: skip
