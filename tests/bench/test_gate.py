"""bench/gate.py: every wrong artifact is refused, and the tables say what became of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import command_line, gate
from bench.report import store
from bench.tables.registry import TABLES, Kept


def test_what_is_wrong_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    assert gate.main(["--json", "--keep"]) == command_line.EXIT_OK
    document = json.loads(capsys.readouterr().out)
    assert len(document["wrong"]) == 5 and all(each["refused"] for each in document["wrong"])
    assert [each["before"].partition(":")[0].partition(",")[0] for each in document["wrong"]] == [
        "passed", "passed", "served under the other's label", "passed", "answered",
    ]  # fmt: skip
    assert len(document["bundles"]) >= 20
    for each in document["bundles"]:
        # Wider than before only where the two ways of rounding part in a flat piece of the tanh: pendulum-td3.
        wider = 1.2 if each["policy"] == "pendulum-td3" else 1.0001
        assert max(each["now"]) <= wider * each["before"] and each["agreement"] >= 0.75
    assert json.loads((tmp_path / "gate.json").read_text())["wrong"] == document["wrong"]
    table, _ = TABLES["gate-wrong"].make(Kept())
    assert len(table.rows) == 5 and not any("/tmp" in cell for row in table.rows for cell in row)


def test_a_wrong_one_that_passes_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"policy": "I", "outputs": 2, "discrete": True, "vectors": 5, "before": 0.1, "now": [0.1], "agreement": 1.0}
    monkeypatch.setattr(gate, "_bundles", lambda: iter([found]))
    monkeypatch.setattr(gate, "_wrong", lambda: iter([{"what": "x", "before": "y", "refused": False, "said": None}]))
    assert gate.main([]) == command_line.EXIT_FAILED
    assert "passes" in capsys.readouterr().out
