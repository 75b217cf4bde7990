"""The tables of the study of quantized actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import estimate as bracketed
from bench.study.actorq.energy import CORE_WATTS, GRAMS_PER_KWH
from bench.study.actorq.measuring import BITS, PARTS, Breakdown, Setting
from bench.study.actorq.store import Measured
from bench.study.actorq.training import ACTOR_BOUND, BOUND, CELLS, LEARNING, Cell, Training

NAMES = {32: "fp32", 16: "fp16", 8: "int8"}
WAITING = ("insert", "wait", "idle")
"""Parts of a run's actor in which it computes little: an insertion is answered when the replay allows it."""
COUNTED_CPU = "CPU-s: supervisor, learner, replay, parameter server and actors; Ray's own daemons are left out."


def tables(measured: Measured | None, trainings: Sequence[Training]) -> list[Table]:
    """All for which something is kept."""
    found = []
    if measured is not None:
        found += [breakdown_table(measured), actor_speed_table(measured)]
    if learned_cells(trainings):
        found.append(returns_table(trainings))
        found.append(cost_table(trainings))
    names = {each.cell for each in trainings}
    if any(cell.purpose != LEARNING and cell.name in names for cell in CELLS):
        found.append(bound_table(trainings, measured))
    return found


def learned_cells(trainings: Sequence[Training]) -> list[Cell]:
    """The tasks that something was trained on to be learned."""
    names = {each.cell for each in trainings}
    return [cell for cell in CELLS if cell.purpose == LEARNING and cell.name in names]


def median_of(rows: Sequence[Breakdown], setting: Setting) -> dict[str, float]:
    """Median over the rounds of every part, microseconds per step."""
    chosen = [row for row in rows if row.setting == setting]
    return {part: median(row.microseconds[part] for row in chosen) for part in PARTS}


def settings_in(rows: Sequence[Breakdown]) -> list[Setting]:
    """In the order in which they were measured."""
    return list(dict.fromkeys(row.setting for row in rows))


def breakdown_table(measured: Measured) -> Table:
    """Where an actor's time goes."""
    lines: list[tuple[str, ...]] = []
    before = None
    for setting in settings_in(measured.rows):
        parts = median_of(measured.rows, setting)
        if before not in (None, (setting.model, setting.period)):
            lines.append(())
        before = setting.model, setting.period
        bytes_each = next(row.bytes_each for row in measured.rows if row.setting == setting)
        renewals = median(row.renewals for row in measured.rows if row.setting == setting)
        lines.append(
            (
                setting.model,
                str(setting.period),
                NAMES[setting.bits],
                *(f"{parts[part]:,.0f}" for part in PARTS),
                f"{sum(parts.values()):,.0f}",
                f"{bytes_each / 1e6:,.2f}",
                f"{renewals:g}",
            )
        )
    rounds = 1 + max(row.repetition for row in measured.rows)
    return Table(
        "actorq-breakdown",
        "Where an actor's time goes: microseconds a step of the environment",
        ("model", "period", "actor", *PARTS, "all", "MB a version", "renewals"),
        tuple(lines),
        (
            f"{measured.rows[0].setting.task}; one actor, {measured.rows[0].steps:,} steps, medians of {rounds} rounds "
            "in turn; a new version four times a second, no learner. Period: steps between two looks for newer "
            "parameters; renewals: those that found some. Parts are wall time on the actor's own clock.",
            f"Measured on {measured.machine}.",
        ),
        left=3,
    )


def actor_speed_table(measured: Measured) -> Table:
    """What int8 and fp16 bring an actor that waits for nobody."""
    lines = []
    for setting in settings_in(measured.rows):
        if setting.bits == BITS[0]:
            continue
        rounds = ratios(measured.rows, setting, lambda row: row.total)
        inference = ratios(measured.rows, setting, lambda row: row.microseconds["inference"])
        renewing = ratios(measured.rows, setting, renewal)
        share, faster = share_of_inference(measured.rows, setting)
        ideal = amdahl(share, faster)
        lines.append(
            (
                setting.model,
                str(setting.period),
                NAMES[setting.bits],
                spread(rounds),
                spread(inference),
                spread(renewing),
                f"{ideal:.2f}×",
                f"{100 * median(rounds) / ideal:.0f} %",
            )
        )
    return Table(
        "actorq-actor",
        "An actor alone, against fp32 in the same round: how many times as fast",
        ("model", "period", "actor", "step", "inference", "a renewal", "Amdahl", "reached"),
        tuple(lines),
        (
            "Median of the rounds' ratios, in brackets the smallest and the largest. A renewal: a pull (also one that "
            "found nothing new), and deserialize and load of a version. Amdahl: the speed-up of a step if only its "
            "inference became faster, from fp32's share of inference; reached: the step's speed-up as a share of it "
            "(above 100 % where parameters become cheaper too).",
            f"Measured on {measured.machine}.",
        ),
        left=3,
    )


