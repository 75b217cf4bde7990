"""Do mixed widths beat the same width everywhere, at the same size?

    python -m bench.study budgets cartpole-dqn --budget-bits 3,4
    python -m bench.study budgets --keep                     measures what is not kept yet of all committed perceptrons
    python -m bench.study budgets --stored --update-docs     fills docs/layers.md, draws the picture

Every assignment of 2 … 8 bits to the layers that is as large as a uniform one is estimated by its output error on
calibration observations. The best is flown on fresh episodes beside the uniform one; a second one is chosen by flying
the six best estimated and the uniform one, on episodes other than those that judge it.

Sizes are bits of the kernels as a packed format would take them. Nothing is packed here: in the int8 container every
weight takes a byte, so no file gets smaller. Symmetric scheme, simulated in float.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.figures import Line, Panel, error_scale, facets
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import estimate, filled, lost
from bench.study.experiment import ERROR, Episodes, Played, Results
from bench.study.flying import (
    PERCEPTRONS,
    SEEDS,
    decide_with,
    float_decide,
    fly,
    of_bundles,
    open_perceptron,
)
from bench.study.layers import estimator
from bench.study.measures.assignments import Assignment, fullest, kernel_sizes, ranked, total_bits, uniform
from bench.study.records import Condition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRESH_SEEDS = (11, 13, 17)  # of judging: nothing was chosen by these
BUDGETS = (3, 4)
TRIED = 6  # assignments of a budget that are flown to choose one, the uniform one apart
UNIFORM, ESTIMATED, FLOWN = "uniform", "estimate", "flight"
LABELS = {UNIFORM: "one width everywhere", ESTIMATED: "mixed, chosen by estimate", FLOWN: "mixed, chosen by flight"}
MARGIN = 1.0  # percent of fp32's return

NOTES = """\
{% for each in gains %}
{{ each.bits }} bits, chosen by {{ each.chosen }}: over {{ margin }} % better than uniform in {{ each.better }} of \
{{ each.policies }} policies, over {{ margin }} % worse in {{ each.worse }}, neither in {{ each.neither }}, uniform \
itself in {{ each.same }}.
{% endfor %}
Bits: of the layers' kernels from the first to the head. Gain: uniform's relative error minus the mixed one's on the \
same episodes, in % of |fp32|, with its paired 95 % interval (Student's t); positive: mixed plays better. Better and \
worse count where the whole interval is.
Chosen by estimate: the least output error on calibration observations, among all assignments that fill the budget; \
nothing was flown. Chosen by flight: the best return of the {{ tried }} with the least output error and the uniform \
one, on seeds {{ seeds }}. All are judged on fresh episodes, seeds {{ fresh }}.
Size: bits of all kernels, as a packed format would take them, at most those of the uniform assignment. In the int8 \
container every weight takes a byte, so no file gets smaller and nothing faster.
{{ measured }}
"""


def options(parser: argparse.ArgumentParser) -> None:
    """--budget-bits."""
    parser.add_argument(
        "--budget-bits", type=command_line.bits(3, 7), metavar="3,4", help="of uniform widths; default: 3,4"
    )


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """fp32, and for each budget the uniform assignment and two mixed ones."""
    budgets = arguments.budget_bits or BUDGETS
    return [{}, *({"budget": bits, "chosen": chosen} for bits in budgets for chosen in LABELS)]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """The assignment that is chosen so, judged on fresh episodes."""
    if both := sorted(set(SEEDS) & set(episodes.seeds)):
        raise command_line.UsageError(f"seed {both[0]} is to choose and to judge.", "--seeds 11,13,17")
    bundle, task = open_perceptron(subject)
    if not asked:
        yield from fly(task, float_decide(bundle), episodes, {})
        return
    kernels = kernel_sizes(bundle.spec)
    assignment, candidates = choose(subject, kernels, asked["budget"], asked["chosen"], episodes.count)
    measures = {
        "widths": "/".join(map(str, assignment.values())),
        "kernel_bits": total_bits(kernels, assignment),
        "candidates": candidates,
        "output_error": estimator(subject).damage(assignment).output_error,
    }
    yield from fly(task, decide_with(bundle.spec, estimator(subject).assembled(assignment)), episodes, measures)


def choose(subject: str, kernels: dict[str, int], bits: int, chosen: str, count: int) -> tuple[Assignment, int]:
    """The assignment, and how many fill the budget; to choose by flight, ``count`` episodes of each seed are flown."""
    same = uniform(kernels, bits)
    if chosen == UNIFORM:
        return same, 1
    choices = ranked(
        fullest(kernels, total_bits(kernels, same)), lambda each: estimator(subject).damage(each).output_error
    )
    if chosen == ESTIMATED:
        return choices[0].bits, len(choices)
    tried = [dict(choice.bits) for choice in choices[:TRIED]]
    tried += [same] if same not in tried else []
    bundle, task = open_perceptron(subject)

    def earned(assignment: Assignment) -> float:
        decide = decide_with(bundle.spec, estimator(subject).assembled(assignment))
        return sum(sum(task.evaluate(decide, count, seed, task.presets[0]).returns) for seed in SEEDS)

    return max(tried, key=earned), len(choices)  # of equal returns the one of the smaller estimate, the earlier one


def judged(results: Results, subject: str, bits: int) -> dict[str, dict[str, Any]]:
    """A budget's three assignments by how they were chosen, on the preset that the policy was trained on, with
    ``gain``: None of the uniform assignment itself, whoever chose it."""
    mine = results.summary[(results.summary.subject == subject) & (results.summary.budget == bits)]
    mine = mine[mine.preset == mine.preset.iloc[0]] if len(mine) else mine
    found = {str(row["chosen"]): row for row in mine.to_dict("records")}
    for chosen, row in found.items():
        same, mixed = ({"budget": bits, "chosen": name} for name in (UNIFORM, chosen))
        is_uniform = row["widths"] == found[UNIFORM]["widths"]
        row["gain"] = None if is_uniform else results.contrast(subject, same, mixed, row["preset"])
    return found


def gains(found: list[Estimate | None]) -> dict[str, int]:
    """How often mixed widths are better by more than the margin."""
    better = sum(gain is not None and gain.is_above(MARGIN) for gain in found)
    worse = sum(gain is not None and (gain.value if gain.high is None else gain.high) < -MARGIN for gain in found)
    same = found.count(None)
    counts = {"better": better, "worse": worse, "same": same, "policies": len(found)}
    return {**counts, "neither": len(found) - better - worse - same}


def tables(results: Results) -> list[Table]:
    """A row for each policy and budget."""
    summary = results.summary
    rows: list[tuple[str, ...]] = []
    every: dict[tuple[int, str], list[Estimate | None]] = {}
    for subject in dict.fromkeys(summary.subject):
        for index, bits in enumerate(sorted(summary[summary.subject == subject].budget.dropna().unique())):
            found = judged(results, subject, bits)
            same = found[UNIFORM]
            cells = []
            for chosen in (ESTIMATED, FLOWN):
                gain = found[chosen]["gain"]
                every.setdefault((bits, chosen), []).append(gain)
                shown = "same" if gain is None else "0" if lost(gain) == "0" else estimate(gain, sign="+")
                cells += [found[chosen]["widths"], shown]
            name = "" if index else f"{subject}, n={same['episodes']:,}"
            rows.append((name, f"{bits} ({same['kernel_bits'] / 1000:,.1f} k)", lost(same[ERROR]), *cells))
        rows.append(())
    notes = filled(
        NOTES,
        gains=[{"bits": bits, "chosen": chosen, **gains(found)} for (bits, chosen), found in sorted(every.items())],
        margin=f"{MARGIN:g}",
        tried=TRIED,
        seeds=", ".join(map(str, SEEDS)),
        fresh=", ".join(map(str, sorted({record["seed"] for record in results.found}))),
        measured=results.measured,
    )
    headers = (f"by {chosen}: {header}" for chosen in (ESTIMATED, FLOWN) for header in ("bits", "gain, %"))
    return [
        Table(
            "layer-widths",
            "Mixed widths against one width everywhere, at the same size",
            ("policy, episodes", "uniform bits (kbit)", "uniform: error, %", *headers),
            tuple(rows),
            notes,
            left=2,
        )
    ]


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each policy: the error of the uniform and of the mixed assignments at each size."""
    summary = results.summary
    budgets = sorted(summary.budget.dropna().unique())
    panels = []
    for subject in dict.fromkeys(summary.subject):
        found = {bits: judged(results, subject, bits) for bits in budgets}
        lines = [
            Line(label, {bits: each[chosen][ERROR] for bits, each in found.items() if each}, style, joined=False)
            for style, (chosen, label) in enumerate(LABELS.items())
        ]
        panels.append(Panel(f"{subject}  n={summary[summary.subject == subject].episodes.iloc[0]:,}", lines))
    drawn = facets(
        panels,
        budgets,
        title="Mixed widths against one width everywhere, at the same size",
        said="relative error of the return, % of |fp32| (linear up to 5, then logarithmic); bars: 95 % intervals\n"
        "n: episodes a point, none of which an assignment was chosen by; dotted: 5 %",
        x_label="bits of the uniform assignment of that size",
        scale=error_scale,
    )
    return {"layer-widths": drawn}


EXPERIMENT = of_bundles(
    name="budgets",
    question="are mixed widths worth it, at the same size?",
    factors=("budget", "chosen"),
    subjects=PERCEPTRONS[:11],  # up to Walker2D: the other robots and III take longest
    grid=grid,
    measure=measure,
    seeds=FRESH_SEEDS,
    tables=tables,
    figures=figures,
    options=options,
)
