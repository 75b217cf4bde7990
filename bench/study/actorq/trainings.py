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
import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.figures import Line, Panel, facets
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN, estimate, filled
from bench.study.actorq import breakdown
from bench.study.actorq.runs import (
    ACTOR_BOUND,
    BOUND,
    CELLS,
    LEARNING,
    NAMES,
    NATIVE,
    STYLES,
    WIDTHS,
    Cell,
    Run,
    amdahl,
    options_of,
    pairs,
    rates,
    run,
    spread,
)
from bench.study.experiment import Episodes, Experiment, Played, Results, stored
from bench.study.records import Condition, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOTH = {"int8": WIDTHS[8], "int8, native": NATIVE}
SENT = ("bytes_served", "bytes_each", "versions_built", "versions_put")

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
that the actors wait for the replay's leave (an insertion's own work included) or a newer version, and the learner \
for data. Amdahl: where actors are waited for, from the share of inference in the fp32 run's own actors, waiting left \
out (of their insertions, what is beyond those of an actor alone); where the learner is, 1, for it computes in fp32 \
in both. Native: acting through the project's own engine (--runtime native), else by LiteRT. CPU-s saved: fp32's CPU \
seconds over int8's, of the whole command with its start and the last judgement, which both share. {{ counted }}
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


def grid(arguments: argparse.Namespace, subject: str) -> list[Condition]:
    """Actors in fp32 and int8; where they are waited for, also in int8 by the native engine."""
    waited = subject in CELLS and CELLS[subject].purpose == ACTOR_BOUND
    return [WIDTHS[32], WIDTHS[8], *([NATIVE] if waited else [])]


def measure(subject: str, asked: Condition, episodes: Episodes) -> Iterator[Played]:
    """One training for each seed."""
    for seed in episodes.seeds:
        words = [*CELLS[subject].words, *options_of(asked), "--seed", str(seed)]
        done = run(words)
        yield Played("", seed, [float(done.provenance["judged"][0]["mean_return"])], measures=measures_of(done))


