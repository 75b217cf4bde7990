"""bench/foreign.py: files are imported, compared and flown, and the table says how far they are apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarl import cli
from quarl.bench import foreign
from quarl.bench.report import store
from quarl.bench.tables.foreign import FOREIGN


def test_files_are_imported_and_flown(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["ppo_cartpole", "td3_three", "rsl_rl_script"]
    assert foreign.main([*names, "--episodes", "2", "--json"]) == cli.EXIT_OK
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["policies"]] == names
    assert all(0 <= each["near"] < 1e-4 and 0 <= each["runtimes"] < 1e-3 for each in document["policies"])
    flown, apart, _ = document["policies"]
    assert flown["returns"]["fp32"]["minus_original"] == 0.0 and not apart["returns"]
    table = FOREIGN.table(document)
    assert [row[0] for row in table.rows] == names
    assert table.rows[0][-2].startswith("+0.00") and table.rows[1][-3] == "–"


def test_what_is_not_all_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    assert foreign.main(["ppo_cartpole", "--keep"]) == cli.EXIT_FAILED
    assert foreign.main(["absent"]) == cli.EXIT_FAILED
    assert not list(tmp_path.iterdir())
