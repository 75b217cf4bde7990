"""What stands on the page: three questions, devices, this machine's own measurements, claims, what is missing."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from quarl.bench import case_study, virtual_pi
from quarl.bench import table as table_command
from quarl.bench.case_study import PAPER_DEVICE
from quarl.bench.case_study_plots import OTHER_STYLE, PAPER_STYLE, STYLE_OF
from quarl.bench.paper import THEMES
from quarl.bench.report import store
from quarl.bench.report.document import BLIND, Report
from quarl.bench.report.figures import GREY, STYLES, new_figure, style
from quarl.bench.report.notes import machine_notes
from quarl.bench.report.selection import FP32, Selection, keep_todays_flights, turn_ratios
from quarl.bench.report.text import NOT_KNOWN, fill_sentences, kilobytes, megabytes, nanoseconds, percent, times
from quarl.bench.tables import Table, tabulate
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
"""A row of the case study, or of the virtual Pi: see their ``rows_of``."""
Preset = Literal["easy", "medium", "shipped", "hard"]
POLICIES, INT8 = ("I", "II", "III"), "int8"


# --- what is stored ---------------------------------------------------------------------------------------------------


def collect(preset: Preset) -> dict[str, Any]:
    """Return what the template shows; ``missing`` maps what is not stored to the command that measures it."""
    results_path, own_file = store.results_for("case-study", store.RESULTS), store.RESULTS / store.DEFAULT_STORE.name
    reports, mine = read_reports(results_path), read_reports(own_file)
    selection = Selection.of_target(reports)
    rows = list(case_study.rows_of(selection, preset))
    missing = missing_measurements(rows)
    if not any("Raspberry Pi" in str(report.device.get("model")) for report in (*reports, *mine) if report.latency):
        missing["Times on a Raspberry Pi"] = "make bench TARGET=pi@raspberrypi"
    if not mine:
        missing["This machine's own measurements"] = "make demo"
    targets = [] if results_path == own_file else dict.fromkeys(report.target for report in mine if report.artifact)
    tables = make_tables(("recommend", *THEMES), preset, missing)
    claims = [shorten(tables[name]) for name in THEMES if name in tables]
    devices = [describe_recommendation(tables["recommend"])] if "recommend" in tables else []
    return {
        "finding": case_study.finding(selection, preset),
        "machines": machine_notes([report for report in selection.reports if report.artifact]),
        "questions": [answer(question, rows) for question in QUESTIONS if rows],
        "devices": [*devices, *describe_counts(preset, missing)],
        "own": [own_table(Selection.of_target(mine, target), target, rows, preset) for target in targets],
        "claims": claims,
        "verdicts": Counter(row[1] for table in claims for row in table.rows).most_common(),
        "missing": missing,
    }


def read_reports(path: Path) -> list[Report]:
    """Return the measurements of a file, flights of today's task among them; none where there is no file."""
    return keep_todays_flights(store.read_results(path)) if path.exists() else []


def make_tables(names: tuple[str, ...], preset: Preset, missing: dict[str, str]) -> dict[str, Table]:
    """Return the tables that can be made; of each other one ``missing`` gets the command that measures for it."""
    tables_with_reports, skipped = table_command.tables(table_command.Options(name=names, preset=preset))
    missing |= {f"Table {name}": why.partition("next: ")[2] for name, why in skipped.items()}
    return {name: table for name, (table, _) in tables_with_reports.items()}


def missing_measurements(rows: Sequence[Row]) -> dict[str, str]:
    """Return the commands that measure what no row has of policies I, II and III in fp32 and int8."""
    commands: dict[str, str] = {}
    for policy in POLICIES:
        of = [row for row in rows if row["policy"] == policy]
        has = {
            "latency": {row["precision"] for row in of if latency_of(row)},
            "memory": {row["precision"] for row in of if row["memory"]},
            "success": {row["precision"] for row in of if row["success"][0]},
        }
        lacking = [kind for kind, precisions in has.items() if not {FP32, INT8} <= precisions]
        commands |= {f"Policy {policy}, {kind}": f"quarl bench {kind} --policy {policy}" for kind in lacking}
    return commands


