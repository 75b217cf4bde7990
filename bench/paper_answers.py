"""What the stored rows of this repository say to each claim of QuaRL: a figure, what it rests on, and a verdict.

Nothing is measured here. Each function asks the reader functions of the study that has its rows, and computes its
verdict by :mod:`bench.report.verdicts`. Which claim each answers stands in :mod:`bench.paper`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import truediv
from statistics import median
from typing import Any

from quarl.bench import case_study, pressure, virtual_pi
from quarl.bench.case_study import PAPER, SPEED_UPS
from quarl.bench.report.document import Kind
from quarl.bench.report.notes import ratio_cell
from quarl.bench.report.selection import FP32, Kept, Selection, pair_successes, speed_up, turn_ratios
from quarl.bench.report.text import correlation, format_fixed, format_loss, percent, span, times
from quarl.bench.report.verdicts import (
    LIMIT_PERCENT,
    Verdict,
    count_lossless,
    verdict,
    verdict_of_counts,
    verdict_of_gains,
    verdict_of_losses,
)
from quarl.bench.study import cells, mixed, ptq_table, sweep, width
from quarl.bench.study.actorq import breakdown, runs, trainings
from quarl.bench.study.experiment import ERROR, Experiment, Results
from quarl.bench.study.joined import results_of
from quarl.bench.study.learning import qat
from quarl.policy.bundle import Bundle
from quarl.train.intervals import Estimate
from quarl.train.suites.cells import load_cells

PICTURE_S = {
    "fp32": {"step": 10.5, "pull": 2.9, "deserialize": 1.2, "load": 0.35},
    "int8": {"step": 6.5, "pull": 0.5, "deserialize": 0.15, "load": 1.95},
}
"""Seconds of an actor's parts, read off the paper's picture (update period 30); its step holds inference, too."""
BIG = "2048,2048,2048"
POLICIES = ("I", "II", "III")


@dataclass(frozen=True)
class Rows:
    """The stored rows; each study is read once.

    Attributes:
        kept: where they are stored.
        read: those that have been read, by study.
    """

    kept: Kept
    read: dict[str, Results] = field(default_factory=dict, compare=False)

    def of(self, experiment: Experiment) -> Results:
        """Return the rows of a study."""
        if experiment.name not in self.read:
            folder = self.kept.folder and self.kept.folder / "study"
            self.read[experiment.name] = results_of(experiment, folder)
        return self.read[experiment.name]

    @property
    def evaluated_bundles(self) -> list[cells.JudgedBundle]:
        """The cells whose artifacts were evaluated."""
        return cells.collect_bundles(self.of(cells.EXPERIMENT))

    @property
    def swept(self) -> list[dict[str, Any]]:
        """The policies that were quantized to every width."""
        return [row for row in sweep.of_several(self.of(sweep.EXPERIMENT)) if row[ERROR] is not None]

    @property
    def qat_rows(self) -> list[dict[str, Any]]:
        """The cells and widths that learned with quantizers."""
        rows = qat.policies(self.of(qat.EXPERIMENT))
        return [row for row in rows if row["way"] == qat.SHORT[qat.LEARNED] and row[ERROR] is not None]

    @functools.cached_property
    def points(self) -> list[width.Point]:
        """Width and errors of every committed policy."""
        bundles = [Bundle.load(path.parent) for path in sorted(self.kept.zoo.glob("**/manifest.json"))]
        return width.points(bundles, self.of(cells.EXPERIMENT), self.of(sweep.EXPERIMENT))

    @functools.cached_property
    def pressure(self) -> dict[str, Any]:
        """What memory pressure adds on the virtual Pi, as it was kept."""
        return self.kept.answer("pressure", f"{pressure.COMMAND} --keep")

    @functools.cached_property
    def cases(self) -> Selection:
        """The measurements of the case study."""
        return self.kept.selection(case_study.CASE_STUDY)

    @functools.cached_property
    def virtual_pi_rows(self) -> list[dict[str, Any]]:
        """The rows of the virtual Pi."""
        reports = self.kept.reports(virtual_pi.VIRTUAL_PI)
        return list(virtual_pi.rows_of(reports, self.kept.preset, virtual_pi.TARGET))


@dataclass(frozen=True)
class Answer:
    """What the rows say: the figure with its interval, how much it rests on, and the verdict on the paper's."""

    ours: str
    n: str
    same: Verdict


