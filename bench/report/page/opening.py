"""The report's sections of what the paper left open: parts of a policy apart, layers apart, means against wide weights.

Their modules are imported where their answers are there, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench.report.case_study import NothingStoredError
from bench.report.page.parts import Block, Picture

if TYPE_CHECKING:
    from bench.report.page.sources import Sources


def apart_blocks(sources: Sources) -> Iterator[Block]:
    """Precision of weights, hidden activations and observation apart from each other."""
    answers = apart_answers(sources)
    from bench.study.apart import command as precision_apart
    from bench.study.apart import figure as precision_apart_figure

    title = "Error with few bits in one part of a policy, and 8 in the other two."
    alt = f"{title} A panel for each policy; the numbers are in the tables below."
    yield Picture.of(precision_apart_figure.apart_figure(answers), title, alt)
    yield from precision_apart.tables(answers)


def layer_blocks(sources: Sources) -> Iterator[Block]:
    """Sensitivity of each layer, and mixed widths against uniform ones."""
    answers = layer_answers(sources)
    from bench.study.layers import figure as layer_figure
    from bench.study.layers import tables as layer_tables

    for draw, title in (
        (layer_figure.widths_figure, "Mixed widths against uniform ones of the same size."),
        (layer_figure.sensitivity_figure, "Error with few bits in one layer's kernel, and 8 in all else."),
    ):
        yield Picture.of(draw(answers), title, f"{title} A panel for each policy; the numbers are in the tables below.")
    yield from layer_tables.tables(answers)


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


def apart_answers(sources: Sources) -> list[Any]:
    """What is stored about parts of a policy; raises as :func:`need` and :func:`current` do."""
    need(sources, "apart-*.json")
    from bench.study.apart import store as precision_apart_store

    return current(sources, precision_apart_store.read(sources.study))


def layer_answers(sources: Sources) -> list[Any]:
    """What is stored about layers; raises as :func:`need` and :func:`current` do."""
    need(sources, "layers-*.json")
    from bench.study.layers import store as layer_store

    return current(sources, layer_store.read(sources.study))


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


def current(sources: Sources, answers: list[Any]) -> list[Any]:
    """Answers about the committed weights, in the order of the bundles.

    Raises:
        NothingStoredError: there is none.
    """
    places = {name: number for number, name in enumerate(sources.bundles)}
    found = [each for each in answers if sources.is_current(each.bundle, each.weights_sha256)]
    if not found:
        raise NothingStoredError("What is stored is of weights that are no longer there.")
    return sorted(found, key=lambda each: (places.get(each.bundle, len(places)), each.bundle))
