"""Which of the measured candidates to deploy, and what would change that: numbers in, a verdict out, nothing measured.

A candidate is a precision in a runtime. It meets a demand when the lower end of its quality's 95 % interval reaches the
floor and its p99 does not exceed the deadline. Of those that do:

1. the fastest p50 wins;
2. those whose turns (the p50 of each turn of the measurement) overlap the fastest's are as fast as it, for all that was
   measured: of them the smallest artifact, then the least resident memory (what is within 1 % counts as the same), then
   the fastest p50;
3. weights of fewer than 8 bits run in an int8 container, so they are not chosen where int8 in the same runtime meets
   the demand too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

CONTAINER_BITS = 8
SAME_SIZE = 1.01  # a file format's overhead, or a page more of memory, decides nothing
FLOOR_STEPS = 1000  # floors are typed in thousandths
DEADLINE_DIGITS = 3
NS_IN_MS = 1e6
Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Quality:
    """How well it does its task, as a share: of episodes that succeed, or of fp32's return.

    Attributes:
        value: the share.
        low, high: 95 % interval; None where a single episode gives none.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Candidate:
    """A precision in a runtime, as measured.

    Attributes:
        precision: ``fp32`` … ``int2``.
        runtime: ``litert`` and the like.
        quality: on the episodes that all candidates play.
        p50_ns, p99_ns: of one decision on the target.
        turns_ns: p50 of each turn of the measurement.
        artifact_bytes: size of the file.
        resident_bytes: of the agent's process while serving; None where the device does not say.
    """

    precision: str
    runtime: str
    quality: Quality
    p50_ns: float
    p99_ns: float
    turns_ns: tuple[float, ...]
    artifact_bytes: int
    resident_bytes: int | None

    @property
    def name(self) -> str:
        """``int8 with litert``."""
        return f"{self.precision} with {self.runtime}"

    @property
    def bits(self) -> int:
        """Bits of one weight."""
        return int(self.precision.lstrip("fpint"))

    @property
    def key(self) -> tuple[str, str]:
        """What makes two answers the same."""
        return self.precision, self.runtime

    def as_fast_as(self, other: Candidate) -> bool:
        """Whether the turns of the two overlap, so that the measurement does not tell which is faster."""
        return max(min(self.turns_ns), min(other.turns_ns)) <= min(max(self.turns_ns), max(other.turns_ns))


@dataclass(frozen=True)
class Demand:
    """What is asked of a candidate.

    Attributes:
        floor: least lower bound of the quality, in (0, 1].
        deadline_ms: greatest p99 of one decision.
    """

    floor: float
    deadline_ms: float

    @property
    def deadline_ns(self) -> float:
        """In nanoseconds, without what the multiplication adds behind the picosecond."""
        return round(self.deadline_ms * NS_IN_MS, 3)

    def short_of_floor(self, candidate: Candidate) -> float:
        """By how much the lower bound misses the floor; 0 where it reaches it, infinite where there is none."""
        low = candidate.quality.low
        return math.inf if low is None else max(0.0, self.floor - low)

    def times_deadline(self, candidate: Candidate) -> float:
        """p99 as a multiple of the deadline; above 1 it is missed."""
        return candidate.p99_ns / self.deadline_ns

    def met_by(self, candidate: Candidate) -> bool:
        """Whether the candidate reaches the floor and keeps the deadline."""
        return self.short_of_floor(candidate) == 0.0 and candidate.p99_ns <= self.deadline_ns