def renewal(row: Breakdown) -> float:
    """Seconds of one renewal: a pull, and deserializing and loading what it brought."""
    opening = row.microseconds["deserialize"] + row.microseconds["load"]
    return row.steps * (row.microseconds["pull"] / max(row.pulls, 1) + opening / max(row.renewals, 1))


def ratios(rows: Sequence[Breakdown], setting: Setting, number: Callable[[Breakdown], float]) -> list[float]:
    """fp32's number over that of the setting, round by round."""
    reference = Setting(setting.task, setting.model, BITS[0], setting.period)
    by_round = {row.repetition: number(row) for row in rows if row.setting == reference}
    return [by_round[row.repetition] / max(number(row), 1e-9) for row in rows if row.setting == setting]


def share_of_inference(rows: Sequence[Breakdown], setting: Setting) -> tuple[float, float]:
    """Inference's share of fp32's step, and how many times as fast the setting infers."""
    parts = median_of(rows, Setting(setting.task, setting.model, BITS[0], setting.period))
    own = median_of(rows, setting)
    return parts["inference"] / sum(parts.values()), parts["inference"] / max(own["inference"], 1e-9)


def spread(values: Sequence[float]) -> str:
    """``2.10× [2.02, 2.31]``."""
    return f"{median(values):.2f}× [{min(values):.2f}, {max(values):.2f}]"


def pairs(trainings: Sequence[Training], cell: str) -> list[tuple[Training, Training]]:
    """(int8, fp32) of each seed that both have."""
    by_key = {each.key: each for each in trainings}
    seeds = sorted({each.seed for each in trainings if each.cell == cell})
    return [
        (by_key[cell, 8, seed], by_key[cell, 32, seed])
        for seed in seeds
        if (cell, 8, seed) in by_key and (cell, 32, seed) in by_key
    ]


def returns_table(trainings: Sequence[Training]) -> Table:
    """Whether actors in int8 learn what actors in fp32 learn, and in what time."""
    lines = []
    for cell in learned_cells(trainings):
        found = pairs(trainings, cell.name)
        if not found:
            continue
        returns = [[side.mean_return for side in sides] for sides in zip(*found, strict=True)]
        gain = Estimate.of_mean([one.mean_return - other.mean_return for one, other in found])
        times = [(one.goal_s, other.goal_s) for one, other in found]
        both = [(one, other) for one, other in times if one is not None and other is not None]
        compared = [other / one for one, other in both if one > 0]
        speed = spread(compared) if compared else "–"
        reached = "/".join(str(sum(side is not None for side in sides)) for sides in zip(*times, strict=True))
        pace = spread([one.steps_per_s / other.steps_per_s for one, other in found])
        lines.append(
            (
                cell.name,
                cell.method,
                f"{found[0][0].steps:,}",
                bracketed(Estimate.of_mean(returns[0])),
                bracketed(Estimate.of_mean(returns[1])),
                bracketed(gain, sign="+"),
                f"{cell.goal:g} ({reached} of {len(found)})".replace("-", "−"),
                speed,
                pace,
            )
        )
    headers = (
        "task", "method", "steps", "int8 actors", "fp32 actors", "difference", "goal (int8/fp32)", "time to it",
        "steps/s",
    )  # fmt: skip
    return Table(
        "actorq-returns",
        "Trained with actors in int8 and in fp32: greedy return of the learner's policy, and speed",
        headers,
        tuple(lines),
        (
            "Means over seeds with 95 % intervals (Student's); each policy judged over fresh episodes in fp32. Time to "
            "the goal: from the first steps to the first judgement at or above it, fp32's over int8's, median of seeds "
            "that reached it with both, in brackets the smallest and the largest; steps/s: int8's over fp32's, after "
            "the learner's rounds that compile. Two actors (D4PG: four), a learner, a replay "
            "and a parameter server share the machine's cores. Goals and steps were set after trials with seed 0 "
            "(walker_stand: 7).",
            *machines(trainings),
        ),
        left=2,
    )


