"""The two pictures of the case study: success against precision, and one decision's latency with its spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl.bench.case_study import PAPER, PAPER_DEVICE, PATH
from quarl.bench.report.document import BLIND, Kind, Report, Success
from quarl.bench.report.figures import GREY, STYLES, band, marks, new_figure, save, style
from quarl.bench.report.notes import circumstances
from quarl.bench.report.selection import Selection
from quarl.bench.report.store import StoreError
from quarl.bench.report.text import join_distinct, machine, nanoseconds
from quarl.device.agent.measure import compute_required_runs
from quarl.train.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE_OF = {"fp32": 0, "int8": 1, "fp16": 2}
"""Index into STYLES, as in the pictures of the studies."""
OTHER_STYLE = 3
PAPER_STYLE: dict[str, Any] = {
    "marker": "D",
    "markerfacecolor": "none",
    "markeredgecolor": "black",
    "linestyle": "none",
}
ABOVE: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5}


@style()
def success_figure(selection: Selection, preset: str = "hard") -> Figure:
    """Success against precision, a panel for each policy; the blind baseline and the paper's figures beside it.

    Raises:
        StoreError: no success of a policy is stored.
    """
    flights_by_policy: dict[str, list[tuple[Report, Success]]] = {}
    for policy in selection.policies():
        reports = [selection.best_success(policy, precision, preset) for precision in selection.precisions(policy)]
        if results := [(report, report.success) for report in reports if report and report.success]:
            flights_by_policy[policy] = results
    if not flights_by_policy:
        raise StoreError(
            "no success rates are stored yet.\n  next: quarl bench success --policy I", code="no_success_rows"
        )
    best = selection.best_success(BLIND, None, preset)
    blind = _percent(best.success) if best is not None and best.success else None
    figure = new_figure(max(7.0, 2.2 + 2.3 * len(flights_by_policy)), 4.6)
    panels = figure.subplots(1, len(flights_by_policy), sharey=True, squeeze=False)[0]
    for axes, (policy, results) in zip(panels, flights_by_policy.items(), strict=True):
        _success_panel(axes, policy, results, blind)
    panels[0].set_ylabel(f"success on preset {preset}, %")
    ends = [_percent(success).low or 0.0 for results in flights_by_policy.values() for _, success in results]
    ends += [100 * success for (policy, _), (_, success) in PAPER.items() if policy in flights_by_policy]
    ends += [blind.low or 0.0] if blind else []
    lowest = max(0.0, 10 * math.floor(min(ends) / 10 - 0.5))  # nothing drawn is cut off, and intervals stay visible
    panels[0].set_ylim(lowest, 100 + 0.1 * (100 - lowest))  # room for the labels above a point near 100
    panels[0].set_yticks(range(int(lowest), 101, 10))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle("Success against precision")
    subtitle = _describe_machine([report for results in flights_by_policy.values() for report, _ in results])
    figure.text(0.5, 0.94, subtitle, ha="center", va="top", fontsize=7.5, color=GREY)
    return figure


def _percent(success: Success) -> Estimate:
    return Estimate(success.rate, success.low, success.high).times(100.0)


def _success_panel(axes: Axes, policy: str, results: Sequence[tuple[Report, Success]], blind: Estimate | None) -> None:
    if blind is not None:
        band(axes, blind, GREY, "blind fly-to-goal, 95 % interval")
    for x, (report, success) in enumerate(results):
        success_percent, first = _percent(success), x == 0
        marks(axes, [(x, success_percent)], _style(report), "ours, 95 % interval" if first else None, joined=False)
        words = f"{success_percent.value:.1f}\n[{success_percent.low:.1f}, {success_percent.high:.1f}]"
        axes.annotate(words, (x, success_percent.high or success_percent.value), (0, 5), ha="center", **ABOVE)
        if (paper_figures := PAPER.get((policy, report.precision or ""))) is not None:
            label = f"the paper's ({PAPER_DEVICE}; other networks and task)" if first else None
            axes.plot([x], [100 * paper_figures[1]], label=label, **PAPER_STYLE)
            axes.annotate(f"{100 * paper_figures[1]:.0f}", (x, 100 * paper_figures[1]), (8, -3), **ABOVE)
    axes.set_xticks(
        range(len(results)), [f"{r.precision}\nn={success.episodes:,}" for r, success in results], fontsize=8
    )
    axes.set_xlim(-0.6, len(results) - 0.4)
    axes.set_title(f"\n\nPolicy {policy}")


@style()
def latency_figure(selection: Selection) -> Figure:
    """Latency of one decision: median, p5 to p95 and p99, a row for each policy and precision, logarithmic.

    Raises:
        StoreError: no latency is stored.
    """
    from matplotlib.ticker import FuncFormatter

    rows = _latency_rows(selection)
    if not rows:
        raise StoreError("no latencies are stored yet.\n  next: quarl bench latency --policy I")
    figure = new_figure(8.4, 1.9 + 0.36 * len(rows))
    axes = figure.subplots()
    ticks: dict[str, float] = {}
    y, before = 0.0, rows[0][0]
    for policy, name, report in rows:
        if policy != before:
            axes.axhline(y - 0.25, color="0.8", linewidth=0.8)
            y += 0.5
        _latency_row(axes, y, report)
        ticks[f"{policy}  {name}"], before = y, policy
        y += 1.0
    axes.plot([], [], color=GREY, linewidth=6, alpha=0.45, label="p5 to p95 (dotted: all, of too few runs)")
    axes.plot([], [], color=GREY, marker="|", linewidth=1.2, label="to p99")
    axes.plot([], [], color=GREY, marker="o", linestyle="none", label="p50")
    axes.plot([], [], label=f"the paper's ({PAPER_DEVICE}; other networks)", **PAPER_STYLE)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.3, high * 2.2)  # room for the labels at the right
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.set_yticks(list(ticks.values()), list(ticks), fontsize=8)
    axes.set_ylim(y - 0.3, -0.9)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("one decision, batch 1 (logarithmic)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("Latency with its spread")
    device = [report for *_, report in rows if report.artifact is not None]
    axes.set_title(_describe_machine(device), fontsize=7.5, color=GREY)
    return figure


def _latency_rows(selection: Selection) -> list[tuple[str, str, Report]]:
    rows = []
    for policy in selection.policies():
        timed = (
            selection.last(Kind.LATENCY, policy=policy, precision=precision, path=PATH)
            for precision in selection.precisions(policy)
        )
        reports = [report for report in timed if report is not None]
        rows += [(policy, f"{report.precision} {report.runtime}", report) for report in reports]
        for name, label in (("tf.function", "fp32 tf.function (host)"), ("keras", "fp32 Keras model(x) (host)")):
            if reports and (call := selection.last(Kind.LATENCY, run=reports[-1].run, policy=policy, runtime=name)):
                rows.append((policy, label, call))
    return rows


def _latency_row(axes: Axes, y: float, report: Report) -> None:
    latency = report.latency
    assert latency is not None
    on_device = report.artifact is not None
    colour, marker = STYLES[_style(report)] if on_device else (GREY, "x")
    samples = latency.samples_ns
    p5, p95 = (samples[round(share * (len(samples) - 1))] for share in (0.05, 0.95))
    p50, p99 = latency.percentiles_ns.get("p50", latency.mean_ns), latency.percentiles_ns.get("p99")
    if latency.runs >= compute_required_runs(0.95):
        axes.plot([p5, p95], [y, y], color=colour, linewidth=6, alpha=0.45, solid_capstyle="butt")
    else:  # too few runs for percentiles
        p95 = samples[-1]
        axes.plot([samples[0], p95], [y, y], color=colour, linewidth=1.2, linestyle=":")
    if p99 is not None:
        axes.plot([p95, p99], [y, y], color=colour, linewidth=1.2)
        axes.plot([p99], [y], marker="|", color=colour, markersize=8, linestyle="none")
    axes.plot([p50], [y], marker=marker, color=colour, markersize=5, linestyle="none")
    axes.annotate(f"{nanoseconds(p50)}  n={latency.runs:,}", (max(p99 or p95, p50), y), (7, 0), va="center", **ABOVE)
    if on_device and (paper_figures := PAPER.get((report.policy, report.precision or ""))) is not None:
        axes.plot([paper_figures[0] * 1e6], [y], markersize=5, **PAPER_STYLE)


def figures(selection: Selection, preset: str = "hard") -> dict[str, Figure]:
    """Return both pictures by name; of an emulated device only the success: its times mean nothing.

    Raises:
        StoreError: no success, or no latency, is stored.
    """
    drawn = {"success": success_figure(selection, preset)}
    if not any(report.device.get("emulated") for *_, report in _latency_rows(selection)):
        drawn["latency"] = latency_figure(selection)
    return drawn


def save_figures(selection: Selection, folder: Path, preset: str = "hard") -> list[Path]:
    """Draw both and write them as PNG and SVG; returns the files."""
    return [file for name, figure in figures(selection, preset).items() for file in save(figure, folder / name)]


def _describe_machine(reports: Sequence[Report]) -> str:
    return f"{machine(reports[-1].device)}\n{join_distinct(circumstances(*reports))}"


def _tick(value: float) -> str:
    number, _, unit = nanoseconds(value).partition(" ")
    return f"{float(number):g} {unit}"


def _style(report: Report) -> int:
    return STYLE_OF.get(report.precision or "", OTHER_STYLE)
