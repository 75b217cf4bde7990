"""The verdict in words: three lines that explain it, and one that says what would change it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.recommending.deciding import (
    CONTAINER_BITS,
    Candidate,
    Change,
    Demand,
    Quality,
    Verdict,
    episodes_for_mean,
    episodes_for_share,
    lightest,
    smallest,
)
from bench.report.text import kilobytes, megabytes, nanoseconds, three_digits

NEAR = 2.0  # times as large or small; what is further off says that the choice stands


@dataclass(frozen=True)
class Question:
    """What was asked, as far as the words need it.

    Attributes:
        bundle: as typed.
        demand: as typed.
        episodes: of each artifact.
        has_success: whether quality is the share of successes; else it is the share of a return that is kept.
        reference: the precision that computes what was trained; its return is that of which a share is kept.
        options: further options as typed, by name, for the commands in the answer.
        training: the command that would train the policy with 8-bit quantizers; "" where it was trained with some, or
            where its method has none.
    """

    bundle: str
    demand: Demand
    episodes: int
    has_success: bool
    reference: str = "fp32"
    options: tuple[tuple[str, str], ...] = ()
    training: str = ""

    @property
    def quality(self) -> str:
        """What the floor is about."""
        return "success" if self.has_success else "return kept"

    def command(self, demand: Demand) -> str:
        """What to type for another demand."""
        words = ["python", "-m", "bench.recommend", self.bundle]
        words += ["--success-floor", number(demand.floor), "--deadline-ms", number(demand.deadline_ms)]
        return shlex.join([*words, *(word for name, value in self.options for word in (f"--{name}", value))])

    def episodes_until_met(self, candidate: Candidate) -> int | None:
        """Episodes after which the candidate would reach the floor if its quality stays; None if it would not."""
        quality, floor = candidate.quality, self.demand.floor
        if quality.low is None or quality.low >= floor:
            return None
        if self.has_success:
            return episodes_for_share(quality.value, floor)
        return episodes_for_mean(quality, floor, self.episodes)


def lines(verdict: Verdict, question: Question) -> tuple[str, str, str]:
    """What, why it, and why not the runner-up; or that nothing meets both, and by how much which is missed."""
    if verdict.chosen is None:
        return none_lines(verdict, question)
    return what(verdict.chosen, question), why(verdict), why_not(verdict, question)


def what(chosen: Candidate, question: Question) -> str:
    """The answer with its numbers."""
    name = chosen.name if chosen.bits >= CONTAINER_BITS else f"{chosen.name} (in an int8 container, run as int8 is)"
    return (
        f"Deploy {name}: {question.quality} {share(chosen.quality)} (floor {percent(question.demand.floor)}), "
        f"p99 {nanoseconds(chosen.p99_ns)} (deadline {number(question.demand.deadline_ms)} ms), artifact "
        f"{kilobytes(chosen.artifact_bytes)} KB, {megabytes(chosen.resident_bytes)} MB resident."
    )


def why(verdict: Verdict) -> str:
    """By which part of the rule it was chosen."""
    chosen, count = verdict.ranked[0], len(verdict.ranked) + len(verdict.missed)
    if len(verdict.ranked) == 1:
        return f"Why: it is the only one of {count} candidates that meets both." if count > 1 else "Why: it meets both."
    met = f"Why: of {count} candidates {len(verdict.ranked)} meet both, and"
    if len(verdict.as_fast) == 1:
        return f"{met} its p50 of {nanoseconds(chosen.p50_ns)} is the fastest, by more than the measurement spreads."
    fastest = min(verdict.as_fast, key=lambda candidate: candidate.p50_ns)
    if fastest is chosen:
        speed = f"its p50 of {nanoseconds(chosen.p50_ns)} is the fastest"
    else:
        speed = f"its p50 of {nanoseconds(chosen.p50_ns)} cannot be told from the fastest ({fastest.name})"
    return f"{met} {speed}; of the {len(verdict.as_fast)} as fast it has {advantage(chosen, verdict.as_fast)}."


def advantage(chosen: Candidate, as_fast: Sequence[Candidate]) -> str:
    """What sets it apart from others that are as fast; ``as_fast`` holds it, too."""
    small = smallest(as_fast)
    size = f"the smallest artifact ({kilobytes(chosen.artifact_bytes)} KB)"
    if len(small) == 1:
        return size
    if len(lightest(small)) == 1:
        return (
            f"{size} and, of {len(small)} of that size, the least resident memory "
            f"({megabytes(chosen.resident_bytes)} MB)"
        )
    return f"{size} and, of {len(lightest(small))} as small and light, the fastest p50"


def why_not(verdict: Verdict, question: Question) -> str:
    """What the runner-up lacks."""
    chosen, other = verdict.ranked[0], verdict.runner_up
    if other is None:
        return "There is no other candidate."
    name = f"Not {other.name}:"
    if other not in verdict.ranked:
        return f"{name} {misses(other, question)}."
    if other.bits < CONTAINER_BITS and chosen.bits == CONTAINER_BITS and other.runtime == chosen.runtime:
        return f"{name} it runs as int8 does, in an int8 container, so it is neither smaller nor faster."
    if other in verdict.as_fast:
        speed = f"{nanoseconds(other.p50_ns)} against {nanoseconds(chosen.p50_ns)} cannot be told apart"
        return f"{name} as fast, {speed}, but {drawback(chosen, other)}."
    if other.p50_ns > chosen.p50_ns:
        ratio = three_digits(other.p50_ns / chosen.p50_ns)
        return f"{name} it meets both, but its p50 of {nanoseconds(other.p50_ns)} is {ratio} times as long."
    return f"{name} its p50 of {nanoseconds(other.p50_ns)} is above the fastest's by more than the measurement spreads."


def drawback(chosen: Candidate, other: Candidate) -> str:
    """Why the chosen one goes before one that is as fast."""
    pair = [chosen, other]
    if other not in smallest(pair):
        sizes = kilobytes(other.artifact_bytes), kilobytes(chosen.artifact_bytes)
        return f"its artifact is larger ({sizes[0]} against {sizes[1]} KB)"
    if other not in lightest(pair):
        sizes = megabytes(other.resident_bytes), megabytes(chosen.resident_bytes)
        return f"with an artifact of the same size it takes more memory ({sizes[0]} against {sizes[1]} MB)"
    return "neither smaller nor lighter"


def misses(candidate: Candidate, question: Question) -> str:
    """Which constraint it misses, by how much."""
    demand, said = question.demand, []
    if demand.short_of_floor(candidate):
        said.append(
            f"its {question.quality} of {share(candidate.quality)} is {short(demand, candidate)} short of the floor"
        )
    if candidate.p99_ns > demand.deadline_ns:
        said.append(
            f"its p99 of {nanoseconds(candidate.p99_ns)} is {three_digits(demand.times_deadline(candidate))} times the "
            "deadline"
        )
    return " and ".join(said)


def short(demand: Demand, candidate: Candidate) -> str:
    """How far its lower bound is from the floor: ``5.1 points``."""
    if candidate.quality.low is None:
        return "without a lower bound and so"
    return f"{three_digits(100 * demand.short_of_floor(candidate))} points"


def none_lines(verdict: Verdict, question: Question) -> tuple[str, str, str]:
    """That nothing meets both, and by how much each constraint is missed."""
    reach = [candidate for candidate in verdict.missed if not question.demand.short_of_floor(candidate)]
    in_time = [candidate for candidate in verdict.missed if candidate.p99_ns <= question.demand.deadline_ns]
    time = number(question.demand.deadline_ms)
    return (
        f"None of {len(verdict.missed)} candidates meets both the floor and the deadline.",
        f"Floor {percent(question.demand.floor)}: {floor_line(verdict.missed, reach, question)}.",
        f"Deadline {time} ms: {deadline_line(verdict.missed, in_time, reach, question)}.",
    )


def floor_line(candidates: Sequence[Candidate], reach: Sequence[Candidate], question: Question) -> str:
    """Who reaches the floor, or by how much it is missed."""
    if reach:
        return f"{len(reach)} of {len(candidates)} reach it, none of them in time"
    best = min(candidates, key=question.demand.short_of_floor)
    said = (
        f"missed by all; the highest lower bound of {question.quality} is that of {best.name}, {share(best.quality)}, "
        f"{short(question.demand, best)} short"
    )
    said += f"; {question.reference} misses it, too"
    if any(candidate.quality.value >= question.demand.floor for candidate in candidates):
        return said  # only its interval is too wide, which more episodes may mend
    return f"{said}: no precision mends that, training may"


def deadline_line(
    candidates: Sequence[Candidate], in_time: Sequence[Candidate], reach: Sequence[Candidate], question: Question
) -> str:
    """Who keeps the deadline, or by how much it is missed by those that matter."""
    demand = question.demand
    if in_time and not reach:
        shortest = min(candidate.p99_ns for candidate in candidates)
        return f"{len(in_time)} of {len(candidates)} keep it (shortest p99: {nanoseconds(shortest)})"
    quickest = min(reach or candidates, key=lambda candidate: candidate.p99_ns)
    times = f"{nanoseconds(quickest.p99_ns)}, {three_digits(demand.times_deadline(quickest))} times the deadline"
    if not in_time:
        return f"missed by all; the shortest p99 is that of {quickest.name}, {times}"
    best = min(in_time, key=demand.short_of_floor)
    return (
        f"{len(in_time)} of {len(candidates)} keep it, of which {best.name} comes nearest to the floor, "
        f"{short(demand, best)} short; of those at the floor {quickest.name} is the quickest, p99 {times}"
    )


def what_would_change_it(verdict: Verdict, question: Question) -> str:
    """One line: the nearest demand with another answer, and what else may help without giving way."""
    change = verdict.change
    if verdict.chosen is None:
        if change is None or change.answer is None:
            return "Nearest: none; no floor above 0 is reached by anything."
        said = f"Nearest: {question.command(change.demand)} would give {change.answer.name}"
        return said + instead(verdict, question, change.answer) + "."
    if change is None:
        return f"What would change it: no floor and no deadline; {another_runtime(verdict)}."
    gives = "nothing would meet both" if change.answer is None else f"it would be {change.answer.name}"
    said = f"with {option(question.demand, change)} {gives}"
    if change.factor > NEAR:
        return f"What would change it: no number that is near ({said}); {another_runtime(verdict)}."
    more = ""
    if change.answer is not None and change.demand.floor < question.demand.floor:
        more = instead(verdict, question, change.answer)
    elif change.answer is None and change.demand.floor > question.demand.floor:
        needed = replace(question, demand=change.demand).episodes_until_met(verdict.ranked[0])
        more = f" (perhaps {verdict.ranked[0].name} after --episodes {needed})" if needed else ""
    return f"What would change it: {said}{more}."


def another_runtime(verdict: Verdict) -> str:
    """What it would be without the chosen one's runtime, and what to type for that."""
    runtime = verdict.ranked[0].runtime
    others = [c.runtime for c in (*verdict.ranked, *verdict.missed) if c.runtime != runtime]
    if not others:
        return "no other runtime was measured"
    typed = f"without {runtime} (--runtime {','.join(dict.fromkeys(others))})"
    if verdict.elsewhere is None:
        return f"{typed} nothing would meet both"
    return f"{typed} it would be {verdict.elsewhere.name}, p50 {nanoseconds(verdict.elsewhere.p50_ns)}"


