"""The report's sections of what the paper left open: parts of a policy apart, layers apart, means against wide weights.

Their modules are imported where their answers are there, and not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bench.report.case_study import NothingStoredError
from bench.report.page.parts import Block, Picture

if TYPE_CHECKING:
    from bench.report.page.sources import Sources


def study_blocks(module: str) -> Callable[[Sources], Iterator[Block]]:
    """Pictures and tables of the experiment that a module declares, of what is stored about the committed weights."""

    def blocks(sources: Sources) -> Iterator[Block]:
        from bench.study.experiment import stored

        experiment = importlib.import_module(module).EXPERIMENT
        need(sources, experiment.path.name)
        results = stored(experiment, sources.study / experiment.path.name)
        if not results.found:
            raise NothingStoredError("What is stored is of weights that are no longer there.")
        tables = experiment.tables(results)
        for figure in experiment.figures(results).values():
            title = f"{tables[0].title}."
            yield Picture.of(figure, title, f"{title} A panel for each policy; the numbers are in the tables below.")
        yield from tables

    return blocks


def wide_blocks(sources: Sources) -> Iterator[Block]:
    """Weight decay, clipping and layer normalisation as means against wide weights."""
    answers = wide_answers(sources)
    from bench.study.wide import plot as wide_plot
    from bench.study.wide import statistics as wide_statistics
    from bench.study.wide import table as wide_table

    title = "Return against bits of policies trained with a means against wide weights, and without."
    alt = f"{title} A panel for each cell; the numbers are in the tables below."
    yield Picture.of(wide_plot.figure_of(wide_statistics.rows_of(answers)), title, alt)
    yield from wide_table.tables(answers)


def wide_answers(sources: Sources) -> list[Any]:
    """What is stored about means against wide weights.

    Raises:
        NothingStoredError: there is nothing.
    """
    need(sources, "wide-weights.json")
    from bench.study.wide import store as wide_store

    answers = wide_store.read(sources.study / "wide-weights.json")
    if not answers:
        raise NothingStoredError("No training with a means against wide weights is stored.")
    return list(answers)


def need(sources: Sources, pattern: str) -> None:
    """Say that nothing is stored where no file of the study has this name.

    Raises:
        NothingStoredError: there is none.
    """
    if not any(sources.study.glob(pattern)):
        raise NothingStoredError(f"results/study has no {pattern}.")
