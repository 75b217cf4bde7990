"""The 25 actions of Air Learning and the commands they stand for.

Body frame: x forward, y to the right, yaw rate positive to the right (clockwise seen from above), as in AirSim.
"""

from __future__ import annotations

import math

import numpy as np

SPEEDS_M_S = (5.0, 4.0, 3.0, 2.0, 1.0)
YAW_RIGHT_DEG_S = (108.0, 54.0, 27.0, 13.5, 6.75)
YAW_LEFT_DEG_S = (-216.0, -108.0, -54.0, -27.0, -13.5)


def _table() -> tuple[tuple[tuple[str, float, float, float], ...], ...]:
    half = math.sqrt(0.5)
    forward = tuple((f"forward {v:g} m/s", v, 0.0, 0.0) for v in SPEEDS_M_S)
    # Air Learning gives forward and rightward the same speed; here the ground speed is the one in the table.
    diagonal = tuple((f"diagonal right {v:g} m/s", v * half, v * half, 0.0) for v in SPEEDS_M_S)
    # Half speed and really backwards: the original negated twice and so flew forward.
    backup = tuple((f"backup {v / 2:g} m/s", -v / 2, 0.0, 0.0) for v in SPEEDS_M_S)
    yaw_right = tuple((f"yaw {rate:+g} deg/s", 0.0, 0.0, math.radians(rate)) for rate in YAW_RIGHT_DEG_S)
    yaw_left = tuple((f"yaw {rate:+g} deg/s", 0.0, 0.0, math.radians(rate)) for rate in YAW_LEFT_DEG_S)
    return forward, diagonal, backup, yaw_right, yaw_left


_ROWS = tuple(row for group in _table() for row in group)

ACTION_NAMES: tuple[str, ...] = tuple(row[0] for row in _ROWS)
"""Name of each discrete action."""

ACTION_COMMANDS = np.array([row[1:] for row in _ROWS], dtype=np.float32)
"""(25, 3): forward speed in m/s, rightward speed in m/s, yaw rate in rad/s. A yaw turns on the spot."""
ACTION_COMMANDS.setflags(write=False)

FALLBACK_ACTION = len(ACTION_NAMES) // 5 * 4 - 1
"""The slowest turn on the spot, 6.75 deg/s: what moves the drone least, where no action can be decided."""

COMMAND_LOW = np.array([-2.5, -2.5, -math.radians(216.0)], dtype=np.float32)
COMMAND_HIGH = np.array([5.0, 5.0 * math.sqrt(0.5), math.radians(216.0)], dtype=np.float32)
"""Bounds of a continuous command (3,): forward m/s, rightward m/s, yaw rate rad/s; they enclose the table's."""
COMMAND_LOW.setflags(write=False)
COMMAND_HIGH.setflags(write=False)
