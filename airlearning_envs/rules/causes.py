"""Why an episode ended."""

from __future__ import annotations

from enum import IntEnum


class EndCause(IntEnum):
    """Why an episode ended."""

    NONE = 0
    GOAL = 1
    COLLISION = 2
    COLLISION_MOVER = 3
    LEFT_ARENA = 4
    TIME = 5


# Plain numbers for the inner loop: Python 3.11 looks an enum's member up slowly.
NONE, GOAL, COLLISION, COLLISION_MOVER, LEFT_ARENA, TIME = (int(cause) for cause in EndCause)
