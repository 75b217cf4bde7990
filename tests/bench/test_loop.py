"""bench/loop.py asks a loop on the local device; what it prints is of what was counted there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quarl.bench import loop
from quarl.bench.loop_timing.tables import may_be_late, punctuality, round_trips


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A short answer, measured here."""
    root = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUARL_LOCAL_DEVICE", str(root))
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        few = ["--seconds", "2", "--loads", "idle,busy", "--rates", "20", "--pairs", "50", "--runtime", "litert"]
        assert loop.main(["--policy", "I", *few, "--json"]) == 0
    assert not (Path(root) / "home" / loop.FOLDER).exists()  # nothing is left on the device
    answer: dict[str, Any] = json.loads(next(line for line in printed if line.startswith("{")))
    return answer


def test_a_round_trip_holds_the_loops_share_and_that_the_runtimes_call(document: dict[str, Any]) -> None:
    rows = list(round_trips(document))
    assert [(row["runtime"], row["wait"]) for row in rows] == [("litert", "sleeps"), ("litert", "polls")]
    for row, found in zip(rows, document["pairs"], strict=True):
        assert found["round_trip_ns"]["count"] == found["echo_ns"]["count"] == 50
        assert 0 < row["call"] < row["share"] < row["round_trip"]
        assert found["status"]["counts"]["fallback"] == 0


def test_each_load_and_rate_has_its_ticks(document: dict[str, Any]) -> None:
    rows = list(punctuality(document))
    assert [(row["load"], row["rate"]) for row in rows] == [("idle", 20.0), ("busy", 20.0)]
    for row in rows:
        assert row["ticks"] >= 38  # of 40, and some before it was asked
        assert row["woke_late_p50"] <= row["woke_late_max"]
        assert row["woke_late_p99"] is None  # so few do not support it


def test_what_is_known_of_late_commands_is_joined() -> None:
    assert "100 ms late" in may_be_late("I", "int8")
    assert may_be_late("nobody", "int8") == ""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["--rates", "0"], "from 0.1 to 1000"), (["--loads", "heavy"], "busy, cpu, memory")],
)
def test_wrong_usage_says_what_is_allowed(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loop.main(arguments)
    assert why in capsys.readouterr().err