def measures_of(done: Run) -> dict[str, Any]:
    """What is kept of a training beside its return.

    ``curve``: (step, seconds since the first report, greedy return) of every judgement. ``breakdown``: microseconds a
    step by part, all actors together; ``learner_seconds``: by part.
    """
    told, judged = done.provenance["actorq"], [row for row in done.curve if "greedy_return" in row]
    return {
        **{name: int(done.provenance[name]) for name in ("steps", "updates")},
        **{name: done.rates[name] for name in ("steps_per_s", "updates_per_s")},
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        **{name: int(told["parameters"][name]) for name in SENT},
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
    rows, losses, decided = [], [], 0
    for name in names:
        cell, found = CELLS[name], pairs(results, name)
        own, theirs = ([side["returns"][0] for side in sides] for sides in zip(*found, strict=True))
        gain = Estimate.of_mean([one - other for one, other in zip(own, theirs, strict=True)])
        fp32 = Estimate.of_mean(theirs)
        most = -(gain.value if gain.low is None else gain.low) / abs(fp32.value)
        losses.append((name, f"{max(0.0, 100 * most):.0f}"))
        decided += gain.low is not None and gain.high is not None and not gain.low <= 0.0 <= gain.high
        times = [(goal_s(cell, one), goal_s(cell, other)) for one, other in found]
        faster = [other / one for one, other in times if one and other is not None]
        reached = "/".join(str(sum(side is not None for side in sides)) for sides in zip(*times, strict=True))
        rows.append(
            {
                "task": name,
                "method": cell.method,
                "steps": f"{found[0][0]['measures']['steps']:,}",
                "int8 actors": estimate(Estimate.of_mean(own)),
                "fp32 actors": estimate(fp32),
                "difference": estimate(gain, sign="+"),
                "goal (int8/fp32)": f"{cell.goal:g} ({reached} of {len(found)})".replace("-", "−"),
                "time to it": spread(faster) if faster else NOT_KNOWN,
                "steps/s": spread(rates(found)),
            }
        )
    title = "Trained with actors in int8 and in fp32: greedy return of the learner's policy, and speed"
    notes = filled(RETURN_NOTES, losses=losses, decided=decided, where=results.where)
    return Table.of("actorq-returns", title, rows, notes, left=2)


def share(record: Record, *parts: str) -> float:
    """Of the actors' time."""
    found = record["measures"]["breakdown"]
    return float(sum(found[part] for part in parts) / sum(found.values()))


def cost_table(results: Results, names: Sequence[str]) -> Table:
    """Bytes, CPU time, energy and how far the actors were from the learner."""
    rows: list[dict[str, str]] = []
    for name, bits in itertools.product(names, (8, 32)):
        seen = "disagreement" if CELLS[name].method == "dqn" else "distance"
        found = results.records_of(name, WIDTHS[bits])
        told = [each["measures"] for each in found]
        mean = {what: fmean(each[what] for each in told) for what in (*SENT, "cpu_s")}
        apart = fmean(each["mismatch"].get(seen, 0.0) for each in told)
        late = fmean(each["mismatch"].get("staleness_updates", 0.0) for each in told)
        joules = mean["cpu_s"] * CORE_WATTS
        if bits == 8 and rows:
            rows.append({})
        rows.append(
            {
                "task": name,
                "actors": NAMES[bits],
                "kB a version": f"{mean['bytes_each'] / 1e3:,.1f}",
                "MB sent": f"{mean['bytes_served'] / 1e6:,.1f}",
                "versions built": f"{mean['versions_built']:,.0f} of {mean['versions_put']:,.0f}",
                "actors wait": f"{100 * fmean(share(each, *WAITING) for each in found):.0f} %",
                "infer": f"{100 * fmean(share(each, 'inference') for each in found):.0f} %",
                "CPU-s": f"{mean['cpu_s']:,.0f}",
                "kJ": f"{joules / 1e3:,.2f}",
                "g CO₂": f"{joules / 3.6e6 * GRAMS_PER_KWH:,.3f}",
                "mismatch": f"{apart:.3f}",
                "staleness": f"{late:,.0f}",
                "largest": f"{max(each['staleness']['largest_updates'] for each in told):,.0f}",
            }
        )
    notes = filled(COST_NOTES, watts=f"{CORE_WATTS:g}", grams=f"{GRAMS_PER_KWH:g}", counted=COUNTED_CPU)
    return Table.of("actorq-cost", "What it took, mean of the seeds", rows, notes, left=2)


def bound_table(results: Results, names: Sequence[str]) -> Table:
    """The pace where actors are waited for, and where the learner is."""
    alone = stored(breakdown.EXPERIMENT).records_of("2048,2048,2048", {"period": breakdown.PERIODS[0]})
    insertion = breakdown.medians(alone)["insert"] if alone else 0.0
    rows = []
    for name, (actors, own) in itertools.product(names, BOTH.items()):
        cell, found = CELLS[name], pairs(results, name, own)
        if not found:
            continue
        ideal = median(ideal_of(*pair, insertion) for pair in found) if cell.purpose == ACTOR_BOUND else 1.0
        sides = {"": [one for one, _ in found], "fp32: ": [other for _, other in found]}
        pace = {key: median(each["measures"]["steps_per_s"] for each in side) for key, side in sides.items()}
        saved = [other["measures"]["cpu_s"] / one["measures"]["cpu_s"] for one, other in found]
        rows.append(
            {
                "waited for": cell.purpose,
                "words of the command": f"--steps {cell.steps} {cell.more.removeprefix(BOUND).strip()}",
                "actors": actors,
                **{f"{key}steps/s": f"{value:,.0f}" for key, value in pace.items()},
                **{f"{key}who waits": who_waits(side) for key, side in sides.items()},
                "speed-up": spread(rates(found)),
                "Amdahl": f"{ideal:.2f}×",
                "reached": f"{100 * median(rates(found)) / ideal:.0f} %",
                "CPU-s saved": spread(saved),
            }
        )
    notes = filled(BOUND_NOTES, words=BOUND, counted=COUNTED_CPU)
    title = "End to end with 2048,2048,2048, int8 actors against fp32 actors"
    return Table.of("actorq-bound", title, rows, notes, left=3)


def who_waits(side: Sequence[Record]) -> str:
    """``actors 3 %, learner 78 %``: medians."""
    seconds = [each["measures"]["learner_seconds"] for each in side]
    learner = median(each["data"] / sum(each.values()) for each in seconds)
    return f"actors {100 * median(share(each, *WAITING) for each in side):.0f} %, learner {100 * learner:.0f} %"


def ideal_of(one: Record, other: Record, insertion: float) -> float:
    """Amdahl's bound from the runs' own breakdowns, where actors are what is waited for.

    Args:
        one, other: in int8 and in fp32.
        insertion: microseconds a step of an insertion that nobody keeps waiting, which are work.
    """
    own, theirs = (each["measures"]["breakdown"] for each in (one, other))
    busy = sum(value for part, value in theirs.items() if part not in WAITING) + min(insertion, theirs["insert"])
    return amdahl(theirs["inference"] / busy, theirs["inference"] / max(own["inference"], 1e-9))


def figures(results: Results) -> dict[str, Figure]:
    """A panel for each task: the greedy return against time, a median and a band for each precision."""
    panels = []
    for name, cell in CELLS.items():
        if cell.purpose != LEARNING or not pairs(results, name):
            continue
        lines = [
            Line(f"{NAMES[bits]} actors", curve_of(results.records_of(name, WIDTHS[bits])), STYLES[bits])
            for bits in (32, 8)
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
    factors=("bits", "runtime"),
    subjects=tuple(CELLS),
    grid=grid,
    measure=measure,
    identity=identity,
    episodes=seeds,
    tables=[tables],
    figures=[figures],
    about=about,
    samples="",
    timed=True,
    in_turns=True,
)
