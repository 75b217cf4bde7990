"""QuaRL, finding by finding: what the paper claims, what the stored rows here say, and whether the two agree.

    quarl bench table paper                 all of it
    quarl bench table paper-speed           one theme
    quarl bench table --update-docs         fills docs/paper.md

The answers are :mod:`bench.paper_answers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quarl.bench import paper_answers as answers
from quarl.bench.case_study import PAPER, SPEED_UPS
from quarl.bench.command_line import BenchError
from quarl.bench.paper_answers import Answer, Rows
from quarl.bench.report.document import Report
from quarl.bench.report.selection import Kept
from quarl.bench.report.store import StoreError
from quarl.bench.report.verdicts import RULES
from quarl.bench.study import mixed, ptq_table, width
from quarl.bench.study.actorq import breakdown
from quarl.bench.tables import Table, tabulate
from quarl.train.suites.cells import load_cells


@dataclass(frozen=True)
class Finding:
    """One claim of the paper.

    Attributes:
        claim: in words.
        paper: its figure there.
        answer: returns what the rows say: our figure, what it rests on, and the verdict.
    """

    claim: str
    paper: str
    answer: Callable[[Rows], Answer]


PAPERS_METHODS = ("a2c", "dqn", "ppo", "ddpg")


def papers_latency(policy: str) -> str:
    """Return the paper's times of a decision and the speed-up that it prints: ``0.147 → 0.124 ms, 1.18×``."""
    return f"{PAPER[policy, 'fp32'][0]} → {PAPER[policy, 'int8'][0]} ms, {SPEED_UPS[policy]:g}×"


def papers_success(policy: str) -> str:
    """Return the paper's success: ``60 → 45 %``."""
    return " → ".join(f"{100 * PAPER[policy, precision][1]:.0f}" for precision in ("fp32", "int8")) + " %"


def papers_minutes(name: str) -> str:
    """Return the paper's training times: ``127 → 156 min``."""
    return " → ".join(map(str, mixed.POLICIES[name].paper_minutes)) + " min"


def papers_seconds(parts: Sequence[str]) -> str:
    """Return the paper's times of an actor's parts: ``0.35 → 1.95 s, read off``."""
    fp32, int8 = answers.papers_seconds(parts)
    return f"{fp32:.4g} → {int8:.4g} s, read off"


def papers_errors(precision: str) -> list[str]:
    """Return the paper's relative errors of its cells, from the least to the greatest."""
    errors = (ptq_table.compute_published_error(cell, precision) for cell in load_cells())
    return [ptq_table.single(error) for error in sorted(error for error in errors if error is not None)]


def papers_mean(method: str, precision: str = "int8") -> str:
    """Return the paper's mean relative error of an algorithm over all its cells."""
    return ptq_table.single(ptq_table.papers_mean([cell for cell in load_cells() if cell.method == method], precision))


def papers_int8(cells: Sequence[tuple[str, str]]) -> str:
    """Return the paper's int8 errors of cells, each a task and a method: ``+63.55, +22.05, 0 %``."""
    known = {
        (cell.name.short_name, cell.method): ptq_table.compute_published_error(cell, "int8") for cell in load_cells()
    }
    return ", ".join(ptq_table.single(known[cell]) for cell in cells) + " %"


DQN_BY_TASK = papers_int8([(task, "dqn") for task in ("breakout", "beamrider", "pong")])
BREAKOUT = papers_int8([("breakout", method) for method in ("dqn", "ppo", "a2c")])

