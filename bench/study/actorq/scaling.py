"""How many actors can a learner feed? Service times measured here, and real runs beside the bound that follows."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

from cyclopts import Parameter

from quarl import cli
from quarl.bench.report.text import kilobytes, nanoseconds, three_digits, times
from quarl.bench.study import command
from quarl.bench.study.actorq.bounds import Layout, Services, bound
from quarl.bench.study.actorq.runs import CARTPOLE_BALANCE, NAMES, WIDTHS, run
from quarl.bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult
from quarl.bench.study.records import Condition, Record
from quarl.bench.tables import Table, pivot, tabulate

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
SERVICE_NOTES = """\
{% set measured = rows | selectattr("bits", "eq", 32) | unique(attribute="command") | list %}
Service times, in seconds of one processor
quarl actorq {{ usual }} {{ measured | join("; ", attribute="command") }}. An insertion has \
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
One run of quarl actorq each, counted over {{ seconds | min | fixed }} … {{ seconds | max | fixed }} s after \
the rounds that compile. Bound: what the service times allow on \
{{ rows | map(attribute="measures.cores") | map("string") | joined }} cores; nothing was fitted to these runs.
The bound is off by {{ off[0] | fixed }} % in steps/s (geometric mean), at most by {{ off[1] | fixed }} %.
"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Options(command.Options):
    """What to measure.

    Attributes:
        no_runs: do without the real runs
        samples_per_insert: of the real runs
    """

    no_runs: bool = False
    samples_per_insert: Annotated[float | None, Parameter(metavar="16")] = None


def grid(options: Options, subject: str) -> list[Condition]:
    """The service times of each width, then the real runs."""
    usual, typed = RATIOS.get(subject, (16.0,)), options.samples_per_insert
    ratios = () if options.no_runs else usual if typed is None else (typed,)
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
            from quarl.bench.study.actorq import services

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


def layout_of(record: Record, **more: Any) -> Layout:
    """The layout of a command whose service times were measured, with one actor unless ``more`` says otherwise."""
    measures = record["measures"]
    own = {name: measures[name] for name in ("rows", "insert_every", "actor_update_period", "cores")}
    return Layout(**{"n_actors": 1, **own, **more})


def services_of(results: Results) -> Iterator[dict[str, Any]]:
    """A row for each service time, network and width; last, how many actors keep the learner busy."""
    units: dict[str, Callable[[float], str]] = {"version_bytes": kilobytes, "learn_width": three_digits}
    fed = "actors that keep the learner busy"
    for name, words in {**FIELDS, fed: fed}.items():
        shown = units.get(name, lambda seconds: nanoseconds(1e9 * seconds))
        for (subject, bits), (record, services) in measured_services(results).items():
            row = {"words": words, "network": subject.split()[0], "bits": bits, "name": NAMES[bits]}
            row |= {"measures": record["measures"], "command": subject}
            layout = layout_of(record)
            yield {**row, "value": f"{layout.fed_by(services):.1f}" if name == fed else shown(getattr(services, name))}


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
        most, real = bound(services, layout_of(first, **shared, cores=measures["cores"])), record["returns"][0]
        yield {
            "network": where[0].split()[0],
            "name": NAMES[where[1]],
            "samples": condition["samples_per_insert"],
            "actors": condition["actors"],
            "measures": measures,
            "real": real,
            "bound": most,
            "over": most.steps_per_s / real,
            "bound_updates": most.rounds_per_s * first["measures"]["updates"],
        }


def deviation(results: Results) -> dict[str, Any]:
    """By how much the bound is off the runs, in percent: geometric mean, and at most."""
    off = [abs(math.log(row["over"])) for row in runs_of(results)]
    return {"off": [100 * math.expm1(each) for each in (fmean(off), max(off))]} if off else {}


def services_table(results: Results) -> list[Table]:
    """Service times by network and precision."""
    rows = list(services_of(results))
    if not rows:
        return []
    cells = [{"": row["words"], "of": f"{row['network']} {row['name']}", "value": row["value"]} for row in rows]
    lines = pivot(cells, [""], "of", {"value": "{}"})
    usual = USUAL.replace(str(NEVER), "2⁶⁰")
    return [tabulate("actorq-scaling-services", SERVICE_NOTES, lines, results=results, rows=rows, usual=usual)]


def runs_table(results: Results) -> list[Table]:
    """Real runs beside what the service times allow."""
    rows = list(runs_of(results))
    if not rows:
        return []
    lines = [
        {
            "model": row["network"],
            "precision": row["name"],
            "samples per insertion": f"{row['samples']:g}",
            "actors": str(row["actors"]),
            "steps/s, real": three_digits(row["real"]),
            "steps/s, bound": three_digits(row["bound"].steps_per_s),
            "bound / real": times(row["over"]),
            "pace": row["bound"].pace,
            "updates/s, real": three_digits(row["measures"]["updates_per_s"]),
            "updates/s, bound": three_digits(row["bound_updates"]),
        }
        for row in rows
    ]
    return [tabulate("actorq-scaling-points", RUN_NOTES, lines, left=2, rows=rows, **deviation(results))]


EXPERIMENT = Experiment(
    name="actorq-scaling",
    question="how many actors can a learner feed?",
    factors=("bits", "samples_per_insert", "actors"),
    subjects=("512,512", "2048,2048,2048 --set updates=4"),
    grid=grid,
    measure=measure,
    identity=lambda subject: "",
    episodes=lambda options, subject: EpisodePlan(options.seeds or (0,), 0),
    tables=[services_table, runs_table],
    within=("bits",),
    timed=True,
)


@cli.verb()
def scaling(options: Options) -> int:
    """Bound the speed of runs with N actors from measured service times, and compare the bounds with real runs.

        quarl study actorq-scaling 512,512 --no-runs            service times, and the bounds that follow
        quarl study actorq-scaling --keep                       with real runs of 1, 2 and 4 actors, a minute each
        quarl study actorq-scaling 512,512 --samples-per-insert 4 --keep       further real runs
        quarl study actorq-scaling "64,64 --task cartpole --method dqn"        of another command
        quarl study actorq-scaling --stored --update-docs       fills docs/actorq.md

    A subject is a network and further arguments of quarl actorq. The service times are those of the parts of an actor,
    of the learner, and of the replay and parameter processes, by real calls to train/actorq. Operational bounds
    (bench/study/actorq/bounds.py) give the highest speed of a run, with fp32 and with int8 broadcast. Real runs have
    all processes on this machine's cores. A row's value is steps/s: of a run, or, if no number of actors is set, of an
    actor that only steps.
    """
    return command.run(__name__, options)


main = cli.of("study actorq-scaling")
