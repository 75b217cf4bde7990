"""Tables of how the simulator's drones follow commands, beside AirSim's: what compare_flight --keep stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from quarl.bench.report.pivot import Pivot

DYNAMICS, RISES = "flight-dynamics", "flight-rises"
COMMAND = "quarl compare-flight tests/airlearning_envs/recordings/*.json --keep results/flight-dynamics.json"
MEASURES = {
    "velocity m/s": "velocity_rmse_m_s",
    "position m": "position_rmse_m",
    "yaw rate rad/s": "yaw_rate_rmse_rad_s",
}
ERRORS = """\
How far the drones are from the recorded ones
{% set settings = results.now.recordings[0].settings %}
Root mean square error per component over all recorded states. Before: the simulator of commit \
{{ results.before.commit }}. Drag {{ "%g" | format(settings.drag_per_m) }} /m, integration steps of \
{{ "%g" | format(1e3 * settings.control_period_s / settings.substeps) }} ms.
"""
UNTIL = """\
Until 63 and 90 % of the commanded speed are flown
Of {{ "%g" | format(results.now.speed_m_s) }} m/s forward, from rest. Before: commit {{ results.before.commit }}, at \
any altitude.
"""
SECONDS = "{{ '%%.2f s' | format(%s[%d]) if %s[%d] is not none }}"


def recordings(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each recording, from the lowest altitude to the highest, with its errors before; None where new."""
    earlier = {each["file"]: each for each in found["before"]["recordings"]}
    for each in sorted(found["now"]["recordings"], key=lambda recording: recording["altitude_m"]):
        yield {**each, "before": earlier.get(each["file"])}


OF_RECORDINGS = Pivot(
    name=DYNAMICS,
    words=ERRORS,
    lead={"recording": "{{ file }}"},
    columns=[
        {"altitude": "{{ '%g' | format(altitude_m) }} m", "states": "{{ states | thousands }}"},
        *(
            {f"{name}, before": f"{{{{ before.{key} | fixed(3) if before }}}}", "now": f"{{{{ {key} | fixed(3) }}}}"}
            for name, key in MEASURES.items()
        ),
    ],
    rows=recordings,
    gathered=False,
)
OF_RISES = Pivot(
    name=RISES,
    words=UNTIL,
    lead={"altitude": "{{ '%g' | format(altitude_m) }} m"},
    columns=[
        {
            f"{share} %, recorded": SECONDS % (("recorded_s", n) * 2),
            "before": SECONDS % (("before_s", n) * 2),
            "now": SECONDS % (("simulated_s", n) * 2),
        }
        for n, share in enumerate((63, 90))
    ],
    rows=lambda found: [{**each, "before_s": found["before"]["rise_s"]} for each in found["now"]["rises"]],
    gathered=False,
)


def documents(answer: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
    """What is measured now, and what was measured of the simulator before.

    Args:
        answer: (name, command) → the answer that the command kept.

    Raises:
        StoreError: nothing is stored.
    """
    return {"now": answer(DYNAMICS, COMMAND), "before": answer(f"{DYNAMICS}-before", "git checkout results")}
