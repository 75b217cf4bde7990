"""What the study ``sweep`` says and draws of its rows; see bench/study/sweep.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measuring.execution import execution_of
from bench.report.figures import Line, Panel, facets
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, filled, lost
from bench.study.experiment import ERROR, LOST, RETURN, SUCCESS, Results
from policy.quantization import FLOAT_BITS, Scheme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bench.report.intervals import Estimate

    Row = Mapping[str, Any]

FP16, FLOAT = Scheme.FP16.value, "float"
SHOWN, NARROW = (2, 3, 4, 6, 8), tuple(range(2, 9))
STYLED = ("quarl", "quarl, weights only", "quarl-released", "symmetric", FP16)
"""Of each scheme by name: place in :data:`bench.report.figures.STYLES`."""
NOTICEABLE = 1.0  # percent of |fp32|: pictures end where nothing wider loses more

NOTES = """\
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); \
negative: better than fp32; 0: less than 0.005 % in all three numbers; without brackets: all episodes are equal.
Episodes of each: {{ episodes | join(", ") }}. Simulated in float; how a device executes each width is said by \
`python -m bench.study sweep POLICY`. {{ unknown }}: not measured.
{{ measured }}
"""
DETAILS = """\
Means over {{ episodes }} greedy episodes, the same at every width, with 95 % intervals; differences are paired. \
Error: (fp32 − quantized) / |fp32|. Other action: share of the bundle's golden observations on which it is not fp32's.
{% for words, which in executions.items() %}
{{ which | join("; ") }} bits: {{ words }}.
{% endfor %}
{{ measured }}
"""


# --- tables -----------------------------------------------------------------------------------------------------------


def name_of(row: Row) -> str:
    """A scheme with what else was asked for: ``quarl, weights only``, ``symmetric, activations of 4 bits``."""
    given = {factor: row.get(factor) for factor in ("activations", "observation")}
    said = (f"{factor} of {bits} bits" for factor, bits in given.items() if bits not in (None, FLOAT))
    return ", ".join([row["scheme"], *(["weights only"] if FLOAT in given.values() else []), *said])


def rows_of(results: Results, subjects: Sequence[str]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """By subject and preset, and then by scheme: rows from few bits to many; those without fp32 are left out."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in results.summary.to_dict("records"):
        if row["subject"] in subjects:
            name = name_of(row) if row["scheme"] else "fp32"
            found.setdefault((row["subject"], row["preset"]), {}).setdefault(name, []).append(row)
    return {place: schemes for place, schemes in found.items() if "fp32" in schemes}


def subjects_of(results: Results, task: str | None = None) -> list[str]:
    """All that were measured, in order; those of one task."""
    found = (record["subject"] for record in results.found if task in (None, record["measures"]["task"]))
    return list(dict.fromkeys(found))


def tables(results: Results) -> list[Table]:
    """Of one policy every width, a table for each preset; of several the widths that decide."""
    subjects = subjects_of(results)
    return details(results, subjects[0]) if len(subjects) == 1 else [overview(results)]


def overview(results: Results) -> Table:
    """Relative error at the widths that decide, a row for each policy, scheme and preset."""
    rows: list[tuple[str, ...]] = []
    counts = []
    previous = ""
    for (subject, preset), schemes in rows_of(results, subjects_of(results)).items():
        if previous not in ("", subject):
            rows.append(())
        previous = subject
        counts.append(f"{schemes['fp32'][0]['episodes']:,}")
        for name, found in schemes.items():
            if name not in ("fp32", FP16):
                errors = {row["bits"]: lost(row[ERROR]) for row in found}
                rows.append((subject, name, preset or NOT_KNOWN, *(errors.get(bits, NOT_KNOWN) for bits in SHOWN)))
    notes = filled(NOTES, episodes=dict.fromkeys(counts), unknown=NOT_KNOWN, measured=results.measured)
    headers = ("policy", "scheme", "preset", *(f"{bits} bits" for bits in SHOWN))
    return Table(
        "sweep", "Relative error of the return, %, by bits of the weights", headers, tuple(rows), notes, left=3
    )


def details(results: Results, subject: str) -> list[Table]:
    """Every width of a policy, a table for each preset; how it executes stands in the last one's notes."""
    made = []
    for (_, preset), schemes in rows_of(results, [subject]).items():
        first = schemes["fp32"][0]
        has_success = first[SUCCESS] is not None
        rows: list[tuple[str, ...]] = []
        for name, found in schemes.items():
            rows += [(name if index == 0 else "", *_cells(row, has_success)) for index, row in enumerate(found)]
            rows.append(())
        headers = ("scheme", "bits", "activations", "observation", *(["success, %"] if has_success else []))
        headers += ("return", "minus fp32", "error, %", "other action, %")
        title = ", ".join(filter(None, (f"{Path(subject).name} on {first['task']}", preset)))
        episodes = f"{first['episodes']:,}"
        notes = filled(DETAILS, episodes=episodes, executions=executions(schemes), measured=results.measured)
        made.append(Table("sweep-details", title, headers, tuple(rows), notes))
    return made


