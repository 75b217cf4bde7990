"""The report's sections of experiments: their pictures and tables, of what is stored.

Their modules are imported where their answers are there, and not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.report.case_study import NothingStoredError
from bench.report.page.parts import Block, Picture

if TYPE_CHECKING:
    from bench.report.page.sources import Sources


def study_blocks(module: str) -> Callable[[Sources], Iterator[Block]]:
    """Pictures and tables of the experiment that a module declares, of what is stored about the committed weights."""

    def blocks(sources: Sources) -> Iterator[Block]:
        from bench.study.experiment import Results, current, in_order
        from bench.study.records import read

        experiment = importlib.import_module(module).EXPERIMENT
        need(sources, experiment.path.name)
        found = in_order(experiment, current(experiment, read(sources.study / experiment.path.name)))
        if not found:
            raise NothingStoredError("What is stored is of weights that are no longer there.")
        results = Results(experiment, found)
        tables = experiment.tables(results)
        for figure in experiment.figures(results).values():
            title = f"{tables[0].title}."
            yield Picture.of(figure, title, f"{title} The numbers are in the tables below.")
        yield from tables

    return blocks


def need(sources: Sources, pattern: str) -> None:
    """Say that nothing is stored where no file of the study has this name.

    Raises:
        NothingStoredError: there is none.
    """
    if not any(sources.study.glob(pattern)):
        raise NothingStoredError(f"results/study has no {pattern}.")
