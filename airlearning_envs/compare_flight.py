"""Fly recorded commands in the embedded simulator and print how far its drones are from the recorded ones.

quarl compare-flight tests/airlearning_envs/recordings/responses.json
quarl compare-flight mine.json --json
quarl compare-flight mine.json --plot flight.svg --sequence 2

The drones fly at the recording's altitude with the task's default dynamics and integration steps. Errors are root mean
squares per component over all recorded states: velocity and position of x and y in the world frame, yaw rate.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray

from quarl import cli
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator
from quarl.airlearning_envs.simulators.simulator import Call
from quarl.policy.files import write_atomically
from quarl.policy.reading import LARGEST_OTHER, read_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
class FlightSequence:
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
    flights: tuple[FlightSequence, ...]

    def config(self) -> NavigationConfig:
        """Return the task at this altitude, with all that the dynamics know as it is by default."""
        return config_at(self.altitude_m)


def config_at(altitude_m: float) -> NavigationConfig:
    """Return the task with default dynamics at an altitude.

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
        raise SettingsError(f"it holds {_format_value(document)}; allowed is a JSON object.")
    for key in ("z", "command_columns", "state_columns", "sequences"):
        if key not in document:
            raise SettingsError(f"there is no {key!r}, only {', '.join(map(repr, document)) or 'nothing'}.")
    z, sequences = document["z"], document["sequences"]
    if not _is_number(z) or not z < 0.0:
        raise SettingsError(f"z is {_format_value(z)}; allowed is a negative number of metres: z points down.")
    try:
        config_at(-float(z))
    except (SettingsError, OverflowError) as error:
        raise SettingsError(f"z is {_format_value(z)}: {error}") from error
    if not isinstance(sequences, list) or not sequences:
        raise SettingsError(f"sequences is {_format_value(sequences)}; allowed is a list of one flight or more.")
    _check_columns("state_columns", document["state_columns"], STATE_COLUMNS)
    names = document["command_columns"]
    world = not (isinstance(names, list) and {*BODY} <= {*map(str, names)}) or {*WORLD} <= {*map(str, names)}
    wanted = ("t", *(WORLD if world else BODY), "yaw_rate_deg")
    _check_columns("command_columns", names, wanted)
    flights = [_read_flight(f"sequence {n}", sequence, document, wanted) for n, sequence in enumerate(sequences)]
    return Recording(name, -float(z), world, tuple(flights))


def _check_columns(key: str, names: Any, wanted: Sequence[str]) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingsError(f"{key} is {_format_value(names)}; allowed is a list of names.")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SettingsError(f"{key} lacks {', '.join(missing)}; it has {', '.join(names) or 'nothing'}.")
    twice = [name for name in wanted if names.count(name) > 1]
    if twice:
        raise SettingsError(f"{key} has {twice[0]} more than once; allowed is once.")


def _read_flight(
    where: str, sequence: Any, document: Mapping[str, Any], command_columns: Sequence[str]
) -> FlightSequence:
    if not isinstance(sequence, dict):
        raise SettingsError(f"{where} is {_format_value(sequence)}; allowed is an object with commands and states.")
    kind = sequence.get("kind", "flight")
    if not isinstance(kind, str):
        raise SettingsError(f"{where}: kind is {_format_value(kind)}; allowed is a word.")
    commands = _rows(f"{where}, commands", sequence.get("commands"), document["command_columns"], command_columns, 1)
    states = _rows(f"{where}, states", sequence.get("states"), document["state_columns"], STATE_COLUMNS, 2)
    if not (np.diff(states[0]) > 0.0).all() or not (np.diff(commands[0]) >= 0.0).all():
        raise SettingsError(f"{where}: t does not ascend; allowed are commands and states in the order of their times.")
    begin, end = states[0, 0], states[0, -1]
    if end - begin > LONGEST_S:
        raise SettingsError(f"{where}: t goes from {begin:g} to {end:g}; allowed are {LONGEST_S:g} s at most.")
    time_s, x, y, z, vx, vy, yaw, yaw_rate = states
    return FlightSequence(
        kind=kind,
        command_times_s=np.maximum(commands[0] - begin, 0.0),
        commands=np.stack([commands[1], commands[2], np.radians(commands[3])]),
        times_s=time_s - begin,
        position=np.stack([x - x[0], y - y[0], z]),
        velocity=np.stack([vx, vy]),
        yaw=yaw,
        yaw_rate=yaw_rate,
    )