# --- three questions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """A picture's horizontal axis; ``value``: of a row, with its interval; ``paper``: the paper's value of that row."""

    label: str
    value: Callable[[Row], Estimate | None]
    paper: Callable[[Row], float] | None = None
    scale: str = "linear"
    start: float | None = None
    tick: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True)
class Question:
    """What is asked of the case study; ``words`` is a template of sentences, ``cells`` those of a row by header."""

    title: str
    words: str
    cells: Callable[[Row], dict[str, str]]
    caption: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Section:
    """A heading, sentences and a table; a picture where there is something to draw."""

    title: str
    sentences: Sequence[str]
    table: Table
    picture: Markup | str = ""
    caption: str = ""


def latency_of(row: Row, precision: str = "") -> Report | None:
    """Return the latency of a row's artifact, or of its partner of another precision in the same run."""
    wanted = precision or row["precision"]
    candidates = (report for report in row["reports"] if report and report.latency and report.artifact)
    return next((report for report in candidates if report.precision == wanted), None)


def p50_to_p99(row: Row) -> Estimate | None:
    """Return a decision's p50, and the p99 as the end of its line; None on an emulator, whose times mean nothing."""
    report = latency_of(row)
    if report is None or report.latency is None or report.device.get("emulated"):
        return None
    p50, p99 = (report.latency.percentiles_ns.get(name) for name in ("p50", "p99"))
    return Estimate(p50, p50, p99 or p50) if p50 else None


def resident(row: Row) -> int | None:
    """Return the bytes that the process takes which serves a row's artifact."""
    return row["memory"].resident if row["memory"] else None


def short_time(value_ns: float) -> str:
    """Return a time without needless zeros: ``10 µs``."""
    number, unit = nanoseconds(value_ns).split()
    return f"{float(number):g} {unit}"


SPEED = """\
{% if gained %}
In the same runtime int8 decides {{ gained | several }} as fast as fp32; in brackets, the least and the greatest ratio \
of the turns.{% if unclear %} The turns of {{ unclear | several }} disagree on which of the two is faster.{% endif %}

{% endif %}
A time is that of one decision at batch 1: set input, invoke, read the action.
{% if speeds %}
The paper reports {{ speeds | several }} for int8 on a {{ paper_device }}, with other networks: ratios can be \
compared, times cannot.
{% endif %}
"""
MEMORY = """\
{% if smaller %}
The fp32 artifact is {{ smaller | several }} the size of the int8 one.
{% endif %}
{% if saved %}
The whole process (Python, numpy, runtime, artifact) needs {{ resident | min | mb }} to {{ resident | max | mb }} MB; \
int8 lowers that by {{ saved | several }} MB.
{% endif %}
{% if before %}
Before an artifact is loaded, {{ before | max | mb }} MB are resident already.
{% endif %}
"""
SUCCESS = """\
{% if changed %}
In int8 success changes by {{ changed | several }} points: 95 % intervals, paired on the same {{ episodes | span }} \
flights of preset {{ preset }}.
{% endif %}
{% if blind %}
A baseline that ignores obstacles and flies straight to the goal reaches it in {{ blind | percent }} %.
{% endif %}
{% if falls %}
The paper's success falls from {{ falls | several }}, with other networks in another task and without intervals.
{% endif %}
"""
TIME = Panel("time of a decision", p50_to_p99, lambda row: 1e6 * row["paper"][0], "log", tick=short_time)
SIZE = Panel(
    "artifact, KB",
    lambda row: Estimate(row["bytes"] / 1e3) if row["bytes"] else None,
    scale="log",
    tick="{:,g}".format,
)
PROCESS = Panel("process, MB", lambda row: Estimate(size / 1e6) if (size := resident(row)) else None, start=0.0)
RATE = Panel(
    "% success",
    lambda row: row["success"][0] and row["success"][0].times(100.0),
    lambda row: 100.0 * row["paper"][1],
)
QUESTIONS = (
    Question(
        "How fast?",
        SPEED,
        lambda row: {
            "p50": row["p50"],
            "p99": row["p99"],
            "as fast as fp32": row["over_fp32"],
            "paper's time": f"{row['paper'][0]:g} ms" if row["paper"] else "",
        },
        "Mark: p50. Line: to the p99.",
        [TIME],
    ),
    Question(
        "How much memory?",
        MEMORY,
        lambda row: {
            "KB artifact": kilobytes(row["bytes"]),
            "MB resident": megabytes(resident(row)),
            "MB added by loading": megabytes(row["memory"].artifact_share if row["memory"] else None),
        },
        "Left: the artifact. Right: the whole process at its peak while it serves.",
        [SIZE, PROCESS],
    ),
    Question(
        "How often does it succeed?",
        SUCCESS,
        lambda row: {
            "% success": percent(row["success"][0]),
            "points to fp32": percent(row["to_fp32"], "+"),
            "paper's %": f"{100 * row['paper'][1]:.0f}" if row["paper"] else "",
        },
        "Mark and line: success with its 95 % Wilson interval.",
        [RATE],
    ),
)


