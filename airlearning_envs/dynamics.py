"""How the drone follows its commands: a two-state velocity loop, a first-order yaw rate, wind and energy.

A surrogate of AirSim's SimpleFlight. Along each body axis, in continuous time,

    a_cmd = clip(K (v_cmd - v), -a_max, a_max)        K = 1.12 /s, a_max = 6.3 m/s^2
    a'    = (a_cmd - a) / tau                         tau = 0.16 s
    v'    = a - k |v_air| v_air                       k = 0.0066 /m
    w'    = (w_cmd - w) / tau_yaw                     tau_yaw = 0.26 s

which makes t63 = 0.90 s, t90 = 1.75 s and no overshoot. The state is kept in the world frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlearning_envs import rng
from airlearning_envs.config import NavigationConfig
from airlearning_envs.rng import Stream, Words

Floats = NDArray[np.float32]


@dataclass
class Flight:
    """State of E drones.

    Attributes:
        position, velocity, acceleration: (2, E) in the world frame, m, m/s, m/s^2.
        yaw: (E,) float64, radians, clockwise seen from above (x ahead, y to the right at yaw 0).
        yaw_rate: (E,) rad/s.
        wind: (2, E) m/s.
        gains: (5, E) velocity gain, acceleration limit, acceleration lag, drag, yaw lag of each drone.
    """

    position: Floats
    velocity: Floats
    acceleration: Floats
    yaw: NDArray[np.float64]
    yaw_rate: Floats
    wind: Floats
    gains: Floats

    @classmethod
    def hovering(cls, config: NavigationConfig, num_envs: int) -> Flight:
        """Drones at rest at the origin with the nominal gains."""
        pair = (2, num_envs)
        return cls(
            position=np.zeros(pair, np.float32),
            velocity=np.zeros(pair, np.float32),
            acceleration=np.zeros(pair, np.float32),
            yaw=np.zeros(num_envs, np.float64),
            yaw_rate=np.zeros(num_envs, np.float32),
            wind=np.zeros(pair, np.float32),
            gains=np.repeat(nominal_gains(config)[:, None], num_envs, axis=1),
        )


def nominal_gains(config: NavigationConfig) -> Floats:
    """(5,) velocity gain, acceleration limit, acceleration lag, drag, yaw lag."""
    return np.array(
        [
            config.velocity_gain_per_s,
            config.acceleration_limit_m_s2,
            config.acceleration_time_constant_s,
            config.drag_per_m,
            config.yaw_time_constant_s,
        ],
        dtype=np.float32,
    )


def drawn_gains(config: NavigationConfig, keys: Words) -> Floats:
    """(5, E) gains of the episodes with these keys: each nominal one times a factor from 1 +- ``gain_spread``."""
    draws = rng.uniforms(keys, Stream.GAINS, np.arange(5)[:, None])
    factor = np.float32(1.0) + np.float32(config.gain_spread) * (np.float32(2.0) * draws - np.float32(1.0))
    return np.asarray(nominal_gains(config)[:, None] * factor)


class Integrator:
    """Advances a :class:`Flight` by substeps of ``substep_s``.

    The lags are integrated exactly (for a command held over the substep), the velocity by a leapfrog: half a
    kick with the old acceleration, the new acceleration from the velocity in the middle, half a kick with the new.
    At 50 ms that follows the continuous equations to 1 ms in t63; semi-implicit Euler is 40 ms off.
    """

    def __init__(self, flight: Flight, substep_s: float) -> None:
        self._flight = flight
        self._dt = np.float32(substep_s)
        self._half_dt = np.float32(substep_s / 2.0)
        self._turn = np.empty((2, 2, len(flight.yaw)), np.float32)
        self.refresh()

    def refresh(self) -> None:
        """Take over changed gains."""
        self._gain, self._limit, lag, self._drag, yaw_lag = self._flight.gains
        dt = float(self._dt)
        # Shares 1 - exp(-dt / tau); float64 keeps the last float32 bit the same on all machines.
        self._lag_share = (-np.expm1(-dt / lag.astype(np.float64))).astype(np.float32)
        self._yaw_share = (-np.expm1(-dt / yaw_lag.astype(np.float64))).astype(np.float32)
        self._floor = -self._limit

    def substep(self, command: Floats) -> None:
        """One substep under ``command`` (3, E): forward m/s, rightward m/s, yaw rate rad/s."""
        flight, half_dt = self._flight, self._half_dt
        velocity, acceleration = flight.velocity, flight.acceleration
        # v_half = v + dt/2 (a - k |v_air| v_air)
        air = velocity - flight.wind
        square = air * air
        drag = np.sqrt(square[0] + square[1])
        drag *= self._drag
        air *= drag
        kick = acceleration - air
        kick *= half_dt
        velocity += kick
        # x = x + dt v_half
        np.multiply(velocity, self._dt, out=kick)
        flight.position += kick
        # R turns world vectors into the body frame: [[cos, sin], [-sin, cos]].
        turn = self._turn
        turn[0, 0] = np.cos(flight.yaw)
        turn[0, 1] = np.sin(flight.yaw)
        np.negative(turn[0, 1], out=turn[1, 0])
        turn[1, 1] = turn[0, 0]
        # a_cmd = clip(K (v_cmd - R v), +-a_max) along the body's axes
        product = turn * velocity
        wanted = command[:2] - product[:, 0]
        wanted -= product[:, 1]
        wanted *= self._gain
        np.maximum(wanted, self._floor, out=wanted)
        np.minimum(wanted, self._limit, out=wanted)
        # a = a + (1 - exp(-dt/tau)) (R' a_cmd - a)
        np.multiply(turn, wanted[:, None], out=product)
        np.add(product[0], product[1], out=kick)
        kick -= acceleration
        kick *= self._lag_share
        acceleration += kick
        # v = v_half + dt/2 (a - k |v_air| v_air)
        np.subtract(acceleration, air, out=kick)
        kick *= half_dt
        velocity += kick
        # w = w + (1 - exp(-dt/tau_yaw)) (w_cmd - w);  psi = psi + dt w
        change = command[2] - flight.yaw_rate
        change *= self._yaw_share
        flight.yaw_rate += change
        flight.yaw += flight.yaw_rate * self._dt


def power_w(velocity: Floats, acceleration: Floats) -> Floats:
    """Electric power in level flight in W, (E,), from velocity and acceleration (2, E).

    P = -1.526 |v| + 3.934 |a| + 0.968 |v| |a| + 433.9: the regression of Tseng et al. 2017 (arXiv:1703.10049) for a
    3DR Solo, which MAVBench and Air Learning use, without payload and wind.
    """
    speed = np.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1])
    force = np.sqrt(acceleration[0] * acceleration[0] + acceleration[1] * acceleration[1])
    return np.float32(433.9) - np.float32(1.526) * speed + np.float32(3.934) * force + np.float32(0.968) * speed * force
