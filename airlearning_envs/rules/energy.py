"""What a flight costs in energy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def power_w(velocity: Floats, acceleration: Floats) -> Floats:
    """Electric power in level flight in W, (E,), from velocity and acceleration (2, E).

    P = -1.526 |v| + 3.934 |a| + 0.968 |v| |a| + 433.9: the regression of Tseng et al. 2017 (arXiv:1703.10049) for a
    3DR Solo, which MAVBench and Air Learning use, without payload and wind.
    """
    speed = np.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1])
    force = np.sqrt(acceleration[0] * acceleration[0] + acceleration[1] * acceleration[1])
    return np.float32(433.9) - np.float32(1.526) * speed + np.float32(3.934) * force + np.float32(0.968) * speed * force