def cost_table(trainings: Sequence[Training]) -> Table:
    """Bytes, CPU time, energy and how far the actors were from the learner."""
    lines: list[tuple[str, ...]] = []
    for cell in learned_cells(trainings):
        for bits in (8, 32):
            found = [each for each in trainings if each.cell == cell.name and each.bits == bits]
            if not found:
                continue
            mean = _mean_of(found)
            seen = "disagreement" if cell.method == "dqn" else "distance"
            lines.append(
                (
                    cell.name,
                    NAMES[bits],
                    f"{mean(lambda each: each.bytes_each) / 1e3:,.1f}",
                    f"{mean(lambda each: each.bytes_sent) / 1e6:,.1f}",
                    f"{mean(lambda each: each.versions[0]):,.0f} of {mean(lambda each: each.versions[1]):,.0f}",
                    f"{100 * mean(waited):.0f} %",
                    f"{100 * mean(inferred):.0f} %",
                    f"{mean(lambda each: each.cpu_s):,.0f}",
                    f"{mean(lambda each: each.energy['joules']) / 1e3:,.2f}",
                    f"{mean(lambda each: each.energy['grams_co2']):,.3f}",
                    f"{mean(lambda each, seen=seen: each.mismatch.get(seen, 0.0)):.3f}",
                    f"{mean(lambda each: each.mismatch.get('staleness_updates', 0.0)):,.0f}",
                    f"{max(each.staleness['largest_updates'] for each in found):,.0f}",
                )
            )
        lines.append(())
    source = {each.energy["source"] for each in trainings}
    words = (
        "from the processor's counters (RAPL), whoever used them"
        if source == {"rapl"}
        else f"no counter can be read here: CPU seconds at an assumed {CORE_WATTS:g} W a busy core"
    )
    headers = (
        "task", "actors", "kB a version", "MB sent", "versions built", "actors wait", "infer", "CPU-s", "kJ", "g CO₂",
        "mismatch", "staleness", "largest",
    )  # fmt: skip
    return Table(
        "actorq-cost",
        "What it took, mean of the seeds",
        headers,
        tuple(lines[:-1]) if lines and not lines[-1] else tuple(lines),
        (
            f"Energy: {words}; CO₂ at {GRAMS_PER_KWH:g} g a kWh (mean of the world in 2018, IEA 2019).",
            "Sent: parameters to all actors. Versions built: quantized, of those the learner handed over; nobody asked "
            "for the others. Actors wait, infer: shares of their time; an insertion's own work, some 40 to 100 µs a "
            f"step, counts as waiting. {COUNTED_CPU} Mismatch, at the end: share of states in which "
            "an actor chose another action than the learner would (DQN), or mean distance of their actions in −1 … 1 "
            "(D4PG); it holds quantization and delay. "
            "Staleness, in updates: how far the policies that acted the newest rows are behind the learner that learns "
            "from them, mean at the end; largest: how far an acting policy was behind when the replay took its rows.",
            *machines(trainings),
        ),
        left=2,
    )


def _mean_of(found: Sequence[Training]) -> Callable[[Callable[..., float]], float]:
    return lambda number: sum(number(each) for each in found) / len(found)