def describe_losses(errors: Sequence[Estimate]) -> str:
    """In how many settings nothing is lost: ``no loss in 13 of 14``."""
    return f"no loss in {count_lossless(errors)} of {len(errors)}"


def extreme(errors: Mapping[str, Estimate], pick: Callable[..., str] = max) -> str:
    """Return the name of the largest or the smallest relative error, and the error."""
    name = pick(errors, key=lambda each: errors[each].value)
    return f"{name} {format_loss(errors[name], '+')} %"


def middle(values: Sequence[float]) -> Estimate:
    """Median, least and greatest of ratios."""
    return Estimate(median(values), min(values), max(values))


# --- quantization after training --------------------------------------------------------------------------------------


def at_bits(bits: int, rows: Rows) -> Answer:
    """Count the policies that lose nothing at a width, in three schemes; the verdict is of the paper's own."""
    own, weights_only, _, symmetric, _ = (
        [row for row in rows.swept if row["bits"] == bits and row["name"] == name] for name in sweep.STYLED
    )
    errors, *others = ([row[ERROR] for row in scheme_rows] for scheme_rows in (own, weights_only, symmetric))
    words = zip(("weights only", "one scale a channel"), others, strict=True)
    text = [describe_losses(errors), *(f"{name} {count_lossless(losses)} of {len(losses)}" for name, losses in words)]
    n = f"{len(own)} policies and arenas × {span(row['episodes'] for row in own)} episodes"
    return Answer("; ".join(text), n, verdict_of_losses(errors))


def artifacts(precision: str, rows: Rows) -> tuple[dict[str, Estimate], str]:
    """Return the errors of the cells' artifacts, and how much they rest on."""
    errors = {
        bundle.subject: error for bundle in rows.evaluated_bundles if (error := bundle.error(precision)) is not None
    }
    return (
        errors,
        f"{len(errors)} cells × {span(bundle.fp32['episodes'] for bundle in rows.evaluated_bundles)} episodes",
    )


def cost(precision: str, rows: Rows) -> Answer:
    """Count the cells whose artifact loses nothing."""
    errors, n = artifacts(precision, rows)
    losses = list(errors.values())
    return Answer(f"{describe_losses(losses)}; most: {extreme(errors)}", n, verdict_of_losses(losses))


def of_method(method: str, rows: Rows) -> Answer:
    """Average an algorithm's int8 errors over the paper's cells that are trained here."""
    shared = [bundle for bundle in rows.evaluated_bundles if bundle.cell.method == method and bundle.cell.paper]
    paper_error, our_error = ptq_table.papers_mean([bundle.cell for bundle in shared]), ptq_table.mean_error(shared)
    text = f"{format_loss(our_error, '+')} % (paper, these cells: {ptq_table.single(paper_error)} %)"
    return Answer(text, f"{len(shared)} cell{'s' * (len(shared) != 1)}", verdict(our_error, paper_error))


def gains_of_artifacts(rows: Rows) -> Answer:
    """Count the int8 artifacts that are better than fp32 beyond their interval."""
    return gains(*artifacts("int8", rows), papers_best())


def papers_best() -> float:
    """Return the paper's largest gain in int8, as a relative error."""
    return min(error for cell in load_cells() if (error := ptq_table.compute_published_error(cell, "int8")) is not None)


