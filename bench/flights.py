"""Tables of flights: late commands, another simulator, the dynamics beside AirSim's, where the policies come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.latency import CommandLatency
from quarl.bench.report.document import BASELINES, Kind, Report
from quarl.bench.report.intervals import independent_difference
from quarl.bench.report.notes import (
    circumstances,
    facts_of,
    machine_notes,
    rate,
    reports_of,
    require_rows,
    success_gain,
)
from quarl.bench.report.selection import FP32, MEASURED, Selection, latency_of_flights, policy_order, precision_order
from quarl.bench.report.text import NOT_KNOWN, figure_words, format_fixed, join_distinct, percent
from quarl.bench.tables import Table, group_by, tabulate
from quarl.policy.locate import find_shipped
from quarl.policy.places import ZOO as ZOO_FOLDER
from quarl.train.intervals import Estimate

LATENCY_FLOWN, ZOO, AIRSIM_FLIGHTS = "latency-flown", "zoo", "airsim-flights"
FIGURES = {"environment steps": "steps", "CPU seconds": "cpu_s", "wall seconds": "wall_s", "seed": "seed"}
METHODS = {
    "ppo": "PPO",
    "recurrent_ppo": "recurrent PPO",
    "a2c": "A2C",
    "dqn": "DQN",
    "ddpg": "DDPG",
    "d4pg": "D4PG",
    "td3": "TD3",
    "sac": "SAC",
}
LATE = """\
Latency flown, {{ preset }}
{{ machines }}
Preset {{ preset }}, {{ episodes }} episodes, flown on the device; 95 % intervals: Wilson, and for the difference to \
no latency, paired on the same episodes, Newcombe's method 10. A decision is due every {{ "%g" | format(period_ms) }} \
ms; {{ trained_late | joined ~ ", the others without latency" if trained_late else "the policies were trained without \
latency" }}.{% if "as measured" in rows | map(attribute="header") %} As measured: each latency drawn from the device's \
own measured decisions.{% endif %}

