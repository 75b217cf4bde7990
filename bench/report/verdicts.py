"""Whether what was measured agrees with a figure that somebody else prints: one rule for effects, one for counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from quarl.train.intervals import Estimate

LIMIT_PERCENT = 5.0
"""Share of fp32's return that a policy may lose and still count as one that loses nothing."""
NEARLY_ALL, MOST = 0.9, 0.5
"""Shares of the settings in which a claim has to hold: for "same", and for "same direction, smaller"."""
CHANCE = 0.025
"""Share of 95 % intervals that lie on one given side of 0 where there is nothing to be seen."""


class Verdict(StrEnum):
    """Whether the rows agree with the paper; the rules are those of :data:`RULES`."""

    SAME = "same"
    SMALLER = "same direction, smaller"
    NOT_SHOWN = "not shown"
    OPPOSITE = "opposite"
    UNDECIDED = "undecided"


RULES = (
    "In brackets: 95 % intervals, but of ratios the least and the greatest of n; without brackets: a single value, or "
    "all values are equal. Losses are in % of fp32's mean return.",
    "Same?: computed. Of an effect: same, the interval leaves out no effect and reaches the paper's figure; same "
    "direction, smaller, it leaves out both; not shown, it holds no effect and leaves out the paper's figure; "
    "undecided, it holds both, or the paper has no effect to find in these cells; opposite, it lies on the other side.",
    f"Of a count: same, the claim holds in at least {NEARLY_ALL:.0%} of the settings; same direction, smaller, in more "
    f"than {MOST:.0%}; not shown, it is refuted in more than {MOST:.0%}; else undecided. No loss holds where the "
    f"whole interval is at most {LIMIT_PERCENT:g} %, and is refuted where the whole interval is above. Gains over fp32 "
    f"count where their share is above the {CHANCE:.1%} that chance gives.".replace("%", " %").replace("  ", " "),
)


def verdict(ours: Estimate | None, claimed: float | None, none: float = 0.0) -> Verdict:
    """Compare an effect with the paper's.

    Args:
        ours: the effect; a single value counts as an interval without width.
        claimed: the paper's; None where it only claims an effect above ``none``.
        none: the value that means no effect: 0 of a difference, 1 of a ratio.
    """
    if ours is None or claimed == none:
        return Verdict.UNDECIDED
    sign = -1.0 if claimed is not None and claimed < none else 1.0
    size = None if claimed is None else abs(claimed - none)
    ends = (ours.value if end is None else end for end in (ours.low, ours.high))
    low, high = sorted(sign * (end - none) for end in ends)
    if high < 0.0:
        return Verdict.OPPOSITE
    is_short = size is not None and high < size
    if low > 0.0:
        return Verdict.SMALLER if is_short else Verdict.SAME
    return Verdict.NOT_SHOWN if is_short else Verdict.UNDECIDED


def verdict_of_counts(held: int, refuted: int, tested: int) -> Verdict:
    """Compare how often a claim holds with "always"."""
    if tested and held >= NEARLY_ALL * tested:
        return Verdict.SAME
    if held > MOST * tested:
        return Verdict.SMALLER
    return Verdict.NOT_SHOWN if refuted > MOST * tested else Verdict.UNDECIDED


def verdict_of_losses(errors: Sequence[Estimate]) -> Verdict:
    """Compare relative errors with "no loss"."""
    return verdict_of_counts(count_lossless(errors), sum(e.is_above(LIMIT_PERCENT) for e in errors), len(errors))


def count_lossless(errors: Iterable[Estimate]) -> int:
    """Return the number of relative errors that are at most the limit with their whole interval."""
    return sum(error.is_within(LIMIT_PERCENT) for error in errors)


def verdict_of_gains(errors: Sequence[Estimate], claimed: float | None) -> Verdict:
    """Compare relative errors with "sometimes better than fp32"; ``claimed``: the paper's best, None if unsaid."""
    better = [error for error in errors if error.side < 0]
    if not better or (Estimate.of_rate([error.side < 0 for error in errors]).low or 0.0) <= CHANCE:
        return Verdict.NOT_SHOWN
    if claimed is None:
        return Verdict.SAME
    return verdict(min(better, key=lambda error: error.value), claimed)
