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
import math
import os
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from bench import command_line
from bench.report.tables import Table
from bench.report.text import filled, joined, kilobytes, nanoseconds, three_digits, times
from bench.study.actorq import bounds
from bench.study.actorq.bounds import LINK_BYTES_PER_S, Found, Services, bound, layout_of, limit_table, network
from bench.study.actorq.runs import CARTPOLE_BALANCE, NAMES, WIDTHS, run
from bench.study.experiment import Episodes, Experiment, Played, Results
from bench.study.records import Condition, Record

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
"""What depends on the bits; of all else the mean over the widths is taken, which noise would tell apart."""
SERVICE_NOTES = """\
python -m train.actorq {{ usual }} {{ told | join("; ", attribute=0) }}. An insertion has {{ insert_every }} \
transitions, a round {% for subject, each in told %}{{ each.updates }} updates of {{ each.rows // each.updates }} \
({{ network(subject) }}){{ ", " if not loop.last }}{% endfor %}. Handing over, building, fetching and opening are of \
one version, the rest of one call. What does not depend on the precision was measured with both and averaged.
Replay and parameter process through Ray; without Ray an insertion and a round's minibatches take \
{% for subject, each in told %}{{ (1e9 * each.insert_free_s) | ns }} and {{ (1e9 * each.sample_free_s) | ns }} \
({{ network(subject) }}){{ ", " if not loop.last }}{% endfor %}.
{{ where }}; load average over the last 15 minutes {{ loads }}.
"""
RUN_NOTES = """\
One run of python -m train.actorq each, counted over {{ seconds }} s after the rounds that compile. Bound: what the \
service times allow on {{ cores }} cores; nothing was fitted to these runs.
{% for name, found in deviations.items() if found %}
{{ name }}: off by {{ mean(found) }} in steps/s (geometric mean), at most by {{ most(found) }}.
{% endfor %}
{% if deviations.Simulated %}
Simulated: discrete events of the same service times, by which this study was made before; kept with these runs.
{% endif %}
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
    usual, asked = RATIOS.get(subject, (16.0,)), arguments.samples_per_insert
    ratios = () if arguments.no_runs else usual if asked is None else (asked,)
    runs = [{"samples_per_insert": ratio, "actors": count} for ratio in ratios for count in ACTORS]
    return [{**WIDTHS[bits], **more} for more in ({}, *runs) for bits in BITS]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """A real run, or service times."""
    words = [*USUAL.split(), *subject.split(), "--quantize", str(asked.get("bits", 32))]
    words += ["--samples-per-insert", f"{asked.get('samples_per_insert', 0.0):g}"]
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[2]}
    for seed in episodes.seeds:
        if "actors" in asked:
            more = ["--n-actors", str(asked["actors"]), "--minutes", f"{RUN_MINUTES:g}", "--seed", str(seed)]
            rates = run([*words, *more]).rates
            yield Played("", seed, [rates.pop("steps_per_s")], measures={**rates, **machine})
        else:
            from bench.study.actorq import services

            found = services.measure([*words, "--n-actors", "1"])
            step_s = found["step_s"] + found["inference_s"] + found["python_s"]
            yield Played("", seed, [1.0 / step_s], measures={**found, **machine})


# --- what follows -----------------------------------------------------------------------------------------------------


def measured_services(results: Results) -> Found:
    """By network and width: a record, and the service times."""
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


def tables(results: Results) -> list[Table]:
    """Service times, real runs beside their bounds, and what sets the pace of many actors."""
    found = measured_services(results)
    runs = [record for record in results.found if "actors" in record["condition"]]
    if not found:
        return []
    return [
        service_table(results, found),
        *([run_table(found, runs)] if runs else []),
        limit_table(found, results.arguments),
    ]


def service_table(results: Results, found: Found) -> Table:
    """A column for each network and width."""

    units: dict[str, Callable[[float], str]] = {"version_bytes": kilobytes, "learn_width": three_digits}
    told = [(subject, record["measures"]) for (subject, bits), (record, _) in found.items() if bits == 32]
    rows = []
    for name, words in FIELDS.items():
        shown = units.get(name, lambda seconds: nanoseconds(1e9 * seconds))
        rows.append((words, *(shown(getattr(services, name)) for _, services in found.values())))
    notes = filled(
        SERVICE_NOTES,
        usual=USUAL.replace(str(NEVER), "2⁶⁰"),
        told=told,
        network=network,
        insert_every=joined(str(each["insert_every"]) for _, each in told),
        where=results.where,
        loads=joined(f"{each['load']:.1f}" for _, each in told),
    )
    headers = ("", *(f"{network(subject)} {NAMES[bits]}" for subject, bits in found))
    return Table("actorq-scaling-services", "Service times, in seconds of one processor", headers, tuple(rows), notes)


def run_table(found: Found, runs: Sequence[Record]) -> Table:
    """Real runs beside what their service times allow on the same cores."""
    rows = []
    deviations: dict[str, list[float]] = {"Bound": [], "Simulated": []}
    for record in runs:
        subject, asked, told = record["subject"], record["condition"], record["measures"]
        bits, real = asked.get("bits", 32), record["returns"][0]
        if (subject, bits) not in found:
            continue
        measured, services = found[subject, bits]
        shared = {"n_actors": asked["actors"], "samples_per_insert": asked["samples_per_insert"]}
        most = bound(services, layout_of(measured, None, **shared, cores=told["cores"]))
        ratios = [value and value / real for value in (most.steps_per_s, told.get("simulated_steps_per_s"))]
        for name, ratio in zip(deviations, ratios, strict=True):
            deviations[name] += [abs(math.log(ratio))] if ratio else []
        rows.append(
            (
                network(subject), NAMES[bits], f"{asked['samples_per_insert']:g}", str(asked["actors"]),
                three_digits(real), three_digits(most.steps_per_s), *map(times, ratios), most.pace,
                three_digits(told["updates_per_s"]),
                three_digits(most.rounds_per_s * measured["measures"]["updates"]),
            )
        )  # fmt: skip
    seconds = [record["measures"]["seconds"] for record in runs]
    notes = filled(
        RUN_NOTES,
        deviations=deviations,
        mean=lambda of: f"{100 * math.expm1(fmean(of)):.0f} %",
        most=lambda of: f"{100 * math.expm1(max(of)):.0f} %",
        seconds=f"{min(seconds):.0f} … {max(seconds):.0f}",
        cores=joined(str(record["measures"]["cores"]) for record in runs),
    )
    return Table(
        "actorq-scaling-points",
        "What service times allow, beside real runs on the same cores",
        (
            "model", "precision", "samples per insertion", "actors", "steps/s, real", "bound", "bound / real",
            "simulated / real", "pace", "updates/s, real", "bound",
        ),
        tuple(rows),
        notes,
        left=2,
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="actorq-scaling",
    question="how many actors can a learner feed?",
    factors=("bits", "samples_per_insert", "actors"),
    subjects=("512,512", "2048,2048,2048 --set updates=4"),
    grid=grid,
    measure=measure,
    identity=lambda subject: "",
    episodes=lambda arguments, subject: Episodes(arguments.seeds or (0,), 0),
    tables=[tables],
    figures=[lambda results: bounds.figures(measured_services(results), results.arguments)],
    options=options,
    within=("bits",),
    samples="",
    timed=True,
)
