"""The simulator in numpy: dynamics, obstacles, contact and senses of a batch of drones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import Layouts, Slots
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator, nominal_constants
from quarl.airlearning_envs.simulators.embedded.sensing import Contact, DepthCamera, RangeSensor
from quarl.airlearning_envs.simulators.simulator import (
    Bools,
    Call,
    Capabilities,
    Clock,
    Floats,
    Motion,
    Obstacles,
    Rows,
    Simulator,
    Track,
)

LONGEST_PIECE_S = 0.0625
"""Contact is looked for at least this often; at 5 m/s a drone flies its own radius in it."""


class EmbeddedSimulator(Simulator):
    """E drones in numpy; see :class:`~airlearning_envs.simulators.simulator.Simulator`.

    Args:
        config: the task, of which it takes arena, drone, dynamics and substeps.
        num_envs: E.
    """

    def __init__(self, config: NavigationConfig, num_envs: int) -> None:
        self.capabilities = Capabilities(
            batch=None, deterministic=True, replayable=True, spawns=True, depth=True, wind=True, clock=Clock.EXACT
        )
        self._config = config
        self._nominal = nominal_constants(config)
        self.flight = Flight.hovering(config, num_envs)
        self.obstacles = Obstacles(Slots.of(config), num_envs)
        # A step is some pieces of the track: within it the drones fly straight.
        step_s = config.control_period_s / config.substeps
        self._cuts = math.ceil(step_s / LONGEST_PIECE_S)
        pieces = self._cuts * config.substeps
        self._times = (np.arange(1, pieces + 1) * (step_s / self._cuts)).astype(np.float32)
        self._integrator = Integrator(self.flight, step_s)
        self._contact = Contact(config, self.obstacles, self._times)
        ends = self._times[self._cuts - 1 :: self._cuts].copy()
        self._in_force = CallsInForce(self._integrator, ends, bool(config.gain_spread))
        self._sensors: dict[tuple[bytes, float], RangeSensor] = {}
        self._cameras: dict[tuple[int, int, float], DepthCamera] = {}
        self._track = np.zeros((pieces + 1, 2, num_envs), np.float32)
        self._gap = np.zeros((num_envs, self.obstacles.slots.total), np.float32)
        self._gap_known = np.zeros(num_envs, bool)
        self._before = self.obstacles.centre, self.obstacles.velocity

    @property
    def motion(self) -> Motion:
        """See the base class."""
        return self._integrator.motion

    def begin(self, rows: Rows, arenas: Layouts) -> None:
        """Hover at the starts; each drone's constants and altitude are its own where the task spreads them."""
        config, flight = self._config, self.flight
        flight.position[:2, rows], flight.yaw[rows] = arenas.start, arenas.yaw
        if config.gain_spread or config.altitude_spread_m:
            own, height = arenas.variation[:-1], arenas.variation[-1]
            flight.constants[:, rows] = self._nominal * (np.float32(1.0) + np.float32(config.gain_spread) * own)
            flight.altitude[rows] = -(np.float32(config.altitude_m) + np.float32(config.altitude_spread_m) * height)
            self._integrator.refresh()
        flight.rest(rows)
        self._in_force.rest(rows)
        self.obstacles.begin(rows, arenas)
        self._gap_known[rows] = False
        self._integrator.refresh_attitude()

    def fly(self, calls: Sequence[Call], held: Bools | None = None) -> Track:
        """Integrate one control period and look for contact; held drones are put back where they were."""
        saved = None if held is None else [(array, array[..., held]) for array in self._state()]
        gap = None if held is None else self._gap[held]
        flight, track, obstacles, cuts = self.flight, self._track, self.obstacles, self._cuts
        if np.count_nonzero(self._gap_known) < len(self._gap_known):
            self._measure_gaps()
        track[0] = flight.position[:2]
        self._in_force.begin(calls)
        for k in range(self._config.substeps):
            self._integrator.step(self._in_force.goal(k))
            track[cuts * (k + 1)] = flight.position[:2]
        for cut in range(1, cuts):
            share = np.float32(cut / cuts)
            track[cut::cuts] = track[:-1:cuts] + share * (track[cuts::cuts] - track[:-1:cuts])
        lengths = track[1:] - track[:-1]
        lengths *= lengths
        lengths = np.sqrt(lengths[:, 0] + lengths[:, 1])
        contact, when = self._contact.first(track, lengths, self._gap)
        self._before = obstacles.centre[:, :, : obstacles.slots.movers].copy(), obstacles.velocity
        obstacles.advance(float(self._times[-1]))
        self._gap_known[:] = False
        if held is not None and saved is not None and gap is not None:
            for array, before in saved:
                array[..., held] = before
            rows = np.flatnonzero(held)
            obstacles.rewind(rows, self._before, np.zeros(len(rows), np.float32))
            self._gap[held], self._gap_known[held] = gap, True
            self._integrator.refresh_attitude()
        return Track(track, lengths, self._times, contact, when)

    def _state(self) -> list[NDArray[np.generic]]:
        """Return all arrays (…, E) that tell how the drones fly."""
        flight = self.flight
        moving = [flight.velocity, flight.acceleration, flight.tilt, flight.yaw_rate]
        return [flight.position, *moving, flight.yaw, flight.trim]

    def halt(self, rows: Rows, when: Rows) -> None:
        """Drones and movers are taken back; the velocity stays that of the period's end."""
        self.flight.position[:2, rows] = self._track[when + 1, :, rows].T
        self.obstacles.rewind(rows, self._before, self._times[when])

    def ranges(self, angles: NDArray[np.float64], furthest_m: float, rows: Rows | None = None) -> Floats:
        """Measure ranges by ray casting."""
        key = angles.tobytes(), furthest_m
        sensor = self._sensors.get(key)
        if sensor is None:
            sensor = self._sensors[key] = RangeSensor(self._config, angles, furthest_m)
        obstacles, (cosine, sine) = self.obstacles, self._integrator.heading
        at: slice | Rows = slice(None) if rows is None else rows
        ranges, gap = sensor.scan(
            self.flight.position[:2, at], cosine[at], sine[at], obstacles.centre[:, at], obstacles.size[at]
        )
        if rows is None:
            self._gap = gap
        else:
            self._gap[rows] = gap
        self._gap_known[at] = True
        return ranges

    def _measure_gaps(self) -> None:
        self.ranges(np.zeros(1), 1.0)

    def depth(self, height: int, width: int, furthest_m: float) -> Floats:
        """Return the arena from the drones' altitude; the camera keeps level."""
        key, config = (height, width, furthest_m), self._config
        if key not in self._cameras:
            self._cameras[key] = DepthCamera(*key, config.altitude_m, config.arena_height_m)
        return self._cameras[key].capture(self.ranges)

    def blow(self, wind: Floats) -> None:
        """Let the wind push the drones, by their drag."""
        self.flight.wind[:] = wind
