"""The recommender's table and JSON document: everything that was measured, beside the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.measuring.execution import DEVICE_ACTIVATION_BITS, execution_of
from bench.recommending.deciding import Candidate, Change, Quality, Verdict
from bench.recommending.measuring import Measured
from bench.recommending.timing import PROCESSES, Asked, Pair
from bench.recommending.words import Question, fewest_bits, percent, share
from bench.report.case_study import machine_notes, said_of
from bench.report.intervals import Estimate
from bench.report.tables import Table
from bench.report.text import estimate as bracketed
from bench.report.text import kilobytes, megabytes, nanoseconds
from policy.quantization import Scheme
from policy.spec import Precision

if TYPE_CHECKING:
    from bench.report.document import Report
    from policy.bundle import Bundle

AS_INT8 = "as int8"
MEETS, FLOOR, DEADLINE, BOTH = "meets both", "misses floor", "misses deadline", "misses both"


def table(verdict: Verdict, question: Question, measured: Measured, asked: Asked, presets: Sequence[str]) -> Table:
    """The candidates in the order of the verdict, then the widths below int8, which run as int8."""
    rows = [
        (
            candidate.precision,
            candidate.runtime,
            standing(candidate, verdict),
            share(candidate.quality).removesuffix(" %"),
            _returns(measured, pair_of(candidate, measured)),
            _turns(candidate),
            nanoseconds(candidate.p99_ns),
            kilobytes(candidate.artifact_bytes),
            megabytes(candidate.resident_bytes),
        )
        for candidate in (*verdict.ranked, *verdict.missed)
    ]
    for pair in only_played(measured):
        quality = measured.quality(pair)
        reached = quality.low is not None and quality.low >= question.demand.floor
        size = kilobytes(measured.artifacts[pair].record.size)
        rows.append(
            (
                pair[0].value,
                pair[1].value,
                "reaches floor" if reached else FLOOR,
                share(quality).removesuffix(" %"),
                _returns(measured, pair),
                AS_INT8,
                AS_INT8,
                size,
                AS_INT8,
            )
        )
    headers = (
        "precision",
        "runtime",
        "verdict",
        f"% {question.quality}",
        "return",
        "p50",
        "p99",
        "KB artifact",
        "MB resident",
    )
    where = f", preset {asked.preset}" if asked.preset else ""
    title = (
        f"{question.bundle}{where}: floor {percent(question.demand.floor)} {question.quality}, "
        f"deadline {question.demand.deadline_ms:g} ms"
    )
    return Table("recommend", title, headers, tuple(rows), tuple(notes(question, measured, asked, presets)), left=3)


def standing(candidate: Candidate, verdict: Verdict) -> str:
    """The candidate's verdict in a word or two."""
    if candidate in verdict.ranked:
        return "chosen" if candidate is verdict.chosen else MEETS
    slow = candidate.p99_ns > verdict.demand.deadline_ns
    if verdict.demand.short_of_floor(candidate):
        return BOTH if slow else FLOOR
    return DEADLINE


def pair_of(candidate: Candidate, measured: Measured) -> Pair:
    """The keys of its measurements."""
    return next(pair for pair in measured.latency if (pair[0].value, pair[1].value) == candidate.key)


def only_played(measured: Measured) -> list[Pair]:
    """What played and is no candidate."""
    return [pair for pair in measured.played if pair not in measured.latency]


def _returns(measured: Measured, pair: Pair) -> str:
    return bracketed(Estimate.of_mean(measured.played[pair].returns))


def _turns(candidate: Candidate) -> str:
    """``1.36 µs [1.33, 1.42]``; each with its unit where the units differ."""
    said = [nanoseconds(t).split() for t in (candidate.p50_ns, min(candidate.turns_ns), max(candidate.turns_ns))]
    alike = len({unit for _, unit in said}) == 1
    ends = (value if alike else f"{value} {unit}" for value, unit in said[1:])
    return f"{' '.join(said[0])} [{', '.join(ends)}]"