def _rows(where: str, rows: Any, names: list[str], wanted: Sequence[str], fewest: int) -> Doubles:
    """(wanted columns, rows)."""
    if not isinstance(rows, list) or len(rows) < fewest:
        raise SettingsError(f"{where}: received {_format_value(rows)}; allowed is a list of {fewest} rows or more.")
    places = {name: names.index(name) for name in wanted}
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            length = len(row) if isinstance(row, list) else _format_value(row)
            raise SettingsError(
                f"{where}: row {number} has {length} numbers; allowed is {len(names)}, one for each column."
            )
        for name, place in places.items():
            if not _is_number(row[place]):
                raise SettingsError(
                    f"{where}: row {number} has {name} {_format_value(row[place])}; allowed is a finite number."
                )
    return np.array([[row[place] for row in rows] for place in places.values()], np.float64)


def _is_number(value: Any) -> bool:
    """Return a finite number, whose square a float32 can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _format_value(value: Any) -> str:
    """Return a value of a file, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# --- simulated flights ------------------------------------------------------------------------------------------------

VX, VY = 3, 4
"""Rows of a simulated flight: x, y, z, vx, vy, yaw rate."""


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
        terms = [(part.rows, part.velocity, part.position, part.yaw_rate, part.altitude) for part in parts]
        rows, *sums = (math.fsum(column) for column in zip(*terms, strict=True))
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
    return [_squares(sequence, steps_s, states[:, :, e]) for e, sequence in enumerate(flights)]


def _squares(sequence: FlightSequence, steps_s: Doubles, simulated: Doubles) -> Squares:
    recorded = np.concatenate([sequence.position, sequence.velocity, sequence.yaw_rate[None]])
    there = np.stack([np.interp(sequence.times_s, steps_s, row) for row in simulated.T])
    x, y, z, vx, vy, yaw_rate = np.sum((there - recorded) ** 2, axis=1).tolist()
    return Squares(len(sequence.times_s), vx + vy, x + y, yaw_rate, z)


def follow(flights: Sequence[FlightSequence], config: NavigationConfig, world: bool) -> tuple[Doubles, Doubles]:
    """Simulate E flights, each from its first state on: its position, yaw, velocity and yaw rate, level.

    Commands are called at their own times, to the drones of the simulator (:class:`CallsInForce`) as velocities in the
    body frame. Velocities that were recorded in the world frame are turned by the yaw at the call first, which the call
    turns back: the goal is what was commanded, whichever way the drone looks.

    Returns:
        (n + 1,) s, the ends of the integration steps, the start included; (n + 1, 6, E) the states then.
    """
    step_s = config.control_period_s / config.substeps
    flight = Flight.hovering(config, len(flights))
    for e, sequence in enumerate(flights):
        flight.position[2, e], flight.velocity[:2, e] = sequence.position[2, 0], sequence.velocity[:, 0]
        flight.yaw[e], flight.yaw_rate[e] = sequence.yaw[0], sequence.yaw_rate[0]
    integrator = Integrator(flight, step_s)
    in_force = CallsInForce(integrator, np.array([step_s], np.float32), delays_differ=True)
    count = math.ceil(max(sequence.times_s[-1] for sequence in flights) / step_s)
    # In which step each command is called. A millionth of a step early is in time: 0.25 s is the third step's end.
    called = [np.floor(sequence.command_times_s / step_s + 1e-6).astype(np.int64) for sequence in flights]
    states = np.empty((count + 1, 6, len(flights)))
    states[0] = _state(flight)
    for step in range(count):
        numbers = [np.flatnonzero(steps == step) for steps in called]
        in_force.begin(_calls(flights, flight, numbers, step * step_s, step_s, world))
        integrator.step(in_force.goal(0))
        states[step + 1] = _state(flight)
    return np.arange(count + 1) * step_s, states


def _state(flight: Flight) -> NDArray[np.float32]:
    return np.concatenate([flight.position, flight.velocity[:2], flight.yaw_rate[None]])


