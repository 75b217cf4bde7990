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

from quarl.airlearning_envs.episode.layout import Layouts
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.obstacles import Obstacles

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
        contact: (E,) int8, :class:`~airlearning_envs.rules.causes.EndCause` COLLISION or COLLISION_MOVER, LEFT_ARENA
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
        """The flights of some drones (k,) ended in these pieces (k,) of the last track: where it can, the simulator
        takes them and what moves around them back to there."""

    @abstractmethod
    def ranges(self, angles: NDArray[np.float64], furthest_m: float, rows: Rows | None = None) -> Floats:
        """How far it is in the plane to what is nearest, (k, R) m, ``furthest_m`` where nothing is nearer.

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
