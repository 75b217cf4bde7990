"""Where does an actor's time go, in fp32, fp16 and int8?"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import GREY, ORANGE, PURPLE, SKY_BLUE, YELLOW, add_heading, new_figure, style
from quarl.bench.report.text import format_fixed
from quarl.bench.study import command
from quarl.bench.study.actorq.runs import ACTORS, CARTPOLE_BALANCE, amdahl, make_plan, options_of, spread
from quarl.bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult
from quarl.bench.study.records import Condition, Record
from quarl.bench.tables import Table, group_by, tabulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quarl.train.actorq.plan import Plan
    from quarl.train.actorq.replay import Columns
    from quarl.train.actorq.wire import Pushed

PARTS = ("step", "inference", "pull", "deserialize", "load", "insert", "other")
"""Parts of a step, in the order in which they are drawn; ``other`` is the actor's own Python, exploration included."""
OF_PARAMETERS = ("pull", "deserialize", "load")
LABELS = {"step": "environment step", "other": "Python"}
FILLS = (
    (SKY_BLUE, ""), (ORANGE, "//"), (PURPLE, ".."), (YELLOW, "xx"), ("#333333", ""), (GREY, "++"), ("#C8C8C8", ""),
)  # fmt: skip
"""Colour and hatch of each part: none of them a colour of the precisions."""
PERIODS, ROUNDS, STEPS = (30, 300), (0, 1, 2), 3_000
HAND_OVER_EVERY_S = 0.25
INSERTED_STEPS, LEARNED_ROUNDS = 600, 3  # of the learner whose parameters are handed over

NOTES = """\
Where an actor's time goes: microseconds a step of the environment
{{ task }}; one actor, {{ steps }} steps, medians of {{ rounds }} rounds in turn; a new version every {{ every }} s, \
no learner. Native: acting through the project's own engine, else by LiteRT. Period: steps between two looks for \
newer parameters; renewals: those that found some. Parts are wall time on the actor's own clock.
{{ results.where }}.
"""
SPEED_NOTES = """\
{% set int8 = rows | selectattr("actor", "in", ("int8", "int8, native")) | map(attribute="parameters") | list %}
{% set loading = rows | rejectattr("actor", "in", ("int8", "int8, native")) | map(attribute="longest") | list %}
An actor alone, against fp32 in the same round: how many times as fast
Median of the rounds' ratios, in brackets the smallest and the largest. A renewal: a pull (also one that found nothing \
new), and deserialize and load of a version. Amdahl: the speed-up of a step if only its inference became faster, from \
fp32's share of inference; reached: the step's speed-up as a share of it (above 100 % where parameters become cheaper \
too).
Pull, deserialize and load together take an int8 actor less than one in fp32 in \
{{ int8 | select("lt", 1) | list | length }} of {{ int8 | length }} settings \
({% for share in int8 %}{{ (100 * share) | fixed }} %{{ ", " if not loop.last }}\
{% endfor %} of fp32's time). fp16 loads \
for longer than it does anything else in {{ loading | select("eq", "load") | list | length }} \
of {{ loading | length }}.
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.Options):
    """What to measure.

    Attributes:
        steps: of a measurement
    """

    steps: command_line.Positive = STEPS


def grid(options: Options, subject: str) -> list[Condition]:
    """Return each precision at each period."""
    steps = {} if options.steps == STEPS else {"steps": options.steps}
    return [{**steps, "period": period, **width} for period in PERIODS for width in ACTORS.values()]


def actorq_words(model: str, **more: object) -> list[str]:
    """Words of ``quarl actorq`` for one actor of that network."""
    words = f"--task {CARTPOLE_BALANCE} --model {model} --method d4pg --n-actors 1 --samples-per-insert 0".split()
    return words + [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Yield one actor's life in each round."""
    from quarl.train.actorq import cluster

    overrides = {"steps": condition.get("steps", STEPS), "actor_update_period": condition["period"]}
    plan = make_plan([*actorq_words(subject, **overrides), *options_of(condition)])
    pushed = prepare_parameters(subject)
    with cluster.ray_session(plan.actorq, None):
        for seed in episodes.seeds:
            measures = run_actor(plan, pushed)
            yield SeedResult("", seed, [sum(measures["microseconds"].values())], measures=measures)


@functools.cache
def prepare_parameters(model: str) -> Pushed:
    """Parameters of a learner that has made a few rounds."""
    from quarl.train.actorq.learner import LearnerLoop
    from quarl.train.actorq.replay import ReplayService, Reply

    plan = make_plan(actorq_words(model, steps=STEPS, set=f"learning_starts={INSERTED_STEPS // 2}"))
    service, rounds = ReplayService(plan, 0), itertools.count()
    handed: deque[Pushed] = deque(maxlen=1)
    for columns in transitions(plan):
        service.insert(columns, {"actor": 0, "life": 0})

    def sample(updates: int) -> tuple[Columns | None, Reply]:
        answer = service.sample(updates)
        assert answer is not None
        return (answer[0] if next(rounds) < LEARNED_ROUNDS else None), answer[1]

    LearnerLoop(plan, sample, service.recent, handed.append, service.update_priorities).run()
    return handed[0]


