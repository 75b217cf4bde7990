"""What the task asks of a simulator: drones that fly commands among an episode's obstacles, and what they sense.

The task (:mod:`airlearning_envs.task`) keeps goal, rewards, ends, observation and tallies; a simulator keeps the
drones' motion, the obstacles and their contacts. Whoever flies the task somewhere else implements :class:`Simulator`;
``tests/airlearning_envs/simulator_contract.py`` is what any of them has to pass.

The world is AirSim's: x ahead and y to the right at yaw 0, z down, yaw clockwise seen from above; metres, seconds,
radians; the arena's centre is the origin.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.layout import Layouts, Slots

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]


class SpoiledFlightError(SettingsError):
    """The flight was not as requested (a lost command, a moved drone): it does not count."""


class Clock(Enum):
    """What time passes in a simulator."""

    EXACT = "exact"
    """A period is the same number of integration steps each time."""
    MEASURED = "measured"
    """A period is about as long as asked for; a track says how long it was."""


@dataclass(frozen=True)
class Capabilities:
    """What a simulator can do.

    Attributes:
        batch: most drones at once; None where any number is.
        deterministic: the same calls give the same flight to the last bit.
        replayable: an episode is a function of (seed, id, actions) alone: it can be flown again, by another policy or
            after a training was resumed.
        spawns: obstacles stand where the episode's layout has them.
        depth: has a depth camera.
        wind: wind blows on the drones.
        clock: what time passes.
    """

    batch: int | None
    deterministic: bool
    replayable: bool
    spawns: bool
    depth: bool
    wind: bool
    clock: Clock


class Motion(NamedTuple):
    """How E drones move now. The arrays are the simulator's own: they change as it flies.

    Attributes:
        position, velocity, acceleration: (2, E) in the plane, world frame; m, m/s, m/s^2.
        yaw: (E,) float64, rad.
        yaw_rate: (E,) rad/s.
        cosine, sine: (E,) of the yaw, cast from float64.
    """

    position: Floats
    velocity: Floats
    acceleration: Floats
    yaw: NDArray[np.float64]
    yaw_rate: Floats
    cosine: Floats
    sine: Floats


class Call(NamedTuple):
    """A command given to the drones within a period: what a program would call the flight controller with.

    The flight controller turns it into the world frame by the yaw at the call and holds it until the next one.

    Attributes:
        command: (3, E) forward m/s, rightward m/s, yaw rate rad/s.
        at_s: (E,) when, from the period's start; a drone whose time is not within the period is not called. None: all
            of them as the period begins.
    """

    command: Floats
    at_s: Floats | None = None


class Track(NamedTuple):
    """Where E drones were during a period, in n pieces, and what they first touched.

    Attributes:
        position: (n + 1, 2, E), the first at the period's start.
        lengths: (n, E) of the pieces, m.
        times_s: (n,) from the period's start to the end of each piece.
        contact: (E,) int8, :class:`~airlearning_envs.rules.EndCause` COLLISION or COLLISION_MOVER, LEFT_ARENA
            where walls that can be touched stand around it, or NONE.
        when: (E,) in which piece it was touched.
    """

    position: Floats
    lengths: Floats
    times_s: Floats
    contact: NDArray[np.int8]
    when: NDArray[np.int64]


class Simulator(ABC):
    """E drones, each in an arena of its own.

    Attributes:
        capabilities: what it can do.
        obstacles: what stands and moves around them now.
    """

    capabilities: Capabilities
    obstacles: Obstacles

    @property
    @abstractmethod
    def motion(self) -> Motion:
        """How the drones move now."""

    @abstractmethod
    def begin(self, rows: Rows, arenas: Layouts) -> None:
        """Put some drones (k,) at rest and aloft at the start of their new arenas, of k episodes."""

    @abstractmethod
    def fly(self, calls: Sequence[Call], held: Bools | None = None) -> Track:
        """Fly one control period under commands.

        Args:
            calls: in the order of their times for each drone; the last command of before holds until the first of them.
            held: (E,) drones that stay as they are (their track is of no account); None is nobody.

        Raises:
            SpoiledFlightError: begin the episode again.
        """

    @abstractmethod
    def halt(self, rows: Rows, when: Rows) -> None:
        """Note that the flights of some drones (k,) ended in these pieces (k,) of the last track: where it can, the
        simulator takes them and what moves around them back to there."""

    @abstractmethod
    def ranges(self, angles: NDArray[np.float64], furthest_m: float, rows: Rows | None = None) -> Floats:
        """Return how far it is in the plane to what is nearest, (k, R) m, ``furthest_m`` where nothing is nearer.

        Args:
            angles: (R,) from straight ahead within +-60 degrees, rad, ascending, positive to the right.
            furthest_m: longest range.
            rows: of which drones (k,); all by default.
        """

    @abstractmethod
    def depth(self, height: int, width: int, furthest_m: float) -> Floats:
        """Pictures (E, height, width) of the distance along the optical axis in m, 90 degrees wide and high; row 0 is
        the top, column 0 the left (AirSim's DepthPlanar).

        Raises:
            SettingsError: it has no camera.
        """

    def blow(self, wind: Floats) -> None:
        """Wind (2, E) in m/s from now on.

        Raises:
            SettingsError: no wind blows here.
        """
        raise SettingsError(f"no wind blows in {type(self).__name__}; set wind_m_s and gust_m_s to 0.")

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give back what it holds."""


class Obstacles:
    """The obstacles of E drones in N columns (:class:`~airlearning_envs.layout.Slots`), of which M move.

    Movers fly straight, pass obstacles, and bounce off walls.

    Attributes:
        slots: which column is what.
        centre: (2, E, N) m.
        size: (E, N) radius of a cylinder, half side of a box, m.
        velocity: (2, E, M) of the movers, m/s.
        limit: (E, M) a mover's centre turns back at this distance from the arena's axes, m.
    """

    def __init__(self, slots: Slots, num_envs: int) -> None:
        self.slots = slots
        self.centre = np.zeros((2, num_envs, slots.total), np.float32)
        self.size = np.zeros((num_envs, slots.total), np.float32)
        self.velocity = np.zeros((2, num_envs, slots.movers), np.float32)
        self.limit = np.zeros((num_envs, slots.movers), np.float32)

    def begin(self, rows: NDArray[np.int64], arenas: Layouts) -> None:
        """Replace the obstacles of some rows by those of new episodes."""
        self.centre[:, rows], self.size[rows] = arenas.centre, arenas.size
        self.velocity[:, rows], self.limit[rows] = arenas.velocity, arenas.limit

    def movers_at(self, seconds: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Floats:
        """Return where P movers (rows, columns) will be after ``seconds`` (n,): (n, 2, P)."""
        path = self.centre[:, rows, columns] + seconds[:, None, None] * self.velocity[:, rows, columns]
        return reflect(path, self.limit[rows, columns])

    def advance(self, seconds: float) -> None:
        """Let time pass; a wall turns a mover's velocity."""
        if not self.slots.movers:
            return
        place = self.centre[:, :, : self.slots.movers]
        place += self.velocity * np.float32(seconds)
        outside = np.abs(place) > self.limit
        if np.count_nonzero(outside):
            place[...] = reflect(place, self.limit)
            self.velocity = np.where(outside, -self.velocity, self.velocity)

    def rewind(self, rows: NDArray[np.int64], before: tuple[Floats, Floats], seconds: Floats) -> None:
        """Let no more than ``seconds`` (k,) have passed for some rows since ``before``: the movers' centre and velocity
        of then."""
        movers = self.slots.movers
        if movers:
            velocity, limit = before[1][:, rows], self.limit[rows]
            place = before[0][:, rows] + velocity * seconds[:, None]
            outside = np.abs(place) > limit
            if np.count_nonzero(outside):
                place, velocity = reflect(place, limit), np.where(outside, -velocity, velocity)
            self.centre[:, rows, :movers], self.velocity[:, rows] = place, velocity


def reflect(position: Floats, limit: Floats) -> Floats:
    """Positions after bouncing off walls at +-limit; an excess beyond the wall is mirrored back."""
    return position - np.float32(2.0) * (position - np.clip(position, -limit, limit))
