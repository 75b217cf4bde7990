"""How a batch of drones is turned, as three rotations in a plane: yaw, then tilt forward, then tilt rightward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Rows of the workspace, such that what a rotation reads and writes are two rows at one distance from each other.
_RIGHTWARD, _MIDDLE, _AHEAD, _DOWN_LEVEL, _FORWARD, _RIGHT, _DOWN = range(7)


class Attitude:
    """Turns vectors of E drones between world and body, without making an array.

    With f and s the tilt forward and rightward (minus pitch, and roll), and each pair turned by [[cos, sin], [-sin, cos]]:

        (x, y)              by yaw  -> (ahead, rightward)      level, in the heading's frame
        (ahead, z)          by f    -> (forward, middle)
        (rightward, middle) by s    -> (right, down)           in the body's frame

    Args:
        tilt: (2, E) float32, read by :meth:`refresh` and changed by :meth:`turn`.
        yaw: (E,) float64, likewise.

    Attributes:
        world: (3, E) workspace: x, y, z of what :meth:`to_body` turns; used up by it.
        forward_right: (2, E) its result.
        down: (E,) its result.
    """

    def __init__(self, tilt: Floats, yaw: NDArray[np.float64]) -> None:
        self._tilt, self._yaw = tilt, yaw
        count = len(yaw)
        self._angles, self._cosines, self._sines = (np.zeros((3, count), np.float64) for _ in range(3))
        # Of f, s and yaw: (3, 2, 2, E).
        self._turns = np.zeros((3, 2, 2, count), np.float32)
        self._by_forward, self._by_rightward, self._by_yaw = self._turns
        self._cos_f, self._sin_f = self._by_forward[0]
        # Numbers are cast to float32 once, so that a vector library's last float64 bit is of no account.
        self._cosine, self._cosine_again = self._turns[:, 0, 0], self._turns[:, 1, 1]
        self._sine, self._minus_sine = self._turns[:, 0, 1], self._turns[:, 1, 0]
        rows = np.zeros((7, count), np.float32)
        self.world, self.forward_right, self.down = rows[1:4], rows[_FORWARD : _RIGHT + 1], rows[_DOWN]
        self._plane, self._level = self.world[:2], rows[_AHEAD::-2]
        self._ahead_down, self._forward_middle = rows[_AHEAD : _DOWN_LEVEL + 1], rows[_FORWARD:0:-3]
        self._rightward_middle, self._right_down = rows[: _MIDDLE + 1], rows[_RIGHT:]
        self._ahead, self._rightward, self._middle = rows[_AHEAD], rows[_RIGHTWARD], rows[_MIDDLE]
        self._products = np.zeros((2, 2, count), np.float32)
        self._first, self._second = self._products[:, 0], self._products[:, 1]
        self._pair, self._single = np.zeros((2, count), np.float32), np.zeros(count, np.float32)
        self.refresh()

    def refresh(self) -> None:
        """Take over tilt and yaw."""
        self._angles[:2] = self._tilt
        self._angles[2] = self._yaw
        np.cos(self._angles, self._cosines)
        np.sin(self._angles, self._sines)
        self._cosine[...] = self._cosines
        self._cosine_again[...] = self._cosines
        self._sine[...] = self._sines
        np.negative(self._sine, self._minus_sine)

    def _rotate(self, turn: Floats, pair: Floats, out: Floats) -> None:
        np.multiply(turn, pair, self._products)
        np.add(self._first, self._second, out)

    def to_body(self) -> None:
        """Turn ``world`` into ``forward_right`` and ``down``."""
        self._rotate(self._by_yaw, self._plane, self._level)
        self._rotate(self._by_forward, self._ahead_down, self._forward_middle)
        self._rotate(self._by_rightward, self._rightward_middle, self._right_down)

    def down_to_world(self, length: Floats, out: Floats) -> None:
        """The vector (3, E) of ``length`` (E,) along the body's down axis."""
        np.multiply(self._by_rightward[1], length, self._rightward_middle)
        np.multiply(self._by_forward[1], self._middle, self._ahead_down)
        np.multiply(self._by_yaw[0], self._ahead, out[:2])
        np.multiply(self._by_yaw[1], self._rightward, self._pair)
        np.add(out[:2], self._pair, out[:2])
        out[2] = self._ahead_down[1]

    def turn(self, rates: Floats, seconds: Floats) -> None:
        """Let the body turn at ``rates`` (3, E) about its own axes (tilting forward, tilting rightward, yawing, rad/s;
        used up) for ``seconds`` (3, E), by Euler's kinematics:

            f' = q_f cos s + r sin s,   k = r cos s - q_f sin s,   s' = q_s - k tan f,   yaw' = k / cos f
        """
        np.multiply(self._by_rightward, rates[::2], self._products)
        np.add(self._first, self._second, rates[::2])
        np.divide(rates[2], self._cos_f, rates[2])
        np.multiply(rates[2], self._sin_f, self._single)
        np.subtract(rates[1], self._single, rates[1])
        np.multiply(rates, seconds, rates)
        np.add(self._tilt, rates[:2], self._tilt)
        np.add(self._yaw, rates[2], self._yaw)
