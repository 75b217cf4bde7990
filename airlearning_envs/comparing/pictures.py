"""Pictures of recorded and simulated flights; the same bytes for the same flight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quarl.airlearning_envs.comparing.following import RECORDED_RISES, VX, VY, Squares, follow, rise_times
from quarl.airlearning_envs.comparing.recording import Flown, Recording, config_at
from quarl.airlearning_envs.errors import SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

SUFFIXES = (".svg", ".png")
ALTITUDES_M = np.arange(1.0, 12.01, 0.5)
_BLUE, _VERMILLION, _GREY = "#0072B2", "#D55E00", "#8c8c8c"  # of Okabe and Ito's, which colour-blind eyes tell apart


def check_suffix(option: str, path: Path) -> None:
    """Whether a picture can have this name.

    Raises:
        SettingsError: it cannot.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"{option} is {str(path)!r}; allowed are names that end in {' or '.join(SUFFIXES)}.")


def velocity_picture(recording: Recording, number: int, squares: Squares) -> Figure:
    """Commanded, recorded and simulated velocity of one flight over time, x above y, in the world frame."""
    from matplotlib.figure import Figure

    flown = recording.flights[number]
    steps_s, states = follow([flown], recording.config(), recording.world)
    commanded, end = _commanded(recording, flown), flown.times_s[-1]
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for row, (axes, letter) in enumerate(zip(panels, "xy", strict=True)):
        steps = np.append(commanded[row], commanded[row, -1:])
        times = np.append(flown.command_times_s, max(end, flown.command_times_s[-1]))
        axes.step(times, _round(steps), where="post", color=_GREY, linewidth=0.9, label="commanded")
        axes.plot(flown.times_s, _round(flown.velocity[row]), color=_BLUE, linewidth=1.8, label="recorded")
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
        f"{recording.name}, sequence {number} ({flown.kind}), {recording.altitude_m:g} m high: RMSE {error:.3f} m/s",
        fontsize=11,
    )
    return figure


def _commanded(recording: Recording, flown: Flown) -> NDArray[np.float64]:
    """(2, C) m/s, world frame; commands in the body's are turned by the recorded yaw at the call."""
    x, y = flown.commands[:2]
    if recording.world:
        return np.stack([x, y])
    yaw = np.interp(flown.command_times_s, flown.times_s, flown.yaw)
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
    """Write a .svg or .png, under a temporary name first so that no half picture is left behind."""
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    draft = path.with_name(f".{path.stem}.part{suffix}")
    try:
        with matplotlib.rc_context({"svg.hashsalt": "flight"}):
            metadata = {"Date": None} if suffix == ".svg" else {"Software": ""}
            figure.savefig(draft, facecolor="white", dpi=160, metadata=metadata)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