def gains(errors: Mapping[str, Estimate], n: str, claimed: float | None = None) -> Answer:
    """Count the settings that are better than fp32 beyond their interval."""
    better = {name: error for name, error in errors.items() if error.side < 0}
    most = f"; most: {extreme(better, min)}" if better else ""
    return Answer(
        f"better in {len(better)} of {len(errors)}{most}", n, verdict_of_gains(list(errors.values()), claimed)
    )


def gains_of_sweep(rows: Rows) -> Answer:
    """Count them among all policies, schemes and widths of 2 … 8 bits."""
    narrow_rows = [row for row in rows.swept if row["bits"] in sweep.NARROW]
    names = [(row["label"], row["preset"], row["name"], f"{row['bits']} bits") for row in narrow_rows]
    errors = {", ".join(filter(None, name)): row[ERROR] for name, row in zip(names, narrow_rows, strict=True)}
    return gains(errors, f"{len(errors)} settings, 2 … 8 bits", papers_best())


def sweet_spot(rows: Rows) -> Answer:
    """Compare the policies that lose least and most at 4 bits by the released script."""
    four_bit_rows = [row for row in rows.swept if row["bits"] == 4 and row["name"] == sweep.SCHEMES[1]]
    four_bit_rows = [row for row in four_bit_rows if row["preset"] in ("", rows.kept.preset)]
    errors = {row["label"]: row[ERROR] for row in four_bit_rows}
    differs = count_lossless(errors.values()) > 0 and any(error.is_above(LIMIT_PERCENT) for error in errors.values())
    text = f"at 4 bits {extreme(errors)}, {extreme(errors, min)}"
    return Answer(text, f"{len(errors)} policies", Verdict.SAME if differs else Verdict.UNDECIDED)


# --- quantization-aware training --------------------------------------------------------------------------------------


def of_trainings(found: Sequence[Mapping[str, Any]]) -> str:
    """Return how many settings there are, and on how many trainings each rests."""
    return f"{len(found)} settings × {span(row['trainings'] for row in found)} trainings"


def answer_qat_bits(rows: Rows) -> Answer:
    """Count the cells that learned with 6 or 5 bits and lose nothing, and find the fewest bits of which that holds."""
    selected_rows = [row for row in rows.qat_rows if row["bits"] in (6, 5)]
    lossy = max((row["bits"] for row in rows.qat_rows if not count_lossless([row[ERROR]])), default=0)
    fewest = min(row["bits"] for row in rows.qat_rows if row["bits"] > lossy)
    errors = [row[ERROR] for row in selected_rows]
    text = f"{describe_losses(errors)}; nor in any cell down to {fewest} bits"
    return Answer(text, of_trainings(selected_rows), verdict_of_losses(errors))


def answer_qat_gain(rows: Rows) -> Answer:
    """Count the widths at which learning with quantizers beats quantizing afterwards."""
    gains_by_cell = {f"{row['cell']} at {row['bits']} bits": row["gain"] for row in rows.qat_rows if row["gain"]}
    better, worse = ([gain for gain in gains_by_cell.values() if gain.side == side] for side in (1, -1))
    refuted = count_lossless(gain for gain in gains_by_cell.values() if gain not in better)
    text = f"better in {len(better)}, worse in {len(worse)} of {len(gains_by_cell)}; most: {extreme(gains_by_cell)}"
    return Answer(text, of_trainings(rows.qat_rows), verdict_of_counts(len(better), refuted, len(gains_by_cell)))


def answer_qat_above(rows: Rows) -> Answer:
    """Count the widths at which learning with quantizers beats floats."""
    errors = {f"{row['cell']} at {row['bits']} bits": row[ERROR] for row in rows.qat_rows}
    return gains(errors, of_trainings(rows.qat_rows))


# --- what decides how many bits are enough ----------------------------------------------------------------------------