def _calls(
    flights: Sequence[FlightSequence],
    flight: Flight,
    numbers: Sequence[NDArray[np.int64]],
    begin_s: float,
    step_s: float,
    world: bool,
) -> list[Call]:
    """Return the calls in a step that begins at ``begin_s``, as many as the drone that is called most often has
    ``numbers``."""
    calls = []
    for n in range(max(map(len, numbers))):
        # Who is not called is called as the step ends, which is too late.
        command, at_s = np.zeros((3, len(numbers))), np.full(len(numbers), step_s)
        for e, (sequence, own) in enumerate(zip(flights, numbers, strict=True)):
            if n < len(own):
                at_s[e] = max(sequence.command_times_s[own[n]] - begin_s, 0.0)
                yaw = flight.yaw[e] + flight.yaw_rate[e] * at_s[e] if world else 0.0
                (x, y, yaw_rate), cosine, sine = sequence.commands[:, own[n]], math.cos(yaw), math.sin(yaw)
                command[:, e] = cosine * x + sine * y, cosine * y - sine * x, yaw_rate
        calls.append(Call(command.astype(np.float32), at_s.astype(np.float32)))
    return calls


def rise_times(config: NavigationConfig, speed_m_s: float = 5.0) -> tuple[float | None, float | None]:
    """t63 and t90 in s: when 63 % and 90 % of a commanded speed are first reached, counted from the call.

    Of what was commanded, not of the speed in the end, which the drag keeps below it; None where that is too low.
    """
    nothing = np.zeros(2)
    sequence = FlightSequence(
        kind="step",
        command_times_s=np.zeros(1),
        commands=np.array([[speed_m_s], [0.0], [0.0]]),
        times_s=np.array([0.0, 30.0]),
        position=np.stack([nothing, nothing, nothing - config.altitude_m]),
        velocity=np.stack([nothing, nothing]),
        yaw=nothing,
        yaw_rate=nothing,
    )
    steps_s, states = follow([sequence], config, world=True)
    t63, t90 = (_first(steps_s, states[:, VX, 0], share * speed_m_s) for share in (0.63, 0.90))
    return t63, t90


def _first(times_s: Doubles, values: Doubles, wanted: float) -> float | None:
    """When a series that begins below ``wanted`` first reaches it, interpolated."""
    after = int(np.argmax(values >= wanted))
    if after == 0:
        return None
    return float(np.interp(wanted, values[after - 1 : after + 1], times_s[after - 1 : after + 1]))


RECORDED_RISES = ((1.5, 1.15, 2.44), (3.0, 1.29, 2.89), (4.0, 1.38, 3.20), (6.0, 1.58, 3.84), (10.0, 1.99, 5.21))
"""Altitude m, t63 s and t90 s of 5 m/s forward, recorded of SimpleFlight (AirLib 1.8.1)."""


# --- pictures, the same bytes for the same flight ---------------------------------------------------------------------

SUFFIXES = (".svg", ".png")
ALTITUDES_M = np.arange(1.0, 12.01, 0.5)
_BLUE, _VERMILLION, _GREY = "#0072B2", "#D55E00", "#8c8c8c"  # of Okabe and Ito's, which colour-blind eyes tell apart


def velocity_picture(recording: Recording, number: int, squares: Squares) -> Figure:
    """Commanded, recorded and simulated velocity of one flight over time, x above y, in the world frame."""
    from matplotlib.figure import Figure

    sequence = recording.flights[number]
    steps_s, states = follow([sequence], recording.config(), recording.world)
    commanded, end = _rotate_commands(recording, sequence), sequence.times_s[-1]
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for row, (axes, letter) in enumerate(zip(panels, "xy", strict=True)):
        steps = np.append(commanded[row], commanded[row, -1:])
        times = np.append(sequence.command_times_s, max(end, sequence.command_times_s[-1]))
        axes.step(times, _round(steps), where="post", color=_GREY, linewidth=0.9, label="commanded")
        axes.plot(sequence.times_s, _round(sequence.velocity[row]), color=_BLUE, linewidth=1.8, label="recorded")
        axes.plot(
            steps_s, _round(states[:, (VX, VY)[row], 0]), color=_VERMILLION, linewidth=1.4, dashes=(4, 2),
            label="simulated",
        )  # fmt: skip
        axes.set_ylabel(f"velocity {letter}, m/s")
        _plain(axes)
    panels[1].set_xlabel("time, s")
    panels[1].set_xlim(0.0, end)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    error = squares.root_mean()["velocity_rmse_m_s"]
    figure.suptitle(
        f"{recording.name}, sequence {number} ({sequence.kind}), {recording.altitude_m:g} m high: RMSE {error:.3f} m/s",
        fontsize=11,
    )
    return figure


