"""Weights, hidden activations, observation: which of the three has to keep its bits? Each apart, the others at 8.

    python -m bench.study apart cartpole-dqn
    python -m bench.study apart II --bits 4,3,2 --episodes 400
    python -m bench.study apart --keep                      measures what is not kept yet of all committed perceptrons
    python -m bench.study apart --stored --update-docs      fills docs/layers.md, draws the picture

The symmetric scheme, which devices run, simulated in float: kernels with one scale a channel, activations and the
normalised observation with one range each, seen on the calibration observations. All widths fly the same episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench import command_line
from bench.report.figures import Line, Panel, error_scale, facets
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, filled, lost, several
from bench.study.experiment import ERROR, Episodes, Played, Results
from bench.study.flying import (
    PERCEPTRONS,
    ROBOTS,
    fly,
    of_bundles,
    open_perceptron,
    quantized,
)
from bench.study.records import Condition
from policy.quantization import Scheme
from policy.simulated import Widths

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

PARTS = {"weights": "weights", "hidden": "hidden activations", "input": "observation"}
OTHERS_BITS = 8
BITS, BITS_OF_ROBOTS = (7, 6, 5, 4, 3, 2), (4, 3, 2)
SHOWN = (4, 3, 2)  # widths whose errors stand in the table
LIMITS = (5.0, 2.0)  # percent of fp32's return
FEW = 3  # bits whose losses are counted
MARGIN = 1.0  # likewise: where all is lost, or nothing, paired intervals tell differences apart that mean nothing

NOTES = """\
Error: (fp32 − quantized) / |fp32| of the mean return over the same episodes, with its 95 % interval (Student's t); 0: \
less than 0.005 % in all three numbers; without brackets: all episodes are equal, so that they give no interval. \
Bits within 5 %: the fewest at which, and at every larger measured width, the whole interval is at or below 5 %; – \
where these episodes do not show that even 8 bits are.
n-bit weights have 2ⁿ − 1 levels, one scale a channel; activations and observation 2ⁿ levels over one range that the \
calibration observations span. Simulated in float; no size or speed follows from it.
{{ measured }}
"""
COSTS_NOTES = """\
First to cost over {{ limit }} %, going down from 8 bits (the whole interval above): \
{% for part, name in parts.items() %}the {{ name }} alone in {{ firsts.count((part,)) }}, {% endfor %}\
several at once in {{ several_at_once }}; \
none down to 2 bits in {{ policies - firsts | length }} of {{ policies }} policies.
{% for bits, most in costliest.items() %}
Costs most at {{ bits }} bits: {% for part, name in parts.items() %}the {{ name }} in {{ most.count(part) }}, \
{% endfor %}not decided in {{ most.count(none) }}.
{% endfor %}
Within {{ limit }} % of fp32, by the whole interval, at {{ few }} bits and above: \
{% for name, count in within.items() %}the {{ name }} in {{ count }}{{ ", " if not loop.last }}{% endfor %} \
of {{ policies }} policies.
Costs most: loses over 1 % of |fp32| more than either other part, by the whole paired 95 % intervals; – where that is \
not shown, because nothing is lost, or everything, or the episodes are too few. Each policy is one training.
"""


def condition(part: str, bits: int) -> Condition:
    """At 8 bits all three are one and the same policy."""
    return {"part": part if bits != OTHERS_BITS else "all", "bits": bits}


def options(parser: argparse.ArgumentParser) -> None:
    """--bits."""
    parser.add_argument(
        "--bits", type=command_line.bits(2, 8), metavar="4,3,2", help="default: 7 … 2, of robots 4,3,2; and 8"
    )


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, all parts at 8 bits, and each part at each width below."""
    below = arguments.bits or (BITS_OF_ROBOTS if subject in ROBOTS else BITS)
    return [
        {},
        condition("all", OTHERS_BITS),
        *(condition(part, n) for part in PARTS for n in below if n < OTHERS_BITS),
    ]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """One part at its width, the other two at 8 bits; the head's outputs keep 8 in any case."""
    bundle, task = open_perceptron(subject)
    given = {part: asked["bits"] if part == asked["part"] else OTHERS_BITS for part in PARTS} if asked else {}
    widths = Widths(Scheme.SYMMETRIC, given["weights"], given["hidden"], given["input"]) if given else None
    decide, measures = quantized(bundle, widths)
    yield from fly(task, decide, episodes, measures)


def points(summary: DataFrame, subject: str, part: str) -> DataFrame:
    """A part's widths, from many bits to few, on the preset that the policy was trained on."""
    mine = summary[(summary.subject == subject) & summary.part.isin((part, "all"))]
    return mine[mine.preset == mine.preset.iloc[0]].sort_values("bits", ascending=False)


def fewest_bits(summary: DataFrame, subject: str, part: str, limit: float) -> int | None:
    """The fewest bits at which, and at all larger measured widths, the error is within the limit."""
    fewest = None
    for row in points(summary, subject, part).to_dict("records"):
        if row[ERROR] is None or not row[ERROR].is_within(limit):
            break
        fewest = row["bits"]
    return fewest


def first_loss(summary: DataFrame, subject: str) -> tuple[int, tuple[str, ...]] | None:
    """Going down from 8 bits: the first width at which parts surely cost more than the limit, and these parts."""
    costs: dict[int, list[str]] = {}
    for part in PARTS:
        for row in points(summary, subject, part).to_dict("records"):
            if row[ERROR] is not None and row[ERROR].is_above(LIMITS[0]):
                costs.setdefault(row["bits"], []).append(part)
    return (max(costs), tuple(costs[max(costs)])) if costs else None


def costliest(results: Results, subject: str, bits: int) -> str | None:
    """The part that costs over 1 % more than either other one at a width, by the whole intervals; None if undecided."""
    preset = results.summary[results.summary.subject == subject].preset.iloc[0]
    for part in PARTS:
        more = [
            results.contrast(subject, condition(part, bits), condition(other, bits), preset)
            for other in PARTS
            if other != part
        ]
        if all(each is not None and each.is_above(MARGIN) for each in more):
            return part
    return None


def tables(results: Results) -> list[Table]:
    """What each part takes, and which one costs most."""
    summary = results.summary
    subjects = list(dict.fromkeys(summary.subject))
    rows: list[tuple[str, ...]] = []
    costs = []
    for subject in subjects:
        for part, name in PARTS.items():
            mine = points(summary, subject, part).set_index("bits")
            fewest = (fewest_bits(summary, subject, part, limit) for limit in LIMITS)
            rows.append((
                f"{subject}, n={mine.episodes.iloc[0]:,}" if part == "weights" else "",
                name,
                *(NOT_KNOWN if bits is None else str(bits) for bits in fewest),
                *(lost(mine[ERROR].get(bits)) for bits in SHOWN),
            ))  # fmt: skip
        rows.append(())
        first = first_loss(summary, subject)
        where = "nothing down to 2" if first is None else f"{said(first[1])}, at {first[0]} bits"
        costs.append((subject, where, *(PARTS.get(costliest(results, subject, n) or "", NOT_KNOWN) for n in SHOWN)))
    headers = (*(f"bits within {limit:g} %" for limit in LIMITS), *(f"error at {bits} bits, %" for bits in SHOWN))
    firsts = [found[1] for subject in subjects if (found := first_loss(summary, subject))]
    notes = filled(
        COSTS_NOTES,
        limit=f"{LIMITS[0]:g}",
        parts=PARTS,
        firsts=firsts,
        several_at_once=sum(len(parts) > 1 for parts in firsts),
        costliest={bits: [costliest(results, subject, bits) for subject in subjects] for bits in SHOWN},
        policies=len(subjects),
        few=FEW,
        within=within(summary, subjects),
    )
    return [
        Table(
            "precision-apart",
            "One part with few bits, the other two with 8: what it costs",
            ("policy, episodes", "part", *headers),
            tuple(rows),
            filled(NOTES, measured=results.measured),
            left=2,
        ),
        Table(
            "precision-costs",
            "Which part decides",
            ("policy", f"first to cost over {LIMITS[0]:g} %", *(f"costs most at {bits} bits" for bits in SHOWN)),
            tuple(costs),
            notes,
            left=2,
        ),
    ]


FINDING = """\
One part of a policy at {{ few }} bits, the others at 8: within {{ limit }} % of fp32 by the whole interval in \
{% for name, count in within.items() %}{{ count }} of {{ policies }} policies where it is the {{ name }}\
{{ ", in " if not loop.last }}{% endfor %}.
"""


def finding(results: Results) -> str:
    """Which part may have few bits, and how often."""
    summary = results.summary
    subjects = list(dict.fromkeys(summary.subject))
    (said,) = filled(FINDING, few=FEW, limit=f"{LIMITS[0]:g}", policies=len(subjects), within=within(summary, subjects))
    return said


def within(summary: DataFrame, subjects: Sequence[str]) -> dict[str, int]:
    """How many policies each part leaves within the larger limit at :data:`FEW` bits and above."""
    return {
        name: sum((fewest_bits(summary, subject, part, LIMITS[0]) or 99) <= FEW for subject in subjects)
        for part, name in PARTS.items()
    }


def said(parts: Sequence[str]) -> str:
    """``weights and observation``, ``all three``."""
    return "all three" if len(parts) == len(PARTS) else several(PARTS[part] for part in parts)


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each policy, error against bits, a line for each part."""
    summary = results.summary
    panels = [
        Panel(
            f"{subject}  n={points(summary, subject, 'all').episodes.iloc[0]:,}",
            [
                Line(
                    name, {row["bits"]: row[ERROR] for row in points(summary, subject, part).to_dict("records")}, style
                )
                for style, (part, name) in enumerate(PARTS.items())
            ],
        )
        for subject in dict.fromkeys(summary.subject)
    ]
    drawn = facets(
        panels,
        sorted(summary.bits.dropna().unique()),
        title="One part with few bits, the other two with 8",
        said="relative error of the return, % of |fp32| (linear up to 5, then logarithmic); bars: 95 % intervals\n"
        "n: episodes a point, the same at every point of a policy; dotted: 5 %",
        x_label="bits of the part",
        scale=error_scale,
    )
    return {"precision-apart": drawn}


EXPERIMENT = of_bundles(
    name="apart",
    question="which has to keep its bits: weights, hidden activations, observation?",
    factors=("part", "bits"),
    subjects=PERCEPTRONS[:-2],  # HalfCheetah and III take hours
    grid=grid,
    measure=measure,
    tables=tables,
    figures=figures,
    finding=finding,
    options=options,
)