{{ dynamics }}
"""
ORIGINS = """\
Where the policies come from
Training: from each bundle's policy.json; flown meanwhile: {% for row in rows if row.hidden %}{{ row.policy }} \
{% for name, share in row.arenas.items() %}{{ "%g" | format(100 * share) }} % {{ name }}{{ ", " if not loop.last }}\
{% else %}–{% endfor %}{{ "; " if not loop.last }}{% endfor %}.
Success: fp32 artifact, greedy, {{ episodes }} fresh episodes, 95 % Wilson intervals; blind: a baseline that \
ignores obstacles and flies to the goal; random: uniformly random actions.
{{ machines }}
{{ dynamics }}
"""
TRAINED = """\
Trained by {{ title }}
From each bundle's policy.json. CPU seconds: of the training process with its evaluations, on the machine that trained \
the policy. Returns in fp32, fp16 and int8: docs/benchmark.md; of I and II: docs/case-study.md; of policies with \
memory: docs/algorithms/memory.md.
"""
NO_OTHER_SIMULATOR = """\
no flights in another simulator are stored yet, or none without --simulator beside them.
  next: quarl bench success --policy I --on host --simulator airsim --episodes 200"""
AIRSIM = """\
The same {{ first.episodes }} layouts in the embedded simulator and over AirSim's RPC, {{ preset }}
{{ machines }}
{{ episodes }} episodes of preset {{ preset }}, seed {{ first.seed }}, greedy, by the policies' numpy \
reference. Intervals of 95 %: Wilson; of the difference, as of independent flights, Newcombe's. Ended alike: episodes \
that reached the goal in both, or in neither.
{{ dynamics }}
"""
DYNAMICS, RISES = "flight-dynamics", "flight-rises"
COMPARE = "quarl compare-flight tests/airlearning_envs/recordings/*.json --keep results/flight-dynamics.json"
ERRORS = {
    "velocity m/s": "velocity_rmse_m_s",
    "position m": "position_rmse_m",
    "yaw rate rad/s": "yaw_rate_rmse_rad_s",
}
RECORDED = """\
How far the drones are from the recorded ones
Root mean square error per component over all recorded states. Before: the simulator of commit \
{{ before.commit }}. Drag {{ "%g" | format(settings.drag_per_m) }} /m, integration steps of \
{{ "%g" | format(1e3 * settings.control_period_s / settings.substeps) }} ms.
"""
UNTIL = """\
Until 63 and 90 % of the commanded speed are flown
Of {{ "%g" | format(now.speed_m_s) }} m/s forward, from rest. Before: commit {{ before.commit }}, at \
any altitude.
"""


def late_rows(selection: Selection, preset: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each policy, precision and latency: success, and the paired loss against no latency.

    Of each policy and precision the latest run that flew with latency is shown, and nothing from other runs.
    """
    flights = [(latency_of_flights(report), report) for report in selection.of(Kind.SUCCESS, preset=preset)]
    runs = {(report.policy, report.precision): report.run for late, report in flights if late}  # oldest first
    late_flights = [(late, r) for late, r in flights if late is not None and runs.get((r.policy, r.precision)) == r.run]
    columns: dict[float | str, str] = {
        late: f"{1000 * late:g} ms" for late in sorted({late for late, _ in late_flights if not isinstance(late, str)})
    }
    columns |= {MEASURED: "as measured"} if MEASURED in dict(late_flights) else {}
    for policy, precision in sorted(runs, key=lambda key: (policy_order(key[0]), precision_order(key[1]))):
        mine = {
            late: report for late, report in late_flights if (report.policy, report.precision) == (policy, precision)
        }
        for late, header in columns.items():
            yield {
                "reports": [report for _, report in late_flights],
                "preset": preset,
                "policy": policy,
                "precision": precision or NOT_KNOWN,
                "header": header,
                "success": rate(mine.get(late)),
                "loss": success_gain(mine.get(late), mine.get(0.0)) if late != 0.0 else None,
                "measured": join_distinct(circumstances(*mine.values())),
            }


def describe_trained_latency(policies: Iterable[str]) -> Iterator[str]:
    """Which of some policies were trained with late commands, as their bundles say."""
    for name in dict.fromkeys(policies):
        folder = find_shipped(name)
        spec = json.loads((folder / "policy.json").read_text(encoding="utf-8")) if folder is not None else {}
        if latency := CommandLatency.from_settings(spec.get("environment", {}).get("settings", {}).get("latency")):
            yield f"{name} was trained with {latency}"


