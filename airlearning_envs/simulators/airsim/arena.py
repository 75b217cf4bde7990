"""An episode's arena in AirSim: walls, obstacles and movers out of its own assets, spawned once and moved since."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.rules import EndCause
from quarl.airlearning_envs.simulators.airsim.dialects import Dialect, Pose, Vector3r
from quarl.airlearning_envs.simulators.airsim.links import Link
from quarl.airlearning_envs.simulators.airsim.rpc import AirSimError, RpcError
from quarl.airlearning_envs.simulators.simulator import Obstacles

PREFIX = "arena_"
"""Prefix of the name of every object spawned here."""
WALL_M = 1.0
_PRESENT_M = 1e5
_MOVED_M = 0.05


class Shape(Enum):
    """What an asset looks like; one metre long, wide and high."""

    BOX = "box"
    CYLINDER = "cylinder"


KNOWN_ASSETS = {
    Shape.BOX: ("Cube", "1M_Cube", "1M_Cube_Chamfer"),
    Shape.CYLINDER: ("Cylinder", "1M_Cylinder", "Shape_Cylinder"),
}
"""Names of each shape's asset in AirSim's environments; the first one that is listed is taken."""


@dataclass(frozen=True)
class Piece:
    """Something that stands in the arena: its asset, its scale along its axes (its size in m), and where (m)."""

    asset: str
    scale: tuple[float, float, float]
    x: float
    y: float


class Arena:
    """Builds and moves what stands around the drone.

    Args:
        link: to the server.
        config: the arena's size.
        assets: the assets to use; those of :data:`KNOWN_ASSETS` by default.
        origin: (2,) where the arena's centre is in the vehicle's frame, m.

    Attributes:
        only_boxes: boxes stand for cylinders, as wide as they are.

    Raises:
        SettingsError: an asset is not there.
    """

    def __init__(
        self, link: Link, config: NavigationConfig, assets: Mapping[str, str], origin: tuple[float, float]
    ) -> None:
        self._link, self._config, self._origin = link, config, origin
        self._assets = choose_assets(link.call(list[str], "simListAssets"), assets)
        self.only_boxes = self._assets[Shape.CYLINDER] == self._assets[Shape.BOX]
        self._standing: dict[str, tuple[str, Piece]] = {}  # our name: (the server's, what stands there)
        self._names: dict[str, str] = {}
        self._movable: bool | None = None
        self._shift = self._between_frames()
        for name in link.call(list[str], "simListSceneObjects", f"{PREFIX}.*"):  # of a run that was killed
            link.call(bool, "simDestroyObject", name)

    def build(self, obstacles: Obstacles) -> None:
        """Put everything of a new episode (the first row of ``obstacles``) where it is."""
        wanted = dict(self._pieces(obstacles))
        for name in [name for name in self._standing if name not in wanted]:
            self._remove(name)
        for name, piece in wanted.items():
            self._stand(name, piece)

    def move(self, obstacles: Obstacles) -> None:
        """Put the movers where they are now."""
        for name, piece in self._movers(obstacles):
            self._stand(name, piece)

    def cause(self, name: str) -> EndCause:
        """Return how a flight ends that touched an object of that name."""
        mine = self._names.get(name, name.removeprefix(PREFIX))
        if mine.startswith("wall"):
            return EndCause.LEFT_ARENA
        return EndCause.COLLISION_MOVER if mine.startswith("mover") else EndCause.COLLISION

    def clear(self) -> None:
        """Take everything away."""
        for name in list(self._standing):
            with suppress(RpcError):
                self._remove(name)

    def _pieces(self, obstacles: Obstacles) -> Iterator[tuple[str, Piece]]:
        half, box, height = self._config.half_m, self._assets[Shape.BOX], self._config.arena_height_m
        far, long = half + WALL_M / 2.0, 2.0 * half + 2.0 * WALL_M
        for number, (x, y) in enumerate(((far, 0.0), (-far, 0.0), (0.0, far), (0.0, -far))):
            scale = (WALL_M, long, height) if x else (long, WALL_M, height)
            yield f"wall{number}", Piece(box, scale, x, y)
        yield from self._movers(obstacles)
        slots = obstacles.slots
        for column in range(slots.movers, slots.total):
            shape = Shape.CYLINDER if column < slots.circles else Shape.BOX
            yield from self._piece(obstacles, column, f"{shape.value}{column}", shape)

    def _movers(self, obstacles: Obstacles) -> Iterator[tuple[str, Piece]]:
        for column in range(obstacles.slots.movers):
            yield from self._piece(obstacles, column, f"mover{column}", Shape.CYLINDER)

    def _piece(self, obstacles: Obstacles, column: int, name: str, shape: Shape) -> Iterator[tuple[str, Piece]]:
        x, y = map(float, obstacles.centre[:, 0, column])
        width = 2.0 * float(obstacles.size[0, column])
        if abs(x) < _PRESENT_M:
            yield name, Piece(self._assets[shape], (width, width, self._config.arena_height_m), x, y)

    def _stand(self, name: str, piece: Piece) -> None:
        """Move what stands there under that name; where it cannot be moved or is another thing, spawn it again."""
        known = self._standing.get(name)
        if known is not None:
            object_name, before = known
            if before == piece:
                return
            if (before.asset, before.scale) == (piece.asset, piece.scale) and self._try_move(object_name, piece):
                self._standing[name] = object_name, piece
                return
            self._remove(name)
        scale, pose = Vector3r(*piece.scale), self._pose(piece)
        try:
            object_name = self._link.call(
                str, "simSpawnObject", f"{PREFIX}{name}", piece.asset, pose, scale, False, False
            )
        except RpcError as error:
            raise AirSimError(
                f"{piece.asset} could not be spawned: {error.text}. Name another asset with --assets box=NAME or "
                "cylinder=NAME; simListAssets lists them."
            ) from None
        self._standing[name], self._names[object_name] = (object_name, piece), name

    def _try_move(self, theirs: str, piece: Piece) -> bool:
        """Move an object; the first time, see whether it went: a static mesh of Unreal stays where it is."""
        if self._movable is False:
            return False
        pose = self._pose(piece)
        done = self._link.call(bool, "simSetObjectPose", theirs, pose, True)
        if self._movable is None:
            rest = (True,) if self._link.dialect is Dialect.COSYS else ()
            there = self._link.call(Pose, "simGetObjectPose", theirs, *rest).position.array()
            self._movable = done and bool(np.linalg.norm(there - pose.position.array()) < _MOVED_M)
            return self._movable
        return done

    def _remove(self, name: str) -> None:
        object_name, _ = self._standing.pop(name)
        self._names.pop(object_name, None)
        self._link.call(bool, "simDestroyObject", object_name)

    def _pose(self, piece: Piece) -> Pose:
        """Return the pose of a piece's centre in the objects' frame; the piece stands on the ground."""
        place = np.array([piece.x + self._origin[0], piece.y + self._origin[1], -self._config.arena_height_m / 2.0])
        return Pose(Vector3r.of(place + self._shift))

    def _between_frames(self) -> NDArray[np.float64]:
        """(3,) from the vehicle's frame to the objects', m: Unreal's objects count from the player's start."""
        rest = (True,) if self._link.dialect is Dialect.COSYS else ()
        try:
            (vehicle, *_) = self._link.call(list[str], "listVehicles")
            there = self._link.call(Pose, "simGetObjectPose", vehicle, *rest).position.array()
            here = self._link.call(Pose, "simGetVehiclePose", "").position.array()
        except (RpcError, ValueError):
            return np.zeros(3)
        shift = there - here
        return shift if np.isfinite(shift).all() else np.zeros(3)


def choose_assets(listed: list[str], wanted: Mapping[str, str]) -> dict[Shape, str]:
    """Which asset stands for which shape; a box for a cylinder where there is none.

    Raises:
        SettingsError: one is not listed (to spawn it anyway would crash Unreal), or a shape is not known.
    """
    shapes = {shape.value for shape in Shape}
    if unknown := set(wanted) - shapes:
        raise SettingsError(f"assets has {sorted(unknown)}; allowed are {', '.join(sorted(shapes))}.")
    chosen: dict[Shape, str] = {}
    for shape in Shape:
        names = (wanted[shape.value],) if shape.value in wanted else KNOWN_ASSETS[shape]
        matches = [name for name in names if name in listed]
        if not matches and shape is Shape.CYLINDER and shape.value not in wanted:
            matches = [chosen[Shape.BOX]]
        if not matches:
            near = difflib.get_close_matches(names[0], listed, 5, 0.4) or sorted(listed)[:5]
            raise SettingsError(
                f"there is no asset {' or '.join(names)} for a {shape.value}; this environment lists "
                f"{', '.join(near) or 'nothing'}{' …' if len(listed) > len(near) else ''}. Name one of one metre with "
                f"--assets {shape.value}=NAME."
            )
        chosen[shape] = matches[0]
    return chosen


def settings_of(link: Link) -> dict[str, Any]:
    """Return the server's settings.json, empty where it does not say."""
    try:
        settings = json.loads(link.call(str, "getSettingsString"))
    except (RpcError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def clock_speed(settings: Mapping[str, Any]) -> float:
    """Return the simulated seconds a wall second, of the server's settings; 1 where they say nothing.

    Raises:
        AirSimError: the clock runs on while it is paused (ScalableClock), or the speed is none.
    """
    if settings.get("ClockType") == "ScalableClock":
        raise AirSimError(SCALABLE)
    speed = settings.get("ClockSpeed", 1.0)
    if not isinstance(speed, (int, float)) or not 0.0 < speed <= 1000.0:
        raise AirSimError(f"settings.json has ClockSpeed {speed!r}; allowed is more than 0. Set it to 1.")
    return float(speed)


SCALABLE = (
    "its clock runs on while it is paused (ScalableClock), which throws the drone about. Set "
    '"ClockType": "SteppableClock" in settings.json and start AirSim again.'
)
