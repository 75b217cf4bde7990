"""Tables and pictures of what several studies kept; nothing is measured for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl.bench.study.experiment import Results, load_stored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quarl.bench.study.experiment import Experiment
    from quarl.bench.tables import Table


@dataclass(frozen=True)
class Joined:
    """One question that other studies' rows answer; ``quarl study NAME``.

    Attributes:
        kept: (folder of the records; None: results/study) → what tables and pictures are made of. Raises a BenchError
            where a study that it needs has kept nothing.
        tables, figures: of what was kept, as :class:`bench.study.experiment.Experiment` has them of results.
        plain: what was kept as JSON has it; None: the tables' cells.
    """

    kept: Callable[[Path | None], Any]
    tables: Sequence[Callable[[Any], Iterable[Table]]]
    figures: Sequence[Callable[[Any], Mapping[str, Figure]]] = ()
    plain: Callable[[Any], list[dict[str, Any]]] | None = None

    def build_output(self) -> tuple[list[Table], dict[str, Figure]]:
        """Return the tables, and the pictures by the stem of their files."""
        source = self.kept(None)
        figures = {stem: figure for declared in self.figures for stem, figure in declared(source).items()}
        return [table for declared in self.tables for table in declared(source)], figures


def results_of(experiment: Experiment, folder: Path | None) -> Results:
    """Return what a study kept in a folder, or in its own."""
    return load_stored(experiment, folder and folder / experiment.path.name)
