"""The kept rows of every study: measured from a commit, about today's weights, and what the pages show."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from quarl import cli
from quarl.bench.study import records
from quarl.bench.study.experiment import current, in_order, load_stored
from quarl.bench.study.joined import Joined
from quarl.bench.tables import fill_page, pages

VERBS = {name: verb for name, verb in cli.VERBS["Measuring"].items() if name.startswith("study ")}
MODULES: dict[str, ModuleType] = {
    name: importlib.import_module(verb.where.partition(":")[0]) for name, verb in VERBS.items()
}
EXPERIMENTS = {name: module.EXPERIMENT for name, module in MODULES.items() if hasattr(module, "EXPERIMENT")}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_kept_rows_are_of_a_commit_and_of_what_is_there(name: str) -> None:
    kept = records.read(EXPERIMENTS[name].path)
    assert kept and current(EXPERIMENTS[name], kept) == kept == in_order(EXPERIMENTS[name], kept)
    assert not [record["code"] for record in kept if record["code"].endswith("-dirty")]


def test_the_pages_show_the_kept_rows() -> None:
    tables = [table for experiment in EXPERIMENTS.values() for table in load_stored(experiment).tables()]
    joined = [each for module in MODULES.values() if isinstance(each := getattr(module, "JOINED", None), Joined)]
    tables += [table for each in joined for table in each.build_output()[0]]
    texts = {path: path.read_text(encoding="utf-8") for path in pages()}
    filled_in = {path: fill_page(text, tables) for path, text in texts.items()}
    assert filled_in == texts, "type: quarl study all --stored --update-docs"
    shown = [table.name for table in tables if any(f"<!-- table:{table.name} -->" in text for text in texts.values())]
    assert {"cells", "qat", "actorq-returns", "mixed-precision", "training-speed"} <= set(shown)
