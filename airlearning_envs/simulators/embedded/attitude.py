"""How a batch of drones is turned, as three rotations in a plane: yaw, then tilt forward, then tilt rightward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Attitude:
    """Turns vectors of E drones between world and body.

    With f and s the tilt forward and rightward (minus pitch, and roll), and (a, b) turned by an angle being
    (a cos + b sin, b cos - a sin):

        (x, y)              by yaw -> (ahead, rightward)    level, in the heading's frame
        (ahead, z)          by f   -> (forward, middle)
        (rightward, middle) by s   -> (right, down)         in the body's frame

    A turn has a beginning, an end, and a middle: :meth:`forward_right` is that of the beginning (or of the end, once it
    is over), while :meth:`down` and :meth:`up_to_world` are those of the middle, the mean attitude during the turn.

    It works row by row, (E,) each, and into arrays that exist: at 64 drones numpy's calls are what it costs.

    Args:
        tilt: (2, E) float32, read by :meth:`refresh` and changed by :meth:`turn`.
        yaw: (E,) float64, likewise.
    """

    def __init__(self, tilt: Floats, yaw: NDArray[np.float64]) -> None:
        self._tilt, self._yaw = tilt, yaw
        count = len(yaw)
        self._angles, self._exact = np.zeros((3, count), np.float64), np.zeros((3, count), np.float64)
        # Cosines of the tilt forward, the tilt rightward and the yaw, then their sines.
        self._now, self._mean = np.zeros((6, count), np.float32), np.zeros((6, count), np.float32)
        self._difference = np.zeros((6, count), np.float32)
        self._ahead, self._rightward, self._middle, self._product = np.zeros((4, count), np.float32)
        self.refresh()

    @property
    def heading(self) -> tuple[Floats, Floats]:
        """Cosine and sine (E,) of the yaw."""
        return self._now[2], self._now[5]

    def refresh(self) -> None:
        """Take over tilt and yaw."""
        self._angles[:2] = self._tilt
        self._angles[2] = self._yaw
        # Cast to float32, so that a vector library's last float64 bit is of no account.
        self._now[:3] = np.cos(self._angles, self._exact)
        self._now[3:] = np.sin(self._angles, self._exact)

    def end_turn(self, share: Floats) -> None:
        """Take over tilt and yaw at the end of a turn; the mean attitude is ``share`` (6, E) of the way there.

        Its cosines and sines lie on the chord, not on the arc: for a turn of 0.3 rad they are 1 % short.
        """
        mean, difference = self._mean, self._difference
        mean[...] = self._now
        self.refresh()
        np.subtract(self._now, mean, difference)
        np.multiply(difference, share, difference)
        np.add(mean, difference, mean)

    def _level(self, vector: Floats, cos_f: Floats, sin_f: Floats, cosine: Floats, sine: Floats) -> None:
        """``vector`` (3, E) of the world in the heading's frame, and halfway into the body's."""
        x, y, z = vector
        ahead, rightward, middle, product = self._ahead, self._rightward, self._middle, self._product
        np.multiply(x, cosine, ahead)
        np.multiply(y, sine, product)
        np.add(ahead, product, ahead)
        np.multiply(y, cosine, rightward)
        np.multiply(x, sine, product)
        np.subtract(rightward, product, rightward)
        np.multiply(z, cos_f, middle)
        np.multiply(ahead, sin_f, product)
        np.subtract(middle, product, middle)

    def forward_right(self, vector: Floats, out: Floats) -> Floats:
        """How far ``vector`` (3, E) of the world points along the body's forward and rightward axes: ``out`` (2, E)."""
        cos_f, cos_s, cosine, sin_f, sin_s, sine = self._now
        self._level(vector, cos_f, sin_f, cosine, sine)
        product, (forward, right) = self._product, out
        np.multiply(self._ahead, cos_f, forward)
        np.multiply(vector[2], sin_f, product)
        np.add(forward, product, forward)
        np.multiply(self._rightward, cos_s, right)
        np.multiply(self._middle, sin_s, product)
        np.add(right, product, right)
        return out

    def down(self, vector: Floats, out: Floats) -> Floats:
        """How far ``vector`` (3, E) of the world points along the body's mean down axis: ``out`` (E,)."""
        cos_f, cos_s, cosine, sin_f, sin_s, sine = self._mean
        self._level(vector, cos_f, sin_f, cosine, sine)
        np.multiply(self._middle, cos_s, out)
        np.multiply(self._rightward, sin_s, self._product)
        np.subtract(out, self._product, out)
        return out

    def upright(self, out: Floats) -> Floats:
        """Cosine of the whole mean tilt, how much of the body's down axis points down: ``out`` (E,)."""
        return np.multiply(self._mean[0], self._mean[1], out)

    def up_to_world(self, length: Floats, out: Floats) -> None:
        """The vector of ``length`` (E,) along the body's mean axis upwards, in the world: ``out`` (3, E)."""
        x, y, z = out
        cos_f, cos_s, cosine, sin_f, sin_s, sine = self._mean
        ahead, rightward, middle, product = self._ahead, self._rightward, self._middle, self._product
        np.multiply(length, sin_s, rightward)
        np.multiply(length, cos_s, middle)
        np.multiply(middle, sin_f, ahead)
        np.multiply(middle, cos_f, z)
        np.negative(z, z)
        np.multiply(ahead, cosine, x)
        np.multiply(rightward, sine, product)
        np.subtract(x, product, x)
        np.multiply(ahead, sine, y)
        np.multiply(rightward, cosine, product)
        np.add(y, product, y)

    def turn(self, rates: Floats, seconds: Floats) -> None:
        """Let the body turn at ``rates`` (3, E) about its own axes (tilting forward, tilting rightward, yawing, rad/s;
        used up) for ``seconds`` (3, E), by Euler's kinematics:

            f' = q_f cos s + r sin s,   k = r cos s - q_f sin s,   s' = q_s - k tan f,   yaw' = k / cos f
        """
        forward, rightward, yawing = rates
        cos_f, cos_s, _, sin_f, sin_s, _ = self._now
        turning, product = self._middle, self._product
        np.multiply(yawing, cos_s, turning)
        np.multiply(forward, sin_s, product)
        np.subtract(turning, product, turning)
        np.multiply(forward, cos_s, forward)
        np.multiply(yawing, sin_s, product)
        np.add(forward, product, forward)
        np.divide(turning, cos_f, yawing)
        np.multiply(yawing, sin_f, product)
        np.subtract(rightward, product, rightward)
        np.multiply(rates, seconds, rates)
        np.add(self._tilt, rates[:2], self._tilt)
        np.add(self._yaw, yawing, self._yaw)