def notes(question: Question, measured: Measured, asked: Asked, presets: Sequence[str]) -> list[str]:
    """What the numbers are, where they come from, and what they do not say."""
    from bench.report.machine import describe_machine

    reports = list(measured.latency.values())
    first = reports[0].latency
    assert first is not None
    said = [
        quality_note(question, measured, asked) + f" Played on {describe_machine().sentence()}.",
        f"{first.runs:,} decisions timed of each, in {len(first.block_p50_ns)} turns (A B A B) of {PROCESSES} agents, "
        f"{first.warmup} untimed before each turn, path {first.path}; in brackets the least and the greatest p50 of a "
        "turn. Candidates whose turns overlap count as equally fast.",
        *machine_notes(reports),
    ]
    if reports[0].target == "local":
        said.append("local is this machine. Times of the device that the policy is for: --target pi@raspberrypi")
    said += [f"No {runtime.value}: {reason}" for runtime, reason in measured.excluded.items()]
    if measured.groups > 1:
        said.append(
            f"Timed in {measured.groups} groups, one after another: all agents at once do not fit into the memory."
        )
    if invalid := [f"{r.precision} {r.runtime}: {'; '.join(r.invalid_reasons)}" for r in reports if not r.valid]:
        said.append(f"NOT VALID: {', '.join(invalid)}. Measure again before you rely on it.")
    if others := [preset for preset in presets if preset != asked.preset]:
        said.append(f"This policy is judged on other presets, too: {', '.join(f'--preset {name}' for name in others)}.")
    return [*said, *said_of(reports), width_note(question, measured)]


def quality_note(question: Question, measured: Measured, asked: Asked) -> str:
    """What the floor was held against."""
    where = f" of preset {asked.preset}" if asked.preset else ""
    games = f"{asked.episodes:,} greedy episodes{where}, seed {asked.seed}, the same for every artifact"
    if question.has_success:
        return f"Success: share of {games}; 95 % intervals (Wilson). The floor is held against the lower end."
    precision, runtime = measured.reference[0].value, measured.reference[1].value
    trained = "" if precision == "fp32" else " (the width of the quantizers that it was trained with)"
    note = (
        f"Return kept: share of the mean return F of {precision} with {runtime}{trained} over {games}, "
        "1 − (F − this one's) / |F|; 95 % intervals of paired means. The task has no success, so the floor is held "
        "against the lower end of this."
    )
    if len(set(measured.played[measured.reference].returns)) == 1:
        note += (
            f" {precision}'s return is the same in every episode: an interval of no width says nothing of other ones."
        )
    return note


def width_note(question: Question, measured: Measured) -> str:
    """How few bits the policy takes, and how they would execute."""
    runtime = measured.reference[1]
    widths = ", ".join(pair[0].value for pair in only_played(measured))
    narrow = execution_of(Scheme.SYMMETRIC, 4, DEVICE_ACTIVATION_BITS, runtime)
    assert not narrow.packed
    qualities = integer_qualities(measured)
    fewest = fewest_bits(qualities, question.demand.floor)
    tried = " … ".join(dict.fromkeys((next(iter(qualities)), Precision.INT2.value)))
    answer = f"none of {tried} reaches the floor" if fewest is None else f"{fewest} is the narrowest at the floor"
    return (
        f"How few bits: {answer}. {widths} have an int8 container, unpacked ({narrow.container_bytes} byte a weight): "
        f"size, speed and kernel are int8's, so they played with {runtime.value} only and are no candidates."
    )


def integer_qualities(measured: Measured) -> dict[str, Quality]:
    """Quality by precision in the first runtime: of int8, or the width that the policy was trained with, and below."""
    reference, runtime = measured.reference
    widest = min(reference.bits, Precision.INT8.bits)
    found = [pair for pair in measured.played if pair[0].bits <= widest and pair[1] is runtime]
    return {pair[0].value: measured.quality(pair) for pair in found}


