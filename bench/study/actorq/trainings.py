"""Do quantized actors make distributed training faster, and is the same learned?

    python -m bench.study actorq-trainings cartpole_balance --seeds 0
    python -m bench.study actorq-trainings --keep                     what is not kept yet; one to four minutes each
    python -m bench.study actorq-trainings big-actors big-learner --keep    where actors are waited for, or the learner
    python -m bench.study actorq-trainings --stored --update-docs     fills docs/actorq.md, draws the picture

Each training is the command that a user types, in processes of its own, with actors in int8 and in fp32; everything is
read from the bundle that it writes. A row's value is the greedy return of the learner's policy, judged in fp32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.figures import Line, Panel, facets
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, filled
from bench.study.actorq.cells import CELLS, INT8, LEARNING, Cell, pairs, rates
from bench.study.actorq.costs import bound_table, cost_table
from bench.study.actorq.runs import NAMES, Run, run, spread
from bench.study.experiment import Episodes, Experiment, Played, Results
from bench.study.records import Condition, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {32: 0, 8: 1}

RETURN_NOTES = """\
The difference is shown not to be 0 in {{ decided }} of {{ losses | length }} tasks. By the intervals' lower ends int8 \
actors cost at most, in % of fp32's return: {% for name, percent in losses %}{{ name }} {{ percent }}\
{{ ", " if not loop.last }}{% endfor %}.
Means over seeds with 95 % intervals (Student's t), of the difference paired by seed; each policy judged over fresh \
episodes in fp32. Time to the goal: from the first steps to the first judgement at or above it, fp32's over int8's, \
median of seeds that reached it with both, in brackets the smallest and the largest; steps/s: int8's over fp32's, \
after the learner's rounds that compile. Two actors (D4PG: four), a learner, a replay and a parameter server share the \
machine's cores. Goals and steps were set after trials with seed 0 (walker_stand: 7).
{{ where }}.
"""


def about(subject: str) -> str:
    """The command; refuses what is no cell."""
    return f"{subject}: {identity(subject)}"


def identity(subject: str) -> str:
    """The command: rows of other words are stale."""
    if subject not in CELLS:
        raise command_line.UsageError(f"there is no cell {subject!r}.", f"take some of {', '.join(CELLS)}")
    return f"python -m train.actorq {' '.join(CELLS[subject].words)}"


def seeds(arguments: argparse.Namespace, subject: str) -> Episodes:
    """Five trainings where returns are compared, three where only the pace is."""
    count = 5 if subject in CELLS and CELLS[subject].purpose == LEARNING else 3
    return Episodes(arguments.seeds or tuple(range(count)), 0)


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """One training for each seed."""
    for seed in episodes.seeds:
        words = [*CELLS[subject].words, "--quantize", str(asked.get("bits", 32)), "--seed", str(seed)]
        done = run(words)
        yield Played("", seed, [float(done.provenance["judged"][0]["mean_return"])], measures=measures_of(done))


def measures_of(done: Run) -> dict[str, Any]:
    """What is kept of a training beside its return.

    ``curve``: (step, seconds since the first report, greedy return) of every judgement. ``breakdown``: microseconds a
    step by part, all actors together; ``learner_seconds``: by part.
    """
    told, parameters, rates = done.told, done.told["parameters"], done.rates
    judged = [row for row in done.curve if "greedy_return" in row]
    return {
        "steps": int(done.provenance["steps"]),
        "updates": int(done.provenance["updates"]),
        "steps_per_s": rates["steps_per_s"],
        "updates_per_s": rates["updates_per_s"],
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        **{name: int(parameters[name]) for name in ("bytes_served", "bytes_each", "versions_built", "versions_put")},
        "breakdown": dict(told["breakdown"]["microseconds_per_step"]),
        **{name: dict(told[name]) for name in ("learner_seconds", "mismatch", "staleness")},
        "curve": [[int(row["step"]), row["wall_s"] - done.curve[0]["wall_s"], row["greedy_return"]] for row in judged],
    }


# --- what follows -----------------------------------------------------------------------------------------------------


def goal_s(cell: Cell, record: Record) -> float | None:
    """Seconds to the first judgement at the goal or above, if there is one."""
    curve = record["measures"]["curve"]
    return next((seconds for _, seconds, value in curve if cell.goal is not None and value >= cell.goal), None)


def tables(results: Results) -> list[Table]:
    """Those of which something is kept."""
    names = [name for name in CELLS if pairs(results, name)]
    learned = [name for name in names if CELLS[name].purpose == LEARNING]
    bound = [name for name in names if name not in learned]
    return [
        *([returns_table(results, learned), cost_table(results, learned)] if learned else []),
        *([bound_table(results, bound)] if bound else []),
    ]


def returns_table(results: Results, names: Sequence[str]) -> Table:
    """Whether actors in int8 learn what actors in fp32 learn, and in what time."""
    lines, losses, decided = [], [], 0
    for name in names:
        cell, found = CELLS[name], pairs(results, name)
        own, theirs = ([side["returns"][0] for side in sides] for sides in zip(*found, strict=True))
        gain = Estimate.of_mean([one - other for one, other in zip(own, theirs, strict=True)])
        fp32 = Estimate.of_mean(theirs)
        most = -(gain.value if gain.low is None else gain.low) / abs(fp32.value)
        losses.append((name, f"{max(0.0, 100 * most):.0f}"))
        decided += gain.low is not None and gain.high is not None and not gain.low <= 0.0 <= gain.high
        times = [(goal_s(cell, one), goal_s(cell, other)) for one, other in found]
        compared = [other / one for one, other in times if one and other is not None]
        reached = "/".join(str(sum(side is not None for side in sides)) for sides in zip(*times, strict=True))
        lines.append(
            (
                name, cell.method, f"{found[0][0]['measures']['steps']:,}", estimate(Estimate.of_mean(own)),
                estimate(fp32), estimate(gain, sign="+"),
                f"{cell.goal:g} ({reached} of {len(found)})".replace("-", "−"),
                spread(compared) if compared else NOT_KNOWN, spread(rates(found)),
            )
        )  # fmt: skip
    headers = (
        "task", "method", "steps", "int8 actors", "fp32 actors", "difference", "goal (int8/fp32)", "time to it",
        "steps/s",
    )  # fmt: skip
    return Table(
        "actorq-returns",
        "Trained with actors in int8 and in fp32: greedy return of the learner's policy, and speed",
        headers,
        tuple(lines),
        filled(RETURN_NOTES, losses=losses, decided=decided, where=results.where),
        left=2,
    )


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each task: the greedy return against time, a median and a band for each precision."""
    panels = []
    for name, cell in CELLS.items():
        if cell.purpose != LEARNING or not pairs(results, name):
            continue
        lines = [
            Line(f"{NAMES[bits]} actors", curve_of(results.records_of(name, condition)), STYLES[bits])
            for bits, condition in ((32, {}), (8, INT8))
        ]
        count = len(pairs(results, name))
        title = f"{name}, {cell.method}  n={count}"
        panels.append(Panel(title, lines, Estimate(cell.goal) if cell.goal is not None else None, "goal"))
    if not panels:
        return {}
    drawn = facets(
        panels,
        None,
        title="The learner's greedy return, by the actors' precision",
        said="line: median of the seeds, at the median time of their judgements; band: from the smallest to the "
        "largest\nn: seeds; dashed: the return that counts as learned",
        x_label="seconds",
        y_label="greedy return",
        columns=3,
    )
    return {"actorq-curves": drawn}


def curve_of(found: Sequence[Record]) -> dict[float, Estimate]:
    """Median, smallest and largest return of each judgement that all seeds have, at its median time."""
    points = {}
    for judged in zip(*(each["measures"]["curve"] for each in found), strict=False):
        values = [value for _, _, value in judged]
        points[median(seconds for _, seconds, _ in judged)] = Estimate(median(values), min(values), max(values))
    return points


EXPERIMENT = Experiment(
    name="actorq-trainings",
    question="do quantized actors make distributed training faster?",
    factors=("bits",),
    subjects=tuple(CELLS),
    grid=lambda arguments, subject: [{}, INT8],
    measure=measure,
    identity=identity,
    episodes=seeds,
    tables=tables,
    figures=figures,
    about=about,
    samples="",
    timed=True,
    in_turns=True,
)
