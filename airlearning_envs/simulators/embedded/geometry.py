"""Where rays meet walls, cylinders and boxes, in the plane; pure functions on float32 arrays.

A ray starts at the drone. Distances are in metres along the (unit) direction; a miss is infinity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_FIRST = np.ones(1, bool)
_TINY = np.float32(1e-20)


def inverse_directions(directions: Floats) -> Floats:
    """1 / d for each component of unit directions, huge but finite where a ray runs along an axis.

    A component is either 0 or, by float32's spacing, far larger than the 1e-20 that is added.
    """
    return np.reciprocal(directions + _TINY)


def wall_ranges(position: Floats, inverse: Floats, half: float) -> Floats:
    """Distance to the walls of the square [-half, half]^2 from inside it.

    Args:
        position: (2, E).
        inverse: (2, E, R) inverse ray directions.
        half: half the side.

    Returns:
        (E, R). Per axis the wall ahead is at sign(d) half, so t = |half / d| - p / d.
    """
    t = np.abs(inverse)
    t *= np.float32(half)
    t -= position[:, :, None] * inverse
    return np.minimum(t[0], t[1])


def circle_ranges(forward: Floats, right: Floats, radius: Floats, cosines: Floats, sines: Floats) -> Floats:
    """Distance to circles given in the body frame, each with each of the R rays.

    With c the centre and d the direction: b = c.d, t = b - sqrt(b^2 - (c.c - r^2)); a miss where the root is
    imaginary or the circle lies behind.

    Args:
        forward, right: (P,) centre.
        radius: (P,).
        cosines, sines: (R,) of the rays' angles from straight ahead, positive to the right.

    Returns:
        (P, R).
    """
    along = np.multiply.outer(forward, cosines)
    along += np.multiply.outer(right, sines)
    root = along * along
    root -= (forward * forward + right * right - radius * radius)[:, None]
    miss = np.minimum(root, along) < 0
    np.maximum(root, np.float32(0.0), out=root)
    np.sqrt(root, out=root)
    along -= root
    along[miss] = np.inf
    return along


def box_ranges(offset: Floats, half_side: Floats, inverse: Floats) -> Floats:
    """Distance to axis-aligned square boxes (slab method, Kay and Kajiya 1986).

    Per axis the ray is between the box's planes from c/d - h/|d| to c/d + h/|d|; it hits where the last entry
    comes before the first exit.

    Args:
        offset: (2, P) from the ray's origin to the centre.
        half_side: (P,).
        inverse: (2, P, R) inverse ray directions.

    Returns:
        (P, R).
    """
    middle = offset[:, :, None] * inverse
    depth = np.abs(inverse)
    depth *= half_side[:, None]
    near, far = middle - depth, middle
    far += depth
    enter = np.maximum(near[0], near[1], out=near[0])
    leave = np.minimum(far[0], far[1], out=far[0])
    enter[(leave < enter) | (leave < 0)] = np.inf
    return enter


def nearest_per_row(ranges: Floats, rows: NDArray[np.integer], hits: Floats) -> None:
    """Lower ``ranges`` (E, R) in place to the ``hits`` (P, R) of its rows; ``rows`` (P,) is ascending."""
    if not len(rows):
        return
    # Where a new row begins.
    (first,) = np.concatenate([_FIRST, rows[1:] != rows[:-1]]).nonzero()
    touched = rows[first]
    ranges[touched] = np.minimum(ranges[touched], np.minimum.reduceat(hits, first, axis=0))