AFTER_TRAINING = (
    *(
        Finding(f"{bits} bits cost no accuracy", "6 to 8 bits, no loss", partial(answers.at_bits, bits))
        for bits in (8, 7, 6)
    ),
    Finding("int8 costs little", f"largest loss {papers_errors('int8')[-1]} %", partial(answers.cost, "int8")),
    Finding(
        "fp16 costs nothing",
        "means " + ", ".join(papers_mean(each, "fp16") for each in PAPERS_METHODS) + " %",
        partial(answers.cost, "fp16"),
    ),
    *(
        Finding(f"mean int8 error, {method.upper()}", f"{papers_mean(method)} %", partial(answers.of_method, method))
        for method in PAPERS_METHODS
    ),
    Finding("int8 sometimes beats fp32", f"best error {papers_errors('int8')[0]} %", answers.gains_of_artifacts),
    Finding("fewer bits sometimes beat fp32", "in pictures", answers.gains_of_sweep),
    Finding("the best width depends on the task", "in pictures", answers.sweet_spot),
)
IN_TRAINING = (
    Finding("6 and 5 bits cost no accuracy", "5/6 bits, no loss", answers.answer_qat_bits),
    Finding("better than quantizing afterwards", "consistently", answers.answer_qat_gain),
    Finding("better than fp32", "oftentimes", answers.answer_qat_above),
)
WIDTH = (
    *(
        Finding(f"wider weights lose more ({source}, {measure})", DQN_BY_TASK, partial(answers.wider, source, name))
        for source in width.SOURCES
        for name, measure in width.MEASURES.items()
    ),
    Finding("of two policies of a task, the wider loses more in int8", BREAKOUT, answers.wider_of_two),
    Finding("DQN's weights are widest, then PPO's, A2C's", BREAKOUT, answers.order_of_methods),
)
SPEED = (
    *(
        Finding(
            f"speed of training in 16 bits, Pong policy {name}",
            papers_minutes(name),
            partial(answers.answer_mixed_speed, name),
        )
        for name in mixed.POLICIES
    ),
    Finding("16 bits earn the same", "Pong, curves", answers.answer_mixed_return),
    *(
        Finding(f"int8 decides faster, policy {policy}", papers_latency(policy), partial(answers.decision, policy))
        for policy in answers.POLICIES
    ),
    *(
        Finding(f"int8 needs less memory ({part})", "4×", partial(answers.memory, of))
        for part, of in (
            ("the artifact", lambda row: row["bytes"]),
            ("added by loading", lambda row: row["memory"].artifact_share),
            ("the whole process", lambda row: row["memory"].resident),
        )
    ),
)
DRONE = (
    *(
        Finding(
            f"int8 lowers success, policy {policy}",
            papers_success(policy),
            partial(answers.success, (policy, "int8"), (policy, "fp32")),
        )
        for policy in answers.POLICIES
    ),
    Finding(
        "a larger network flies better, III against I",
        f"{100 * PAPER['I', 'fp32'][1]:.0f} → {100 * PAPER['III', 'fp32'][1]:.0f} %",
        partial(answers.success, ("III", "fp32"), ("I", "fp32")),
    ),
)
ACTORQ = (
    *(
        Finding(f"int8 actors train faster ({words})", "1.5–2.5×", partial(answers.pace, names))
        for words, names in (
            ("waiting for the actors", ("big-actors",)),
            ("waiting more for the actors", ("big-actors-more",)),
            ("tasks that learn", answers.LEARNING),
        )
    ),
    Finding("int8 actors earn the same", "no loss", answers.actors_return),
    Finding("int8 actors emit less CO₂ (CPU time)", "1.9–3.76×", answers.energy),
    *(
        Finding(f"an int8 actor {words}", papers_seconds(parts), partial(answers.actor, parts))
        for words, parts in (
            ("takes less time a step", breakdown.PARTS),
            ("loads a version for longer", breakdown.PARTS[4:5]),
        )
    ),
)
COMMAND = "quarl study all --keep"
"""Measures the rows that are not stored."""
THEMES = {
    "paper-after-training": ("Quantization after training", AFTER_TRAINING),
    "paper-in-training": ("Quantization-aware training", IN_TRAINING),
    "paper-width": ("What decides how many bits are enough", WIDTH),
    "paper-speed": ("Speed and memory", SPEED),
    "paper-drone": ("The drone", DRONE),
    "paper-actorq": ("ActorQ", ACTORQ),
}


stored_rows = functools.cache(Rows)
"""Return the rows of a place where rows are stored; the themes share what was read."""


def theme_table(name: str, kept: Kept) -> tuple[Table, list[Report]]:
    """Return the table of a theme; the rules of the verdicts stand below the first.

    Raises:
        StoreError: rows that a finding needs are not stored.
    """
    title, findings = THEMES[name]
    try:
        answered = [(finding, finding.answer(stored_rows(kept))) for finding in findings]
    except (LookupError, ValueError, StopIteration, BenchError) as error:
        raise StoreError(f"docs/paper.md needs rows that are not stored ({error}).\n  next: {COMMAND}") from error
    lines = (
        {
            "claim": paper_claim.claim,
            "paper": paper_claim.paper,
            "ours": f"{answer.ours}; n: {answer.n}",
            "same?": answer.same.value,
        }
        for paper_claim, answer in answered
    )
    rules = RULES if name == next(iter(THEMES)) else ()
    return tabulate(name, "\n".join([title, *rules]), lines, left=4), []
