"""Which of the measured candidates to deploy, and what would change that: numbers in, a decision out, nothing measured.

A candidate is a precision in a runtime. It meets a demand when the lower end of its quality's 95 % interval reaches the
floor and its p99 does not exceed the deadline. Of those that do:

1. the fastest p50 wins;
2. those whose turns (the p50 of each turn of the measurement) overlap the fastest's are as fast as it, for all that was
   measured: of them the smallest artifact, then the least resident memory (what is within 1 % counts as the same), then
   the fastest p50;
3. weights of fewer than 8 bits run in an int8 container, but in the native engine, which packs them: so they are not
   chosen where int8 in the same runtime meets the demand too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from quarl.bench.recommending.thresholds import deadline_at_least, deadline_below, floor_above, floor_at_most
from quarl.policy.spec import Precision, RuntimeName
from quarl.train.intervals import Estimate

CONTAINER_BITS = 8
COMPARED = ("artifact_bytes", "resident_bytes")  # of those as fast, one after the other
SAME_SIZE = 1.01  # a file format's overhead, or a page more of memory, decides nothing
NS_IN_MS = 1e6


@dataclass(frozen=True, kw_only=True)
class PlayedArtifact:
    """An artifact in a runtime, and how it played.

    Attributes:
        precision: ``fp32`` … ``int2``, ``mixed``.
        runtime: ``litert`` and the like.
        quality: as a share, of episodes that succeed or of a return that is kept, with its 95 % interval.
        mean_return: likewise.
        file, artifact_bytes, sha256, execution: of the artifact; how it executes, in words.
    """

    precision: str
    runtime: str
    quality: Estimate
    artifact_bytes: int
    mean_return: Estimate | None = None
    file: str = ""
    sha256: str = ""
    execution: str = ""

    @property
    def name(self) -> str:
        """The artifact in words: ``int8 with litert``."""
        return f"{self.precision} with {self.runtime}"

    @property
    def bits(self) -> int:
        """Bits of one weight."""
        return Precision(self.precision).bits

    @property
    def runs_as_int8(self) -> bool:
        """Whether it has fewer bits in an int8 container, which leaves its size and speed what int8's are."""
        return self.bits < CONTAINER_BITS and self.runtime != RuntimeName.NATIVE.value


@dataclass(frozen=True, kw_only=True)
class DeployableArtifact(PlayedArtifact):
    """One that may be chosen, and how it served on the target.

    Attributes:
        p50_ns, p99_ns: of one decision.
        turns_ns: p50 of each turn of the measurement.
        resident_bytes: of the agent's process while serving; None where the device does not say.
        valid: whether the times may be relied on.
    """

    p50_ns: float
    p99_ns: float
    turns_ns: tuple[float, ...]
    resident_bytes: int | None
    valid: bool = True

    def as_fast_as(self, other: DeployableArtifact) -> bool:
        """Return whether the turns of the two overlap, so that the measurement does not tell which is faster."""
        return max(min(self.turns_ns), min(other.turns_ns)) <= min(max(self.turns_ns), max(other.turns_ns))


@dataclass(frozen=True)
class Demand:
    """Least lower bound of the quality, in (0, 1], and greatest p99 of one decision."""

    floor: float
    deadline_ms: float

    @property
    def deadline_ns(self) -> float:
        """The deadline in nanoseconds, without what the multiplication adds behind the picosecond."""
        return round(self.deadline_ms * NS_IN_MS, 3)

    def short_of_floor(self, played: PlayedArtifact) -> float:
        """Return how far the lower bound is below the floor; 0 where it reaches it, infinite where there is none."""
        low = played.quality.low
        return math.inf if low is None else max(0.0, self.floor - low)

    def times_deadline(self, candidate: DeployableArtifact) -> float:
        """p99 as a multiple of the deadline; above 1 it is missed."""
        return candidate.p99_ns / self.deadline_ns

    def in_time(self, candidate: DeployableArtifact) -> bool:
        """Return whether the candidate's p99 keeps the deadline."""
        return candidate.p99_ns <= self.deadline_ns

    def is_met_by(self, candidate: DeployableArtifact) -> bool:
        """Return whether the candidate reaches the floor and keeps the deadline."""
        return self.short_of_floor(candidate) == 0.0 and self.in_time(candidate)

    def compute_miss_factor(self, candidate: DeployableArtifact) -> float:
        """Factors by which floor and deadline are missed, multiplied; 1: met; infinite: no positive lower bound."""
        low = candidate.quality.low or 0.0
        return max(1.0, self.floor / low if low > 0.0 else math.inf) * max(1.0, self.times_deadline(candidate))


@dataclass(frozen=True)
class Change:
    """Another demand, under which the same measurements give another answer; None: nothing meets it.

    ``factor``: how many times its numbers are larger or smaller than those asked for, multiplied; at least 1.
    """

    demand: Demand
    factor: float
    answer: DeployableArtifact | None


