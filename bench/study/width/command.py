"""Do policies with wider weights lose more when they are quantized? QuaRL says so; this asks all committed bundles.

    python -m bench.study width                  the table and what it supports, in words
    python -m bench.study width --keep           also stores it in results/width-and-error.json
    python -m bench.study width --update-docs    fills docs/weights.md and draws docs/figures/width-and-error

Width: largest minus smallest weight of a policy (all layers, no biases), and that range in standard deviations. Error:
the paper's, (fp32 − int8) / |fp32| of the mean return; negative where int8 plays better. Its interval is that of paired
means over the same episodes. Errors of results/study/cells.jsonl are those of the int8 artifact in a device's runtime
(symmetric, per channel); those of results/study are of the paper's own quantizer at 8 and at 4 bits, for the bundles
whose sweep was kept (python -m bench.study sweep BUNDLE --weights-only --keep).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from bench import command_line
from bench.study.width.points import (
    DEVICE,
    KEPT,
    MEASURES,
    QUARL_4,
    QUARL_8,
    SOURCES,
    Error,
    Point,
    correlations,
    keep,
    measure,
    read,
    sources,
)

if TYPE_CHECKING:
    from bench.report.intervals import Correlation
    from bench.report.tables import Table

HEADERS = {DEVICE: "error, int8 artifact, %", QUARL_8: "error, QuaRL's 8 bits, %", QUARL_4: "error, QuaRL's 4 bits, %"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, correlate, print."""
    parser = command_line.parser(__doc__, "-m bench.study width")
    parser.add_argument("--keep", action="store_true", help="store it in results/width-and-error.json")
    parser.add_argument("--update-docs", action="store_true", help="fill docs/weights.md, draw the picture")
    parser.add_argument("--stored", action="store_true", help="measure nothing; use what is kept")
    parser.add_argument("--output-path", type=Path, metavar="FOLDER", help="draw the picture into this folder")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON on standard output")
    return command_line.guarded(_run, parser.parse_args(argv))


def _run(arguments: argparse.Namespace) -> int:
    from bench.report import tables as rendering
    from bench.report.figures import FIGURES
    from bench.study.width.figure import save_figure

    points = read(KEPT) if arguments.stored else measure()
    if arguments.keep:
        keep(points, KEPT)
        command_line.say(str(KEPT))
    made = table(points)
    if arguments.update_docs:
        command_line.update_docs([made])
    for folder in [FIGURES] * arguments.update_docs + [arguments.output_path] * (arguments.output_path is not None):
        command_line.say("\n".join(str(file) for file in save_figure(points, folder)))
    if arguments.json:
        found = {source: {m: asdict(c) for m, c in correlations(points, source).items()} for source in sources(points)}
        print(json.dumps({"ok": True, "points": [asdict(p) for p in points], "correlations": found}))
    elif arguments.markdown:
        print(rendering.to_markdown(made))
    else:
        rendering.print_table(made, command_line.console())
    return command_line.EXIT_OK


def table(points: Sequence[Point]) -> Table:
    """The points by width, the correlations and what they support as notes."""
    from bench.report.tables import Table
    from bench.report.text import NOT_KNOWN

    shown = sources(points)
    rows = tuple(
        (
            f"{number}",
            point.width.name,
            f"{point.width.weights:,}",
            f"{_signed(point.width.low, 2)} … {_signed(point.width.high, 2)}",
            f"{point.width.range:.2f}",
            f"{point.width.deviation:.3f}",
            f"{point.width.ratio:.1f}",
            *(error_words(point.errors[s]) if s in point.errors else NOT_KNOWN for s in shown),
        )
        for number, point in enumerate(points, start=1)
    )
    headers = ("", "policy", "weights", "from … to", "range", "std", "range / std")
    return Table(
        "width-and-error",
        "Width of the weights and what quantization costs",
        (*headers, *(HEADERS[source] for source in shown)),
        rows,
        tuple(notes(points)),
        left=2,
    )


def notes(points: Sequence[Point]) -> list[str]:
    """What stands under the table."""
    said = [
        "Weights of all layers together, no biases. Error: (fp32 − quantized) / |fp32| of the mean return over the "
        "same episodes, with the 95 % interval of paired means; negative: quantized is better; 0: no episode changed."
    ]
    for source in sources(points):
        said += findings(points, source)
    intervals = sum(len(correlations(points, source)) for source in sources(points))
    if intervals > 1:
        said.append(
            f"Of {intervals} intervals of 95 %, one or more leave 0 out by chance alone in up to "
            f"{100 * (1 - 0.95**intervals):.0f} % of such tables. Where returns can be negative, an error in % of "
            "|fp32| has no bound and compares badly across tasks."
        )
    said.append(
        "Each point is one policy of one training; task, algorithm, network and length of training change together, "
        "and a correlation over so few of them is no cause. The paper concludes from three DQN policies, and from "
        "three algorithms on Breakout, without intervals."
    )
    return said


def findings(points: Sequence[Point], source: str) -> list[str]:
    """One source's correlations and what they support, in sentences."""
    having = [point for point in points if source in point.errors]
    seen = sum(point.errors[source].is_seen for point in having)
    begin = f"{SOURCES[source]}: {len(having)} policies, of which {seen} have an error that differs from 0."
    found = correlations(points, source)
    if not found:
        return [f"{begin} Too few, or all alike: nothing can be correlated."]
    sentences = [
        f"Spearman's ρ of the error with the {MEASURES[name]}: {_signed(c.rho, 2)} "
        f"[{_signed(c.low, 2)}, {_signed(c.high, 2)}] (n={c.pairs}, 95 %, bootstrap over policies): {verdict(c)}."
        for name, c in found.items()
    ]
    return [begin, *sentences, *within_tasks(having, source)]


def verdict(correlation: Correlation) -> str:
    """What a correlation supports."""
    if correlation.low > 0:
        return "wider weights go with larger errors"
    if correlation.high < 0:
        return "wider weights go with smaller errors, against the paper's claim"
    return "the data do not decide whether wider weights go with larger errors"


def within_tasks(points: Sequence[Point], source: str) -> list[str]:
    """The paper's second comparison: pairs of policies of one task, where intervals of the errors do not overlap."""
    agree = against = 0
    tasks = []
    for one, other in combinations(points, 2):
        if one.width.task != other.width.task or not one.width.task:
            continue
        tasks.append(one.width.task)
        wide, narrow = sorted((one, other), key=lambda point: -point.width.range)
        agree += wide.errors[source].low > narrow.errors[source].high
        against += wide.errors[source].high < narrow.errors[source].low
    if not tasks:
        return []
    return [
        f"Pairs of policies of the same task: {len(tasks)} ({', '.join(dict.fromkeys(tasks))}); the wider one has the "
        f"larger error, beyond both intervals, in {agree}, the smaller one in {against}, and nothing is decided in "
        f"{len(tasks) - agree - against}."
    ]


def error_words(error: Error) -> str:
    """``0.92 [0.67, 1.17]``, or ``0`` where every episode is the same."""
    if error.percent == error.low == error.high == 0:
        return "0"
    return f"{_signed(error.percent, 2)} [{_signed(error.low, 2)}, {_signed(error.high, 2)}]"


def _signed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return (text if float(text) else text.lstrip("-")).replace("-", "−")


if __name__ == "__main__":
    raise SystemExit(main())
