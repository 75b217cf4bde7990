"""How many actors can a learner feed? Service times measured here, what they allow 1 … 1,024 actors, and real runs.

    python -m bench.study actorq-scaling 512,512 --no-runs            service times, and what follows from them
    python -m bench.study actorq-scaling --keep                       with real runs of 1, 2 and 4 actors, a minute each
    python -m bench.study actorq-scaling 512,512 --samples-per-insert 4 --keep       further real runs
    python -m bench.study actorq-scaling "64,64 --task cartpole --method dqn"        of another command
    python -m bench.study actorq-scaling --stored --link-mbit-s 10000 --actors-per-machine 16    other assumptions
    python -m bench.study actorq-scaling --stored --update-docs       fills docs/actorq-scaling.md, draws the picture

A subject is a network and further words of python -m train.actorq. Measured are the parts of an actor, of the learner,
of replay and parameter process, by real calls to train/actorq. Operational bounds (bench/study/actorq/bounds.py) say
from these how fast a run can be, with fp32 and with int8 broadcast; beside real runs, with all processes on this
machine's cores. A row's value is steps/s: of a run, or where no number of actors is set, of an actor that only steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.intervals import Estimate
from bench.report.lines import Lines
from bench.report.pivot import Pivot
from bench.report.text import kilobytes, nanoseconds, three_digits
from bench.study.actorq.bounds import LINK_BYTES_PER_S, Layout, Services, bound
from bench.study.actorq.runs import CARTPOLE_BALANCE, NAMES, STYLES, WIDTHS, run
from bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult
from bench.study.records import Condition, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIOS = {"512,512": (16.0, 1.0)}
ACTORS = (1, 2, 4)
RUN_MINUTES = 1.5  # with its start and the rounds that compile
NEVER = 2**60
USUAL = (
    f"--task {CARTPOLE_BALANCE} --method d4pg --batch-size 256 --set learning_starts=500 --steps {NEVER} "
    f"--evaluate-every {NEVER} --evaluate-episodes 1 --final-episodes 1 --model"
)
BITS = (32, 8)
FIELDS = {part.name: part.metadata["words"] for part in dataclasses.fields(Services)}
OF_A_WIDTH = ("inference_s", "build_s", "version_server_s", "renew_s", "version_bytes")
"""Fields that depend on the bits; of all others the mean over the widths is taken, which noise would tell apart."""
COUNTS = tuple(sorted({*(2**power for power in range(11)), *(3 * 2**power for power in range(6))}))
SHOWN = (1, 4, 16, 64, 1024)
SHARES = ("learner", "replay", "parameter process", "broadcast")
COUPLINGS = {
    "16 samples per insertion": (16.0, 1.0),
    "16 samples per insertion, learner 100×": (16.0, 100.0),
    "no coupling": (0.0, 1.0),
}
"""Samples per insertion, and times as fast as the measured learner."""
SERVICE_NOTES = """\
{% set measured = rows | selectattr("bits", "eq", 32) | unique(attribute="command") | list %}
Service times, in seconds of one processor
python -m train.actorq {{ usual }} {{ measured | join("; ", attribute="command") }}. An insertion has \
{{ measured | map(attribute="measures.insert_every") | map("string") | joined }} transitions, a round \
{% for each in measured %}{{ each.measures.updates }} updates of {{ each.measures.rows // each.measures.updates }} \
({{ each.network }}){{ ", " if not loop.last }}{% endfor %}. Handing over, building, fetching and opening are of one \
version, the rest of one call. What does not depend on the precision was measured with both and averaged.
Replay and parameter process through Ray; without Ray an insertion and a round's minibatches take \
{% for each in measured %}{{ (1e9 * each.measures.insert_free_s) | ns }} and \
{{ (1e9 * each.measures.sample_free_s) | ns }} ({{ each.network }}){{ ", " if not loop.last }}{% endfor %}.
{{ results.where }}; load average over the last 15 minutes \
{{ measured | map(attribute="measures.load") | map("fixed", 1) | joined }}.
"""
RUN_NOTES = """\
{% set seconds = rows | map(attribute="measures.seconds") | list %}
What service times allow, beside real runs on the same cores
One run of python -m train.actorq each, counted over {{ seconds | min | fixed }} … {{ seconds | max | fixed }} s after \
the rounds that compile. Bound: what the service times allow on \
{{ rows | map(attribute="measures.cores") | map("string") | joined }} cores; nothing was fitted to these runs.
{% for name, (mean, most) in deviations.items() %}
{{ name }}: off by {{ mean | fixed }} % in steps/s (geometric mean), at most by {{ most | fixed }} %.
{% endfor %}
{% if deviations.Simulated %}
Simulated: discrete events of the same service times, by which this study was made before; kept with these runs.
{% endif %}
"""

LIMIT_NOTES = """\
The most steps per second by the number of actors, a machine for each process
Pace: the server that is at work all the time with {{ most | thousands }} actors; from: the number of actors from \
which on it is not the actors themselves. The last four columns: share of the time at work with {{ most | thousands }} \
actors.
16 samples per insertion: whoever is ahead waits, the command's default. Learner 100×: as if its updates took a \
hundredth. No coupling: the learner learns as fast as it can whatever the actors do, and is no limit to them.
{% set layout = rows[0].layout %}
Network of {{ (layout.link_bytes_per_s * 8 / 1e6) | fixed }} Mbit/s from one parameter process; actors of a machine, \
which get one copy of a version: {{ layout.actors_per_machine }}; replay shards: {{ layout.replay_shards }}.
"""


def options(parser: argparse.ArgumentParser) -> None:
    """Which runs, and what is assumed of machines that are not here."""
    parser.add_argument("--no-runs", action="store_true", help="do without the real runs")
    parser.add_argument("--samples-per-insert", type=float, metavar="16", help="of the real runs")
    group = parser.add_argument_group("assumptions of a machine for each process")
    mbit = int(LINK_BYTES_PER_S * 8 / 1e6)
    group.add_argument("--link-mbit-s", type=command_line.positive, default=mbit, help="network (default: %(default)s)")
    group.add_argument("--actors-per-machine", type=command_line.positive, default=1, help="default: %(default)s")
    group.add_argument("--replay-shards", type=command_line.positive, default=1, help="default: %(default)s")


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """The service times of each width, then the real runs."""
    usual, typed = RATIOS.get(subject, (16.0,)), arguments.samples_per_insert
    ratios = () if arguments.no_runs else usual if typed is None else (typed,)
    runs = [{"samples_per_insert": ratio, "actors": count} for ratio in ratios for count in ACTORS]
    return [{**WIDTHS[bits], **more} for more in ({}, *runs) for bits in BITS]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """A real run, or service times."""
    words = [*USUAL.split(), *subject.split(), "--quantize", str(condition.get("bits", 32))]
    words += ["--samples-per-insert", f"{condition.get('samples_per_insert', 0.0):g}"]
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[2]}
    for seed in episodes.seeds:
        if "actors" in condition:
            more = ["--n-actors", str(condition["actors"]), "--minutes", f"{RUN_MINUTES:g}", "--seed", str(seed)]
            rates = run([*words, *more]).rates
            yield SeedResult("", seed, [rates.pop("steps_per_s")], measures={**rates, **machine})
        else:
            from bench.study.actorq import services

            found = services.measure([*words, "--n-actors", "1"])
            step_s = found["step_s"] + found["inference_s"] + found["python_s"]
            yield SeedResult("", seed, [1.0 / step_s], measures={**found, **machine})


# --- what follows -----------------------------------------------------------------------------------------------------


def measured_services(results: Results) -> Mapping[tuple[str, int], tuple[Record, Services]]:
    """A record, and the mean service times, by network and width."""
    found = {}
    for subject in dict.fromkeys(record["subject"] for record in results.found):
        rows = {bits: results.records_of(subject, WIDTHS[bits]) for bits in BITS}
        every = [record["measures"] for of in rows.values() for record in of]
        for bits, of in rows.items():
            own = [record["measures"] for record in of]
            counted = {name: own if name in OF_A_WIDTH else every for name in FIELDS}
            if own:
                means = {name: fmean(each[name] for each in some) for name, some in counted.items()}
                found[subject, bits] = of[0], Services(**means)
    return found


def layout_of(record: Record, typed: argparse.Namespace | None, **more: Any) -> Layout:
    """A machine for each process, as it is assumed or typed, of a command whose service times were measured."""
    if typed is not None:
        assumed = {"replay_shards": typed.replay_shards, "actors_per_machine": typed.actors_per_machine}
        more = {**assumed, "link_bytes_per_s": typed.link_mbit_s * 1e6 / 8, **more}
    own = {name: record["measures"][name] for name in ("rows", "insert_every", "actor_update_period")}
    return Layout(**{"n_actors": 1, **own, **more})


def services_of(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each service time, network and width."""
    units: dict[str, Callable[[float], str]] = {"version_bytes": kilobytes, "learn_width": three_digits}
    for name, words in FIELDS.items():
        shown = units.get(name, lambda seconds: nanoseconds(1e9 * seconds))
        for (subject, bits), (record, services) in measured_services(results).items():
            row = {"words": words, "network": subject.split()[0], "bits": bits, "name": NAMES[bits]}
            yield {**row, "time": shown(getattr(services, name)), "measures": record["measures"], "command": subject}


def runs_of(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each real run, beside what its service times allow on the same cores."""
    found = measured_services(results)
    for record in results.found:
        condition, measures = record["condition"], record["measures"]
        where = record["subject"], condition.get("bits", 32)
        if "actors" not in condition or where not in found:
            continue
        first, services = found[where]
        shared = {"n_actors": condition["actors"], "samples_per_insert": condition["samples_per_insert"]}
        most, real = bound(services, layout_of(first, None, **shared, cores=measures["cores"])), record["returns"][0]
        simulated = measures.get("simulated_steps_per_s")
        yield {
            "network": where[0].split()[0],
            "name": NAMES[where[1]],
            "samples": condition["samples_per_insert"],
            "actors": condition["actors"],
            "measures": measures,
            "real": real,
            "bound": most,
            "Bound": most.steps_per_s / real,
            "Simulated": simulated and simulated / real,
            "bound_updates": most.rounds_per_s * first["measures"]["updates"],
        }


def deviations(results: Results) -> dict[str, Any]:
    """By how much bounds and simulations are off the runs, in percent: geometric mean, and at most."""
    found = {}
    for name in ("Bound", "Simulated"):
        off = [abs(math.log(row[name])) for row in runs_of(results) if row[name]]
        if off:
            found[name] = [100 * math.expm1(each) for each in (fmean(off), max(off))]
    return {"deviations": found}


def limits(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each network, coupling, width of the broadcast and number of actors: the bound."""
    found = measured_services(results)
    for subject, coupling in itertools.product(dict.fromkeys(subject for subject, _ in found), COUPLINGS):
        samples, faster = COUPLINGS[coupling]
        for bits in (bits for own, bits in found if own == subject):
            record, measured = found[subject, bits]
            services = dataclasses.replace(measured, learn_s=measured.learn_s / faster)
            layout = layout_of(record, results.arguments, samples_per_insert=samples)
            layouts = [dataclasses.replace(layout, n_actors=n) for n in COUNTS if n >= layout.replay_shards]
            reached = {each.n_actors: bound(services, each) for each in layouts}
            since = next((count for count, each in reached.items() if each.pace != "actors"), None)
            last = {"end": reached[max(reached)], "since": since, "layout": layout}
            row = {"network": subject.split()[0], "coupling": coupling, "bits": bits, "name": NAMES[bits], **last}
            yield from ({**row, "count": n, "steps": Estimate(each.steps_per_s)} for n, each in reached.items())


def scale(axes: Axes) -> None:
    """Both axes logarithmic."""
    from matplotlib.ticker import NullLocator

    actors, steps = tuple(4**power for power in range(6)), (100, 300, 1000, 3000, 10000)
    axes.set_xscale("log", base=2)
    axes.set_xticks(actors, [f"{tick:,}" for tick in actors])
    axes.set_yscale("log")
    axes.set_yticks(steps, [f"{tick:,}" for tick in steps])
    axes.yaxis.set_minor_locator(NullLocator())


SERVICES = Pivot(
    name="actorq-scaling-services",
    words=SERVICE_NOTES,
    lead={"": "{{ words }}"},
    columns=[{"{{ network }} {{ name }}": "{{ time }}"}],
    rows=services_of,
    facts=lambda results: {"usual": USUAL.replace(str(NEVER), "2⁶⁰")},
    optional=True,
)
RUNS = Pivot(
    name="actorq-scaling-points",
    words=RUN_NOTES,
    lead={
        "model": "{{ network }}",
        "precision": "{{ name }}",
        "samples per insertion": "{{ '%g' % samples }}",
        "actors": "{{ actors }}",
    },
    columns=[
        {"steps/s, real": "{{ real | digits }}", "bound": "{{ bound.steps_per_s | digits }}"},
        {
            "bound / real": "{{ Bound | times }}",
            "simulated / real": "{{ Simulated | times }}",
            "pace": "{{ bound.pace }}",
        },
        {"updates/s, real": "{{ measures.updates_per_s | digits }}", "bound": "{{ bound_updates | digits }}"},
    ],
    rows=runs_of,
    facts=deviations,
    gathered=False,
    left=2,
    optional=True,
)
LIMITS = Pivot(
    name="actorq-scaling-limits",
    words=LIMIT_NOTES,
    lead={"model": "{{ network }}", "coupling": "{{ coupling }}", "broadcast in": "{{ name }}"},
    columns=[
        {
            f"{count:,} actor{'s' * (count > 1)}": f"{{{{ steps.value | fixed if count == {count} }}}}"
            for count in SHOWN
        },
        {"pace": "{{ end.pace }}", "from": "{{ since | fixed }}"},
        {f"{name}, %": f"{{{{ (100 * end.busy['{name}']) | fixed if '{name}' in end.busy }}}}" for name in SHARES},
    ],
    rows=limits,
    facts=lambda results: {"most": max(COUNTS)},
    optional=True,
)
OVER_ACTORS = Lines(
    stem="actorq-scaling",
    title="The most steps per second that 1 … 1,024 actors can make",
    below="by the service times of a run's parts; every process on a machine of its own,\n"
    "one parameter process sends fp32 or int8 to all actors",
    x="count",
    x_label="actors (logarithmic)",
    line="bits",
    labels={bits: (NAMES[bits], STYLES[bits]) for bits in BITS},
    y="steps",
    y_label="steps per second, all actors (logarithmic)",
    rows=limits,
    panel="{{ network }}\n{{ coupling }}",
    scale=scale,
    places=None,
    columns=len(COUPLINGS),
)


EXPERIMENT = Experiment(
    name="actorq-scaling",
    question="how many actors can a learner feed?",
    factors=("bits", "samples_per_insert", "actors"),
    subjects=("512,512", "2048,2048,2048 --set updates=4"),
    grid=grid,
    measure=measure,
    identity=lambda subject: "",
    episodes=lambda arguments, subject: EpisodePlan(arguments.seeds or (0,), 0),
    tables=[SERVICES, RUNS, LIMITS],
    figures=[OVER_ACTORS],
    options=options,
    within=("bits",),
    samples="",
    timed=True,
)
