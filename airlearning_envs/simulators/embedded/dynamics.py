"""How the drone follows its commands: AirSim's SimpleFlight for a batch of drones.

The flight controller is a cascade (AirLib 1.8.1, ``firmwares/simple_flight``); with R's rows the body's axes forward,
rightward and down in the world frame, z pointing down, and the tilt forward and rightward (minus pitch, and roll):

    e        = R (goal - v)                        goal = (v_x, v_y, z): see below
    wanted   = 32.7 deg clip(0.2 e, -1, 1)         forward and rightward
    tilt'    = clip(6.25 (wanted - tilt), +-2.5 rad/s), turned by Euler's kinematics
    r'       = clip((r_cmd - r) / 0.26 s, +-6 rad/s^2)
    s        = R_down (0, 0, 1.5 (z_goal - z)) - R_down v
    I'       = 2 s                                 holds the drone's weight
    T        = 16.72 N / 2 (1 - clip(2 s + I, -1, 1))
    v'       = g - T R_down / 1 kg - 0.0066 |v_air| v_air

**The altitude slows the drone down.** ``moveByVelocityZ`` gives one goal of two speeds and a height, and SimpleFlight
turns all of it into the tilted body as if it were a velocity: z metres count as m/s along the tilt and hold it back. So
t63 of a command of 5 m/s is 1.29 s at 3 m and 1.58 s at 6 m. A command is turned into the world frame by the yaw at
the call; it takes effect 20 ms later. The drag is AirLib's of the front: (0.11 0.04 + 4 pi 0.2286 0.01) m^2 of box and
propellers, 1.3 / 8, 1.225 kg/m^3. No constant is fitted to a flight but the limit of the yaw's acceleration and the
delay.

Left out: the rotors' lag of 12 ms and the drag's difference from face to face. Compared with recordings by
``quarl compare-flight``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.simulators.simulator import Bools, Call, Floats, Motion, Rows


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
        """Return how far ``vector`` (3, E) of the world points along the body's forward and rightward axes: ``out`` (2,
        E)."""
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
        """Return how far ``vector`` (3, E) of the world points along the body's mean down axis: ``out`` (E,)."""
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
        """Compute the vector of ``length`` (E,) along the body's mean axis upwards, in the world: ``out`` (3, E)."""
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


GRAVITY_M_S2 = 9.80665  # AirSim's EarthUtils::Gravity
TILT_LIMIT_RAD = float(np.radians(32.7))
TILT_RATE_LIMIT_RAD_S = 2.5
YAW_ACCELERATION_LIMIT_RAD_S2 = 6.0
"""Largest yaw acceleration that the rotors' torque allows."""
CLIMB_GAIN_PER_S = 1.5
"""0.25 of 6 m/s for each metre that the altitude is wrong."""
THROTTLE_GAIN_S_PER_M, THROTTLE_INTEGRAL_GAIN_PER_M = 2.0, 2.0
THRUST_M_S2 = 16.72
"""Largest acceleration by thrust: four rotors of 4.18 N each on 1 kg."""
SPREAD = 5
"""Constants that differ from drone to drone: rows of :attr:`Flight.constants`."""


def nominal_constants(config: NavigationConfig) -> Floats:
    """(SPREAD, 1) velocity gain, tilt gain, drag, yaw's time constant, command delay."""
    constants = (
        config.velocity_gain_s_per_m,
        config.tilt_gain_per_s,
        config.drag_per_m,
        config.yaw_time_constant_s,
        config.command_delay_s,
    )
    return np.array(constants, np.float32)[:, None]


@dataclass
class Flight:
    """State of E drones.

    Objects of the simulator share whole arrays and keep no views of them: a pickled or copied object shares what its
    original shared, but a view would become an array of its own.

    Attributes:
        position, velocity, acceleration: (3, E) in the world frame, z down; m, m/s, m/s^2.
        tilt: (2, E) forward and rightward, rad.
        yaw: (E,) float64, rad, clockwise seen from above.
        yaw_rate: (E,) about the body's axis, rad/s.
        trim: (E,) the throttle's integral, a share of half the thrust.
        altitude: (E,) z of the goal, negative, m.
        wind: (2, E) m/s.
        constants: (SPREAD, E) of each drone (:func:`nominal_constants`).
    """

    position: Floats
    velocity: Floats
    acceleration: Floats
    tilt: Floats
    yaw: NDArray[np.float64]
    yaw_rate: Floats
    trim: Floats
    altitude: Floats
    wind: Floats
    constants: Floats

    @classmethod
    def hovering(cls, config: NavigationConfig, num_envs: int) -> Flight:
        """Drones at rest above the origin with the nominal constants."""
        flight = cls(
            position=np.zeros((3, num_envs), np.float32),
            velocity=np.zeros((3, num_envs), np.float32),
            acceleration=np.zeros((3, num_envs), np.float32),
            tilt=np.zeros((2, num_envs), np.float32),
            yaw=np.zeros(num_envs, np.float64),
            yaw_rate=np.zeros(num_envs, np.float32),
            trim=np.zeros(num_envs, np.float32),
            altitude=np.full(num_envs, -config.altitude_m, np.float32),
            wind=np.zeros((2, num_envs), np.float32),
            constants=np.repeat(nominal_constants(config), num_envs, axis=1),
        )
        flight.rest(slice(None))
        return flight

    def rest(self, rows: slice | NDArray[np.int64]) -> None:
        """Hover, in some rows, where they are in the plane and at their altitude."""
        for array in (self.velocity, self.acceleration, self.tilt, self.yaw_rate):
            array.T[rows] = 0.0
        self.position[2, rows] = self.altitude[rows]
        self.trim[rows] = 1.0 - 2.0 * GRAVITY_M_S2 / THRUST_M_S2