def wider(source: str, measure: str, rows: Rows) -> Answer:
    """Correlate a measure of the weights' width with an error."""
    rank_correlation = width.correlations(rows.points, source)[measure]
    same = verdict(Estimate(rank_correlation.rho, rank_correlation.low, rank_correlation.high), None)
    return Answer(f"ρ {correlation(rank_correlation)}", f"{rank_correlation.pairs} policies", same)


def wider_of_two(rows: Rows) -> Answer:
    """Compare policies of one task: does the one with wider weights lose more in int8?"""
    agree, against, tasks = width.compare_pairs(rows.points, width.DEVICE)
    text = f"more in {agree} of {len(tasks)}, less in {against}"
    return Answer(text, f"{len(tasks)} pairs", verdict_of_counts(agree, against, len(tasks)))


def order_of_methods(rows: Rows) -> Answer:
    """Compare the ranges of CartPole's weights with the paper's order of algorithms."""
    ranges = {point.name: point.range for point in rows.points}
    weight_ranges = [ranges[f"cartpole-{method}"] for method in ("dqn", "ppo", "a2c")]
    same = Verdict.SAME if weight_ranges == sorted(weight_ranges, reverse=True) else Verdict.NOT_SHOWN
    return Answer(
        f"ranges on CartPole {', '.join(format_fixed(weight_range, 2) for weight_range in weight_ranges)}",
        "1 policy each",
        same,
    )


# --- speed and memory, the drone --------------------------------------------------------------------------------------


def answer_mixed_speed(name: str, rows: Rows) -> Answer:
    """Compare the speed of training in 16 bits on Pong."""
    row = next(row for row in mixed.of_policies(rows.of(mixed.EXPERIMENT)) if row["name"] == name and row["pong"])
    ratio, count = row["pong"][1] / row["pong"][0], len(row["works"][mixed.PONG])
    claimed = truediv(*mixed.POLICIES[name].paper_minutes)
    return Answer(times(ratio), f"{count} run{'s' * (count != 1)}", verdict(Estimate(ratio), claimed, 1.0))


def answer_mixed_return(rows: Rows) -> Answer:
    """Estimate the return that training in 16 bits loses on Catch."""
    curves = next(iter(mixed.of_catch(rows.of(mixed.EXPERIMENT))))["curves"]
    full, half = ([curve[side][-1] for curve in curves] for side in (0, 1))
    error = Estimate.of_relative_error(half, full)
    return Answer(
        f"Catch: loss {format_loss(error, '+')} %", f"{len(curves)} seeds", verdict_of_losses([error] if error else [])
    )


def decision(policy: str, rows: Rows) -> Answer:
    """Compare the speed of a decision in int8 as measured; beside it, what the model of a Cortex-A53 allows."""
    fp32, int8 = (
        rows.cases.last(Kind.LATENCY, policy=policy, precision=name, path=case_study.PATH) for name in (FP32, "int8")
    )
    turns, runs_each = (
        turn_ratios(fp32, int8),
        [report.latency.runs for report in (fp32, int8) if report and report.latency],
    )
    speed = Estimate(speed_up(fp32, int8) or 1.0, min(turns), max(turns))
    roofs = {
        row["precision"]: row["rooflines"][-1]
        for row in rows.virtual_pi_rows
        if row["policy"] == policy and row["counts"]
    }
    text = f"{ratio_cell(fp32, int8)}; modelled A53 {times(roofs[FP32] / roofs['int8'])}"
    if policy == "III":
        inputs = max(case["measured"]["inputs"] for case in rows.pressure["cases"])
        parts = rows.pressure["speed_ups"]
        apart = f"computing {times(parts['computing'])} × memory pressure {times(parts['pressure'])}"
        text += f"; with {inputs:,} inputs on the virtual Pi, emulated: {apart}"
    return Answer(text, f"{len(turns)} turns, {span(runs_each)} runs", verdict(speed, SPEED_UPS[policy], 1.0))


