"""The embedded simulator behind MAVLink over UDP: what an autopilot in GUIDED or OFFBOARD says and takes.

Its time is simulated: a period passes when a setpoint has come for it, so that a flight takes as long as its messages
do, and what differs from the simulator's own flights is the messages' doing alone.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from quarl.airlearning_envs.rules import ray_angles
from quarl.airlearning_envs.task import NavigationTask

os.environ["MAVLINK20"] = "1"  # before pymavlink is imported: OBSTACLE_DISTANCE with fractions of a degree

SECTORS, UNKNOWN = 72, 65535
SYSTEM, AUTOPILOT = 1, 1


class Vehicle:
    """One drone of a task of one.

    Args:
        task: with ``num_envs`` 1, after a reset.
        link: where the companion listens, e.g. ``udpout:127.0.0.1:14550``.
    """

    def __init__(self, task: NavigationTask, link: str) -> None:
        from pymavlink import mavutil

        self._task, self._mav = task, mavutil.mavlink
        self._link: Any = mavutil.mavlink_connection(link, source_system=SYSTEM, source_component=AUTOPILOT)
        angles = np.degrees(ray_angles(task.config))
        self._first, self._step = float(angles[0]), float(angles[1] - angles[0])

    def set_goal(self) -> None:
        """Tell the companion where this episode's goal is, as a ground station would."""
        north, east = (float(value) for value in self._task.goal[:, 0])
        only_position = 0b111111111000
        self._link.mav.set_position_target_local_ned_send(
            self._now(),
            SYSTEM,
            self._mav.MAV_COMP_ID_ONBOARD_COMPUTER,
            self._mav.MAV_FRAME_LOCAL_NED,
            only_position,
            *(north, east, 0.0),
            *(0.0,) * 8,
        )

    def report(self, observation: np.ndarray) -> None:
        """Send attitude, position and obstacles of an observation (32,) and of the simulator's motion."""
        motion, task, mav = self._task.simulator.motion, self._task, self._link.mav
        x, y = (float(value) for value in motion.position[:, 0])
        vx, vy = (float(value) for value in motion.velocity[:, 0])
        mav.attitude_send(self._now(), 0.0, 0.0, float(motion.yaw[0]), 0.0, 0.0, float(motion.yaw_rate[0]))
        mav.local_position_ned_send(self._now(), x, y, -4.0, vx, vy, 0.0)
        longest = round(100 * task.config.max_range_m)
        ranges = np.rint(100.0 * observation[: task.config.ray_count]).astype(int)
        distances = [int(value) if value < longest else longest + 1 for value in ranges]
        distances += [UNKNOWN] * (SECTORS - len(distances))
        mav.obstacle_distance_send(
            1000 * self._now(),
            self._mav.MAV_DISTANCE_SENSOR_LASER,
            distances,
            0,
            *(20, longest),
            increment_f=self._step,
            angle_offset=self._first,
            frame=self._mav.MAV_FRAME_BODY_FRD,
        )

    def setpoint(self, timeout_s: float) -> np.ndarray | None:
        """The next setpoint as a command (1, 3) float32, or None when none comes in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            message = self._link.recv_match(type="SET_POSITION_TARGET_LOCAL_NED", blocking=True, timeout=timeout_s)
            if message is not None and message.target_component == AUTOPILOT:
                return np.array([[message.vx, message.vy, message.yaw_rate]], np.float32)
        return None

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    @staticmethod
    def _now() -> int:
        return int(1000 * time.monotonic()) & 0xFFFFFFFF