def latency_flown(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Success of each policy when commands take effect late, and the paired loss against no latency.

    Raises:
        StoreError: none is stored.
    """
    missing = "no flights with latency are stored yet.\n  next: quarl bench success --policy I --late 50,100"
    rows = require_rows(late_rows(selection, preset), missing)
    lines = []
    for (policy, precision), of in group_by(rows, lambda row: (row["policy"], row["precision"])).items():
        cells_by_measure = {
            "% success": {row["header"]: percent(row["success"]) for row in of},
            "points to 0 ms": {row["header"]: percent(row["loss"], "+") for row in of},
        }
        for measure, cells in cells_by_measure.items():
            lead = {"policy": policy, "precision": precision, "late by": measure}
            lines.append({**lead, **cells, "measured": of[0]["measured"]})
    table = tabulate(
        LATENCY_FLOWN,
        LATE,
        lines,
        left=3,
        rules=("policy", "precision"),
        titled=("measured",),
        rows=rows,
        period_ms=1000 * PRESETS[preset].control_period_s,
        trained_late=list(describe_trained_latency(row["policy"] for row in rows)),
        **facts_of(rows),
    )
    return table, reports_of(rows)


def origins(zoo: Path, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield a row for each bundle, from its policy.json, and one for each baseline, with what their flights reached."""

    def flights(policy: str, precision: str | None) -> dict[str, Any]:
        reports = {preset: selection.best_success(policy, precision, preset) for preset in ("shipped", "hard")}
        rates = {preset: rate(report) for preset, report in reports.items()}
        return {"policy": policy, "preset": "hard", "reports": list(reports.values()), **rates}

    folders = sorted((path.parent for path in zoo.glob("*/policy.json")), key=lambda path: policy_order(path.name))
    for folder in folders:
        spec = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        origin = spec["provenance"]
        arenas = origin.get("settings", {}).get("task", {}).get("arenas", {})
        yield {**flights(spec["name"], FP32), "hidden": spec["network"]["hidden"], "origin": origin, "arenas": arenas}
    for name in BASELINES if folders else ():
        yield {**flights(name, None), "hidden": None, "origin": {}}


def zoo_table(zoo: Path, selection: Selection) -> tuple[Table, list[Report]]:
    """Return where the committed bundles come from, out of their policy.json, and how often their fp32 artifacts
    succeed.

    Raises:
        StoreError: there is no bundle.
    """
    missing = f"{zoo} holds no bundle yet.\n  next: quarl train --task navigation --policy I"
    rows = require_rows(origins(zoo, selection), missing)
    bundles = [_origin_line(row) for row in rows if row["hidden"]]
    lines = [*bundles, {}, *map(_origin_line, rows[len(bundles) :])]
    return tabulate(ZOO, ORIGINS, lines, left=3, rows=rows, **facts_of(rows)), reports_of(rows)


def _origin_line(row: Mapping[str, Any]) -> dict[str, str]:
    origin = row["origin"]
    return {
        "policy": row["policy"],
        "hidden layers": " × ".join(map(str, row["hidden"] or ())),
        "trained by": " from ".join(origin[name] for name in ("algorithm", "teacher") if name in origin),
        **{header: format_fixed(origin.get(name)) for header, name in FIGURES.items()},
        **{f"% success, {preset}": percent(row[preset]) for preset in ("shipped", "hard")},
    }


# --- the policies that an algorithm trained ---------------------------------------------------------------------------


def tabulate_trained_bundles(method: str, zoo: Path = ZOO_FOLDER) -> Table:
    """Return every committed bundle that this algorithm trained.

    Raises:
        StoreError: there is none.
    """
    specs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(zoo.glob("**/policy.json"))]
    mine = [spec for spec in specs if spec["provenance"].get("algorithm") == method]
    missing = f"{zoo} holds no policy that {METHODS[method]} trained."
    lines = []
    for spec in require_rows(sorted(mine, key=lambda each: policy_order(each["name"])), missing):
        network, origin = spec["network"], spec["provenance"]
        recurrences = [f"{entry['cell']} {entry['units']}" for entry in network.get("recurrences", [])]
        lines.append(
            {
                "policy": spec["name"],
                "task": spec["environment"]["id"],
                "hidden layers": " × ".join([*map(str, network["hidden"]), *recurrences]),
                "ended": origin.get("ended", ""),
                "environment steps": figure_words(origin.get("steps")),
                "CPU seconds": figure_words(origin.get("cpu_s")),
                "seed": figure_words(origin.get("seed")),
            }
        )
    return tabulate(f"trained-{method}", TRAINED, lines, left=4, title=METHODS[method])


# --- the same episodes in another simulator ---------------------------------------------------------------------------


def pairs_of(reports: Iterable[Report], preset: str) -> list[tuple[Report, Report]]:
    """Return the latest flights in the embedded simulator and those of the same episodes in another one."""
    latest: dict[tuple[Any, ...], Report] = {}
    for report in sorted(reports, key=lambda each: each.time):
        if report.success is not None and report.success.preset == preset:
            success = report.success
            episodes = (success.task, success.seed, success.episodes, str(success.settings))
            latest[report.policy, report.precision, episodes, success.where, success.simulator] = report
    pairs = []
    for (*same, simulator), report in latest.items():
        embedded = latest.get((*same, None))
        if simulator is not None and embedded is not None:
            pairs.append((embedded, report))
    return sorted(pairs, key=lambda pair: (policy_order(pair[1].policy), precision_order(pair[1].precision)))


