"""A recording of flights: commands that were given, and states that followed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.policy.reading import LARGEST_OTHER, read_file

Doubles = NDArray[np.float64]

FORMAT = """\
a recording is a JSON object:
  z                z of the goal in every command, m; negative: z points down
  command_columns  names of a command's numbers: t, vx_world, vy_world (or vx_body, vy_body), yaw_rate_deg
  state_columns    names of a state's numbers: t, x, y, z, vx, vy, yaw, yaw_rate
  sequences        flights, each {"kind": "forward", "commands": [[...], ...], "states": [[...], ...]}
with other columns and keys as you like; s, m, m/s, rad, rad/s, but the commanded yaw rate in deg/s; x, y, z, vx, vy
in the world frame, yaw_rate about the body's axis. A flight begins with its first state, hovering or nearly so, and a
command holds until the next. tests/airlearning_envs/recordings/ holds three of AirSim's SimpleFlight."""

STATE_COLUMNS = ("t", "x", "y", "z", "vx", "vy", "yaw", "yaw_rate")
WORLD, BODY = ("vx_world", "vy_world"), ("vx_body", "vy_body")
LONGEST_S = 3600.0


@dataclass(frozen=True)
class Flown:
    """One recorded flight.

    Attributes:
        kind: what commands it flew, in a word.
        command_times_s: (C,) ascending, from the first state on.
        commands: (3, C) m/s, m/s, rad/s: in the world frame or, as :attr:`Recording.world` says, forward and rightward.
        times_s: (S,) ascending, the first one 0.
        position: (3, S) m, the first x and y 0; z down.
        velocity: (2, S) m/s, world frame.
        yaw, yaw_rate: (S,) rad and rad/s.
    """

    kind: str
    command_times_s: Doubles
    commands: Doubles
    times_s: Doubles
    position: Doubles
    velocity: Doubles
    yaw: Doubles
    yaw_rate: Doubles


@dataclass(frozen=True)
class Recording:
    """Flights at one altitude.

    Attributes:
        name: of the file.
        altitude_m: of the goal.
        world: the commands are velocities in the world frame; else the yaw at the call turns them into it.
        flights: at least one.
    """

    name: str
    altitude_m: float
    world: bool
    flights: tuple[Flown, ...]

    def config(self) -> NavigationConfig:
        """The task at this altitude, with all that the dynamics know as it is by default."""
        return config_at(self.altitude_m)


def config_at(altitude_m: float) -> NavigationConfig:
    """The task with default dynamics at an altitude.

    Raises:
        SettingsError: nothing flies so high or so low.
    """
    highest = NavigationConfig.__dataclass_fields__["arena_height_m"].metadata["range"][1]
    return NavigationConfig(altitude_m=altitude_m, arena_height_m=min(max(10.0, altitude_m + 5.0), highest))


