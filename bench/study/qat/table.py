"""The table of quantization-aware training against quantization after training, and what it supports in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.measuring.execution import execution_of
from bench.report.tables import Table
from bench.report.text import NOT_KNOWN
from bench.report.text import estimate as bracketed
from bench.study.qat.statistics import LIMIT_PERCENT, Row, rows_of, within_words
from policy.quantization import Scheme

if TYPE_CHECKING:
    from bench.study.qat.store import Answer

NAME = "qat"
HEADERS = ("cell", "bits", "float", "PTQ", "QAT", "PTQ error, %", "QAT error, %", "QAT − PTQ", "success, %")
HALF = 0.5
FEW = (4, 3, 2)  # widths whose errors the notes name


def table(answers: Sequence[Answer]) -> Table:
    """All answers, a line for each cell, preset and width; cells are separated by rules."""
    rows = rows_of(answers)
    has_success = any(row.success is not None for row in rows)
    lines: list[tuple[str, ...]] = []
    for number, row in enumerate(rows):
        if number and place(row) != place(rows[number - 1]):
            lines.append(())
        lines.append(_line(row)[: None if has_success else -1])
    headers = HEADERS if has_success else HEADERS[:-1]
    title = "Learning with quantizers (QAT) against quantizing after training (PTQ): mean returns"
    return Table(NAME, title, headers, tuple(lines), notes(answers, rows))


def place(row: Row) -> str:
    """``II, hard``."""
    return f"{row.cell}, {row.preset}" if row.preset else row.cell


def _line(row: Row) -> tuple[str, ...]:
    shares = NOT_KNOWN if row.success is None else " / ".join(f"{100 * share:.1f}" for share in row.success)
    return (
        place(row),
        str(row.bits),
        bracketed(row.reference),
        bracketed(row.ptq),
        bracketed(row.qat),
        bracketed(row.ptq_error, 1.0, "+"),
        bracketed(row.qat_error, 1.0, "+"),
        bracketed(row.gain, 1.0, "+"),
        shares,
    )


def notes(answers: Sequence[Answer], rows: Sequence[Row]) -> tuple[str, ...]:
    """How it was measured, which differences are noise, what few bits reach, how it executes, where."""
    return (
        f"{_counts(rows)} Weights and hidden activations have the bits, observation and outputs 8. Both trainings of a "
        f"seed have the same settings and steps ({_steps(answers)}), and all three policies fly the same episodes. "
        f"Share of the steps that QAT learns in floats first: {_delays(answers)}. Error: (float − it) / |float|; "
        "negative: better than float. In brackets 95 % intervals: the wider of Student's over trainings and of that "
        "over episodes.",
        "PTQ's ranges go to the largest weight and the largest activation at every width; QAT's cut rare large "
        "activations, and from 3 bits down follow the mean weight: part of the gain is the range.",
        *_findings(rows),
        *_points(rows),
        *_executions(rows),
        *_machines(answers),
    )


def _counts(rows: Sequence[Row]) -> str:
    said: dict[str, list[str]] = {}
    for row in rows:
        seeds = ", ".join(map(str, row.seeds))
        words = f"{len(row.seeds)} training{'s' * (len(row.seeds) > 1)} (seed {seeds}), {row.episodes} episodes of each"
        said.setdefault(words, []).append(f"{place(row)} at {row.bits} bits")
    if len(said) == 1:
        return f"Means over {next(iter(said))}."
    most = max(said, key=lambda words: len(said[words]))
    others = "; ".join(f"{_short(where, rows)}: {words}" for words, where in said.items() if words != most)
    return f"Means over {most} ({others})."


def _short(where: Sequence[str], rows: Sequence[Row]) -> str:
    """The rows' names, those of a whole cell as one."""
    named = []
    for name in dict.fromkeys(place(row) for row in rows):
        of_place = [f"{name} at {row.bits} bits" for row in rows if place(row) == name]
        found = [each for each in of_place if each in where]
        named += [name] if len(found) == len(of_place) else found
    return ", ".join(named)


def _steps(answers: Sequence[Answer]) -> str:
    return ", ".join(dict.fromkeys(f"{answer.cell} {answer.steps:,}" for answer in answers))


def _delays(answers: Sequence[Answer]) -> str:
    """``half; cartpole-dqn 0.2``."""
    shares = {answer.cell: answer.quant_delay for answer in answers}
    others = [f"{cell} {share:g}" for cell, share in shares.items() if share != HALF]
    return "; ".join(["half"] * (HALF in shares.values()) + others)


def _findings(rows: Sequence[Row]) -> list[str]:
    """A sentence for each place: which differences QAT − PTQ leave the noise, and the errors at few bits."""
    found = []
    for name in dict.fromkeys(place(row) for row in rows):
        mine = [row for row in rows if place(row) == name]
        better = [str(row.bits) for row in mine if not row.is_noise and row.gain.value > 0]
        worse = [str(row.bits) for row in mine if not row.is_noise and row.gain.value < 0]
        equal = [str(row.bits) for row in mine if row.gain.low == row.gain.high == 0.0]
        noise = [str(row.bits) for row in mine if row.is_noise and str(row.bits) not in equal]
        parts = [
            f"{words} at {', '.join(bits)} bits"
            for words, bits in (
                ("better than PTQ", better),
                ("worse", worse),
                ("inside the noise", noise),
                ("equal", equal),
            )
            if bits
        ]
        within = [
            f"{row.bits} bits: {within_words(row.qat_error)}" for row in mine if row.bits in FEW and row.qat_error
        ]
        ends = f" Within {LIMIT_PERCENT:g} % of float, {'; '.join(within)}." if within else ""
        found.append(f"{name}: QAT is {', '.join(parts)}.{ends}")
    return found


def _points(rows: Sequence[Row]) -> list[str]:
    """What an interval without width means; nothing where there is none."""
    if not any(each.low == each.high is not None for row in rows for each in (row.reference, row.ptq, row.qat)):
        return []
    return [
        "An interval that is a point: every episode of every training had this return (the task's time limit ends it "
        "there); of trainings that were not made it says nothing."
    ]


def _executions(rows: Sequence[Row]) -> list[str]:
    """How the policies of these widths execute, for no size or speed follows from a simulation."""
    said: dict[str, list[str]] = {}
    for bits in dict.fromkeys(row.bits for row in rows):
        words = execution_of(Scheme.SYMMETRIC, bits, bits, trained=True).words
        said.setdefault(words, []).append(f"QAT {bits}")
    for bits in dict.fromkeys(row.bits for row in rows):
        words = execution_of(Scheme.SYMMETRIC, bits, bits).words
        said.setdefault(words, []).append(f"PTQ {bits}")
    return [f"{', '.join(names)}: {words}." for words, names in said.items()]


def _machines(answers: Sequence[Answer]) -> list[str]:
    found = []
    for machine in dict.fromkeys(answer.machine for answer in answers):
        mine = [answer for answer in answers if answer.machine == machine]
        dates = sorted({answer.date for answer in mine})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} … {dates[-1]}"
        codes = ", ".join(dict.fromkeys(answer.code for answer in mine))
        found.append(f"Trained and flown on {machine}; {when}; code {codes}.")
    return found
