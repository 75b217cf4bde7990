"""Measuring the cells of an experiment: which are missing, in processes here or on a Ray cluster, and by which code.

On a cluster as many are measured at a time as it has CPUs, spread over its machines. Every machine has the project at
the same path, as ``quarl actorq --address`` wants it, too.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from quarl import cli
from quarl.bench import command_line
from quarl.bench.study import records
from quarl.bench.study.experiment import EpisodePlan, Experiment
from quarl.bench.study.records import Condition, Record
from quarl.train.actorq.address import ClusterError, refuse_unreachable

Argument = TypeVar("Argument")
Result = TypeVar("Result")


@dataclass(frozen=True)
class StudyCell:
    """One subject under one condition."""

    subject: str
    condition: Condition
    episodes: EpisodePlan


def cells(experiment: Experiment, options: Any, subjects: Sequence[str]) -> list[StudyCell]:
    """Return all requested cells, in order."""
    requested_cells = [
        StudyCell(subject, condition, experiment.episodes(options, subject))
        for subject in subjects
        for condition in experiment.grid(options, subject)
    ]
    if not experiment.in_turns:
        return requested_cells
    return [
        dataclasses.replace(cell, episodes=EpisodePlan((seed,), cell.episodes.count))
        for seed in dict.fromkeys(seed for cell in requested_cells for seed in cell.episodes.seeds)
        for cell in requested_cells
        if seed in cell.episodes.seeds
    ]


def missing(requested: Sequence[StudyCell], found: Iterable[Record], more_will_do: bool = False) -> list[StudyCell]:
    """Return the cells whose episodes are not among the records; where more will do, those with fewer seeds or
    episodes."""
    episodes_by_cell: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for record in found:
        episodes_by_cell.setdefault(records.cell(record), set()).add((record["seed"], len(record["returns"])))

    def is_kept(cell: StudyCell) -> bool:
        there = episodes_by_cell.get(records.cell({"subject": cell.subject, "condition": cell.condition}), set())
        if not cell.episodes.count:
            return {seed for seed, _ in there} >= set(cell.episodes.seeds)
        if more_will_do:
            return {seed for seed, count in there if count >= cell.episodes.count} >= set(cell.episodes.seeds)
        return there == {(seed, cell.episodes.count) for seed in cell.episodes.seeds}

    return [cell for cell in requested if not is_kept(cell)]


def select_cells(requested: Sequence[StudyCell], found: Sequence[Record]) -> tuple[list[Record], list[StudyCell]]:
    """Return the records of the subjects of which nothing requested is missing; and all cells of the other subjects.

    A subject's cells are compared with each other, so that all of them are of the same episodes.
    """
    again = {cell.subject for cell in missing(requested, found, more_will_do=True)}
    places = {records.cell(vars(cell)) for cell in requested if cell.subject not in again}
    return [record for record in found if records.cell(record) in places], [c for c in requested if c.subject in again]


def drop_superseded(again: Sequence[StudyCell], found: Iterable[Record]) -> list[Record]:
    """Return the records without those that a cell measured again had of other seeds, or of more or fewer episodes."""
    requested = {
        records.cell(vars(cell)): {(seed, cell.episodes.count) for seed in cell.episodes.seeds}
        for cell in again
        if cell.episodes.count  # else the measure itself decides how much a seed has, and seeds are cells of their own
    }
    left = []
    for record in found:
        key, mine = records.cell(record), (record["seed"], len(record["returns"]))
        if key not in requested or mine in requested[key]:
            left.append(record)
    return left


def measure_cell(module: str, cell: StudyCell) -> list[Record]:
    """Measure one cell of the experiment that a module declares; runs in any process that has the project."""
    from quarl.bench.report.machine import this_machine
    from quarl.policy.locate import code_version

    cli.set_environment(cli.LIBRARIES)
    experiment: Experiment = importlib.import_module(module).EXPERIMENT
    code = code_version()  # before the first cell, whatever is edited beside a long run
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
            "condition": dict(experiment.reference(cell.condition) if result.reference else cell.condition),
            "preset": result.preset,
            "seed": result.seed,
            "returns": list(result.returns),
            "successes": None if result.successes is None else list(map(int, result.successes)),
            "measures": dict(result.measures),
            **where,
        }
        for result in played
    ]


def run(module: str, requested: Sequence[StudyCell], jobs: int, address: str | None) -> Iterator[list[Record]]:
    """Measure cells, each as it ends: here, in ``jobs`` processes, or on the Ray cluster at ``address``."""
    if address is not None:
        yield from spread(functools.partial(measure_cell, module), requested, address)
    elif jobs == 1 or len(requested) < 2:
        yield from (measure_cell(module, cell) for cell in requested)
    else:
        with _processes(jobs) as pool:
            for done in as_completed([pool.submit(measure_cell, module, cell) for cell in requested]):
                yield done.result()


def spread(measure: Callable[[Argument], Result], requested: Sequence[Argument], address: str) -> Iterator[Result]:
    """Yield the answers of ``measure``, as each ends.

    Args:
        measure: a function of a module, or a partial of one.
        requested: what it is called with.
        address: ``auto``, or HOST:PORT as ``ray start`` printed it.

    Raises:
        BenchError: no cluster answers there, a machine is gone for good, or what ``measure`` raised.
    """
    try:
        refuse_unreachable(address)
        yield from _spread(measure, requested, address)
    except ClusterError as error:
        raise command_line.BenchError(str(error)) from error


def _spread(measure: Callable[[Argument], Result], requested: Sequence[Argument], address: str) -> Iterator[Result]:
    try:
        import ray
    except ImportError:
        raise ClusterError(
            'Ray is not installed here. Type: make actorq   (outside a checkout: pip install "quarl[actorq]")'
        ) from None
    from quarl.train.actorq import VARIABLES
    from quarl.train.actorq.cluster import outcome, reach
    from quarl.train.actorq.processes import GoneError

    reach(address, runtime_env={"env_vars": VARIABLES})
    try:
        remote: Any = ray.remote(_call)
        one = remote.options(num_cpus=1, scheduling_strategy="SPREAD", max_retries=3)
        pending = [one.remote(measure, argument) for argument in requested]
        while pending:
            (done, *_), pending = ray.wait(pending)
            yield outcome(done)
    except GoneError as error:
        raise ClusterError(
            f"a machine of the cluster is gone: {error}. Finished results were kept; type the same command again."
        ) from error
    finally:
        ray.shutdown()


def _call(measure: Callable[[Argument], Result], requested: Argument) -> Result:
    return measure(requested)


@contextmanager
def _processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def refuse_dirty() -> None:
    """See that what is kept names the code that measured it.

    Raises:
        BenchError: a tracked file other than a result, a page or a picture differs from the last commit.
    """
    from quarl.policy.locate import list_changed_code

    if changed := list_changed_code():
        raise command_line.BenchError(
            f"--keep stores results with the commit that made them, but {', '.join(changed[:3])} differ from the "
            "commit.",
            "git commit -a",
        )