class Integrator:
    """Advances a :class:`Flight` by steps of ``step_s``.

    The lags are integrated exactly (for what they follow held over the step), so is the throttle's loop, which is
    faster than a step. The thrust acts along the mean attitude of the step; velocity error, drag and throttle are those
    of the step's middle, foreseen with the step before's acceleration. So two steps of 125 ms in a control period
    follow recorded flights to 0.03 m/s. Every operand is an array that exists already, constants included: at 64 drones
    the price of a step is numpy's calls.
    """

    def __init__(self, flight: Flight, step_s: float) -> None:
        self.flight, self._step_s = flight, step_s
        count = len(flight.yaw)

        def like(value: float, rows: int = 1) -> Floats:
            return np.full((rows, count) if rows > 1 else count, value, np.float32)

        self._attitude = Attitude(flight.tilt, flight.yaw)
        self._dt, self._half_dt, self._half, self._one = like(step_s, 3), like(step_s / 2.0, 3), like(0.5), like(1.0)
        self._tilt_high, self._tilt_low = like(TILT_LIMIT_RAD, 2), like(-TILT_LIMIT_RAD, 2)
        self._rate_high, self._rate_low = like(TILT_RATE_LIMIT_RAD_S, 2), like(-TILT_RATE_LIMIT_RAD_S, 2)
        self._yaw_high = like(YAW_ACCELERATION_LIMIT_RAD_S2 * step_s)
        self._yaw_low = -self._yaw_high
        self._climb, self._throttle = like(CLIMB_GAIN_PER_S), like(THROTTLE_GAIN_S_PER_M)
        self._trim_gain = like(THROTTLE_INTEGRAL_GAIN_PER_M * step_s)
        self._minus_one, self._half_thrust = like(-1.0), like(THRUST_M_S2 / 2.0)
        # d T / d s = T_max/2 THROTTLE_GAIN
        rate = THROTTLE_GAIN_S_PER_M * THRUST_M_S2 / 2.0
        self._settled_gain, self._weight = like(THRUST_M_S2 / 2.0 / rate), like(GRAVITY_M_S2 / rate)
        self._slip_share = like(float(-np.expm1(-rate * step_s)) / (rate * step_s))
        self._gravity = like(GRAVITY_M_S2)
        self._triple, self._half_way = like(0.0, 3), like(0.0, 3)
        self._air, self._square = like(0.0, 2), like(0.0, 2)
        self._rates, self._change, self._error, self._slip = like(0.0, 3), like(0.0), like(0.0), like(0.0)
        self.refresh()

    def refresh(self) -> None:
        """Take over changed constants."""
        gain, tilt_gain, drag, yaw_lag, _ = self.flight.constants
        dt, self._drag = self._step_s, drag.copy()
        self._gains = np.stack([np.float32(TILT_LIMIT_RAD) * gain] * 2)
        # Shares 1 - exp(-dt / tau); float64 keeps the last float32 bit the same on all machines.
        self._tilt_shares = np.stack([-np.expm1(-dt * tilt_gain.astype(np.float64)) / dt] * 2).astype(np.float32)
        self._yaw_share = (-np.expm1(-dt / yaw_lag.astype(np.float64))).astype(np.float32)
        # The mean of f_0 + (f_1 - f_0) (1 - exp(-t k)) / (1 - exp(-dt k)) over a step, as a share of the way to f_1.
        way = dt * tilt_gain.astype(np.float64)
        self._mean_share = np.stack([1.0 / -np.expm1(-way) - 1.0 / way] * 6).astype(np.float32)

    @property
    def heading(self) -> tuple[Floats, Floats]:
        """Cosine and sine (E,) of the yaw."""
        return self._attitude.heading

    @property
    def motion(self) -> Motion:
        """The flight as the task sees it: views of the same arrays."""
        flight = self.flight
        plane = flight.position[:2], flight.velocity[:2], flight.acceleration[:2]
        return Motion(*plane, flight.yaw, flight.yaw_rate, *self.heading)

    def refresh_attitude(self) -> None:
        """Take over a changed attitude."""
        self._attitude.refresh()

    def step(self, goal: Floats) -> None:
        """One step under ``goal`` (4, E): world x and y m/s, z m, yaw rate rad/s."""
        flight, half_way, triple = self.flight, self._half_way, self._triple
        # v_half = v + dt/2 a;  x = x + dt v_half
        np.multiply(flight.acceleration, self._half_dt, triple)
        np.add(flight.velocity, triple, half_way)
        self._turn(goal)
        self._attitude.end_turn(self._mean_share)
        self._accelerate()
        np.multiply(half_way, self._dt, triple)
        np.add(flight.position, triple, flight.position)
        # v = v + dt a
        np.multiply(flight.acceleration, self._dt, triple)
        np.add(flight.velocity, triple, flight.velocity)

    def _turn(self, goal: Floats) -> None:
        """Tilt, yaw and yaw rate one step later."""
        flight, attitude, rates, rate = self.flight, self._attitude, self._rates, self.flight.yaw_rate
        # e = R (goal - v), forward and rightward
        np.subtract(goal[:3], self._half_way, self._triple)
        wanted = attitude.forward_right(self._triple, rates[:2])
        # wanted = limit clip(0.2 e, +-1);  q = clip(share (wanted - tilt), +-2.5)
        np.multiply(wanted, self._gains, wanted)
        np.maximum(wanted, self._tilt_low, out=wanted)
        np.minimum(wanted, self._tilt_high, out=wanted)
        np.subtract(wanted, flight.tilt, wanted)
        np.multiply(wanted, self._tilt_shares, wanted)
        np.maximum(wanted, self._rate_low, out=wanted)
        np.minimum(wanted, self._rate_high, out=wanted)
        # r = r + clip(share (r_cmd - r), +-6 dt); turned by the mean of both
        change = np.subtract(goal[3], rate, self._change)
        np.multiply(change, self._yaw_share, change)
        np.maximum(change, self._yaw_low, out=change)
        np.minimum(change, self._yaw_high, out=change)
        mean = np.multiply(change, self._half, rates[2])
        np.add(mean, rate, mean)
        np.add(rate, change, rate)
        attitude.turn(rates, self._dt)

    def _accelerate(self) -> None:
        """Compute a = g - T R_down - k |v_air| v_air; the throttle's integral goes on."""
        flight, attitude, error, acceleration = self.flight, self._attitude, self._error, self.flight.acceleration
        # s = R_down,z 1.5 (z_goal - z) - R_down v, before this step
        settled, triple, down = self._change, self._triple, self._triple[2]
        np.negative(self._half_way, triple)
        np.subtract(flight.altitude, flight.position[2], error)
        np.multiply(error, self._climb, error)
        np.add(down, error, down)
        slip = attitude.down(triple, self._slip)
        # s' = T - g R_down,z, so it goes to s_end = (T_max/2 (1 - I) - g R_down,z) / T_max within a fraction of a step:
        # s_mean = s_end + (s - s_end) (1 - exp(-T_max dt)) / (T_max dt)
        np.subtract(self._one, flight.trim, settled)
        np.multiply(settled, self._settled_gain, settled)
        np.multiply(attitude.upright(error), self._weight, error)
        np.subtract(settled, error, settled)
        np.subtract(slip, settled, slip)
        np.multiply(slip, self._slip_share, slip)
        np.add(slip, settled, slip)
        # I = I + 2 dt s_mean;  T = T_max/2 (1 - clip(2 s_mean + I, +-1))
        np.multiply(slip, self._trim_gain, error)
        np.add(flight.trim, error, flight.trim)
        np.multiply(slip, self._throttle, error)
        np.add(error, flight.trim, error)
        np.maximum(error, self._minus_one, out=error)
        np.minimum(error, self._one, out=error)
        np.subtract(self._one, error, error)
        np.multiply(error, self._half_thrust, error)
        attitude.up_to_world(error, acceleration)
        np.add(acceleration[2], self._gravity, acceleration[2])
        air, square = self._air, self._square
        np.subtract(self._half_way[:2], flight.wind, air)
        np.multiply(air, air, square)
        np.add(square[0], square[1], error)
        np.sqrt(error, error)
        np.multiply(error, self._drag, error)
        np.multiply(air, error, air)
        np.subtract(acceleration[:2], air, acceleration[:2])


