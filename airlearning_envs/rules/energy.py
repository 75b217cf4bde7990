"""What a flight costs in energy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_HOVER, _BY_SPEED, _BY_FORCE, _BY_BOTH = (np.float32(value) for value in (433.9, 1.526, 3.934, 0.968))


def power_w(velocity: Floats, acceleration: Floats) -> Floats:
    """Electric power in level flight in W, (E,), from velocity and acceleration (2, E).

    P = -1.526 |v| + 3.934 |a| + 0.968 |v| |a| + 433.9: the regression of Tseng et al. 2017 (arXiv:1703.10049) for a
    3DR Solo, which MAVBench and Air Learning use, without payload and wind.
    """
    speed, force = velocity * velocity, acceleration * acceleration
    speed, force = np.sqrt(speed[0] + speed[1]), np.sqrt(force[0] + force[1])
    return _HOVER - _BY_SPEED * speed + force * (_BY_FORCE + _BY_BOTH * speed)