def document(
    bundle: Bundle,
    task: str,
    verdict: Verdict,
    question: Question,
    measured: Measured,
    asked: Asked,
    said: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything as JSON values.

    Args:
        bundle: that was asked about.
        task: its name.
        verdict, question, measured, asked: the answer and what it rests on.
        said: the answer's lines, and circumstances that only the command knows (seconds).
    """
    from bench.report.document import code_version
    from bench.report.machine import describe_machine

    provenance = bundle.spec.provenance
    return {
        "bundle": question.bundle,
        "policy": bundle.spec.name,
        "task": task,
        "algorithm": str(provenance.get("algorithm", "")),
        "weights_sha256": bundle.manifest.files["weights.safetensors"].sha256,
        "demand": {"floor": question.demand.floor, "deadline_ms": question.demand.deadline_ms},
        "quality": question.quality,
        "reference": _name(measured.reference),
        "preset": asked.preset,
        "episodes": asked.episodes,
        "seed": asked.seed,
        "path": asked.path,
        "played_on": describe_machine().sentence(),
        "code": code_version(),
        "excluded_runtimes": {runtime.value: reason for runtime, reason in measured.excluded.items()},
        "groups": measured.groups,
        "left_on_target": measured.left,
        "recommended": None if verdict.chosen is None else _name(pair_of(verdict.chosen, measured)),
        "candidates": [_candidate(candidate, verdict, measured) for candidate in (*verdict.ranked, *verdict.missed)],
        "fewer_bits": [
            {**_name(pair), "executes": "as int8", **_played(pair, measured)} for pair in only_played(measured)
        ],
        "fewest_bits_at_the_floor": fewest_bits(integer_qualities(measured), question.demand.floor),
        "change": None if verdict.change is None else _change(verdict.change),
        **said,
        "reports": [report.to_dict() for report in reports_of(measured)],
    }


def reports_of(measured: Measured) -> list[Report]:
    """What the target answered."""
    return [*measured.memory.values(), *measured.latency.values()]


def _name(pair: Pair) -> dict[str, str]:
    return {"precision": pair[0].value, "runtime": pair[1].value}


def _candidate(candidate: Candidate, verdict: Verdict, measured: Measured) -> dict[str, Any]:
    pair = pair_of(candidate, measured)
    short = verdict.demand.short_of_floor(candidate)
    return {
        **_name(pair),
        "verdict": standing(candidate, verdict),
        "as_fast_as_the_fastest": candidate in verdict.as_fast,
        "points_short_of_floor": None if candidate.quality.low is None else 100 * short,
        "times_deadline": verdict.demand.times_deadline(candidate),
        **_played(pair, measured),
        "p50_ns": candidate.p50_ns,
        "p50_turns_ns": list(candidate.turns_ns),
        "p99_ns": candidate.p99_ns,
        "resident_bytes": candidate.resident_bytes,
        "valid": measured.latency[pair].valid,
    }


def _played(pair: Pair, measured: Measured) -> dict[str, Any]:
    quality, entry = measured.quality(pair), measured.artifacts[pair]
    mean = Estimate.of_mean(measured.played[pair].returns)
    return {
        "quality": {"share": quality.value, "low": quality.low, "high": quality.high},
        "mean_return": {"value": mean.value, "low": mean.low, "high": mean.high},
        "artifact": {
            "file": entry.file,
            "bytes": entry.record.size,
            "sha256": entry.record.sha256,
            "execution": entry.execution,
        },
    }


def _change(change: Change) -> dict[str, Any]:
    answer = change.answer
    return {
        "floor": change.demand.floor,
        "deadline_ms": change.demand.deadline_ms,
        "factor": change.factor,
        "would_be": None if answer is None else {"precision": answer.precision, "runtime": answer.runtime},
    }


def training_command(bundle: Bundle, bits: int = Precision.INT8.bits) -> str:
    """What would train such a policy with quantizers; "" where it was trained with some, or was distilled."""
    provenance = bundle.spec.provenance
    method, network = str(provenance.get("algorithm", "")), bundle.spec.network
    if bundle.spec.quantization is not None or method in ("", "distill") or network.layer_norm:
        return ""
    task, name = str(provenance.get("task", "navigation")), bundle.spec.name
    model = "" if network.convolutions else f" --model {','.join(map(str, network.hidden))}"
    return (
        f"python -m train --task {task} --method {method}{model} --quantization-method quantization-aware "
        f"--precision {bits} --output-path artifacts/{name}-qat{bits}"
    )