def answer(question: Question, rows: Sequence[Row]) -> Section:
    """Answer a question from the rows of the case study."""
    description = f"{question.title} A line for each policy and precision; the numbers are in the table."
    figure, name = chart(question.panels, rows), re.sub(r"\W", "", question.title)
    picture = inline_svg(figure, name, description) if figure else ""
    lines = [{**lead_cells(row), **question.cells(row)} for row in rows if row["policy"] != BLIND]
    table = tabulate(question.title, question.title, lines, left=2)
    return Section(question.title, fill_sentences(question.words, **facts(rows)), table, picture, question.caption)


def facts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the sentences name: a phrase for each policy that has both fp32 and int8."""
    rows_by_key = {(row["policy"], row["precision"]): row for row in rows}
    pairs = [
        (rows_by_key[name, FP32], row)
        for (name, precision), row in rows_by_key.items()
        if precision == INT8 and (name, FP32) in rows_by_key
    ]

    def phrases(of: Callable[[Row, Row], str]) -> list[str]:
        return [f"{words} ({int8['policy']})" for fp32, int8 in pairs if (words := of(fp32, int8))]

    def is_unclear(int8: Row) -> bool:
        turns = turn_ratios(latency_of(int8, FP32), latency_of(int8))
        return bool(turns) and min(turns) < 1.0 < max(turns)

    def format_memory_saving(fp32: Row, int8: Row) -> str:
        before, after = resident(fp32), resident(int8)
        return megabytes(before - after).replace("-", "−") if before and after else ""

    def falls(fp32: Row, int8: Row) -> str:
        both = fp32["paper"] and int8["paper"]
        return f"{100 * fp32['paper'][1]:.0f} to {100 * int8['paper'][1]:.0f} %" if both else ""

    return {
        "preset": rows[0]["preset"],
        "paper_device": PAPER_DEVICE,
        "gained": phrases(lambda _, int8: int8["over_fp32"].strip(NOT_KNOWN)),
        "unclear": [int8["policy"] for _, int8 in pairs if is_unclear(int8)],
        "speeds": phrases(lambda _, int8: f"{int8['papers_speed_up']:g}×" if int8["papers_speed_up"] else ""),
        "smaller": phrases(lambda fp32, int8: times(fp32["bytes"] / int8["bytes"])),
        "saved": phrases(format_memory_saving),
        "resident": [size for row in rows if (size := resident(row))],
        "before": [row["memory"].before_load for row in rows if row["memory"] and row["memory"].before_load],
        "changed": phrases(lambda _, int8: percent(int8["to_fp32"], "+").strip(NOT_KNOWN)),
        "episodes": [r.success.episodes for pair in pairs for row in pair for r in row["reports"] if r and r.success],
        "falls": phrases(falls),
        "blind": next((row["success"][0] for row in rows if row["policy"] == BLIND), None),
    }


def lead_cells(row: Row) -> dict[str, str]:
    """Return policy and precision."""
    return {name: row[name] for name in ("policy", "precision")}


# --- for whom, what this machine measured, the paper ------------------------------------------------------------------


def describe_recommendation(kept: Table) -> Section:
    """Show the kept answer of ``quarl recommend``: its sentences, and the best candidate of each precision."""
    best: dict[str, dict[str, str]] = {}
    for row in filter(None, kept.rows):
        cells = {name: cell for name, cell in zip(kept.headers, row, strict=True) if name != "p50"}
        best.setdefault(cells["precision"], cells)
    sentences = [note for note in kept.notes if note.startswith(("Deploy", "Why", "Nothing", "Measured"))]
    return Section(f"Policy {kept.title}", sentences, tabulate("recommend", kept.title, best.values(), left=3))


COUNTED = """\
The fewest instructions are those of {{ fewest | several }}; fp32 in LiteRT takes {{ ratios | several }} as many.
They were counted in an emulated Cortex-A53. The times are bounds of a model, not measurements (docs/raspberry-pi.md).
"""


def describe_counts(preset: str, missing: dict[str, str]) -> list[Section]:
    """Show what was counted for a Raspberry Pi 3b: fp32 and int8 in LiteRT, and what takes the fewest instructions."""
    reports = read_reports(store.RESULTS / f"{virtual_pi.VIRTUAL_PI}.jsonl")
    rows = [row for row in virtual_pi.rows_of(reports, preset, virtual_pi.TARGET) if row["counts"]]
    if not rows:
        missing["Instructions on a Raspberry Pi's processor"] = "quarl bench instructions --policy I,II,III"
        return []
    table_rows, fewest, ratios = list[Row](), list[str](), list[str]()
    for policy in dict.fromkeys(row["policy"] for row in rows):
        of = [row for row in rows if row["policy"] == policy]
        least = min(of, key=lambda row: int(row["warm"]["instructions"]))
        litert = {
            row["precision"]: row for row in of if row["runtime"] == "litert" and row["precision"] in (FP32, INT8)
        }
        table_rows += [*litert.values(), *([] if least in litert.values() else [least])]
        fewest.append(f"{least['precision']} with {least['runtime']} ({policy})")
        ratios.append(times(litert.get(FP32, least)["warm"]["instructions"] / least["warm"]["instructions"]))
    lines = [
        {
            **lead_cells(row),
            "runtime": row["runtime"],
            "instructions": f"{row['warm']['instructions']:,}",
            "modelled time": " … ".join(map(nanoseconds, row["bound"])),
            "KB artifact": kilobytes(row["bytes"]),
            "MB resident": megabytes(row["resident"]),
            "% success": percent(row["success"]),
        }
        for row in table_rows
    ]
    table = tabulate("counted", "Counted for a Raspberry Pi 3b", lines, left=3)
    return [
        Section("A Raspberry Pi 3b, counted and modelled", fill_sentences(COUNTED, fewest=fewest, ratios=ratios), table)
    ]


def own_table(mine: Selection, target: str, committed: Sequence[Row], preset: str) -> Table:
    """Return what this machine measured on a device, and below each row the committed one."""
    committed_rows = {(row["policy"], row["precision"]): {**row, "measured_on": "committed"} for row in committed}
    own = [{**row, "measured_on": target} for row in case_study.rows_of(mine, preset) if row["policy"] != BLIND]
    rows = [item for row in own for item in (row, committed_rows.get((row["policy"], row["precision"]))) if item]
    notes = machine_notes([item for item in mine.reports if item.artifact])
    lines = [
        {
            **lead_cells(row),
            "measured": row["measured_on"],
            "p50": row["p50"],
            "as fast as fp32": row["over_fp32"],
            "MB resident": megabytes(resident(row)),
            "% success": percent(row["success"][0]),
        }
        for row in rows
    ]
    return replace(tabulate("own", f"Measured on {target}", lines, left=3), notes=tuple(notes))


def shorten(claims: Table) -> Table:
    """Return a theme of the paper with the first figure of each answer; docs/paper.md has all of it."""
    rows = (
        (claim, same, our_figure.partition(";")[0], paper)
        for claim, paper, our_figure, same in filter(None, claims.rows)
    )
    return Table(claims.name, claims.title, ("the paper's claim", "verdict", "here", "the paper's"), tuple(rows), (), 4)


# --- pictures ---------------------------------------------------------------------------------------------------------

WIDTH_INCHES, LINE_INCHES, POINTS = 4.0, 0.21, 9.0
"""Of a picture, of a line in it, and of its text, which has 11 CSS pixels on a telephone's 360."""