@dataclass(frozen=True)
class Change:
    """Another demand under which the same measurements give another answer.

    Attributes:
        demand: to type.
        factor: how many times its numbers are larger or smaller than those asked for, multiplied; at least 1.
        answer: what it gives; None: nothing meets it.
    """

    demand: Demand
    factor: float
    answer: Candidate | None


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Attributes:
        demand: that was asked for.
        ranked: the candidates that meet it, best first; the first is the answer.
        as_fast: of them, those as fast as the fastest, which the first was chosen from.
        missed: the others, the one that misses least first.
        change: the nearest demand that gives another answer; None where no number does.
        elsewhere: the answer without the chosen one's runtime; None: nothing meets the demand then.
    """

    demand: Demand
    ranked: tuple[Candidate, ...]
    as_fast: tuple[Candidate, ...]
    missed: tuple[Candidate, ...]
    change: Change | None
    elsewhere: Candidate | None

    @property
    def chosen(self) -> Candidate | None:
        """What to deploy; None: nothing meets the demand."""
        return self.ranked[0] if self.ranked else None

    @property
    def runner_up(self) -> Candidate | None:
        """What to deploy if the chosen one were not there: the next that meets the demand, else the nearest miss."""
        others = (*self.ranked[1:], *(self.missed if self.ranked else ()))
        return others[0] if others else None


def decide(candidates: Sequence[Candidate], demand: Demand) -> Verdict:
    """The verdict on these candidates; see the module for the rule."""
    ranked = tuple(ranking([candidate for candidate in candidates if demand.met_by(candidate)]))
    missed = sorted(
        (candidate for candidate in candidates if not demand.met_by(candidate)),
        key=lambda candidate: (relaxed(demand, candidate)[1], candidate.p50_ns),
    )
    change = nearest_change(candidates, demand, ranked[0]) if ranked else nearest_met(candidates, demand)
    elsewhere = next(ranking([candidate for candidate in ranked if candidate.runtime != ranked[0].runtime]), None)
    return Verdict(demand, ranked, as_fast_as_the_fastest(ranked), tuple(missed), change, elsewhere)


def ranking(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """The candidates in the order in which they would be chosen, each once those before it are gone."""
    left = list(candidates)
    while left:
        chosen = best(left)
        left.remove(chosen)
        yield chosen


def best(candidates: Sequence[Candidate]) -> Candidate:
    """What to choose of candidates that meet the demand; at least one."""
    small = smallest(as_fast_as_the_fastest(candidates))
    return min(lightest(small), key=lambda candidate: candidate.p50_ns)


def smallest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those with the smallest artifact."""
    return [c for c in candidates if c.artifact_bytes <= SAME_SIZE * min(other.artifact_bytes for other in candidates)]