def read_recording(path: Path) -> Recording:
    """Read and check a recording, see :data:`FORMAT`.

    Raises:
        SettingsError: it is not one; says what and where.
        BundleError: it is missing, no regular file, too large, or cannot be read.
    """
    text = read_file(path, LARGEST_OTHER, follow_links=True)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not JSON ({error}); allowed is a recording.") from error
    try:
        return _recording(path.name, document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _recording(name: str, document: Any) -> Recording:
    if not isinstance(document, dict):
        raise SettingsError(f"it holds {_shown(document)}; allowed is a JSON object.")
    for key in ("z", "command_columns", "state_columns", "sequences"):
        if key not in document:
            raise SettingsError(f"there is no {key!r}, only {', '.join(map(repr, document)) or 'nothing'}.")
    z, sequences = document["z"], document["sequences"]
    if not _is_number(z) or not z < 0.0:
        raise SettingsError(f"z is {_shown(z)}; allowed is a negative number of metres: z points down.")
    try:
        config_at(-float(z))
    except (SettingsError, OverflowError) as error:
        raise SettingsError(f"z is {_shown(z)}: {error}") from error
    if not isinstance(sequences, list) or not sequences:
        raise SettingsError(f"sequences is {_shown(sequences)}; allowed is a list of one flight or more.")
    states = _columns("state_columns", document["state_columns"], STATE_COLUMNS)
    world = not _has(document["command_columns"], BODY) or _has(document["command_columns"], WORLD)
    wanted = ("t", *(WORLD if world else BODY), "yaw_rate_deg")
    commands = _columns("command_columns", document["command_columns"], wanted)
    flights = [_flown(f"sequence {n}", each, commands, states) for n, each in enumerate(sequences)]
    return Recording(name, -float(z), world, tuple(flights))


def _has(names: Any, wanted: Sequence[str]) -> bool:
    return isinstance(names, list) and all(name in names for name in wanted)


@dataclass(frozen=True)
class _Columns:
    """How long a row is, and where in it the wanted columns stand."""

    width: int
    places: Mapping[str, int]


def _columns(key: str, names: Any, wanted: Sequence[str]) -> _Columns:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"{key} is {_shown(names)}; allowed is a list of names.")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SettingsError(f"{key} lacks {', '.join(missing)}; it has {', '.join(names) or 'nothing'}.")
    twice = [name for name in wanted if names.count(name) > 1]
    if twice:
        raise SettingsError(f"{key} has {twice[0]} more than once; allowed is once.")
    return _Columns(len(names), {name: names.index(name) for name in wanted})


def _flown(where: str, sequence: Any, command_columns: _Columns, state_columns: _Columns) -> Flown:
    if not isinstance(sequence, dict):
        raise SettingsError(f"{where} is {_shown(sequence)}; allowed is an object with commands and states.")
    kind = sequence.get("kind", "flight")
    if not isinstance(kind, str):
        raise SettingsError(f"{where}: kind is {_shown(kind)}; allowed is a word.")
    commands = _rows(f"{where}, commands", sequence.get("commands"), command_columns, 1)
    states = _rows(f"{where}, states", sequence.get("states"), state_columns, 2)
    if not (np.diff(states[0]) > 0.0).all() or not (np.diff(commands[0]) >= 0.0).all():
        raise SettingsError(f"{where}: t does not ascend; allowed are commands and states in the order of their times.")
    begin, end = states[0, 0], states[0, -1]
    if end - begin > LONGEST_S:
        raise SettingsError(f"{where}: t goes from {begin:g} to {end:g}; allowed are {LONGEST_S:g} s at most.")
    time_s, x, y, z, vx, vy, yaw, yaw_rate = states
    return Flown(
        kind=kind,
        command_times_s=np.maximum(commands[0] - begin, 0.0),
        commands=np.stack([commands[1], commands[2], np.radians(commands[3])]),
        times_s=time_s - begin,
        position=np.stack([x - x[0], y - y[0], z]),
        velocity=np.stack([vx, vy]),
        yaw=yaw,
        yaw_rate=yaw_rate,
    )


def _rows(where: str, rows: Any, columns: _Columns, fewest: int) -> Doubles:
    """(wanted columns, rows)."""
    if not isinstance(rows, list) or len(rows) < fewest:
        raise SettingsError(f"{where}: received {_shown(rows)}; allowed is a list of {fewest} rows or more.")
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != columns.width:
            length = len(row) if isinstance(row, list) else _shown(row)
            raise SettingsError(
                f"{where}: row {number} has {length} numbers; allowed is {columns.width}, one for each column."
            )
        for name, place in columns.places.items():
            value = row[place]
            if not _is_number(value):
                raise SettingsError(f"{where}: row {number} has {name} {_shown(value)}; allowed is a finite number.")
    return np.array([[row[place] for row in rows] for place in columns.places.values()], np.float64)


def _is_number(value: Any) -> bool:
    """A finite number, whose square a float32 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _shown(value: Any) -> str:
    """A value of a file, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
