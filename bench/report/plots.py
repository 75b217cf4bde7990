"""Draw the two pictures of the case study from stored measurements, as PNG and SVG.

success: success against precision with 95 % intervals, the blind baseline and the paper's figures beside it.
latency: one decision's latency with its spread on a logarithmic axis.

Shapes differ as well as colours, for print without colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.case_study import PATH
from bench.report.document import BLIND, Kind, Report
from bench.report.figures import BLUE, GREEN, GREY, PURPLE, VERMILLION, save
from bench.report.notes import circumstances
from bench.report.paper import PAPER, PAPER_DEVICE
from bench.report.selection import Selection
from bench.report.store import StoreError
from bench.report.text import joined, machine, nanoseconds
from device.agent.measure import required_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"fp32": BLUE, "fp16": GREEN, "int8": VERMILLION}
MARKERS = {"fp32": "o", "fp16": "s", "int8": "^"}
PAPER_STYLE: dict[str, Any] = {
    "marker": "D",
    "markerfacecolor": "none",
    "markeredgecolor": "black",
    "linestyle": "none",
}


def success_figure(selection: Selection, preset: str = "hard") -> Figure:
    """Success against precision, a panel for each policy.

    Raises:
        StoreError: no success of a policy is stored.
    """
    from matplotlib.figure import Figure

    found = {
        policy: [r for p in selection.precisions(policy) if (r := selection.best_success(policy, p, preset))]
        for policy in selection.policies()
    }
    found = {policy: reports for policy, reports in found.items() if reports}
    if not found:
        raise StoreError("no success is stored yet.\n  next: python bench/success.py --policy I")
    blind = selection.best_success(BLIND, None, preset)
    figure = Figure(figsize=(max(7.0, 2.2 + 2.3 * len(found)), 4.6), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (policy, reports) in zip(panels, found.items(), strict=True):
        _success_panel(axes, policy, reports, blind)
    panels[0].set_ylabel(f"success on preset {preset}, %")
    lowest = _lowest(found, blind)
    panels[0].set_ylim(lowest, 100 + 0.1 * (100 - lowest))  # room for the labels above a point near 100
    panels[0].set_yticks(range(int(lowest), 101, 10))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    reports = [report for found_here in found.values() for report in found_here]
    figure.suptitle("Success against precision", fontsize=12, fontweight="bold")
    figure.text(0.5, 0.94, _measured_on(reports), ha="center", va="top", fontsize=7.5, color=GREY)
    return figure


def _success_panel(axes: Axes, policy: str, reports: Sequence[Report], blind: Report | None) -> None:
    ours, paper = "ours, 95 % interval", f"the paper's ({PAPER_DEVICE}; other networks and task)"
    if blind is not None and blind.success is not None:
        low, high = 100 * blind.success.low, 100 * blind.success.high
        axes.axhspan(low, high, color="0.85", zorder=0, label="blind fly-to-goal, 95 % interval")
    for x, report in enumerate(reports):
        success = report.success
        assert success is not None
        y = 100 * success.rate
        spread = [[y - 100 * success.low], [100 * success.high - y]]
        style: dict[str, Any] = {
            "color": _colour(report),
            "marker": _marker(report),
            "markersize": 7,
            "capsize": 4,
            "zorder": 3,
        }
        axes.errorbar([x], [y], yerr=spread, linestyle="none", label=ours if x == 0 else None, **style)
        axes.annotate(
            f"{y:.1f}\n[{100 * success.low:.1f}, {100 * success.high:.1f}]",
            (x, 100 * success.high),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
        )
        theirs = PAPER.get((policy, report.precision or ""))
        if theirs is not None:
            axes.plot([x], [100 * theirs[1]], label=paper if x == 0 else None, **PAPER_STYLE)
            at = (x, 100 * theirs[1])
            axes.annotate(f"{at[1]:.0f}", at, (8, -3), textcoords="offset points", fontsize=7.5)
    axes.set_xticks(range(len(reports)), [f"{r.precision}\nn={_episodes(r):,}" for r in reports], fontsize=8)
    axes.set_xlim(-0.6, len(reports) - 0.4)
    axes.set_title(f"\n\nPolicy {policy}", fontsize=10)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _lowest(found: dict[str, list[Report]], blind: Report | None) -> float:
    """Lower end of the axis in percent: nothing drawn is cut off, and the intervals stay visible."""
    rates = [r.success.low for reports in found.values() for r in reports if r.success]
    rates += [success for (policy, _), (_, success) in PAPER.items() if policy in found]
    rates += [blind.success.low] if blind is not None and blind.success is not None else []
    return max(0.0, 10 * math.floor(10 * min(rates) - 0.5))


def latency_figure(selection: Selection) -> Figure:
    """Latency of one decision: median, p5 to p95 and p99, a row for each policy and precision.

    Raises:
        StoreError: no latency is stored.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    rows = _latency_rows(selection)
    if not rows:
        raise StoreError("no latency is stored yet.\n  next: python bench/latency.py --policy I")
    figure = Figure(figsize=(8.4, 1.9 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    ticks = []
    y = 0.0
    for index, (policy, name, report) in enumerate(rows):
        if index and rows[index - 1][0] != policy:
            axes.axhline(y - 0.25, color="0.8", linewidth=0.8)
            y += 0.5
        _latency_row(axes, y, report, first=index == 0)
        ticks.append((y, f"{policy}  {name}"))
        y += 1.0
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.3, high * 2.2)  # room for the labels at the right
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.set_ylim(y - 0.3, -0.9)
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("one decision, batch 1 (logarithmic)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=7.5)
    figure.suptitle("Latency with its spread", fontsize=12, fontweight="bold")
    device = [report for _, _, report in rows if report.artifact is not None]
    axes.set_title(_measured_on(device), fontsize=7.5, color=GREY)
    return figure


def _latency_rows(selection: Selection) -> list[tuple[str, str, Report]]:
    rows = []
    for policy in selection.policies():
        timed = (
            selection.last(Kind.LATENCY, policy=policy, precision=precision, path=PATH)
            for precision in selection.precisions(policy)
        )
        found = [report for report in timed if report is not None]
        rows += [(policy, f"{report.precision} {report.runtime}", report) for report in found]
        for name, label in (("tf.function", "fp32 tf.function (host)"), ("keras", "fp32 Keras model(x) (host)")):
            if found and (call := selection.last(Kind.LATENCY, run=found[-1].run, policy=policy, runtime=name)):
                rows.append((policy, label, call))
    return rows


def _latency_row(axes: Axes, y: float, report: Report, first: bool) -> None:
    latency = report.latency
    assert latency is not None
    colour = _colour(report) if report.artifact is not None else GREY
    samples = latency.samples_ns
    p5, p95 = samples[round(0.05 * (len(samples) - 1))], samples[round(0.95 * (len(samples) - 1))]
    p50 = latency.percentiles_ns.get("p50", latency.mean_ns)
    p99 = latency.percentiles_ns.get("p99")
    if latency.runs >= required_runs(0.95):
        axes.plot([p5, p95], [y, y], color=colour, linewidth=6, alpha=0.45, solid_capstyle="butt")
    else:  # too few runs for percentiles
        p95 = samples[-1]
        axes.plot([samples[0], p95], [y, y], color=colour, linewidth=1.2, linestyle=":")
    if first:
        axes.plot([], [], color=GREY, linewidth=6, alpha=0.45, label="p5 to p95 (dotted: all, of too few runs)")
    if p99 is not None:
        axes.plot([p95, p99], [y, y], color=colour, linewidth=1.2)
        axes.plot([p99], [y], marker="|", color=colour, markersize=8, linestyle="none")
        if first:
            axes.plot([], [], color=GREY, marker="|", linewidth=1.2, label="to p99")
    axes.plot([p50], [y], marker=_marker(report), color=colour, markersize=5, linestyle="none")
    if first:
        axes.plot([], [], color=GREY, marker="o", linestyle="none", label="p50")
        axes.plot([], [], label=f"the paper's ({PAPER_DEVICE}; other networks)", **PAPER_STYLE)
    right = max(p99 or p95, p50)
    text = f"{nanoseconds(p50)}  n={latency.runs:,}"
    axes.annotate(text, (right, y), (7, 0), textcoords="offset points", va="center", fontsize=7.5)
    paper = PAPER.get((report.policy, report.precision or "")) if report.artifact is not None else None
    if paper is not None:
        axes.plot([paper[0] * 1e6], [y], markersize=5, **PAPER_STYLE)


def figures(selection: Selection, preset: str = "hard") -> dict[str, Figure]:
    """Both pictures by name; of an emulated device only the success: its times mean nothing.

    Raises:
        StoreError: no success, or no latency, is stored.
    """
    drawn = {"success": success_figure(selection, preset)}
    if not any(report.device.get("emulated") for _, _, report in _latency_rows(selection)):
        drawn["latency"] = latency_figure(selection)
    return drawn


def save_figures(selection: Selection, folder: Path, preset: str = "hard") -> list[Path]:
    """Draw both and write them as PNG and SVG; returns the files."""
    return [file for name, figure in figures(selection, preset).items() for file in save(figure, folder / name)]


def _measured_on(reports: Sequence[Report]) -> str:
    return f"{machine(reports[-1].device)}\n{joined(word for word in circumstances(*reports))}"


def _tick(value: float) -> str:
    number, _, unit = nanoseconds(value).partition(" ")
    return f"{float(number):g} {unit}"


def _colour(report: Report) -> str:
    return COLOURS.get(report.precision or "", PURPLE)


def _marker(report: Report) -> str:
    return MARKERS.get(report.precision or "", "v") if report.artifact is not None else "x"


def _episodes(report: Report) -> int:
    assert report.success is not None
    return report.success.episodes