def memory(part: Callable[[Mapping[str, Any]], float], rows: Rows) -> Answer:
    """Compare how many times as much of something fp32 takes; the verdict is of III, as the paper's."""
    rows_by_key = {(row["policy"], row["precision"]): row for row in case_study.rows_of(rows.cases, rows.kept.preset)}
    ratios = [part(rows_by_key[policy, FP32]) / part(rows_by_key[policy, "int8"]) for policy in POLICIES]
    text = ", ".join(f"{policy} {times(ratio)}" for policy, ratio in zip(POLICIES, ratios, strict=True))
    return Answer(text, "1 measurement each", verdict(Estimate(ratios[-1]), 4.0, 1.0))


def success(one: tuple[str, str], other: tuple[str, str], rows: Rows) -> Answer:
    """Compare two successes on the same flights, in points."""
    change = pair_successes(*(rows.cases.best_success(*pair, rows.kept.preset) for pair in (one, other)))
    if change is None:
        return Answer("–", "0", Verdict.UNDECIDED)
    same = verdict(change.estimate, PAPER[one][1] - PAPER[other][1])
    return Answer(f"{percent(change.estimate, '+')} points", f"{change.episodes:,} flights", same)


# --- ActorQ -----------------------------------------------------------------------------------------------------------

LEARNING = tuple(name for name, cell in runs.CELLS.items() if cell.purpose == runs.LEARNING)


def pace(names: Iterable[str], rows: Rows) -> Answer:
    """Compare steps per second with int8 actors."""
    results = rows.of(trainings.EXPERIMENT)
    speed_ratios = [rate for name in names for rate in runs.rates(runs.pairs(results, name))]
    return Answer(runs.spread(speed_ratios), f"{len(speed_ratios)} pairs", verdict(middle(speed_ratios), 1.5, 1.0))


def actors_return(rows: Rows) -> Answer:
    """Count the tasks whose return does not suffer."""
    task_rows = list(trainings.summarise_learning(rows.of(trainings.EXPERIMENT)))
    errors = [row["gain"].times(-100.0 / abs(row["fp32"].value)) for row in task_rows]
    text = f"{sum(bool(row['gain'].side) for row in task_rows)} of {len(task_rows)} differ; {describe_losses(errors)}"
    return Answer(
        text, f"{len(task_rows)} tasks × {span(row['seeds'] for row in task_rows)} pairs", verdict_of_losses(errors)
    )


def energy(rows: Rows) -> Answer:
    """Compare CPU seconds of all processes, to which energy and CO₂ are proportional."""
    both = [pair for name in LEARNING for pair in runs.pairs(rows.of(trainings.EXPERIMENT), name)]
    cpu_ratios = [other["measures"]["cpu_s"] / one["measures"]["cpu_s"] for one, other in both]
    return Answer(runs.spread(cpu_ratios), f"{len(cpu_ratios)} pairs", verdict(middle(cpu_ratios), 1.9, 1.0))


def papers_seconds(parts: Sequence[str]) -> tuple[float, ...]:
    """Seconds of fp32 and of int8 that these parts take in the paper's picture."""
    return tuple(sum(seconds_by_part.get(part, 0.0) for part in parts) for seconds_by_part in PICTURE_S.values())


def actor(parts: Sequence[str], rows: Rows) -> Answer:
    """Compare the time that parts of an actor's step take, in rounds of fp32 and int8."""
    results, period = rows.of(breakdown.EXPERIMENT), {"period": breakdown.PERIODS[0]}
    sides = [results.records_of(BIG, {**period, **runs.WIDTHS[bits]}) for bits in (32, 8)]
    time_ratios = [
        truediv(*(sum(record["measures"]["microseconds"][part] for part in parts) for record in pair))
        for pair in zip(*sides, strict=True)
    ]
    claimed = truediv(*papers_seconds(parts))
    return Answer(runs.spread(time_ratios), f"{len(time_ratios)} rounds", verdict(middle(time_ratios), claimed, 1.0))
