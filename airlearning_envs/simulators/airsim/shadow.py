"""The embedded dynamics beside AirSim's: period by period, what a drone should do that holds its command.

SimpleFlight drops a goal that is not refreshed within 60 ms, and another program may move the drone; nothing in the
answers says so. From each measured state the embedded dynamics fly one period ahead: in 780 periods of the recorded
flights (``tests/airlearning_envs/recordings``) they end within 0.23 m/s of AirSim's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.simulators.airsim.dialects import KinematicsState, MultirotorState
from quarl.airlearning_envs.simulators.embedded.calls import CallsInForce
from quarl.airlearning_envs.simulators.embedded.dynamics import Flight, Integrator
from quarl.airlearning_envs.simulators.simulator import Call, Floats

HARDEST_M_S2 = 6.3
"""Largest horizontal acceleration: the one at the greatest tilt."""
SPEED_M_S, JUMP_M = 0.35, 0.3
"""A period that ends with another velocity or at another place than these allow was not flown as commanded."""

STILL_M_S, STILL_RAD_S, LEVEL_M = 0.03, 0.01, 0.05
"""A drone that hovers is slower, turns less and is nearer to its altitude."""


def is_at_rest(moving: KinematicsState, place: NDArray[np.float64]) -> bool:
    """Whether a drone hovers at the altitude of a place (3,)."""
    return bool(
        np.linalg.norm(moving.linear_velocity.array()) < STILL_M_S
        and abs(moving.angular_velocity.z_val) < STILL_RAD_S
        and abs(moving.position.z_val - place[2]) < LEVEL_M
    )


class Shadow:
    """Flies ahead from the last measured state.

    Args:
        config: the task.
    """

    def __init__(self, config: NavigationConfig) -> None:
        self._step_s = config.control_period_s / config.substeps
        self._flight = Flight.hovering(config, 1)
        self._integrator = Integrator(self._flight, self._step_s)
        self._times = (np.arange(1, config.substeps + 1) * self._step_s).astype(np.float32)
        self._in_force = CallsInForce(self._integrator, self._times)
        self._calls: list[tuple[Floats, float]] = []
        self._since_s = 0.0

    def begin(self, state: MultirotorState) -> None:
        """An episode begins, hovering."""
        self._flight.rest(slice(None))
        self._in_force.rest(np.array([0]))
        self._calls, self._since_s = [], 0.0
        self._take(state)

    def command(self, command: Floats, at_s: float) -> None:
        """A command (3, 1) was given so many seconds after the episode's start."""
        self._calls.append((command.copy(), at_s))

    def differs(self, state: MultirotorState, now_s: float) -> str:
        """Why the period that ends with ``state`` was not flown as commanded, in words; empty where it was."""
        since_s = self._since_s
        self._in_force.begin(
            [Call(command, np.array([max(at_s - since_s, 0.0)], np.float32)) for command, at_s in self._calls]
        )
        for k in range(len(self._times)):
            self._integrator.step(self._in_force.goal(k))
        flight, moving = self._flight, state.kinematics_estimated
        velocity, place = moving.linear_velocity.array()[:2], moving.position.array()[:2]
        slower = float(np.linalg.norm(velocity - flight.velocity[:2, 0]))
        # The period may have been a little longer or shorter than the one flown here.
        other_s = abs(now_s - since_s - float(self._times[-1]))
        jump = float(np.linalg.norm(place - flight.position[:2, 0])) - other_s * float(np.linalg.norm(velocity))
        slower -= other_s * HARDEST_M_S2
        self._calls, self._since_s = [], now_s
        self._take(state)
        if jump > JUMP_M:
            return f"the drone is {jump:.1f} m from where its commands bring it: something else moved it."
        if slower > SPEED_M_S:
            return (
                f"the drone's velocity is {slower:.1f} m/s off what its command makes of it: AirSim dropped the "
                "command (an overloaded machine, or too high a ClockSpeed)."
            )
        return ""

    def _take(self, state: MultirotorState) -> None:
        """Go on from a measured state."""
        flight, moving = self._flight, state.kinematics_estimated
        yaw, pitch, roll = moving.orientation.angles()
        flight.position[:, 0], flight.velocity[:, 0] = moving.position.array(), moving.linear_velocity.array()
        flight.yaw[0], flight.yaw_rate[0] = yaw, moving.angular_velocity.z_val
        flight.tilt[:, 0] = (-pitch, roll)
        self._integrator.refresh_attitude()
