"""What trainings with quantized actors take: bytes, waiting, CPU time, energy; and their pace against Amdahl's law."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from bench.report.tables import Table
from bench.report.text import filled
from bench.study.actorq import breakdown
from bench.study.actorq.cells import ACTOR_BOUND, BOUND, CELLS, INT8, pairs, rates
from bench.study.actorq.runs import NAMES, amdahl, spread
from bench.study.experiment import Results, stored
from bench.study.records import Record

CORE_WATTS = 7.0
"""Of a busy core with its share of the package: thermal design power over cores is 3.5 W for an AMD EPYC 7742 (225 W,
64 cores) and 9.7 W for a 7302 (155 W, 16 cores); about the middle."""
GRAMS_PER_KWH = 475.0
"""CO₂ of a kilowatt hour of electricity, mean of the world in 2018 (IEA, Global Energy & CO₂ Status Report 2019)."""
WAITING = ("insert", "wait", "idle")
"""Parts of a run's actor in which it computes little: an insertion is answered when the replay allows it."""
COUNTED_CPU = "CPU-s: supervisor, learner, replay, parameter server and actors; Ray's own daemons are left out."
COST_NOTES = """\
Energy: CPU seconds at an assumed {{ watts }} W a busy core; CO₂ at {{ grams }} g a kWh (mean of the world in 2018, \
IEA 2019). Ratios do not depend on either.
Sent: parameters to all actors. Versions built: quantized, of those the learner handed over; nobody asked for the \
others. Actors wait, infer: shares of their time; an insertion's own work counts as waiting. {{ counted }}
Mismatch, at the end: share of states in which an actor chose another action than the learner would (DQN), or mean \
distance of their actions in −1 … 1 (D4PG); it holds quantization and delay. Staleness, in updates: how far the \
policies that acted the newest rows are behind the learner that learns from them, mean at the end; largest: how far an \
acting policy was behind when the replay took its rows.
"""
BOUND_NOTES = """\
D4PG, cartpole balance, {{ words }}; two actors, the learner, replay and parameter server on the machine's cores. \
Steps/s are counted after the learner's rounds that compile. Who waits: share of their whole time, those rounds too, \
that the actors wait for the replay's leave (an insertion's own work included) or a newer version, and the learner for \
data. Amdahl: where actors are waited for, from the share of inference in the fp32 run's own actors, waiting left out \
(of their insertions, what is beyond those of an actor alone); where the learner is, 1, for it computes in fp32 in \
both. CPU-s saved: fp32's CPU seconds over int8's, of the whole command with its start and the last judgement, which \
both share. {{ counted }}
"""


def waited(record: Record) -> float:
    """Share of the actors' time that they wait, for the replay's leave or a newer version."""
    return share(record, WAITING)


def share(record: Record, parts: Sequence[str]) -> float:
    """Of the actors' time."""
    found = record["measures"]["breakdown"]
    return float(sum(found[part] for part in parts) / sum(found.values()))


def kilojoules(record: Record) -> float:
    """Of all its processes, at :data:`CORE_WATTS`."""
    return float(record["measures"]["cpu_s"]) * CORE_WATTS / 1e3