def _rotate_commands(recording: Recording, sequence: FlightSequence) -> NDArray[np.float64]:
    """(2, C) m/s, world frame; commands in the body's are turned by the recorded yaw at the call."""
    x, y = sequence.commands[:2]
    if recording.world:
        return np.stack([x, y])
    yaw = np.interp(sequence.command_times_s, sequence.times_s, sequence.yaw)
    return np.stack([np.cos(yaw) * x - np.sin(yaw) * y, np.sin(yaw) * x + np.cos(yaw) * y])


def altitude_picture() -> Figure:
    """t63 and t90 of 5 m/s over the altitude: a line as simulated, points as recorded."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.subplots()
    simulated = np.array([rise_times(config_at(float(altitude))) for altitude in ALTITUDES_M], np.float64)
    recorded = np.array(RECORDED_RISES)
    for row, (name, colour, mark) in enumerate((("63 %", _BLUE, "o"), ("90 %", _VERMILLION, "^"))):
        axes.plot(ALTITUDES_M, _round(simulated[:, row]), color=colour, linewidth=1.4, label=f"{name}, simulated")
        axes.plot(
            recorded[:, 0], recorded[:, row + 1], mark, color=colour, markersize=6, label=f"{name}, recorded of AirSim"
        )
    axes.set_xlabel("altitude, m")
    axes.set_ylabel("time from the command, s")
    axes.set_xlim(0.0, float(ALTITUDES_M[-1]) + 0.5)
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False, fontsize=9)
    axes.set_title("Until 63 and 90 % of a commanded 5 m/s are flown", fontsize=11)
    _plain(axes)
    return figure


def _round(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to a tenth of a millimetre a second: below that, machines may differ."""
    return np.round(values, 4)