def _cells(row: Row, has_success: bool) -> tuple[str, ...]:
    narrowed = (FLOAT if row.get(name) is None else str(row[name]) for name in ("activation_bits", "observation_bits"))
    success = (estimate(row[SUCCESS], 100.0),) if has_success else ()
    if row["scheme"] is None:
        return (str(FLOAT_BITS), *narrowed, *success, estimate(row[RETURN]), *[NOT_KNOWN] * 3)
    differences = estimate(row[LOST], sign="+"), estimate(row[ERROR], sign="+"), f"{100 * row['other action']:.1f}"
    return (str(row["bits"]), *narrowed, *success, estimate(row[RETURN]), *differences)


def papers_error(results: Results, subject: str, bits: int) -> Estimate | None:
    """A policy's relative error by the paper's quantizer on its weights alone, on the preset that it was trained on."""
    for schemes in rows_of(results, [subject]).values():
        return next((row[ERROR] for row in schemes.get("quarl, weights only", ()) if row["bits"] == bits), None)
    return None


def executions(schemes: Mapping[str, Sequence[Row]]) -> dict[str, list[str]]:
    """How a device executes the widths, in words, and which ones: ``symmetric at 2``."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, rows in schemes.items():
        for row in rows if name != "fp32" else ():
            trained = row.get("trained_bits") == row["bits"]
            execution = execution_of(Scheme(row["scheme"]), row["bits"], row["activation_bits"], trained=trained)
            found.setdefault(execution.words, {}).setdefault(name, []).append(str(row["bits"]))
    return {words: [f"{name} at {', '.join(bits)}" for name, bits in which.items()] for words, which in found.items()}


# --- pictures ---------------------------------------------------------------------------------------------------------


def figures(results: Results) -> dict[str, Figure]:
    """One of each policy, and one of each task that several policies have."""
    drawn = {f"sweetspot-{Path(subject).name}": policy_figure(results, subject) for subject in subjects_of(results)}
    for task in dict.fromkeys(results.summary.task):
        if len(subjects_of(results, task)) > 1:
            drawn[f"sweetspot-{file_word(task)}"] = task_figure(results, task)
    return drawn


def file_word(task: str) -> str:
    """A task's name in a file's: ``CartPole-v1`` is ``task-cartpole-v1``."""
    return "task-" + re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")


def policy_figure(results: Results, subject: str) -> Figure:
    """One policy, a line for each scheme."""
    return _figure(results, [subject], f"How few bits {Path(subject).name} takes")


def task_figure(results: Results, task: str) -> Figure:
    """All policies of a task, panels for each."""
    return _figure(results, subjects_of(results, task), f"How few bits policies of {task} take")


def _figure(results: Results, subjects: Sequence[str], title: str) -> Figure:
    """A panel for each policy, preset and measure; the axis ends where no wider one of them loses more."""
    found = rows_of(results, subjects)
    every = [row for schemes in found.values() for rows in schemes.values() for row in rows]
    wholes = [row for row in every if row["scheme"] not in (None, FP16)]
    lossy = [row["bits"] for row in wholes if row[ERROR] is not None and row[ERROR].is_above(NOTICEABLE)]
    places = sorted({row["bits"] for row in wholes if row["bits"] <= max(*NARROW, *lossy)})
    wider = [row for row in wholes if row["bits"] not in places and row[ERROR] is not None]
    said = "bars: 95 % intervals; dashed, with a band: fp32; n: episodes a point, the same at every width"
    if wider:
        most, last = max(abs(row[ERROR].value) for row in wider), max(row["bits"] for row in wider)
        said += f"\nwider ones, up to {last} bits, are not drawn: all means within {most:.2g} % of fp32's return"
    has_half = any(row["scheme"] == FP16 for row in every)
    return facets(
        [panel for place, schemes in found.items() for panel in _panels(*place, schemes)],
        [*places, *([FP16] if has_half else [])],
        title=title,
        said=said,
        x_label="bits of the weights",
    )


def _panels(subject: str, preset: str, schemes: Mapping[str, Sequence[Row]]) -> Iterator[Panel]:
    """Success, where the task has it, and return."""
    fp32 = schemes["fp32"][0]
    for measure, factor, unit in ((SUCCESS, 100.0, "success, %"), (RETURN, 1.0, "return")):
        if fp32[measure] is None:
            continue
        lines = []
        for name, rows in schemes.items():
            points = {FP16 if name == FP16 else row["bits"]: row[measure].times(factor) for row in rows}
            if name != "fp32":
                lines.append(Line(name, points, style_of(name), joined=name != FP16))
        where = " ".join(filter(None, (Path(subject).name, preset)))
        yield Panel(f"{where}: {unit}  n={fp32['episodes']:,}", lines, fp32[measure].times(factor))


def style_of(name: str) -> int:
    """A scheme keeps its colour from picture to picture; all others share one."""
    return STYLED.index(name) if name in STYLED else len(STYLED)