def transitions(plan: Plan) -> list[Columns]:
    """Return the insertions that a real actor makes while it has no parameters."""
    from quarl.train.actorq.actor import Actor
    from quarl.train.actorq.replay import Reply

    insertions: list[Columns] = []

    def insert(columns: Columns, facts: dict[str, Any]) -> Reply:
        insertions.extend([columns] if columns else [])
        return Reply(0, 0, facts["steps"] >= INSERTED_STEPS)

    Actor(plan, 0, 0, lambda known: None, insert).run()
    return insertions


def run_actor(plan: Plan, pushed: Pushed) -> dict[str, Any]:
    """Microseconds of a step by part, and what was counted; Ray runs already."""
    from quarl.train.actorq import cluster
    from quarl.train.actorq.history import breakdown
    from quarl.train.actorq.processes import call_process

    with cluster.Cluster(plan, True, 0) as processes:
        count = itertools.count()

        def put() -> None:
            call_process(processes.server.put, dataclasses.replace(pushed, updates=next(count)))

        put()
        call_process(processes.server.latest, 0)  # built before the actor asks
        acting = processes.actor(0, 0).run.remote()
        while not cluster.ready([acting], HAND_OVER_EVERY_S):
            put()
        facts, server = cluster.outcome(acting), call_process(processes.server.facts)
    summary = breakdown([facts])
    return {
        "microseconds": {part: summary["microseconds_per_step"][part] for part in PARTS},
        **{name: summary[name] for name in ("steps", "pulls", "renewals")},
        "bytes_each": server["bytes_each"],
        "build_s": server["build_s"] / max(server["versions_built"], 1),
    }


# --- what follows -----------------------------------------------------------------------------------------------------


def medians(rounds: list[Record]) -> dict[str, float]:
    """Median over the rounds of every part, microseconds a step."""
    return {part: median(record["measures"]["microseconds"][part] for record in rounds) for part in PARTS}


def extract_times(record: Record) -> Mapping[str, float]:
    """Microseconds of a step, of its inference, and of a renewal: a pull, and deserialize and load of a version."""
    measures = record["measures"]
    parts = measures["microseconds"]
    opening = (parts["deserialize"] + parts["load"]) / max(measures["renewals"], 1)
    renewal = measures["steps"] * (parts["pull"] / max(measures["pulls"], 1) + opening)
    return {"step": record["returns"][0], "inference": parts["inference"], "a renewal": renewal}


def ratios(ones: list[Record], others: list[Record]) -> dict[str, list[float]]:
    """fp32's numbers over the other's, of the rounds that both have."""
    by_round = {record["seed"]: extract_times(record) for record in others}
    both = [(extract_times(record), by_round[record["seed"]]) for record in ones if record["seed"] in by_round]
    return {name: [fp32[name] / max(own[name], 1e-9) for own, fp32 in both] for name in (both[0][0] if both else ())}


