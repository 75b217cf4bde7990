"""bench/native.py: the native engine in turns with the other runtimes, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarl import cli
from quarl.bench import native
from quarl.bench.peers import turns
from quarl.bench.report import store
from quarl.device.engine.engine import kernels_here, library


def test_every_contestant_decides_in_every_turn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURNS", 2)
    monkeypatch.setattr(turns, "TURN_S", 0.002)
    assert native.main(["--policy", "I", "--precision", "int4", "--json"]) == cli.EXIT_OK
    document = json.loads(capsys.readouterr().out)
    own = [f"native ({kernels})" for kernels in kernels_here(library()) if kernels != "plain"]
    assert [row["runtime"] for row in document["rows"]] == ["tflite-runtime", "litert", "onnxruntime", *own]
    assert all(len(row["turns_ns"]) == 2 and min(row["turns_ns"]) > 0 for row in document["rows"])


def row(runtime: str, *turns_ns: float) -> dict[str, object]:
    return {"policy": "I", "precision": "int8", "runtime": runtime, "bytes": 1000, "turns_ns": list(turns_ns)}


def test_the_table_compares_turn_by_turn() -> None:
    document = {
        "machine": "m",
        "code": "c",
        "versions": "v",
        "rows": [row("litert", 4e3, 2e3), row("native (x)", 1e3, 1e3)],
    }
    shown = native.native_table(document).rows
    assert [each[-2] for each in shown] == ["1 (base)", "3.00× [2.00, 4.00]"]


def test_what_is_not_all_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    assert native.main(["--policy", "I", "--keep"]) == cli.EXIT_FAILED
    assert native.main(["--policy", "absent"]) == cli.EXIT_USAGE
    assert not list(tmp_path.iterdir())
