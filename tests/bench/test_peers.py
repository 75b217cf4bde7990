"""bench/peers: the native engine beside other programs, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quarl import cli
from quarl.bench import command_line
from quarl.bench.peers import __main__ as peers
from quarl.bench.peers import turns
from quarl.bench.peers.contestants import OURS, PROGRAMS
from quarl.bench.peers.network import write_network
from quarl.bench.peers.policies import load_committed
from quarl.bench.peers.turns import TimedProgram, time_in_turns
from quarl.bench.peers.worker import ncnn_network
from quarl.bench.report import store
from quarl.policy.places import PROJECT_ROOT
from quarl.policy.reference import forward_float

PYTHON = PROJECT_ROOT / peers.PYTHON


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="needs other programs, which `make peers` installs")
def test_every_program_acts_as_the_policy_and_is_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURNS", 2)
    monkeypatch.setattr(turns, "TURN_S", 0.002)
    assert peers.main(["--policy", "I", "--json"]) == cli.EXIT_OK
    document = json.loads(capsys.readouterr().out)
    found = {(row["runtime"], row["precision"]): row for row in document["rows"]}
    assert set(found) == {
        *((name, precision) for name in PROGRAMS for precision in ("fp32", "int8")),
        *((runtime.value, precision.value) for runtime, precisions in OURS.items() for precision in precisions),
        *(("ExecuTorch in C", precision) for precision in ("fp32", "int8", "dynamic")),
        *[("native in C", "int8"), ("native in C", "fp16"), ("emlearn in C", "fp32")],
    }
    for (_, precision), row in found.items():
        assert row["acts_as_fp32"] >= {"fp32": 1.0, "fp16": 0.99, "int4": 0.8}.get(precision, 0.95)
        assert len(row["turns_ns"]) == 2 and min(row["turns_ns"]) > 0
        assert row["bytes"] > 1000
    assert "ncnn" in document["versions"]


def test_what_is_written_for_the_others_is_the_policy(tmp_path: Path) -> None:
    bundle = load_committed("I")
    write_network(tmp_path, bundle)
    stored = dict(np.load(tmp_path / "network.npz", allow_pickle=False))
    x = np.clip((bundle.golden().observations - stored["mean"]) * stored["inverse"], -stored["clip"], stored["clip"])
    for index in range(int(stored["layers"])):
        last = index + 1 == stored["layers"]
        x = x @ stored[f"kernel_{index}"] + stored[f"bias_{index}"]
        x = x if last else np.maximum(x, 0.0)
    np.testing.assert_allclose(x, forward_float(bundle.spec, bundle.weights(), bundle.golden().observations), atol=1e-3)
    text, data = ncnn_network(tmp_path, "fp32", stored)
    floats = sum(value.size for name, value in stored.items() if name[:4] in ("kern", "bias", "mean", "inve"))
    assert data.stat().st_size == 4 * (floats + int(stored["layers"]))  # a mark before each layer's weights
    assert text.read_text().splitlines()[:2] == ["7767517", "7 7"]


def test_a_contestant_that_ends_is_named() -> None:
    with pytest.raises(command_line.BenchError, match="before it answered"):
        time_in_turns([TimedProgram("absent", ("false",))])


def row(runtime: str, precision: str, *turns_ns: float) -> dict[str, object]:
    same = {"policy": "I", "bytes": 1000, "acts_as_fp32": 0.975}
    return {**same, "runtime": runtime, "precision": precision, "turns_ns": list(turns_ns)}


def test_the_table_begins_with_the_fastest() -> None:
    rows = [row("litert", "int8", 4e3, 2e3), row("slow", "fp32", 8e3, 8e3), row("native", "int8", 1e3, 1e3)]
    shown = peers.peers_table({"machine": "m", "code": "c", "versions": "v", "rows": rows}).rows
    assert [(each[1], each[4], each[5]) for each in shown] == [
        ("native", "3.00× [2.00, 4.00]", "97.5"),
        ("litert", "1 (base)", "97.5"),
        ("slow", "0.38× [0.25, 0.50]", "97.5"),
    ]


def test_what_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    assert peers.main(["--policy", "I", "--keep"]) == cli.EXIT_FAILED
    monkeypatch.setattr(peers, "PYTHON", tmp_path / "python")
    assert peers.main(["--policy", "I"]) == cli.EXIT_FAILED
    assert "next: make peers" in capsys.readouterr().err
    monkeypatch.setattr(peers, "PYTHON", Path("README.md"))
    assert peers.main(["--policy", "pendulum-ppo"]) == cli.EXIT_USAGE
    assert peers.main(["--policy", "absent"]) == cli.EXIT_USAGE
    assert not list(tmp_path.iterdir())
