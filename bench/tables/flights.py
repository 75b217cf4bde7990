"""Tables of flights: success with late commands, and of the committed policies where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.episode.latency import CommandLatency
from quarl.bench.report.document import BASELINES, Kind, Report
from quarl.bench.report.notes import circumstances, facts_of, gained, rate, standing_on
from quarl.bench.report.pivot import Pivot
from quarl.bench.report.selection import FP32, MEASURED, Selection, flown_late, policy_order, precision_order
from quarl.bench.report.tables import Table
from quarl.bench.report.text import NOT_KNOWN, joined
from quarl.policy.locate import shipped_folder

LATENCY_FLOWN, ZOO = "latency-flown", "zoo"
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
Success: fp32 artifact, greedy, {{ episodes }} fresh episodes, 95 % Wilson intervals; blind: fly to the goal as if \
nothing were in between; random: any action, each as likely.
{{ machines }}
{{ dynamics }}
"""


def late_rows(selection: Selection, preset: str) -> Iterator[dict[str, Any]]:
    """A row for each policy, precision and latency: success, and the paired loss against no latency.

    Of each policy and precision the latest run that flew with latency is shown, and nothing from other runs.
    """
    flights = [(flown_late(report), report) for report in selection.of(Kind.SUCCESS, preset=preset)]
    runs = {(report.policy, report.precision): report.run for late, report in flights if late}  # oldest first
    shown = [(late, r) for late, r in flights if late is not None and runs.get((r.policy, r.precision)) == r.run]
    columns: dict[float | str, str] = {
        late: f"{1000 * late:g} ms" for late in sorted({late for late, _ in shown if not isinstance(late, str)})
    }
    columns |= {MEASURED: "as measured"} if MEASURED in dict(shown) else {}
    for policy, precision in sorted(runs, key=lambda key: (policy_order(key[0]), precision_order(key[1]))):
        mine = {late: report for late, report in shown if (report.policy, report.precision) == (policy, precision)}
        for late, header in columns.items():
            yield {
                "reports": [report for _, report in shown],
                "preset": preset,
                "policy": policy,
                "precision": precision or NOT_KNOWN,
                "header": header,
                "success": rate(mine.get(late)),
                "loss": gained(mine.get(late), mine.get(0.0)) if late != 0.0 else None,
                "measured": joined(circumstances(*mine.values())),
            }


def trained_late(policies: Iterable[str]) -> Iterator[str]:
    """Which of some policies were trained with late commands, as their bundles say."""
    for name in dict.fromkeys(policies):
        folder = shipped_folder(name)
        spec = json.loads((folder / "policy.json").read_text(encoding="utf-8")) if folder is not None else {}
        if latency := CommandLatency.from_settings(spec.get("environment", {}).get("settings", {}).get("latency")):
            yield f"{name} was trained with {latency}"


FLOWN_LATE = Pivot(
    name=LATENCY_FLOWN,
    words=LATE,
    lead={"policy": "{{ policy }}", "precision": "{{ precision }}", "late by": "{{ what }}"},
    columns=[
        {"{{ header }}": "{{ loss | percent('+') if what == 'points to 0 ms' else success | percent }}"},
        {"measured": "{{ measured }}"},
    ],
    rows=lambda rows: [{**row, "what": what} for row in rows for what in ("% success", "points to 0 ms")],
    facts=lambda rows: {
        **facts_of(rows),
        "period_ms": 1000 * PRESETS[rows[0]["preset"]].control_period_s,
        "trained_late": list(trained_late(row["policy"] for row in rows)),
    },
    ruled="{{ policy }} {{ precision }}",
    titled=("measured",),
)


def latency_flown(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Success of each policy when commands take effect late, and the paired loss against no latency.

    Raises:
        StoreError: none is stored.
    """
    missing = "no flights with latency are stored yet.\n  next: quarl bench success --policy I --late 50,100"
    return standing_on(FLOWN_LATE, late_rows(selection, preset), missing)


def origins(zoo: Path, selection: Selection) -> Iterator[dict[str, Any]]:
    """A row for each bundle, from its policy.json, and one for each baseline, with what their flights reached."""

    def flights(policy: str, precision: str | None) -> dict[str, Any]:
        found = {preset: selection.best_success(policy, precision, preset) for preset in ("shipped", "hard")}
        rates = {preset: rate(report) for preset, report in found.items()}
        return {"policy": policy, "preset": "hard", "reports": list(found.values()), **rates}

    folders = sorted((path.parent for path in zoo.glob("*/policy.json")), key=lambda path: policy_order(path.name))
    for folder in folders:
        spec = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        origin = spec["provenance"]
        arenas = origin.get("settings", {}).get("task", {}).get("arenas", {})
        yield {**flights(spec["name"], FP32), "hidden": spec["network"]["hidden"], "origin": origin, "arenas": arenas}
    for name in BASELINES if folders else ():
        yield {**flights(name, None), "hidden": None, "origin": {}}


FIGURES = {"environment steps": "steps", "CPU seconds": "cpu_s", "wall seconds": "wall_s", "seed": "seed"}
ORIGIN = Pivot(
    name=ZOO,
    words=ORIGINS,
    lead={
        "policy": "{{ policy }}",
        "hidden layers": "{{ hidden | join(' × ') if hidden else '–' }}",
        "trained by": "{{ [origin.algorithm, origin.teacher] | select('defined') | join(' from ') or '–' }}",
    },
    columns=[
        {header: f"{{{{ origin.get('{name}') | fixed }}}}" for header, name in FIGURES.items()},
        {f"% success, {preset}": f"{{{{ {preset} | percent }}}}" for preset in ("shipped", "hard")},
    ],
    rows=list,
    facts=facts_of,
    ruled="{{ hidden is none }}",
    gathered=False,
)


def zoo_table(zoo: Path, selection: Selection) -> tuple[Table, list[Report]]:
    """Where the committed bundles come from, out of their policy.json, and how often their fp32 artifacts succeed.

    Raises:
        StoreError: there is no bundle.
    """
    return standing_on(
        ORIGIN, origins(zoo, selection), f"{zoo} holds no bundle yet.\n  next: quarl train --task navigation --policy I"
    )