_LONG_AGO_S = np.float32(-100.0)


class CallsInForce:
    """Goals of E drones: calls are turned into the world frame by the yaw at the call and followed after their delay.

    Args:
        integrator: the drones; their yaw, altitude and delay.
        times_s: (steps,) from a period's start to the end of each integration step.
        delays_differ: whether each drone has a delay of its own, from a call to the moment at which it is followed.
    """

    def __init__(self, integrator: Integrator, times_s: Floats, delays_differ: bool = False) -> None:
        flight = self._flight = integrator.flight
        self._integrator, self._step, self._delays_differ = integrator, times_s[0], delays_differ
        self._begins, self._ends = np.concatenate([np.zeros(1, np.float32), times_s[:-1]]), times_s
        self._followed = np.zeros((4, len(flight.yaw)), np.float32)
        # Called and not yet followed by all, oldest first: (goal (4, E), when it is followed in this period: (E,), or
        # one time for all).
        self._coming: list[tuple[Floats, Floats | np.float32]] = []
        # Of each step of this period, who is called in it: how long after its start (E,), and which drones (E,); or
        # neither, for all at its start.
        self._calls: list[list[tuple[Floats, Floats | None, Bools | None]]] = []
        self.rest(np.arange(len(flight.yaw)))

    def rest(self, rows: Rows) -> None:
        """Hover: no speed, no turn."""
        for goal in (self._followed, *(goal for goal, _ in self._coming)):
            goal[:, rows] = 0.0
            goal[2, rows] = self._flight.altitude[rows]

    def begin(self, calls: Sequence[Call], times_s: Floats | None = None) -> None:
        """Begin a period in which the drones will be called so; with steps of its own where they are given."""
        period = self._ends[-1]
        self._coming = [(goal, followed_s - period) for goal, followed_s in self._coming]
        if times_s is not None:
            self._step, self._ends = times_s[0], times_s
            self._begins = np.concatenate([np.zeros(1, np.float32), times_s[:-1]])
        self._calls = [[] for _ in self._ends]
        for call in calls:
            if call.at_s is None:
                self._calls[0].append((call.command, None, None))
                continue
            step = np.searchsorted(self._begins, call.at_s, side="right") - 1
            step[call.at_s >= period] = -1
            for k in range(max(int(step.min()), 0), int(step.max()) + 1):
                if (now := step == k).any():
                    self._calls[k].append((call.command, call.at_s - self._begins[k], None if now.all() else now))

    def goal(self, step: int) -> Floats:
        """Mean goal (4, E) over a step, counted from 0 within the period: world x and y m/s, z m, yaw rate rad/s.

        Every goal is weighted with the share of the step in which it is followed, so a delay of a fraction of a
        step is not rounded away: u = c_0 + sum_k f_k (c_k - c_{k-1}), f_k = clip((t_end - t_k) / dt, 0, 1).
        """
        calls, self._calls[step] = self._calls[step], []
        for command, after_s, now in calls:
            self._add_call(command, after_s, now, self._begins[step])
        mean = latest = self._followed
        for goal, followed_s in self._coming:
            share = (self._ends[step] - followed_s) / self._step
            # Where it is followed throughout, it is taken as it is: to the last bit, whatever came before it.
            if share.ndim:
                mixed = mean + np.maximum(share, np.float32(0.0)) * (goal - latest)
                mean = np.where(share >= 1.0, goal, mixed)
            elif share > 0.0:
                mean = goal if share >= 1.0 else mean + share * (goal - latest)
            latest = goal
        while self._coming and (self._coming[0][1] <= self._begins[step]).all():
            self._followed = self._coming.pop(0)[0]
        return mean

    def _add_call(self, command: Floats, after_s: Floats | None, now: Bools | None, begin: np.float32) -> None:
        """Note that the drones ``now`` (E,), or all, are called ``after_s`` (E,) a step's ``begin``."""
        flight = self._flight
        at_s: Floats | np.float32 = begin
        if now is not None and after_s is not None:
            after_s = np.where(now, after_s, np.float32(0.0))
        if after_s is None:
            cosine, sine = self._integrator.heading
        else:
            yaw, at_s = flight.yaw + flight.yaw_rate * after_s, begin + after_s
            cosine, sine = np.cos(yaw).astype(np.float32), np.sin(yaw).astype(np.float32)
        goal = np.empty_like(self._followed)
        forward, right, _ = command
        np.subtract(cosine * forward, sine * right, goal[0])
        np.add(sine * forward, cosine * right, goal[1])
        goal[2], goal[3] = flight.altitude, command[2]
        delay_s = flight.constants[-1]
        followed_s: Floats | np.float32 = (delay_s if self._delays_differ else delay_s[0]) + at_s
        if now is not None:  # the others go on with what they were called last
            latest, already = self._coming[-1] if self._coming else (self._followed, _LONG_AGO_S)
            goal = np.where(now, goal, latest)
            followed_s = np.where(now, followed_s, already)
        self._coming.append((goal, followed_s))
