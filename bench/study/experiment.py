"""An experiment: subjects × a grid of conditions, the same episodes for each, differences paired with a reference.

A study declares one and nothing else: whom it asks, under which conditions, how one cell is measured, and what is made
of the rows. Here is what all of them share: which cells are missing, measuring them in processes of this machine or of
a Ray cluster, keeping their rows, and the summary with intervals.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench import command_line
from bench.report.intervals import Estimate, paired_difference
from bench.study import records
from bench.study.records import Condition, Record
from policy.locate import PROJECT_ROOT

if TYPE_CHECKING:
    import argparse

    from matplotlib.figure import Figure
    from pandas import DataFrame

    from bench.report.tables import Table


@dataclass(frozen=True)
class Episodes:
    """What every condition of a subject flies, whoever asks.

    Attributes:
        seeds: that episodes follow from.
        count: of each seed; 0: as many as the measure makes.
    """

    seeds: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Played:
    """Episodes of one seed on one preset, and what else was measured in the cell.

    Attributes:
        preset: "" where the task has none.
        seed: of the episodes.
        returns: undiscounted, episode by episode; or the values of whatever else is measured, such as times.
        successes: likewise; None where the task has no success.
        measures: further numbers of the cell by name. Where ``starts`` is among them, one for each episode, those of
            one start are the same episode, which is counted once.
        reference: whether it was measured under the condition of the cell's reference, in turns with the cell.
    """

    preset: str
    seed: int
    returns: Sequence[float]
    successes: Sequence[bool] | None = None
    measures: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False


@dataclass(frozen=True)
class Experiment:
    """One question; ``python -m bench.study NAME``.

    Attributes:
        name: of the study and its results.
        question: that it answers.
        factors: what conditions set. A cell's reference is the condition that sets only those of ``within``.
        subjects: asked where none is named.
        grid: (arguments, subject) → conditions, the reference among them.
        measure: (subject, condition, episodes) → what was played.
        identity: of a subject: a cell of another one is stale. The hash of a bundle's weights.
        finding: (results) → one sentence for the head of the report; "" where there is none to tell.
        about: a line that says which subject a typed one is; refuses what cannot be measured here.
        episodes: (arguments, subject) → what each condition flies.
        options: adds the study's own arguments.
        tables: (results) → what is printed, and stands in docs/.
        figures: (results) → pictures by the stem of their files.
        within: factors that a cell shares with its reference.
        of_trainings: seeds are those of trainings, and intervals about them: a training's episodes are one value, their
            mean.
        version: of what a cell means; a cell of another one is stale.
        samples: what a row's values are; the option that says how many of each seed is called so. "": there is none.
        timed: whether values are times, so that cells are measured one after the other unless --jobs says otherwise.
        refused: (arguments, results) → why the command fails though it has measured; "" where it does not.
        folder: of the records, where it is not results/study.
        in_turns: whether a seed of every cell is measured before the next, so that what else a machine does meanwhile
            falls on all alike.
    """

    name: str
    question: str
    factors: tuple[str, ...]
    subjects: tuple[str, ...]
    grid: Callable[[argparse.Namespace, str], Sequence[Condition]]
    measure: Callable[[str, Condition, Episodes], Iterable[Played]]
    identity: Callable[[str], str]
    episodes: Callable[[argparse.Namespace, str], Episodes]
    tables: Callable[[Results], Sequence[Table]]
    figures: Callable[[Results], Mapping[str, Figure]] = field(default=lambda results: {})
    finding: Callable[[Results], str] = field(default=lambda results: "")
    about: Callable[[str], str] = field(default=str)
    options: Callable[[argparse.ArgumentParser], None] = field(default=lambda parser: None)
    within: tuple[str, ...] = ()
    of_trainings: bool = False
    version: int = 1
    samples: str = "episodes"
    timed: bool = False
    refused: Callable[[argparse.Namespace, Results], str] = field(default=lambda arguments, results: "")
    folder: Path | None = None
    in_turns: bool = False

    def reference(self, condition: Condition) -> Condition:
        """The condition that a cell is compared with."""
        return {name: value for name, value in condition.items() if name in self.within}

    @property
    def path(self) -> Path:
        """Where its records are kept."""
        return (self.folder or records.FOLDER) / f"{self.name}.jsonl"


@dataclass(frozen=True)
class Cell:
    """One subject under one condition."""

    subject: str
    condition: Condition
    episodes: Episodes


def cells(experiment: Experiment, arguments: argparse.Namespace, subjects: Sequence[str]) -> list[Cell]:
    """All that is asked, in order."""
    found = [
        Cell(subject, condition, experiment.episodes(arguments, subject))
        for subject in subjects
        for condition in experiment.grid(arguments, subject)
    ]
    if not experiment.in_turns:
        return found
    return [
        dataclasses.replace(cell, episodes=Episodes((seed,), cell.episodes.count))
        for seed in dict.fromkeys(seed for cell in found for seed in cell.episodes.seeds)
        for cell in found
        if seed in cell.episodes.seeds
    ]


def current(experiment: Experiment, found: Iterable[Record]) -> list[Record]:
    """Records of this version whose subject is what it was when it was measured; of one that is gone they stay."""
    identity = functools.cache(functools.partial(_identity, experiment))
    return [
        record
        for record in found
        if record["version"] == experiment.version and identity(record["subject"]) in (None, record["identity"])
    ]


def _identity(experiment: Experiment, subject: str) -> str | None:
    try:
        return experiment.identity(subject)
    except command_line.BenchError:
        return None


def missing(asked: Sequence[Cell], found: Iterable[Record]) -> list[Cell]:
    """Those whose episodes are not among the records."""
    kept: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for record in found:
        kept.setdefault(records.cell(record), set()).add((record["seed"], len(record["returns"])))

    def is_kept(cell: Cell) -> bool:
        there = kept.get(records.cell({"subject": cell.subject, "condition": cell.condition}), set())
        if not cell.episodes.count:
            return {seed for seed, _ in there} >= set(cell.episodes.seeds)
        return there == {(seed, cell.episodes.count) for seed in cell.episodes.seeds}

    return [cell for cell in asked if not is_kept(cell)]


def without_superseded(again: Sequence[Cell], found: Iterable[Record]) -> list[Record]:
    """Records without those that a cell measured again had of other seeds, or of more or fewer episodes."""
    asked = {
        records.cell(vars(cell)): {(seed, cell.episodes.count) for seed in cell.episodes.seeds}
        for cell in again
        if cell.episodes.count  # else the measure itself decides how much a seed has, and seeds are cells of their own
    }
    left = []
    for record in found:
        key, mine = records.cell(record), (record["seed"], len(record["returns"]))
        if key not in asked or mine in asked[key]:
            left.append(record)
    return left


def measured(module: str, cell: Cell) -> list[Record]:
    """Measure one cell of the experiment that a module declares; runs in any process that has the project."""
    from bench.report.machine import this_machine
    from train.__main__ import quiet_libraries

    quiet_libraries()
    experiment: Experiment = importlib.import_module(module).EXPERIMENT
    code = measuring_code()  # before the first cell, whatever is edited beside a long run
    began = _cpu_seconds()
    played = list(experiment.measure(cell.subject, cell.condition, cell.episodes))
    where = {
        "version": experiment.version,
        "identity": experiment.identity(cell.subject),
        "machine": this_machine(),
        "code": code,
        "date": datetime.now(UTC).date().isoformat(),
        "cpu_s": (_cpu_seconds() - began) / len(played),
    }
    return [
        {
            "subject": cell.subject,
            "condition": dict(experiment.reference(cell.condition) if each.reference else cell.condition),
            "preset": each.preset,
            "seed": each.seed,
            "returns": list(each.returns),
            "successes": None if each.successes is None else list(map(int, each.successes)),
            "measures": dict(each.measures),
            **where,
        }
        for each in played
    ]


def run(module: str, asked: Sequence[Cell], jobs: int, address: str | None) -> Iterator[list[Record]]:
    """Measure cells, each as it ends: here, in ``jobs`` processes, or on the Ray cluster at ``address``."""
    if address is not None:
        from bench.study.cluster import spread

        yield from spread(functools.partial(measured, module), asked, address)
    elif jobs == 1 or len(asked) < 2:
        yield from (measured(module, cell) for cell in asked)
    else:
        with _processes(jobs) as pool:
            for done in as_completed([pool.submit(measured, module, cell) for cell in asked]):
                yield done.result()


@contextmanager
def _processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    return sum(os.times()[:4])


@functools.cache
def measuring_code() -> str:
    """The commit, and whether the code differs from it; results, pages and pictures are no code."""
    from bench.report.document import code_version

    version = code_version().removesuffix("-dirty")
    return f"{version}-dirty" if changed_code() else version


def changed_code() -> list[str]:
    """Tracked files that differ from the last commit, other than results, pages and pictures."""
    listed = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results", ":!docs", ":!README.md"]
    done = subprocess.run(listed, cwd=PROJECT_ROOT, capture_output=True, text=True)
    return [line[3:] for line in done.stdout.splitlines()]


def refuse_dirty() -> None:
    """See that what is kept names the code that measured it.

    Raises:
        BenchError: a tracked file other than a result, a page or a picture differs from the last commit.
    """
    if changed := changed_code():
        raise command_line.BenchError(
            f"--keep stores results with the commit that made them, and {', '.join(changed[:3])} differ from it.",
            "git commit -a",
        )


def in_order(experiment: Experiment, found: Iterable[Record]) -> list[Record]:
    """The last measurement of each cell, seed and preset; by subject, condition, preset and seed."""
    places = {name: index for index, name in enumerate(experiment.subjects)}

    def place(record: Record) -> tuple[Any, ...]:
        values = [record["condition"].get(factor) for factor in experiment.factors]
        ordered = [(value is not None, isinstance(value, str), value) for value in values]
        subject = record["subject"]
        return places.get(subject, len(places)), subject, ordered, record["preset"], record["seed"]

    last = {(*records.cell(record), record["preset"], record["seed"]): record for record in found}
    return sorted(last.values(), key=place)


# --- what follows from the rows ---------------------------------------------------------------------------------------

RETURN, SUCCESS, ERROR, LOST, SUCCESS_LOST = "return", "success", "error", "difference", "success difference"


class Results:
    """Records of an experiment, and what follows from them."""

    def __init__(
        self, experiment: Experiment, found: Sequence[Record], arguments: argparse.Namespace | None = None
    ) -> None:
        """Args: the experiment, its records in order, and what was typed; None: nothing, a page is made."""
        self.experiment, self.found, self.arguments = experiment, tuple(found), arguments
        self._groups: dict[tuple[str, str, str], list[Record]] = {}
        for record in found:
            self._groups.setdefault((*records.cell(record), record["preset"]), []).append(record)

    @functools.cached_property
    def rows(self) -> DataFrame:
        """One row for each episode; see :func:`bench.study.records.rows`."""
        return records.rows(self.found, self.experiment.factors)

    @functools.cached_property
    def summary(self) -> DataFrame:
        """One row for each subject, condition and preset.

        Columns: subject, preset, the factors, episodes, the measures, and as
        :class:`bench.report.intervals.Estimate`: return, success (None where the task has none); and paired with the
        reference: difference of the returns, error (relative, in percent, positive where it earns less; None where the
        reference earns 0), success difference. The last three are None where there is no reference.
        """
        return records.frame([self._row(group) for group in self._groups.values()])

    def plain(self) -> list[dict[str, Any]]:
        """The summary as JSON has it."""
        return [
            {name: vars(value) if isinstance(value, Estimate) else value for name, value in self._row(group).items()}
            for group in self._groups.values()
        ]

    def records_of(self, subject: str, condition: Condition, preset: str = "") -> list[Record]:
        """A cell's, one for each seed; none where it was not measured."""
        return self._groups.get((*records.cell({"subject": subject, "condition": condition}), preset), [])

    def played(self, name: str, subject: str, condition: Condition, preset: str = "") -> list[Any]:
        """``returns`` or ``successes`` of a cell's different episodes, all seeds one after the other; empty where there
        are none. Where seeds are those of trainings, the mean of each.
        """
        found = self.records_of(subject, condition, preset)
        if self.experiment.of_trainings:
            return [fmean(record[name]) for record in found if record[name]]
        values: dict[Any, Any] = {}
        for record in found:
            starts = record["measures"].get("starts")
            for number, value in enumerate(record[name] or ()):
                values.setdefault(starts[number] if starts else (record["seed"], number), value)
        return list(values.values())

    def row(self, subject: str, condition: Condition, preset: str = "") -> dict[str, Any]:
        """A cell's of the summary; empty where it was not measured."""
        group = self.records_of(subject, condition, preset)
        return self._row(group) if group else {}

    def contrast(self, subject: str, one: Condition, other: Condition, preset: str = "") -> Estimate | None:
        """How much more one loses than the other: the difference of their relative errors, in percent, paired.

        100 · (other − one) / |reference|, whose mean is taken as known: whether the interval holds 0 does not depend
        on it. None where one of them was not measured, or the reference earns 0.
        """
        a, b = (self.played("returns", subject, condition, preset) for condition in (one, other))
        reference = self.played("returns", subject, self.experiment.reference(one), preset)
        mean = abs(sum(reference) / len(reference)) if reference else 0.0
        if not mean or len(a) != len(b) or not a:
            return None
        return Estimate.of_mean([100.0 * (y - x) / mean for x, y in zip(a, b, strict=True)])

    def _row(self, group: Sequence[Record]) -> dict[str, Any]:
        first, factors = group[0], self.experiment.factors
        where = first["subject"], first["condition"], first["preset"]
        theirs = first["subject"], self.experiment.reference(first["condition"]), first["preset"]
        returns, successes = self.played("returns", *where), self.played("successes", *where)
        rate = Estimate.of_mean if self.experiment.of_trainings else Estimate.of_rate
        row: dict[str, Any] = {
            "subject": first["subject"],
            "preset": first["preset"],
            **{factor: first["condition"].get(factor) for factor in factors},
            "episodes": sum(len(each["returns"]) for each in group) if self.experiment.of_trainings else len(returns),
            **group[-1]["measures"],
            RETURN: Estimate.of_mean(returns),
            SUCCESS: rate(successes) if successes else None,
            **dict.fromkeys((LOST, ERROR, SUCCESS_LOST)),
        }
        paired = self.played("returns", *theirs)
        if len(paired) == len(returns):
            row[LOST] = Estimate.of_mean([q - f for q, f in zip(returns, paired, strict=True)])
            row[ERROR] = Estimate.of_relative_error(returns, paired)
        if successes and len(paired) == len(returns):
            row[SUCCESS_LOST] = self._difference(successes, self.played("successes", *theirs))
        return row

    def _difference(self, ones: Sequence[float], others: Sequence[float]) -> Estimate:
        if self.experiment.of_trainings:
            return Estimate.of_mean([one - other for one, other in zip(ones, others, strict=True)])
        pair = paired_difference(list(map(bool, ones)), list(map(bool, others)))
        return Estimate(pair.difference, pair.low, pair.high)

    @property
    def measured(self) -> str:
        """How long, where, when and with which code, for the notes of a table."""
        return f"{sum(record['cpu_s'] for record in self.found) / 60:,.1f} CPU-minutes on {self.where}."

    @property
    def where(self) -> str:
        """On which machine, when and with which code."""
        machines, dates, codes = (
            ", ".join(sorted({record[name] for record in self.found} - {""})) for name in ("machine", "date", "code")
        )
        return "; ".join(filter(None, (machines, dates, f"code {codes}")))


def stored(experiment: Experiment, path: Path | None = None) -> Results:
    """What is kept, here or in another file, without what is of other weights."""
    return Results(experiment, in_order(experiment, current(experiment, records.read(path or experiment.path))))
