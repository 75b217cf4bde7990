"""Do quantized actors make distributed training faster, and is the same learned?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from quarl import cli
from quarl.bench import command_line
from quarl.bench.report.figures import Pictures, facets, panel
from quarl.bench.report.text import NOT_KNOWN, estimate, format_fixed
from quarl.bench.study import command
from quarl.bench.study.actorq import breakdown
from quarl.bench.study.actorq.runs import (
    ACTOR_BOUND,
    BOUND,
    CELLS,
    LEARNING,
    NAMES,
    NATIVE,
    STYLES,
    WIDTHS,
    ActorQCell,
    Run,
    amdahl,
    options_of,
    pairs,
    rates,
    run,
    spread,
)
from quarl.bench.study.experiment import EpisodePlan, Experiment, Results, SeedResult, load_stored
from quarl.bench.study.records import Condition, Record
from quarl.bench.tables import Table, group_by, tabulate
from quarl.train.intervals import Estimate

BOTH = {"int8": WIDTHS[8], "int8, native": NATIVE}
SENT = ("bytes_served", "bytes_each", "versions_built", "versions_put")

RETURN_NOTES = """\
Trained with actors in int8 and in fp32: greedy return of the learner's policy, and speed
The difference is shown not to be 0 in {{ rows | map(attribute="gain") | selectattr("side") | list | length }} of \
{{ rows | length }} tasks. By the intervals' lower ends int8 actors cost at most, in % of fp32's return: \
{% for row in rows %}{{ row.task }} {{ (100 * row.most) | fixed }}{{ ", " if not loop.last }}{% endfor %}.
Means over seeds with 95 % intervals (Student's t), of the difference paired by seed; each policy evaluated over fresh \
episodes in fp32. Time to the goal: from the first steps to the first evaluation at or above it, fp32's over int8's, \
median of seeds that reached it with both, in brackets the smallest and the largest; steps/s: int8's over fp32's, \
after the learner's rounds that compile. Two actors (D4PG: four), a learner, a replay and a parameter server share the \
machine's cores. Goals and steps were set after trials with seed 0 (walker_stand: 7).
{{ results.where }}.
"""

CORE_WATTS = 7.0
"""Power of a busy core with its share of the package, about the middle of two: thermal design power over cores is
3.5 W for an AMD EPYC 7742 (225 W, 64 cores) and 9.7 W for a 7302 (155 W, 16 cores)."""
GRAMS_PER_KWH = 475.0
"""CO₂ of a kilowatt hour of electricity, mean of the world in 2018 (IEA, Global Energy & CO₂ Status Report 2019)."""
WAITING = ("insert", "wait", "idle")
"""Parts of a run's actor in which it computes little: an insertion is answered when the replay allows it."""
COUNTED_CPU = "Processes' CPU-s: supervisor, learner, replay, parameter server and actors, without Ray's own daemons."
COST_NOTES = """\
What it took, mean of the seeds
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
End to end with 2048,2048,2048, int8 actors against fp32 actors
D4PG, cartpole balance, {{ bound }}; two actors, the learner, replay and parameter server on the machine's cores. \
Steps/s are counted after the learner's rounds that compile. Who waits: share of their whole time, those rounds too, \
that the actors wait for the replay's permission (an insertion's own work included) or a newer version, and the \
learner for data. Amdahl: where actors are waited for, from the share of inference in the fp32 run's own actors, \
waiting left out (of their insertions, what is beyond those of an actor alone); where the learner is, 1, for it \
computes in fp32 in both. Native: acting through the project's own engine (--runtime native), else by LiteRT. Return: \
mean of the learner's final greedy returns, of 1,000; with few samples per insert it hardly learns, so that these runs \
measure speed, not learning. Ratios are fp32's over int8's: of the processes' CPU seconds while they work, of the CPU \
seconds of the whole command (imports, Ray's daemons, compilation and the final evaluation included; –: not recorded), \
and of its wall time. {{ counted }}
"""


def about(subject: str) -> str:
    """Return the command of a cell, behind its name; refuses what is no cell."""
    return f"{subject}: {identity(subject)}"


def identity(subject: str) -> str:
    """Return the command of a cell: rows of another command are stale."""
    if subject not in CELLS:
        raise command_line.UsageError(
            f"there is no cell {subject!r}.", f"type some of {', '.join(CELLS)}", code="unknown_cell"
        )
    return f"quarl actorq {' '.join(CELLS[subject].words)}"


def seeds(options: command.Options, subject: str) -> EpisodePlan:
    """Five trainings where returns are compared, three where only the pace is."""
    count = 5 if subject in CELLS and CELLS[subject].purpose == LEARNING else 3
    return EpisodePlan(options.seeds or tuple(range(count)), 0)


def grid(options: command.Options, subject: str) -> list[Condition]:
    """Actors in fp32 and int8; where they are waited for, also in int8 by the native engine."""
    waited = subject in CELLS and CELLS[subject].purpose == ACTOR_BOUND
    return [WIDTHS[32], WIDTHS[8], *([NATIVE] if waited else [])]


def measure(subject: str, condition: Condition, episodes: EpisodePlan) -> Iterator[SeedResult]:
    """Yield one training for each seed."""
    for seed in episodes.seeds:
        words = [*CELLS[subject].words, *options_of(condition), "--seed", str(seed)]
        done = run(words)
        yield SeedResult("", seed, [float(done.provenance["judged"][0]["mean_return"])], measures=measures_of(done))


def measures_of(done: Run) -> dict[str, Any]:
    """Measures that are kept of a training beside its return.

    ``curve``: (step, seconds since the first report, greedy return) of every judgement. ``breakdown``: microseconds a
    step by part, all actors together; ``learner_seconds``: by part.
    """
    reported, evaluations = done.provenance["actorq"], [row for row in done.curve if "greedy_return" in row]
    return {
        **{name: int(done.provenance[name]) for name in ("steps", "updates")},
        **{name: done.rates[name] for name in ("steps_per_s", "updates_per_s")},
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        **{name: int(reported["parameters"][name]) for name in SENT},
        "breakdown": dict(reported["breakdown"]["microseconds_per_step"]),
        **{name: dict(reported[name]) for name in ("learner_seconds", "mismatch", "staleness")},
        "curve": [
            [int(row["step"]), row["wall_s"] - done.curve[0]["wall_s"], row["greedy_return"]] for row in evaluations
        ],
    }


# --- what follows -----------------------------------------------------------------------------------------------------


def goal_s(cell: ActorQCell, record: Record) -> float | None:
    """Seconds to the first judgement at the goal or above, if there is one."""
    curve = record["measures"]["curve"]
    return next((seconds for _, seconds, value in curve if cell.goal is not None and value >= cell.goal), None)


def summarise_learning(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each task: returns of actors in int8 and in fp32, paired by seed, and in what time they are
    reached."""
    for name, cell in CELLS.items():
        record_pairs = pairs(results, name)
        if cell.purpose != LEARNING or not record_pairs:
            continue
        own, fp32_returns = ([side["returns"][0] for side in sides] for sides in zip(*record_pairs, strict=True))
        gain = Estimate.of_mean([one - other for one, other in zip(own, fp32_returns, strict=True)])
        fp32 = Estimate.of_mean(fp32_returns)
        times = [(goal_s(cell, one), goal_s(cell, other)) for one, other in record_pairs]
        faster = [other / one for one, other in times if one and other is not None]
        yield {
            "task": name,
            "cell": cell,
            "steps": record_pairs[0][0]["measures"]["steps"],
            "int8": Estimate.of_mean(own),
            "fp32": fp32,
            "gain": gain,
            "most": max(0.0, -(gain.value if gain.low is None else gain.low) / abs(fp32.value)),
            "reached": "/".join(str(sum(side is not None for side in sides)) for sides in zip(*times, strict=True)),
            "seeds": len(record_pairs),
            "faster": spread(faster) if faster else NOT_KNOWN,
            "pace": spread(rates(record_pairs)),
        }


def share(record: Record, *parts: str) -> float:
    """Share of the actors' time that some of its parts take."""
    part_times = record["measures"]["breakdown"]
    return float(sum(part_times[part] for part in parts) / sum(part_times.values()))


def costs(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each task and precision of the actors, means of the seeds: bytes, CPU time, energy, and how far
    the actors were from the learner."""
    for row, bits in itertools.product(summarise_learning(results), (8, 32)):
        name, method = row["task"], row["cell"].method
        task_records = results.records_of(name, WIDTHS[bits])
        measures = [entry["measures"] for entry in task_records]
        mean = {quantity: fmean(entry[quantity] for entry in measures) for quantity in (*SENT, "cpu_s")}
        mismatch = {"apart": "disagreement" if method == "dqn" else "distance", "late": "staleness_updates"}
        yield {
            "task": name,
            "actors": NAMES[bits],
            **mean,
            "wait": fmean(share(entry, *WAITING) for entry in task_records),
            "infer": fmean(share(entry, "inference") for entry in task_records),
            "joules": mean["cpu_s"] * CORE_WATTS,
            **{
                key: fmean(entry["mismatch"].get(quantity, 0.0) for entry in measures)
                for key, quantity in mismatch.items()
            },
            "largest": max(entry["staleness"]["largest_updates"] for entry in measures),
        }


def summarise_bottlenecks(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each command whose pace the actors or the learner set, and each kind of int8 actors."""
    alone = load_stored(breakdown.EXPERIMENT).records_of("2048,2048,2048", {"period": breakdown.PERIODS[0]})
    insertion = breakdown.medians(alone)["insert"] if alone else 0.0
    for (name, cell), (actors, own) in itertools.product(CELLS.items(), BOTH.items()):
        record_pairs = pairs(results, name, own)
        if cell.purpose == LEARNING or not record_pairs:
            continue
        ideal = median(ideal_of(*pair, insertion) for pair in record_pairs) if cell.purpose == ACTOR_BOUND else 1.0
        sides = {"": [one for one, _ in record_pairs], "fp32: ": [other for _, other in record_pairs]}
        yield {
            "cell": cell,
            "words": f"--steps {cell.steps} {cell.more.removeprefix(BOUND).strip()}",
            "actors": actors,
            "pace": {key: median(record["measures"]["steps_per_s"] for record in side) for key, side in sides.items()},
            "waits": {key: who_waits(side) for key, side in sides.items()},
            "faster": spread(rates(record_pairs)),
            "amdahl": ideal,
            "reached": median(rates(record_pairs)) / ideal,
            "returns": "/".join(f"{fmean(record['returns'][0] for record in side):.0f}" for side in sides.values()),
            "processes": spread([other["measures"]["cpu_s"] / one["measures"]["cpu_s"] for one, other in record_pairs]),
            # Rows of 94c608f hold the processes' seconds alone.
            "command": NOT_KNOWN
            if record_pairs[0][0]["cpu_s"] == record_pairs[0][0]["measures"]["cpu_s"]
            else spread([other["cpu_s"] / one["cpu_s"] for one, other in record_pairs]),
            "wall": spread([other["measures"]["wall_s"] / one["measures"]["wall_s"] for one, other in record_pairs]),
        }


def who_waits(side: Sequence[Record]) -> str:
    """``actors 3 %, learner 78 %``: medians."""
    seconds = [entry["measures"]["learner_seconds"] for entry in side]
    learner = median(entry["data"] / sum(entry.values()) for entry in seconds)
    return f"actors {100 * median(share(entry, *WAITING) for entry in side):.0f} %, learner {100 * learner:.0f} %"


def ideal_of(one: Record, other: Record, insertion: float) -> float:
    """Amdahl's bound from the runs' own breakdowns, where actors are what is waited for.

    Args:
        one, other: in int8 and in fp32.
        insertion: microseconds a step of an insertion that nobody keeps waiting, which are work.
    """
    own, fp32_parts = (record["measures"]["breakdown"] for record in (one, other))
    busy = sum(value for part, value in fp32_parts.items() if part not in WAITING) + min(
        insertion, fp32_parts["insert"]
    )
    return amdahl(fp32_parts["inference"] / busy, fp32_parts["inference"] / max(own["inference"], 1e-9))


def curve_of(found: Sequence[Record]) -> dict[float, Estimate]:
    """Median, smallest and largest return of each judgement that all seeds have, at its median time."""
    points = {}
    for points_at_step in zip(*(record["measures"]["curve"] for record in found), strict=False):
        values = [value for _, _, value in points_at_step]
        points[median(seconds for _, seconds, _ in points_at_step)] = Estimate(median(values), min(values), max(values))
    return points


def curves(results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row for each task, precision of the actors and judgement."""
    for row, bits in itertools.product(summarise_learning(results), (32, 8)):
        goal = row["cell"].goal
        for seconds, median_return in curve_of(results.records_of(row["task"], WIDTHS[bits])).items():
            yield {**row, "bits": bits, "seconds": seconds, "return": median_return, "goal": goal and Estimate(goal)}


def returns_table(results: Results) -> list[Table]:
    """Return what was learned with actors in int8 and in fp32."""
    rows = list(summarise_learning(results))
    if not rows:
        return []
    lines = [
        {
            "task": row["task"],
            "method": row["cell"].method,
            "steps": f"{row['steps']:,}",
            "int8 actors": estimate(row["int8"]),
            "fp32 actors": estimate(row["fp32"]),
            "difference": estimate(row["gain"], sign="+"),
            "goal (int8/fp32)": f"{row['cell'].goal:g} ({row['reached']} of {row['seeds']})".replace("-", "−"),
            "time to it": row["faster"],
            "steps/s": row["pace"],
        }
        for row in rows
    ]
    return [tabulate("actorq-returns", RETURN_NOTES, lines, left=2, results=results, rows=rows)]


def costs_table(results: Results) -> list[Table]:
    """Bytes, processor time and energy of each training, and how far its actors were from the learner."""
    rows = list(costs(results))
    if not rows:
        return []
    lines = [
        {
            "task": row["task"],
            "actors": row["actors"],
            "kB a version": format_fixed(row["bytes_each"] / 1e3, 1),
            "MB sent": format_fixed(row["bytes_served"] / 1e6, 1),
            "versions built": f"{format_fixed(row['versions_built'])} of {format_fixed(row['versions_put'])}",
            "actors wait": f"{100 * row['wait']:.0f} %",
            "infer": f"{100 * row['infer']:.0f} %",
            "CPU-s": format_fixed(row["cpu_s"]),
            "kJ": format_fixed(row["joules"] / 1e3, 2),
            "g CO₂": format_fixed(row["joules"] / 3.6e6 * GRAMS_PER_KWH, 3),
            "mismatch": format_fixed(row["apart"], 3),
            "staleness": format_fixed(row["late"]),
            "largest": format_fixed(row["largest"]),
        }
        for row in rows
    ]
    named: dict[str, Any] = {"watts": f"{CORE_WATTS:g}", "grams": f"{GRAMS_PER_KWH:g}", "counted": COUNTED_CPU}
    table = tabulate("actorq-cost", COST_NOTES, lines, left=2, rules=("task",), results=results, rows=rows, **named)
    return [table]


def bounds_table(results: Results) -> list[Table]:
    """Return where actors or the learner set the pace: the speed-up, and what Amdahl's law allows."""
    rows = list(summarise_bottlenecks(results))
    if not rows:
        return []
    lines = [
        {
            "waited for": row["cell"].purpose,
            "words of the command": row["words"],
            "actors": row["actors"],
            **{f"{key}steps/s": format_fixed(pace) for key, pace in row["pace"].items()},
            **{f"{key}who waits": waits for key, waits in row["waits"].items()},
            "speed-up": row["faster"],
            "Amdahl": f"{row['amdahl']:.2f}×",
            "reached": f"{100 * row['reached']:.0f} %",
            "return (int8/fp32)": row["returns"],
            "processes' CPU-s": row["processes"],
            "command's CPU-s": row["command"],
            "wall time": row["wall"],
        }
        for row in rows
    ]
    named: dict[str, Any] = {"bound": BOUND, "counted": COUNTED_CPU}
    return [tabulate("actorq-bound", BOUND_NOTES, lines, left=3, results=results, rows=rows, **named)]


def picture(results: Results) -> Pictures:
    """Return how the learner's return grows, a panel for each task."""
    labels = {bits: (f"{NAMES[bits]} actors", STYLES[bits]) for bits in (32, 8)}
    by_task = group_by(curves(results), lambda row: f"{row['task']}, {row['cell'].method}  n={row['seeds']}")
    goal: dict[str, Any] = {"reference": "goal", "reference_label": "goal"}
    panels = [
        panel(title, rows, x="seconds", y="return", line="bits", labels=labels, **goal)
        for title, rows in by_task.items()
    ]
    if not panels:
        return {}
    below = (
        "line: median of the seeds, at the median time of their judgements; band: from the smallest to the largest\n"
        "n: seeds; dashed: the return that counts as learned"
    )
    title, axes = "The learner's greedy return, by the actors' precision", ("seconds", "greedy return")
    figure = facets(panels, None, title=title, subtitle=below, x_label=axes[0], y_label=axes[1], columns=3)
    return {"actorq-curves": figure}


EXPERIMENT = Experiment(
    name="actorq-trainings",
    factors=("bits", "runtime"),
    subjects=tuple(CELLS),
    grid=grid,
    measure=measure,
    identity=identity,
    episodes=seeds,
    tables=[returns_table, costs_table, bounds_table],
    figures=[picture],
    about=about,
    timed=True,
    in_turns=True,
)


@cli.verb()
def trainings(options: command.Options) -> int:
    """Do quantized actors make distributed training faster, and is the same learned?

        quarl study actorq-trainings cartpole_balance --seeds 0
        quarl study actorq-trainings --keep                     measures missing rows; one to four minutes each
        quarl study actorq-trainings big-actors big-learner --keep    where actors are waited for, or the learner
        quarl study actorq-trainings --stored --update-docs     fills docs/actorq.md, draws the picture

    Each training is an ordinary command, in processes of its own, with actors in int8 and in fp32; everything is read
    from the bundle that it writes. A row's value is the greedy return of the learner's policy, evaluated in fp32.
    """
    return command.run(__name__, options)