def cost_table(results: Results, names: Sequence[str]) -> Table:
    """Bytes, CPU time, energy and how far the actors were from the learner."""
    lines: list[tuple[str, ...]] = []
    for name in names:
        seen = "disagreement" if CELLS[name].method == "dqn" else "distance"
        for bits, condition in ((8, INT8), (32, {})):
            found = results.records_of(name, condition)
            told = [each["measures"] for each in found]
            energy = fmean(map(kilojoules, found))
            lines.append(
                (
                    name,
                    NAMES[bits],
                    f"{fmean(each['bytes_each'] for each in told) / 1e3:,.1f}",
                    f"{fmean(each['bytes_served'] for each in told) / 1e6:,.1f}",
                    " of ".join(
                        f"{fmean(each[f'versions_{what}'] for each in told):,.0f}" for what in ("built", "put")
                    ),
                    f"{100 * fmean(map(waited, found)):.0f} %",
                    f"{100 * fmean(share(each, ('inference',)) for each in found):.0f} %",
                    f"{fmean(each['cpu_s'] for each in told):,.0f}",
                    f"{energy:,.2f}",
                    f"{energy / 3600 * GRAMS_PER_KWH:,.3f}",
                    f"{fmean(each['mismatch'].get(seen, 0.0) for each in told):.3f}",
                    f"{fmean(each['mismatch'].get('staleness_updates', 0.0) for each in told):,.0f}",
                    f"{max(each['staleness']['largest_updates'] for each in told):,.0f}",
                )
            )
        lines.append(())
    headers = (
        "task", "actors", "kB a version", "MB sent", "versions built", "actors wait", "infer", "CPU-s", "kJ", "g CO₂",
        "mismatch", "staleness", "largest",
    )  # fmt: skip
    notes = filled(COST_NOTES, watts=f"{CORE_WATTS:g}", grams=f"{GRAMS_PER_KWH:g}", counted=COUNTED_CPU)
    return Table("actorq-cost", "What it took, mean of the seeds", headers, tuple(lines[:-1]), notes, left=2)


def bound_table(results: Results, names: Sequence[str]) -> Table:
    """The pace where actors are waited for, and where the learner is."""
    alone = stored(breakdown.EXPERIMENT).records_of("2048,2048,2048", {"period": breakdown.PERIODS[0]})
    insertion = breakdown.medians(alone)["insert"] if alone else 0.0
    lines = []
    for name in names:
        cell, found = CELLS[name], pairs(results, name)
        ideal = median(ideal_of(*pair, insertion) for pair in found) if cell.purpose == ACTOR_BOUND else 1.0
        sides = [list(side) for side in zip(*found, strict=True)]
        words = f"--steps {cell.steps} {cell.more.removeprefix(BOUND).strip()}"
        pace = (f"{median(each['measures']['steps_per_s'] for each in side):,.0f}" for side in sides)
        lines.append(
            (
                cell.purpose, words, *pace, *map(who_waits, sides), spread(rates(found)), f"{ideal:.2f}×",
                f"{100 * median(rates(found)) / ideal:.0f} %",
                spread([other["measures"]["cpu_s"] / one["measures"]["cpu_s"] for one, other in found]),
            )
        )  # fmt: skip
    headers = (
        "waited for", "words of the command", "int8 steps/s", "fp32 steps/s", "int8: who waits", "fp32: who waits",
        "speed-up", "Amdahl", "reached", "CPU-s saved",
    )  # fmt: skip
    notes = filled(BOUND_NOTES, words=BOUND, counted=COUNTED_CPU)
    title = "End to end with 2048,2048,2048, int8 actors against fp32 actors"
    return Table("actorq-bound", title, headers, tuple(lines), notes, left=2)


def who_waits(side: Sequence[Record]) -> str:
    """``actors 3 %, learner 78 %``: medians."""
    seconds = [each["measures"]["learner_seconds"] for each in side]
    learner = median(each["data"] / sum(each.values()) for each in seconds)
    return f"actors {100 * median(map(waited, side)):.0f} %, learner {100 * learner:.0f} %"


def ideal_of(one: Record, other: Record, insertion: float) -> float:
    """Amdahl's bound from the runs' own breakdowns, where actors are what is waited for.

    Args:
        one, other: in int8 and in fp32.
        insertion: microseconds a step of an insertion that nobody keeps waiting, which are work.
    """
    own, theirs = (each["measures"]["breakdown"] for each in (one, other))
    busy = sum(value for part, value in theirs.items() if part not in WAITING) + min(insertion, theirs["insert"])
    return amdahl(theirs["inference"] / busy, theirs["inference"] / max(own["inference"], 1e-9))
