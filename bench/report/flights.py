"""Tables of flights: success with late commands, and of the committed policies where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from airlearning_envs.config import PRESETS
from airlearning_envs.episode.latency import CommandLatency
from bench.report.document import BASELINES, Kind, Report
from bench.report.notes import circumstances, dynamics_note, flown, gained, machine_notes, rate
from bench.report.selection import FP32, MEASURED, Selection, flown_late, paired, policy_order, precision_order
from bench.report.store import StoreError
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, joined
from policy.locate import shipped_folder

LATENCY_FLOWN, ZOO = "latency-flown", "zoo"


def latency_flown(selection: Selection, preset: str = "hard") -> tuple[Table, list[Report]]:
    """Success of each policy when commands take effect late, and the paired loss against no latency.

    Of each policy and precision the latest run that flew with latency is shown, and nothing from other runs.

    Raises:
        StoreError: none is stored.
    """
    asked = [(flown_late(report), report) for report in selection.of(Kind.SUCCESS, preset=preset)]
    runs = {(report.policy, report.precision): report.run for late, report in asked if late}  # oldest first
    if not runs:
        raise StoreError(
            "no flights with latency are stored yet.\n  next: python bench/success.py --policy I --late 50,100"
        )
    shown = [(late, r) for late, r in asked if late is not None and runs.get((r.policy, r.precision)) == r.run]
    used = [report for _, report in shown]
    as_measured = any(late == MEASURED for late, _ in shown)
    columns: dict[float | str, str] = {
        delay: f"{1000 * delay:g} ms" for delay in sorted({late for late, _ in shown if not isinstance(late, str)})
    }
    columns |= {MEASURED: "as measured"} if as_measured else {}
    rows: list[dict[str, str]] = []
    for policy, precision in sorted(runs, key=lambda key: (policy_order(key[0]), precision_order(key[1]))):
        mine = {late: report for late, report in shown if (report.policy, report.precision) == (policy, precision)}
        losses = {value: paired(mine.get(value), mine.get(0.0)) for value in columns if value != 0.0}
        label, said = {"policy": policy, "precision": precision or NOT_KNOWN}, joined(circumstances(*mine.values()))
        rows += [
            {**label, "late by": name, **dict(zip(columns.values(), cells, strict=True)), "measured": said}
            for name, cells in (
                ("% success", [rate(mine.get(value)) for value in columns]),
                ("points to 0 ms", [gained(losses.get(value)) for value in columns]),
            )
        ]
        rows.append({})
    notes = (
        *machine_notes([report for report in used if report.artifact is not None]),
        f"Preset {preset}, {flown(used)} episodes, flown on the device; 95 % intervals: Wilson, and for the "
        "difference to no latency, paired on the same episodes, Newcombe's method 10. A decision is due every "
        f"{1000 * PRESETS[preset].control_period_s:g} ms; {_trained_late(policy for policy, _ in runs)}."
        + (" As measured: each latency drawn from the device's own measured decisions." if as_measured else ""),
        dynamics_note(preset),
    )
    return Table.of(LATENCY_FLOWN, f"Latency flown, {preset}", rows, notes, left=3).said_once("measured"), used


def _trained_late(policies: Iterable[str]) -> str:
    """Which of some policies were trained with late commands, as their bundles say."""
    late = {}
    for name in dict.fromkeys(policies):
        folder = shipped_folder(name)
        said = json.loads((folder / "policy.json").read_text(encoding="utf-8")) if folder is not None else {}
        if latency := CommandLatency.from_settings(said.get("environment", {}).get("settings", {}).get("latency")):
            late[name] = f"{name} was trained with {latency}"
    return (
        f"{joined(late.values())}, the others without latency" if late else "the policies were trained without latency"
    )


def zoo_table(zoo: Path, selection: Selection) -> tuple[Table, list[Report]]:
    """Where the committed bundles come from, out of their policy.json, and how often their fp32 artifacts succeed.

    Raises:
        StoreError: there is no bundle.
    """
    rows: list[dict[str, str]] = []
    used: list[Report] = []
    flown_in_training = []

    def successes(policy: str, precision: str | None) -> dict[str, str]:
        judged = {preset: selection.best_success(policy, precision, preset) for preset in ("shipped", "hard")}
        used.extend(filter(None, judged.values()))
        return {f"% success, {preset}": rate(report) for preset, report in judged.items()}

    for folder in sorted((p.parent for p in zoo.glob("*/policy.json")), key=lambda p: policy_order(p.name)):
        spec = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
        said = spec["provenance"]
        trained = " from ".join(str(said[key]) for key in ("algorithm", "teacher") if key in said)
        arenas = said.get("settings", {}).get("task", {}).get("arenas", {})
        flown_in_training.append(
            f"{spec['name']} {joined(f'{100 * share:g} % {name}' for name, share in arenas.items())}"
        )
        figures = {"environment steps": "steps", "CPU seconds": "cpu_s", "wall seconds": "wall_s", "seed": "seed"}
        rows.append(
            {
                "policy": spec["name"],
                "hidden layers": " × ".join(str(width) for width in spec["network"]["hidden"]),
                "trained by": trained or NOT_KNOWN,
                **{name: _figure(said.get(key)) for name, key in figures.items()},
                **successes(spec["name"], FP32),
            }
        )
    if not rows:
        raise StoreError(f"{zoo} holds no bundle yet.\n  next: make train POLICY=I")
    rows += [
        {},
        *({**dict.fromkeys(rows[0], NOT_KNOWN), "policy": name, **successes(name, None)} for name in BASELINES),
    ]
    notes = (
        f"Training: from each bundle's policy.json; flown meanwhile: {'; '.join(flown_in_training)}.",
        f"Success: fp32 artifact, greedy, {flown(used)} fresh episodes, 95 % Wilson intervals; "
        "blind: fly to the goal as if nothing were in between; random: any action, each as likely.",
        *machine_notes([report for report in used if report.artifact is not None]),
        dynamics_note("hard"),
    )
    return Table.of(ZOO, "Where the policies come from", rows, notes, left=3), used


def _figure(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else NOT_KNOWN