@style()
def chart(panels: Sequence[Panel], rows: Sequence[Row]) -> Figure | None:
    """Draw panels beside each other, a line for each policy and precision; None where there is nothing to draw."""
    lines = [row for row in rows if row["policy"] != BLIND and any(panel.value(row) for panel in panels)]
    if not lines:
        return None
    policies = list(dict.fromkeys(row["policy"] for row in lines))
    places = [number + 0.7 * policies.index(row["policy"]) for number, row in enumerate(lines)]
    figure = new_figure(WIDTH_INCHES, 0.75 + LINE_INCHES * (places[-1] + 1))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, panel in zip(grid, panels, strict=True):
        axes.set_xscale(panel.scale)
        for blind in (item for row in rows if row["policy"] == BLIND and (item := panel.value(row))):
            axes.axvline(blind.value, color=GREY, linestyle="--", linewidth=1.2, label="ignores obstacles")
        for place, row in zip(places, lines, strict=True):
            colour, marker = STYLES[STYLE_OF.get(row["precision"], OTHER_STYLE)]
            if value := panel.value(row):
                ends = [value.value if end is None else end for end in (value.low, value.high)]
                axes.plot(ends, [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
                axes.plot([value.value], [place], color=colour, marker=marker, markersize=5, linestyle="none")
            if panel.paper and row["paper"]:
                axes.plot([panel.paper(row)], [place], label=f"the paper's ({PAPER_DEVICE})", **PAPER_STYLE)
        if panel.start is not None:
            axes.set_xlim(panel.start, axes.dataLim.x1 * 1.08)
        axes.xaxis.set_major_formatter(lambda value, _, tick=panel.tick: tick(value))
        axes.minorticks_off()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x", color="black", alpha=0.12)
        axes.set_xlabel(panel.label, fontsize=POINTS)
        axes.tick_params(labelsize=POINTS, length=0)
        axes.spines["left"].set_visible(False)
    firsts = [row["policy"] not in [item["policy"] for item in lines[:at]] for at, row in enumerate(lines)]
    leads = [f"{row['policy'][:12]}\u2002" * is_first for is_first, row in zip(firsts, lines, strict=True)]
    grid[0].set_yticks(places, [lead + row["precision"] for lead, row in zip(leads, lines, strict=True)])
    grid[0].set_ylim(places[-1] + 0.6, -0.6)
    handles, labels = grid[0].get_legend_handles_labels()
    if legend := dict(zip(labels, handles, strict=True)):
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2, fontsize=POINTS)
    return figure


@style()
def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """Return a figure as SVG for a page that allows no styles of elements; black becomes the colour of its text.

    Args:
        figure: with text in black.
        name: of the picture; no two pictures of a page have the ids in common that are made from it.
        description: for a reader who does not see it.
    """
    import matplotlib
    from markupsafe import Markup

    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r' xmlns(:\w+)?="[^"]*"|<metadata>.*</metadata>|<style.*</style>', "", stream.getvalue(), flags=re.S)
    root = ElementTree.fromstring(text.replace("xlink:href", "href"))
    for element in root.iter():
        for declaration in filter(None, element.attrib.pop("style", "").split(";")):
            key, value = (word.strip() for word in declaration.split(":", 1))
            if key != "font-family":
                element.set(key, value.replace("#000000", "currentColor"))
        if element.tag == "g":
            element.attrib.pop("id", None)
    root.attrib |= {"role": "img", "aria-label": description}
    return Markup(ElementTree.tostring(root, encoding="unicode"))
