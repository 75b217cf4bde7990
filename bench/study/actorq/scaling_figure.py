"""The picture of ActorQ's scaling: steps per second, and how busy each server is, by the number of actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report.figures import BLUE, GREEN, PURPLE, VERMILLION, headed, save
from bench.study.actorq.layout import RESOURCES, Rates
from bench.study.actorq.scaling_table import NAMES, PRECISIONS, coupling, free_learner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEM = "actorq-scaling"
COUPLED = (BLUE, VERMILLION, GREEN)
SERVERS = {"learner": (BLUE, "o"), "replay": (VERMILLION, "s"), "parameters": (GREEN, "^"), "link": (PURPLE, "D")}
DASHES = {32: "--", 8: "-"}
TICKS = (1, 4, 16, 64, 256, 1024)
PANEL_INCHES = (4.2, 3.0)


def save_figure(documents: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw and write PNG and SVG; returns both."""
    return save(figure_of(documents), folder / STEM)


def figure_of(documents: Sequence[Mapping[str, Any]]) -> Figure:
    """A row for each model: steps per second, then the utilisation for each coupling."""
    from matplotlib.figure import Figure

    columns = 1 + max(len(couplings(each)) for each in documents)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * len(documents) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(documents), columns, squeeze=False)
    for row, document in zip(panels, documents, strict=True):
        draw_rates(row[0], document)
        for axes, (name, curves) in zip(row[1:], couplings(document).items(), strict=False):
            draw_utilisation(axes, f"{document['setup']['model']}: {name}", curves)
    handles, labels = panels[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    assumed = documents[0]["assumed"]
    said = (
        f"service times measured here; every process on a machine of its own, "
        f"network of {8 * assumed['link_bytes_per_s'] / 1e6:,.0f} Mbit/s; solid: int8, dashed: fp32 broadcast"
    )
    headed(figure, "ActorQ from 1 to 1,024 actors, simulated", said, 2)
    return figure


def couplings(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Curves by coupling."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for curve in document["curves"]:
        found.setdefault(coupling(curve), []).append(curve)
    return found


def draw_rates(axes: Axes, document: Mapping[str, Any]) -> None:
    """Steps per second."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    for colour, (name, curves) in zip(COUPLED, couplings(document).items(), strict=False):
        for curve in curves:
            x, y = ([values[key] for values in curve["rates"]] for key in ("n_actors", "steps_per_s"))
            label = name if DASHES[curve["bits"]] == "-" else None
            axes.plot(x, y, DASHES[curve["bits"]], color=colour, linewidth=1.5, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("steps per second, all actors (logarithmic)", fontsize=8)
    axes.legend(frameon=False, fontsize=7)
    axes.set_title(f"{document['setup']['model']}: steps per second", fontsize=9)
    frame(axes)


def draw_utilisation(axes: Axes, title: str, curves: Sequence[Mapping[str, Any]]) -> None:
    """Share of the time at work of each server."""
    for curve in curves:
        rates = [Rates(**values) for values in curve["rates"]]
        for name in RESOURCES:
            if name in free_learner(curve):
                continue
            colour, marker = SERVERS[name]
            axes.plot(
                [rate.n_actors for rate in rates], [100 * getattr(rate, name) for rate in rates],
                DASHES[curve["bits"]], color=colour, marker=marker, markersize=3, linewidth=1.2,
                label=f"{NAMES[name]}, {PRECISIONS[curve['bits']]}",
            )  # fmt: skip
    axes.set_ylim(0, 105)
    axes.set_ylabel("at work, % of the time", fontsize=8)
    axes.set_title(title, fontsize=9)
    frame(axes)


def frame(axes: Axes) -> None:
    """What the panels share."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
    axes.set_xlabel("actors (logarithmic)", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
