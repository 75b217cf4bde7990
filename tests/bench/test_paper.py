"""QuaRL, finding by finding: the verdicts, and that every finding is answered and stands on its page."""

from __future__ import annotations

import re

import pytest

from quarl.bench.paper import THEMES, stored_rows
from quarl.bench.report.selection import Kept
from quarl.bench.report.verdicts import Verdict, verdict, verdict_of_counts, verdict_of_gains, verdict_of_losses
from quarl.bench.tables import ROOT
from quarl.train.intervals import Estimate


@pytest.mark.parametrize(
    ("ours", "claimed", "none", "same"),
    [
        (Estimate(1.7, 1.5, 1.9), 1.5, 1.0, Verdict.SAME),
        (Estimate(5.2, 3.7, 6.8), 4.9, 0.0, Verdict.SAME),
        (Estimate(2.3, 1.5, 2.5), 14.0, 1.0, Verdict.SMALLER),
        (Estimate(-0.8, -1.5, -0.2), -15.0, 0.0, Verdict.SMALLER),
        (Estimate(0.2, -0.5, 0.9), -14.0, 0.0, Verdict.NOT_SHOWN),
        (Estimate(1.7), 0.8, 1.0, Verdict.OPPOSITE),
        (Estimate(1.1, 0.9, 1.6), 1.2, 1.0, Verdict.UNDECIDED),
        (Estimate(0.3, -0.3, 0.7), None, 0.0, Verdict.UNDECIDED),
        (Estimate(0.6, 0.1, 0.9), None, 0.0, Verdict.SAME),
        (Estimate(0.0, 0.0, 0.0), 0.0, 0.0, Verdict.UNDECIDED),
        (None, 1.0, 0.0, Verdict.UNDECIDED),
    ],
)
def test_an_effect_beside_the_papers(ours: Estimate | None, claimed: float | None, none: float, same: Verdict) -> None:
    assert verdict(ours, claimed, none) is same


@pytest.mark.parametrize(
    ("held", "refuted", "same"),
    [
        (9, 1, Verdict.SAME),
        (8, 2, Verdict.SMALLER),
        (1, 8, Verdict.NOT_SHOWN),
        (5, 5, Verdict.UNDECIDED),
    ],
)
def test_a_count_beside_always(held: int, refuted: int, same: Verdict) -> None:
    assert verdict_of_counts(held, refuted, 10) is same


def test_losses_and_gains() -> None:
    none, wide, lossy, gain = (
        Estimate(1.0, 0.0, 2.0),
        Estimate(4.0, -1.0, 9.0),
        Estimate(30.0, 20.0, 40.0),
        Estimate(-6.0, -9.0, -3.0),
    )
    assert verdict_of_losses([none]) is Verdict.SAME
    assert verdict_of_losses([wide]) is Verdict.UNDECIDED
    assert verdict_of_losses([lossy]) is Verdict.NOT_SHOWN
    assert verdict_of_gains([gain, *[none] * 39], -41.0) is Verdict.NOT_SHOWN  # 1 of 40 is what chance gives
    assert verdict_of_gains([gain] * 4 + [none] * 16, -41.0) is Verdict.SMALLER


@pytest.mark.parametrize("theme", THEMES)
def test_each_finding_has_a_figure_and_stands_on_the_page(theme: str) -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    section = page.partition(f"<!-- table:{theme} -->")[2].partition("<!-- /table")[0]
    rows = stored_rows(Kept())
    for finding in THEMES[theme][1]:
        found = finding.answer(rows)
        assert re.search(r"\d", found.ours), finding.claim
        assert re.search(r"[1-9]", found.n), finding.claim
        assert f"| {finding.claim} |" in section