def lightest(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those with the least resident memory; all where it is known of none."""
    least = min((c.resident_bytes for c in candidates if c.resident_bytes is not None), default=None)
    if least is None:
        return list(candidates)
    return [c for c in candidates if c.resident_bytes is not None and c.resident_bytes <= SAME_SIZE * least]


def as_fast_as_the_fastest(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The fastest and those that the measurement does not tell from it; fewer than 8 bits only where int8 is absent."""
    int8 = {candidate.runtime for candidate in candidates if candidate.bits == CONTAINER_BITS}
    open_to = [c for c in candidates if c.bits >= CONTAINER_BITS or c.runtime not in int8]
    if not open_to:
        return ()
    fastest = min(open_to, key=lambda candidate: candidate.p50_ns)
    return tuple(candidate for candidate in open_to if candidate.as_fast_as(fastest))


def nearest_change(candidates: Sequence[Candidate], demand: Demand, chosen: Candidate) -> Change | None:
    """The change of one number, floor or deadline, by the smallest factor that changes the answer."""
    changes = []
    for other in one_number_apart(candidates, demand, chosen):
        answer = next(ranking([c for c in candidates if other.met_by(c)]), None)
        if answer is None or answer.key != chosen.key:
            changes.append(Change(other, factor(demand, other), answer))
    return min(changes, key=lambda change: change.factor, default=None)


def one_number_apart(candidates: Sequence[Candidate], demand: Demand, chosen: Candidate) -> Iterator[Demand]:
    """The demands at which the set of candidates that meet them changes: more of them, or without the chosen one."""
    for candidate in candidates:
        floor, deadline = floor_at_most(candidate.quality.low), deadline_at_least(candidate.p99_ns)
        if floor is not None and floor < demand.floor:
            yield replace(demand, floor=floor)
        if deadline > demand.deadline_ms:
            yield replace(demand, deadline_ms=deadline)
    above = floor_above(chosen.quality.low)
    if above is not None:
        yield replace(demand, floor=above)
    yield replace(demand, deadline_ms=deadline_below(chosen.p99_ns))


def nearest_met(candidates: Sequence[Candidate], demand: Demand) -> Change | None:
    """The demand, of one or both numbers relaxed, by the smallest factor that some candidate meets."""
    relaxations = [relaxed(demand, candidate) for candidate in candidates]
    possible = [(other, times) for other, times in relaxations if other is not None]
    if not possible:
        return None
    other, times = min(possible, key=lambda pair: pair[1])
    return Change(other, times, next(ranking([c for c in candidates if other.met_by(c)]), None))


def relaxed(demand: Demand, candidate: Candidate) -> tuple[Demand | None, float]:
    """The demand relaxed as far as the candidate needs, and by which factor; None where no floor is low enough."""
    floor = floor_at_most(candidate.quality.low)
    if floor is None:
        return None, math.inf
    deadline = max(demand.deadline_ms, deadline_at_least(candidate.p99_ns))
    if candidate.p99_ns <= demand.deadline_ns:
        deadline = demand.deadline_ms
    other = Demand(min(demand.floor, floor) if demand.short_of_floor(candidate) else demand.floor, deadline)
    return other, factor(demand, other)


def factor(demand: Demand, other: Demand) -> float:
    """How many times the numbers of two demands differ, multiplied; at least 1."""
    pairs = ((demand.floor, other.floor), (demand.deadline_ms, other.deadline_ms))
    return math.prod(max(a / b, b / a) for a, b in pairs)


def floor_at_most(low: float | None) -> float | None:
    """The largest floor in thousandths that this lower bound reaches; None where none above 0 does."""
    if low is None:
        return None
    around = math.floor(low * FLOOR_STEPS)
    steps = max(n for n in (around - 1, around, around + 1) if n / FLOOR_STEPS <= low)
    return min(steps, FLOOR_STEPS) / FLOOR_STEPS if steps > 0 else None


def floor_above(low: float | None) -> float | None:
    """The smallest floor in thousandths that this lower bound misses; None where none up to 1 does."""
    reached = floor_at_most(low) or 0.0
    steps = round(reached * FLOOR_STEPS) + 1
    return steps / FLOOR_STEPS if steps <= FLOOR_STEPS else None


def deadline_at_least(p99_ns: float) -> float:
    """The shortest deadline of three digits, in ms, that this p99 keeps."""
    return float(Context(DEADLINE_DIGITS, ROUND_CEILING).create_decimal(_milliseconds(p99_ns)))


def deadline_below(p99_ns: float) -> float:
    """The longest deadline of three digits, in ms, that this p99 misses."""
    digits = Context(DEADLINE_DIGITS, ROUND_FLOOR)
    return float(digits.next_minus(_milliseconds(p99_ns)))


def _milliseconds(ns: float) -> Decimal:
    return Decimal(str(ns)) / Decimal(1_000_000)


def episodes_for_share(value: float, floor: float) -> int | None:
    """Episodes after which Wilson's lower bound of a share that stays at ``value`` reaches the floor.

    It is reached where the floor is no longer refused: |p − f| = z √(f (1 − f) / n), so n = z² f (1 − f) / (p − f)².
    """
    if value <= floor:
        return None
    return max(1, two_digits_up(Z_95**2 * floor * (1.0 - floor) / (value - floor) ** 2))


def episodes_for_mean(quality: Quality, floor: float, episodes: int) -> int | None:
    """Episodes after which a mean's lower bound reaches the floor, its interval narrowing as 1 / √n."""
    if quality.low is None or quality.value <= floor:
        return None
    return two_digits_up(episodes * ((quality.value - quality.low) / (quality.value - floor)) ** 2)


def two_digits_up(number: float) -> int:
    """Two significant digits, rounded up: 1,234 is 1,300."""
    return int(Context(2, ROUND_CEILING).create_decimal(Decimal(math.ceil(number))))
