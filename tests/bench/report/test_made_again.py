"""Every table and picture of README.md and docs/ is made again from the rows in results/, to the last byte."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from bench import table
from bench.report import store
from bench.report import tables as rendering
from bench.report.figures import FIGURES, save
from bench.report.selection import Selection
from bench.report.tables import Table
from bench.study.__main__ import STUDIES
from bench.study.experiment import stored
from bench.tables import plots

DRAWN_BY_HAND = {"pipeline.svg", "flight.gif"}  # a drawing, and a film of a flight
DRAWN_OF_FLIGHTS = {"flight-altitude.svg", "flight-velocity.svg"}  # drawn again by test_compare_flight.py
WEIGHTS = "weights/"  # drawn of the bundles, as docs/weights.md says


@cache
def studied() -> dict[str, tuple[list[Table], Mapping[str, Figure]]]:
    """Tables and pictures of each study that has any."""
    found: dict[str, tuple[list[Table], Mapping[str, Figure]]] = {}
    for name, (module, _) in STUDIES.items():
        study = importlib.import_module(module)
        if hasattr(study, "JOINED"):
            found[name] = study.JOINED.made()
        elif hasattr(study, "EXPERIMENT") and study.EXPERIMENT.path.exists():
            results = stored(study.EXPERIMENT)
            found[name] = results.tables(), results.figures()
    return found


def test_every_table_of_the_pages_is_made_again() -> None:
    arguments = argparse.Namespace(name=None, own=False, results=None, target=None, preset="hard")
    made = [each for each, _ in table.tables(arguments)[0].values()]
    made += [each for tables, _ in studied().values() for each in tables]
    texts = {path.name: path.read_text(encoding="utf-8") for path in rendering.pages()}
    marked = {name for text in texts.values() for name in re.findall(r"<!-- table:(\S+) -->", text)}
    assert marked <= {each.name for each in made}, "a marker without a table"
    assert len(marked) > 25
    again = {name: rendering.filled(text, made) for name, text in texts.items()}
    assert [name for name in texts if again[name] != texts[name]] == [], "type: make table WRITE=1"


@pytest.mark.slow
def test_every_picture_is_drawn_again(tmp_path: Path) -> None:
    drawn = {f"study/{stem}": figure for _, figures in studied().values() for stem, figure in figures.items()}
    drawn |= plots.figures(Selection.of_target(store.read_results(store.RESULTS / "case-study.jsonl")))
    kept = {str(path.relative_to(FIGURES)) for path in FIGURES.rglob("*.*")}
    expected = {f"{stem}{end}" for stem in drawn for end in (".png", ".svg")} | DRAWN_BY_HAND | DRAWN_OF_FLIGHTS
    assert {name for name in kept if not name.startswith(WEIGHTS)} == expected, "a picture that nothing draws, or lacks"
    other = []
    for stem, figure in drawn.items():
        other += [
            path.name
            for path in save(figure, tmp_path / stem)
            if path.read_bytes() != (FIGURES / stem).with_suffix(path.suffix).read_bytes()
        ]
    assert other == [], "type: make table WRITE=1"