def bound_table(trainings: Sequence[Training], measured: Measured | None) -> Table:
    """The pace where actors are waited for, and where the learner is.

    Args:
        trainings: kept ones.
        measured: an actor alone, whose insertions nobody keeps waiting.
    """
    lines = []
    for cell in (cell for cell in CELLS if cell.purpose != LEARNING):
        found = pairs(trainings, cell.name)
        if not found:
            continue
        speeds = [one.steps_per_s / other.steps_per_s for one, other in found]
        ideal = ideal_of(cell, found, insertion_of(measured, cell))
        lines.append(
            (
                cell.purpose,
                " ".join(["--steps", str(cell.steps), *cell.more[len(BOUND) :]]),
                f"{median(one.steps_per_s for one, _ in found):,.0f}",
                f"{median(other.steps_per_s for _, other in found):,.0f}",
                waiting([one for one, _ in found]),
                waiting([other for _, other in found]),
                spread(speeds),
                f"{ideal:.2f}×",
                f"{100 * median(speeds) / ideal:.0f} %",
                spread([other.cpu_s / one.cpu_s for one, other in found]),
            )
        )
    headers = (
        "waited for", "words of the command", "int8 steps/s", "fp32 steps/s", "int8: who waits", "fp32: who waits",
        "speed-up", "Amdahl", "reached", "CPU-s saved",
    )  # fmt: skip
    return Table(
        "actorq-bound",
        "End to end with 2048,2048,2048, int8 actors against fp32 actors",
        headers,
        tuple(lines),
        (
            f"D4PG, cartpole balance, {' '.join(BOUND)}; two actors, the learner, replay and parameter server on the "
            "machine's cores. Steps/s are counted after the learner's rounds that compile. Who waits: share of their "
            "whole time, those rounds too, that the actors wait for the replay's leave (an insertion's own work "
            "included) or a newer version, and the learner for data. Amdahl: where actors are waited for, from the "
            "share of inference in the fp32 run's own actors, waiting left out (of their insertions, what is beyond "
            "those of an actor alone); where the learner is, 1, for it computes in fp32 in both. CPU-s saved: fp32's "
            "CPU seconds over int8's, of the whole command with its start and the last judgement, which both share. "
            f"{COUNTED_CPU}",
            *machines(trainings),
        ),
        left=2,
    )


def waited(training: Training) -> float:
    """Share of the actors' time that they wait, for the replay's leave or a newer version."""
    return sum(training.breakdown[part] for part in WAITING) / sum(training.breakdown.values())


def inferred(training: Training) -> float:
    """Share of the actors' time that they infer."""
    return training.breakdown["inference"] / sum(training.breakdown.values())


def waiting(trainings: Sequence[Training]) -> str:
    """``actors 3 %, learner 78 %``: medians."""
    actors = 100 * median(waited(each) for each in trainings)
    learner = 100 * median(each.learner_seconds["data"] / sum(each.learner_seconds.values()) for each in trainings)
    return f"actors {actors:.0f} %, learner {learner:.0f} %"


def insertion_of(measured: Measured | None, cell: Cell) -> float:
    """Microseconds a step that an fp32 actor alone takes to insert, with the cell's network; 0: not measured."""
    words = list(cell.more)
    model = words[words.index("--model") + 1] if "--model" in words else ""
    rows = () if measured is None else measured.rows
    found = [s for s in settings_in(rows) if (s.task, s.model, s.bits) == (cell.task, model, BITS[0])]
    return median_of(rows, min(found, key=lambda setting: setting.period))["insert"] if found else 0.0


def ideal_of(cell: Cell, found: Sequence[tuple[Training, Training]], insertion: float = 0.0) -> float:
    """Amdahl's bound from the runs' own breakdowns, where actors are what is waited for; 1 where it is the learner.

    Args:
        cell, found: its pairs.
        insertion: microseconds a step of an insertion that nobody keeps waiting, which are work.
    """
    if cell.purpose != ACTOR_BOUND:
        return 1.0
    bounds = []
    for one, other in found:
        busy = sum(value for part, value in other.breakdown.items() if part not in WAITING)
        busy += min(insertion, other.breakdown["insert"])
        share = other.breakdown["inference"] / busy
        faster = other.breakdown["inference"] / max(one.breakdown["inference"], 1e-9)
        bounds.append(amdahl(share, faster))
    return median(bounds)


def amdahl(share: float, faster: float) -> float:
    """How many times as fast the whole becomes if a share of it becomes so many times as fast."""
    return 1.0 / (1.0 - share + share / faster)


def machines(trainings: Sequence[Training]) -> list[str]:
    """Where it was measured."""
    found = list(dict.fromkeys(each.machine for each in trainings if each.machine))
    return [f"Measured on {'; '.join(found)}."] if found else []
