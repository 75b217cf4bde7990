"""Fly recorded commands in the embedded simulator and print how far its drones are from the recorded ones.

quarl compare-flight tests/airlearning_envs/recordings/responses.json
quarl compare-flight mine.json --json
quarl compare-flight mine.json --plot flight.svg --sequence 2

The drones fly at the recording's altitude with the task's default dynamics and integration steps. Errors are root mean
squares per component over all recorded states: velocity and position of x and y in the world frame, yaw rate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.airlearning_envs import comparing
from quarl.airlearning_envs.comparing import (
    FORMAT,
    RECORDED_RISES,
    Recording,
    Squares,
    compare,
    config_at,
    read_recording,
    rise_times,
)
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError

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
    """What ``--json`` prints of a recording."""
    return {
        "file": recording.name,
        "altitude_m": recording.altitude_m,
        **_round_errors(Squares.total(squares)),
        "states": sum(flight_squares.rows for flight_squares in squares),
        "settings": settings(recording.config()),
        "sequences": [
            {"kind": flown.kind, **_round_errors(flight_squares)}
            for flown, flight_squares in zip(recording.flights, squares, strict=True)
        ],
    }


def settings(config: NavigationConfig) -> dict[str, float]:
    """The dynamics' settings."""
    return {name: getattr(config, name) for name in DYNAMICS}


def _round_errors(squares: Squares) -> dict[str, float]:
    return {name: round(value, 4) for name, value in squares.root_mean().items()}


def table(recording: Recording, squares: Sequence[Squares]) -> str:
    """Lines for the terminal: errors by kind of flight, and of all."""
    count, rows = len(squares), sum(flight_squares.rows for flight_squares in squares)
    flights = f"{count} flight{'s' * (count > 1)}"
    lines = [f"{recording.name}: {flights}, {recording.altitude_m:g} m high, {rows:,} states; root mean square errors"]
    kinds = [flown.kind for flown in recording.flights]
    width = max(map(len, (*kinds, "flights")))
    lines.append(f"{'flights':<{width}} {'':>4}" + "".join(f"  {name:>14}" for name in COLUMNS))
    for kind in (*dict.fromkeys(kinds), None):
        own = [flight_squares for flight_squares, its in zip(squares, kinds, strict=True) if kind in (its, None)]
        errors = Squares.total(own).root_mean()
        name = "all" if kind is None else kind
        lines.append(f"{name:<{width}} {len(own):>4}" + "".join(f"  {errors[key]:>14.4f}" for key in COLUMNS.values()))
    return "\n".join(lines)


def build_keep_document(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What ``--keep`` stores: the reports, and the rise times beside the recorded ones."""
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
        comparing.save_picture(comparing.velocity_picture(recording, number, squares[number]), options.plot)
        written.append(options.plot)
    if options.altitudes is not None:
        comparing.save_picture(comparing.altitude_picture(), options.altitudes)
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
        if (path := getattr(arguments, option)) is not None:
            comparing.check_suffix(f"--{option}", path)


main = cli.of("compare-flight")

if __name__ == "__main__":
    raise SystemExit(main())