def settings(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each network, period and actor, many bits first: medians of its parts, and against fp32's
    rounds."""
    shared = results.experiment.reference
    groups = dict.fromkeys((entry["subject"], *shared(entry["condition"]).items()) for entry in results.found)
    for (subject, *common), (actor, width) in itertools.product(groups, ACTORS.items()):
        condition = dict(common)
        rounds, reference = results.records_of(subject, {**condition, **width}), results.records_of(subject, condition)
        if rounds:
            measures = [entry["measures"] for entry in rounds]
            yield {
                "subject": subject,
                "period": condition["period"],
                "actor": actor,
                "model": subject + (f", {condition['steps']:,} steps" if "steps" in condition else ""),
                "parts": medians(rounds),
                "megabytes": measures[0]["bytes_each"] / 1e6,
                "renewals": median(entry["renewals"] for entry in measures),
                "fp32": medians(reference) if reference else {},
                "faster": ratios(rounds, reference),
            }


def speeds(results: Results) -> Iterator[dict[str, Any]]:
    """Yield the rows of few bits, with their speed-ups and what Amdahl's law allows."""
    for row in settings(results):
        if row["actor"] != "fp32" and row["faster"]:
            own, full = row["parts"], row["fp32"]
            ideal = amdahl(full["inference"] / sum(full.values()), full["inference"] / max(own["inference"], 1e-9))
            of_parameters = (sum(parts[part] for part in OF_PARAMETERS) for parts in (own, full))
            spreads = {name: spread(values) for name, values in row["faster"].items()}
            summary = {"amdahl": ideal, "reached": median(row["faster"]["step"]) / ideal, "spreads": spreads}
            yield {
                **row,
                **summary,
                "parameters": truediv(*of_parameters),
                "longest": max(own, key=lambda part: own[part]),
            }


def facts(results: Results) -> dict[str, Any]:
    """Return what all measurements share."""
    steps = sorted({record["measures"]["steps"] for record in results.found})
    return {
        "task": CARTPOLE_BALANCE,
        "steps": " or ".join(f"{count:,}" for count in steps),
        "rounds": len({record["seed"] for record in results.found}),
        "every": HAND_OVER_EVERY_S,
    }


def times_table(results: Results) -> list[Table]:
    """Medians of the parts of a step, for each network, period and actor."""
    rows = list(settings(results))
    if not rows:
        return []
    lines = [
        {
            **lead_cells(row),
            **{part: format_fixed(row["parts"][part]) for part in PARTS},
            "all": format_fixed(sum(row["parts"].values())),
            "MB a version": format_fixed(row["megabytes"], 2),
            "renewals": f"{row['renewals']:g}",
        }
        for row in rows
    ]
    name, rules = "actorq-breakdown", ("model", "period")
    return [tabulate(name, NOTES, lines, left=3, rules=rules, results=results, **facts(results))]


def lead_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Network, period and actor."""
    return {name: str(row[name]) for name in ("model", "period", "actor")}


def speed_ups_table(results: Results) -> list[Table]:
    """Return how many times as fast as in fp32 each actor is, and what Amdahl's law allows."""
    rows = list(speeds(results))
    if not rows:
        return []
    lines = [
        {
            **lead_cells(row),
            **{name: row["spreads"][name] for name in ("step", "inference", "a renewal")},
            "Amdahl": f"{row['amdahl']:.2f}×",
            "reached": f"{100 * row['reached']:.0f} %",
        }
        for row in rows
    ]
    return [tabulate("actorq-actor", SPEED_NOTES, lines, left=3, rows=rows)]


@style()
def picture(results: Results) -> dict[str, Figure]:
    """Stacked bars: a panel for each network, bars grouped by the period, their sums above them."""
    panels = group_by(settings(results), lambda row: row["subject"])
    if not panels:
        return {}
    named = facts(results)
    below = (
        f"{named['task']}, {named['steps']} steps, medians of {named['rounds']} rounds; one actor,\n"
        f"a new version every {named['every']} s; above the bars: their sums"
    )
    figure = new_figure(4.2 * len(panels), 4.4)
    grid = figure.subplots(1, len(panels), squeeze=False).ravel()
    for axes, (subject, rows) in zip(grid, panels.items(), strict=True):
        _stack(axes, rows)
        axes.set_title(f"policy {subject}")
    grid[0].set_ylabel("µs a step of the environment")
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    add_heading(figure, "Where an actor's time goes", below, 2)
    return {"actorq-breakdown": figure}


def _stack(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    periods = list(dict.fromkeys(row["period"] for row in rows))
    places = [index + 0.6 * periods.index(row["period"]) for index, row in enumerate(rows)]
    bottoms = [0.0] * len(rows)
    for part, (colour, hatch) in zip(PARTS, FILLS, strict=True):
        heights = [row["parts"][part] for row in rows]
        fill: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
        axes.bar(places, heights, 0.8, bottoms, label=LABELS.get(part, part), **fill)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, top in zip(places, bottoms, strict=True):
        axes.annotate(f"{top:,.0f}", (place, top), ha="center", va="bottom", fontsize=7, color=GREY)
    axes.set_xticks(places, [row["actor"].replace(", ", "\n") for row in rows])
    for period in periods:
        middle = fmean(place for place, row in zip(places, rows, strict=True) if row["period"] == period)
        at: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": 8}
        axes.annotate(f"pull every {period} steps", (middle, -0.18), **at)
    axes.margins(y=0.1)


EXPERIMENT = Experiment(
    name="actorq-breakdown",
    factors=("steps", "period", "bits", "runtime"),
    subjects=("512,512", "2048,2048,2048"),
    grid=grid,
    measure=measure,
    identity=lambda subject: CARTPOLE_BALANCE,
    episodes=lambda options, subject: EpisodePlan(options.seeds or ROUNDS, 0),
    tables=[times_table, speed_ups_table],
    figures=[picture],
    within=("steps", "period"),
    timed=True,
    in_turns=True,
)


@cli.verb()
def breakdown(options: Options) -> int:
    """Where does an actor's time go, in fp32, fp16 and int8?

        quarl study actorq-breakdown 512,512
        quarl study actorq-breakdown --keep                     measures missing rows of both networks
        quarl study actorq-breakdown --stored --update-docs     fills docs/actorq.md, draws the picture

    One actor of cartpole balance on its own, with parameters that change as if a learner were at work. Actor, replay
    and parameter server are the processes of a real run (train/actorq/cluster.py); in the learner's place the same
    policy is handed over repeatedly, so that every precision gets as many versions and no update competes for the
    cores. This measures the cost of an actor that has a core of its own. A seed is a round of all settings.
    """
    return command.run(__name__, options)
