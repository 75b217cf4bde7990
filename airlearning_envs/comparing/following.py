"""How the embedded simulator's drones follow recorded commands, and how far that is from what was recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.comparing.recording import Flown, Recording
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.simulators.embedded.calls import CallsInForce
from quarl.airlearning_envs.simulators.embedded.dynamics import Flight, Integrator
from quarl.airlearning_envs.simulators.simulator import Call

Doubles = NDArray[np.float64]
X, Y, Z, VX, VY, YAW_RATE = range(6)
"""Rows of a simulated flight."""


@dataclass(frozen=True)
class Squares:
    """Sums of squared errors; they add up, which root mean squares do not.

    Attributes:
        rows: states that were compared.
        velocity, position: of two components each, (m/s)^2 and m^2.
        yaw_rate, altitude: of one, (rad/s)^2 and m^2.
    """

    rows: int
    velocity: float
    position: float
    yaw_rate: float
    altitude: float

    @classmethod
    def total(cls, parts: Iterable[Squares]) -> Squares:
        """Add up the rows and squared differences of all parts."""
        found = [(each.rows, each.velocity, each.position, each.yaw_rate, each.altitude) for each in parts]
        rows, *sums = (math.fsum(column) for column in zip(*found, strict=True))
        return cls(int(rows), *sums)

    def root_mean(self) -> dict[str, float]:
        """Root mean square of a component: sqrt(sum / (components rows))."""
        return {
            "velocity_rmse_m_s": math.sqrt(self.velocity / (2 * self.rows)),
            "yaw_rate_rmse_rad_s": math.sqrt(self.yaw_rate / self.rows),
            "position_rmse_m": math.sqrt(self.position / (2 * self.rows)),
            "altitude_rmse_m": math.sqrt(self.altitude / self.rows),
        }


def compare(recording: Recording, config: NavigationConfig | None = None) -> list[Squares]:
    """Fly each flight's commands and compare at its own times, simulated states interpolated linearly.

    Args:
        recording: the flights.
        config: whose dynamics and integration steps fly; by default those of its altitude.
    """
    flights = recording.flights
    steps_s, states = follow(flights, config or recording.config(), recording.world)
    return [_squares(flown, steps_s, states[:, :, e]) for e, flown in enumerate(flights)]


def _squares(flown: Flown, steps_s: Doubles, simulated: Doubles) -> Squares:
    recorded = np.concatenate([flown.position, flown.velocity, flown.yaw_rate[None]])
    there = np.stack([np.interp(flown.times_s, steps_s, row) for row in simulated.T])
    x, y, z, vx, vy, yaw_rate = np.sum((there - recorded) ** 2, axis=1).tolist()
    return Squares(len(flown.times_s), vx + vy, x + y, yaw_rate, z)


def follow(flights: Sequence[Flown], config: NavigationConfig, world: bool) -> tuple[Doubles, Doubles]:
    """Simulate E flights, each from its first state on: its position, yaw, velocity and yaw rate, level.

    Commands are called at their own times, to the drones of the simulator (:class:`CallsInForce`) as velocities in the
    body frame. Velocities that were recorded in the world frame are turned by the yaw at the call first, which the call
    turns back: the goal is what was commanded, whichever way the drone looks.

    Returns:
        (n + 1,) s, the ends of the integration steps, the start included; (n + 1, 6, E) the states then.
    """
    step_s = config.control_period_s / config.substeps
    flight = Flight.hovering(config, len(flights))
    for e, flown in enumerate(flights):
        flight.position[2, e], flight.velocity[:2, e] = flown.position[2, 0], flown.velocity[:, 0]
        flight.yaw[e], flight.yaw_rate[e] = flown.yaw[0], flown.yaw_rate[0]
    integrator = Integrator(flight, step_s)
    in_force = CallsInForce(integrator, np.array([step_s], np.float32), delays_differ=True)
    count = math.ceil(max(flown.times_s[-1] for flown in flights) / step_s)
    called = _Called(flights, step_s, world)
    states = np.empty((count + 1, 6, len(flights)))
    states[0] = _state(flight)
    for step in range(count):
        in_force.begin(called.within(step, flight))
        integrator.step(in_force.goal(0))
        states[step + 1] = _state(flight)
    return np.arange(count + 1) * step_s, states


def _state(flight: Flight) -> NDArray[np.float32]:
    return np.concatenate([flight.position, flight.velocity[:2], flight.yaw_rate[None]])


class _Called:
    """The calls within each integration step."""

    def __init__(self, flights: Sequence[Flown], step_s: float, world: bool) -> None:
        self._flights, self._step_s, self._world = flights, step_s, world
        # In which step each command is called. A millionth of a step early is in time: 0.25 s is the third step's end.
        self._steps = [np.floor(flown.command_times_s / step_s + 1e-6).astype(np.int64) for flown in flights]

    def within(self, step: int, flight: Flight) -> list[Call]:
        """Calls in this step, as it begins: as many as the drone that is called most often."""
        numbers = [np.flatnonzero(steps == step) for steps in self._steps]
        calls = []
        for n in range(max(map(len, numbers))):
            # Who is not called is called as the step ends, which is too late.
            command, at_s = np.zeros((3, len(numbers))), np.full(len(numbers), self._step_s)
            for e, (flown, own) in enumerate(zip(self._flights, numbers, strict=True)):
                if n < len(own):
                    at_s[e] = max(flown.command_times_s[own[n]] - step * self._step_s, 0.0)
                    yaw = flight.yaw[e] + flight.yaw_rate[e] * at_s[e]
                    command[:, e] = _in_the_body(flown.commands[:, own[n]], yaw if self._world else 0.0)
            calls.append(Call(command.astype(np.float32), at_s.astype(np.float32)))
        return calls


def _in_the_body(command: Doubles, yaw: float) -> Doubles:
    """(3,) forward = cos x + sin y, rightward = cos y - sin x, yaw rate."""
    x, y, yaw_rate = command
    cosine, sine = math.cos(yaw), math.sin(yaw)
    return np.array([cosine * x + sine * y, cosine * y - sine * x, yaw_rate])


def step_response(config: NavigationConfig, speed_m_s: float, seconds: float) -> tuple[Doubles, Doubles]:
    """(n + 1,) s and (n + 1,) m/s: forward speed after a call from rest."""
    nothing, begin_and_end = np.zeros(2), np.array([0.0, seconds])
    flown = Flown(
        kind="step",
        command_times_s=np.zeros(1),
        commands=np.array([[speed_m_s], [0.0], [0.0]]),
        times_s=begin_and_end,
        position=np.stack([nothing, nothing, nothing - config.altitude_m]),
        velocity=np.stack([nothing, nothing]),
        yaw=nothing,
        yaw_rate=nothing,
    )
    steps_s, states = follow([flown], config, world=True)
    return steps_s, states[:, VX, 0]


def rise_times(config: NavigationConfig, speed_m_s: float = 5.0) -> tuple[float | None, float | None]:
    """t63 and t90 in s: when 63 % and 90 % of a commanded speed are first reached, counted from the call.

    Of what was commanded, not of the speed in the end, which the drag keeps below it; None where that is too low.
    """
    steps_s, speed = step_response(config, speed_m_s, 30.0)
    t63, t90 = (_first(steps_s, speed, share * speed_m_s) for share in (0.63, 0.90))
    return t63, t90


def _first(times_s: Doubles, values: Doubles, wanted: float) -> float | None:
    """When a series that begins below ``wanted`` first reaches it, interpolated."""
    after = int(np.argmax(values >= wanted))
    if after == 0:
        return None
    return float(np.interp(wanted, values[after - 1 : after + 1], times_s[after - 1 : after + 1]))


RECORDED_RISES = ((1.5, 1.15, 2.44), (3.0, 1.29, 2.89), (4.0, 1.38, 3.20), (6.0, 1.58, 3.84), (10.0, 1.99, 5.21))
"""Altitude m, t63 s and t90 s of 5 m/s forward, recorded of SimpleFlight (AirLib 1.8.1)."""