@dataclass(frozen=True)
class Decision:
    """Which candidates meet a demand and in which order.

    Attributes:
        ranked: the candidates that meet it, best first; the first is the answer.
        missed: the others, the one that misses least first.
        change: the nearest demand that gives another answer; None where no number does.
    """

    demand: Demand
    ranked: tuple[DeployableArtifact, ...]
    missed: tuple[DeployableArtifact, ...]
    change: Change | None

    @property
    def recommendation(self) -> DeployableArtifact | None:
        """The candidate to deploy; None: nothing meets the demand."""
        return self.ranked[0] if self.ranked else None

    @property
    def as_fast(self) -> tuple[DeployableArtifact, ...]:
        """The candidates as fast as the fastest that meets the demand; the answer is chosen from them."""
        return as_fast_as_the_fastest(self.ranked)

    @property
    def elsewhere(self) -> DeployableArtifact | None:
        """The answer without the chosen one's runtime; None: nothing meets the demand then."""
        return next(
            ranking([candidate for candidate in self.ranked if candidate.runtime != self.ranked[0].runtime]), None
        )

    @property
    def order(self) -> tuple[DeployableArtifact, ...]:
        """All candidates: the second is what to deploy if the first were not there."""
        return self.ranked + self.missed


def decide(candidates: Sequence[DeployableArtifact], demand: Demand) -> Decision:
    """Return the decision between these candidates; see the module for the rule."""
    ranked = tuple(ranking([candidate for candidate in candidates if demand.is_met_by(candidate)]))
    missed = [candidate for candidate in candidates if not demand.is_met_by(candidate)]
    missed.sort(key=lambda each: (demand.compute_miss_factor(each), each.p50_ns))
    return Decision(demand, ranked, tuple(missed), nearest_change(candidates, demand, next(iter(ranked), None)))


def ranking(candidates: Sequence[DeployableArtifact]) -> Iterator[DeployableArtifact]:
    """Candidates that meet a demand in the order in which they would be chosen, each once those before it are gone."""
    left = list(candidates)
    while left:
        chosen, _ = choose(as_fast_as_the_fastest(left))
        left.remove(chosen)
        yield chosen


def as_fast_as_the_fastest(candidates: Sequence[DeployableArtifact]) -> tuple[DeployableArtifact, ...]:
    """Return the fastest and those that the measurement does not tell from it; what runs as int8 only where that is
    absent."""
    int8 = {candidate.runtime for candidate in candidates if candidate.bits == CONTAINER_BITS}
    open_to = [candidate for candidate in candidates if not (candidate.runs_as_int8 and candidate.runtime in int8)]
    fastest = min(open_to, key=lambda each: each.p50_ns, default=None)
    return tuple(candidate for candidate in open_to if fastest is not None and candidate.as_fast_as(fastest))


def choose(as_fast: Sequence[DeployableArtifact]) -> tuple[DeployableArtifact, str]:
    """Return the candidate to choose of those that are as fast, and the figure that decides."""
    for figure in COMPARED:
        as_fast = least(as_fast, figure)
        if len(as_fast) == 1:
            return as_fast[0], figure
    return min(as_fast, key=lambda each: each.p50_ns), "p50_ns"


def least(candidates: Sequence[DeployableArtifact], figure: str) -> list[DeployableArtifact]:
    """Return the candidates within SAME_SIZE of the least of a figure; all where it is known of none."""
    known = [(candidate, value) for candidate in candidates if (value := getattr(candidate, figure)) is not None]
    limit = SAME_SIZE * min((value for _, value in known), default=0)
    return [candidate for candidate, value in known if value <= limit] or list(candidates)


def nearest_change(
    candidates: Sequence[DeployableArtifact], demand: Demand, chosen: DeployableArtifact | None
) -> Change | None:
    """Return the nearest demand that gives another answer than the chosen one: one number moves, or both where nothing
    met it.

    Numbers matter where a candidate begins or ceases to meet them; near is the factor between old and new.
    """
    floors, deadlines = {demand.floor}, {demand.deadline_ms}
    for candidate in candidates:
        floors.update(filter(None, (floor_at_most(candidate.quality.low), floor_above(candidate.quality.low))))
        deadlines.update((deadline_at_least(candidate.p99_ns), deadline_below(candidate.p99_ns)))
    changes = []
    for floor, deadline in itertools.product(sorted(floors), sorted(deadlines)):
        if chosen is None or floor == demand.floor or deadline == demand.deadline_ms:
            other = Demand(floor, deadline)
            answer = next(ranking([candidate for candidate in candidates if other.is_met_by(candidate)]), None)
            if answer is not chosen:
                pairs = ((demand.floor, floor), (demand.deadline_ms, deadline))
                changes.append(Change(other, math.prod(max(a / b, b / a) for a, b in pairs), answer))
    return min(changes, key=lambda change: change.factor, default=None)


def fewest_bits(played: Iterable[PlayedArtifact], floor: float) -> str | None:
    """Return the narrowest precision with which, and with all wider ones, the floor is reached; None: not with the
    widest.

    A narrower one that reaches it where a wider one does not has been lucky.
    """
    fewest = None
    for artifact in sorted(played, key=lambda each: -each.bits):
        if artifact.quality.low is None or artifact.quality.low < floor:
            break
        fewest = artifact.precision
    return fewest