def _plain(axes: Axes) -> None:
    axes.grid(color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_picture(figure: Figure, path: Path) -> None:
    """Write a .svg or .png, whole or not at all."""
    import matplotlib

    kind, picture = path.suffix.lower()[1:], io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "flight"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": ""}
        figure.savefig(picture, format=kind, facecolor="white", dpi=160, metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, picture.getvalue())


# --- the command ------------------------------------------------------------------------------------------------------

DYNAMICS = (
    "velocity_gain_s_per_m", "tilt_gain_per_s", "drag_per_m", "yaw_time_constant_s", "command_delay_s",
    "control_period_s", "substeps",
)  # fmt: skip
"""Settings of the task that the drones fly by, the altitude apart."""
COLUMNS = {
    "velocity m/s": "velocity_rmse_m_s",
    "position m": "position_rmse_m",
    "yaw rate rad/s": "yaw_rate_rmse_rad_s",
    "altitude m": "altitude_rmse_m",
}


def report(recording: Recording, squares: Sequence[Squares]) -> dict[str, Any]:
    """Return what ``--json`` prints of a recording."""
    return {
        "file": recording.name,
        "altitude_m": recording.altitude_m,
        **_round_errors(Squares.total(squares)),
        "states": sum(flight_squares.rows for flight_squares in squares),
        "settings": {name: getattr(recording.config(), name) for name in DYNAMICS},
        "sequences": [
            {"kind": sequence.kind, **_round_errors(flight_squares)}
            for sequence, flight_squares in zip(recording.flights, squares, strict=True)
        ],
    }


def _round_errors(squares: Squares) -> dict[str, float]:
    return {name: round(value, 4) for name, value in squares.root_mean().items()}


def table(recording: Recording, squares: Sequence[Squares]) -> str:
    """Lines for the terminal: errors by kind of flight, and of all."""
    count, rows = len(squares), sum(flight_squares.rows for flight_squares in squares)
    flights = f"{count} flight{'s' * (count > 1)}"
    lines = [f"{recording.name}: {flights}, {recording.altitude_m:g} m high, {rows:,} states; root mean square errors"]
    kinds = [sequence.kind for sequence in recording.flights]
    width = max(map(len, (*kinds, "flights")))
    lines.append(f"{'flights':<{width}} {'':>4}" + "".join(f"  {name:>14}" for name in COLUMNS))
    for kind in (*dict.fromkeys(kinds), None):
        own = [flight_squares for flight_squares, its in zip(squares, kinds, strict=True) if kind in (its, None)]
        errors = Squares.total(own).root_mean()
        name = "all" if kind is None else kind
        lines.append(f"{name:<{width}} {len(own):>4}" + "".join(f"  {errors[key]:>14.4f}" for key in COLUMNS.values()))
    return "\n".join(lines)


def build_keep_document(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what ``--keep`` stores: the reports, and the rise times beside the recorded ones."""
    rises = []
    for altitude, *recorded in RECORDED_RISES:
        simulated = [None if time is None else round(time, 3) for time in rise_times(config_at(altitude))]
        rises.append({"altitude_m": altitude, "recorded_s": recorded, "simulated_s": simulated})
    return {"speed_m_s": 5.0, "rises": rises, "recordings": list(reports)}


@Parameter(name="*")
@dataclass
class Options:
    """Compare recorded flights with the simulator.

    Attributes:
        file: recordings; without one their format is printed
        json: print JSON: an object; of several files a list of them
        plot: draw a flight's velocity: a .svg or .png
        sequence: which one, from 0
        altitudes: draw rise times over the altitude
        keep: store errors and rise times as JSON
    """

    file: tuple[Path, ...] = ()
    _: KW_ONLY
    json: bool = False
    plot: Annotated[Path | None, Parameter(metavar="PICTURE")] = None
    sequence: Annotated[int, Parameter(metavar="N")] = 0
    altitudes: Annotated[Path | None, Parameter(metavar="PICTURE")] = None
    keep: Annotated[Path | None, Parameter(metavar="FILE")] = None


@cli.verb(left="what was written is kept.")
def run(options: Options) -> None:
    """Fly recorded commands in the embedded simulator and print how far its drones are from the recorded ones.

    quarl compare-flight tests/airlearning_envs/recordings/responses.json
    quarl compare-flight mine.json --plot flight.svg --sequence 2
    """
    _check(options)
    recordings = [read_recording(path) for path in options.file]
    if options.plot is not None and not 0 <= options.sequence < len(recordings[0].flights):
        last = len(recordings[0].flights) - 1
        raise SettingsError(f"--sequence is {options.sequence}; in {options.file[0]} allowed is 0 to {last}.")
    compared = [(recording, compare(recording)) for recording in recordings]
    reports = [report(*pair) for pair in compared]
    written = []
    if options.plot is not None:
        recording, squares = compared[0]
        number = options.sequence
        save_picture(velocity_picture(recording, number, squares[number]), options.plot)
        written.append(options.plot)
    if options.altitudes is not None:
        save_picture(altitude_picture(), options.altitudes)
        written.append(options.altitudes)
    if options.keep is not None:
        options.keep.write_text(json.dumps(build_keep_document(reports), indent=1) + "\n", encoding="utf-8")
        written.append(options.keep)
    if options.json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports))
        return
    texts = [table(*pair) for pair in compared] + ["\n".join(f"written: {path}" for path in written)] * bool(written)
    print("\n\n".join(texts))


def _check(arguments: Options) -> None:
    """Refuse what does not go together, before anything is flown."""
    if not arguments.file and (arguments.altitudes is None or arguments.plot or arguments.keep or arguments.json):
        raise SettingsError("there is no FILE; allowed is none only with nothing but --altitudes.", FORMAT)
    if arguments.plot is not None and len(arguments.file) != 1:
        raise SettingsError(f"there are {len(arguments.file)} files; with --plot allowed is one.")
    for option in ("plot", "altitudes"):
        path = getattr(arguments, option)
        if path is not None and path.suffix.lower() not in SUFFIXES:
            raise SettingsError(f"--{option} is {str(path)!r}; allowed are names that end in {' or '.join(SUFFIXES)}.")


main = cli.of("compare-flight")

if __name__ == "__main__":
    raise SystemExit(main())
