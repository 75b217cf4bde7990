"""An experiment: subjects × a grid of conditions, the same episodes for each, differences paired with a reference.

A study declares one and nothing else: whom it asks, under which conditions, how one cell is measured, and what is made
of the rows. Here is that declaration, and what follows from rows: the summary with intervals, tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from quarl.bench import command_line
from quarl.bench.report.intervals import compute_paired_difference
from quarl.bench.study import records
from quarl.bench.study.records import Condition, Record
from quarl.train.intervals import Estimate, deduplicate_by_start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quarl.bench.tables import Table


@dataclass(frozen=True)
class EpisodePlan:
    """Episodes that every condition of a subject flies, in every process that measures it.

    Attributes:
        seeds: the seeds that episodes follow from.
        count: number of episodes of each seed; 0: as many as the measure makes.
    """

    seeds: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class SeedResult:
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
    """One question; ``quarl study NAME``.

    Attributes:
        name: of the study and its results.
        factors: what conditions set. A cell's reference is the condition that sets only those of ``within``.
        subjects: those that are measured where none is named.
        grid: (options, subject) → conditions, the reference among them.
        measure: (subject, condition, episodes) → what was played.
        identity: identity of a subject: a cell of another is stale. Of a bundle the hash of its weights and its task.
        about: a line that says which subject a typed one is; refuses what is none. The task need not be installed.
        require: refuses a subject that cannot be measured here; not called where rows are only drawn.
        episodes: (options, subject) → what each condition flies.
        tables: (results) → what is printed, and stands in docs/.
        figures: (results) → pictures by the stem of their files.
        within: factors that a cell shares with its reference.
        of_trainings: seeds are those of trainings, and intervals about them: a training's episodes are one value, their
            mean.
        version: version of what a cell means; a cell of another one is stale.
        timed: whether values are times, so that cells are measured one after the other unless --jobs says otherwise.
        folder: of the records, where it is not results/study.
        in_turns: whether a seed of every cell is measured before the next, so that what else a machine does meanwhile
            falls on all alike.
    """

    name: str
    factors: tuple[str, ...]
    subjects: tuple[str, ...]
    grid: Callable[[Any, str], Sequence[Condition]]
    measure: Callable[[str, Condition, EpisodePlan], Iterable[SeedResult]]
    identity: Callable[[str], str]
    episodes: Callable[[Any, str], EpisodePlan]
    tables: Sequence[Callable[[Results], Iterable[Table]]]
    figures: Sequence[Callable[[Results], Mapping[str, Figure]]] = ()
    about: Callable[[str], str] = field(default=str)
    require: Callable[[str], object] = field(default=lambda subject: None)
    within: tuple[str, ...] = ()
    of_trainings: bool = False
    version: int = 1
    timed: bool = False
    folder: Path | None = None
    in_turns: bool = False

    def reference(self, condition: Condition) -> Condition:
        """Return the condition that a cell is compared with."""
        return {name: value for name, value in condition.items() if name in self.within}

    @property
    def path(self) -> Path:
        """Where its records are kept."""
        return (self.folder or records.FOLDER) / f"{self.name}.jsonl"


def look_up(subject: str, among: Mapping[str, Any], what: str = "cell") -> Any:
    """Look up what a subject's name stands for.

    Raises:
        UsageError: ``among`` does not have the name.
    """
    if subject not in among:
        listed = ("; " if any("," in name for name in among) else ", ").join(among)
        raise command_line.UsageError(f"there is no {what} {subject!r}; choose from {listed}.", code="unknown_subject")
    return among[subject]


def current(experiment: Experiment, found: Iterable[Record]) -> list[Record]:
    """Return the records of this version whose subject is what it was when it was measured; of one that is gone they
    stay."""

    @functools.cache
    def identity(subject: str) -> str | None:
        try:
            return experiment.identity(subject)
        except command_line.BenchError:
            return None

    mine = [record for record in found if record["version"] == experiment.version]
    return [record for record in mine if identity(record["subject"]) in (None, record["identity"])]


def in_order(experiment: Experiment, found: Iterable[Record]) -> list[Record]:
    """Return the last measurement of each cell, seed and preset; by subject, condition, preset and seed."""
    places = {name: index for index, name in enumerate(experiment.subjects)}

    def place(record: Record) -> tuple[Any, ...]:
        values = [record["condition"].get(factor) for factor in experiment.factors]
        ordered = [(value is not None, isinstance(value, str), value) for value in values]
        subject = record["subject"]
        return places.get(subject, len(places)), subject, ordered, record["preset"], record["seed"]

    last = {(*records.cell(record), record["preset"], record["seed"]): record for record in found}
    return sorted(last.values(), key=place)


# --- what follows from the rows ---------------------------------------------------------------------------------------

RETURN, SUCCESS, ERROR, LOST, SUCCESS_LOST = "return", "success", "error", "difference", "success_difference"


class Results:
    """Records of an experiment, and what follows from them."""

    def __init__(self, experiment: Experiment, found: Sequence[Record]) -> None:
        """Args: the experiment, and its records in order."""
        self.experiment, self.found = experiment, tuple(found)
        self._groups: dict[tuple[str, str, str], list[Record]] = {}
        for record in found:
            self._groups.setdefault((*records.cell(record), record["preset"]), []).append(record)

    @functools.cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One row for each subject, condition and preset.

        Columns: subject, preset, the factors, episodes, the measures, and as
        :class:`train.intervals.Estimate`: return, success (None where the task has none); and paired with the
        reference: difference of the returns, error (relative, in percent, positive where it earns less; None where the
        reference earns 0), success_difference. The last three are None where there is no reference.
        """
        return [self._row(group) for group in self._groups.values()]

    def plain(self) -> list[dict[str, Any]]:
        """Return the summary as JSON has it."""
        return [
            {
                name: vars(value.displayed_estimate) if isinstance(value, Estimate) else value
                for name, value in row.items()
            }
            for row in self.summary
        ]

    @property
    def subjects(self) -> list[str]:
        """All that were measured, in order."""
        return list(dict.fromkeys(record["subject"] for record in self.found))

    def conditions(self, subject: str) -> set[str]:
        """Return the conditions under which a subject was measured, as JSON."""
        return {condition for name, condition, _ in self._groups if name == subject}

    def of(self, subject: str) -> list[dict[str, Any]]:
        """Return a subject's rows of the summary on the preset that it was trained on, the first."""
        mine = [row for row in self.summary if row["subject"] == subject]
        return [row for row in mine if row["preset"] == mine[0]["preset"]]

    def records_of(self, subject: str, condition: Condition, preset: str = "") -> list[Record]:
        """Return a cell's, one for each seed; none where it was not measured."""
        return self._groups.get((*records.cell({"subject": subject, "condition": condition}), preset), [])

    def collect_outcomes(self, name: str, subject: str, condition: Condition, preset: str = "") -> list[Any]:
        """Return ``returns`` or ``successes`` of a cell's different episodes, all seeds one after the other; empty
        where there are none. Where seeds are those of trainings, the mean of each."""
        cell_records = self.records_of(subject, condition, preset)
        if self.experiment.of_trainings:
            return [fmean(record[name]) for record in cell_records if record[name]]
        values = [(record, number, value) for record in cell_records for number, value in enumerate(record[name] or ())]
        starts = (
            record["measures"]["starts"][number] if record["measures"].get("starts") else (record["seed"], number)
            for record, number, _ in values
        )
        return deduplicate_by_start(starts, (value for _, _, value in values))

    @functools.cached_property
    def subjects_by_episode_counts(self) -> dict[tuple[int, int], list[str]]:
        """Subjects whose episodes may be equal, by how many were played and how many of them are different ones."""
        subjects_by_counts: dict[tuple[int, int], dict[str, None]] = {}
        for (subject, *_), group in self._groups.items():
            if all(record["measures"].get("starts") for record in group):
                played = sum(len(record["returns"]) for record in group)
                subjects_by_counts.setdefault((played, self._row(group)["episodes"]), {})[subject] = None
        return {counts: list(subjects) for counts, subjects in subjects_by_counts.items()}

    @property
    def games(self) -> str:
        """Sentences, a line each, that say so below a table; "" where all episodes are different ones."""
        return "\n".join(
            "Atari games differ only in the number of frames before the first action: of the "
            f"{played} games of {', '.join(names)} {different} are different, and equal games are counted once."
            for (played, different), names in self.subjects_by_episode_counts.items()
        )

    def row(self, subject: str, condition: Condition, preset: str = "") -> dict[str, Any]:
        """Return a cell's of the summary; empty where it was not measured."""
        group = self.records_of(subject, condition, preset)
        return self._row(group) if group else {}

    def contrast(self, subject: str, one: Condition, other: Condition, preset: str = "") -> Estimate | None:
        """Return how much more one loses than the other: the difference of their relative errors, in percent, paired.

        100 · (other − one) / |reference|, whose mean is taken as known: whether the interval holds 0 does not depend
        on it. None where one of them was not measured, or the reference earns 0.
        """
        a, b = (self.collect_outcomes("returns", subject, condition, preset) for condition in (one, other))
        reference = self.collect_outcomes("returns", subject, self.experiment.reference(one), preset)
        mean = abs(sum(reference) / len(reference)) if reference else 0.0
        if not mean or len(a) != len(b) or not a:
            return None
        return Estimate.of_mean([100.0 * (y - x) / mean for x, y in zip(a, b, strict=True)])

    def _row(self, group: Sequence[Record]) -> dict[str, Any]:
        first, factors = group[0], self.experiment.factors
        where = first["subject"], first["condition"], first["preset"]
        reference_cell = first["subject"], self.experiment.reference(first["condition"]), first["preset"]
        returns, successes = self.collect_outcomes("returns", *where), self.collect_outcomes("successes", *where)
        rate = Estimate.of_mean if self.experiment.of_trainings else Estimate.of_rate
        row: dict[str, Any] = {
            "subject": first["subject"],
            "preset": first["preset"],
            **{factor: first["condition"].get(factor) for factor in factors},
            "episodes": sum(len(record["returns"]) for record in group)
            if self.experiment.of_trainings
            else len(returns),
            **group[-1]["measures"],
            RETURN: Estimate.of_mean(returns),
            SUCCESS: rate(successes) if successes else None,
            **dict.fromkeys((LOST, ERROR, SUCCESS_LOST)),
        }
        paired = self.collect_outcomes("returns", *reference_cell)
        if len(paired) == len(returns):
            row[LOST] = Estimate.of_mean([q - f for q, f in zip(returns, paired, strict=True)])
            row[ERROR] = Estimate.of_relative_error(returns, paired)
        if successes and len(paired) == len(returns):
            row[SUCCESS_LOST] = self._difference(successes, self.collect_outcomes("successes", *reference_cell))
        return row

    def _difference(self, ones: Sequence[float], others: Sequence[float]) -> Estimate:
        if self.experiment.of_trainings:
            return Estimate.of_mean([one - other for one, other in zip(ones, others, strict=True)])
        pair = compute_paired_difference(list(map(bool, ones)), list(map(bool, others)))
        return Estimate(pair.difference, pair.low, pair.high)

    def tables(self) -> list[Table]:
        """Return the tables that the experiment declares."""
        return [table for declared in self.experiment.tables for table in declared(self)]

    def figures(self) -> dict[str, Figure]:
        """Return the pictures that the experiment declares, by the stem of their files."""
        return {stem: figure for declared in self.experiment.figures for stem, figure in declared(self).items()}

    @property
    def seeds(self) -> str:
        """The seeds of all records, by commas."""
        return ", ".join(map(str, sorted({record["seed"] for record in self.found})))

    @property
    def measurement_note(self) -> str:
        """How long, where, when and with which code."""
        return f"{sum(record['cpu_s'] or 0.0 for record in self.found) / 60:,.1f} CPU-minutes on {self.where}."

    @property
    def where(self) -> str:
        """The machines, dates and code versions of all records."""
        machines, dates, codes = (
            ", ".join(sorted({record[name] for record in self.found} - {""})) for name in ("machine", "date", "code")
        )
        return "; ".join(filter(None, (machines, dates, f"code {codes}")))


def load_stored(experiment: Experiment, path: Path | None = None) -> Results:
    """Return the records that are kept, here or in another file, without those of other weights."""
    return Results(experiment, in_order(experiment, current(experiment, records.read(path or experiment.path))))