def option(demand: Demand, change: Change) -> str:
    """``--success-floor 0.915, 3.7 % lower,``."""
    if change.demand.floor != demand.floor:
        return f"--success-floor {number(change.demand.floor)}, {apart(demand.floor, change.demand.floor)},"
    words = apart(demand.deadline_ms, change.demand.deadline_ms)
    return f"--deadline-ms {number(change.demand.deadline_ms)}, {words},"


def apart(old: float, new: float) -> str:
    """``3.7 % lower``, ``12,000 times lower``."""
    ratio, direction = max(old / new, new / old), "higher" if new > old else "lower"
    if ratio >= 2.0:
        return f"{three_digits(ratio)} times {direction}"
    return f"{three_digits(100 * abs(new - old) / old)} % {direction}"


def instead(verdict: Verdict, question: Question, answer: Candidate) -> str:
    """What may help without a lower floor: more episodes where only they are missing, training where they are not."""
    undecided = [c for c in verdict.missed if c.p99_ns <= question.demand.deadline_ns]
    if verdict.chosen is not None:
        undecided = [answer]
    needed = [count for count in map(question.episodes_until_met, undecided) if count is not None]
    if needed:
        return (
            f"; --episodes {max(min(needed), question.episodes + 1)} may show that the floor is met as it is, "
            "for the mean is above it"
        )
    if question.training and answer.bits <= CONTAINER_BITS and question.demand.short_of_floor(answer):
        return f"; to keep the floor, train with quantizers (not measured here): {question.training}"
    return ""


def fewest_bits(played: dict[str, Quality], floor: float) -> str | None:
    """The fewest weight bits with which, and with all wider ones, the floor is reached; None: not even with the widest.

    A narrower one that reaches it where a wider one does not has been lucky.

    Args:
        played: quality by precision, int8 and below.
        floor: see :class:`Demand`.
    """
    fewest = None
    for name in sorted(played, key=lambda name: -int(name.lstrip("int"))):
        low = played[name].low
        if low is None or low < floor:
            break
        fewest = name
    return fewest


def share(quality: Quality) -> str:
    """``91.3 [89.4, 92.9] %``."""
    digits = [quality.value, quality.low, quality.high]
    value, low, high = ("–" if part is None else f"{100 * part:.1f}".replace("-", "−") for part in digits)
    return f"{value} [{low}, {high}] %"


def percent(floor: float) -> str:
    """``95 %``, ``99.5 %``."""
    return f"{100 * floor:.6g} %"


def number(value: float) -> str:
    """A number as it is typed: ``0.95``, ``20``, ``0.00171``."""
    return f"{value:.15g}" if value >= 1e-4 else f"{value:.15f}".rstrip("0")
