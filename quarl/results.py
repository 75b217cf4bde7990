"""What the public interface returns: typed values that print as a table and convert to JSON values."""

from __future__ import annotations

import dataclasses
import html
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quarl.policy.ladder import Ladder

Row = Mapping[str, str]
"""A line of a table: cells by the heading of their column."""


class Printed(ABC):
    """A dataclass that prints as a table; the dataclass is made with ``repr=False``."""

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """Return the table's lines; all have the same headings."""

    def notes(self) -> Sequence[str]:
        """Sentences below the table."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return all values, as JSON has them."""
        return dict(_plain(dataclasses.asdict(self)))  # type: ignore[call-overload]

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        rows = self.rows()
        for heading in rows[0] if rows else ():
            table.add_column(heading, no_wrap=True)
        for row in rows:
            table.add_row(*row.values())
        screen = Console(file=io.StringIO(), width=200)
        screen.print(table)
        printed = screen.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join([*(line.rstrip() for line in printed.splitlines()), *self.notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self.rows()
        head = "".join(f"<th>{html.escape(heading)}</th>" for heading in (rows[0] if rows else ()))
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.values()) + "</tr>" for row in rows
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return getattr(value, "value", value) if value is None or not isinstance(value, int | float | str) else value


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


@dataclass(frozen=True, repr=False)
class Artifact(Printed):
    """One artifact of a policy.

    Attributes:
        file: in the bundle.
        precision, runtimes: of its weights, and those that executed it on this host.
        not_tried: runtimes of its format that are not installed here.
        bytes: its size; ``ratio_to_fp32`` compares it with the fp32 artifact of the same format.
        agreement: share of the recorded observations on which it acts as the float policy.
        warnings: a sentence each.
    """

    file: str
    precision: str
    runtimes: tuple[str, ...]
    bytes: int
    ratio_to_fp32: float
    agreement: float
    not_tried: tuple[str, ...]
    warnings: tuple[str, ...]

    def rows(self) -> Sequence[Row]:
        """Return one line."""
        return [
            {
                "artifact": self.file,
                "bytes": f"{self.bytes:,}",
                "of fp32": f"{self.ratio_to_fp32:.3f}",
                "agreement": _share(self.agreement),
                "executed by": ", ".join(self.runtimes),
            }
        ]

    def notes(self) -> Sequence[str]:
        """Its warnings."""
        return self.warnings


@dataclass(frozen=True, repr=False)
class Conversion(Printed):
    """The artifacts that a conversion made, each of which was executed and compared before it was written.

    Attributes:
        policy: its name.
        artifacts: one for each precision and format.
        ladder: of ``bits="auto"``, what each precision keeps of the policy.
    """

    policy: str
    artifacts: tuple[Artifact, ...]
    ladder: Ladder | None = None

    def rows(self) -> Sequence[Row]:
        """Return a line for each artifact."""
        return [row for artifact in self.artifacts for row in artifact.rows()]

    def notes(self) -> Sequence[str]:
        """Return the artifacts' warnings, and the runtimes that were not tried."""
        absent = dict.fromkeys(name for artifact in self.artifacts for name in artifact.not_tried)
        notes = dict.fromkeys(note for artifact in self.artifacts for note in artifact.warnings)
        return [
            *notes,
            *(f"not tried: {name}, which is not installed here." for name in absent),
            *([] if self.ladder is None else self.ladder.describe(self.policy).splitlines()),
        ]


@dataclass(frozen=True, repr=False)
class Evaluation(Printed):
    """Greedy episodes of one policy on its task.

    Attributes:
        policy, task, preset: what was flown; preset is "" where the task has none.
        precision, executed_by: ``float``, or the artifact's, and what executed it.
        episodes, seed: which episodes.
        mean_return, return_interval: with its 95 % interval (Student's t); None where the episodes give none.
        success, success_interval: share that succeeded, with its 95 % interval (Wilson); None: the task has none.
    """

    policy: str
    task: str
    preset: str
    precision: str
    executed_by: str
    episodes: int
    seed: int
    mean_return: float
    return_interval: tuple[float, float] | None
    success: float | None
    success_interval: tuple[float, float] | None

    def rows(self) -> Sequence[Row]:
        """Return one line."""
        low, high = self.return_interval or (None, None)
        share = self.success_interval or (None, None)
        return [
            {
                "policy": self.policy,
                "task": f"{self.task} {self.preset}".rstrip(),
                "precision": self.precision,
                "executed by": self.executed_by,
                "episodes": f"{self.episodes:,}",
                "return": _number(self.mean_return, 2),
                "95 % interval": f"{_number(low, 2)} to {_number(high, 2)}" if low is not None else "–",
                "success": _share(self.success),
                "95 % interval of success": f"{_share(share[0])} to {_share(share[1])}"
                if self.success_interval
                else "–",
            }
        ]


@dataclass(frozen=True, repr=False)
class Evaluations(Printed):
    """Greedy episodes that several artifacts flew, the same for each."""

    evaluations: tuple[Evaluation, ...]

    def rows(self) -> Sequence[Row]:
        """Return a line for each artifact."""
        return [row for evaluation in self.evaluations for row in evaluation.rows()]


@dataclass(frozen=True, repr=False)
class Measured(Printed):
    """Measurements on a device, one report for each artifact of the release that serves.

    Attributes:
        target: as it was typed.
        reports: as ``quarl bench latency --json`` prints them: each has the artifact, the device, the conditions,
            the counts and what was measured.
    """

    target: str
    reports: tuple[Mapping[str, Any], ...]

    def notes(self) -> Sequence[str]:
        """Return where it was measured, and everything that limits what the numbers say."""
        device = self.reports[0]["device"]
        kind = "emulated" if device["emulated"] else "virtual machine" if device["virtualised"] else ""
        named = device["model"] or device["cpu_model"] or device["machine"]
        where = ", ".join(filter(None, (f"Measured on {self.target}: {named}", self.reports[0]["transport"], kind)))
        marks = [mark for report in self.reports for mark in (*report["invalid_reasons"], *report["notes"])]
        return [f"{where}.", *dict.fromkeys(marks)]

    @staticmethod
    def _artifact(report: Mapping[str, Any]) -> dict[str, str]:
        return {name: str(report[name]) for name in ("policy", "precision", "runtime")}


class Latency(Measured):
    """Latency of one decision; times in the reports are nanoseconds."""

    @property
    def p50_us(self) -> dict[str, float]:
        """The median by precision (and runtime, where there are several), in microseconds."""
        several = len({report["runtime"] for report in self.reports}) > 1
        return {
            report["precision"] + (f" {report['runtime']}" if several else ""): _us(report, "p50") or 0.0
            for report in self.reports
        }

    def rows(self) -> Sequence[Row]:
        """Return a line for each artifact; times in microseconds."""
        fp32 = {report["runtime"]: _us(report, "p50") for report in self.reports if report["precision"] == "fp32"}
        rows = []
        for report in self.reports:
            median, base = _us(report, "p50"), fp32.get(report["runtime"])
            ratio = "–" if base is None or not median else f"{base / median:.2f}×"
            times = {f"{name} µs": _number(_us(report, name)) for name in ("p50", "p90", "p99")}
            first = _number(report["latency"]["cold_first_ns"] / 1000)
            rows.append({**self._artifact(report), **times, "first µs": first, "speed-up over fp32": ratio})
        return rows


def _us(report: Mapping[str, Any], percentile: str) -> float | None:
    value = report["latency"]["percentiles_ns"].get(percentile)
    return None if value is None else value / 1000


class Memory(Measured):
    """Resident memory of the process that serves, and the artifact's size."""

    def rows(self) -> Sequence[Row]:
        """Return a line for each artifact; in megabytes of 10⁶ bytes."""
        return [
            {
                **self._artifact(report),
                "artifact MB": _number(report["artifact"]["bytes"] / 1e6, 3),
                **{
                    f"{title} MB": _number(None if size is None else size / 1e6)
                    for title, size in (
                        ("before loading", report["memory"]["before_load"]),
                        ("resident", report["memory"]["running"]),
                        ("peak", report["memory"]["running_peak"]),
                    )
                },
            }
            for report in self.reports
        ]


class Success(Measured):
    """Episodes flown with the device's decisions; the simulator runs on the device."""

    @property
    def rate(self) -> dict[str, float]:
        """The share that reached the goal by precision."""
        return {report["precision"]: report["success"]["rate"] for report in self.reports}

    def rows(self) -> Sequence[Row]:
        """Return a line for each artifact."""
        return [
            {
                **self._artifact(report),
                "preset": report["success"]["preset"],
                "episodes": f"{report['success']['episodes']:,}",
                "success": _share(report["success"]["rate"]),
                "95 % interval": f"{_share(report['success']['low'])} to {_share(report['success']['high'])}",
            }
            for report in self.reports
        ]


@dataclass(frozen=True, repr=False)
class Answer(Printed):
    """What a device answered to a command, as ``quarl VERB --json`` prints it.

    Attributes:
        values: by name.
        text: the same in sentences.
    """

    values: Mapping[str, Any]
    text: str

    def rows(self) -> Sequence[Row]:
        """Return one line: the text."""
        return [{"answer": self.text}]

    def to_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(_plain(self.values))

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"
