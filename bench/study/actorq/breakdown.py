"""Where does an actor's time go, in fp32, fp16 and int8?

    python -m bench.study actorq-breakdown 512,512
    python -m bench.study actorq-breakdown --keep                     measures what is not kept yet of both networks
    python -m bench.study actorq-breakdown --stored --update-docs     fills docs/actorq.md, draws the picture

One actor of cartpole balance on its own, with parameters that change as if a learner were at work. Actor, replay and
parameter server are the processes of a real run (train/actorq/cluster.py); in the learner's place the same policy is
handed over every so often, so that every precision gets as many versions and no update competes for the cores. What is
measured is what an actor costs where it has a core of its own. A seed is a round of all settings.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.figures import Bar, stacked
from bench.report.tables import Table
from bench.report.text import filled
from bench.study.actorq.runs import ACTORS, CARTPOLE_BALANCE, amdahl, options_of, planned, spread
from bench.study.experiment import Episodes, Experiment, Played, Results
from bench.study.records import Condition, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from train.actorq.plan import Plan
    from train.actorq.wire import Pushed

PARTS = ("step", "inference", "pull", "deserialize", "load", "insert", "other")
"""Parts of a step, in the order in which they are drawn; ``other`` is the actor's own Python, exploration included."""
OF_PARAMETERS = ("pull", "deserialize", "load")
LABELS = {"step": "environment step", "other": "Python"}
PERIODS, ROUNDS, STEPS = (30, 300), (0, 1, 2), 3_000
HAND_OVER_EVERY_S = 0.25

NOTES = """\
{{ task }}; one actor, {{ steps }} steps, medians of {{ rounds }} rounds in turn; a new version every {{ every }} s, \
no learner. Native: acting through the project's own engine, else by LiteRT. Period: steps between two looks for \
newer parameters; renewals: those that found some. Parts are wall time on the actor's own clock.
{{ where }}.
"""
SPEED_NOTES = """\
Median of the rounds' ratios, in brackets the smallest and the largest. A renewal: a pull (also one that found nothing \
new), and deserialize and load of a version. Amdahl: the speed-up of a step if only its inference became faster, from \
fp32's share of inference; reached: the step's speed-up as a share of it (above 100 % where parameters become cheaper \
too).
Pull, deserialize and load together take an int8 actor less than one in fp32 in {{ cheaper }} of {{ settings }} \
settings ({{ shares | join(", ") }} of fp32's time). fp16 loads for longer than it does anything else in {{ loading }} \
of {{ halves }}.
"""


def options(parser: argparse.ArgumentParser) -> None:
    """--steps."""
    parser.add_argument("--steps", type=command_line.positive, default=STEPS, help="of a measurement (%(default)s)")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Each precision at each period."""
    steps = {} if arguments.steps == STEPS else {"steps": arguments.steps}
    return [{**steps, "period": period, **width} for period in PERIODS for width in ACTORS.values()]


def typed(model: str, **more: object) -> list[str]:
    """Words of ``python -m train.actorq`` for one actor of that network."""
    words = f"--task {CARTPOLE_BALANCE} --model {model} --method d4pg --n-actors 1 --samples-per-insert 0".split()
    return words + [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """One actor's life in each round."""
    from train.actorq import cluster

    more = {"steps": asked.get("steps", STEPS), "actor_update_period": asked["period"]}
    plan = planned([*typed(subject, **more), *options_of(asked)])
    pushed = handed_over(subject)
    with cluster.connected(plan.actorq, None):
        for seed in episodes.seeds:
            found = lived(plan, pushed)
            yield Played("", seed, [sum(found["microseconds"].values())], measures=found)


@functools.cache
def handed_over(model: str) -> Pushed:
    """Parameters of a learner that has made a few rounds."""
    from bench.study.actorq import services

    plan = planned(typed(model, steps=STEPS, set=f"learning_starts={services.LEAST_STEPS // 2}"))
    return services.measure_learner(plan, services.transitions(plan))[1]


def lived(plan: Plan, pushed: Pushed) -> dict[str, Any]:
    """Microseconds of a step by part, and what was counted; Ray runs already."""
    from train.actorq import cluster
    from train.actorq.history import breakdown
    from train.actorq.processes import called

    with cluster.Cluster(plan, True, 0) as processes:
        count = itertools.count()

        def put() -> None:
            called(processes.server.put, dataclasses.replace(pushed, updates=next(count)))

        put()
        called(processes.server.latest, 0)  # built before the actor asks
        acting = processes.actor(0, 0).run.remote()
        while not cluster.ready([acting], HAND_OVER_EVERY_S):
            put()
        facts, server = cluster.outcome(acting), called(processes.server.facts)
    told = breakdown([facts])
    return {
        "microseconds": {part: told["microseconds_per_step"][part] for part in PARTS},
        **{name: told[name] for name in ("steps", "pulls", "renewals")},
        "bytes_each": server["bytes_each"],
        "build_s": server["build_s"] / max(server["versions_built"], 1),
    }


# --- what follows -----------------------------------------------------------------------------------------------------


def medians(rounds: list[Record]) -> dict[str, float]:
    """Median over the rounds of every part, microseconds a step."""
    return {part: median(each["measures"]["microseconds"][part] for each in rounds) for part in PARTS}