def airsim_flights(reports: Iterable[Report], preset: str = "hard") -> tuple[Table, list[Report]]:
    """Return each policy's flights in another simulator, and the latest embedded ones of the same episodes above them.

    Raises:
        StoreError: none is stored.
    """
    pairs = require_rows(pairs_of(reports, preset), NO_OTHER_SIMULATOR)
    rows: list[dict[str, Any]] = [{"reports": pair, "preset": preset} for pair in pairs]
    lines: dict[str, dict[str, str]] = {}
    for embedded, other in pairs:
        lines |= {f"before {embedded.id}": {}} if lines and embedded.id not in lines else {}
        lines.setdefault(embedded.id, _simulator_line(embedded, embedded))
        lines[other.id] = _simulator_line(other, embedded)
    facts = {**facts_of(rows), "machines": "\n".join(machine_notes(reports_of(rows))), "first": pairs[0][0].success}
    return tabulate(AIRSIM_FLIGHTS, AIRSIM, lines.values(), left=3, **facts), reports_of(rows)


def _simulator_line(report: Report, embedded: Report) -> dict[str, str]:
    """Cells of a report's flights, compared with the embedded ones where it is another."""
    mine, embedded_success = report.success, embedded.success
    assert mine is not None and embedded_success is not None
    difference, ended_alike = None, ""
    if report is not embedded:
        difference = Estimate(
            *independent_difference(
                mine.successes, mine.episodes, embedded_success.successes, embedded_success.episodes
            )
        )
        ended_alike = (
            f"{sum(a == b for a, b in zip(mine.bits(), embedded_success.bits(), strict=True))} of {mine.episodes}"
        )
    return {
        "policy": report.policy,
        "precision": report.precision or "",
        "simulator": mine.simulator or "embedded",
        "% success": percent(rate(report)),
        "points to embedded": percent(difference, "+"),
        "ended alike": ended_alike,
        **{f"ended by {cause.replace('_', ' ')}": str(episodes) for cause, episodes in mine.causes.items()},
        "flight s": format_fixed(mine.flight_time_s, 2),
    }


# --- how the drones follow commands, beside AirSim's: what compare_flight --keep stored ------------------------------


def dynamics_tables(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Table]:
    """Errors against recorded flights, and the rise of the speed, of the simulator now and of an earlier one."""
    earlier = {measurement["file"]: measurement for measurement in before["recordings"]}
    recordings = []
    for measurement in sorted(now["recordings"], key=lambda recording: recording["altitude_m"]):
        line = {
            "recording": measurement["file"],
            "altitude": f"{measurement['altitude_m']:g} m",
            "states": f"{measurement['states']:,}",
        }
        for name, key in ERRORS.items():
            line[f"{name}, before"] = format_fixed(earlier.get(measurement["file"], {}).get(key), 3)
            line[f"{name}, now"] = format_fixed(measurement[key], 3)
        recordings.append(line)
    rises = []
    for measurement in now["rises"]:
        line = {"altitude": f"{measurement['altitude_m']:g} m"}
        for n, share in enumerate((63, 90)):
            of = {"recorded": measurement["recorded_s"], "before": before["rise_s"], "now": measurement["simulated_s"]}
            seconds = {name: times[n] for name, times in of.items()}
            line |= {f"{share} %, {name}": "" if s is None else f"{s:.2f} s" for name, s in seconds.items()}
        rises.append(line)
    settings, facts = now["recordings"][0]["settings"], dict[str, Any](now=now, before=before)
    return {
        DYNAMICS: tabulate(DYNAMICS, RECORDED, recordings, settings=settings, **facts),
        RISES: tabulate(RISES, UNTIL, rises, **facts),
    }
