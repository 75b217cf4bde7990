"""Tables of how the simulator's drones follow commands, beside AirSim's: what compare_flight --keep stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report import store
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN

DYNAMICS, RISES = "flight-dynamics", "flight-rises"
COMMAND = (
    "python -m airlearning_envs.compare_flight tests/airlearning_envs/recordings/*.json "
    "--keep results/flight-dynamics.json"
)
MEASURES = {
    "velocity m/s": "velocity_rmse_m_s",
    "position m": "position_rmse_m",
    "yaw rate rad/s": "yaw_rate_rmse_rad_s",
}


def errors() -> Table:
    """Root mean square errors of each recording, before and now.

    Raises:
        StoreError: nothing is stored.
    """
    now, before = _stored()
    earlier = {each["file"]: each for each in before["recordings"]}
    rows = []
    for each in sorted(now["recordings"], key=lambda found: found["altitude_m"]):
        row = [each["file"], f"{each['altitude_m']:g} m", f"{each['states']:,}"]
        for key in MEASURES.values():
            row += [f"{earlier[each['file']][key]:.3f}" if each["file"] in earlier else NOT_KNOWN, f"{each[key]:.3f}"]
        rows.append(tuple(row))
    headers = [header for name in MEASURES for header in (f"{name}, before", "now")]
    settings = now["recordings"][0]["settings"]
    period_ms = 1e3 * settings["control_period_s"] / settings["substeps"]
    notes = (
        f"Root mean square error per component over all recorded states. Before: the simulator of commit "
        f"{before['commit']}. Drag {settings['drag_per_m']:g} /m, integration steps of {period_ms:g} ms.",
    )
    title = "How far the drones are from the recorded ones"
    return Table(DYNAMICS, title, ("recording", "altitude", "states", *headers), tuple(rows), notes)


def rises() -> Table:
    """t63 and t90 at each altitude: recorded, before, now.

    Raises:
        StoreError: nothing is stored.
    """
    now, before = _stored()
    rows = []
    for each in now["rises"]:
        row = [f"{each['altitude_m']:g} m"]
        for number in (0, 1):
            times = each["recorded_s"][number], before["rise_s"][number], each["simulated_s"][number]
            row += [NOT_KNOWN if time is None else f"{time:.2f} s" for time in times]
        rows.append(tuple(row))
    headers = ("altitude", "63 %, recorded", "before", "now", "90 %, recorded", "before", "now")
    note = f"Of {now['speed_m_s']:g} m/s forward, from rest. Before: commit {before['commit']}, at any altitude."
    return Table(RISES, "Until 63 and 90 % of the commanded speed are flown", headers, tuple(rows), (note,))


def _stored() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What is measured now, and what was measured of the simulator before."""
    earlier = store.answer_file("flight-dynamics-before")
    return store.kept_answer(store.answer_file(DYNAMICS), COMMAND), store.kept_answer(earlier, "git checkout results")