def compared(record: Record) -> Mapping[str, float]:
    """Microseconds of a step, of its inference, and of a renewal: a pull, and deserialize and load of a version."""
    found = record["measures"]
    parts = found["microseconds"]
    opening = (parts["deserialize"] + parts["load"]) / max(found["renewals"], 1)
    renewal = found["steps"] * (parts["pull"] / max(found["pulls"], 1) + opening)
    return {"step": record["returns"][0], "inference": parts["inference"], "a renewal": renewal}


def ratios(ones: list[Record], others: list[Record]) -> dict[str, list[float]]:
    """fp32's numbers over the other's, of the rounds that both have."""
    by_round = {each["seed"]: compared(each) for each in others}
    both = [(compared(each), by_round[each["seed"]]) for each in ones if each["seed"] in by_round]
    return {name: [fp32[name] / max(own[name], 1e-9) for own, fp32 in both] for name in (both[0][0] if both else ())}


def settings(results: Results) -> Iterator[tuple[dict[str, str], list[Record], list[Record]]]:
    """The leading columns, and the rounds of every cell and of its reference, many bits first."""
    shared = results.experiment.reference
    groups = dict.fromkeys((each["subject"], *shared(each["condition"]).items()) for each in results.found)
    for (subject, *common), (actor, width) in itertools.product(groups, ACTORS.items()):
        asked = dict(common)
        name = subject + (f", {asked['steps']:,} steps" if "steps" in asked else "")
        if rounds := results.records_of(subject, {**asked, **width}):
            lead = {"model": name, "period": str(asked["period"]), "actor": actor}
            yield lead, rounds, results.records_of(subject, asked)


def tables(results: Results) -> list[Table]:
    """An actor's time by part, and what fewer bits bring it."""
    parts: list[dict[str, str]] = []
    speeds, shares, loading = [], [], []
    for lead, rounds, reference in settings(results):
        found = medians(rounds)
        if lead["actor"] == "fp32" and parts:
            parts.append({})
        parts.append(
            {
                **lead,
                **{part: f"{found[part]:,.0f}" for part in PARTS},
                "all": f"{sum(found.values()):,.0f}",
                "MB a version": f"{rounds[0]['measures']['bytes_each'] / 1e6:,.2f}",
                "renewals": f"{median(each['measures']['renewals'] for each in rounds):g}",
            }
        )
        faster = ratios(rounds, reference)
        if lead["actor"] == "fp32" or not faster:
            continue
        full = medians(reference)
        ideal = amdahl(full["inference"] / sum(full.values()), full["inference"] / max(found["inference"], 1e-9))
        reached = f"{100 * median(faster['step']) / ideal:.0f} %"
        spreads = {name: spread(values) for name, values in faster.items()}
        speeds.append({**lead, **spreads, "Amdahl": f"{ideal:.2f}×", "reached": reached})
        if lead["actor"].startswith("int8"):
            shares.append(sum(found[part] for part in OF_PARAMETERS) / sum(full[part] for part in OF_PARAMETERS))
        else:
            loading.append(max(found, key=lambda part: found[part]) == "load")
    if not parts:
        return []
    title = "Where an actor's time goes: microseconds a step of the environment"
    notes = filled(NOTES, **said(results), where=results.where)
    made = [Table.of("actorq-breakdown", title, parts, notes, left=3)]
    if speeds:
        title = "An actor alone, against fp32 in the same round: how many times as fast"
        counts = {"cheaper": sum(each < 1 for each in shares), "settings": len(shares)} | {
            "loading": sum(loading),
            "halves": len(loading),
        }
        notes = filled(SPEED_NOTES, **counts, shares=[f"{100 * each:.0f} %" for each in shares])
        made.append(Table.of("actorq-actor", title, speeds, notes, left=3))
    return made


def said(results: Results) -> dict[str, Any]:
    """What all measurements share."""
    steps = sorted({record["measures"]["steps"] for record in results.found})
    return {
        "task": CARTPOLE_BALANCE,
        "steps": " or ".join(f"{each:,}" for each in steps),
        "rounds": len({record["seed"] for record in results.found}),
        "every": HAND_OVER_EVERY_S,
    }


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each network, bars in two groups: a period each."""
    panels: dict[str, list[Bar]] = {}
    for lead, rounds, _ in settings(results):
        parts = {LABELS.get(part, part): value for part, value in medians(rounds).items()}
        bar = Bar(lead["actor"], f"pull every {lead['period']} steps", parts)
        panels.setdefault(f"policy {rounds[0]['subject']}", []).append(bar)
    shared = said(results)
    drawn = stacked(
        panels,
        title="Where an actor's time goes",
        said=f"{shared['task']}, {shared['steps']} steps, medians of {shared['rounds']} rounds; one actor,\n"
        f"a new version every {shared['every']} s; above the bars: their sums",
        y_label="µs a step of the environment",
    )
    return {"actorq-breakdown": drawn}


EXPERIMENT = Experiment(
    name="actorq-breakdown",
    question="where does an actor's time go?",
    factors=("steps", "period", "bits", "runtime"),
    subjects=("512,512", "2048,2048,2048"),
    grid=grid,
    measure=measure,
    identity=lambda subject: CARTPOLE_BALANCE,
    episodes=lambda arguments, subject: Episodes(arguments.seeds or ROUNDS, 0),
    tables=[tables],
    figures=[figures],
    options=options,
    within=("steps", "period"),
    samples="",
    timed=True,
    in_turns=True,
)
